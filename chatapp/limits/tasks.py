"""Celery's part of limits: freeing what nobody settles, and mails. Messages carry ids and numbers, never text."""

from __future__ import annotations

from datetime import date

from celery import shared_task
from django.conf import settings
from django.core.mail import send_mail
from django.utils.formats import date_format
from django.utils.translation import gettext as _

from chatapp.accounts.selectors import in_language_of
from chatapp.languages import number
from chatapp.limits import budget
from chatapp.limits.selectors import next_month
from chatapp.scope import tenant_scope, unscoped
from chatapp.tenants.models import Membership, Role, Tenant

NO_MAIL = ("console.EmailBackend", "dummy.EmailBackend")


def mail_can_be_sent() -> bool:
    """Whether somebody has set mail up; the console's is for development."""
    return not settings.EMAIL_BACKEND.endswith(NO_MAIL)


@shared_task
def release_expired() -> None:
    with unscoped("reaper"):
        budget.release_expired()


@shared_task
def mail_warning(tenant_id: str, percent: int, used: int, limit: int, month: str) -> int:
    """Tell the owners and admins of a tenant; returns how many."""
    tenant = Tenant.objects.filter(pk=tenant_id, suspended_at=None).first()
    if tenant is None:
        return 0
    with tenant_scope(tenant):
        people = Membership.objects.filter(
            tenant=tenant, role__in=(Role.OWNER, Role.ADMIN), suspended_at=None, user__is_active=True
        ).select_related("user")
        addresses = [membership.user.email for membership in people]
    day = date.fromisoformat(f"{month}-01")
    again = next_month(day)
    address = f"{settings.OCTAVO_URL}/t/{tenant.slug}/admin/limits"
    for to in addresses:  # one each: nobody learns who the others are
        with in_language_of(to):
            figures = {
                "team": tenant.name,
                "percent": percent,
                "used": number(used),
                "limit": number(limit),
                "month": date_format(day, "F"),
                "year_month": date_format(day, "YEAR_MONTH_FORMAT"),
                "until": date_format(again, "MONTH_DAY_FORMAT"),
                "address": address,
            }
            if percent >= 100:
                subject = _("%(team)s has used its tokens of %(month)s")
                effect = _("Requests that need more are refused until %(until)s (UTC).")
            else:
                subject = _("%(team)s has used %(percent)s %% of its tokens of %(month)s")
                effect = _("When all are used, requests are refused until %(until)s (UTC).")
            lines = [
                _("%(used)s of %(limit)s tokens of %(year_month)s are used."),
                effect,
                "",
                _("What is used and what you can set lower: %(address)s"),
                "",
            ]
            send_mail(subject % figures, "\n".join(lines) % figures, None, [to])
    return len(addresses)
