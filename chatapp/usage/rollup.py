"""Adds rows up by the hour, and hours by the day. Any number of times, by any number of processes: the same sums.

A bucket is computed anew from everything in it. What it has not seen yet is marked pending: the mark is taken off
first and the bucket read afterwards, in one transaction, so what is committed in between keeps its mark for the next
round. Nothing is found by the clock, therefore rows that come late and rounds that were missed need no care.
One process at a time works for a tenant (its row is locked); recorders do not wait for that on PostgreSQL.

Of hours whose rows retention has deleted (UsageHorizon) the sums are kept, and late rows are added to them.
Memory: the groups of one bucket, whatever the number of rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, TypeVar

import structlog
from django.db import transaction
from django.db.models import QuerySet

from chatapp.scope import tenant_scope
from chatapp.tenants.models import Tenant
from chatapp.usage import histogram
from chatapp.usage.models import RollUp, UsageDay, UsageHorizon, UsageHour, UsageRow, UsageTotal

log = structlog.get_logger(__name__)

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
CHUNK = 2000
SUMS = (
    "requests", "finished", "cancelled", "refused", "failed", "prompt_tokens", "cached_tokens", "output_tokens",
    "queue_us", "prefill_us", "decode_us",
)  # fmt: skip
ENDS = {"finished": "finished", "cancelled": "cancelled", "refused": "refused"}
DIMENSIONS = ("principal", "assistant_id", "model", "kind")
COLUMNS = (
    *DIMENSIONS, "principal_name", "assistant_name", "state", "prompt_tokens", "cached_tokens", "output_tokens",
    "queue_us", "prefill_us", "decode_us", "first_token_us",
)  # fmt: skip

Bucket = TypeVar("Bucket", bound=RollUp)
Groups = dict[tuple[str, ...], Bucket]


def hour_of(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def day_of(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def roll_up() -> tuple[int, int]:
    """One round over all tenants. Returns how many hours and days were computed."""
    tenants = list(Tenant.objects.order_by("pk").values_list("pk", flat=True))
    hours = days = 0
    for tenant in tenants:
        with tenant_scope(tenant):
            hours += _walk(tenant, UsageRow, hour_of, HOUR, _hour)
            days += _walk(tenant, UsageHour, day_of, DAY, _day)
    if hours or days:
        log.info("usage.rolled_up", hours=hours, days=days)
    return hours, days


def rebuild(*, tenant_id: uuid.UUID, start: datetime, end: datetime) -> None:
    """Have everything between the two computed anew by the next round; not what retention has taken the rows of."""
    with tenant_scope(tenant_id):
        horizon = UsageHorizon.objects.filter(tenant_id=tenant_id).first()
        start = max(start, horizon.before) if horizon else start
        UsageRow.objects.filter(tenant_id=tenant_id, at__gte=start, at__lt=end).update(pending=True)


def _walk(
    tenant: uuid.UUID,
    model: type[UsageRow] | type[UsageHour],
    begins: Callable[[datetime], datetime],
    length: timedelta,
    compute: Callable[[uuid.UUID, datetime], bool],
) -> int:
    """Every bucket with something pending, oldest first, each once: what comes meanwhile waits for the next round."""
    done = 0
    after: datetime | None = None
    while True:
        waiting = model.objects.filter(tenant_id=tenant, pending=True)
        if after is not None:
            waiting = waiting.filter(at__gte=after)
        first = waiting.order_by("at").values_list("at", flat=True).first()
        if first is None:
            return done
        bucket = begins(first)
        done += compute(tenant, bucket)
        after = bucket + length


def _lock(tenant: uuid.UUID) -> None:
    """Until the transaction ends. Not against keys that refer to the tenant: rows are written meanwhile."""
    Tenant.objects.select_for_update(no_key=True).filter(pk=tenant).first()


@transaction.atomic
def _hour(tenant: uuid.UUID, hour: datetime) -> bool:
    _lock(tenant)
    rows = UsageRow.objects.filter(tenant_id=tenant, at__gte=hour, at__lt=hour + HOUR)
    horizon = UsageHorizon.objects.filter(tenant_id=tenant, before__gt=hour).exists()
    groups: Groups[UsageHour] = {}
    stored = UsageHour.objects.filter(tenant_id=tenant, at=hour)
    if horizon:
        late = list(rows.filter(pending=True).values_list("pk", flat=True))
        rows = rows.filter(pk__in=late)
        for each in stored:
            _add(_group(groups, UsageHour, tenant, hour, each), each)
    if not rows.filter(pending=True).update(pending=False):
        return False
    # Named tuples: making models of a million rows would take most of the time.
    for row in rows.order_by("at").values_list(*COLUMNS, named=True).iterator(chunk_size=CHUNK):
        _count(_group(groups, UsageHour, tenant, hour, row), row)
    _replace(stored, UsageHour, groups.values())
    total = UsageTotal(tenant_id=tenant, at=hour, first_token={}, between_tokens={})
    for each in groups.values():
        _add(total, each)
    _replace(UsageTotal.objects.filter(tenant_id=tenant, at=hour), UsageTotal, [total])
    return True


@transaction.atomic
def _day(tenant: uuid.UUID, day: datetime) -> bool:
    _lock(tenant)
    hours = UsageHour.objects.filter(tenant_id=tenant, at__gte=day, at__lt=day + DAY)
    if not hours.filter(pending=True).update(pending=False):
        return False
    groups: Groups[UsageDay] = {}
    for hour in hours.order_by("at").iterator(chunk_size=CHUNK):
        _add(_group(groups, UsageDay, tenant, day, hour), hour)
    _replace(UsageDay.objects.filter(tenant_id=tenant, at=day), UsageDay, groups.values())
    return True


def _group(
    groups: Groups[Bucket], model: type[Bucket], tenant: uuid.UUID, at: datetime, source: UsageRow | RollUp
) -> Bucket:
    """The sums that `source` belongs to. They take its names: the latest comes last."""
    key = (source.principal, source.assistant_id, source.model, source.kind)
    group = groups.get(key)
    if group is None:
        fields: dict[str, Any] = {name: getattr(source, name) for name in DIMENSIONS}
        group = groups[key] = model(tenant_id=tenant, at=at, first_token={}, between_tokens={}, **fields)
    group.principal_name, group.assistant_name = source.principal_name, source.assistant_name
    return group


def _count(group: RollUp, row: UsageRow) -> None:
    group.requests += 1
    end = ENDS.get(row.state, "failed")
    setattr(group, end, getattr(group, end) + 1)
    group.prompt_tokens += row.prompt_tokens
    group.cached_tokens += row.cached_tokens
    group.output_tokens += row.output_tokens
    group.queue_us += row.queue_us
    group.prefill_us += row.prefill_us
    group.decode_us += row.decode_us
    if row.first_token_us is not None:
        histogram.add(group.first_token, row.first_token_us)
        if row.output_tokens > 1:
            # The engine tells an answer's mean; it counts once for each of its tokens behind the first.
            gaps = row.output_tokens - 1
            histogram.add(group.between_tokens, row.decode_us / gaps, gaps)


def _add(group: RollUp, other: RollUp) -> None:
    for name in SUMS:
        setattr(group, name, getattr(group, name) + getattr(other, name))
    histogram.merge(group.first_token, other.first_token)
    histogram.merge(group.between_tokens, other.between_tokens)


def _replace(stored: QuerySet[Any], model: type[Bucket], groups: Iterable[Bucket]) -> None:
    stored.delete()
    model.objects.bulk_create(list(groups), batch_size=500)
