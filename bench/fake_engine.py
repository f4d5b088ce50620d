"""An engine without a model for bench.transport: takes requests and tells its steps as a worker does, at a set pace.

    REDIS_URL=… OCTAVO_MODEL=… python -m bench.fake_engine FOLDER --capacity 300 --tokens 600 --rate 20

The bus, the outbox and the wire are the engine's own; only what a step computes is missing. All generations advance by
a token in each step, as in a batch. It says `started` at once and is then silent until the file FOLDER/go is there, so
that a run measures streaming and not admission. When all have said `--tokens` it writes FOLDER/engine.json: how many
round trips a step took by the bus's count and function calls by the server's, and a checksum of what was said of each.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import secrets
import signal
import time
from pathlib import Path
from typing import Any

from bench.said import crc_of, now_us, token
from engine import protocol
from engine.bus import Bus, connect
from engine.fairness import OUTPUT_COST, PROMPT_COST
from engine.outbox import Said
from engine.protocol import (
    Counted,
    CountRequest,
    Delta,
    Finished,
    Part,
    PublishedPrompt,
    Started,
    Taken,
    Timing,
    Usage,
    WorkerDetails,
)

PROMPT = 16  # tokens, which nobody counts


class Speaker:
    """What has been said of one generation."""

    __slots__ = ("attempt", "crc", "id", "seq", "tokens")

    def __init__(self, taken: Taken) -> None:
        self.id = taken.id
        self.attempt = taken.attempt
        self.seq = taken.seq + 1
        self.tokens = 0
        self.crc = 0


class FakeEngine:
    """Also the bus's Listener."""

    def __init__(self, url: str, model: str, capacity: int) -> None:
        self._id = f"bench-{os.getpid()}-{secrets.token_hex(3)}"
        self._model = model
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._said: list[Said] = []
        self._watch = connect(url)  # counts, and is no part of what is counted
        self.speakers: dict[str, Speaker] = {}
        self.ended: dict[str, int] = {}
        self.steps = self.late = 0
        self.bus = Bus(url, self._id, model, capacity, self, self._details)

    def _details(self) -> WorkerDetails:
        return WorkerDetails(
            id=self._id,
            model=self._model,
            context=8192,
            block_size=16,
            num_blocks=1 << 20,
            pid=os.getpid(),
            steps=self.steps,
            running=len(self.speakers),
        )

    # --- Listener: called in the bus's threads ------------------------------------------------------------------------

    def taken(self, taken: Taken) -> None:
        self._inbox.put(("taken", taken))

    def cancelled(self, generation_id: str) -> None:
        self._inbox.put(("cancelled", generation_id))

    def expired(self, generation_id: str) -> None:
        self._inbox.put(("cancelled", generation_id))

    def dropped(self, generation_id: str) -> None:
        self._inbox.put(("dropped", generation_id))

    def counting(self, request: CountRequest) -> None:
        size = sum(map(len, request.texts)) // 4
        self.bus.answer(request.id, Counted(tokens=size, block_size=16, context=8192, tenant_blocks=1 << 20))

    def published(self, prompt: PublishedPrompt) -> None:
        self.bus.acknowledge(prompt.version, 0)

    def forget(self, tenant: str) -> None:
        self.bus.forgot(tenant)

    def released(self, prompt: str, version: str) -> None:
        """Nothing is pinned."""

    def broken(self, error: Exception) -> None:
        self._inbox.put(("broken", error))

    # --- the loop -----------------------------------------------------------------------------------------------------

    def hear(self, wait_s: float = 0.0) -> None:
        """Take in what has come, waiting so long for the first of it."""
        try:
            kind, value = self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait()
            while True:
                if kind == "taken":
                    speaker = self.speakers[value.id] = Speaker(value)
                    started = Started(seq=speaker.seq, prompt_tokens=PROMPT, cached_tokens=0)
                    self._say(speaker, started, PROMPT * PROMPT_COST)
                elif kind == "cancelled" and value in self.speakers:
                    self._end(self.speakers.pop(value), protocol.Cancelled)
                elif kind == "dropped":
                    self.speakers.pop(value, None)
                elif kind == "broken":
                    raise value
                kind, value = self._inbox.get_nowait()
        except queue.Empty:
            self._flush()

    def _say(self, speaker: Speaker, event: Started | Delta, cost: float) -> None:
        self._said.append((speaker.id, speaker.attempt, event, cost))
        speaker.seq += 1

    def _end(self, speaker: Speaker, kind: type[protocol.AnyTerminal]) -> None:
        usage = Usage(prompt_tokens=PROMPT, cached_tokens=0, completion_tokens=speaker.tokens)
        reason = "length" if kind is Finished else None
        event = kind(seq=speaker.seq, usage=usage, timing=Timing(), finish_reason=reason)
        self._said.append((speaker.id, speaker.attempt, event, 0.0))
        self.ended[speaker.id] = speaker.crc

    def _flush(self) -> None:
        if self._said:
            self.bus.tell(self._said)
            self._said = []

    def step(self, tokens: int) -> None:
        """A token of each; all of a step were written at its one moment."""
        at = now_us()
        for speaker in [*self.speakers.values()]:
            text = token(speaker.tokens, at)
            number = speaker.tokens & 0xFFFF
            self._say(speaker, Delta(seq=speaker.seq, parts=[Part(text=text, token_ids=[number])]), OUTPUT_COST)
            speaker.crc = crc_of(text, speaker.crc)
            speaker.tokens += 1
            if speaker.tokens >= tokens:
                self._end(self.speakers.pop(speaker.id), Finished)
        self.steps += 1
        self._flush()

    def calls(self) -> int:
        """How many function calls the server has had: ours, and the renewals of the web's leases."""
        stats: Any = self._watch.info("commandstats")
        return int(stats.get("cmdstat_fcall", {}).get("calls", 0))

    def speak(self, tokens: int, rate: float) -> dict[str, Any]:
        """All steps at their times; a late one is made at once, and counted."""
        before = self.bus.round_trips, self.calls(), self.steps
        began = due = time.monotonic()
        while self.speakers:
            due += 1 / rate
            if (left := due - time.monotonic()) > 0:
                time.sleep(left)
            elif left < -1 / rate:
                self.late += 1
            self.hear()
            if all(speaker.tokens + 1 >= tokens for speaker in self.speakers.values()):
                # The endings are commands of their own: the steps have been counted by then.
                counted = self.bus.round_trips, self.calls(), self.steps, time.monotonic()
            self.step(tokens)
        trips, calls, steps, ended = counted
        return {
            "steps": steps - before[2],
            "seconds": ended - began,
            "round trips": trips - before[0],
            "calls": calls - before[1],
            "late steps": self.late,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--capacity", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--rate", type=float, default=20.0)
    args = parser.parse_args()
    stopped = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    engine = FakeEngine(os.environ["REDIS_URL"], protocol.model_name(os.environ["OCTAVO_MODEL"]), args.capacity)
    engine.bus.start()
    while not stopped:
        engine.hear(wait_s=0.05)
        if engine.speakers and (args.folder / "go").exists():
            found = engine.speak(args.tokens, args.rate)
            part = args.folder / "engine.part"
            part.write_text(json.dumps({**found, "said": engine.ended}))
            part.replace(args.folder / "engine.json")
    engine.bus.stop(2.0)


if __name__ == "__main__":
    main()
