"""JSON in one line, for those who read by lines: server-sent events, and files of batches.

JSON lets three characters stand as they are that many readers take for the end of a line (Python's str.splitlines, and
with it httpx's iter_lines), as they are for Unicode; a model may say any of them. Escaped they are the same JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode
_ENDS = (("\x85".encode(), b"\\u0085"), ("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029"))


def one_line(value: Any) -> bytes:
    """Without what ends it."""
    line = _encode(value)
    if not line.isascii():
        for found, escaped in _ENDS:
            line = line.replace(found, escaped)
    return line
