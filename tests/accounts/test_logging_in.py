"""Logging in by password: what is counted, what is told, and what nobody can find out (P14, part 10)."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
import time_machine
from django.core import mail
from django.test import Client

from chatapp.accounts.models import User
from tests.accounts.conftest import PASSWORD, log_in, page_text, person

pytestmark = pytest.mark.django_db


def test_the_right_password_logs_in_and_a_wrong_one_does_not() -> None:
    person()
    client = Client()
    assert "No account has this address and this password." in page_text(log_in("mira@acme.example", "wrong"))
    assert log_in("MIRA@acme.example", client=client)["Location"] == "/"
    assert client.get("/accounts/").status_code == 200


def test_after_five_wrong_passwords_the_address_is_locked_and_the_person_is_told_for_how_long() -> None:
    person()
    for _ in range(5):
        log_in("mira@acme.example", "wrong")
    reply = log_in("mira@acme.example")
    assert re.search(r"Try again in (4|5) minutes", page_text(reply)), page_text(reply)
    assert "_auth_user_id" not in reply.client.session
    with time_machine.travel(time.time() + 301):
        client = Client()
        assert log_in("mira@acme.example", client=client).status_code == 302


def test_an_address_without_an_account_is_locked_in_the_same_words() -> None:
    """Nobody can ask whether an address has an account: neither by a try nor by being locked out."""
    person()
    told: dict[str, list[str]] = {}
    for email in ("mira@acme.example", "nobody@acme.example"):
        told[email] = []
        for attempt in range(7):
            client = Client(REMOTE_ADDR=f"192.0.2.{attempt + (100 if 'nobody' in email else 1)}")
            text = page_text(log_in(email, "wrong", client=client))
            told[email].append(re.sub(r"in \d+ (minutes|seconds)", "in N", text).replace(email, "X"))
    assert told["mira@acme.example"] == told["nobody@acme.example"]
    assert "Try again in N" in told["nobody@acme.example"][-1]


def test_one_machine_cannot_try_many_addresses() -> None:
    person()
    for number in range(30):
        assert log_in(f"guess{number}@acme.example", "wrong").status_code == 400
    reply = log_in("mira@acme.example")
    assert reply.status_code == 429
    assert 1 <= int(reply["Retry-After"]) <= 60
    assert log_in("mira@acme.example", client=Client(REMOTE_ADDR="192.0.2.7")).status_code == 302


def test_a_success_in_between_does_not_reset_the_count() -> None:
    person()
    other = person("other@acme.example")
    for _ in range(4):
        log_in("mira@acme.example", "wrong")
        log_in(other.email, client=Client())
    log_in("mira@acme.example", "wrong")
    reply = log_in("mira@acme.example")
    assert "tried too often" in page_text(reply)
    assert (reply.status_code, 1 <= int(reply["Retry-After"]) <= 300) == (429, True)


@pytest.mark.parametrize(
    ("path", "data", "most"),
    [
        ("/accounts/login/", {"login": "x{}@acme.example", "password": "wrong"}, 30),
        ("/accounts/password/reset/", {"email": "x@acme.example"}, 5),
        ("/accounts/signup/", {"email": "x@acme.example", "password1": PASSWORD, "password2": PASSWORD}, 20),
    ],
)
def test_more_than_so_many_tries_get_429_with_the_time_to_wait(path: str, data: dict[str, str], most: int) -> None:
    client = Client()
    for number in range(most):
        named = {field: value.format(number) for field, value in data.items()}
        assert client.post(path, named).status_code != 429
    reply = client.post(path, data)
    assert reply.status_code == 429
    assert 1 <= int(reply["Retry-After"]) <= 60
    assert f"try again in {reply['Retry-After']} second" in page_text(reply).lower()
    with time_machine.travel(time.time() + int(reply["Retry-After"]) + 1):
        assert client.post(path, data).status_code != 429


def test_counts_are_kept_in_redis_where_all_processes_see_them(redis_url: str, settings: Any) -> None:
    import redis
    from django.core.cache import caches

    from chatapp.settings import redis_urls

    redis.Redis.from_url(redis_url, protocol=2).flushall()
    settings.CACHES = {"default": redis_urls.cache(redis_url, 2)}
    person()
    for _ in range(5):
        log_in("mira@acme.example", "wrong")
    keys = redis.Redis.from_url(redis_urls.database(redis_url, 2), protocol=2).keys("*login_failed*")
    assert keys
    del caches["default"]  # another process begins with a connection of its own
    assert "tried too often" in page_text(log_in("mira@acme.example"))


def test_a_reset_says_the_same_whether_there_is_an_account_or_not() -> None:
    person()
    pages = {}
    for email in ("mira@acme.example", "nobody@acme.example"):
        client = Client()
        reply = client.post("/accounts/password/reset/", {"email": email})
        assert reply.status_code == 302
        pages[email] = (reply["Location"], page_text(client.get(reply["Location"])))
    assert pages["mira@acme.example"] == pages["nobody@acme.example"]
    assert [message.subject for message in mail.outbox] == ["Choose a new password", "No account has this address"]
    assert [message.to for message in mail.outbox] == [["mira@acme.example"], ["nobody@acme.example"]]


def test_a_wrong_password_takes_as_much_hashing_as_an_unknown_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time tells nothing: the costly part is done equally often."""
    person()
    from django.contrib.auth import hashers

    counted: list[int] = []
    former = hashers.MD5PasswordHasher.encode

    def encode(self: Any, *args: Any, **kwargs: Any) -> str:
        counted[-1] += 1
        return former(self, *args, **kwargs)

    monkeypatch.setattr(hashers.MD5PasswordHasher, "encode", encode)
    for email in ("mira@acme.example", "nobody@acme.example"):
        counted.append(0)
        log_in(email, "wrong")
    assert counted[0] == counted[1] > 0


def test_a_closed_account_is_told_so_only_with_its_password() -> None:
    User.objects.filter(pk=person().pk).update(is_active=False)
    assert "No account has" in page_text(log_in("mira@acme.example", "wrong"))
    assert log_in("mira@acme.example")["Location"] == "/accounts/inactive/"
    assert "This account is closed" in page_text(Client().get("/accounts/inactive/"))


def test_operators_log_in_where_everyone_does() -> None:
    """The admin's own login page would count nothing and ask for no second factor."""
    person("op@acme.example", is_staff=True, is_superuser=True)
    reply = Client().get("/admin/", follow=True)
    assert reply.redirect_chain[-1][0] == "/accounts/login/?next=/admin/"
    assert Client().post("/admin/login/", {"username": "op@acme.example", "password": PASSWORD}).status_code == 302
    client = Client()
    reply = log_in("op@acme.example", client=client, path="/accounts/login/?next=/admin/")
    assert reply["Location"] == "/admin/"
    assert client.get("/admin/").status_code == 200
    assert Client().get("/admin/login/?next=https://evil.example/")["Location"] == "/accounts/login/?next=/admin/"
