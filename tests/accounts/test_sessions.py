"""Where a person is logged in: listed, ended one by one, and ended by a new password."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.test import Client

from chatapp.accounts.sessions import device
from chatapp.audit.models import AuditEntry
from tests.accounts.conftest import PASSWORD, log_in, logged_in, page_text, person

pytestmark = pytest.mark.django_db
LIST, REVOKE = "/accounts/sessions/", "/accounts/sessions/revoke"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
IPHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 Version/18.0 Safari/604.1"


def at(email: str, user_agent: str, address: str) -> Client:
    client = Client(headers={"User-Agent": user_agent}, REMOTE_ADDR=address)
    assert log_in(email, client=client).status_code == 302
    return client


def is_in(client: Client) -> bool:
    return client.get("/accounts/").status_code == 200


def ids(client: Client) -> dict[str, int]:
    return {place.device: place.id for place in client.get(LIST).context["places"]}


def test_every_session_is_listed_with_device_and_address() -> None:
    user = person()
    here, _ = at(user.email, FIREFOX, "192.0.2.1"), at(user.email, IPHONE, "192.0.2.2")
    at(person("other@acme.example").email, FIREFOX, "192.0.2.3")
    text = page_text(here.get(LIST))
    assert "Firefox on Linux 192.0.2.1" in text
    assert "Safari on iPhone 192.0.2.2" in text
    assert "192.0.2.3" not in text
    assert text.count("this one") == 1


def test_ending_one_ends_that_one() -> None:
    user = person()
    here, there, third = (at(user.email, agent, "192.0.2.1") for agent in (FIREFOX, IPHONE, "curl/8.5"))
    assert here.post(REVOKE, {"session": ids(here)["Safari on iPhone"]}).status_code == 302
    assert (is_in(here), is_in(there), is_in(third)) == (True, False, True)
    entry = AuditEntry.objects.get(action="account.session_revoked")
    assert (entry.tenant_id, entry.actor_name, entry.details) == (None, user.email, {"count": 1})


def test_its_row_is_gone_at_once_which_is_what_ends_its_sockets() -> None:
    """chatapp.api.guard asks every second for the rows of all sessions that opened sockets."""
    user = person()
    here, there = at(user.email, FIREFOX, "192.0.2.1"), at(user.email, IPHONE, "192.0.2.2")
    key = there.session.session_key
    here.post(REVOKE, {"session": ids(here)["Safari on iPhone"]})
    assert not Session.objects.filter(session_key=key).exists()


def test_ending_all_others_keeps_this_one() -> None:
    user = person()
    here, *others = (at(user.email, FIREFOX, f"192.0.2.{n}") for n in range(1, 5))
    assert "3 other sessions ended" in page_text(here.post(REVOKE, {"session": "others"}, follow=True))
    assert is_in(here)
    assert not any(is_in(other) for other in others)


def test_nobody_ends_a_session_of_somebody_else() -> None:
    theirs = at(person("other@acme.example").email, IPHONE, "192.0.2.2")
    mine = at(person().email, FIREFOX, "192.0.2.1")
    reply = mine.post(REVOKE, {"session": ids(theirs)["Safari on iPhone"]}, follow=True)
    assert "has ended already" in page_text(reply)
    assert is_in(theirs)


@pytest.mark.parametrize("value", ["", "-1", "x", "9" * 30, "²", "1 OR 1=1", "\x00"])
def test_nonsense_is_no_session(value: str) -> None:
    client = at(person().email, FIREFOX, "192.0.2.1")
    reply = client.post(REVOKE, {"session": value}, follow=True)
    assert "has ended already" in page_text(reply)
    assert is_in(client)


def test_sessions_are_ended_by_post_only() -> None:
    client = at(person().email, FIREFOX, "192.0.2.1")
    assert client.get(REVOKE).status_code == 405
    assert Client().post(REVOKE, {"session": "others"})["Location"].startswith("/accounts/login/")


def test_a_new_password_ends_all_other_sessions_and_keeps_this_one() -> None:
    user = person()
    there = at(user.email, IPHONE, "192.0.2.2")
    key = there.session.session_key
    here = logged_in(user)
    new = "quite another password"
    data = {"oldpassword": PASSWORD, "password1": new, "password2": new}
    assert here.post("/accounts/password/change/", data).status_code == 302
    assert (is_in(here), is_in(there)) == (True, False)
    assert not Session.objects.filter(session_key=key).exists(), "its sockets end too"
    assert AuditEntry.objects.filter(action="account.password_changed", tenant=None).count() == 1


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        (FIREFOX, "Firefox on Linux"),
        (IPHONE, "Safari on iPhone"),
        ("Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/140.0 Safari/537.36 Edg/140.0", "Edge on Windows"),
        ("curl/8.5.0", "curl"),
        ("", "Unknown device"),
        ("<script>alert(1)</script>", "<script>alert(1)<"),
        ("x" * 500, "x" * 40),
    ],
)
def test_a_device_is_named_in_two_words_whatever_it_says_of_itself(user_agent: str, name: str) -> None:
    assert device(user_agent) == name


def test_a_session_from_before_sessions_were_listed_is_listed_too() -> None:
    client = Client()
    client.force_login(person(), backend="django.contrib.auth.backends.ModelBackend")
    from allauth.usersessions.models import UserSession

    UserSession.objects.all().delete()
    reply: Any = client.get(LIST)
    assert [place.current for place in reply.context["places"]] == [True]


def test_a_session_is_listed_from_its_first_moment_whichever_page_began_it() -> None:
    """Django's own login(), as the page of an invitation uses it."""
    from allauth.usersessions.models import UserSession
    from django.contrib.auth import login
    from django.contrib.sessions.backends.db import SessionStore
    from django.test import RequestFactory

    request = RequestFactory().post("/", REMOTE_ADDR="192.0.2.9")
    request.session = SessionStore()
    user = person()
    login(request, user, backend="django.contrib.auth.backends.ModelBackend")
    row = UserSession.objects.get(user=user)
    assert (row.ip, row.session_key) == ("192.0.2.9", request.session.session_key)
