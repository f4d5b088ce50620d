"""Asking: what is kept, what the worker gets, what is refused, and that asking twice asks once."""

from __future__ import annotations

import threading
import unicodedata
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import pytest
import redis
from django.db import IntegrityError, connection, transaction

from chatapp.chat import selectors, services
from chatapp.chat.models import Conversation, Generation, Message, State
from chatapp.errors import BadInput, Conflict, Forbidden, NotFound, Refusal
from chatapp.ids import new_id
from chatapp.limits.models import TenantLimits
from chatapp.limits.selectors import limits_of
from chatapp.prompts.services import publish
from chatapp.streaming import submit
from chatapp.tenants.access import access_for_key
from chatapp.tenants.services import create_api_key
from engine import protocol
from engine.protocol import Request
from tests.chat.conftest import ScriptedWorker, Team

HELLO = [{"role": "user", "content": "Hello"}]


def request_of(generation: Generation) -> Request:
    return protocol.decode_request(bytes(Generation.objects.get(pk=generation.pk).request or b""))


# --- what is kept and sent ----------------------------------------------------------------------------------------


def test_a_question_makes_conversation_message_answer_and_generation(team: Team) -> None:
    generation = services.ask(access=team.member, text="Which tent for two?")
    generation.refresh_from_db()
    conversation = selectors.conversation(team.member, generation.conversation_id)
    question, answer = selectors.messages(team.member, conversation.pk)
    assert conversation.title == "Which tent for two?"
    assert (question.role, question.text) == ("user", "Which tent for two?")
    assert (answer.role, answer.text, answer.parent_id) == ("assistant", "", question.pk)
    assert (generation.message_id, generation.state) == (answer.pk, State.QUEUED)
    assert generation.principal == f"user:{team.member.user.pk}"  # type: ignore[union-attr]
    assert submit.protocol.decode_request(bytes(generation.request or b"")).id == str(generation.pk)


