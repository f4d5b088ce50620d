"""Drafts, versions and assistants of a team: who may change them, what is refused, and what the log says."""

from __future__ import annotations

import threading
from contextvars import copy_context
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from chatapp.audit.models import AuditEntry
from chatapp.errors import BadInput, Conflict, Forbidden, NotFound, Refusal
from chatapp.limits.selectors import ensure, forget
from chatapp.prompts import measure, selectors, services
from chatapp.prompts.measure import Measure
from chatapp.prompts.models import PromptVersion, SystemPrompt
from chatapp.streaming.connection import sync_redis
from engine import protocol
from tests.chat.conftest import Team


def the_assistant(team: Team) -> SystemPrompt:
    return SystemPrompt.objects.get(tenant=team.tenant)


def save(team: Team, text: str, revision: int = 0, assistant: SystemPrompt | None = None) -> PromptVersion:
    assistant = assistant or the_assistant(team)
    return services.save_draft(access=team.owner, assistant_id=assistant.pk, text=text, revision=revision)


def publish(team: Team, text: str, note: str = "Because", assistant: SystemPrompt | None = None) -> PromptVersion:
    assistant = assistant or the_assistant(team)
    draft = selectors.draft(assistant)
    draft = save(team, text, draft.revision if draft else 0, assistant)
    return services.publish_draft(access=team.owner, assistant_id=assistant.pk, note=note, revision=draft.revision)


def actions(team: Team) -> list[str]:
    return list(AuditEntry.objects.filter(tenant=team.tenant).order_by("at", "id").values_list("action", flat=True))


def test_a_draft_is_written_published_and_followed_by_the_next_version(team: Team) -> None:
    assistant = the_assistant(team)
    draft = save(team, "Be brief.")
    draft = save(team, "Be brief and kind.", draft.revision)
    version = services.publish_draft(
        access=team.owner, assistant_id=assistant.pk, note="Kinder", revision=draft.revision
    )
    assert (version.number, version.text, version.note) == (2, "Be brief and kind.", "Kinder")
    assert version.published_by == team.owner.user
    assert selectors.draft(assistant) is None
    assert actions(team) == ["prompt.draft_begun", "prompt.published"]
    entry = AuditEntry.objects.get(action="prompt.published")
    assert (entry.object_name, entry.details["version"], entry.details["note"]) == ("Assistant", 2, "Kinder")
    assert "kind" not in str(entry.details), "the log keeps no text of a prompt"


def test_two_editors_do_not_overwrite_each_other_silently(team: Team) -> None:
    assistant = the_assistant(team)
    first = save(team, "Mine.")
    services.save_draft(access=team.owner, assistant_id=assistant.pk, text="Theirs.", revision=first.revision)
    for late in (lambda: save(team, "Mine, longer.", first.revision), lambda: save(team, "A new one.", 0)):
        with pytest.raises(Conflict) as refused:
            late()
        assert refused.value.code == "draft_changed"
    with pytest.raises(Conflict):
        services.publish_draft(access=team.owner, assistant_id=assistant.pk, note="x", revision=first.revision)
    with pytest.raises(Conflict):
        services.discard_draft(access=team.owner, assistant_id=assistant.pk, revision=first.revision)
    draft = selectors.draft(assistant)
    assert draft is not None
    assert draft.text == "Theirs."
    services.discard_draft(access=team.owner, assistant_id=assistant.pk, revision=draft.revision)
    with pytest.raises(Conflict) as refused:
        save(team, "Late.", draft.revision)
    assert refused.value.code == "draft_gone"


