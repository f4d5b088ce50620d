"""What `make run` serves with: one machine, plain HTTP on loopback, a secret key of its own in the data folder."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from chatapp.settings.base import *  # noqa: F403
from chatapp.settings.base import ALLOWED_HOSTS, DATA
from chatapp.settings.environment import setting


def secret_key(path: Path) -> str:
    """Made once and readable by its owner only; two processes that start at once agree on one, and none reads half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.unlink(missing_ok=True)
        try:
            with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(64))
            with contextlib.suppress(FileExistsError):
                os.link(part, path)
        finally:
            part.unlink(missing_ok=True)
    key = path.read_text().strip()
    if not key:
        raise ImproperlyConfigured(
            f"{path} is empty. Take it from a backup; or remove it, and second factors, webhooks' secrets and sign-in "
            "services have to be set up anew."
        )
    return key


SECRET_KEY = setting("SECRET_KEY") or secret_key(DATA / "secret_key")
ALLOWED_HOSTS = [*ALLOWED_HOSTS, "localhost", "127.0.0.1", "[::1]"]
OCTAVO_DEMO = True
# Plain HTTP on loopback: these ask for TLS.
SILENCED_SYSTEM_CHECKS = ["security.W004", "security.W008", "security.W012", "security.W016"]
# Browsers know passkeys at http://localhost; elsewhere they ask for TLS.
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = True
