"""What changes the site's settings, and the test of its mail."""

from __future__ import annotations

from email.utils import formataddr

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage
from django.core.validators import validate_email
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.audit.services import Actor, record
from chatapp.errors import BadInput
from chatapp.sealing import seal
from chatapp.site import selectors, smtp
from chatapp.site.models import SiteSettings

LONGEST_URL = 1000


def clean_name(name: str) -> str:
    """Raises BadInput: it stands in the headers of mails and in titles, so it is one short line."""
    name = " ".join(name.split())
    if not name:
        raise BadInput(_("The site needs a name."), param="site_name")
    if len(name) > 60 or not name.isprintable():
        raise BadInput(_("The name is one line of at most 60 characters."), param="site_name")
    return name


def clean_mail(smtp_url: str, mail_from: str) -> tuple[str, str]:
    """Raises BadInput. Both may be empty: then no mail is sent."""
    smtp_url, mail_from = smtp_url.strip(), mail_from.strip()
    if len(smtp_url) > LONGEST_URL:
        raise BadInput(_("At most %(most)s characters.") % {"most": LONGEST_URL}, param="smtp_url")
    if smtp_url:
        try:
            smtp.parse(smtp_url)
        except smtp.BadUrl as error:
            raise BadInput(str(error), param="smtp_url") from None
    if mail_from:
        try:
            validate_email(mail_from)
        except ValidationError:
            raise BadInput(_("This is no email address."), param="mail_from") from None
    return smtp_url, mail_from


def sealed(url: str) -> str:
    """Empty stays empty: there is nothing to hide."""
    return seal(url, purpose=selectors.PURPOSE) if url else ""


@transaction.atomic
def locked() -> SiteSettings:
    """The one row, made if need be; whoever comes second waits here until the first has ended."""
    SiteSettings.objects.get_or_create(pk=1)
    return SiteSettings.objects.select_for_update().get(pk=1)


@transaction.atomic
def save_settings(*, actor: Actor, name: str, smtp_url: str | None, mail_from: str) -> SiteSettings:
    """`smtp_url` None: the one that is there stays. Raises BadInput."""
    name = clean_name(name)
    url, mail_from = clean_mail(smtp_url or "", mail_from)
    row = locked()
    changed: dict[str, object] = {}
    if row.name != name:
        changed["name"] = [row.name, name]
    if row.mail_from != mail_from:
        changed["mail_from"] = [row.mail_from, mail_from]
    if smtp_url is not None:
        changed["mail_server"] = smtp.parse(url).shown if url else ""
        row.sealed_smtp_url = sealed(url)
    row.name, row.mail_from, row.updated_at = name, mail_from, timezone.now()
    row.save()
    if changed:
        record("site.changed", actor=actor, tenant=None, on=row, details=changed)
    return row


@transaction.atomic
def note_backups(*, actor: Actor) -> None:
    row = locked()
    row.backups_seen_at = timezone.now()
    row.save(update_fields=["backups_seen_at"])
    record("site.backups_confirmed", actor=actor, tenant=None, on=row)


def send_test_mail(*, to: str, smtp_url: str = "", mail_from: str = "", site_name: str = "") -> None:
    """With what was typed, or else with what is set up. Raises BadInput, and smtp.NotSent with the step that failed."""
    url, sender = clean_mail(smtp_url, mail_from)
    if url:
        server = smtp.parse(url)
        sender = sender or f"octavo@{server.host}"
    else:
        known = selectors.mail()
        if known.server is None:
            raise BadInput(known.trouble or "Enter a mail server first.", param="smtp_url")
        server, sender = known.server, sender or known.sender
    name = site_name or selectors.name()
    smtp.send(
        server,
        EmailMessage(
            subject=f"{name} can send mail",
            body=f"This is the test that you asked for at {settings.OCTAVO_URL}. Mail from {name} gets through.\n",
            from_email=formataddr((name, sender)),
            to=[to],
        ),
    )
