"""Names as people type them, made fit for one line: nothing that could not be seen, nothing that turns lines around."""

from __future__ import annotations

import unicodedata

# Control characters, and the formats that reorder text; joiners stay, since scripts and emoji need them.
KEPT = {"\u200c", "\u200d"}


def one_line(text: str) -> str:
    text = "".join(" " if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c for c in text)
    text = "".join(c for c in text if unicodedata.category(c) not in ("Cf", "Cs", "Co", "Cn") or c in KEPT)
    return " ".join(text.split())