def test_the_worker_gets_the_prompt_of_the_tenant_and_the_branch_of_the_conversation(
    team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    first = services.ask(access=team.member, text="One")
    worker.answer("1")
    record()
    second = services.ask(access=team.member, text="Two", conversation_id=first.conversation_id)
    worker.answer("2")
    record()
    # A second branch, beside "Two".
    branch = services.ask(
        access=team.member, text="Three", conversation_id=first.conversation_id, parent_id=first.message_id
    )
    request = request_of(branch)
    assert [(m.role, m.content) for m in request.messages] == [("user", "One"), ("assistant", "1"), ("user", "Three")]
    assert [(s.text, s.salt) for s in request.system] == [("You answer for acme.", team.tenant.salt)]
    assert request.prompt_version == str(second.prompt_version_id)
    assert request.weight == limits_of(team.member).weight


def test_a_new_published_version_is_for_new_answers(
    team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    old = services.ask(access=team.member, text="Before")
    publish(tenant=team.tenant, text="Answer in verse.")
    new = services.ask(access=team.owner, text="After")
    assert request_of(old).system[0].text == "You answer for acme."
    assert request_of(new).system[0].text == "Answer in verse."
    assert new.prompt_version_id != old.prompt_version_id


@pytest.mark.parametrize(
    ("ending", "kept"),
    [
        (protocol.Cancelled(seq=2), ["Q", "half", "Next"]),
        (protocol.Failed(seq=2, code="step_failed", message="It failed."), ["Q", "Next"]),
    ],
)
def test_stopped_text_is_history_and_failed_text_is_not(
    team: Team, worker: ScriptedWorker, record: Callable[[], int], ending: Any, kept: list[str]
) -> None:
    first = services.ask(access=team.member, text="Q")
    worker.end(worker.begin("half"), ending)
    record()
    after = services.ask(access=team.member, text="Next", conversation_id=first.conversation_id)
    assert [m.content for m in request_of(after).messages] == kept


def test_the_seed_is_fixed_at_submission(team: Team) -> None:
    generations = [services.complete(access=team.key, messages=HELLO) for _ in range(3)]
    assert len({request_of(g).params.seed for g in generations}) == 3
    named = services.complete(access=team.key, messages=HELLO, params={"seed": 5})
    assert request_of(named).params.seed == 5


def test_a_parent_that_has_ended_but_is_not_recorded_yet_is_recorded_first(team: Team, worker: ScriptedWorker) -> None:
    first = services.ask(access=team.member, text="One")
    worker.answer("1")
    second = services.ask(access=team.member, text="Two", conversation_id=first.conversation_id)
    assert [m.content for m in request_of(second).messages] == ["One", "1", "Two"]


# --- salts --------------------------------------------------------------------------------------------------------


def test_salts_differ_by_tenant_conversation_and_key_and_only_narrow(team: Team, strangers: Team) -> None:
    chats = [services.ask(access=access, text="Hello") for access in (team.member, team.owner, strangers.member)]
    other_key = access_for_key(create_api_key(tenant=team.tenant, name="second")[1])
    calls = [services.complete(access=access, messages=HELLO) for access in (team.key, other_key, strangers.key)]
    narrowed = [services.complete(access=team.key, messages=HELLO, cache_salt=salt) for salt in ("a", "b")]
    posing = services.complete(access=strangers.key, messages=HELLO, cache_salt="a")
    private = [request_of(g).salt for g in [*chats, *calls, *narrowed, posing]]
    assert len(set(private)) == len(private)
    assert request_of(calls[0]).salt == request_of(services.complete(access=team.key, messages=HELLO)).salt
    tenant_salts = {request_of(g).system[0].salt for g in [*chats, *calls]}
    assert tenant_salts == {team.tenant.salt, strangers.tenant.salt}


def test_only_the_platforms_preamble_is_shared_between_tenants(team: Team, strangers: Team, settings: Any) -> None:
    settings.OCTAVO_PREAMBLE = "Answer truthfully."
    ours, theirs = (request_of(services.complete(access=t.key, messages=HELLO)) for t in (team, strangers))
    assert ours.system[0] == theirs.system[0]
    assert not {s.salt for s in ours.system[1:]} & {s.salt for s in theirs.system[1:]}


def test_a_keys_own_system_message_is_private_to_the_key_and_needs_its_scope(team: Team) -> None:
    messages = [{"role": "system", "content": "Speak like a pirate."}, *HELLO]
    request = request_of(services.complete(access=team.key, messages=messages))
    assert [s.text for s in request.system] == ["You answer for acme.", "Speak like a pirate."]
    assert request.system[1].salt == request.salt
    plain = access_for_key(create_api_key(tenant=team.tenant, name="plain")[1])
    with pytest.raises(Forbidden) as refused:
        services.complete(access=plain, messages=messages)
    assert refused.value.status == 403
    assert "system message" in refused.value.message


# --- asking twice -------------------------------------------------------------------------------------------------


def test_the_same_idempotency_key_gives_the_same_generation(team: Team) -> None:
    one = services.ask(access=team.member, text="Pay once", idempotency_key="k")
    two = services.ask(access=team.member, text="Pay once", idempotency_key="k")
    assert one.pk == two.pk
    assert Message.objects.filter(text="Pay once").count() == 1
    call = services.complete(access=team.key, messages=HELLO, idempotency_key="k")
    assert call.pk != one.pk, "keys of different principals have nothing to do with each other"
    assert services.complete(access=team.key, messages=HELLO, idempotency_key="k").pk == call.pk


def test_an_idempotency_key_with_another_request_is_refused(team: Team) -> None:
    services.ask(access=team.member, text="This", idempotency_key="k")
    with pytest.raises(Refusal) as refused:
        services.ask(access=team.member, text="That", idempotency_key="k")
    assert refused.value.status in (409, 422)
    assert refused.value.param == "idempotency_key"


@pytest.mark.django_db(transaction=True)
def test_eight_at_once_with_one_idempotency_key_ask_once(transactional_db: None, team: Team) -> None:
    ids: list[Any] = []

    def go() -> None:
        try:
            ids.append(services.ask(access=team.member, text="Together", idempotency_key="k").pk)
        except Exception as error:
            ids.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=copy_context().run, args=(go,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(ids) == {Generation.objects.get().pk}
    assert Conversation.objects.count() == 1


def test_a_conversation_answers_one_at_a_time(team: Team, worker: ScriptedWorker) -> None:
    first = services.ask(access=team.member, text="One")
    with pytest.raises(Conflict) as refused:
        services.ask(access=team.member, text="Two", conversation_id=first.conversation_id)
    assert (refused.value.status, refused.value.code) == (409, "conversation_busy")
    assert Message.objects.filter(text="Two").count() == 0
    services.ask(access=team.member, text="Elsewhere")
    services.cancel(access=team.member, generation_id=first.pk)
    services.ask(access=team.member, text="Two", conversation_id=first.conversation_id)


@pytest.mark.django_db(transaction=True)
def test_eight_at_once_in_one_conversation_ask_once(transactional_db: None, team: Team, worker: ScriptedWorker) -> None:
    first = services.ask(access=team.member, text="One")
    worker.answer("1")
    outcomes: list[str] = []

    def go(number: int) -> None:
        try:
            services.ask(access=team.member, text=f"Two {number}", conversation_id=first.conversation_id)
            outcomes.append("asked")
        except Refusal as error:
            outcomes.append(error.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=copy_context().run, args=(go, number)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["asked"] + ["conversation_busy"] * 7
    assert Message.objects.filter(text__startswith="Two").count() == 1


# --- when Redis cannot take it ------------------------------------------------------------------------------------


def test_a_full_queue_is_said_with_a_time_and_leaves_the_conversation_free(
    team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    first = services.ask(access=team.member, text="One")
    worker.answer("1")
    record()
    waiting = services.ask(access=team.owner, text="In the queue")
    TenantLimits.objects.update_or_create(tenant=team.tenant, defaults={"queue_length": 1})
    with pytest.raises(Refusal) as refused:
        services.ask(access=team.member, text="Two", conversation_id=first.conversation_id, idempotency_key="k")
    assert refused.value.status == 429
    assert refused.value.retry_after_s
    services.cancel(access=team.owner, generation_id=waiting.pk)
    again = services.ask(access=team.member, text="Two", conversation_id=first.conversation_id, idempotency_key="k")
    assert again.state == State.QUEUED
    assert [m.content for m in request_of(again).messages] == ["One", "1", "Two"]


def test_without_redis_the_caller_gets_the_generation_all_the_same(team: Team, settings: Any) -> None:
    settings.REDIS_URL = "unix:///nowhere/valkey.sock"
    generation = services.ask(access=team.member, text="Anyone?")
    assert (generation.state, bool(generation.request)) == (State.ACCEPTED, True)


def test_stopping_what_waits_ends_it_at_once(team: Team, record: Callable[[], int]) -> None:
    generation = services.ask(access=team.member, text="Stop me")
    assert services.cancel(access=team.member, generation_id=generation.pk) == "cancelled"
    record()
    generation.refresh_from_db()
    assert generation.state == State.CANCELLED
    assert services.cancel(access=team.member, generation_id=generation.pk) == "cancelled"


def test_stopping_what_never_reached_redis_keeps_it_from_running(
    team: Team, settings: Any, redis_url: str, record: Callable[[], int], server: redis.Redis
) -> None:
    settings.REDIS_URL = "unix:///nowhere/valkey.sock"
    generation = services.ask(access=team.member, text="Never mind")
    with pytest.raises(Refusal) as refused:
        services.cancel(access=team.member, generation_id=generation.pk)
    assert (refused.value.status, refused.value.retryable) == (503, True)
    settings.REDIS_URL = redis_url
    assert services.cancel(access=team.member, generation_id=generation.pk) == "cancelled"
    submit.enqueue(request_of(generation))  # the one that was on its way
    record()
    generation.refresh_from_db()
    assert generation.state == State.CANCELLED
    assert not list(server.scan_iter("octavo:requests:*"))


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", " ", "\n\t \u3000", "\0", "\u200b\u2060\ufeff", None, 5, ["x"]])
def test_an_empty_question_names_its_field(team: Team, text: Any) -> None:
    """C22."""
    with pytest.raises(BadInput) as refused:
        services.ask(access=team.member, text=text)
    assert (refused.value.status, refused.value.param) == (400, "input")
    assert Conversation.objects.count() == 0


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (None, "messages"),
        ([{"role": "user", "content": "  "}], "messages[0].content"),
        ([{"role": "user", "content": ""}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([*HELLO, {"role": "user", "content": "\n"}], "messages[1].content"),
        ([{"role": "assistant", "content": "Hi"}], "messages"),
        ([{"role": "robot", "content": "Hi"}], "messages[0].role"),
        (["Hello"], "messages[0]"),
    ],
)
def test_messages_without_text_name_their_field(team: Team, messages: Any, param: str) -> None:
    """C22."""
    with pytest.raises(BadInput) as refused:
        services.complete(access=team.key, messages=messages)
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": -0.1}, "min_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**9}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
        ({"seed": 2**70}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": "\ud800"}, "stop"),
        ({"ignore_eos": "yes"}, "ignore_eos"),
        ({"frobnicate": 1}, "frobnicate"),
    ],
)
def test_a_parameter_out_of_range_is_named(team: Team, params: dict[str, Any], param: str) -> None:
    with pytest.raises(BadInput) as refused:
        services.complete(access=team.key, messages=HELLO, params=params)
    assert refused.value.param == param
    assert param in refused.value.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"idempotency_key": "\ud800"}, "idempotency_key"),
        ({"idempotency_key": "a\0"}, "idempotency_key"),
        ({"idempotency_key": "x" * 201}, "idempotency_key"),
        ({"cache_salt": "\ud800"}, "cache_salt"),
        ({"cache_salt": 5}, "cache_salt"),
    ],
)
def test_what_no_database_takes_is_refused_by_name(team: Team, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadInput) as refused:
        services.complete(access=team.key, messages=HELLO, **fields)
    assert refused.value.param == param


