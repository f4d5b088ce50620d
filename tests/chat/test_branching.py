"""A conversation is a tree: questions edited, answers asked for again, answers gone on with; nothing is overwritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chatapp.chat import present, selectors, services, trees
from chatapp.chat.models import Generation, Message, State
from chatapp.errors import BadInput, Conflict, IdempotencyMismatch, NotFound, Refusal
from chatapp.ids import new_id
from chatapp.limits.models import TenantLimits
from engine import protocol
from tests.chat.conftest import ScriptedWorker, Team
from tests.chat.test_asking import request_of


class Talk:
    """A conversation of a member, whose answers a worker says and are recorded at once."""

    def __init__(self, team: Team, worker: ScriptedWorker, record: Callable[[], int]) -> None:
        self.access, self.worker, self.record = team.member, worker, record
        self.id: Any = None

    def ask(self, text: str, *says: str, cut: bool = False, **where: Any) -> Message:
        generation = services.ask(access=self.access, text=text, conversation_id=self.id, **where)
        self.id = generation.conversation_id
        return self.say(generation, *says, cut=cut)

    def again(self, question: Any, *says: str, cut: bool = False, **how: Any) -> Message:
        found = services.answer_again(access=self.access, conversation_id=self.id, question_id=question, **how)
        return self.say(found, *says, cut=cut)

    def go_on(self, answer: Any, *says: str, cut: bool = False, **how: Any) -> Message:
        found = services.go_on(access=self.access, conversation_id=self.id, continue_id=answer, **how)
        return self.say(found, *says, cut=cut)

    def say(self, generation: Generation, *says: str, cut: bool) -> Message:
        self.sent = request_of(generation)
        self.worker.answer(*says, finish_reason="length" if cut else "stop")
        self.record()
        assert generation.message is not None
        generation.message.refresh_from_db()
        return generation.message

    def stop(self, generation: Generation, *says: str) -> Message:
        taken = self.worker.begin(*says)
        self.worker.end(taken, protocol.Cancelled(seq=len(says) + 1))
        self.record()
        assert generation.message is not None
        generation.message.refresh_from_db()
        return generation.message

    def tree(self) -> list[tuple[str, str]]:
        """Of each message: what it follows, and its text; oldest first."""
        messages = selectors.messages(self.access, self.id)
        texts = {message.pk: message.text for message in messages}
        return [(texts.get(message.parent_id, ""), message.text) for message in messages]

    def prompt(self) -> list[str]:
        return [message.content for message in self.sent.messages]


@pytest.fixture
def talk(team: Team, worker: ScriptedWorker, record: Callable[[], int]) -> Talk:
    return Talk(team, worker, record)


# --- editing and asking again -------------------------------------------------------------------------------------


def test_an_edited_question_stands_beside_the_first_one_and_sees_nothing_of_it(talk: Talk) -> None:
    first = talk.ask("One", "1")
    second = talk.ask("Two", "2")
    talk.ask("One, edited", "1e", parent_id=selectors.ROOT)
    assert talk.prompt() == ["One, edited"]
    assert second.parent is not None
    talk.ask("Two, edited", "2e", parent_id=second.parent.parent_id)
    assert talk.prompt() == ["One", "1", "Two, edited"]
    assert talk.tree() == [
        ("", "One"), ("One", "1"), ("1", "Two"), ("Two", "2"),
        ("", "One, edited"), ("One, edited", "1e"), ("1", "Two, edited"), ("Two, edited", "2e"),
    ]  # fmt: skip
    assert second.parent.parent_id == first.pk


def test_another_answer_stands_beside_the_first_and_the_question_is_not_doubled(talk: Talk) -> None:
    first = talk.ask("One", "1")
    other = talk.again(first.parent_id, "one")
    assert talk.prompt() == ["One"], "the answer that is there is no part of it"
    assert talk.tree() == [("", "One"), ("One", "1"), ("One", "one")]
    talk.ask("Two", "2", parent_id=first.pk)
    assert talk.prompt() == ["One", "1", "Two"]
    assert other.parent_id == first.parent_id


def test_an_answer_that_failed_is_asked_for_again_in_its_place(talk: Talk, worker: ScriptedWorker) -> None:
    asked = services.ask(access=talk.access, text="One")
    talk.id = asked.conversation_id
    worker.end(worker.begin("half"), protocol.Failed(seq=2, code="step_failed", message="It failed."))
    talk.record()
    assert asked.message is not None
    talk.again(asked.message.parent_id, "1")
    assert talk.prompt() == ["One"]
    assert talk.tree() == [("", "One"), ("One", "half"), ("One", "1")]


def test_only_questions_are_answered_again(talk: Talk) -> None:
    answer = talk.ask("One", "1")
    with pytest.raises(BadInput, match="Only a question") as refused:
        talk.again(answer.pk)
    assert refused.value.param == "question_id"


# --- going on -----------------------------------------------------------------------------------------------------


def test_what_goes_on_with_a_cut_answer_hangs_under_it_and_the_two_are_read_as_one(talk: Talk) -> None:
    cut = talk.ask("Tell", "Once upon ", cut=True)
    rest = talk.go_on(cut.pk, "a time", cut=True)
    assert (rest.parent_id, rest.role, rest.text) == (cut.pk, "assistant", "a time")
    assert talk.sent.continues
    assert [(m.role, m.content) for m in talk.sent.messages] == [("user", "Tell"), ("assistant", "Once upon ")]
    talk.go_on(rest.pk, ", there.")
    assert talk.prompt() == ["Tell", "Once upon a time"]
    talk.ask("And then?", "The end.")
    assert not talk.sent.continues
    assert talk.prompt() == ["Tell", "Once upon a time, there.", "And then?"]
    cut.refresh_from_db()
    assert cut.text == "Once upon ", "nothing of it is overwritten"


def test_a_stopped_answer_goes_on_and_one_that_broke_off_counts_once_it_was_gone_on_with(
    talk: Talk, worker: ScriptedWorker
) -> None:
    asked = services.ask(access=talk.access, text="Tell")
    talk.id = asked.conversation_id
    stopped = talk.stop(asked, "One, ")
    goes_on = services.go_on(access=talk.access, conversation_id=talk.id, continue_id=stopped.pk)
    worker.end(worker.begin("two, "), protocol.Interrupted(seq=2, code="engine_died", message="Gone."))
    talk.record()
    assert goes_on.message is not None
    talk.go_on(goes_on.message.pk, "three.")
    assert talk.prompt() == ["Tell", "One, two, "]
    talk.ask("More", "four.")
    assert talk.prompt() == ["Tell", "One, two, three.", "More"]


def test_half_a_character_at_a_cut_is_left_to_the_rest(talk: Talk) -> None:
    cut = talk.ask("Wave", "Hi \ufffd", cut=True)
    talk.go_on(cut.pk, "👋!")
    assert talk.prompt() == ["Wave", "Hi "]
    talk.ask("Again", "Hi")
    assert talk.prompt() == ["Wave", "Hi 👋!", "Again"]


def test_what_cannot_go_on_is_refused_with_what_to_do(talk: Talk) -> None:
    whole = talk.ask("One", "1")
    empty = talk.ask("Two", "", cut=True)

    def refused(**fields: Any) -> tuple[str, str | None]:
        with pytest.raises(BadInput) as error:
            services.go_on(access=talk.access, conversation_id=talk.id, **fields)
        return error.value.code, error.value.param

    assert refused(continue_id=whole.pk) == ("answer_complete", "continue_id")
    assert refused(continue_id=empty.pk) == ("nothing_to_continue", "continue_id")
    assert refused(continue_id=whole.parent_id)[1] == "continue_id"
    form = {"response_format": {"type": "json_object"}}
    assert refused(continue_id=whole.pk, params=form)[1] == "response_format"
    assert refused(continue_id=whole.pk, params={"n": 2})[1] == "n"
    assert Generation.objects.count() == 2


# --- one at a time, once, and nobody else's -----------------------------------------------------------------------

WAYS: list[Callable[..., Generation]] = [
    lambda access, talk, answer, **how: services.answer_again(
        access=access, conversation_id=talk, question_id=answer.parent_id, **how
    ),
    lambda access, talk, answer, **how: services.go_on(
        access=access, conversation_id=talk, continue_id=answer.pk, **how
    ),
]


@pytest.mark.parametrize("way", WAYS, ids=["again", "go on"])
def test_a_branch_waits_for_the_answer_under_way_and_one_key_begins_it_once(
    way: Callable[..., Generation], talk: Talk
) -> None:
    cut = talk.ask("One", "1", cut=True)
    first = way(talk.access, talk.id, cut, idempotency_key="k")
    assert way(talk.access, talk.id, cut, idempotency_key="k").pk == first.pk
    with pytest.raises(Conflict) as refused:
        way(talk.access, talk.id, cut)
    assert refused.value.code == "conversation_busy"
    with pytest.raises(IdempotencyMismatch):
        way(talk.access, talk.id, cut, idempotency_key="k", params={"max_tokens": 5})
    assert Message.objects.count() == 3


@pytest.mark.parametrize("way", WAYS, ids=["again", "go on"])
def test_a_branch_that_finds_the_queue_full_takes_nothing_with_it_that_was_there(
    way: Callable[..., Generation], talk: Talk, team: Team
) -> None:
    cut = talk.ask("One", "1", cut=True)
    waiting = services.ask(access=team.owner, text="In the queue")
    TenantLimits.objects.update_or_create(tenant=team.tenant, defaults={"queue_length": 1})
    with pytest.raises(Refusal) as refused:
        way(talk.access, talk.id, cut)
    assert refused.value.status == 429
    assert talk.tree() == [("", "One"), ("One", "1")]
    services.cancel(access=team.owner, generation_id=waiting.pk)
    assert way(talk.access, talk.id, cut).state == State.QUEUED


@pytest.mark.parametrize("way", WAYS, ids=["again", "go on"])
def test_messages_of_other_conversations_teams_and_colleagues_are_not_found(
    way: Callable[..., Generation], talk: Talk, team: Team, strangers: Team
) -> None:
    cut = talk.ask("One", "1", cut=True)
    for access in (team.owner, team.key, strangers.member):
        with pytest.raises(NotFound) as refused:
            way(access, talk.id, cut)
        assert refused.value.param == "conversation_id"
    mine = talk.id
    talk.id = None
    other = talk.ask("Elsewhere", "x", cut=True)
    for foreign in (other, Message(id=new_id(), parent=Message(id=new_id()))):
        with pytest.raises(NotFound):
            way(talk.access, mine, foreign)


# --- what is counted ----------------------------------------------------------------------------------------------


def test_the_shared_part_of_a_prompt_is_kept_with_its_answer(talk: Talk, worker: ScriptedWorker) -> None:
    asked = services.ask(access=talk.access, text="One")
    usage = protocol.Usage(prompt_tokens=70, cached_tokens=60, shared_tokens=50, completion_tokens=1)
    worker.end(worker.begin("1"), protocol.Finished(seq=2, finish_reason="stop", usage=usage))
    talk.record()
    asked.refresh_from_db()
    assert (asked.cached_tokens, asked.shared_tokens) == (60, 50)


# --- how it is read elsewhere -------------------------------------------------------------------------------------


def test_without_scripts_and_in_what_is_taken_away_a_branch_is_read_as_in_the_chat(talk: Talk) -> None:
    cut = talk.ask("Tell", "Once \ufffd", cut=True)
    talk.ask("Aside", "Not this", parent_id=selectors.ROOT)
    rest = talk.go_on(cut.pk, "upon a time")
    messages = selectors.messages(talk.access, talk.id)
    read = [("user", "Tell"), ("assistant", "Once upon a time")]
    assert [(one.role, one.text) for one in trees.branch(messages, rest.pk)] == read
    assert cut.text == "Once \ufffd"
    shown = present.as_read(present.conversation(talk.access, talk.id)["messages"])
    assert [(one["role"], one["text"]) for one in shown] == read
