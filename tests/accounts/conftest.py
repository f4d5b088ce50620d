"""People who log in as people do: by the pages, with passwords and codes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value
from django.core.cache import cache
from django.test import Client

from chatapp.accounts.models import User
from tests.accounts.provider import Provider, running
from tests.chat.conftest import server, strangers, team

__all__ = ["server", "strangers", "team"]

PASSWORD = "a password of some length"


@pytest.fixture(autouse=True)
def _counted_from_zero() -> Iterator[None]:
    """Tries, used codes and fetched documents are kept in the cache."""
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def provider() -> Iterator[Provider]:
    with running() as provider:
        yield provider


def person(email: str = "mira@acme.example", *, verified: bool = True, **fields: Any) -> User:
    user = User.objects.create_user(email, PASSWORD, **fields)
    EmailAddress.objects.create(user=user, email=user.email, primary=True, verified=verified)
    return user


def log_in(email: str, password: str = PASSWORD, client: Client | None = None, path: str = "/accounts/login/") -> Any:
    client = client or Client()
    return client.post(path, {"login": email, "password": password})


def logged_in(user: User) -> Client:
    """By password, so that the session counts as freshly proven."""
    client = Client()
    assert log_in(user.email, client=client).status_code == 302
    assert client.session.get("_auth_user_id") == str(user.pk)
    prove(client)
    return client


def prove(client: Client) -> None:
    assert client.post("/accounts/reauthenticate/", {"password": PASSWORD}).status_code == 302


def code_of(secret: str, at: float, ahead: int = 0) -> str:
    """The code that an app shows: computed from the secret alone (RFC 6238)."""
    return format_hotp_value(hotp_value(secret, int(at) // 30 + ahead))


def page_text(response: Any) -> str:
    """What is to be read on a page."""
    html = re.sub(r"<script\b.*?</script>", "", response.content.decode(), flags=re.S)
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def activate_app(client: Client) -> str:
    """Sets up an authenticator app by the page; returns its secret."""
    import time

    reply = client.get("/accounts/2fa/totp/activate/")
    html = reply.content.decode()
    found = re.search(r'<code class="key">([A-Z2-7]+)</code>', html)
    assert found, (reply.status_code, reply.headers)
    reply = client.post("/accounts/2fa/totp/activate/", {"code": code_of(found[1], time.time())})
    assert reply.status_code == 302, page_text(reply)
    return found[1]
