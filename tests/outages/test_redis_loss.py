"""Redis is killed, and with the power its last writes go: every accepted question is answered or ends interrupted,
once, with its reservation settled, and nobody reads a text that has a hole or is told twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from chatapp.api.following import Whole, events
from chatapp.chat import reaper, services
from chatapp.chat.models import Generation, MessageStatus, State
from chatapp.chat.recorder import Recorder
from chatapp.limits.models import Meter, Reservation
from chatapp.streaming import connection, finished
from chatapp.usage.models import UsageRow
from engine import protocol
from tests.api.sockets import Voice, delta
from tests.chat.conftest import Team, make_team
from tests.outages.valkey import Valkey
from tests.stack import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

WORDS = [f"{n} " for n in range(1, 9)]
TEXT = "".join(WORDS)
# What happens to a question, in this order; after each the power may go, and with it everything since any of them.
STEPS = ("asked", "taken", "started", "half", "ended", "recorded")


@pytest.fixture
def team(transactional_db: None, valkey: Valkey) -> Team:
    return make_team("acme")


@pytest.fixture
async def valkey(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Valkey]:
    one = await asyncio.to_thread(Valkey, tmp_path)
    settings.REDIS_URL = one.url
    one.client.function_load(protocol.LIBRARY_SOURCE.read_text(), replace=True)
    monkeypatch.setattr("chatapp.streaming.follow.HOLE_AFTER_S", 0.3)
    monkeypatch.setattr(reaper, "GRACE", timedelta(0))
    yield one
    one.kill()
    for client in connection._async_clients.pop(asyncio.get_running_loop(), {}).values():
        await client.aclose()


@dataclass
class Reader:
    """Somebody with the page open: what they have been told, and how it ended."""

    text: str = ""
    seqs: list[int] = field(default_factory=list)
    end: protocol.Terminal | None = None

    async def read(self, team: Team, generation: str) -> None:
        async for event in events(team.member, generation):
            if isinstance(event, Whole):
                self.text = event.parts[0].text
            elif isinstance(event, protocol.Delta):
                assert event.seq == (self.seqs[-1] + 1 if self.seqs else 1), "told twice, or with a hole"
                self.seqs.append(event.seq)
                self.text += event.parts[0].text
            elif isinstance(event, protocol.Terminal):
                self.end = event


class Worker(Voice):
    """One that keeps what it has said until Redis has it, as the real one does."""

    def step(self, taken: protocol.Taken | None, name: str) -> protocol.Taken | None:
        if name == "taken":
            return self.take()
        assert taken is not None
        if name == "started":
            self.say(taken, protocol.Started(seq=0, prompt_tokens=7, cached_tokens=3))
        elif name == "half":
            self.texts(taken, 1, *WORDS[:4])
        elif name == "ended":
            self.texts(taken, 5, *WORDS[4:])
            self.finish(taken, 9)
        return taken

    def go_on(self, taken: protocol.Taken | None, upto: str) -> None:
        """What a live worker does once Redis is back: says again what was lost, ends, and takes what waits."""
        self.beat()
        if taken is not None and upto in ("taken", "started", "half", "ended"):
            said: list[Any] = [protocol.Started(seq=0, prompt_tokens=7, cached_tokens=3)]
            said += [delta(seq, protocol.Part(text=word)) for seq, word in enumerate(WORDS, start=1)]
            tells = [protocol.Tell(taken.id, taken.attempt, event, 1.0) for event in said]
            self._call(protocol.tell(self.name, tells))
            usage = protocol.Usage(prompt_tokens=7, cached_tokens=3, completion_tokens=8)
            self._call(
                protocol.finish(
                    self.name, taken.id, taken.attempt, protocol.Finished(seq=9, finish_reason="stop", usage=usage)
                )
            )
        again = protocol.parse_taken(self._call(protocol.take(self.name, self.model, 1, ())))
        if again is not None:
            self.say(again, protocol.Started(seq=0, prompt_tokens=7, cached_tokens=3))
            self.texts(again, 1, *WORDS)
            self.finish(again, 9)


LOSSES = [(crash, kept, torn) for crash in STEPS for kept in STEPS[: STEPS.index(crash) + 1] for torn in (False, True)
          if not (torn and crash == kept)]  # fmt: skip
# In every run the ones that differ most; the others with the long ones.
QUICK = {("asked", "asked", False), ("half", "asked", True), ("ended", "half", True), ("recorded", "taken", False)}


@pytest.mark.parametrize(
    ("crash", "kept", "torn"),
    [
        pytest.param(*loss, id="-".join((loss[0], loss[1], "torn" if loss[2] else "whole")),
                     marks=() if loss in QUICK else pytest.mark.long)
        for loss in LOSSES
    ],
)  # fmt: skip
async def test_after_any_loss_an_accepted_question_ends_once_and_its_reader_sees_neither_hole_nor_repetition(
    valkey: Valkey, team: Team, settings: Any, crash: str, kept: str, torn: bool
) -> None:
    """`torn`: the file ends in the middle of the command after what is kept."""
    worker = Worker(valkey.client, settings.OCTAVO_MODEL_NAME)
    generation = await asyncio.to_thread(services.ask, access=team.member, text="Count.")
    key, reader = str(generation.pk), Reader()
    reading = asyncio.create_task(reader.read(team, key))
    places, taken = {"asked": valkey.written()}, None
    for name in STEPS[1 : STEPS.index(crash) + 1]:
        if name == "recorded":
            assert await asyncio.to_thread(Recorder(lambda: False).once) == 1
        else:
            taken = worker.step(taken, name)
        places[name] = valkey.written()
    if crash in ("half", "ended", "recorded"):
        await asyncio.to_thread(wait_for, lambda: len(reader.seqs) >= 4)
    before = reader.text
    await asyncio.to_thread(valkey.restart, places[kept] + (9 if torn else 0))
    worker.redis = valkey.client
    await asyncio.sleep(0.5)  # readers find out first
    await asyncio.to_thread(worker.go_on, taken, crash)

    def healed() -> bool:
        with_group = Recorder(lambda: False)
        with_group.once(block_s=0.05)
        reaper.reap()
        return not Generation.objects.get(pk=key).unfinished

    await asyncio.to_thread(wait_for, healed)
    await asyncio.wait_for(reading, 10)
    row = await asyncio.to_thread(Generation.objects.select_related("message").get, pk=key)
    assert row.message is not None
    assert row.state in (State.FINISHED, State.INTERRUPTED)
    assert reader.end is not None
    if row.state == State.FINISHED:
        assert row.message.text == TEXT
        assert row.message.status == MessageStatus.DONE
        assert isinstance(reader.end, protocol.Finished | protocol.Interrupted)
    else:
        assert row.message.status == MessageStatus.FAILED
        assert row.error_message.startswith(("This answer was lost", "Redis restarted"))
    assert TEXT.startswith(reader.text)
    assert reader.text.startswith(before), "what was told stays told"
    if isinstance(reader.end, protocol.Finished):
        assert reader.text == TEXT
    assert await asyncio.to_thread(UsageRow.objects.filter(pk=key).count) == 1, "counted once"
    assert not await asyncio.to_thread(Reservation.objects.exists)
    used = row.prompt_tokens + row.completion_tokens
    meters = await asyncio.to_thread(lambda: list(Meter.objects.values_list("reserved", "used")))
    assert set(meters) == {(0, used)}, "settled once, with what was used"
    behind = str(generation.conversation_id)
    again = await asyncio.to_thread(services.ask, access=team.member, text="And on.", conversation_id=behind)
    assert await asyncio.to_thread(finished.state, str(again.pk)) == "queued", "the conversation goes on"
