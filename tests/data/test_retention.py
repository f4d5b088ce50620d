"""Retention: what would go is said first and nothing else goes; figures stay; what is answered is left alone."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from chatapp.audit.models import AuditEntry
from chatapp.chat.conversations import set_starred
from chatapp.chat.models import Conversation, Generation, Message, State
from chatapp.chat.services import ask
from chatapp.data import retention
from chatapp.data.models import Sweep
from chatapp.data.retention import preview, set_retention, sweep, sweep_all
from chatapp.errors import BadInput, Forbidden
from chatapp.responses.models import StoredResponse
from tests.chat.conftest import Team
from tests.data.conftest import a_chat


def test_the_dry_run_counts_by_member_and_deletes_nothing(team: Team, strangers: Team) -> None:
    a_chat(team.member, "one", "two", days_ago=40)
    a_chat(team.member, "one", "two", "three", days_ago=31)
    a_chat(team.owner, "one", days_ago=90)
    a_chat(team.key, "one", days_ago=90)
    a_chat(team.owner, "young", days_ago=29)
    a_chat(team.owner, "starred", days_ago=99, starred_at=timezone.now())
    a_chat(strangers.member, "theirs", days_ago=400)
    told = preview(access=team.owner, days=30)
    assert (told.conversations, told.messages, told.starred_kept) == (4, 7, 1)
    assert {share.name: (share.conversations, share.messages) for share in told.members} == {
        "member@acme.test": (2, 5),
        "API key tests": (1, 1),
        "owner@acme.test": (1, 1),
    }
    assert told.members[0].name == "member@acme.test", "who has most comes first"
    assert told.oldest is not None
    assert told.newest is not None
    assert round((told.newest - told.oldest).total_seconds() / 86400) == 59
    assert preview(access=team.owner, days=30, keep_starred=False).conversations == 5
    assert Conversation.objects.count() == 7


def test_what_is_shown_is_what_goes_and_figures_stay_without_a_trace_of_the_text(team: Team, strangers: Team) -> None:
    old = a_chat(team.member, "a question", "an answer", days_ago=40)
    young = a_chat(team.member, "young", days_ago=5)
    starred = a_chat(team.member, "starred", days_ago=99)
    set_starred(access=team.member, conversation_id=starred.pk, starred=True)
    theirs = a_chat(strangers.member, "theirs", days_ago=400)
    set_retention(access=team.owner, days=30)
    sweep_all()
    assert {row.pk for row in Conversation.objects.all()} == {young.pk, starred.pk, theirs.pk}
    assert not Message.objects.filter(conversation=old.pk).exists()
    kept = Generation.objects.get(tenant=team.tenant, conversation=None)
    assert (kept.prompt_tokens, kept.completion_tokens, kept.principal) == (7, 5, team.member.principal)
    assert (kept.digest, kept.idempotency_key, kept.error_message, kept.request) == ("", None, "", None)
    entry = AuditEntry.objects.get(action="data.retention_applied")
    assert entry.details == {"conversations": 1, "messages": 2, "usage_rows": 0}
    assert (entry.tenant_id, entry.actor_name) == (team.tenant.pk, "Octavo")
    sweep_all()
    assert AuditEntry.objects.filter(action="data.retention_applied").count() == 1, "a night without work is no news"


def test_a_conversation_that_is_being_answered_is_left(team: Team) -> None:
    generation = ask(access=team.member, text="Slow")
    Conversation.objects.update(updated_at=timezone.now() - timedelta(days=90))
    set_retention(access=team.owner, days=30)
    sweep_all()
    assert Conversation.objects.filter(pk=generation.conversation_id).exists()
    assert preview(access=team.owner, days=30).conversations == 0, "and the dry run does not promise it"


def test_deleted_conversations_go_after_thirty_days_whatever_the_rule(team: Team) -> None:
    now = timezone.now()
    gone = a_chat(team.member, "deleted", days_ago=60, deleted_at=now - timedelta(days=31))
    kept = a_chat(team.member, "just deleted", days_ago=60, deleted_at=now - timedelta(days=29))
    starred = a_chat(team.member, "s", days_ago=60, deleted_at=now - timedelta(days=31), starred_at=now)
    sweep_all()
    assert set(Conversation.objects.values_list("pk", flat=True)) == {kept.pk}, (gone, starred)


def test_figures_age_out_after_a_term_of_their_own(team: Team) -> None:
    a_chat(team.member, "old", days_ago=500)
    a_chat(team.member, "less old", days_ago=300)
    set_retention(access=team.owner, days=30)
    sweep_all()
    assert Generation.objects.count() == 1
    assert Sweep.objects.get().usage_rows == 1
    set_retention(access=team.owner, days=30, usage_days=100)
    sweep_all()
    assert not Generation.objects.exists()


def test_a_sweep_that_was_cut_short_goes_on_and_says_the_whole(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    for number in range(7):
        a_chat(team.member, f"q{number}", "a", days_ago=40 + number)
    set_retention(access=team.owner, days=30)
    purge, calls = retention.purge_conversations, []

    def dies(keys: list[object]) -> int:
        calls.append(keys)
        if len(calls) == 3:
            raise RuntimeError("killed")
        return purge(keys)  # type: ignore[arg-type]

    monkeypatch.setattr(retention, "purge_conversations", dies)
    with pytest.raises(RuntimeError):
        sweep(team.tenant)
    assert Conversation.objects.count() == 3, "two batches are done, the third is not half done"
    assert Sweep.objects.get().finished_at is None
    monkeypatch.setattr(retention, "purge_conversations", purge)
    done = sweep(team.tenant)
    assert (done.conversations, done.messages) == (7, 14)
    assert AuditEntry.objects.get(action="data.retention_applied").details["conversations"] == 7


def test_one_team_that_fails_does_not_keep_the_others_from_theirs(
    team: Team, strangers: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in (team, strangers):
        a_chat(one.member, "old", days_ago=40)
        set_retention(access=one.owner, days=30)
    real = retention.sweep

    def sweep(tenant: object) -> Sweep:
        if tenant == team.tenant:
            raise RuntimeError("no")
        return real(tenant)  # type: ignore[arg-type]

    monkeypatch.setattr(retention, "sweep", sweep)
    sweep_all()
    assert [row.tenant for row in Conversation.objects.all()] == [team.tenant]


@pytest.mark.parametrize("days", [0, -1, 3651, True, 2.5])
def test_terms_out_of_range_are_refused_at_their_field(team: Team, days: int) -> None:
    for refused in (lambda: set_retention(access=team.owner, days=days), lambda: preview(access=team.owner, days=days)):
        with pytest.raises(BadInput) as refusal:
            refused()
        assert refusal.value.param == "days"
    with pytest.raises(BadInput) as refusal:
        set_retention(access=team.owner, days=None, usage_days=days)
    assert refusal.value.param == "usage_days"


def test_only_owners_say_how_long_chats_are_kept(team: Team) -> None:
    for access in (team.member, team.key):
        with pytest.raises(Forbidden):
            set_retention(access=access, days=30)
        with pytest.raises(Forbidden):
            preview(access=access, days=30)


def test_a_change_is_in_the_audit_log_with_what_it_was_and_a_repeat_is_not(team: Team) -> None:
    for _ in range(2):
        set_retention(access=team.owner, days=30, keep_starred=False)
    entry = AuditEntry.objects.get(action="data.retention_changed")
    assert entry.details == {"days": [None, 30], "keep_starred": [True, False]}


def test_a_star_is_the_owners_own_to_set(team: Team) -> None:
    from chatapp.errors import NotFound

    chat = a_chat(team.member, "mine")
    with pytest.raises(NotFound):
        set_starred(access=team.owner, conversation_id=chat.pk, starred=True)
    first = set_starred(access=team.member, conversation_id=chat.pk, starred=True).starred_at
    assert set_starred(access=team.member, conversation_id=chat.pk, starred=True).starred_at == first
    assert set_starred(access=team.member, conversation_id=chat.pk, starred=False).starred_at is None


def test_responses_go_after_thirty_days_or_with_the_chats_and_what_runs_is_left(team: Team, strangers: Team) -> None:
    def kept(days_ago: float, state: State = State.FINISHED) -> StoredResponse:
        when = timezone.now() - timedelta(days=days_ago)
        generation = Generation.objects.create(
            tenant=team.tenant, principal=team.key.principal, model="m", state=state, created_at=when, deadline=when,
            completion_tokens=5, digest="d" * 64, idempotency_key=f"k{days_ago}{state}", error_message="words",
        )  # fmt: skip
        return StoredResponse.objects.create(generation=generation, tenant=team.tenant, created_at=when)

    young, week, old, runs = kept(1), kept(8), kept(31), kept(40, State.QUEUED)
    sweep_all()
    assert {row.pk for row in StoredResponse.objects.all()} == {young.pk, week.pk, runs.pk}
    gone = Generation.objects.get(pk=old.pk)
    assert (gone.completion_tokens, gone.digest, gone.idempotency_key, gone.error_message) == (5, "", None, "")
    set_retention(access=team.owner, days=7)
    sweep_all()
    assert {row.pk for row in StoredResponse.objects.all()} == {young.pk, runs.pk}
