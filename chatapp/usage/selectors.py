"""What can be read of usage. Figures come from roll-ups only; `tokens_of` and exports of rows read the rows.

Every reader runs in the tenant's scope and takes its id too. A period's hours are those that begin in it; whole UTC
days among them are read from the days' roll-ups, the edges from the hours'.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.db.models import Count, Max, QuerySet, Sum

from chatapp.errors import BadInput
from chatapp.usage import histogram
from chatapp.usage.histogram import Histogram
from chatapp.usage.models import Kind, UsageDay, UsageHour, UsageRow, UsageTotal
from chatapp.usage.periods import Period
from chatapp.usage.rollup import DAY, SUMS, day_of, hour_of


class GroupBy(StrEnum):
    DAY = "day"
    HOUR = "hour"
    MEMBER = "member"
    KEY = "key"
    ASSISTANT = "assistant"
    MODEL = "model"
    KIND = "kind"


# The columns of a group's id and of its name.
_COLUMNS = {
    GroupBy.MEMBER: ("principal", "principal_name"),
    GroupBy.KEY: ("principal", "principal_name"),
    GroupBy.ASSISTANT: ("assistant_id", "assistant_name"),
    GroupBy.MODEL: ("model", "model"),
    GroupBy.KIND: ("kind", "kind"),
}
_OF_PRINCIPALS = {GroupBy.MEMBER: "user:", GroupBy.KEY: "key:"}
FAILURES = ("refused", "failed", "timeout", "interrupted")
FILTERS = ("principal", "assistant_id", "model", "kind")


@dataclass
class Figures:
    """Sums of a group. `id` is what a filter takes, `name` what people read."""

    id: str = ""
    name: str = ""
    requests: int = 0
    finished: int = 0
    cancelled: int = 0
    refused: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    queue_us: int = 0
    prefill_us: int = 0
    decode_us: int = 0
    first_token: Histogram = field(default_factory=dict)
    between_tokens: Histogram = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Prompt and output: what budgets count."""
        return self.prompt_tokens + self.output_tokens

    @property
    def cached_share(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def first_token_s(self, share: float) -> float | None:
        return histogram.percentile_s(self.first_token, share)

    def between_tokens_s(self, share: float) -> float | None:
        return histogram.percentile_s(self.between_tokens, share)

    def add(self, values: Mapping[str, Any]) -> None:
        for name in SUMS:
            setattr(self, name, getattr(self, name) + (values[name] or 0))


@dataclass(frozen=True)
class Tokens:
    prompt: int
    cached: int
    output: int

    @property
    def total(self) -> int:
        return self.prompt + self.output


def tokens_of(tenant_id: uuid.UUID, start: datetime, end: datetime, *, principal: str | None = None) -> Tokens:
    """From the rows themselves: what was asked for from `start` to before `end`. What budgets are reconciled with.

    Hours whose rows retention has deleted are missing: ask for periods that are not older than that.
    """
    rows = UsageRow.objects.filter(tenant_id=tenant_id, at__gte=start, at__lt=end)
    if principal is not None:
        rows = rows.filter(principal=principal)
    sums = rows.aggregate(*(Sum(name) for name in ("prompt_tokens", "cached_tokens", "output_tokens")))
    return Tokens(*(sums[f"{name}__sum"] or 0 for name in ("prompt_tokens", "cached_tokens", "output_tokens")))


def rows_before(tenant_id: uuid.UUID, before: datetime) -> int:
    """How many rows services.delete_rows_before would delete, once all of them are rolled up."""
    return UsageRow.objects.filter(tenant_id=tenant_id, at__lt=hour_of(before)).count()


@dataclass(frozen=True)
class Failure:
    """How often answers ended so, and when the last of them was asked for."""

    state: str
    error_code: str
    answers: int
    last_at: datetime


def failures(tenant_id: uuid.UUID, period: Period) -> list[Failure]:
    """From the rows: what was refused, failed, timed out or was interrupted, by its code, most first. Without what
    retention has deleted."""
    rows = UsageRow.objects.filter(tenant_id=tenant_id, at__gte=period.start, at__lt=period.end, state__in=FAILURES)
    counted = rows.order_by().values("state", "error_code").annotate(answers=Count("pk"), last_at=Max("at"))
    return [Failure(**row) for row in counted.order_by("-answers", "state", "error_code")]


def filters_of(params: Mapping[str, str | None]) -> dict[str, str]:
    """`principal` ("user:…" or "key:…"), `assistant`, `model`, `kind`; "none" is the assistant of calls without one."""
    given = {name: value for name in ("principal", "assistant", "model", "kind") if (value := params.get(name))}
    for name, value in given.items():
        if len(value) > 200 or not value.isprintable():
            raise BadInput(f"{name} is no name that usage knows.", param=name)
    if "kind" in given and given["kind"] not in Kind.values:
        raise BadInput(f"kind must be one of {', '.join(Kind.values)}.", param="kind")
    if "principal" in given and not given["principal"].startswith(("user:", "key:")):
        raise BadInput("principal reads user:<id> or key:<id>.", param="principal")
    if "assistant" in given:
        assistant = given.pop("assistant")
        given["assistant_id"] = "" if assistant == "none" else assistant
    return given


def group_of(text: str | None, default: GroupBy = GroupBy.DAY) -> GroupBy:
    try:
        return GroupBy(text) if text else default
    except ValueError:
        raise BadInput(f"group_by must be one of {', '.join(GroupBy)}.", param="group_by") from None


def slots_of(period: Period) -> GroupBy:
    """How fine a period is shown: one day by its hours."""
    return GroupBy.HOUR if len(period.days) == 1 else GroupBy.DAY


def total(tenant_id: uuid.UUID, period: Period, filters: Mapping[str, str] | None = None) -> Figures:
    figures = Figures()
    parts = _parts(tenant_id, period, filters) if filters else [_hours(tenant_id, period, {})]
    for part in parts:
        figures.add(part.aggregate(**{name: Sum(name) for name in SUMS}))
        for first, between in part.values_list("first_token", "between_tokens").iterator(chunk_size=2000):
            histogram.merge(figures.first_token, first)
            histogram.merge(figures.between_tokens, between)
    return figures


def grouped(
    tenant_id: uuid.UUID,
    period: Period,
    by: GroupBy,
    filters: Mapping[str, str] | None = None,
    *,
    percentiles: bool = True,
) -> list[Figures]:
    """Times in their order, those without use too; everything else by tokens, most first. Without `percentiles` no
    histogram is read, which is most of the work where there are many people."""
    if by in (GroupBy.DAY, GroupBy.HOUR):
        return _by_time(tenant_id, period, by, filters or {})
    column, named = _COLUMNS[by]
    groups: dict[str, Figures] = {}
    seen: dict[str, datetime] = {}
    for part in _parts(tenant_id, period, filters or {}):
        if by in _OF_PRINCIPALS:
            part = part.filter(principal__startswith=_OF_PRINCIPALS[by])
        sums = part.values(column, named).annotate(latest=Max("at"), **{name: Sum(name) for name in SUMS})
        for values in sums.order_by(column):
            group = groups.setdefault(values[column], Figures(id=values[column]))
            group.add(values)
            if values[column] not in seen or values["latest"] >= seen[values[column]]:
                group.name, seen[values[column]] = values[named], values["latest"]
        if percentiles:
            _histograms(part, column, groups, str)
    return sorted(groups.values(), key=lambda group: (-group.tokens, -group.requests, group.name, group.id))


def _by_time(tenant_id: uuid.UUID, period: Period, by: GroupBy, filters: Mapping[str, str]) -> list[Figures]:
    def day(hour: datetime) -> str:
        return hour.astimezone(period.zone).date().isoformat()

    def hour_name(hour: datetime) -> str:
        return hour.astimezone(period.zone).isoformat(timespec="minutes")

    if by is GroupBy.DAY:
        name: Callable[[datetime], str] = day
        groups = {str(each): Figures(id=str(each), name=str(each)) for each in period.days}
    else:
        name = hour_name
        groups = {hour_name(each): Figures(id=hour_name(each), name=hour_name(each)) for each in period.hours}
    hours = _hours(tenant_id, period, filters)
    for values in hours.values("at").annotate(**{each: Sum(each) for each in SUMS}).order_by("at"):
        groups[name(values["at"])].add(values)
    _histograms(hours, "at", groups, name)
    return list(groups.values())


def _histograms(part: QuerySet[Any], column: str, groups: Mapping[str, Figures], name: Callable[[Any], str]) -> None:
    names: dict[Any, Figures] = {}
    for value, first, between in part.values_list(column, "first_token", "between_tokens").iterator(chunk_size=2000):
        group = names.get(value)
        if group is None:
            group = names[value] = groups[name(value)]
        histogram.merge(group.first_token, first)
        histogram.merge(group.between_tokens, between)


def _parts(tenant_id: uuid.UUID, period: Period, filters: Mapping[str, str]) -> Iterator[QuerySet[Any]]:
    """Roll-ups that cover the period once: whole UTC days, and the hours before and behind them."""
    start, end = period.start, period.end
    first = day_of(start) if start == day_of(start) else day_of(start) + DAY
    last = day_of(end)
    if first < last:
        yield _filtered(_between(UsageDay, tenant_id, first, last), filters)
        edges = [(start, first), (last, end)]
    else:
        edges = [(start, end)]
    for begin, until in edges:
        if begin < until:
            yield _filtered(_between(UsageHour, tenant_id, begin, until), filters)


def _hours(tenant_id: uuid.UUID, period: Period, filters: Mapping[str, str]) -> QuerySet[Any]:
    """Of a whole team one row an hour is enough."""
    model = UsageHour if filters else UsageTotal
    return _filtered(_between(model, tenant_id, period.start, period.end), filters)


def _between(model: Any, tenant_id: uuid.UUID, start: datetime, end: datetime) -> Any:
    return model.objects.filter(tenant_id=tenant_id, at__gte=start, at__lt=end)


def _filtered(rows: QuerySet[Any], filters: Mapping[str, str]) -> QuerySet[Any]:
    assert set(filters) <= set(FILTERS)
    return rows.filter(**filters)


def name_of(tenant_id: uuid.UUID, filters: Mapping[str, str]) -> str:
    """What people call the principal or assistant that figures are narrowed to."""
    for column, named in (("principal", "principal_name"), ("assistant_id", "assistant_name")):
        if filters.get(column):
            hours = UsageHour.objects.filter(tenant_id=tenant_id, **{column: filters[column]})
            return hours.order_by("-at").values_list(named, flat=True).first() or filters[column]
    return filters.get("model") or filters.get("kind") or ""
