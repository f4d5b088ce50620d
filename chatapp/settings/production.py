"""Production: every secret from the environment or a file, TLS in front, and no start with an unsafe value."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured
from django.http.request import split_domain_port, validate_host

from chatapp.settings.base import *  # noqa: F403
from chatapp.settings.base import ALLOWED_HOSTS, OCTAVO_MODEL, OCTAVO_MODELS
from chatapp.site import smtp


def setting(name: str) -> str:
    """The variable, or the contents of the file that NAME_FILE names (a mounted secret)."""
    file = os.environ.get(f"{name}_FILE")
    if file:
        try:
            return Path(file).read_text().strip()
        except OSError as error:
            raise ImproperlyConfigured(f"{name}_FILE={file} cannot be read: {error.strerror}.") from None
    return os.environ.get(name, "")


def number(name: str, usual: int) -> int | None:
    """None for what is no whole number from 0 on."""
    text = os.environ.get(name) or str(usual)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else None


def unsafe_mail(url: str) -> bool:
    """What is no address of a mail server, or sends a password in the clear."""
    try:
        server = smtp.parse(url) if url else None
    except smtp.BadUrl:
        return True
    return server is not None and server.plain and bool(server.password)


SECRET_KEY = setting("SECRET_KEY")
OCTAVO_MAIL_URL = setting("OCTAVO_MAIL_URL")
OCTAVO_METRICS_TOKEN = setting("OCTAVO_METRICS_TOKEN")  # empty: nobody reads /metrics
OCTAVO_URL = os.environ.get("OCTAVO_URL") or f"https://{ALLOWED_HOSTS[0] if ALLOWED_HOSTS else ''}"
_proxies = number("OCTAVO_PROXIES", 1)


_problems = {
    "SECRET_KEY (or SECRET_KEY_FILE) must hold at least 50 random characters": len(SECRET_KEY) < 50
    or len(set(SECRET_KEY)) < 5,
    "OCTAVO_HOSTS must list the host names that are served, and no *": not ALLOWED_HOSTS
    or any("*" in host for host in ALLOWED_HOSTS),
    "REDIS_URL must be set": not os.environ.get("REDIS_URL"),
    "DATABASE_URL must be set": not os.environ.get("DATABASE_URL"),
    "OCTAVO_MODEL must name the model (or OCTAVO_MODELS several)": not (OCTAVO_MODEL or OCTAVO_MODELS),
    "OCTAVO_URL must begin with https:// and name one of OCTAVO_HOSTS": not OCTAVO_URL.startswith("https://")
    or not validate_host(split_domain_port(urlsplit(OCTAVO_URL).netloc)[0], ALLOWED_HOSTS),
    "OCTAVO_MAIL_URL (or OCTAVO_MAIL_URL_FILE) must be smtp://… or smtps://…": unsafe_mail(OCTAVO_MAIL_URL),
    "OCTAVO_METRICS_TOKEN (or OCTAVO_METRICS_TOKEN_FILE) must have at least 32 characters": 0
    < len(OCTAVO_METRICS_TOKEN)
    < 32,
    "OCTAVO_PROXIES must be the number of proxies in front": _proxies is None,
}
if any(_problems.values()):
    raise ImproperlyConfigured("Octavo does not start: " + "; ".join(p for p, bad in _problems.items() if bad) + ".")

OCTAVO_DEMO = False
CSRF_TRUSTED_ORIGINS = [f"https://{host}" for host in ALLOWED_HOSTS]
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_SSL_REDIRECT = True
# Login is throttled by address: behind how many proxies of ours the true one is found.
ALLAUTH_TRUSTED_PROXY_COUNT = _proxies
SECURE_REDIRECT_EXEMPT = ["^healthz$", "^readyz$", "^metrics(/targets)?$"]
SECURE_HSTS_SECONDS = 365 * 24 * 3600
SECURE_HSTS_INCLUDE_SUBDOMAINS = True
SECURE_HSTS_PRELOAD = True
SESSION_COOKIE_SECURE = True
CSRF_COOKIE_SECURE = True
LANGUAGE_COOKIE_SECURE = True
SESSION_COOKIE_NAME = "__Host-session"
CSRF_COOKIE_NAME = "__Host-csrf"
