"""Which language a page is in, for whom, and what stays English."""

from __future__ import annotations

import re
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from django.core import mail
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import translation

from chatapp.accounts.models import User
from chatapp.languages import words_url
from chatapp.tenants.addresses import parse
from chatapp.tenants.invitations import invite
from chatapp.tenants.tasks import send_invitation
from tests.chat.conftest import Team
from tests.tenants.test_every_address import OPERATIONS, client_of, ids

__all__ = ["ids"]

PASSWORD = "a password of some length"
SENDS = override_settings(EMAIL_BACKEND="django.core.mail.backends.locmem.EmailBackend")
LOGIN = "/accounts/login/"
HEADINGS = {"en": "Log in", "de": "Anmelden", "es": "Entrar", "zh-hans": "登录"}


def heading(html: str) -> str:
    found = re.search(r"<h1[^>]*>(.*?)</h1>", html, re.DOTALL)
    assert found
    return found[1].strip()


def language_of_page(html: str) -> str:
    found = re.search(r'<html lang="([^"]*)" dir="(ltr|rtl)"', html)
    assert found
    return found[1]


def person(email: str = "mira@acme.example", **fields: Any) -> User:
    user = User.objects.create_user(email, PASSWORD, **fields)
    EmailAddress.objects.create(user=user, email=user.email, primary=True, verified=True)
    return user


def logged_in(user: User) -> Client:
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def choose(client: Client, code: str, page: str = LOGIN) -> Any:
    return client.post(reverse("language"), {"language": code}, headers={"Referer": f"http://testserver{page}"})


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ("", "en"),
        ("de", "de"),
        ("de-AT,en;q=0.5", "de"),
        ("es-MX", "es"),
        ("zh-CN,zh;q=0.9", "zh-hans"),
        ("xx,yy;q=0.3", "en"),
        ("fr,de;q=0.5", "de"),
        ("../../etc/passwd", "en"),
        ("de" * 5000, "en"),
    ],
)
def test_a_browser_gets_the_best_of_what_it_asks_for(asked: str, code: str) -> None:
    reply = Client().get(LOGIN, headers={"Accept-Language": asked} if asked else {})
    html = reply.content.decode()
    assert (language_of_page(html), heading(html)) == (code, HEADINGS[code])
    assert reply["Content-Language"] == code
    assert "Accept-Language" in reply["Vary"]
    assert translation.get_language() == "en", "a request leaves its language behind"


@pytest.mark.django_db
def test_a_choice_on_the_login_page_holds_in_this_browser_and_leads_back() -> None:
    client = Client()
    html = client.get(LOGIN).content.decode()
    assert all(f'value="{code}" lang="{code}"' in html for code in HEADINGS)
    reply = choose(client, "es", "/accounts/login/?next=/t/acme/")
    assert (reply.status_code, reply["Location"]) == (302, "http://testserver/accounts/login/?next=/t/acme/")
    assert reply.cookies["octavo-language"]["httponly"]
    assert heading(client.get(LOGIN, headers={"Accept-Language": "de"}).content.decode()) == "Entrar"
    choose(client, "")
    assert heading(client.get(LOGIN, headers={"Accept-Language": "de"}).content.decode()) == "Anmelden"


@pytest.mark.django_db
@pytest.mark.parametrize("back", ["https://evil.example/", "//evil.example", "", "javascript:alert(1)"])
def test_a_choice_leads_to_no_other_site(back: str) -> None:
    reply = Client().post(reverse("language"), {"language": "de"}, headers={"Referer": back})
    assert reply["Location"] == "/"


@pytest.mark.django_db
@pytest.mark.parametrize("code", ["xx", "de\n", "a" * 1000, "<script>", "en-gb"])
def test_a_language_that_is_not_shipped_is_no_choice(code: str) -> None:
    user = person(language="de")
    assert choose(logged_in(user), code).status_code == 302
    user.refresh_from_db()
    assert user.language == ""


@pytest.mark.django_db
def test_a_choice_stands_with_the_account_and_other_devices_follow_at_once() -> None:
    user = person()
    here, there = logged_in(user), logged_in(user)
    assert heading(there.get("/accounts/").content.decode()) == "Your account"
    choose(here, "de", "/accounts/")
    for device in (here, there):
        assert heading(device.get("/accounts/").content.decode()) == "Ihr Konto"
    # It comes before what a browser asks for, or has kept.
    choose(there, "es")
    there.cookies["octavo-language"] = "de"
    assert heading(there.get("/accounts/", headers={"Accept-Language": "zh"}).content.decode()) == "Tu cuenta"


@pytest.mark.django_db
def test_the_accounts_page_changes_it_and_says_so_in_the_new_one() -> None:
    user = person()
    client = logged_in(user)
    reply = client.post("/accounts/", {"name": "Mira", "language": "zh-hans"}, follow=True)
    html = reply.content.decode()
    assert (language_of_page(html), heading(html)) == ("zh-hans", "你的账户")
    assert "更改已保存。" in html
    client.post("/accounts/", {"name": "Mira", "language": ""})
    user.refresh_from_db()
    assert user.language == ""
    assert "octavo-language" not in client.cookies or not client.cookies["octavo-language"].value
    refused = client.post("/accounts/", {"name": "Mira", "language": "xx"})
    assert refused.status_code == 400


