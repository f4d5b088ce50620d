"""Production: every secret from the environment or a file, TLS in front, and no start with an unsafe value."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from urllib.parse import unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured
from django.http.request import split_domain_port, validate_host

from chatapp.settings.base import *  # noqa: F403
from chatapp.settings.base import (
    ALLOWED_HOSTS,
    DATA,
    DATABASES,
    OCTAVO_MAIL_URL,
    OCTAVO_METRICS_TOKEN,  # empty: nobody reads /metrics
    OCTAVO_MODEL,
    OCTAVO_MODELS,
    OCTAVO_OIDC_PLAIN,
    OCTAVO_WEBHOOK_ALLOW,
    OCTAVO_WEBHOOK_PLAIN,
)
from chatapp.settings.environment import ON, setting
from chatapp.site import smtp

ENGINES = ("chatapp.postgresql", "django.db.backends.sqlite3")
# What examples have in the place of a password, and what servers are delivered with.
GUESSED = {
    "admin",
    "changeme",
    "example",
    "octavo",
    "password",
    "postgres",
    "redis",
    "root",
    "secret",
    "test",
    "valkey",
}


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


def few_characters(secret: str) -> bool:
    """aaaa… is long too."""
    return len(set(secret)) < 5


def guessed(password: str | None) -> bool:
    """A password that is tried first. None at all is not: sockets and certificates need none."""
    return bool(password) and "".join(c for c in str(password).lower() if c.isalnum()) in GUESSED


def password_of(url: str) -> str | None:
    try:
        return unquote(urlsplit(url).password or "") or None
    except ValueError:
        return None


def everywhere(network: str) -> bool:
    return ipaddress.ip_network(network, strict=False).prefixlen == 0


def host_name(text: str) -> bool:
    """One of OCTAVO_HOSTS: no address, no port, and not the example that is still to be changed."""
    return split_domain_port(text) == (text.lower(), "")


def address_of_host(url: str) -> bool:
    """https://, and a host that is served: a name, and not what stands for several (.example.org)."""
    try:
        host = split_domain_port(urlsplit(url).netloc)[0]
    except ValueError:
        return False
    return url.startswith("https://") and not host.startswith(".") and validate_host(host, ALLOWED_HOSTS)


def weak_key(key: str) -> bool:
    return len(key) < 50 or few_characters(key) or key.startswith("django-insecure-")


def weak_token() -> bool:
    token = OCTAVO_METRICS_TOKEN
    return bool(token) and (len(token) < 32 or few_characters(token) or token == SECRET_KEY)


SECRET_KEY = setting("SECRET_KEY")
# Keys from before, separated by white space: what was signed or sealed with them is still read.
SECRET_KEY_FALLBACKS = setting("SECRET_KEY_FALLBACKS").split()
OCTAVO_URL = os.environ.get("OCTAVO_URL") or f"https://{ALLOWED_HOSTS[0] if ALLOWED_HOSTS else ''}"
_proxies = number("OCTAVO_PROXIES", 1)
_hosts = bool(ALLOWED_HOSTS) and all(map(host_name, ALLOWED_HOSTS))
_redis, _database = setting("REDIS_URL"), DATABASES["default"]


_problems = {
    "SECRET_KEY (or SECRET_KEY_FILE) must hold at least 50 random characters": weak_key(SECRET_KEY),
    "SECRET_KEY_FALLBACKS (or SECRET_KEY_FALLBACKS_FILE) must hold former keys as good as SECRET_KEY": any(
        map(weak_key, SECRET_KEY_FALLBACKS)
    ),
    "OCTAVO_HOSTS must list the host names that are served, such as chat.example.org, and no *": not _hosts,
    "REDIS_URL (or REDIS_URL_FILE) must be set": not _redis,
    "REDIS_URL must begin with redis://, rediss://, unix:// or sentinel://": bool(_redis)
    and not _redis.startswith(("redis://", "rediss://", "unix://", "sentinel://")),
    "REDIS_URL must have a password that nobody guesses": guessed(password_of(_redis)),
    "DATABASE_URL (or DATABASE_URL_FILE) must be set": not setting("DATABASE_URL"),
    "DATABASE_URL must name PostgreSQL, or SQLite on one machine": _database["ENGINE"] not in ENGINES,
    "DATABASE_URL must name a file: what is in memory is lost with each process": _database["NAME"] == ":memory:",
    "DATABASE_URL must have a password that nobody guesses": guessed(_database.get("PASSWORD")),
    "DATABASE_URL must connect as a role that is no superuser, and not as postgres": _database.get("USER")
    == "postgres",
    "OCTAVO_MODEL must name the model (or OCTAVO_MODELS several)": not (OCTAVO_MODEL or OCTAVO_MODELS),
    "OCTAVO_URL must begin with https:// and name one of OCTAVO_HOSTS": _hosts and not address_of_host(OCTAVO_URL),
    "OCTAVO_MAIL_URL (or OCTAVO_MAIL_URL_FILE) must be smtp://… or smtps://…": unsafe_mail(OCTAVO_MAIL_URL),
    "OCTAVO_METRICS_TOKEN (or OCTAVO_METRICS_TOKEN_FILE) must have at least 32 random characters": weak_token(),
    "OCTAVO_PROXIES must be the number of proxies in front": _proxies is None,
    "OCTAVO_OIDC_PLAIN must not be set: whoever is in between could sign in as anybody": OCTAVO_OIDC_PLAIN,
    "OCTAVO_WEBHOOK_PLAIN is for networks of your own only: name them in OCTAVO_WEBHOOK_ALLOW": OCTAVO_WEBHOOK_PLAIN
    and not OCTAVO_WEBHOOK_ALLOW,
    "OCTAVO_WEBHOOK_ALLOW must not name all addresses": any(map(everywhere, OCTAVO_WEBHOOK_ALLOW)),
    "DEBUG and DJANGO_DEBUG must not be set: that would show settings and code to visitors": any(
        os.environ.get(name, "").lower() in ON for name in ("DEBUG", "DJANGO_DEBUG")
    ),
    "OCTAVO_DATA must be a folder without demo accounts, whose passwords lie in its demo.json": (
        DATA / "demo.json"
    ).exists(),
}
if any(_problems.values()):
    raise ImproperlyConfigured("Octavo does not start: " + "; ".join(p for p, bad in _problems.items() if bad) + ".")

DEBUG = False
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

# The image has this folder, and a volume that did not begin as a copy of the image's has not. Python would go to /tmp
# without a word, which is memory in a container, and bodies of a hundred megabytes lie there.
if _temporary := os.environ.get("TMPDIR"):
    with contextlib.suppress(OSError):  # no volume, as in what takes no bodies
        os.makedirs(_temporary, mode=0o700, exist_ok=True)