@pytest.mark.django_db(transaction=True)
def test_of_editors_who_save_at_the_same_moment_one_is_kept_and_the_others_are_told(
    emptied_log: None, team: Team
) -> None:
    outcomes: list[str] = []

    def go(number: int) -> None:
        try:
            save(team, f"Text {number}")
            outcomes.append("kept")
        except Conflict as refused:
            outcomes.append(refused.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=copy_context().run, args=(go, number)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["draft_changed"] * 3 + ["kept"]
    assert PromptVersion.objects.filter(published_at=None).count() == 1


@pytest.mark.parametrize(
    "text",
    [
        "e\u0301 and \u00e9",
        "삼겹살 👨‍👩‍👧‍👦 \u200b\u2028 \u202eabc",
        "  spaces before\n\nand behind \t\n",
        "\ufdd0 \U0010fffe",
        "\x01\x7f",
    ],
)
def test_odd_unicode_survives_byte_for_byte(team: Team, text: str) -> None:
    text = f"x{text}"
    draft = save(team, text)
    draft.refresh_from_db()
    assert draft.text.encode() == text.encode()
    version = publish(team, text)
    version.refresh_from_db()
    assert selectors.system_texts(team.tenant, version)[-1].text.encode() == text.encode()


def test_line_ends_of_every_kind_become_one(team: Team) -> None:
    assert save(team, "a\r\nb\rc\n\r\nd").text == "a\nb\nc\n\nd"


@pytest.mark.parametrize("text", ["", "   \n\t", "\u200b\u2060 \ufeff", "\u00a0"])
def test_an_empty_draft_can_be_kept_and_not_be_published(team: Team, text: str) -> None:
    draft = save(team, text)
    with pytest.raises(BadInput) as refused:
        services.publish_draft(access=team.owner, assistant_id=draft.prompt_id, note="x", revision=draft.revision)
    assert (refused.value.code, refused.value.param) == ("empty", "text")


@pytest.mark.parametrize("text", [None, 3, "a\0b", "a\ud800b", "x" * 100_001])
def test_what_cannot_be_kept_is_refused_with_its_field(team: Team, text: Any) -> None:
    with pytest.raises(BadInput) as refused:
        save(team, text)
    assert refused.value.param == "text"


def test_publishing_needs_a_reason_a_draft_and_a_change(team: Team) -> None:
    assistant = the_assistant(team)
    with pytest.raises(Conflict) as missing:
        services.publish_draft(access=team.owner, assistant_id=assistant.pk, note="x", revision=0)
    assert missing.value.code == "no_draft"
    draft = save(team, "You answer for acme.")
    for note, param in (("", "note"), ("  ", "note"), ("x" * 201, "note"), ("Same", "text")):
        with pytest.raises(BadInput) as refused:
            services.publish_draft(access=team.owner, assistant_id=assistant.pk, note=note, revision=draft.revision)
        assert refused.value.param == param


def test_a_prompt_above_the_models_context_is_refused_with_the_numbers(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = Measure(tokens=9000, own_tokens=8990, blocks=563, block_size=16, quota_blocks=1000, context=8192)
    monkeypatch.setattr(services, "measure", lambda tenant, text: long)
    with pytest.raises(BadInput) as refused:
        publish(team, "Long.")
    assert refused.value.code == "too_long"
    assert "9,000" in refused.value.message
    assert "8,192" in refused.value.message
    assert selectors.published(team.tenant).number == 1  # type: ignore[union-attr]
    small = Measure(tokens=300, blocks=19, block_size=16, quota_blocks=10, context=8192)
    assert "160 tokens" in small.too_long, "the team's share of the memory counts as well"
    fits = Measure(tokens=100, own_tokens=90, blocks=7, block_size=16, quota_blocks=1000, context=8192)
    monkeypatch.setattr(services, "measure", lambda tenant, text: fits)
    assert publish(team, "Short.").tokens == 100


def test_a_long_prompt_waits_for_an_engine_to_measure_it_and_an_older_one_comes_back_without(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is too long for the model would end every chat of the team, and no engine is here to say so."""
    long = "Many different words. " * 500
    with pytest.raises(BadInput) as refused:
        publish(team, long)
    assert (refused.value.code, refused.value.param) == ("not_measured", "text")
    draft = selectors.draft(the_assistant(team))
    assert draft is not None
    assert draft.text == long
    with monkeypatch.context() as patched:
        fits = Measure(tokens=2000, own_tokens=1990, blocks=125, block_size=16, quota_blocks=1000, context=8192)
        patched.setattr(services, "measure", lambda tenant, text: fits)
        version = publish(team, long)
    assert publish(team, "Short.").number == version.number + 1  # type: ignore[operator]
    assert services.roll_back(access=team.owner, version_id=version.pk).text == long


def test_rolling_back_publishes_the_older_text_as_a_new_version_that_says_so(team: Team) -> None:
    first = selectors.published(team.tenant)
    assert first is not None
    publish(team, "Second.")
    draft = save(team, "In the works.")
    version = services.roll_back(access=team.owner, version_id=first.pk)
    assert (version.number, version.text, version.note) == (3, first.text, "Back to version 1")
    assert version.restores == first
    assert actions(team)[-1] == "prompt.rolled_back"
    kept = selectors.draft(the_assistant(team))
    assert kept is not None
    assert kept.pk == draft.pk
    for wrong in (version.pk, draft.pk):
        with pytest.raises(BadInput):
            services.roll_back(access=team.owner, version_id=wrong)


@pytest.mark.parametrize("field", ["text", "note", "number", "published_at"])
def test_the_database_itself_keeps_a_published_version(team: Team, field: str) -> None:
    values = {"text": "Other.", "note": "Other.", "number": 77, "published_at": None}
    with pytest.raises(DatabaseError, match="immutable"), transaction.atomic():
        PromptVersion.objects.filter(published_at__isnull=False).update(**{field: values[field]})


def test_the_person_who_published_may_go_and_the_version_stays(team: Team) -> None:
    version = publish(team, "Second.")
    assert team.owner.user is not None
    team.owner.user.delete()
    version.refresh_from_db()
    assert version.published_by is None


def test_a_team_can_be_deleted_with_all_of_its_prompts(team: Team, strangers: Team) -> None:
    publish(team, "Second.")
    team.tenant.delete()
    assert PromptVersion.objects.exclude(prompt__tenant=strangers.tenant).count() == 0


# --- assistants ---------------------------------------------------------------------------------------------------


def test_a_team_has_one_default_whatever_is_done(team: Team) -> None:
    first = the_assistant(team)
    assert first.is_default
    other = services.create_assistant(access=team.owner, name="Legal desk", description="Contracts")
    assert (other.slug, other.is_default) == ("legal-desk", False)
    with pytest.raises(Conflict) as refused:
        services.make_default(access=team.owner, assistant_id=other.pk)
    assert refused.value.code == "not_published"
    with pytest.raises(Conflict):
        services.archive_assistant(access=team.owner, assistant_id=first.pk)
    publish(team, "You know contracts.", assistant=other)
    services.make_default(access=team.owner, assistant_id=other.pk)
    assert list(SystemPrompt.objects.filter(tenant=team.tenant, is_default=True)) == [other]
    services.archive_assistant(access=team.owner, assistant_id=first.pk)
    with pytest.raises(Conflict):
        services.make_default(access=team.owner, assistant_id=first.pk)
    services.restore_assistant(access=team.owner, assistant_id=first.pk)
    assert [one.name for one in selectors.assistants(team.tenant)] == ["Legal desk", "Assistant"]
    services.move_assistant(access=team.owner, assistant_id=first.pk, up=True)
    assert [one.name for one in selectors.assistants(team.tenant)] == ["Assistant", "Legal desk"]


def test_a_name_or_reason_turns_no_line_around_and_hides_nothing(team: Team) -> None:
    """They stand in lists, in the picker of the chat and in the audit log."""
    made = services.create_assistant(access=team.owner, name="\u202eHarbour\u200b \n desk \U0001f469\u200d\U0001f52c")
    assert made.name == "Harbour desk \U0001f469\u200d\U0001f52c"
    with pytest.raises(BadInput) as refused:
        services.create_assistant(access=team.owner, name="\u202e\u200b")
    assert refused.value.param == "name"
    assert publish(team, "New.", note="\u2066Because\u202e", assistant=made).note == "Because"


def test_names_are_a_teams_own_and_unique_there(team: Team, strangers: Team) -> None:
    services.create_assistant(access=team.owner, name="Desk")
    services.create_assistant(access=strangers.owner, name="Desk")
    assert services.create_assistant(access=team.owner, name="desk!").slug == "desk-2"
    for name in ("Desk", " Desk ", "", "\u200b", "x" * 121):
        with pytest.raises(BadInput) as refused:
            services.create_assistant(access=team.owner, name=name)
        assert refused.value.param == "name"
    assert services.create_assistant(access=team.owner, name="日本").slug == "assistant-2"
    with pytest.raises(BadInput):
        services.change_assistant(access=team.owner, assistant_id=the_first(team).pk, slug="No Spaces")
    with pytest.raises(BadInput):
        services.change_assistant(access=team.owner, assistant_id=the_first(team).pk, slug="desk")


def the_first(team: Team) -> SystemPrompt:
    return selectors.assistants(team.tenant)[0]


def test_members_may_not_and_strangers_find_nothing(team: Team, strangers: Team) -> None:
    """P11."""
    assistant = the_assistant(team)
    version = selectors.published(team.tenant)
    assert version is not None
    for access, refusal in ((team.member, Forbidden), (strangers.owner, NotFound)):
        tries: list[Any] = [
            lambda access=access: services.save_draft(access=access, assistant_id=assistant.pk, text="x", revision=0),
            lambda access=access: services.discard_draft(access=access, assistant_id=assistant.pk, revision=0),
            lambda access=access: services.publish_draft(
                access=access, assistant_id=assistant.pk, note="x", revision=0
            ),
            lambda access=access: services.roll_back(access=access, version_id=version.pk),
            lambda access=access: services.unpublish(access=access, assistant_id=assistant.pk),
            lambda access=access: services.change_assistant(access=access, assistant_id=assistant.pk, name="x"),
            lambda access=access: services.move_assistant(access=access, assistant_id=assistant.pk, up=True),
            lambda access=access: services.make_default(access=access, assistant_id=assistant.pk),
            lambda access=access: services.archive_assistant(access=access, assistant_id=assistant.pk),
            lambda access=access: services.restore_assistant(access=access, assistant_id=assistant.pk),
        ]
        for attempt in tries:
            with pytest.raises(Refusal) as refused:
                attempt()
            assert type(refused.value) is refusal
    with pytest.raises(Forbidden):
        services.create_assistant(access=team.member, name="x")
    assert actions(team) == []


# --- the engines --------------------------------------------------------------------------------------------------


def live_engine(team: Team, name: str = "w", **fields: Any) -> None:
    client = sync_redis()
    seconds, _ = client.time()
    client.zadd(protocol.WORKERS, {name: seconds * 1000})
    sizes = {"context": 8192, "block_size": 16, "num_blocks": 100, **fields}
    details = protocol.WorkerDetails(id=name, model=fields.pop("model", team.tenant.model), pid=1, **sizes)
    client.hset(protocol.worker_key(name), "details", protocol.encode(details))


def test_new_answers_switch_when_an_engine_has_the_version_or_after_ten_seconds(team: Team, time_machine: Any) -> None:
    version = publish(team, "Second.")
    in_force = lambda: selectors.published(team.tenant).number  # type: ignore[union-attr]  # noqa: E731
    assert version.published_at is not None
    assert in_force() == 1
    time_machine.move_to(version.published_at + selectors.SWITCH_AFTER * 0.9, tick=False)
    assert in_force() == 1
    sync_redis().hset(protocol.warm_key(str(version.pk)), "w", 9)
    assert in_force() == 2
    sync_redis().delete(protocol.warm_key(str(version.pk)))
    time_machine.move_to(version.published_at + selectors.SWITCH_AFTER, tick=False)
    assert in_force() == 2, "with no engine alive as well"


def test_of_two_published_in_ten_seconds_the_first_is_never_forced_on_anybody(team: Team) -> None:
    publish(team, "Second.")
    publish(team, "Third.")
    assistant = the_assistant(team)
    assert (assistant.published.number, assistant.former.number) == (3, 1)  # type: ignore[union-attr]


@pytest.mark.django_db(transaction=True)
def test_the_engines_of_the_teams_models_hear_by_ids_alone_and_let_go_when_it_ends(
    emptied_log: None, team: Team
) -> None:
    live_engine(team)
    client = sync_redis()
    other = services.create_assistant(access=team.owner, name="Other")
    version = publish(team, "Secret words.", assistant=other)
    hints = [fields for _, fields in client.xrange(protocol.control_key(team.tenant.model))]
    assert [hint[b"kind"] for hint in hints] == [b"count", b"published"]
    assert "Secret" not in str(hints)
    prompt = protocol.decode_published(client.get(protocol.published_key(str(version.pk))))
    assert (prompt.name, prompt.tenant) == (str(other.pk), str(team.tenant.pk))
    services.archive_assistant(access=team.owner, assistant_id=other.pk)
    last = client.xrevrange(protocol.control_key(team.tenant.model), count=1)[0][1]
    assert {name.decode(): value.decode() for name, value in last.items()} == protocol.released_hint(
        str(other.pk), str(version.pk)
    )
    assert client.get(protocol.published_key(str(version.pk))) is None
    services.restore_assistant(access=team.owner, assistant_id=other.pk)
    last = client.xrevrange(protocol.control_key(team.tenant.model), count=1)[0][1]
    assert last[b"kind"] == b"published"


def test_an_unpublished_assistant_has_no_instructions_and_its_versions_can_come_back(team: Team) -> None:
    first = selectors.published(team.tenant)
    services.unpublish(access=team.owner, assistant_id=the_assistant(team).pk)
    assert selectors.published(team.tenant) is None
    assert first is not None
    assert services.roll_back(access=team.owner, version_id=first.pk).number == 2
    assert selectors.published(team.tenant).number == 2  # type: ignore[union-attr]


def test_the_quota_is_the_least_of_the_teams_live_engines(team: Team) -> None:
    assert selectors.kv_quota_blocks(team.tenant) is None
    live_engine(team, "a")
    live_engine(team, "b", tenant_blocks=40)
    assert selectors.kv_quota_blocks(team.tenant) == 40
    limits = ensure(team.tenant)
    limits.kv_share = 0.25
    limits.save()
    forget()
    assert selectors.kv_quota_blocks(team.tenant) == 25, "the plan's share of the smaller pool"


def test_a_team_of_several_models_has_its_prompts_on_all_of_their_engines(team: Team, settings: Any) -> None:
    settings.OCTAVO_MODEL_NAMES = ["one", "two", "three"]
    team.tenant.allowed_models = ["one", "three"]
    assert selectors.models_of(team.tenant) == {"one", "three"}


def test_without_an_engine_the_measure_says_so(team: Team) -> None:
    found = measure.measure(team.tenant, "Some text.")
    assert (found.state, found.tokens, found.too_long) == (measure.NO_WORKER, 0, "")
    assert team.tenant.model in found.message
