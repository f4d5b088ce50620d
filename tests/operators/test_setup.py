"""Setting the site up: the first operator, once, by whoever reads the server's log; by command or by page."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client

from chatapp.accounts.models import User
from chatapp.accounts.selectors import has_operator
from chatapp.audit.models import AuditEntry
from chatapp.errors import BadInput, Conflict
from chatapp.operators.selectors import checklist, setup_link, setup_token
from chatapp.operators.services import set_up
from chatapp.prompts.services import publish
from chatapp.site import selectors as site
from chatapp.site.models import SiteSettings
from chatapp.tenants.models import Membership, Role, Tenant
from tests.chat.conftest import ScriptedWorker, Team
from tests.operators.smtp_server import Server

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "correct horse battery"


def form(**changed: str) -> dict[str, str]:
    return {
        "token": setup_token(), "email": "Me@Example.org", "password": PASSWORD, "again": PASSWORD,
        "site_name": "Atelier", "smtp_url": "", "mail_from": "", "tenant_name": "Studio", "tenant_slug": "studio",
        "owner_email": "", "action": "save", **changed,
    }  # fmt: skip


def nothing_was_made() -> bool:
    return not User.objects.exists() and not Tenant.objects.exists() and SiteSettings.objects.in_bulk().keys() <= {1}


# --- the page -----------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_page_makes_the_operator_the_site_and_the_first_team(client: Client) -> None:
    assert client.get("/").headers["Location"] == "/setup"
    page = client.get(setup_link().partition("127.0.0.1:8000")[2])
    assert page.status_code == 200
    assert "Set up this site" in page.content.decode()
    reply = client.post("/setup", form(), follow=True)
    assert reply.redirect_chain == [("/admin/checklist/", 302)]
    assert "Atelier is set up, and you are its operator" in reply.content.decode()
    user = User.objects.get()
    assert (user.email, user.is_staff, user.is_superuser) == ("me@example.org", True, True)
    assert user.check_password(PASSWORD)
    assert user.emailaddress_set.get().verified
    assert Membership.objects.get().role == Role.OWNER
    assert Membership.objects.get().user == user
    assert site.name() == "Atelier"
    entries = {entry.action: entry for entry in AuditEntry.objects.all()}
    assert {"site.set_up", "team.created", "member.added"} == set(entries)
    assert entries["team.created"].actor_kind == "operator"
    assert client.get("/t/studio/").status_code == 200
    fresh = Client()
    assert fresh.login(email="me@example.org", password=PASSWORD)
    assert "Atelier" in Client().get("/accounts/login/").content.decode()


@pytest.mark.django_db
def test_afterwards_the_page_is_not_there(client: Client) -> None:
    token = setup_token()
    client.post("/setup", form())
    for caller in (client, Client()):
        assert caller.get(f"/setup?token={token}").status_code == 404
        assert caller.post("/setup", form(token=token, email="other@example.org")).status_code == 404
        assert caller.get(f"/setup?token={setup_token()}").status_code == 404
    assert User.objects.count() == 1


@pytest.mark.django_db
def test_the_demo_never_needs_it(client: Client, operator: User) -> None:
    assert client.get("/setup").status_code == 404
    assert client.get("/").headers["Location"].startswith("/accounts/login/")


@pytest.mark.django_db
def test_without_the_token_of_the_log_nobody_gets_further(client: Client) -> None:
    page = client.get("/setup")
    assert page.status_code == 200
    assert "setup.needed" in page.content.decode()
    assert "password" not in page.content.decode()
    for token in ("wrong", setup_token()[:-1], setup_token().upper() + "x", "é" * 40, "\x00"):
        assert client.get("/setup", {"token": token}).status_code == 403
        assert client.post("/setup", form(token=token)).status_code == 403
    assert client.post("/setup", form(token="")).status_code == 200
    assert nothing_was_made()


@pytest.mark.django_db
def test_the_token_of_an_old_log_is_worth_nothing_once_it_was_used(client: Client) -> None:
    old = setup_token()
    assert setup_token() == old, "the same in every process"
    client.post("/setup", form())
    User.objects.all().update(is_active=False)
    assert not has_operator()
    assert Client().get("/setup", {"token": old}).status_code == 403
    assert Client().get("/setup", {"token": setup_token()}).status_code == 200


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"email": "me"}, "valid email"),
        ({"password": "short", "again": "short"}, "too short"),
        ({"password": "password123", "again": "password123"}, "too common"),
        ({"again": "another password"}, "not the same"),
        ({"site_name": ""}, "required"),
        ({"site_name": "a\u202eb"}, "one line"),
        ({"smtp_url": "mail.example"}, "no address of a mail server"),
        ({"mail_from": "x"}, "valid email"),
        ({"tenant_slug": "No Spaces"}, "inner hyphens"),
        ({"tenant_name": ""}, "blank"),
        ({"tenant_name": "삼겹살", "tenant_slug": ""}, "blank"),
        ({"owner_email": "nobody"}, "valid email"),
    ],
)
def test_what_is_wrong_is_said_at_its_field_and_nothing_is_half_done(
    client: Client, changed: dict[str, str], words: str
) -> None:
    reply = client.post("/setup", form(**changed))
    page = reply.content.decode()
    assert reply.status_code == 400
    assert words in re.sub(r"&#x27;", "'", page)
    assert 'value="Studio"' in page or "tenant_name" in changed, "what was typed is kept"
    assert nothing_was_made()


@pytest.mark.django_db
def test_a_team_is_optional_and_its_short_name_follows_its_name(client: Client) -> None:
    client.post("/setup", form(tenant_name="", tenant_slug=""))
    assert has_operator()
    assert not Tenant.objects.exists()
    User.objects.all().delete()
    set_up(email="a@b.example", password=PASSWORD, site_name="X", tenant_name="The  Big Studio!")
    assert (Tenant.objects.get().slug, Tenant.objects.get().name) == ("the-big-studio", "The Big Studio!")


@pytest.mark.django_db
def test_a_team_for_somebody_else_gives_a_link_that_works_once(client: Client, settings: Any) -> None:
    reply = client.post("/setup", form(owner_email="Owner@Example.org"), follow=True)
    page = reply.content.decode()
    link = re.search(r"http://127.0.0.1:8000(/accounts/password/reset/key/\S+?/)", page)
    assert link, page
    owner = User.objects.get(email="owner@example.org")
    assert not owner.has_usable_password()
    assert Membership.objects.get().user == owner
    theirs = Client()
    opened = theirs.get(link[1], follow=True)
    theirs.post(opened.redirect_chain[-1][0], {"password1": "a new password 1", "password2": "a new password 1"})
    owner.refresh_from_db()
    assert owner.check_password("a new password 1")
    again = Client().get(link[1], follow=True).content.decode()
    assert "password1" not in again


@pytest.mark.django_db
def test_with_mail_the_owner_is_told_and_no_link_is_shown(client: Client, smtp: Server, settings: Any) -> None:
    settings.EMAIL_BACKEND = "chatapp.site.mail.EmailBackend"
    page = client.post("/setup", form(smtp_url=smtp.url, owner_email="owner@example.org"), follow=True)
    assert "/reset/key/" not in page.content.decode()
    (mail,) = smtp.mails
    assert mail["To"] == "owner@example.org"
    assert mail["Subject"] == "Studio at Atelier is yours"
    assert "/reset/key/" in mail.get_payload()


@pytest.mark.django_db
def test_the_test_mail_button_sends_one_and_keeps_what_was_typed(client: Client, smtp: Server) -> None:
    data = form(action="test", smtp_url=smtp.url, mail_from="team@atelier.example")
    reply = client.post("/setup", data)
    page = reply.content.decode()
    assert reply.status_code == 200
    assert "Sent. Look whether it is at Me@Example.org." in page
    assert smtp.mails[0]["From"] == "Atelier <team@atelier.example>"
    for typed in ("Studio", PASSWORD, "Me@Example.org"):
        assert f'value="{typed}"' in page
    assert nothing_was_made()
    wrong = client.post("/setup", form(action="test", smtp_url="smtp://127.0.0.1:1"))
    assert (wrong.status_code, "cannot be reached" in wrong.content.decode()) == (400, True)
    assert client.post("/setup", form(action="test")).status_code == 400
    assert client.post("/setup", form(action="test", email="")).status_code == 400


@pytest.mark.django_db
def test_mail_of_the_environment_is_shown_and_not_asked_for(client: Client, smtp: Server, settings: Any) -> None:
    settings.OCTAVO_MAIL_URL = smtp.url.replace("smtp://", "smtp://octavo:p%40ss%20word@")
    page = client.get("/setup", {"token": setup_token()}).content.decode()
    assert f"smtp://octavo:…@{smtp.at}" in page
    assert "p%40ss" not in page
    assert "Set by the environment" in page
    assert client.post("/setup", form(action="test", smtp_url="smtp://elsewhere.example")).status_code == 200
    assert len(smtp.mails) == 1
    client.post("/setup", form(smtp_url="smtp://elsewhere.example"))
    assert SiteSettings.objects.get().sealed_smtp_url == "", "a field that is not offered is not taken"


def test_of_two_at_once_one_wins(emptied: None) -> None:
    outcomes: list[str] = []
    start = threading.Barrier(2)

    def work(number: int) -> None:
        start.wait()
        try:
            set_up(email=f"me{number}@example.org", password=PASSWORD, site_name=f"Site {number}", tenant_name="Team")
            outcomes.append("won")
        except Conflict:
            outcomes.append("late")
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["late", "won"]
    assert User.objects.count() == Tenant.objects.count() == 1


@pytest.mark.django_db
def test_an_account_that_is_there_becomes_the_operator(team: Team) -> None:
    set_up(email="OWNER@acme.test", password=PASSWORD, site_name="X")
    user = User.objects.get(email="owner@acme.test")
    assert user.is_superuser
    assert user.check_password(PASSWORD)
    User.objects.filter(pk=user.pk).update(is_superuser=False)
    with pytest.raises(BadInput) as bad:
        set_up(email="new@acme.test", password=PASSWORD, site_name="X", tenant_name="A", tenant_slug="acme")
    assert bad.value.param == "tenant_slug"
    assert not User.objects.filter(email="new@acme.test").exists()


# --- the command --------------------------------------------------------------------------------------------------


def run(**environment: str) -> str:
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(f"OCTAVO_SETUP_{name}", value)
        call_command("setup", "--no-input", "--email", "me@example.org", "--tenant-name", "Studio", stdout=out)
    return out.getvalue()


@pytest.mark.django_db
def test_the_command_takes_options_and_the_environment_and_may_be_repeated() -> None:
    said = run(PASSWORD=PASSWORD, SITE_NAME="Atelier", OWNER_EMAIL="owner@example.org")
    assert "me@example.org is the operator of Atelier" in said
    assert "The team Studio belongs to owner@example.org" in said
    assert "/accounts/password/reset/key/" in said
    assert PASSWORD not in said
    assert "already; nothing was changed" in run(PASSWORD="another password", SITE_NAME="Other")
    assert site.name() == "Atelier"
    assert User.objects.get(email="me@example.org").check_password(PASSWORD)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "OCTAVO_SETUP_PASSWORD"),
        ({"PASSWORD": "short"}, "OCTAVO_SETUP_PASSWORD: .*too short"),
        ({"PASSWORD": PASSWORD, "SMTP_URL": "x"}, "--smtp-url: "),
        ({"PASSWORD": PASSWORD, "TENANT_SLUG": "A B"}, "--tenant-slug: "),
        ({"PASSWORD": PASSWORD, "OWNER_EMAIL": "x"}, "--owner-email: "),
    ],
)
def test_the_command_names_what_is_missing_or_wrong(environment: dict[str, str], words: str) -> None:
    with pytest.raises(CommandError, match=words):
        run(**environment)
    assert nothing_was_made()
    with pytest.raises(CommandError, match=r"--email or OCTAVO_SETUP_EMAIL"):
        call_command("setup", "--no-input")


@pytest.mark.django_db
def test_the_command_asks_where_somebody_sits(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["", "me@example.org", "", "", "", "Studio", "", ""])
    passwords = iter([PASSWORD, "mistyped", PASSWORD, PASSWORD])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: next(answers))
    monkeypatch.setattr("chatapp.operators.management.commands.setup.getpass", lambda question: next(passwords))
    call_command("setup", stdout=io.StringIO(), stderr=io.StringIO())
    assert User.objects.get().check_password(PASSWORD)
    assert (site.name(), Tenant.objects.get().slug) == ("Octavo", "studio")


@pytest.mark.django_db
def test_the_command_prints_the_pages_link_while_it_is_there() -> None:
    out = io.StringIO()
    call_command("setup", "--link", stdout=out)
    assert out.getvalue().strip() == setup_link()
    set_up(email="a@b.example", password=PASSWORD, site_name="X")
    out = io.StringIO()
    call_command("setup", "--link", stdout=out)
    assert out.getvalue() == ""


@pytest.mark.long
def test_the_server_says_where_the_first_operator_is_made(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")}
    env |= {"DJANGO_SETTINGS_MODULE": "chatapp.settings.local", "OCTAVO_DATA": str(tmp_path)}
    code = "import chatapp.asgi, threading; [t.join() for t in threading.enumerate() if t.name == 'announce-setup']"

    def started() -> str:
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "setup.needed" not in started(), "without a database it says nothing, and starts"
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=env, check=True)
    assert re.search(r"setup.needed.*http://127.0.0.1:8000/setup\?token=[0-9a-f]{40}", started())
    env |= {"OCTAVO_SETUP_PASSWORD": PASSWORD, "OCTAVO_SETUP_EMAIL": "me@example.org"}
    subprocess.run([sys.executable, "manage.py", "setup", "--no-input"], cwd=ROOT, env=env, check=True)
    assert "setup.needed" not in started()


# --- the checklist ------------------------------------------------------------------------------------------------


def states() -> dict[str, str]:
    return {check.title: check.state for check in checklist()}


def test_the_checklist_tells_how_the_parts_are(
    admin: Client, team: Team, worker: ScriptedWorker, settings: Any
) -> None:
    name = settings.OCTAVO_MODEL_NAME
    assert states() == {
        f"Model {name}": "bad", "Mail": "todo", "Backups": "todo", "System prompts": "good", "Address": "todo",
    }  # fmt: skip
    worker.beat()
    settings.OCTAVO_MAIL_URL, settings.OCTAVO_URL = "smtp://mail.example", "https://chat.example.org"
    Tenant.objects.create(slug="bare", name="Bare")
    Tenant.objects.create(slug="lost", name="Lost", default_model="gone")
    admin.post("/admin/checklist/", {"action": "backups"})
    now = states()
    assert (now[f"Model {name}"], now["Mail"], now["Backups"], now["Address"]) == ("good",) * 4
    assert (now["System prompts"], now["Owners"], now["Models of teams"]) == ("todo", "todo", "bad")
    page = admin.get("/admin/checklist/").content.decode()
    assert "Bare, Lost: nothing is published" in page
    assert AuditEntry.objects.filter(action="site.backups_confirmed").exists()
    for tenant in Tenant.objects.filter(slug__in=("bare", "lost")):
        publish(tenant=tenant, text="Be brief.")
    assert states()["System prompts"] == "good"
    settings.REDIS_URL = "unix:///nowhere/valkey.sock"
    assert states()["Engine"] == "bad"


def test_only_operators_see_the_checklist(client: Client, team: Team) -> None:
    assert team.owner.user is not None
    client.force_login(team.owner.user)
    assert client.get("/admin/checklist/").status_code == 302
    staff = User.objects.create_user("staff@example.org", "a password", is_staff=True)
    client.force_login(staff)
    assert client.get("/admin/checklist/").status_code == 403
