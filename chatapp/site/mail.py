"""Django's way to send mail: through the server of the site's settings, looked up for each sending.

Where none is set up, local settings write mails into the log, as links in them are wanted there; elsewhere a mail is
counted as not sent, and its words are logged nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from email.utils import formataddr

import structlog
from django.conf import settings
from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend
from django.core.mail.backends.console import EmailBackend as ConsoleBackend

from chatapp.site import selectors, smtp

log = structlog.get_logger(__name__)


class EmailBackend(BaseEmailBackend):
    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        """How many were sent. Without a server, or when it refuses, none; that is logged and not raised: whoever asks
        for a new password must not learn from an error page whether there is such an account."""
        mail = selectors.mail()
        if mail.server is None:
            if settings.OCTAVO_DEMO:
                return ConsoleBackend().send_messages(email_messages) or 0
            log.warning("mail.not_set_up", trouble=mail.trouble, messages=len(email_messages))
            return 0
        sent = 0
        for message in email_messages:
            if message.from_email == settings.DEFAULT_FROM_EMAIL:
                message.from_email = formataddr((selectors.name(), mail.sender))
            try:
                smtp.send(mail.server, message)
                sent += 1
            except smtp.NotSent as error:
                log.error("mail.not_sent", reason=str(error))
        return sent
