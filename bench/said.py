"""What the load of bench.transport is made of: tokens that say their number and when they were written.

Owns the text of a token and the check of what came of it. A token is WIDTH characters: its number in its answer and
the time of its step in microseconds of the machine's monotonic clock, which all processes share, so that the latency of
every token is exact, also of those that were merged into one frame. `Heard` notices whatever is lost, told twice, out
of order, torn, or another answer's, and says so in words.
"""

from __future__ import annotations

import re
import time
import zlib
from array import array
from dataclasses import dataclass, field

TOKEN = re.compile(r"~([0-9a-f]{4})([0-9a-f]{11})")
WIDTH = 16
ENDING = "length"
MOST_PROBLEMS = 5


def now_us() -> int:
    return time.monotonic_ns() // 1000


def token(number: int, at_us: int) -> str:
    return f"~{number & 0xFFFF:04x}{at_us & 0xFFFFFFFFFFF:011x}"


def crc_of(text: str, before: int = 0) -> int:
    """Of all that was said, bit by bit: both sides keep it, and whoever knows both compares."""
    return zlib.crc32(text.encode(), before)


@dataclass
class Heard:
    """One answer as its reader got it. `seqs`: whether frames carry numbers (SSE's chunks have none)."""

    seqs: bool = True
    last_seq: int = 0
    tokens: int = 0
    frames: int = 0
    crc: int = 0
    late_us: array[int] = field(default_factory=lambda: array("q"))
    problems: list[str] = field(default_factory=list)

    def frame(self, delta: str, first_seq: int, seq: int, at_us: int) -> None:
        """A frame that says it covers `first_seq` to `seq`, one token an event."""
        self.frames += 1
        if self.seqs:
            if first_seq != self.last_seq + 1:
                self._problem(f"the frame of {first_seq} to {seq} came behind {self.last_seq}")
            if len(delta) != WIDTH * (seq - first_seq + 1):
                self._problem(f"the frame of {first_seq} to {seq} has {len(delta)} characters")
            self.last_seq = seq
        self.crc = crc_of(delta, self.crc)
        for at in range(0, len(delta), WIDTH):
            found = TOKEN.fullmatch(delta[at : at + WIDTH])
            if found is None:
                self._problem(f"no token: {delta[at : at + WIDTH]!r}")
                return
            if int(found[1], 16) != self.tokens & 0xFFFF:
                self._problem(f"token {int(found[1], 16)} came in place of {self.tokens}")
            self.tokens += 1
            self.late_us.append(at_us - int(found[2], 16))

    def end(self, kind: str, tokens: int) -> None:
        """How the answer ended, and how many tokens it should have had; all of them end at their limit."""
        if kind != ENDING:
            self._problem(f"it ended as {kind}")
        elif self.tokens != tokens:
            self._problem(f"{self.tokens} tokens came of {tokens}")

    def _problem(self, words: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(words)
