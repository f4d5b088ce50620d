"""The site's settings: its name in titles and mails, where mail goes, and whose word counts."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.mail import EmailMessage
from django.db import IntegrityError, transaction
from django.test import Client

from chatapp.audit.models import AuditEntry
from chatapp.audit.services import SYSTEM
from chatapp.errors import BadInput
from chatapp.operators import site as services
from chatapp.site import selectors
from chatapp.site.mail import EmailBackend
from chatapp.site.models import SiteSettings
from chatapp.site.smtp import BadUrl, NotSent, Server, parse
from tests.operators import smtp_server

pytestmark = pytest.mark.django_db


def save(url: str | None = None, name: str = "Atelier", sender: str = "") -> SiteSettings:
    return services.save_settings(actor=SYSTEM, name=name, smtp_url=url, mail_from=sender)


@pytest.mark.parametrize(
    ("url", "server", "shown"),
    [
        ("smtp://mail.example", Server("smtp", "mail.example", 587), "smtp://mail.example:587"),
        ("smtps://u:p@mail.example", Server("smtps", "mail.example", 465, "u", "p"), "smtps://u:…@mail.example:465"),
        ("smtp://a%40b:p%40%2F@h:2525", Server("smtp", "h", 2525, "a@b", "p@/"), "smtp://a%40b:…@h:2525"),
        ("smtp://relay?tls=none", Server("smtp", "relay", 25, plain=True), "smtp://relay:25?tls=none"),
        (" smtp://[::1]:25 ", Server("smtp", "::1", 25), "smtp://[::1]:25"),
    ],
)
def test_a_mail_server_is_one_address(url: str, server: Server, shown: str) -> None:
    assert parse(url) == server
    assert server.shown == shown
    assert parse(url).connection().use_tls is (server.scheme == "smtp" and not server.plain)


@pytest.mark.parametrize(
    "url",
    ["mail.example", "http://mail.example", "smtp://", "smtp://h:99999", "smtp://h:x", "smtp://u@h", "smtp://:secret@h",
     "smtp://h/path", "smtp://h?tls=maybe", "smtp://u:secret%0Ax@h", "smtp://[::1", "smtp://u:secret@ma il",
     "smtp://u:secret@m\u00e4il\x80", "smtp://a..b", f"smtp://{'h' * 64}.example"],
)  # fmt: skip
def test_what_is_no_mail_server_is_refused_without_repeating_a_password(url: str) -> None:
    with pytest.raises(BadUrl) as refused:
        parse(url)
    assert "secret" not in str(refused.value)
    with pytest.raises(BadInput) as bad:
        save(url)
    assert bad.value.param == "smtp_url"


@pytest.mark.parametrize("name", ["", "  ", "x" * 61, "a\x07b", "a\u202eb"])
def test_a_site_needs_a_name_of_one_line(name: str) -> None:
    with pytest.raises(BadInput) as bad:
        save(name=name)
    assert bad.value.param == "site_name"


def test_there_is_one_row_at_most() -> None:
    save()
    with pytest.raises(IntegrityError), transaction.atomic():
        SiteSettings.objects.create(pk=2)
    assert save(name="  Other \n name ").name == "Other name"
    assert SiteSettings.objects.count() == 1


def test_the_password_is_sealed_in_the_database_and_in_no_log_entry(settings: Any) -> None:
    save("smtp://user:very-secret@mail.example:2525")
    row = SiteSettings.objects.get()
    assert "very-secret" not in row.sealed_smtp_url
    assert selectors.mail().server == Server("smtp", "mail.example", 2525, "user", "very-secret")
    assert selectors.mail().sender == "octavo@mail.example"
    entry = AuditEntry.objects.get(action="site.changed")
    assert entry.tenant_id is None
    assert entry.details["mail_server"] == "smtp://user:…@mail.example:2525"
    save(None, name="Renamed")
    assert selectors.mail_is_set_up(), "what is not typed again stays"
    settings.SECRET_KEY = "another one " * 6
    mail = selectors.mail()
    assert mail.server is None
    assert "SECRET_KEY" in mail.trouble
    settings.SECRET_KEY_FALLBACKS = ["only for tests: " + "0123456789abcdef" * 4]
    assert selectors.mail_is_set_up()
    save("")
    assert selectors.mail() == selectors.Mail()


def test_the_environment_wins_and_is_shown_as_such(settings: Any, admin: Client) -> None:
    save("smtp://mail.example", sender="a@mail.example")
    settings.OCTAVO_MAIL_URL = "smtps://u:hidden-word@env.example"
    mail = selectors.mail()
    assert mail.from_environment
    assert (mail.server and mail.server.host, mail.sender) == ("env.example", "octavo@env.example")
    page = admin.get("/admin/site/sitesettings/").content.decode()
    assert "smtps://u:…@env.example:465" in page
    assert "OCTAVO_MAIL_URL" in page
    assert "hidden-word" not in page
    settings.OCTAVO_MAIL_URL = "nonsense"
    assert selectors.mail().server is None
    assert selectors.mail().trouble


def test_mail_goes_through_the_server_from_the_sites_name(smtp: smtp_server.Server, settings: Any) -> None:
    user, password = smtp_server.USER, "p%40ss%20word"
    save(f"smtp://{user}:{password}@{smtp.at}?tls=none", sender="team@atelier.example")
    message = EmailMessage("Hello", "Text", to=["someone@example.org"])
    assert EmailBackend().send_messages([message]) == 1
    (mail,) = smtp.mails
    assert (mail["From"], mail["To"]) == ("Atelier <team@atelier.example>", "someone@example.org")
    other = EmailMessage("Hello", "Text", from_email="me@example.org", to=["someone@example.org"])
    EmailBackend().send_messages([other])
    assert smtp.mails[1]["From"] == "me@example.org"


def test_what_a_server_does_not_take_is_logged_and_not_raised(smtp: smtp_server.Server, settings: Any) -> None:
    """Else the page of a forgotten password would tell who has an account."""
    message = EmailMessage("Hello", "Text", to=["someone@example.org"])
    settings.OCTAVO_DEMO = False
    assert EmailBackend().send_messages([message]) == 0
    save(f"smtp://{smtp_server.USER}:wrong@{smtp.at}?tls=none")
    assert EmailBackend().send_messages([message]) == 0
    assert smtp.mails == []


@pytest.mark.parametrize(
    ("url", "to", "words"),
    [
        ("smtp://octavo:wrong@{at}?tls=none", "a@example.org", "user and password"),
        ("smtp://{at}?tls=none", "nobody@example.org", "does not take mail to nobody@example.org"),
        ("smtp://{at}", "a@example.org", "cannot do what is asked"),
        ("smtp://127.0.0.1:1", "a@example.org", "cannot be reached"),
        ("smtp://no-such-host.invalid", "a@example.org", "no host"),
        ("smtp://octavo:p%C3%A4ss@{at}?tls=none", "a@example.org", "beyond ASCII"),
    ],
)
def test_a_test_mail_says_which_step_failed(smtp: smtp_server.Server, url: str, to: str, words: str) -> None:
    with pytest.raises(NotSent, match=words):
        services.send_test_mail(to=to, smtp_url=url.replace("{at}", smtp.at))


def test_an_operator_changes_the_settings_and_sends_a_test(
    emptied: None, admin: Client, smtp: smtp_server.Server
) -> None:
    data = {
        "name": "Atelier",
        "smtp_url": smtp.url,
        "mail_from": "team@atelier.example",
        "site_sitesettings_save_and_test": "1",
    }
    reply = admin.post("/admin/site/sitesettings/", data)
    assert reply.status_code == 302, reply.content.decode()
    reply = admin.get("/admin/site/sitesettings/")
    assert "A test mail is on its way to operator@example.org" in reply.content.decode()
    assert smtp.mails[0]["From"] == "Atelier <team@atelier.example>"
    assert "· Atelier</title>" in Client().get("/accounts/login/").content.decode()
    bad = admin.post("/admin/site/sitesettings/", {"name": "", "smtp_url": "x", "mail_from": "y"})
    assert bad.status_code == 200
    assert "This is no address of a mail server" in bad.content.decode()
    assert SiteSettings.objects.get().name == "Atelier"
    admin.post("/admin/site/sitesettings/", {"name": "Atelier", "smtp_url": "", "mail_from": "", "no_mail": "on"})
    assert not selectors.mail_is_set_up()
