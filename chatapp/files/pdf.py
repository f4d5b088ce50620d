"""Reads a PDF in a child process (pdf_child), and believes nothing that it does.

The child has limits of its own; here it is given so much time and so many bytes to say, and is killed beyond that.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from chatapp.files.kinds import Unreadable

CHILD = Path(__file__).with_name("pdf_child.py")
WALL_S = 60.0
MOST_PAGES = 1000


class Line(msgspec.Struct):
    """What the child says."""

    pages: int | None = None
    text: str | None = None
    end: str | None = None


SAYS_TOO_MUCH = "text_too_long"
WORDS = {
    "encrypted": ("encrypted_file", "This PDF is protected by a password. Save it without one."),
    "memory": (
        "takes_too_much",
        "This PDF takes too much memory to read. Print it into a new one, or save it as text.",
    ),
    "late": ("takes_too_long", "Reading this PDF took too long. Print it into a new PDF, or save it as text."),
    "broken": ("broken_file", "This PDF is damaged and cannot be read. Save it again, or save it as text."),
}
ENDS = {"done", "pages", "encrypted", "memory", "broken"}


@dataclass(frozen=True)
class Pages:
    texts: list[str]


def read(source: IO[bytes], *, most_bytes: int, wall_s: float = WALL_S) -> Pages:
    """`source`: a real file, at its beginning; `most_bytes`: of text, in UTF-8. Raises Unreadable."""
    # JSON in ASCII takes up to six bytes for two of UTF-8, and a page's line has a frame around it.
    most = most_bytes * 6 + 64 * 1024
    child = subprocess.Popen(
        [sys.executable, "-I", str(CHILD), str(MOST_PAGES)],
        stdin=source,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"LC_ALL": "C.UTF-8", "PATH": os.defpath},
        start_new_session=True,
        close_fds=True,
    )
    too_late = threading.Timer(wall_s, child.kill)
    too_late.start()
    started = time.monotonic()
    try:
        assert child.stdout is not None
        texts, end, pages = _heard(child.stdout, most, most_bytes)
        if end is None:
            child.wait()
    finally:
        too_late.cancel()
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    if end == "pages":
        raise Unreadable("too_many_pages", f"This PDF has {pages:,} pages; at most {MOST_PAGES:,} can be read.")
    if end == SAYS_TOO_MUCH:
        raise TooMuchText
    if end is None:
        # It died: of its limit of processor time, of ours, or of something that it could not say.
        late_s = time.monotonic() - started >= wall_s
        end = "late" if late_s or child.returncode in (-signal.SIGXCPU, -signal.SIGKILL) else "broken"
    if end != "done":
        raise Unreadable(*WORDS[end])
    return Pages(texts)


class TooMuchText(Exception):
    """There is more text than is taken."""


def _heard(out: Any, most: int, most_bytes: int) -> tuple[list[str], str | None, int]:
    """The pages' texts, how it ended (None: it died), and how many pages there are."""
    texts: list[str] = []
    said = size = pages = 0
    while said <= most:
        line = out.readline(most - said + 1)
        said += len(line)
        if not line:
            return texts, None, pages
        if not line.endswith(b"\n"):
            return texts, SAYS_TOO_MUCH if said > most else None, pages
        try:
            told = msgspec.json.decode(line, type=Line)
        except msgspec.MsgspecError:
            return texts, None, pages
        if told.end is not None:
            return texts, told.end if told.end in ENDS else None, pages
        if told.pages is not None:
            pages = told.pages
        texts += [] if told.text is None else [told.text]
        size += len(told.text or "")
        if size > most_bytes:
            break
    return texts, SAYS_TOO_MUCH, pages
