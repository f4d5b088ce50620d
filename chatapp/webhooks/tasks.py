"""Celery's part of webhooks. Messages carry ids only."""

from __future__ import annotations

from functools import cache
from typing import Any

from celery import shared_task
from django.conf import settings
from django.core.mail import send_mail
from django.utils.translation import gettext as _

from chatapp.accounts.selectors import in_language_of
from chatapp.ids import parse_id
from chatapp.scope import tenant_scope, unscoped
from chatapp.tenants.models import Membership, Role
from chatapp.webhooks import sending
from chatapp.webhooks.models import WebhookEndpoint


@cache
def senders() -> sending.Senders:
    return sending.Senders()


@shared_task(bind=True)
def drain(self: Any, endpoint_id: str) -> None:
    if self.request.is_eager:
        sending.drain(endpoint_id)
    else:
        senders().add(endpoint_id)


@shared_task
def tend() -> None:
    sending.tend()


@shared_task
def forget_old() -> None:
    sending.forget_old()


@shared_task
def mail_given_up(endpoint_id: str) -> int:
    """Tell the team's owners and admins that a webhook was switched off; returns how many."""
    with unscoped("webhooks"):
        found = WebhookEndpoint.objects.select_related("tenant").filter(pk=parse_id(endpoint_id), enabled=False)
        endpoint = found.filter(tenant__suspended_at=None).first()
    if endpoint is None:
        return 0
    tenant = endpoint.tenant
    with tenant_scope(tenant):
        people = Membership.objects.filter(
            tenant=tenant, role__in=(Role.OWNER, Role.ADMIN), suspended_at=None, user__is_active=True
        ).select_related("user")
        addresses = [membership.user.email for membership in people]
    page = f"{settings.OCTAVO_URL.rstrip('/')}/t/{tenant.slug}/admin/webhooks/{endpoint.pk}"
    for address in addresses:  # one each: nobody learns who the others are
        with in_language_of(address):
            subject = " ".join((_("A webhook of %(team)s was switched off") % {"team": tenant.name}).split())
            then = _("Nothing is sent there until somebody switches it on again, once it works:")
            body = f"{endpoint.url}\n{_(endpoint.disabled_because)}\n\n{then}\n{page}\n"
            send_mail(subject, body, None, [address])
    return len(addresses)
