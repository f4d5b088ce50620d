"""What a file is called, for showing: one line without what would hide or turn it. No path is ever made of it."""

from __future__ import annotations

import unicodedata

from chatapp.files.models import LONGEST_NAME

UNNAMED = "file"
# They would turn the direction of whatever stands beside the name, and hide what it ends in.
HIDING = frozenset(chr(code) for code in (*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2066, 0x206A)))
JOINERS = frozenset("\u200c\u200d")  # part of words and of emoji


def shown(name: object) -> str:
    """The last part of a path, NFC, without control and direction characters, 255 characters at most, never empty."""
    text = unicodedata.normalize("NFC", str(name).encode("utf-8", "ignore").decode())
    text = text.replace("\\", "/").rstrip("/").rpartition("/")[2]
    text = "".join(
        " " if character.isspace() else character
        for character in text
        if character in JOINERS
        or (character not in HIDING and (character.isspace() or unicodedata.category(character) not in ("Cc", "Cs")))
    )
    text = " ".join(text.split()).strip()
    if not text.strip(". "):
        return UNNAMED
    if len(text) > LONGEST_NAME:  # its ending says what it is
        stem, dot, ending = text.rpartition(".")
        ending = dot + ending if dot and stem and len(ending) <= 12 else ""
        text = text[: LONGEST_NAME - len(ending) - 1] + "…" + ending
    return text
