"""The workspace's pages as the server gives them, before any script has run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.test import Client

from chatapp.accounts.models import User
from chatapp.chat.services import ask
from chatapp.chat.views import groups_by_day
from chatapp.tenants.models import Tenant
from tests.chat.conftest import ScriptedWorker, Team


def logged_in(access: Any) -> Client:
    client = Client()
    client.force_login(access.user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def data_of(html: str) -> dict[str, Any]:
    found = re.search(r'<script id="page" type="application/json">(.*?)</script>', html, re.DOTALL)
    assert found
    return dict(json.loads(found[1]))


def test_pages_ask_a_stranger_to_log_in(team: Team) -> None:
    User.objects.create_superuser("operator@example.org", "a password")  # else the first page is the set-up
    for path in ("/", "/t/acme/"):
        reply = Client().get(path)
        assert reply.status_code == 302
        assert reply["Location"] == f"/accounts/login/?next={path}"


def test_the_first_page_leads_to_the_team_that_was_used_last(team: Team, strangers: Team) -> None:
    client = logged_in(team.member)
    assert client.get("/")["Location"] == "/t/acme/"
    strangers.tenant.memberships.create(user=team.member.user)
    assert client.get("/t/other/").status_code == 200
    assert client.get("/")["Location"] == "/t/other/"


@pytest.mark.django_db
def test_a_person_without_a_team_is_told_what_to_do() -> None:
    client = Client()
    user = User.objects.create_user("alone@nowhere.test", "a password")
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    reply = client.get("/")
    assert reply.status_code == 200
    assert "No team yet" in reply.content.decode()


def test_a_conversation_reads_without_scripts(team: Team, worker: ScriptedWorker, record: Callable[[], int]) -> None:
    generation = ask(access=team.member, text='Is 1 < 2 & "so" on?')
    worker.answer("Yes: **1** ", "& </script><script>alert(1)</script>")
    record()
    html = logged_in(team.member).get(f"/t/acme/c/{generation.conversation_id}").content.decode()
    assert "Is 1 &lt; 2 &amp; &quot;so&quot; on?" in html
    assert "Yes: **1** &amp; &lt;/script&gt;" in html
    assert "<script>alert" not in html
    answer = data_of(html)["conversation"]["messages"][1]
    assert answer["text"] == "Yes: **1** & </script><script>alert(1)</script>"
    assert (answer["status"], answer["last_seq"]) == ("finished", 2)
    assert answer["usage"] == {"prompt_tokens": 7, "cached_tokens": 3, "shared_tokens": 0, "completion_tokens": 2}


def test_an_answer_that_runs_is_given_to_be_resumed_from_its_beginning(team: Team, worker: ScriptedWorker) -> None:
    generation = ask(access=team.member, text="Hello")
    worker.begin("Hi ")
    data = data_of(logged_in(team.member).get(f"/t/acme/c/{generation.conversation_id}").content.decode())
    answer = data["conversation"]["messages"][1]
    assert answer["response_id"] == str(generation.pk)
    assert (answer["text"], answer["last_seq"], answer["status"]) == ("", -1, "queued")
    assert data["conversations"]["items"][0]["running"] is True


def test_a_failed_answer_says_why(team: Team, worker: ScriptedWorker, record: Callable[[], int]) -> None:
    from engine.protocol import Failed

    generation = ask(access=team.member, text="Hello")
    worker.end(worker.begin("Hi "), Failed(seq=2, code="failed", message="The model fell over."))
    record()
    data = data_of(logged_in(team.member).get(f"/t/acme/c/{generation.conversation_id}").content.decode())
    answer = data["conversation"]["messages"][1]
    assert answer["error"] == {
        "code": "failed", "message": "The model fell over.", "param": None, "retryable": True,
    }  # fmt: skip
    assert answer["text"] == "Hi "


def test_pages_of_others_do_not_exist(team: Team, strangers: Team) -> None:
    """P11: a foreign tenant, conversation, and a colleague's conversation give 404."""
    theirs = ask(access=strangers.member, text="private").conversation_id
    colleagues = ask(access=team.owner, text="private").conversation_id
    client = logged_in(team.member)
    for path in ("/t/other/", f"/t/other/c/{theirs}", f"/t/acme/c/{theirs}", f"/t/acme/c/{colleagues}", "/t/none/"):
        reply = client.get(path)
        assert reply.status_code == 404, path
        assert "private" not in reply.content.decode()


def test_pages_carry_a_strict_policy_and_no_inline_code(team: Team) -> None:
    reply = logged_in(team.member).get("/t/acme/")
    policy = reply["Content-Security-Policy"]
    html = reply.content.decode()
    assert "unsafe" not in policy
    nonce = re.search(r"'nonce-([^']+)'", policy)
    assert nonce
    inline = [
        tag for tag in re.findall(r"<script\b[^>]*>", html) if "src=" not in tag and "application/json" not in tag
    ]
    assert inline
    assert all(f'nonce="{nonce[1]}"' in tag for tag in inline)
    assert not re.search(r"\sstyle=|<style|\son\w+=", html)
    assert "no-store" in reply["Cache-Control"]


def test_the_tenant_gives_the_page_its_accent(team: Team) -> None:
    Tenant.objects.filter(pk=team.tenant.pk).update(accent="plum")
    assert '<body class="frame" data-accent="plum">' in logged_in(team.member).get("/t/acme/").content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/nothing-here", "/t/", "/t/a/c/not-an-id"])
def test_wrong_addresses_get_a_page_in_plain_words(path: str) -> None:
    reply = Client().get(path)
    assert reply.status_code == 404
    assert "Nothing is here" in reply.content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "name", ["account_login", "account_reset_password", "account_reset_password_done", "account_signup"]
)
def test_account_pages_wear_our_frame(name: str) -> None:
    from django.urls import reverse

    html = Client().get(reverse(name)).content.decode()
    assert "css/entrance.css" in html
    assert "Octavo" in html


def test_conversations_are_grouped_by_day_in_the_readers_zone_and_starred_ones_stand_on_top() -> None:
    """As tests/js/days.test.js has it."""

    def item(day: str, at: str = "12:00", starred: str | None = None) -> dict[str, Any]:
        return {"updated_at": f"{day}T{at}:00+00:00", "starred_at": starred}

    now = datetime(2026, 11, 29, 13, tzinfo=UTC)
    days = ["2026-11-29", "2026-11-28", "2026-11-23", "2026-11-22", "2026-10-05", "2025-10-05"]
    groups = groups_by_day([item(day) for day in days], [], ZoneInfo("UTC"), now)
    names = ["Today", "Yesterday", "Last 7 days", "Last 30 days", "October", "October 2025"]
    assert [group["name"] for group in groups] == names
    assert [group["conversations"] for group in groups] == [[item(day)] for day in days]
    late, star = item("2026-11-28", "23:30"), item("2020-01-01", starred="2026-01-01")
    berlin = groups_by_day([late, item("2026-11-28", starred="x")], [star], ZoneInfo("Europe/Berlin"), now)
    assert [(group["name"], group["conversations"]) for group in berlin] == [("Starred", [star]), ("Today", [late])]


def test_every_error_page_renders_without_a_request() -> None:
    from django.template.loader import render_to_string

    for code in ("400", "403", "404", "500", "403_csrf"):
        assert "<h1>" in render_to_string(f"{code}.html")