def test_a_message_has_a_length_limit(team: Team, settings: Any) -> None:
    services.ask(access=team.member, text="x" * settings.OCTAVO_MAX_MESSAGE)
    with pytest.raises(BadInput) as refused:
        services.ask(access=team.member, text="x" * (settings.OCTAVO_MAX_MESSAGE + 1))
    assert "200" in refused.value.message
    assert refused.value.status in (400, 413)


def test_an_unknown_model_is_named(team: Team) -> None:
    for name in ("default", team.tenant.model, "", None):
        services.complete(access=team.key, messages=HELLO, model=name)
    with pytest.raises(NotFound) as refused:
        services.complete(access=team.key, messages=HELLO, model="gpt-9")
    assert (refused.value.param, refused.value.code) == ("model", "model_not_found")


def test_a_parent_without_its_conversation_is_refused(team: Team) -> None:
    with pytest.raises(BadInput) as refused:
        services.ask(access=team.member, text="x", parent_id="0197c0de-0000-7000-8000-000000000000")
    assert refused.value.param == "parent_id"


# --- titles -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Short", "Short"),
        ("\n\n  First line\nsecond line", "First line"),
        ("word " * 30, "word word word word word word word word word word word word…"),
        ("삼겹살" * 40, "삼겹살" * 20 + "…"),
    ],
)
def test_a_title_is_the_first_words(team: Team, text: str, title: str) -> None:
    generation = services.ask(access=team.member, text=text)
    assert Conversation.objects.get(pk=generation.conversation_id).title == title


