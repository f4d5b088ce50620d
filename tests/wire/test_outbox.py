"""What a worker remembers of what it said, without a server."""

from __future__ import annotations

from engine import outbox
from engine.outbox import Outbox
from engine.protocol import AnyTerminal, Delta, Finished, Part, Started, Taken, Told


class Heard:
    """A Listener that notes what it hears."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str]] = []

    def taken(self, taken: Taken) -> None:
        self.all.append(("taken", taken.id))

    def cancelled(self, generation_id: str) -> None:
        self.all.append(("cancelled", generation_id))

    def expired(self, generation_id: str) -> None:
        self.all.append(("expired", generation_id))

    def dropped(self, generation_id: str) -> None:
        self.all.append(("dropped", generation_id))

    def broken(self, error: Exception) -> None:
        raise error


def an_outbox(seq: int = -1, attempt: int = 1) -> tuple[Outbox, Heard]:
    box = Outbox(heard := Heard())
    box.add(Taken("g", attempt, b"{}", 0, 0, seq), "t")
    return box, heard


def say(box: Outbox, *seqs: int, attempt: int = 1, end: AnyTerminal | None = None) -> None:
    for seq in seqs:
        event = Started(seq=0, prompt_tokens=1, cached_tokens=0) if seq == 0 else Delta(seq=seq, parts=[Part(text="x")])
        box.note([("g", attempt, event, 1.0)])
    if end is not None:
        box.note([("g", attempt, end, 0.0)])


def reply(box: Outbox, *outcomes: Told) -> None:
    """Answer what is unsent, in order."""
    for tell, told in zip(box.unsent()[0], outcomes, strict=True):
        box.told_one(tell, told)


def unsent(box: Outbox) -> list[int]:
    return [tell.event.seq for tell in box.unsent()[0]]


OK = Told("ok")


def test_what_is_not_acknowledged_goes_out_again() -> None:
    box, _ = an_outbox()
    say(box, 0, 1, 2)
    assert unsent(box) == unsent(box) == [0, 1, 2]
    reply(box, OK, OK, OK)
    assert not box.has_unsent()
    say(box, 3)
    assert unsent(box) == [3]


def test_behind_goes_back_to_what_redis_has_not() -> None:
    box, _ = an_outbox()
    say(box, 0, 1, 2)
    reply(box, OK, OK, OK)
    say(box, 3, 4)
    reply(box, Told("behind", 0), Told("behind", 0))
    assert unsent(box) == [1, 2, 3, 4]


def test_a_later_attempt_numbers_on_and_cannot_repair_an_earlier_one() -> None:
    box, heard = an_outbox(seq=4, attempt=2)
    say(box, 5, 6, attempt=2)
    assert [(t.attempt, t.event.seq) for t in box.unsent()[0]] == [(2, 5), (2, 6)]
    reply(box, Told("behind", 4), Told("behind", 4))
    assert unsent(box) == [5, 6]
    box.told_one(box.unsent()[0][0], Told("behind", 2))
    assert heard.all == [("dropped", "g")]
    assert not box.active


def test_stale_drops_it_once_and_what_is_still_said_of_it_goes_nowhere() -> None:
    box, heard = an_outbox()
    say(box, 0, 1)
    reply(box, Told("stale"), Told("stale"))
    say(box, 2)
    assert heard.all == [("dropped", "g")]
    assert not box.has_unsent()


def test_events_of_an_earlier_attempt_are_not_mixed_into_the_next() -> None:
    box, _ = an_outbox()
    say(box, 0)
    box.add(Taken("g", 2, b"{}", 0, 0, -1), "t")
    say(box, 1, attempt=1)
    say(box, 0, attempt=2)
    assert [(t.attempt, t.event.seq) for t in box.unsent()[0]] == [(2, 0)]


def test_a_cancel_is_heard_once_however_often_it_is_said() -> None:
    box, heard = an_outbox()
    say(box, 0, 1)
    reply(box, Told("cancelled"), Told("cancelled"))
    box.hear_cancel("g")
    assert box.compare({"g": "cancelled"}) == set()
    box.hear_cancel("unknown")
    assert heard.all == [("cancelled", "g")]
    assert not box.has_unsent(), "it was logged all the same"


def test_the_end_goes_out_until_it_is_acknowledged_and_is_remembered_for_a_while(monkeypatch: object) -> None:
    box, heard = an_outbox()
    say(box, 0, 1, end=Finished(seq=2))
    _, (ending,) = box.unsent()
    reply(box, OK, OK)
    assert box.has_unsent()
    box.finished(ending, OK)
    assert not box.active
    assert box.compare({"g": "run"}) == set(), "Redis has lost the end"
    assert box.unsent() == ([], [ending]), "so it is said again"
    box.finished(ending, Told("behind", 0))
    assert unsent(box) == [1]
    box.finished(ending, OK)
    ending.forget_at = -outbox.REMEMBER_S
    assert box.compare({"g": "run"}) == {"g"}, "too long ago"
    assert heard.all == []


def test_what_redis_does_not_say_that_we_hold_is_dropped_unless_it_is_just_ending() -> None:
    box, heard = an_outbox()
    assert box.compare({}) == set()
    assert heard.all == [("dropped", "g")]
    box, heard = an_outbox()
    say(box, 0, end=Finished(seq=1))
    assert box.compare({}) == set()
    assert heard.all == []


def test_what_redis_says_that_we_hold_and_we_do_not_know_is_named() -> None:
    box, _ = an_outbox()
    assert box.compare({"g": "run", "lost": "run"}) == {"lost"}


def test_more_generations_than_a_call_holds_take_turns() -> None:
    """While every step of them says more than one call takes, none of them is left unheard."""
    box = Outbox(Heard())
    ids = [f"g{n}" for n in range(outbox.PIPELINE_EVENTS * 2 + 100)]
    for key in ids:
        box.add(Taken(key, 1, b"{}", 0, 0, -1), "t")
    sent: dict[str, list[int]] = {key: [] for key in ids}
    for seq in range(8):
        for key in ids:
            event = Started(seq=0, prompt_tokens=1, cached_tokens=0) if seq == 0 else Delta(seq=seq, parts=[])
            box.note([(key, 1, event, 1.0)])
        tells, _ = box.unsent()
        assert len(tells) <= outbox.PIPELINE_EVENTS + seq
        for tell in tells:
            sent[tell.id].append(tell.event.seq)
            box.told_one(tell, OK)
    assert all(seqs == list(range(len(seqs))) for seqs in sent.values()), "each in its order"
    assert min(map(len, sent.values())) > 0, "all have been heard"
    while box.has_unsent():
        for tell in box.unsent()[0]:
            sent[tell.id].append(tell.event.seq)
            box.told_one(tell, OK)
    assert all(seqs == list(range(8)) for seqs in sent.values())
