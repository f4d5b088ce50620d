"""Exports: whole, streamed, safe in a spreadsheet, one tenant's alone, and in the audit log."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp.audit.models import AuditEntry
from chatapp.errors import Forbidden
from chatapp.sheets import FORMULA
from chatapp.usage import export
from chatapp.usage.export import COLUMNS, Format, What
from chatapp.usage.models import UsageRow
from chatapp.usage.periods import Period
from chatapp.usage.rollup import roll_up
from chatapp.usage.services import record_all
from tests.chat.conftest import Team
from tests.usage.conftest import NOON, ended, use

PERIOD = Period("custom", ZoneInfo("UTC"), date(2026, 11, 30), date(2026, 11, 30))
EVIL = '=HYPERLINK("http://x.test","Ünïcode 😀, \'quoted\'")'


def parts(team: Team, what: What = What.ROWS, form: Format = Format.CSV, **more: Any) -> Iterator[str]:
    wanted = {"period": PERIOD, "filters": {}, **more}
    return export.export(access=team.owner, what=what, form=form, **wanted)


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_rows_come_whole_with_the_header_that_is_documented(team: Team) -> None:
    key = use(team.tenant, principal_name="Müller, Ann")
    text = "".join(parts(team))
    assert text.splitlines()[0] == ",".join(COLUMNS[What.ROWS])
    (row,) = read(text)
    assert row["generation_id"] == str(key)
    assert row["at"] == "2026-11-30T12:00:00Z"
    assert row["principal_name"] == "Müller, Ann"
    assert (row["queue_s"], row["first_token_s"], row["total_s"]) == ("0.1", "0.4", "3.0")
    (item,) = json.loads("".join(parts(team, form=Format.JSON)))["items"]
    assert {name: "" if value is None else str(value) for name, value in item.items()} == row


def test_every_column_is_documented() -> None:
    from tests.conftest import ROOT

    text = (ROOT / "docs" / "usage.md").read_text()
    for columns in COLUMNS.values():
        for name in columns:
            assert f"`{name}`" in text, name


@pytest.mark.parametrize("what", [What.HOURS, What.DAYS])
def test_roll_ups_come_with_sums_and_percentiles(team: Team, what: What) -> None:
    for minute in (0, 1):
        use(team.tenant, NOON + timedelta(minutes=minute))
    roll_up()
    (item,) = json.loads("".join(parts(team, what, Format.JSON)))["items"]
    assert (item["requests"], item["prompt_tokens"], item["decode_s"]) == (2, 200, 4.0)
    assert item["first_token_p50_s"] == pytest.approx(0.4, rel=0.1)
    assert item["between_tokens_p95_s"] == pytest.approx(0.1, rel=0.1)


def test_no_name_is_a_formula_to_a_spreadsheet(team: Team) -> None:
    use(team.tenant, principal_name=EVIL, model="-1+1|calc")
    (row,) = read("".join(parts(team)))
    assert row["principal_name"] == "'" + EVIL
    assert row["model"] == "'-1+1|calc"
    (item,) = json.loads("".join(parts(team, form=Format.JSON)))["items"]
    assert item["principal_name"] == EVIL


@given(st.text(max_size=40))
def test_whatever_a_name_is_csv_gives_it_back_and_begins_no_formula(name: str) -> None:
    out = "".join(export.csv_parts({"name": lambda row: row}, iter([[name]]), ""))
    header, *rows = list(csv.reader(io.StringIO(out, newline="")))
    assert header == ["name"]
    (cell,) = rows[0] if rows and rows[0] else ("",)
    assert cell.removeprefix("'") == name.removeprefix("'")
    assert not cell.startswith(FORMULA)


def test_spreadsheets_are_told_the_encoding_and_programs_are_not_bothered(team: Team) -> None:
    assert "".join(parts(team, bom=True)).startswith("\ufeffgeneration_id")
    assert "".join(parts(team)).startswith("generation_id")
    assert not "".join(parts(team, form=Format.JSON, bom=True)).startswith("\ufeff")


def test_of_nothing_there_is_a_header_and_an_empty_list(team: Team) -> None:
    assert read("".join(parts(team))) == []
    assert json.loads("".join(parts(team, form=Format.JSON)))["items"] == []


def test_many_rows_come_in_pages_each_once_and_in_order(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where many have the very same time."""
    monkeypatch.setattr(export, "PAGE", 7)
    record_all(ended=[ended(team.tenant, NOON + timedelta(seconds=n // 20)) for n in range(100)])
    rows = read("".join(parts(team)))
    assert len({row["generation_id"] for row in rows}) == len(rows) == 100
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    assert len(list(parts(team))) == 16


def test_a_page_is_all_that_is_read_ahead(team: Team, django_assert_num_queries: Any) -> None:
    record_all(ended=[ended(team.tenant) for _ in range(2 * export.PAGE + 1)])
    sent = parts(team)
    with django_assert_num_queries(1):
        next(sent)
    with django_assert_num_queries(1):
        next(sent)


def test_filters_and_the_period_hold_for_exports_and_strangers_rows_never_come(team: Team, strangers: Team) -> None:
    """P11."""
    use(strangers.tenant, principal_name="theirs")
    use(team.tenant, NOON - timedelta(days=1))
    use(team.tenant, datetime(2026, 12, 1, tzinfo=UTC))
    use(team.tenant, principal="key:k", principal_name="robot")
    use(team.tenant)
    assert len(read("".join(parts(team)))) == 2
    (row,) = read("".join(parts(team, filters={"principal": "key:k"})))
    assert row["principal_name"] == "robot"
    assert UsageRow.objects.count() == 5


def test_an_export_is_in_the_audit_log_before_its_first_part(team: Team) -> None:
    parts(team, filters={"model": "smol"})
    entry = AuditEntry.objects.get(action="usage.exported")
    assert (entry.tenant, entry.actor_name) == (team.tenant, "owner@acme.test")
    assert entry.details == {
        "what": "rows", "format": "csv", "from": "2026-11-30", "to": "2026-11-30", "zone": "UTC", "model": "smol",
    }  # fmt: skip


def test_a_member_exports_nothing(team: Team) -> None:
    with pytest.raises(Forbidden):
        export.export(access=team.member, period=PERIOD, filters={}, what=What.ROWS, form=Format.CSV)
    assert not AuditEntry.objects.filter(action="usage.exported").exists()
