"""A team's dashboard: its tables, its page, its API and its files; what runs now, and stopping it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
import time_machine
from django.db import connection
from django.test import Client
from django.utils import timezone

from chatapp.audit.models import AuditEntry
from chatapp.chat import running
from chatapp.chat.models import Conversation, Generation, State
from chatapp.chat.services import ask
from chatapp.errors import Forbidden, NotFound
from chatapp.insight import tables
from chatapp.insight.tables import Table
from chatapp.limits.models import Reservation
from chatapp.prompts.models import SystemPrompt
from chatapp.prompts.services import publish
from chatapp.tenants.access import Access, access_for_user
from chatapp.tenants.models import Membership, Role
from chatapp.tenants.permissions import KeyScope, Permission
from chatapp.tenants.services import create_api_key
from chatapp.usage import periods
from chatapp.usage.periods import Period
from chatapp.usage.rollup import roll_up
from engine.protocol import Cancelled, Usage
from tests.api.test_product_api import refusal
from tests.chat.conftest import ScriptedWorker, Team, record, server, strangers, team, worker
from tests.tenants.people import admin_key, join, log_in
from tests.usage.conftest import use
from tests.usage.test_pages import body

__all__ = ["record", "server", "strangers", "team", "worker"]

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
PAGE = "/t/acme/admin/"
API = "/api/t/acme/dashboard"
PART = {"X-Part": "running"}
SECRET = "The vault opens at nine"


@pytest.fixture
def noon() -> Any:
    """Chats that are answered need a clock that goes; figures need one that stands."""
    with time_machine.travel(NOON, tick=False):
        yield


def week(zone: str = "UTC") -> Period:
    found = periods.zone_of(zone)
    assert found is not None
    return periods.period_of({"period": "7d"}, now=timezone.now(), zone=found)


def as_admin(access: Access) -> Access:
    """The same person, who may look at the team from now on."""
    assert access.user is not None
    Membership.objects.filter(tenant=access.tenant, user=access.user).update(role=Role.ADMIN)
    return access_for_user(access.user, access.tenant.slug)


def talk(owner: Access, tokens: int = 100, *, at: datetime | None = None, **changes: Any) -> Conversation:
    """A conversation with one ended answer, as the recorder leaves it."""
    whose: dict[str, Any] = {"user": owner.user} if owner.user else {"key": owner.key}
    found = Conversation.objects.create(tenant=owner.tenant, title=SECRET, **whose)
    answer(owner, tokens, at=at, conversation=found, **changes)
    return found


def answer(owner: Access, tokens: int = 100, *, at: datetime | None = None, **changes: Any) -> Generation:
    at = at or timezone.now()
    fields: dict[str, Any] = {
        "tenant": owner.tenant, "principal": owner.principal, "model": "smol", "state": State.FINISHED,
        "created_at": at, "ended_at": at, "deadline": at, "prompt_tokens": tokens, "cached_tokens": tokens // 2,
        "completion_tokens": 10, "timing": {"queue_s": 0, "prefill_s": 0.5, "decode_s": 1},
    }  # fmt: skip
    return Generation.objects.create(**{**fields, **changes})


# --- tables -------------------------------------------------------------------------------------------------------


def test_conversations_are_ranked_by_their_tokens_and_only_their_owner_reads_a_title(
    team: Team, strangers: Team
) -> None:
    small, large = talk(team.owner, 100), talk(team.member, 300)
    answer(team.member, 500, conversation=large)
    program = talk(team.key, 200)
    talk(strangers.owner, 9000)
    talk(team.member, 7000, at=timezone.now() - timedelta(days=9))
    talk(team.member, 6000).delete()
    gone = talk(team.member, 5000)
    Conversation.objects.filter(pk=gone.pk).update(deleted_at=timezone.now())
    rows = tables.read(team.owner, Table.CONVERSATIONS, week())
    assert [row.conversation_id for row in rows] == [large.pk, program.pk, small.pk]
    assert [(row.answers, row.prompt_tokens, row.cached_tokens, row.output_tokens, row.tokens) for row in rows] == [
        (2, 800, 400, 20, 820), (1, 200, 100, 10, 210), (1, 100, 50, 10, 110),
    ]  # fmt: skip
    assert [row.title for row in rows] == ["", "", SECRET]
    assert [row.who for row in rows] == ["member@acme.test", "tests", "owner@acme.test"]
    assert [row.own for row in tables.read(as_admin(team.member), Table.CONVERSATIONS, week())] == [True, False, False]


def test_a_reader_without_chats_reads_no_titles_either(team: Team) -> None:
    """An auditor who once chatted: what they had is theirs no more."""
    auditor = join(team.tenant, "auditor", Role.AUDITOR)
    talk(auditor)
    (row,) = tables.read(auditor, Table.CONVERSATIONS, week())
    assert (row.title, row.own) == ("", False)


def test_prompt_versions_say_how_much_came_from_memory_in_the_period(team: Team, strangers: Team) -> None:
    assistant = SystemPrompt.objects.get(tenant=team.tenant)
    first = assistant.published
    second = publish(tenant=team.tenant, text="Newer words.")
    answer(team.member, 100, prompt_version=first)
    for _ in range(3):
        answer(team.member, 400, prompt_version=second, cached_tokens=300)
    answer(team.member, 4000, prompt_version=first, at=timezone.now() - timedelta(days=20))
    answer(strangers.member, 100, prompt_version=SystemPrompt.objects.get(tenant=strangers.tenant).published)
    newer, older = tables.read(team.owner, Table.VERSIONS, week())
    assert (newer.version_id, newer.number, newer.answers, newer.hit_rate) == (second.pk, 2, 3, 0.75)
    assert (newer.in_force, older.in_force) == (True, False)
    assert (older.answers, older.prompt_tokens, older.cached_tokens) == (1, 100, 50)
    assert newer.saved_s is not None
    assert newer.saved_s / newer.cached_tokens == pytest.approx(older.saved_s / older.cached_tokens)


@pytest.mark.usefixtures("noon")
def test_errors_are_counted_by_their_code_and_the_last_is_known(team: Team, strangers: Team) -> None:
    for hours, state, code in (
        (1, "failed", "engine_fault"),
        (5, "failed", "engine_fault"),
        (2, "refused", "too_long"),
    ):
        use(team.tenant, NOON - timedelta(hours=hours), state=state, error_code=code)
    use(team.tenant, state="cancelled")
    use(team.tenant, NOON - timedelta(days=8), state="timeout", error_code="deadline")
    use(strangers.tenant, state="failed", error_code="secret_of_others")
    rows = [(r.state, r.error_code, r.answers, r.last_at) for r in tables.read(team.owner, Table.ERRORS, week())]
    assert rows == [
        ("failed", "engine_fault", 2, NOON - timedelta(hours=1)),
        ("refused", "too_long", 1, NOON - timedelta(hours=2)),
    ]


def test_a_key_reads_the_tables_that_its_scope_includes(team: Team) -> None:
    _, secret = create_api_key(tenant=team.tenant, name="reader", scopes=[KeyScope.USAGE])
    bearer = {"Authorization": f"Bearer {secret}"}
    given = Client().get(API, headers=bearer).json()
    assert given["versions"] is None, "it may not read prompts"
    assert all(given[table] is not None for table in Table if table != Table.VERSIONS)
    assert refusal(Client().get(f"{API}/export", {"what": "versions"}, headers=bearer)) == (403, "not_allowed")
    assert Client().get(f"{API}/export", {"what": "limits"}, headers=bearer).status_code == 200
    chats = {"Authorization": f"Bearer {team.secret}"}
    assert refusal(Client().get(API, headers=chats)) == (403, "not_allowed")


# --- the page, the API and files ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("noon")
def test_the_page_says_who_used_what_and_what_failed_and_no_title_of_others(team: Team, strangers: Team) -> None:
    use(team.tenant, principal=team.member.principal, principal_name="member@acme.test", prompt_tokens=4000)
    use(team.tenant, principal=team.key.principal, principal_name="Bot <b>", kind="api", assistant_name="Ferry desk",
        assistant_id="a1", prompt_tokens=1000)  # fmt: skip
    use(team.tenant, state="failed", error_code="engine_fault", prompt_tokens=0, cached_tokens=0)
    use(strangers.tenant, prompt_tokens=987_654, principal_name="mallory@other.test")
    roll_up()
    talk(team.member, 4000, prompt_version=SystemPrompt.objects.get(tenant=team.tenant).published)
    seen = " ".join(body(log_in(team.owner).get(PAGE)).split())
    for wanted in ("member@acme.test", "Bot &lt;b&gt;", "Ferry desk", "engine_fault", "4,010", "in force"):
        assert wanted in seen, wanted
    assert SECRET not in seen
    assert "987,654" not in seen
    assert "mallory" not in seen
    assert "?period=7d&amp;principal=key%3A" in seen, "a name leads to its days, of the same period"
    assert "style=" not in seen
    assert SECRET in body(log_in(as_admin(team.member)).get(PAGE))


@pytest.mark.usefixtures("noon")
def test_the_api_gives_the_figures_of_the_page(team: Team, strangers: Team) -> None:
    use(team.tenant, prompt_tokens=1000, output_tokens=24)
    use(team.tenant, NOON - timedelta(days=3), state="refused", prompt_tokens=0, cached_tokens=0,
        output_tokens=0, timing={})  # fmt: skip
    use(strangers.tenant, prompt_tokens=987_654)
    roll_up()
    given = log_in(team.owner).get(API, {"zone": "Europe/Berlin"}).json()
    assert (given["people"], given["running"], given["slots"], given["zone"]) == (2, 0, "day", "Europe/Berlin")
    assert (given["today"]["tokens"], given["total"]["requests"], given["total"]["refused"]) == (1024, 2, 1)
    assert [slot["requests"] for slot in given["times"]] == [0, 0, 0, 1, 0, 0, 1]
    assert [group["tokens"] for group in given["members"]] == [1024]
    assert [error["state"] for error in given["errors"]] == ["refused"]
    assert {limit["name"] for limit in given["limits"]} >= {"tokens_per_month", "concurrent_answers"}
    hours = log_in(team.owner).get(API, {"period": "today"}).json()
    assert (hours["slots"], len(hours["times"])) == ("hour", 24)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"period": "century"}, "period"),
        ({"from": "2026-12-02", "to": "2026-12-01"}, "to"),
        ({"zone": "Mars/Olympus"}, "zone"),
        ({"what": "everything"}, "what"),
        ({"format": "xls"}, "format"),
    ],
)
def test_bad_input_is_refused_at_its_field_and_changes_nothing(team: Team, params: dict[str, str], field: str) -> None:
    owner = log_in(team.owner)
    if field not in ("what", "format"):
        answer = owner.get(API, params)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
        page = owner.get(PAGE, params)
        assert page.status_code == 400
        assert 'role="alert"' in body(page)
    assert owner.get(f"{API}/export", params).json()["error"]["param"] == field
    assert owner.get(f"{PAGE}overview/export", params).status_code == 400
    assert not AuditEntry.objects.filter(action="usage.exported").exists()


@pytest.mark.usefixtures("noon")
@pytest.mark.parametrize("what", list(Table))
def test_every_table_is_a_file_in_both_forms_with_the_same_rows_and_is_audited(team: Team, what: Table) -> None:
    use(team.tenant, principal_name="=cmd", assistant_id="a1", assistant_name="Ferry, \"desk\"", state="failed",
        error_code="engine_fault")  # fmt: skip
    use(team.tenant, principal=team.key.principal, principal_name="Bot", kind="api")
    roll_up()
    talk(team.member, 500, prompt_version=SystemPrompt.objects.get(tenant=team.tenant).published)
    owner = log_in(team.owner)
    answer = owner.get(f"{PAGE}overview/export", {"what": what, "format": "csv"})
    assert answer["Content-Disposition"] == f'attachment; filename="dashboard-acme-{what}-2026-11-24-2026-11-30.csv"'
    text = body(answer)
    assert text.startswith("\ufeff")
    rows = list(csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline="")))
    told = json.loads(body(owner.get(f"{API}/export", {"what": what, "format": "json"})))
    assert (told["what"], told["columns"]) == (what, list(rows[0]))
    assert len(told["items"]) == len(rows) >= 1
    for row, item in zip(rows, told["items"], strict=True):
        for name, value in item.items():
            written = "" if value is None else str(value)
            assert row[name] == (f"'{written}" if written.startswith("=") else written), name
    assert SECRET not in text + json.dumps(told)
    (by_page, by_api) = AuditEntry.objects.filter(action="usage.exported").order_by("at", "pk")
    assert by_page.object_name == by_api.object_name == f"dashboard {what}"
    assert by_page.details["from"] == "2026-11-24"


# --- what runs now ------------------------------------------------------------------------------------------------


def test_what_runs_now_says_who_waits_and_who_is_answered(
    team: Team, strangers: Team, worker: ScriptedWorker, record: Callable[[], int], server: redis.Redis
) -> None:
    first = ask(access=team.member, text=SECRET)
    worker.begin("One")
    second = ask(access=team.owner, text=SECRET)
    ask(access=strangers.member, text=SECRET)
    found = running.running_now(team.owner)
    assert [(r.id, r.state, r.who, r.kind) for r in found] == [
        (first.pk, "answering", "member@acme.test", "chat"), (second.pk, "waiting", "owner@acme.test", "chat"),
    ]  # fmt: skip
    assert (found[0].assistant, running.count(team.owner)) == ("Assistant", 2)
    owner = log_in(team.owner)
    seen = body(owner.get(f"{PAGE}running", headers=PART))
    assert "Answering" in seen
    assert "Waiting" in seen
    assert 'data-count="2"' in seen
    assert SECRET not in seen
    assert "<html" not in seen, "a part of a page"
    assert owner.get(f"{PAGE}running")["Location"] == PAGE, "which is no page to open"
    assert owner.get("/api/t/acme/running").json()["total"] == 2
    server.flushall()
    assert {r.state for r in running.running_now(team.owner)} == {"waiting"}, "Redis knows of nothing"
    with pytest.raises(Forbidden):
        running.running_now(team.member)


def test_what_has_ended_is_not_looked_through_for_what_runs(team: Team) -> None:
    """Pages look every few seconds, however many answers a team has had."""
    ask(access=team.member, text="Hello")
    if connection.vendor == "sqlite":
        assert "generation_usage (tenant_id=? AND created_at>?)" in running.under_way(team.owner).explain()
    assert running.count(team.owner) == 1
    Reservation.objects.all().delete()
    assert running.count(team.owner) == 0


def test_names_are_for_those_who_may_know_who_uses_what(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(access=team.member, text="Hello")
    only = frozenset({Permission.READ_DASHBOARD})
    monkeypatch.setattr(Access, "permissions", property(lambda self: only))
    (found,) = running.running_now(team.owner)
    assert (found.who, found.principal) == ("", "")
    assert tables.readable(team.owner) == [Table.TIMES, Table.ERRORS]
    with pytest.raises(Forbidden):
        tables.read(team.owner, Table.MEMBERS, week())


def test_an_admin_stops_an_answer_of_anybody_which_ends_it_and_stands_in_the_log(
    team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    generation = ask(access=team.member, text=SECRET)
    taken = worker.begin("One", " two")
    owner = log_in(team.owner)
    page = owner.post(f"{PAGE}running/{generation.pk}/stop", follow=True)
    assert "The answer is being stopped" in body(page)
    assert "Stopping" in body(page)
    assert running.running_now(team.owner)[0].state == "stopping"
    assert "The answer is being stopped" in body(owner.post(f"{PAGE}running/{generation.pk}/stop", follow=True))
    worker.end(taken, Cancelled(seq=3, usage=Usage(prompt_tokens=7, cached_tokens=3, completion_tokens=2)))
    record()
    generation.refresh_from_db()
    assert generation.state == State.CANCELLED
    assert generation.message.text == "One two", "what it has said is kept"
    entry = AuditEntry.objects.get(action="answer.stopped")
    assert (entry.actor_name, entry.object_name, entry.object_id) == (
        "owner@acme.test", "member@acme.test", str(generation.pk),
    )  # fmt: skip
    assert SECRET not in json.dumps(entry.details)
    assert running.running_now(team.owner) == []
    Generation.objects.filter(pk=generation.pk).update(state=State.FINISHED)
    again = owner.post(f"{PAGE}running/{generation.pk}/stop", follow=True)
    assert "had ended already" in body(again)
    told = owner.post(f"{PAGE}running/{generation.pk}/stop", headers=PART)
    assert (told.status_code, body(told)) == (200, "The answer had ended already.")
    assert "had ended already" not in body(owner.get(PAGE)), "it has been said"
    assert AuditEntry.objects.filter(action="answer.stopped").count() == 1


def test_a_key_that_administers_stops_what_waits_and_neither_members_auditors_nor_strangers_do(
    team: Team, strangers: Team
) -> None:
    generation = ask(access=team.member, text="Hello")
    path = f"/api/t/acme/running/{generation.pk}/stop"
    auditor = join(team.tenant, "auditor", Role.AUDITOR)
    for access in (team.member, auditor):
        with pytest.raises(Forbidden):
            running.stop(access=access, answer_id=generation.pk)
    assert "Stop the answer" not in body(log_in(auditor).get(f"{PAGE}running", headers=PART))
    with pytest.raises(NotFound):
        running.stop(access=strangers.owner, answer_id=generation.pk)
    assert running.running_now(team.owner)[0].state == "waiting"
    _, secret = admin_key(team.tenant)
    stopped = Client().post(path, headers={"Authorization": f"Bearer {secret}"})
    assert (stopped.status_code, stopped.json()["status"]) == (200, "cancelled")
    assert AuditEntry.objects.get(action="answer.stopped").actor_kind == "key"


def test_without_redis_what_runs_is_shown_without_its_state_and_cannot_be_stopped(team: Team, settings: Any) -> None:
    generation = ask(access=team.member, text="Hello")
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    owner = log_in(team.owner)
    assert "Under way" in body(owner.get(f"{PAGE}running", headers=PART))
    answer = owner.post(f"/api/t/acme/running/{generation.pk}/stop")
    assert answer.status_code == 503
    told = owner.post(f"{PAGE}running/{generation.pk}/stop", headers=PART)
    assert (told.status_code, body(told)) == (503, "This answer cannot be stopped at the moment. Try again.")
    assert not AuditEntry.objects.filter(action="answer.stopped").exists()