@pytest.mark.django_db
def test_who_a_page_is_missing_for_reads_that_in_their_language() -> None:
    client = logged_in(person(language="de"))
    for path in ("/nowhere/at/all", "/t/nobodys/"):
        reply = client.get(path)
        assert reply.status_code == 404
        assert heading(reply.content.decode()) == "Hier ist nichts"
    assert heading(Client().get("/nowhere", headers={"Accept-Language": "es"}).content.decode()) == "Aquí no hay nada"


def test_programs_and_operators_read_english_whatever_they_ask_for(team: Team) -> None:
    """The same refusal of the same service: in English for a program, in the reader's language on a page."""
    user = team.owner.user
    assert user is not None
    User.objects.filter(pk=user.pk).update(language="de")
    client = client_of(team.owner)
    german = {"Accept-Language": "de"}
    body = {"name": ""}
    api = client.patch(
        f"/api/t/{team.tenant.slug}/settings", body, content_type="application/json", headers=german
    ).json()
    assert api["error"]["message"].startswith("A team's name has 1 to"), api
    told = client.patch(
        f"/api/t/{team.tenant.slug}/settings",
        body,
        content_type="application/json",
        headers={"X-Reader-Language": "de"},
    ).json()
    assert told["error"]["message"] == "Der Name eines Teams hat 1 bis 120 Zeichen.", (
        "a page's own script says who reads"
    )
    reply = client.post(f"/t/{team.tenant.slug}/admin/settings", {"name": " \u200b ", "accent": "teal"})
    assert "Der Name eines Teams hat 1 bis 120 Zeichen." in reply.content.decode()
    message = Client().get("/v1/batches", headers={"Authorization": "Bearer none", **german}).json()["error"]["message"]
    assert message.startswith("This API key is not valid")
    assert language_of_page(Client().get("/docs/", headers=german).content.decode()) == "en"
    operator = logged_in(User.objects.create_superuser("operator@example.org", PASSWORD, language="de"))
    assert 'lang="en' in operator.get("/admin/", headers=german).content.decode()


@pytest.mark.django_db
def test_scripts_get_words_where_the_language_is_not_english_and_may_keep_them() -> None:
    assert "/words/" not in Client().get(LOGIN).content.decode()
    html = Client().get(LOGIN, headers={"Accept-Language": "de"}).content.decode()
    found = re.search(r'<script defer src="(/words/de/\w+\.js)"></script>', html)
    assert found
    assert html.index(found[0]) < html.index('type="module"')
    reply = Client().get(found[1])
    assert reply["Content-Type"] == "text/javascript; charset=utf-8"
    assert "immutable" in reply["Cache-Control"]
    assert "max-age=31536000" in reply["Cache-Control"]
    text = reply.content.decode()
    assert '"Copied": "Kopiert"' in text
    assert "eval" not in text
    reader = Client()
    reader.force_login(person("de@acme.example", language="de"))
    with CaptureQueriesContext(connection) as asked:
        again = reader.get(found[1])
    assert (len(asked), again.content) == (0, reply.content), "its address says all: nobody asks who reads"
    assert not {"cookie", "accept-language"} & set(again.get("Vary", "").lower().replace(",", " ").split())
    # Words of another version are given, and kept by nobody.
    assert Client().get("/words/de/0000.js")["Cache-Control"] == "no-store"
    assert Client().get("/words/xx/0000.js").status_code == 404
    with translation.override("es"):
        assert words_url("de") == found[1]
    assert words_url("es") != words_url("de")


@SENDS
@pytest.mark.django_db
def test_mail_is_in_the_language_of_who_gets_it() -> None:
    person("de@acme.example", language="de")
    person("none@acme.example")
    Client().post("/accounts/password/reset/", {"email": "de@acme.example"}, headers={"Accept-Language": "es"})
    # Who has chosen nothing gets what the browser of the request asks for: mostly their own.
    Client().post("/accounts/password/reset/", {"email": "none@acme.example"}, headers={"Accept-Language": "es"})
    assert [one.subject for one in mail.outbox] == ["Wählen Sie ein neues Passwort", "Elige una contraseña nueva"]
    assert "Wählen Sie ein neues Passwort für Ihr Konto bei Octavo:" in str(mail.outbox[0].body)


@SENDS
def test_an_invitation_is_in_the_language_of_who_is_invited_or_else_invites(team: Team) -> None:
    owner = team.owner.user
    assert owner is not None
    User.objects.filter(pk=owner.pk).update(language="de")
    User.objects.create_user("knows@acme.example", PASSWORD, language="zh-hans")
    found = invite(access=team.owner, addresses=parse("new@acme.example, knows@acme.example"), role="member")
    for one in found:
        assert one.invitation is not None
        send_invitation(str(one.invitation.pk))
    said = {message.to[0]: message for message in mail.outbox}
    assert "lädt Sie zu" in said["new@acme.example"].subject
    assert "als Mitglied" in str(said["new@acme.example"].body)
    assert "邀请你加入" in said["knows@acme.example"].subject


def test_every_page_of_a_team_is_made_in_every_language(team: Team, ids: dict[str, Any]) -> None:
    user = team.owner.user
    assert user is not None
    client = client_of(team.owner)
    pages = [operation for operation in OPERATIONS if not operation.is_api and operation.method == "GET"]
    for code in ("de", "es", "zh-hans"):
        User.objects.filter(pk=user.pk).update(language=code)
        walked = 0
        for operation in pages:
            reply = client.get(operation.path(team.tenant.slug, ids))
            if reply.status_code != 200 or not reply["Content-Type"].startswith("text/html"):
                continue
            html = reply.content.decode()
            assert language_of_page(html) == code, operation
            assert "%(" not in re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL), operation
            walked += 1
        assert walked > 25