@pytest.mark.parametrize("unit", ["e\u0301", "👨\u200d👩\u200d👧", "👋🏽", "각"])
@pytest.mark.parametrize("lead", range(4))
def test_a_title_is_not_cut_inside_a_character(team: Team, unit: str, lead: int) -> None:
    unit = unicodedata.normalize("NFD", unit) if unit == "각" else unit
    generation = services.ask(access=team.member, text="x" * lead + unit * 60)
    title = Conversation.objects.get(pk=generation.conversation_id).title
    body = title.removesuffix("…")[lead:]
    assert body == unit * (len(body) // len(unit))


def test_the_database_itself_lets_a_conversation_have_one_unfinished_generation(team: Team) -> None:
    first = services.ask(access=team.member, text="One")
    twin = Generation.objects.get(pk=first.pk)
    twin.pk, twin.message, twin.state = new_id(), None, State.ACCEPTED
    with pytest.raises(IntegrityError, match=r"conversation_id|generation_one_at_a_time"), transaction.atomic():
        twin.save(force_insert=True)
    twin.state = State.FINISHED
    twin.save(force_insert=True)


def test_a_conversation_list_is_newest_first_and_pages_without_gaps(team: Team) -> None:
    made = [services.ask(access=team.member, text=f"Chat {n}").conversation_id for n in range(7)]
    seen: list[Any] = []
    cursor: str | None = None
    while True:
        page = selectors.conversations(team.member, before=cursor, limit=3)
        seen += [item.pk for item in page.items]
        cursor = page.next
        if cursor is None:
            break
    assert seen == made[::-1]
    assert page.items[0].running  # type: ignore[attr-defined]
    with pytest.raises(BadInput):
        selectors.conversations(team.member, before="yesterday")


def test_deleted_conversations_are_gone_for_everyone(team: Team, server: redis.Redis) -> None:
    from django.utils import timezone

    generation = services.ask(access=team.member, text="Delete me")
    Conversation.objects.filter(pk=generation.conversation_id).update(deleted_at=timezone.now())
    for read in (
        lambda: selectors.conversation(team.member, generation.conversation_id),
        lambda: selectors.messages(team.member, generation.conversation_id),
        lambda: selectors.generation(team.member, generation.pk),
    ):
        with pytest.raises(NotFound):
            read()
    assert selectors.conversations(team.member).items == []
