"""Everything at once: random interleavings of all calls by workers that die, freeze and wake; two real workers."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from chatapp.streaming import cancel, submit
from engine import protocol
from engine.protocol import Claimed, Finished, Interrupted, Started, Taken, Terminal
from tests.wire.conftest import Wire, a_question, a_request, answer_of, delta
from tests.wire.test_worker import Serve, first_tokens

WORKERS = ("w1", "w2", "w3")


class Player:
    """A worker that does what a worker may do, in any order, and believes what it is told."""

    def __init__(self, wire: Wire, name: str) -> None:
        self.wire, self.name = wire, name
        self.runs: dict[str, list[int]] = {}  # id -> [attempt, next seq]

    def accept(self, taken: Taken | str | None) -> bool:
        if isinstance(taken, Taken):
            self.runs[taken.id] = [taken.attempt, taken.seq + 1]
        return isinstance(taken, Taken)

    def beat(self) -> None:
        held = self.wire.beat(self.name)
        for generation in set(self.runs) - set(held):
            del self.runs[generation]
        for generation in set(held) - set(self.runs):
            self.accept(self.wire.claim(generation, self.name))

    def take(self, room: int) -> bool:
        return self.accept(self.wire.take(self.name, room=room))

    def claim(self) -> None:
        for generation in self.wire.orphans(self.name):
            self.accept(self.wire.claim(generation, self.name))

    def tell(self, generation: str) -> None:
        attempt, seq = self.runs[generation]
        event = Started(seq=0, prompt_tokens=9, cached_tokens=1) if seq == 0 else delta(seq)
        told = self.wire.tell(generation, event, attempt, self.name)
        assert told.outcome in ("ok", "cancelled", "stale"), told
        if told.outcome == "stale":
            del self.runs[generation]
        else:
            self.runs[generation][1] += 1

    def finish(self, generation: str) -> None:
        attempt, seq = self.runs.pop(generation)
        assert self.wire.finish(generation, Finished(seq=seq), attempt, self.name).outcome in ("ok", "stale")


def play(wire: Wire, chance: random.Random) -> list[str]:
    players = [Player(wire, name) for name in WORKERS]
    for player in players:
        player.beat()
    ids: list[str] = []
    for _ in range(160):
        player = chance.choice(players)
        run = chance.choice(sorted(player.runs)) if player.runs else None
        match chance.randrange(12):
            case 0 | 1:
                request = a_request(f"t{chance.randrange(3)}", weight=chance.choice([1.0, 2.0]))
                ids.append(request.id)
                wire.enqueue(request)
            case 2 | 3:
                player.take(chance.randrange(2))
            case 4 | 5 | 6 if run:
                player.tell(run)
            case 7 if run:
                player.finish(run)
            case 8 if ids:
                wire.cancel(chance.choice(ids))
            case 9:
                wire.silence(player.name)
            case 10:
                chance.choice([player.beat, player.claim])()
            case 11 if ids and chance.random() < 0.2:
                wire.call(protocol.end(chance.choice(ids), Interrupted()))
    for _ in range(3 + len(ids)):  # whoever lives ends what is left; one that runs something alone takes nothing else
        for player in players:
            player.beat()
            player.claim()
            while player.take(1):
                pass
            for generation in list(player.runs):
                player.finish(generation)
    return ids


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_each_generation_ends_once_with_a_whole_log_and_leaves_nothing(wire: Wire, seed: int) -> None:
    ids = play(wire, random.Random(seed))
    assert Counter(generation for generation, _ in wire.finished()) == Counter(ids)
    for generation in ids:
        events = [event for _, event in wire.log(generation)]
        told = [event for event in events if not isinstance(event, Claimed)]
        assert [event.seq for event in told] == list(range(len(told))), "contiguous across attempts"
        assert [isinstance(event, Terminal) for event in events] == [False] * (len(events) - 1) + [True]
        assert wire.state(generation) == events[-1].__struct_config__.tag
    left = [key for key in wire.key_names() if key.split(":")[1] in ("requests", "backlog", "held", "queued_bytes")]
    assert left == []


@pytest.mark.usefixtures("closing")
async def test_two_workers_share_the_work_and_run_nothing_twice(wire: Wire, serve: Serve) -> None:
    served = [serve(max_num_seqs=4, token_budget=64, num_blocks=256) for _ in range(2)]
    chance = random.Random(7)
    requests = [a_question(f"t{n % 5}", tokens=60, text=f"Question {n}?") for n in range(40)]
    for request in requests:
        submit.enqueue(request)
    await first_tokens(requests[0].id, 3)
    stopped = {request.id for request in chance.sample(requests, 10)}
    for generation in stopped:
        await asyncio.to_thread(cancel.cancel, generation)
    answers: list[Any] = await asyncio.gather(*(answer_of(request.id) for request in requests))
    assert Counter(generation for generation, _ in wire.finished()) == Counter(request.id for request in requests)
    owners: Counter[str] = Counter()
    for request, events in zip(requests, answers, strict=True):
        assert isinstance(events[-1], Finished) or request.id in stopped
        owners.update(event.worker for _, event in wire.log(request.id) if isinstance(event, Claimed))
        assert sum(isinstance(event, Claimed) for _, event in wire.log(request.id)) <= 1
    assert set(owners) == {one.worker.id for one in served}, "both worked"
