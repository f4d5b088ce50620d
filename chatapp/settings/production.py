"""Production: every secret from the environment or a file, TLS in front, and no start with an unsafe value."""

from __future__ import annotations

import os
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from chatapp.settings.base import *  # noqa: F403
from chatapp.settings.base import ALLOWED_HOSTS, OCTAVO_MODEL, OCTAVO_MODELS


def setting(name: str) -> str:
    """The variable, or the contents of the file that NAME_FILE names (a mounted secret)."""
    file = os.environ.get(f"{name}_FILE")
    if file:
        try:
            return Path(file).read_text().strip()
        except OSError as error:
            raise ImproperlyConfigured(f"{name}_FILE={file} cannot be read: {error.strerror}.") from None
    return os.environ.get(name, "")


SECRET_KEY = setting("SECRET_KEY")

_problems = {
    "SECRET_KEY (or SECRET_KEY_FILE) must hold at least 50 random characters": len(SECRET_KEY) < 50
    or len(set(SECRET_KEY)) < 5,
    "OCTAVO_HOSTS must list the host names that are served, and no *": not ALLOWED_HOSTS
    or any("*" in host for host in ALLOWED_HOSTS),
    "REDIS_URL must be set": not os.environ.get("REDIS_URL"),
    "DATABASE_URL must be set": not os.environ.get("DATABASE_URL"),
    "OCTAVO_MODEL must name the model (or OCTAVO_MODELS several)": not (OCTAVO_MODEL or OCTAVO_MODELS),
}
if any(_problems.values()):
    raise ImproperlyConfigured("Octavo does not start: " + "; ".join(p for p, bad in _problems.items() if bad) + ".")

OCTAVO_DEMO = False
OCTAVO_URL = os.environ.get("OCTAVO_URL", f"https://{ALLOWED_HOSTS[0]}")
CSRF_TRUSTED_ORIGINS = [f"https://{host}" for host in ALLOWED_HOSTS]
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_SSL_REDIRECT = True
# Login is throttled by address: behind how many proxies of ours the true one is found.
ALLAUTH_TRUSTED_PROXY_COUNT = int(os.environ.get("OCTAVO_PROXIES", "1"))
SECURE_REDIRECT_EXEMPT = ["^healthz$", "^readyz$", "^metrics$"]
SECURE_HSTS_SECONDS = 365 * 24 * 3600
SECURE_HSTS_INCLUDE_SUBDOMAINS = True
SECURE_HSTS_PRELOAD = True
SESSION_COOKIE_SECURE = True
CSRF_COOKIE_SECURE = True
SESSION_COOKIE_NAME = "__Host-session"
CSRF_COOKIE_NAME = "__Host-csrf"
EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
