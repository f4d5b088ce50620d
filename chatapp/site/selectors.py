"""What can be read of the site's settings."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from django.db import Error as DatabaseError

from chatapp.sealing import Unreadable, unseal
from chatapp.site import smtp
from chatapp.site.models import DEFAULT_NAME, SiteSettings

# What the mail server's address is sealed for.
PURPOSE = "site mail"
OWN_BACKEND = "chatapp.site.mail.EmailBackend"
# Django's backends that reach nobody.
NOWHERE = ("console", "dummy")


def site() -> SiteSettings:
    """The row, or one with the defaults that is not saved."""
    return SiteSettings.objects.filter(pk=1).first() or SiteSettings()


def name() -> str:
    """For titles and mails; also when the database is away, whose error page has a title too."""
    try:
        return site().name or DEFAULT_NAME
    except DatabaseError:
        return DEFAULT_NAME


@dataclass(frozen=True)
class Mail:
    """How mail is sent. `server` None: not at all, because of `trouble` if there is one."""

    server: smtp.Server | None = None
    sender: str = ""
    from_environment: bool = False
    trouble: str = ""


def mail() -> Mail:
    """OCTAVO_MAIL_URL and OCTAVO_MAIL_FROM win over what was entered on the pages."""
    url, sender, from_environment = settings.OCTAVO_MAIL_URL, settings.OCTAVO_MAIL_FROM, True
    if not url:
        row, from_environment = site(), False
        sender = sender or row.mail_from
        try:
            url = unseal(row.sealed_smtp_url, purpose=PURPOSE) if row.sealed_smtp_url else ""
        except Unreadable:
            return Mail(trouble="The mail server was saved under another SECRET_KEY. Enter it again.")
    if not url:
        return Mail()
    try:
        server = smtp.parse(url)
    except smtp.BadUrl as error:
        return Mail(from_environment=from_environment, trouble=str(error))
    return Mail(server, sender or f"octavo@{server.host}", from_environment)


def mail_is_set_up() -> bool:
    """Whether mails reach anybody. Without, links are copied and handed over by people."""
    if settings.EMAIL_BACKEND == OWN_BACKEND:
        return mail().server is not None
    return settings.EMAIL_BACKEND.split(".")[-2] not in NOWHERE
