"""What writes usage rows and what removes them. Roll-ups are chatapp.usage.rollup's.

`record` belongs into the transaction that ends a generation (chatapp.chat.recorder): neither happens without the other.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import transaction

from chatapp.usage.models import Kind, UsageDay, UsageHorizon, UsageHour, UsageRow

GONE = "Deleted person"
BATCH = 1000


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A generation that has ended. `timing`: the engine's queue_s, prefill_s and decode_s, where it told them."""

    tenant_id: uuid.UUID
    generation_id: uuid.UUID
    at: datetime
    ended_at: datetime
    kind: Kind
    principal: str
    principal_name: str
    model: str
    state: str
    assistant_id: str = ""
    assistant_name: str = ""
    prompt_version_id: str = ""
    finish_reason: str = ""
    error_code: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    timing: Mapping[str, float] = field(default_factory=dict)


def record(*, ended: Ended) -> None:
    """Writes the row, once: of a generation that has one already nothing changes."""
    record_all(ended=[ended])


def record_all(*, ended: Iterable[Ended]) -> None:
    UsageRow.objects.bulk_create([_row(each) for each in ended], ignore_conflicts=True, batch_size=BATCH)


def _row(ended: Ended) -> UsageRow:
    queue, prefill, decode = (_us(ended.timing.get(name, 0.0)) for name in ("queue_s", "prefill_s", "decode_s"))
    return UsageRow(
        generation_id=ended.generation_id,
        tenant_id=ended.tenant_id,
        at=ended.at,
        ended_at=ended.ended_at,
        kind=ended.kind,
        principal=ended.principal,
        principal_name=ended.principal_name[:254],
        assistant_id=ended.assistant_id,
        assistant_name=ended.assistant_name[:120],
        prompt_version_id=ended.prompt_version_id,
        model=ended.model,
        state=ended.state,
        finish_reason=ended.finish_reason,
        error_code=ended.error_code,
        prompt_tokens=ended.prompt_tokens,
        cached_tokens=ended.cached_tokens,
        output_tokens=ended.output_tokens,
        queue_us=queue,
        prefill_us=prefill,
        decode_us=decode,
        first_token_us=queue + prefill if ended.timing and ended.output_tokens else None,
        total_us=max(0, (ended.ended_at - ended.at) // timedelta(microseconds=1)),
    )


def _us(seconds: float) -> int:
    return max(0, round(seconds * 1_000_000))


@transaction.atomic
def delete_rows_before(*, tenant_id: uuid.UUID, before: datetime) -> int:
    """Retention: removes the single rows asked for before `before`, down to the hour; the roll-ups stay.

    Rows that no roll-up holds yet stay too, until it does. Returns how many went. A row that comes late for such an
    hour is added to its roll-up. The caller writes the audit entry and decides how long rows are kept.
    """
    before = before.replace(minute=0, second=0, microsecond=0)
    old = UsageRow.objects.filter(tenant_id=tenant_id, at__lt=before)
    if old.filter(pending=True).exists():
        return 0  # the next round, once they are rolled up
    horizon = UsageHorizon.objects.select_for_update().filter(tenant_id=tenant_id).first()
    if horizon is None:
        UsageHorizon.objects.create(tenant_id=tenant_id, before=before)
    elif horizon.before < before:
        horizon.before = before
        horizon.save(update_fields=["before"])
    return old.filter(pending=False).delete()[0]


def forget(*, principal: str) -> None:
    """A person's own deletion: the figures stay, the name goes, in every team of the scope."""
    for model in (UsageRow, UsageHour, UsageDay):
        model.objects.filter(principal=principal).update(principal_name=GONE)
