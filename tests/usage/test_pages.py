"""The pages and the HTTP API of usage: who sees what, in whose days, and what bad input gets."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.test import AsyncRequestFactory, Client

from chatapp.accounts.models import User
from chatapp.audit.models import AuditEntry
from chatapp.chat.services import ask
from chatapp.downloads import download
from chatapp.tenants.models import Role
from chatapp.tenants.permissions import KeyScope
from chatapp.tenants.services import add_member, create_api_key
from chatapp.usage.rollup import roll_up
from chatapp.usage.services import record_all
from tests.api.test_product_api import log_in, refusal
from tests.chat.conftest import Team
from tests.usage.conftest import NOON, ended, use

ADMIN = "/t/acme/admin/"
USAGE = "/t/acme/admin/usage"
API = "/api/t/acme/usage"


@pytest.fixture(autouse=True)
def _now() -> Any:
    with time_machine.travel(datetime(2026, 11, 30, 23, 30, tzinfo=UTC), tick=False):
        yield


def body(response: Any) -> str:
    if getattr(response, "streaming", False):
        return b"".join(response.streaming_content).decode()
    return response.content.decode()


def test_without_any_use_the_pages_say_what_will_be_there(team: Team) -> None:
    owner = log_in(team)
    assert "Nothing was used in this period" in body(owner.get(USAGE))
    assert "Nothing was used in this period" in body(owner.get(ADMIN))
    assert "You have used nothing" in body(owner.get("/t/acme/usage"))


def test_the_page_shows_a_periods_sums_and_whose_they_are(team: Team, strangers: Team) -> None:
    use(team.tenant, prompt_tokens=1_234_567, principal_name="Ann <b>Ünï</b>")
    use(team.tenant, NOON - timedelta(days=8), prompt_tokens=777_777)
    use(strangers.tenant, prompt_tokens=999_999)
    roll_up()
    owner = log_in(team)
    seen = body(owner.get(USAGE + "?group=member"))
    assert "1,234,567" in seen
    assert "Ann &lt;b&gt;Ünï&lt;/b&gt;" in seen
    assert "777,777" not in seen
    assert "999,999" not in seen
    assert "777,777" in body(owner.get(USAGE + "?period=30d&group=day"))
    for group in ("day", "key", "assistant", "model"):
        assert owner.get(USAGE, {"group": group}).status_code == 200
    assert "style=" not in seen


def charted(page: str) -> dict[str, Any]:
    found = re.search(r'<script id="chart" type="application/json">(.*?)</script>', page)
    assert found is not None
    return json.loads(found[1])


def test_charts_have_a_slot_for_each_day_also_where_clocks_change_and_for_each_hour_of_one(team: Team) -> None:
    """Berlin turned its clocks back on 25 October 2026: that day has 25 hours."""
    use(team.tenant, datetime(2026, 10, 25, 0, 30, tzinfo=UTC), timing={})
    use(team.tenant, datetime(2026, 10, 25, 1, 30, tzinfo=UTC), state="refused", prompt_tokens=0, cached_tokens=0)
    roll_up()
    owner = log_in(team)
    owner.cookies["zone"] = "Europe/Berlin"
    days = charted(body(owner.get(USAGE, {"from": "2026-10-24", "to": "2026-10-26"})))
    assert days["days"] == ["2026-10-24", "2026-10-25", "2026-10-26"]
    assert [b - a for a, b in itertools.pairwise(days["times"])] == [24 * 3600, 25 * 3600]
    assert (days["finished"], days["refused"], days["uncached"], days["cached"]) == (
        [0, 1, 0], [0, 1, 0], [0, 40, 0], [0, 60, 0],
    )  # fmt: skip
    assert days["first_token_p50"][0] is None
    one = body(owner.get(USAGE, {"from": "2026-10-25", "to": "2026-10-25"}))
    hours = charted(one)
    assert len(hours["times"]) == 25
    assert {b - a for a, b in itertools.pairwise(hours["times"])} == {3600}
    assert (hours["finished"][2], hours["refused"][3], hours["days"]) == (1, 1, [])
    assert one.count('<th scope="row">02:00</th>') == 2, "without scripts the same figures are a table"


def test_days_are_the_readers_by_cookie_and_by_address(team: Team) -> None:
    """At 23:30 UTC it is tomorrow in Berlin and still this afternoon in Los Angeles."""
    use(team.tenant, datetime(2026, 11, 30, 12, tzinfo=UTC), prompt_tokens=111_111)
    use(team.tenant, datetime(2026, 11, 30, 23, 10, tzinfo=UTC), prompt_tokens=222_222)
    roll_up()
    owner = log_in(team)

    def today(**params: str) -> str:
        return body(owner.get(USAGE, {"period": "today", **params}))

    assert "333,333" in today()
    owner.cookies["zone"] = "Europe/Berlin"
    assert "222,222" in today()
    assert "333,333" not in today()
    assert "333,333" in today(zone="America/Los_Angeles"), "the address comes before the cookie"
    owner.cookies["zone"] = "Asia/Kolkata"
    assert "days begin at 00:30 here" in today()
    owner.cookies["zone"] = "../../etc/passwd"
    assert "Days are those of UTC" in today()


def test_a_name_leads_to_its_own_days_and_back(team: Team) -> None:
    use(team.tenant, principal="key:k", principal_name="robot", prompt_tokens=5)
    use(team.tenant, prompt_tokens=444_444)
    roll_up()
    owner = log_in(team)
    assert "principal=key%3Ak" in body(owner.get(USAGE + "?group=key"))
    narrowed = body(owner.get(USAGE + "?principal=key:k"))
    assert "Only robot" in narrowed
    assert "444,444" not in narrowed
    assert "Only Without an assistant" in body(owner.get(USAGE + "?assistant=none"))


@pytest.mark.long
def test_ten_thousand_members_come_in_pages(team: Team) -> None:
    record_all(
        ended=[
            ended(team.tenant, principal=f"user:{n}", principal_name=f"member-{n:05}", prompt_tokens=20_000 - n)
            for n in range(10_000)
        ]
    )
    roll_up()
    owner = log_in(team)
    first = body(owner.get(USAGE + "?group=member"))
    assert "member-00000" in first
    assert "member-00050" not in first
    assert "Page 1 of 200" in first
    last = body(owner.get(USAGE + "?group=member&page=200"))
    assert "member-09999" in last
    assert "Page 200 of 200" in body(owner.get(USAGE + "?group=member&page=9999"))


def test_who_may_read_usage(team: Team, strangers: Team) -> None:
    for address in (USAGE, USAGE + "/export"):
        assert log_in(team, "member").get(address).status_code == 403
        assert log_in(strangers).get(address).status_code == 404
        assert Client().get(address).status_code == 302
    auditor = User.objects.create_user("auditor@acme.test", "a password")
    add_member(tenant=team.tenant, user=auditor, role=Role.AUDITOR)
    client = Client()
    client.force_login(auditor, backend="django.contrib.auth.backends.ModelBackend")
    assert client.get(USAGE).status_code == 200
    assert client.get(ADMIN).status_code == 200


def test_everybody_sees_the_own_figures_and_no_others(team: Team) -> None:
    use(team.tenant, principal=team.member.principal, prompt_tokens=121_212)
    use(team.tenant, principal=team.owner.principal, prompt_tokens=343_434)
    roll_up()
    mine = body(log_in(team, "member").get("/t/acme/usage", {"principal": team.owner.principal}))
    assert "121,212" in mine
    assert "343,434" not in mine
    assert "464,646" not in mine


def test_the_overview_counts_people_answers_and_tokens(team: Team) -> None:
    use(team.tenant, prompt_tokens=1000, output_tokens=24)
    roll_up()
    ask(access=team.member, text="Still waiting")
    seen = " ".join(body(log_in(team).get(ADMIN)).split())
    assert 'href="/t/acme/admin/members">2</a>' in seen
    assert '<dt>Answers running</dt><dd id="running-count">1</dd>' in seen
    assert seen.count(">1,024</a>") == 2


def test_a_role_without_the_overview_lands_where_it_may(team: Team) -> None:
    assert log_in(team, "member").get(ADMIN).status_code == 403


BAD = [
    ({"period": "century"}, "period"),
    ({"from": "2026-11-31", "to": "2026-12-01"}, "from"),
    ({"from": "2026-12-02", "to": "2026-12-01"}, "to"),
    ({"zone": "Mars/Olympus"}, "zone"),
    ({"kind": "smoke"}, "kind"),
    ({"principal": "root"}, "principal"),
    ({"model": "x" * 300}, "model"),
    ({"model": "a\0b"}, "model"),
]


@pytest.mark.parametrize(
    ("params", "field"), [*BAD, ({"page": "0"}, "page"), ({"page": "x"}, "page"), ({"group": "x"}, "group")]
)
def test_the_page_refuses_bad_input_and_keeps_what_was_typed(team: Team, params: dict[str, str], field: str) -> None:
    answer = log_in(team).get(USAGE, params)
    assert answer.status_code == 400
    seen = body(answer)
    assert 'role="alert"' in seen
    if field in ("from", "to"):
        assert f'id="{field}_error"' in seen
        assert params["from"] in seen


@pytest.mark.parametrize(
    ("params", "field"),
    [*BAD, ({"group_by": "shoe"}, "group_by"), ({"cursor": "?"}, "cursor"), ({"limit": "0"}, "limit")],
)
def test_the_api_refuses_bad_input_at_its_field(team: Team, params: dict[str, str], field: str) -> None:
    answer = log_in(team).get(API, params)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


@pytest.mark.parametrize(("params", "field"), [({"what": "all"}, "what"), ({"format": "xls"}, "format"), BAD[0]])
def test_an_export_of_what_is_not_there_is_refused(team: Team, params: dict[str, str], field: str) -> None:
    owner = log_in(team)
    assert owner.get(API + "/export", params).json()["error"]["param"] == field
    assert owner.get(USAGE + "/export", params).status_code == 400
    assert not AuditEntry.objects.filter(action="usage.exported").exists()


def test_the_api_gives_sums_and_groups_page_by_page(team: Team) -> None:
    for n in range(5):
        use(team.tenant, principal=f"user:{n}", principal_name=f"p{n}", prompt_tokens=100 - n, output_tokens=0)
    roll_up()
    owner = log_in(team)
    answer = owner.get(API, {"group_by": "member", "limit": 2}).json()
    assert (answer["total"]["requests"], answer["total"]["tokens"]) == (5, 490)
    assert (answer["start"], answer["end"]) == ("2026-11-24T00:00:00Z", "2026-12-01T00:00:00Z")
    names = []
    cursor: str | None = ""
    while cursor is not None:
        answer = owner.get(API, {"group_by": "member", "limit": 2, "cursor": cursor}).json()
        names += [item["name"] for item in answer["items"]]
        cursor = answer["next"]
    assert names == ["p0", "p1", "p2", "p3", "p4"]


def test_a_key_reads_usage_with_its_scope_alone(team: Team, strangers: Team) -> None:
    bearer = {"Authorization": f"Bearer {team.secret}"}
    assert refusal(Client().get(API, headers=bearer)) == (403, "not_allowed")
    _, secret = create_api_key(tenant=team.tenant, name="reader", scopes=[KeyScope.USAGE])
    bearer = {"Authorization": f"Bearer {secret}"}
    assert Client().get(API, headers=bearer).status_code == 200
    assert Client().get(API + "/export", headers=bearer).status_code == 200
    assert Client().get("/api/t/other/usage", headers=bearer).status_code == 404
    assert AuditEntry.objects.get(action="usage.exported").actor_kind == "key"


def test_a_download_is_a_file_of_the_period_and_is_audited(team: Team) -> None:
    use(team.tenant)
    use(team.tenant, NOON - timedelta(days=20))
    owner = log_in(team)
    answer = owner.get(USAGE + "/export", {"period": "today", "what": "rows", "format": "csv"})
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert answer["Content-Disposition"] == 'attachment; filename="usage-acme-rows-2026-11-30-2026-11-30.csv"'
    text = body(answer)
    assert text.startswith("\ufeffgeneration_id,")
    assert text.count("\r\n") == 2
    answer = owner.get(API + "/export", {"period": "30d", "format": "json"})
    assert len(json.loads(body(answer))["items"]) == 2
    assert AuditEntry.objects.filter(action="usage.exported").count() == 2
    assert owner.head(USAGE + "/export").status_code == 405


async def test_under_asgi_a_download_is_made_part_by_part_while_it_is_sent() -> None:
    made: list[str] = []

    def parts() -> Iterator[str]:
        for part in ("a", "", "b"):
            made.append(part)
            yield part

    answer = download(AsyncRequestFactory().get("/"), parts(), "usage.csv")
    assert answer.is_async
    sent = aiter(answer)
    assert (await anext(sent), made) == (b"a", ["a"])
    assert (await anext(sent), made) == (b"b", ["a", "", "b"])
    with pytest.raises(StopAsyncIteration):
        await anext(sent)
