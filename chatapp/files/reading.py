"""The text of a file: out of whatever encoding it has, or page by page out of a PDF. Knows neither rows nor tasks.

Bounds hold before the work and while it is done; what cannot be read is refused in words (kinds.Unreadable).
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass

from charset_normalizer import from_bytes
from django.core.files import File

from chatapp.files import pdf
from chatapp.files.kinds import HEAD, Kind, Unreadable, encoding_said, kind_of, wide

# Of text in UTF-8: a count of tokens takes no more (engine.protocol.MOST_COUNT_BYTES), and no context is that long.
MOST_TEXT = 1_000_000
# UTF-32 is four times as long as ASCII.
MOST_BYTES_OF_TEXT = 4 * MOST_TEXT
# Enough to tell encodings apart.
SAMPLE = 128 * 1024
WESTERN = "cp1252"
# Those that texts have nowadays; among all that there are, rare ones win by chance.
ENCODINGS = [
    WESTERN, "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "koi8_r", "tis_620", "cp932",
    "euc_jp", "gb18030", "big5", "cp949",
]  # fmt: skip
_UNSEEN = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\ufeff\ud800-\udfff]")
_ENDS = re.compile(r"\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_SPACE_AT_END = re.compile(r"[ \t]+(?=\n)")

NOTHING = "There is no text in this file."
PICTURES = "No text was found in this PDF: its pages are pictures. Run text recognition (OCR) over it first."


@dataclass(frozen=True)
class Read:
    text: str
    kind: Kind
    pages: int | None = None


def read(source: File) -> Read:
    """Raises Unreadable."""
    head = source.read(HEAD)
    kind = kind_of(head)
    source.seek(0)
    if kind == "pdf":
        return _pdf(source)
    size = source.size
    if size > MOST_BYTES_OF_TEXT:
        raise _too_long(size)
    text = tidy(decoded(source.read(MOST_BYTES_OF_TEXT + 1)))
    if not text:
        raise Unreadable("no_text", NOTHING)
    _check(text)
    return Read(text, kind)


def decoded(content: bytes) -> str:
    """Its text, by the mark that it begins with, as UTF-8, as what it looks like, or as Latin-1. Raises Unreadable."""
    said = encoding_said(content) or wide(content[:HEAD])
    if said is not None:
        return content.decode(said, "replace")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        found = list(from_bytes(content[:SAMPLE], cp_isolation=ENCODINGS))
    if not found:
        raise Unreadable(
            "unknown_encoding", "The encoding of this text is none that is known. Save it as UTF-8 and try again."
        )
    # Of guesses that are equally good the first is the first of the alphabet, which is seldom right.
    best = [guess for guess in found if (guess.chaos, guess.coherence) == (found[0].chaos, found[0].coherence)]
    western = any(WESTERN in guess.could_be_from_charset for guess in best)
    return content.decode(WESTERN if western else found[0].encoding, "replace")


def tidy(text: str) -> str:
    """Line feeds for all ends of lines, and nothing that cannot be seen: databases refuse some of it."""
    text = _UNSEEN.sub("", _ENDS.sub("\n", text))
    return _SPACE_AT_END.sub("", text).strip("\n").rstrip()


def _pdf(source: File) -> Read:
    # The child reads a file of its own, wherever the storage is.
    with tempfile.TemporaryFile() as file:
        shutil.copyfileobj(source, file)
        file.seek(0)
        try:
            pages = pdf.read(file, most_bytes=MOST_TEXT)
        except pdf.TooMuchText:
            raise _too_long(None) from None
    texts = [tidy(page) for page in pages.texts]
    if not any(texts):
        raise Unreadable("no_text", PICTURES)
    text = "\n\n".join(page for page in texts if page)
    _check(text)
    return Read(text, "pdf", len(texts))


def _check(text: str) -> None:
    size = len(text.encode())
    if size > MOST_TEXT:
        raise _too_long(size)


def _too_long(size: int | None) -> Unreadable:
    there = "more" if size is None else f"{size / 1e6:.1f} MB"
    return Unreadable(
        "text_too_long",
        f"At most {MOST_TEXT // 1_000_000} MB of text can be read, and this is {there}. Attach a part of it.",
    )
