"""Whether this Octavo can send mail. Without, links are copied and handed over by people."""

from __future__ import annotations

from django.conf import settings

# Backends that reach nobody.
NOWHERE = ("console", "dummy")


def mail_is_set_up() -> bool:
    return settings.EMAIL_BACKEND.split(".")[-2] not in NOWHERE
