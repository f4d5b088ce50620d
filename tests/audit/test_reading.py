"""Reading the audit log: filters, the pager, details, exports, on the page and by HTTP."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import Client

from chatapp.audit import details
from chatapp.audit.models import AuditEntry
from chatapp.audit.selectors import Filters, entries
from chatapp.audit.services import Actor, operator, record
from chatapp.audit.source import set_source
from chatapp.errors import BadInput
from chatapp.scope import tenant_scope
from chatapp.tenants.models import Membership
from tests.chat.conftest import Team, server, strangers, team

__all__ = ["server", "strangers", "team"]

PAGE = "/t/acme/admin/audit"
API = "/api/t/acme/audit"
DAY = datetime(2026, 3, 29, tzinfo=UTC)


def log_in(team: Team, who: str = "owner") -> Client:
    client = Client()
    client.force_login(getattr(team, who).user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def bulk(team: Team, count: int, at: datetime = DAY, **fields: Any) -> None:
    AuditEntry.objects.bulk_create(
        AuditEntry(
            **{
                "tenant": team.tenant,
                "at": at,
                "actor_kind": "user",
                "actor_name": "bulk@acme.test",
                "action": "key.created",
                "object_name": f"Key {n}",
                **fields,
            }
        )
        for n in range(count)
    )


def names(filters: Filters) -> list[str]:
    return sorted(entry.object_name for entry in entries(filters).items)


# --- selectors ----------------------------------------------------------------------------------------------------


def test_the_pager_passes_nothing_over_and_repeats_nothing_in_ten_thousand_ties(team: Team) -> None:
    bulk(team, 10_000)
    bulk(team, 50, DAY - timedelta(hours=1))
    seen: list[Any] = []
    cursor = ""
    while True:
        page = entries(Filters(), cursor=cursor, limit=997)
        seen += [(entry.at, entry.pk) for entry in page.items]
        if page.next is None:
            break
        # What is written meanwhile is newer, and moves no page.
        record("key.revoked", actor=team.owner.actor, tenant=team.tenant, name="meanwhile")
        cursor = page.next
    assert len(seen) == len(set(seen)) == 10_050
    assert seen == sorted(seen, reverse=True)


@pytest.mark.parametrize(
    "cursor", ["x", "_", "2026-01-01_1", "2026-01-01T00:00:00+00:00_", "\0_\0", "0001-01-01T00:00:00+14:00_" + "1" * 32]
)
def test_a_cursor_that_was_never_given_out_is_refused(team: Team, cursor: str) -> None:
    with pytest.raises(BadInput) as found:
        entries(Filters(), cursor=cursor)
    assert found.value.param == "cursor"


def test_filters_narrow_by_who_what_which_object_where_and_when(team: Team) -> None:
    set_source("2001:db8::7", "req_1")
    record("key.created", actor=team.owner.actor, tenant=team.tenant, name="Größe")
    set_source("192.0.2.4", "req_2")
    record("member.removed", actor=operator(team.member.user), tenant=team.tenant, on=team.tenant, name="Bob")
    record("oven.heated", actor=Actor("key", "k1", "octv_abcd… (CI)"), tenant=team.tenant, name="Oven")
    set_source(None, "")
    bulk(team, 1, DAY, object_name="Old")
    recent = {"Größe", "Bob", "Oven"}
    for filters, expected in (
        (Filters(), recent | {"Old"}),
        (Filters(actor="OWNER@"), {"Größe"}),
        (Filters(actor="k1"), {"Oven"}),
        (Filters(actor_kind="operator"), {"Bob"}),
        (Filters(action="key.created"), {"Größe", "Old"}),
        (Filters(action="member."), {"Bob"}),
        (Filters(object="GRÖSSE".replace("SS", "ß")), {"Größe"}),
        (Filters(object=str(team.tenant.pk)), {"Bob"}),
        (Filters(address="2001:0db8:0::7"), {"Größe"}),
        (Filters(address="192.0.2."), {"Bob", "Oven"}),
        (Filters(since=DAY, until=DAY + timedelta(seconds=1)), {"Old"}),
        (Filters(since=DAY + timedelta(microseconds=1)), recent),
        (Filters(until=DAY), set()),
        (Filters(text="grö"), {"Größe"}),
        (Filters(text="removed a member"), {"Bob"}),
        (Filters(text="oven.heat"), {"Oven"}),
        (Filters(text="(ci)"), {"Oven"}),
        (Filters(text="100%"), set()),
        (Filters(text="bob", actor_kind="key"), set()),
    ):
        assert set(names(filters)) == expected, filters


@pytest.mark.parametrize(
    ("filters", "param"),
    [
        (Filters(actor_kind="ghost"), "actor_kind"),
        (Filters(text="a\0b"), "text"),
        (Filters(since=datetime(2026, 1, 1)), "since"),
        (Filters(until=datetime(2026, 1, 1)), "until"),
        (Filters(since=datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))), "since"),
    ],
)
def test_filters_that_are_none_are_told_with_their_field(team: Team, filters: Filters, param: str) -> None:
    with pytest.raises(BadInput) as found:
        entries(filters)
    assert found.value.param == param


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"role": ["member", "admin"]}, "role: member → admin"),
        ({"expires": [None, "2030"]}, "expires: none → 2030"),
        ({"allowed_networks": ["10.0.0.0/8", ""]}, "allowed networks: 10.0.0.0/8 → none"),
        ({"suspended": [False, True]}, "suspended: no → yes"),
        ({"reason": "a ticket", "minutes": 15}, "reason: a ticket; minutes: 15"),
        ({"roles": {"a": "owner", "b": ["x", "y", "z"]}}, "roles: a owner, b x, y, z"),
        ({"count": 0, "list": [1, 2, 3]}, "count: 0; list: 1, 2, 3"),
        ({"until": "2026-11-30T01:44:29+00:00"}, "until: 2026-11-30 01:44 UTC"),
        ({}, ""),
        ({"long": "x" * 500}, "long: " + "x" * 399 + "…"),
    ],
)
def test_details_read_as_sentences(given: dict[str, Any], said: str) -> None:
    assert details.text(given) == said


# --- page and API -------------------------------------------------------------------------------------------------


def test_the_page_shows_words_details_and_who_it_was(team: Team) -> None:
    record(
        "member.role_changed", actor=team.owner.actor, tenant=team.tenant, name="<b>Bob", details={"role": ["a", "b"]}
    )
    record("oven.pre_heated", actor=team.key.actor, tenant=team.tenant, name="x")
    page = log_in(team).get(PAGE).content.decode()
    for words in ("Changed a member&#x27;s role", "role: a → b", "&lt;b&gt;Bob", "Oven: pre heated", "API key"):
        assert words in page, words
    assert "<b>Bob" not in page


def test_days_are_days_where_the_reader_is(team: Team) -> None:
    bulk(team, 1, datetime(2026, 3, 28, 23, 30, tzinfo=UTC), object_name="Late")
    bulk(team, 1, datetime(2026, 3, 29, 22, 30, tzinfo=UTC), object_name="Next")
    owner = log_in(team)
    owner.cookies["zone"] = "Europe/Berlin"  # the 29th had 23 hours there: its clocks went forward
    page = owner.get(f"{PAGE}?since=2026-03-29&until=2026-03-29").content.decode()
    assert "Late" in page
    assert "Next" not in page
    assert "Days are days in Europe/Berlin" in page
    owner.cookies["zone"] = ""
    page = owner.get(f"{PAGE}?since=2026-03-29&until=2026-03-29").content.decode()
    assert "Next" in page
    assert "Late" not in page


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("since=tomorrow", "valid date"),
        ("since=2026-02-02&until=2026-02-01", "before the first"),
        ("actor_kind=ghost", "not one of the available"),
        ("action=no.such", "not one of the available"),
        ("q=" + "x" * 201, "at most 200"),
        ("cursor=x", "none that was given out"),
        ("q=a%00b", "Null characters"),
    ],
)
def test_bad_filters_are_told_beside_their_field(team: Team, query: str, words: str) -> None:
    record("team.renamed", actor=team.owner.actor, tenant=team.tenant, name="x")
    for path in (PAGE, f"{PAGE}/export"):
        if "cursor" in query and "export" in path:
            continue
        answer = log_in(team).get(f"{path}?{query}")
        assert answer.status_code == 400, path
        assert words in answer.content.decode()
    assert not AuditEntry.objects.filter(action="audit.exported").exists()


def test_the_pager_of_the_page_keeps_the_filters(team: Team) -> None:
    bulk(team, 120)
    owner = log_in(team)
    path, seen = f"{PAGE}?action=key.created&q=Key", 0
    for rows in (50, 50, 20):
        page = owner.get(path).content.decode()
        assert page.count("bulk@acme.test") == rows
        seen += rows
        older = re.search(r'href="(\?[^"]+)">Older', page)
        path = PAGE + older[1].replace("&amp;", "&") if older else ""
    assert not path
    assert "Nothing in the log is like that" in owner.get(f"{PAGE}?q=nobody").content.decode()


def test_by_http_the_log_is_filtered_and_paged(team: Team) -> None:
    bulk(team, 230)
    record("member.left", actor=team.owner.actor, tenant=team.tenant, name="x", details={"role": ["member", None]})
    owner = log_in(team)
    (item,) = owner.get(f"{API}?action=member.&since=2026-04-01T00:00:00Z").json()["items"]
    assert (item["title"], item["details"]) == ("Left the team", {"role": ["member", None]})
    seen, cursor = [], ""
    while True:
        answer = owner.get(API, {"action": "key.", "cursor": cursor}).json()
        seen += [item["id"] for item in answer["items"]]
        cursor = answer["next"]
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 230
    for query, param in (
        ("cursor=x", "cursor"),
        ("since=never", "since"),
        ("since=2026-01-01T00:00:00", "since"),
        ("actor_kind=ghost", "actor_kind"),
        ("text=%00", "text"),
    ):
        answer = owner.get(f"{API}?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), query
    for query, param in (("format=xml", "format"), ("until=2026-01-01", "until"), ("since=2026-01-01", "since")):
        bad = owner.get(f"{API}/export?{query}")
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, param)


async def body(response: Any) -> bytes:
    return b"".join([part async for part in response.streaming_content])


def exported(team: Team, path: str) -> Any:
    response = log_in(team).get(path)
    assert response.status_code == 200
    return response, async_to_sync(body)(response).decode()


def test_the_whole_log_comes_as_csv_and_spreadsheets_take_nothing_for_a_formula(team: Team) -> None:
    bulk(team, 1_203)
    record("key.created", actor=Actor("user", "1", "=cmd|' /C calc'!A0"), tenant=team.tenant, name='+1,"2\n3')
    response, text = exported(team, f"{PAGE}/export?format=csv")
    assert response["Content-Type"].startswith("text/csv")
    assert re.search(r'filename="acme-audit-\d{4}-\d\d-\d\d\.csv"', response["Content-Disposition"])
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert len({row["id"] for row in rows}) == len(rows) == 1_204
    assert (rows[0]["actor_name"], rows[0]["object_name"]) == ("'=cmd|' /C calc'!A0", "'+1,\"2\n3")
    assert rows[0]["title"] == "Created an API key"
    entry = AuditEntry.objects.get(action="audit.exported")
    assert entry.details == {"format": "csv"}
    assert entry.actor_name == "owner@acme.test"


def test_a_filtered_export_as_json_holds_what_the_page_shows(team: Team, strangers: Team) -> None:
    bulk(team, 600)
    bulk(strangers, 5, object_name="Foreign")
    record("member.left", actor=team.owner.actor, tenant=team.tenant, name="Ünïcode 🔑")
    response, text = exported(team, f"{API}/export?format=json&action=member.")
    assert response["Content-Type"] == "application/json"
    (item,) = json.loads(text)
    assert item["object_name"] == "Ünïcode 🔑"
    _, everything = exported(team, f"{API}/export?format=json")
    assert len(json.loads(everything)) == 602, "its own first export is in it, the strangers' entries are not"
    assert "Foreign" not in everything
    _, none = exported(team, f"{API}/export?format=json&text=nobody")
    assert json.loads(none) == []
    made = AuditEntry.objects.filter(action="audit.exported").order_by("at", "id")
    assert [entry.details for entry in made] == [
        {"format": "json", "action": "member."},
        {"format": "json"},
        {"format": "json", "text": "nobody"},
    ]


def test_an_auditor_reads_and_exports_and_a_member_does_neither(team: Team) -> None:
    client = log_in(team, "member")
    for path in (PAGE, f"{PAGE}/export", API, f"{API}/export"):
        assert client.get(path).status_code == 403, path
    Membership.objects.filter(user=team.member.user).update(role="auditor")
    assert client.get(PAGE).status_code == 200
    assert client.get(API).status_code == 200
    assert not AuditEntry.objects.filter(action="audit.exported").exists()


def test_a_team_reads_its_own_log_alone(team: Team, strangers: Team) -> None:
    record("key.created", actor=strangers.owner.actor, tenant=strangers.tenant, name="Foreign")
    record("plan.created", actor=strangers.owner.actor, tenant=None, name="Platform")
    with tenant_scope(team.tenant):
        assert entries(Filters()).items == []
    page = log_in(team).get(PAGE).content.decode()
    assert "Foreign" not in page
    assert "Nothing has happened yet" in page


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Etc/GMT+12", "UTC", "../x", "Europe", "\0", "Nowhere/City"])
def test_the_first_and_the_last_day_of_all_time_can_be_asked_for_in_every_zone(team: Team, zone: str) -> None:
    record("team.renamed", actor=team.owner.actor, tenant=team.tenant, name="Here")
    owner = log_in(team)
    owner.cookies["zone"] = zone
    page = owner.get(f"{PAGE}?since=0001-01-01&until=9999-12-31")
    assert page.status_code == 200
    assert "Here" in page.content.decode()
