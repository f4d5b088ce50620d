"""Celery's part of limits: freeing what nobody settles, and mails. Messages carry ids and numbers, never text."""

from __future__ import annotations

from datetime import date

from celery import shared_task
from django.conf import settings
from django.core.mail import send_mail

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
    if percent >= 100:
        subject = f"{tenant.name} has used its tokens of {day:%B}"
        effect = f"Requests that need more are refused until {again.day} {again:%B} (UTC)."
    else:
        subject = f"{tenant.name} has used {percent} % of its tokens of {day:%B}"
        effect = f"When all are used, requests are refused until {again.day} {again:%B} (UTC)."
    body = (
        f"{used:,} of {limit:,} tokens of {day:%B %Y} are used.\n{effect}\n\n"
        f"What is used and what you can set lower: {settings.OCTAVO_URL}/t/{tenant.slug}/admin/limits\n"
    )
    for address in addresses:  # one each: nobody learns who the others are
        send_mail(subject, body, None, [address])
    return len(addresses)
