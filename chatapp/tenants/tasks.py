"""Celery's part of tenants: mail. Messages carry ids only."""

from __future__ import annotations

from celery import shared_task
from django.conf import settings
from django.core.mail import send_mail
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.accounts.selectors import in_language_of
from chatapp.ids import parse_id
from chatapp.scope import unscoped
from chatapp.tenants import invitations
from chatapp.tenants.models import Invitation


class NotSent(OSError):
    """The mail server did not take it; the log of the site's mail says why."""


@shared_task(autoretry_for=(OSError,), retry_backoff=10, retry_backoff_max=600, max_retries=8)
def send_invitation(invitation_id: str) -> None:
    """Once for each link. What was accepted, withdrawn or expired meanwhile is not sent. SMTP's errors are OSErrors."""
    with unscoped("invitations"):
        found = Invitation.objects.select_related("tenant", "invited_by").filter(
            pk=parse_id(invitation_id), accepted_at=None, withdrawn_at=None, mailed_at=None
        )
        invitation = found.filter(expires_at__gt=timezone.now(), tenant__suspended_at=None).first()
        if invitation is None:
            return
        link = settings.OCTAVO_URL.rstrip("/") + invitations.path(invitation)
        context = {"invitation": invitation, "tenant": invitation.tenant, "link": link}
        # Who has no account yet, or chose nothing, is likely to read what the inviter reads.
        with in_language_of(
            invitation.email, otherwise=invitation.invited_by.language if invitation.invited_by else ""
        ):
            said = _("%(inviter)s invites you to %(team)s") % {
                "inviter": invitation.inviter,
                "team": invitation.tenant.name,
            }
            # A subject is one line whatever a team calls itself.
            subject = " ".join(said.split())
            text = render_to_string("tenant/invitation.txt", context)
        if not send_mail(subject, text, None, [invitation.email]):
            raise NotSent
        Invitation.objects.filter(pk=invitation.pk, nonce=invitation.nonce).update(mailed_at=timezone.now())
