"""Says that most of a month's tokens are used: once at 80 % and once at 100 % of a month, in the audit log and by mail.

The meter's row remembers what was said, and is locked while it is; the entry is written with the use that it is about.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import date

import structlog
from django.db import transaction
from django.utils import timezone

from chatapp.audit.services import SYSTEM, record
from chatapp.events import tell
from chatapp.limits.models import TEAM, Meter
from chatapp.limits.selectors import WARN_AT, limits_of_team, month_of
from chatapp.tenants.models import Tenant

log = structlog.get_logger(__name__)


def note_use(tenant: Tenant, month: date) -> None:
    """Tokens were used: warn if that was too much. Call it in the transaction that counts them."""
    limit = limits_of_team(tenant).team.tokens_per_month
    if not limit:
        return
    meter = Meter.objects.filter(tenant=tenant, month=month, subject=TEAM).first()
    if meter is None or meter.warned >= WARN_AT[-1]:
        return
    percent = max((level for level in WARN_AT if 100 * meter.used >= level * limit), default=0)
    _warn(tenant, month, percent, meter.used, limit)


@transaction.atomic
def note_refused(tenant: Tenant) -> None:
    """A request did not fit any more: for people that is 100 %, though some tokens may be left."""
    month = month_of(timezone.now())
    meter = Meter.objects.filter(tenant=tenant, month=month, subject=TEAM).first()
    limit = limits_of_team(tenant).team.tokens_per_month
    if meter is not None and limit and 100 * meter.used >= WARN_AT[0] * limit:
        _warn(tenant, month, WARN_AT[-1], meter.used, limit)


def limit_changed(tenant: Tenant) -> None:
    """An operator changed what a month may cost. What people were told of the former limit holds no more where less
    of this one is used; they are told again when it is. Call it in the transaction that changes it."""
    month = month_of(timezone.now())
    meter = Meter.objects.filter(tenant=tenant, month=month, subject=TEAM, warned__gt=0).first()
    if meter is None:
        return
    limit = limits_of_team(tenant).team.tokens_per_month
    percent = max((level for level in WARN_AT if limit and 100 * meter.used >= level * limit), default=0)
    Meter.objects.filter(pk=meter.pk, warned__gt=percent).update(warned=percent)


def _warn(tenant: Tenant, month: date, percent: int, used: int, limit: int) -> None:
    said = Meter.objects.filter(tenant=tenant, month=month, subject=TEAM, warned__lt=percent)
    if not said.update(warned=percent):
        return
    details = {"percent": percent, "used": used, "limit": limit, "month": f"{month:%Y-%m}"}
    record("limits.warning", actor=SYSTEM, tenant=tenant, name=f"Tokens of {month:%B %Y}", details=details)
    tell(tenant_id=tenant.pk, kind="budget.threshold", data=details)
    transaction.on_commit(lambda: _mail_soon(str(tenant.pk), percent, used, limit, f"{month:%Y-%m}"), robust=True)


def _mail_soon(tenant: str, percent: int, used: int, limit: int, month: str) -> None:
    from chatapp.limits.tasks import mail_can_be_sent, mail_warning

    if not mail_can_be_sent():
        return
    with suppress(Exception):  # the log and the banner say it as well; a broker that is away must not stop anything
        mail_warning.apply_async(args=(tenant, percent, used, limit, month), retry=False)
