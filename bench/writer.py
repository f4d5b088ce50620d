"""An engine without a model that writes a text of bench.chats: for bench.pages, where a page is measured that reads it.

    REDIS_URL=… OCTAVO_MODEL=… python -m bench.writer --rate 80 --burst 1

Everything that is asked is answered with the same long text, a few characters a token, `--rate` tokens a second;
`--burst`: so many tokens come at once, the rate being the same. The bus and the wire are the engine's own.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import time

from bench.chats import answer
from bench.fake_engine import FakeEngine
from engine import protocol
from engine.fairness import OUTPUT_COST
from engine.protocol import Delta, Finished, Part

PIECE = re.compile(r"\s?\S{1,5}|\s+")
CAPACITY = 8


class Writer(FakeEngine):
    """Each generation says all of `pieces`."""

    def __init__(self, url: str, model: str, pieces: list[str]) -> None:
        super().__init__(url, model, CAPACITY)
        self.pieces = pieces

    def write(self, burst: int) -> None:
        """So many tokens of each."""
        for speaker in [*self.speakers.values()]:
            text = "".join(self.pieces[speaker.tokens : speaker.tokens + burst])
            parts = [Part(text=text, token_ids=list(range(min(burst, len(self.pieces) - speaker.tokens))))]
            self._say(speaker, Delta(seq=speaker.seq, parts=parts), OUTPUT_COST)
            speaker.tokens += len(parts[0].token_ids)
            if speaker.tokens >= len(self.pieces):
                self._end(self.speakers.pop(speaker.id), Finished)
        self._flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=80.0)
    parser.add_argument("--burst", type=int, default=1)
    args = parser.parse_args()
    stopped = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    pieces = PIECE.findall(answer(0) + "\n\n" + answer(8))
    engine = Writer(os.environ["REDIS_URL"], protocol.model_name(os.environ["OCTAVO_MODEL"]), pieces)
    engine.bus.start()
    due = time.monotonic()
    while not stopped:
        engine.hear(wait_s=0.0 if engine.speakers else 0.05)
        if not engine.speakers:
            due = time.monotonic()
            continue
        due += args.burst / args.rate
        time.sleep(max(due - time.monotonic(), 0.0))
        engine.write(args.burst)
    engine.bus.stop(2.0)


if __name__ == "__main__":
    main()
