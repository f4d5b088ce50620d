"""Every page under /accounts/: ours to look at, strict in its policy, and nobody else's."""

from __future__ import annotations

import re
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from chatapp.accounts.text import one_line
from tests.accounts.conftest import activate_app, logged_in, page_text, person

pytestmark = pytest.mark.django_db

# Addresses that need more than a session, and are looked at in the tests of what they do.
ELSEWHERE = {
    "account_confirm_email", "account_reset_password_from_key", "account_confirm_login_code", "mfa_edit_webauthn",
    "mfa_remove_webauthn", "mfa_download_recovery_codes", "oidc-login", "oidc-callback", "usersessions_revoke",
    "mfa_trust", "account_confirm_reauthentication_code", "account-data", "account-export-file",
    "account-export-progress",
}  # fmt: skip


def names(patterns: list[Any], here: str = "") -> list[str]:
    found = []
    for entry in patterns:
        path = here + str(entry.pattern)
        if isinstance(entry, URLResolver):
            found += names(entry.url_patterns, path)
        elif isinstance(entry, URLPattern) and path.startswith("accounts/"):
            found.append(entry.name or "")
    return found


ALL = sorted(set(names(get_resolver("chatapp.urls").url_patterns)) - ELSEWHERE)


def check(reply: Any) -> None:
    html = reply.content.decode()
    policy = reply["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "css/entrance.css" in html
    assert "<title>" in html
    assert " · Octavo</title>" in html
    assert not re.search(r"\sstyle=|<style|\son\w+=", html)
    inline = [tag for tag in re.findall(r"<script\b[^>]*>", html) if "src=" not in tag and "/json" not in tag]
    assert inline == []
    assert "allauth" not in html


@pytest.mark.parametrize("name", ALL)
def test_a_page_wears_our_frame(name: str) -> None:
    user = person()
    client = logged_in(user)
    activate_app(client)
    for who in (Client(), client):
        reply = who.get(reverse(name), follow=True)
        if reply.status_code == 200 and reply.request["PATH_INFO"].startswith("/accounts/"):
            check(reply)
        else:
            assert reply.status_code in (200, 404, 405), (name, reply.status_code)


def test_the_list_of_pages_is_not_empty() -> None:
    assert {"account", "account_login", "mfa_index", "usersessions_list", "socialaccount_connections"} <= set(ALL)


@pytest.mark.parametrize("name", ["account", "account_email", "usersessions_list", "mfa_index", "mfa_activate_totp"])
def test_a_page_of_an_account_needs_a_session(name: str) -> None:
    assert Client().get(reverse(name), follow=True).redirect_chain[-1][0].startswith("/accounts/login/")


def test_the_account_page_leads_to_all_that_can_be_changed() -> None:
    html = logged_in(person()).get("/accounts/").content.decode()
    for name in ("account_email", "account_change_password", "mfa_index", "mfa_add_webauthn", "usersessions_list",
                 "socialaccount_connections", "account_logout", "account-data"):  # fmt: skip
        assert f'href="{reverse(name)}"' in html, name


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("  Mira   Castellanos ", "Mira Castellanos"),
        ("Łukasz \N{WOMAN}\u200d\N{MICROSCOPE}", "Łukasz \N{WOMAN}\u200d\N{MICROSCOPE}"),
        ("a\u202eb\u200bc\x00d\ne", "abc d e"),
        ("", ""),
    ],
)
def test_a_name_is_kept_as_one_line(typed: str, kept: str) -> None:
    assert one_line(typed) == kept
    if "\x00" not in typed:
        user = person()
        client = logged_in(user)
        assert client.post("/accounts/", {"name": typed}).status_code == 302
        user.refresh_from_db()
        assert user.name == kept


def test_a_name_that_is_too_long_is_refused_and_kept_in_the_form() -> None:
    reply = logged_in(person()).post("/accounts/", {"name": "x" * 121})
    assert reply.status_code == 400
    assert "at most 120 characters" in page_text(reply)
    assert "x" * 121 in reply.content.decode()


def test_a_link_with_a_service_can_be_removed_unless_nothing_else_is_left() -> None:
    user = person()
    client = logged_in(user)
    link = SocialAccount.objects.create(user=user, provider="gone", uid="1")
    theirs = SocialAccount.objects.create(user=person("other@acme.example"), provider="gone", uid="2")
    url = "/accounts/connections/"
    assert "A team that is gone" in page_text(client.get(url))
    assert "has no such link" in page_text(client.post(url, {"link": theirs.pk}, follow=True))
    assert "has no such link" in page_text(client.post(url, {"link": "9" * 30}, follow=True))
    client.post(url, {"link": link.pk})
    assert list(SocialAccount.objects.all()) == [theirs]
    link = SocialAccount.objects.create(user=user, provider="gone", uid="1")
    user.set_unusable_password()
    user.save()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    assert "Choose a password first" in page_text(client.post(url, {"link": link.pk}, follow=True))


@pytest.mark.parametrize(
    ("host", "possible"),
    [("localhost:8000", True), ("127.0.0.1:8000", False), ("localhost", True)],
)
def test_a_page_where_browsers_allow_no_passkeys_says_so(host: str, possible: bool) -> None:
    client = logged_in(person())
    text = page_text(client.get("/accounts/2fa/webauthn/add/", headers={"Host": host}))
    assert ("Browsers allow passkeys only at a name over TLS" in text) is not possible
