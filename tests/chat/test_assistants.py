"""Who answers: a chat's assistant, a call's, a draft that is tried out; and what usage says of a version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chatapp.chat import present, services
from chatapp.chat.greeting import greet_workers
from chatapp.chat.models import Generation
from chatapp.chat.prompt_use import seconds_a_token, use_of
from chatapp.errors import BadInput, Forbidden, NotFound
from chatapp.prompts import services as prompts
from chatapp.prompts.models import SystemPrompt
from chatapp.prompts.selectors import published
from chatapp.scope import tenant_scope
from engine import protocol
from engine.protocol import Finished, Timing, Usage
from tests.chat.conftest import ScriptedWorker, Team


def request_of(generation: Generation) -> protocol.Request:
    assert generation.request is not None
    return protocol.decode_request(bytes(generation.request))


def text_of(generation: Generation) -> str:
    return request_of(generation).system[-1].text


def another(team: Team, name: str = "Legal desk", text: str = "You know contracts.") -> SystemPrompt:
    version = prompts.publish(tenant=team.tenant, text=text, name=name)
    return SystemPrompt.objects.get(pk=version.prompt_id)


def end(worker: ScriptedWorker, record: Callable[[], int]) -> None:
    worker.answer("Fine.")
    record()


def test_a_new_chat_may_choose_and_keeps_its_assistant(
    team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    legal = another(team)
    first = services.ask(access=team.member, text="Hi", assistant_id=str(legal.pk))
    assert text_of(first) == "You know contracts."
    assert request_of(first).prompt == str(legal.pk)
    end(worker, record)
    second = services.ask(access=team.member, text="And?", conversation_id=first.conversation_id)
    assert text_of(second) == "You know contracts."
    assert present.conversation(team.member, first.conversation_id)["assistant"]["name"] == "Legal desk"
    plain = services.ask(access=team.member, text="Hi")
    assert text_of(plain) == "You answer for acme."
    assert present.conversation(team.member, plain.conversation_id)["assistant"] is None


def test_a_conversation_that_goes_on_gets_the_newest_version(
    team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    """Instructions are mended for everybody; the answer that ran kept its own."""
    first = services.ask(access=team.member, text="Hi")
    prompts.publish(tenant=team.tenant, text="Mended.")
    assert text_of(first) == "You answer for acme."
    end(worker, record)
    second = services.ask(access=team.member, text="And?", conversation_id=first.conversation_id)
    assert text_of(second) == "Mended."
    first.refresh_from_db()
    assert first.prompt_version != second.prompt_version


def test_foreign_archived_unpublished_and_made_up_assistants_do_not_exist(team: Team, strangers: Team) -> None:
    """P11."""
    legal, foreign = another(team), another(strangers)
    prompts.archive_assistant(access=team.owner, assistant_id=legal.pk)
    unpublished = prompts.create_assistant(access=team.owner, name="Not yet")
    for wrong in (foreign.pk, legal.pk, unpublished.pk, "nonsense", "", published(team.tenant).pk):  # type: ignore[union-attr]
        with pytest.raises(NotFound):
            services.ask(access=team.member, text="Hi", assistant_id=wrong)
        with pytest.raises(NotFound):
            services.complete(access=team.key, messages=[{"role": "user", "content": "Hi"}], assistant_id=wrong)
    assert not Generation.objects.exists()


def test_a_chat_whose_assistant_was_archived_goes_on_with_the_default_one(
    team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    legal = another(team)
    first = services.ask(access=team.member, text="Hi", assistant_id=legal.pk)
    end(worker, record)
    prompts.archive_assistant(access=team.owner, assistant_id=legal.pk)
    second = services.ask(access=team.member, text="And?", conversation_id=first.conversation_id)
    assert text_of(second) == "You answer for acme."
    shown = present.conversation(team.member, first.conversation_id)["assistant"]
    assert shown == {"name": "Assistant", "instead_of": "Legal desk"}


def test_an_assistant_cannot_be_changed_in_the_middle(
    team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    legal = another(team)
    first = services.ask(access=team.member, text="Hi")
    end(worker, record)
    with pytest.raises(BadInput) as refused:
        services.ask(access=team.member, text="And?", conversation_id=first.conversation_id, assistant_id=legal.pk)
    assert refused.value.param == "assistant_id"


def test_programs_name_an_assistant_as_their_model(team: Team) -> None:
    legal = another(team)
    messages = [{"role": "user", "content": "Hi"}]
    named = services.complete(access=team.key, messages=messages, model="assistant:legal-desk")
    by_id = services.complete(access=team.key, messages=messages, assistant_id=legal.pk)
    for generation in (named, by_id):
        assert text_of(generation) == "You know contracts."
        assert generation.model == team.tenant.model
        assert generation.prompt_version == legal.published
    for wrong in ("assistant:", "assistant:nobody", "assistant:Legal desk", "another-model"):
        with pytest.raises(NotFound) as refused:
            services.complete(access=team.key, messages=messages, model=wrong)
        assert (refused.value.code, refused.value.param) == ("model_not_found", "model")


def test_a_draft_is_tried_out_by_editors_alone_and_leaves_only_usage(team: Team, strangers: Team) -> None:
    assistant = SystemPrompt.objects.get(tenant=team.tenant)
    draft = prompts.save_draft(access=team.owner, assistant_id=assistant.pk, text="Try me.", revision=0)
    messages = [{"role": "user", "content": "Hi"}]
    generation = services.complete(access=team.owner, messages=messages, draft_id=draft.pk)
    request = request_of(generation)
    assert [part.text for part in request.system] == ["Try me."]
    assert (request.prompt_version, request.leased) == ("", True), "nothing of it is pinned"
    assert generation.prompt_version is None
    assert (generation.conversation, generation.message) == (None, None)
    for access, refusal in ((team.member, Forbidden), (team.key, Forbidden), (strangers.owner, NotFound)):
        with pytest.raises(refusal):
            services.complete(access=access, messages=messages, draft_id=draft.pk)


def test_a_draft_shares_no_memory_with_the_published_prompt_or_another_editor(team: Team) -> None:
    """C1: not even where the text is the same."""
    version = published(team.tenant)
    assert version is not None
    messages = [{"role": "user", "content": "Hi"}]
    salts = set()
    for access in (team.owner, team.owner):
        request = request_of(services.complete(access=access, messages=messages, draft_id=version.pk))
        salts.add((request.system[-1].salt, request.salt))
    assert len(salts) == 1, "a test goes on in its own memory"
    ((own, private),) = salts
    usual = request_of(services.complete(access=team.owner, messages=messages))
    assert own not in (team.tenant.salt, usual.salt)
    assert private not in (team.tenant.salt, usual.salt)


def test_use_of_a_version_is_counted_from_its_answers(
    team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    version = published(team.tenant)
    assert version is not None
    assert use_of(team.tenant, [version.pk]) == {}
    for uncached, cached, seconds in ((100, 0, 0.15), (20, 80, 0.07), (60, 40, 0.11)):
        services.ask(access=team.member, text="Hi")
        taken = worker.begin("Fine.")
        usage = Usage(prompt_tokens=uncached + cached, cached_tokens=cached, completion_tokens=1)
        worker.end(taken, Finished(seq=2, finish_reason="stop", usage=usage, timing=Timing(prefill_s=seconds)))
        record()
    use = use_of(team.tenant, [version.pk])[version.pk]
    assert (use.answers, use.prompt_tokens, use.cached_tokens) == (3, 300, 120)
    assert use.hit_rate == pytest.approx(0.4)
    assert use.saved_s == pytest.approx(120 * 0.001, rel=1e-3), "a token took 1 ms, whatever a first token costs"


@pytest.mark.parametrize(
    ("points", "expected"),
    [([], None), ([(0, 1.0), (10, 0.0)], None), ([(100, 0.2)], 0.002), ([(100, 0.2), (101, 0.3)], 0.5 / 201),
     ([(10, 0.3), (110, 0.2)], 0.5 / 120)],
)  # fmt: skip
def test_what_a_token_of_prefill_takes(points: list[tuple[int, float]], expected: float | None) -> None:
    assert seconds_a_token(points) == (expected if expected is None else pytest.approx(expected))


def test_a_new_engine_is_told_once_of_the_most_used_prompts_of_its_tenants(
    team: Team, strangers: Team, worker: ScriptedWorker, server: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatapp.chat.greeting.MOST_PROMPTS", 2)
    legal = another(team)
    archived = another(team, "Old desk")
    prompts.archive_assistant(access=team.owner, assistant_id=archived.pk)
    strangers.tenant.default_model = "another-model"
    strangers.tenant.save()
    another(team, "Never used")
    with tenant_scope(team.tenant):
        services.ask(access=team.member, text="Hi", assistant_id=legal.pk)
    assert greet_workers() == 0, "no engine is there"
    worker.beat()
    server.delete(protocol.control_key(worker.model))
    assert greet_workers() == 1
    hints = [fields for _, fields in server.xrange(protocol.control_key(worker.model))]
    default = published(team.tenant)
    assert default is not None
    assert [hint[b"id"].decode() for hint in hints] == [str(legal.published_id), str(default.pk)]
    assert {hint[b"worker"] for hint in hints} == {b"scripted"}
    assert greet_workers() == 0
    assert server.xlen(protocol.control_key(worker.model)) == 2
