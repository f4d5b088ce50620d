"""How a file stands in a prompt: its name and its text between fences, in front of the question that it came with.

The same text gives the same block for ever: later turns find it in the prefix cache.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r"`{3,}")
_TICKS = re.compile(r"`+")


def block(name: str, text: str, pages: int | None = None) -> str:
    """Fences are longer than any in the text, so that it ends where it ends."""
    longest = max((len(run) for run in _FENCE.findall(text)), default=2)
    fence = "`" * (longest + 1)
    size = "" if pages is None else f" ({pages} page{'' if pages == 1 else 's'})"
    plain = _TICKS.sub("'", name)
    return f"The file {plain}{size}:\n{fence}\n{text}\n{fence}"


def with_question(blocks: list[str], question: str) -> str:
    return "\n\n".join([*blocks, question])
