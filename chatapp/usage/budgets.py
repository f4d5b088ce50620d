"""The months' meters of chatapp.limits as a book that is reconciled with the rows (chatapp.usage.reconcile).

This month's and the one before: what was asked for on a month's last evening may end in the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta

from django.db.models import QuerySet
from django.utils import timezone

from chatapp.limits import warning
from chatapp.limits.models import TEAM, Meter
from chatapp.limits.selectors import month_of, next_month
from chatapp.scope import tenant_scope
from chatapp.tenants.models import Tenant
from chatapp.usage.reconcile import Count


class Meters:
    def counts(self) -> Iterator[Count]:
        this = month_of(timezone.now())
        months = (month_of(_begin(this) - timedelta(days=1)), this)
        for tenant in Tenant.objects.order_by("pk").values_list("pk", flat=True):
            with tenant_scope(tenant):
                found = list(Meter.objects.filter(tenant_id=tenant, month__in=months).values_list("month", "subject"))
            for month, subject in found:
                yield Count(tenant, None if subject == TEAM else subject, _begin(month), _begin(next_month(month)))

    def locked(self, count: Count) -> int | None:
        meter = self._meters(count).select_for_update().first()
        return None if meter is None else meter.used

    def correct(self, count: Count, tokens: int) -> None:
        self._meters(count).update(used=tokens)
        if count.principal is None:
            warning.note_use(Tenant.objects.get(pk=count.tenant_id), count.start.date())

    @staticmethod
    def _meters(count: Count) -> QuerySet[Meter]:
        subject = TEAM if count.principal is None else count.principal
        return Meter.objects.filter(tenant_id=count.tenant_id, month=count.start.date(), subject=subject)


def _begin(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
