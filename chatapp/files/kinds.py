"""What a file is, by its bytes: a text or a PDF. Its name and what a browser says of it count for nothing.

Everything else is refused with a word for what it is, so that people know what to do instead.
"""

from __future__ import annotations

import re
from typing import Literal

Kind = Literal["text", "pdf"]

HEAD = 64 * 1024
# PDFs may have something before their head; readers look for it in the first kilobyte. Texts about PDFs have it there
# too: behind other words it counts where an object follows, of which every PDF is made.
PDF = b"%PDF-"
PDF_WITHIN = 1024
PDF_OBJECT = re.compile(rb"\d\s+\d+\s+obj\b")
BOMS = (
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
# What people try most, by how it begins.
KNOWN = (
    (b"\x89PNG\r\n", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"GIF8", "a GIF picture"),
    (b"BM", "a BMP picture"),
    (b"II*\x00", "a TIFF picture"),
    (b"MM\x00*", "a TIFF picture"),
    (b"PK\x03\x04", "a ZIP archive, as Word, Excel and PowerPoint files are"),
    (b"PK\x05\x06", "an empty ZIP archive"),
    (b"\xd0\xcf\x11\xe0", "an old Word, Excel or PowerPoint file"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"7z\xbc\xaf", "a 7-Zip archive"),
    (b"Rar!", "a RAR archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"(\xb5/\xfd", "a Zstandard archive"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
    (b"\xcf\xfa\xed\xfe", "a program"),
    (b"\xca\xfe\xba\xbe", "a program"),
    (b"\x00asm", "a program"),
    (b"SQLite format 3", "a database"),
    (b"ID3", "a sound file"),
    (b"fLaC", "a sound file"),
    (b"OggS", "a sound file"),
    (b"\x1aE\xdf\xa3", "a video"),
)
# Control characters that texts have: tab, line feed, vertical tab, form feed, carriage return, escape.
PLAIN = frozenset(b"\t\n\v\f\r\x1b")
CONTROL = bytes(code for code in (*range(32), 127) if code not in PLAIN)
MOST_CONTROL = 0.01


class Unreadable(Exception):
    """No text can be had of this file; `message` says to people why, and what they can do."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def kind_of(head: bytes) -> Kind:
    """`head`: the first HEAD bytes, or all of a smaller file. Raises Unreadable."""
    if not head:
        raise Unreadable("empty_file", "The file is empty.")
    if _is_pdf(head):
        return "pdf"
    if encoding_said(head) is not None or wide(head) is not None:
        return "text"
    control = len(head) - len(head.translate(None, CONTROL))
    known = next((words for start, words in KNOWN if head.startswith(start)), None)
    if head[:4] == b"RIFF":
        known = "a WebP picture" if head[8:12] == b"WEBP" else "a sound or video file"
    elif head[4:8] == b"ftyp":
        known = "a video or HEIC picture"
    # "BM" and "MZ" begin words too: what is plain all through is a text.
    if control > MOST_CONTROL * len(head) or (known is not None and control):
        what = f"This is {known or 'a binary file'}."
        raise Unreadable(
            "unreadable_type", f"{what} Text, Markdown, PDF, CSV and source code can be read: save it as one of these."
        )
    return "text"


def _is_pdf(head: bytes) -> bool:
    place = head[:PDF_WITHIN].find(PDF)
    return place >= 0 and (not head[:place].strip() or PDF_OBJECT.search(head, place) is not None)


def encoding_said(head: bytes) -> str | None:
    """The encoding that a byte order mark names."""
    return next((encoding for mark, encoding in BOMS if head.startswith(mark)), None)


def wide(head: bytes) -> str | None:
    """UTF-16 without a mark: texts that are mostly Latin have a NUL in every second byte."""
    sample = head[: len(head) // 2 * 2]
    if len(sample) < 4:
        return None
    first, second = sample[0::2].count(0), sample[1::2].count(0)
    half = len(sample) // 2
    if second > 0.6 * half and first < 0.05 * half:
        return "utf-16-le"
    if first > 0.6 * half and second < 0.05 * half:
        return "utf-16-be"
    return None
