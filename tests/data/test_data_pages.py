"""The data pages and their API: for owners, in words, and for nobody else."""

from __future__ import annotations

import io
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from chatapp.accounts.models import User
from chatapp.audit.models import AuditEntry
from chatapp.chat.models import Conversation, Generation
from chatapp.data import own
from chatapp.data.exports import request_own_export
from chatapp.data.models import Deletion, Export, OwnExport, Retention
from chatapp.data.retention import sweep
from chatapp.files.models import StoredFile
from chatapp.files.services import store
from chatapp.ids import new_id
from chatapp.tenants.models import Membership, Role, Tenant
from chatapp.tenants.services import add_member
from chatapp.usage.models import UsageRow
from tests.chat.conftest import Team
from tests.data.conftest import Sent, a_chat, logged_in

PAGE = "/t/acme/admin/data"
OWN = "/accounts/data"


@pytest.fixture(autouse=True)
def _commits(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import transaction

    monkeypatch.setattr(transaction, "on_commit", lambda work, **kw: work())


def sending(page: str, action: str) -> dict[str, str]:
    """The form's token that a second send has again."""
    form = next(form for form in page.split("<form")[1:] if f'value="{action}"' in form)
    once = re.search(r'name="once" value="(\w+)"', form)
    return {"action": action, **({"once": once[1]} if once else {})}


def test_the_page_teaches_what_there_is_before_there_is_anything(team: Team) -> None:
    html = logged_in(team.owner).get(PAGE).content.decode()
    assert "Chats are kept until somebody deletes them" in html
    assert "No export yet" in html
    assert "Type acme to confirm" in html
    assert 'aria-current="page"' in html


def test_a_rule_is_shown_first_and_turned_on_by_a_second_step(team: Team) -> None:
    a_chat(team.member, "old", "older", days_ago=40)
    client = logged_in(team.owner)
    rule = {"action": "retention", "days": "30", "keep_starred": "on", "usage_days": "400"}
    html = client.post(PAGE, rule).content.decode()
    assert "Nothing has been changed" in html
    assert "member@acme.test" in html
    assert not Retention.objects.exists()
    again = {**rule, **sending(html, "retention"), "confirmed": "1"}
    for _ in range(2):  # a double click
        reply = client.post(PAGE, again, follow=True)
    assert Retention.objects.get().days == 30
    assert "30 days after their last message" in reply.content.decode()
    assert AuditEntry.objects.filter(action="data.retention_changed").count() == 1
    reply = client.post(PAGE, {**rule, "days": "", "usage_days": "400"})
    assert reply.status_code == 302, "what deletes less needs no dry run"
    assert Retention.objects.get().days is None


def test_a_shorter_term_of_figures_is_shown_first_too(team: Team) -> None:
    for days in (70, 200, 300, 500):
        figures(team, days)
    client = logged_in(team.owner)
    rule = {"action": "retention", "days": "", "keep_starred": "on", "usage_days": "100"}
    html = client.post(PAGE, rule).content.decode()
    assert "keep usage figures for 100 days" in html
    assert "<dt>Usage rows</dt><dd>3</dd>" in html
    assert "after their last message" not in html, "no chat goes by it"
    assert not Retention.objects.exists()
    again = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', html.split("card danger")[1]))
    assert again["days"] == ""
    assert client.post(PAGE, again).status_code == 302
    kept = Retention.objects.get()
    assert (kept.days, kept.keep_starred, kept.usage_days) == (None, True, 100)
    sweep(team.tenant)
    assert UsageRow.objects.count() == 1, "what was shown is what goes"
    assert client.post(PAGE, {**rule, "usage_days": "400"}).status_code == 302, "what keeps more needs no dry run"
    both = client.post(PAGE, {**rule, "days": "30", "usage_days": "62"}).content.decode()
    assert "delete chats 30 days after their last message, keep starred ones; keep usage figures for 62 days" in both
    assert "<dt>Usage rows</dt><dd>1</dd>" in both


def figures(team: Team, days_ago: int) -> None:
    """One answer's, in the roll-ups already."""
    at = timezone.now() - timedelta(days=days_ago)
    UsageRow.objects.create(
        generation_id=new_id(), tenant=team.tenant, at=at, ended_at=at, kind="chat", principal=team.member.principal,
        model="m", state="finished", pending=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"days": "0"}, "days"),
        ({"days": "x"}, "days"),
        ({"days": "99999"}, "days"),
        ({"usage_days": "1"}, "usage_days"),
    ],
)
def test_bad_terms_are_said_at_their_field_and_stay_as_typed(team: Team, sent: dict[str, str], field: str) -> None:
    rule = {"action": "retention", "days": "30", "usage_days": "400", **sent}
    reply = logged_in(team.owner).post(PAGE, rule)
    assert reply.status_code == 400
    html = reply.content.decode()
    assert f'id="id_{field}_error"' in html
    assert f'value="{sent[field]}"' in html
    assert not Retention.objects.exists()


def test_an_unknown_action_is_a_bad_request(team: Team) -> None:
    assert logged_in(team.owner).post(PAGE, {"action": "x"}).status_code == 400
    assert logged_in(team.owner).post(OWN, {"action": "x"}).status_code == 400


def test_an_export_from_its_button_to_its_download(team: Team, sent: Sent) -> None:
    a_chat(team.member, "one", "two")
    client = logged_in(team.owner)
    form = sending(client.get(PAGE).content.decode(), "export")
    for _ in range(2):
        client.post(PAGE, form)
    export = Export.objects.get()
    html = client.get(PAGE).content.decode()
    assert f'data-progress="/api/t/acme/exports/{export.pk}"' in html
    assert client.get(f"/api/t/acme/exports/{export.pk}").json()["state"] == "queued"
    assert client.get(f"{PAGE}/exports/{export.pk}").status_code == 404, "it is not there yet"
    sent.run()
    told = client.get(f"/api/t/acme/exports/{export.pk}").json()
    assert (told["state"], told["percent"]) == ("done", 100)
    reply = client.get(f"{PAGE}/exports/{export.pk}")
    assert reply["Content-Disposition"].startswith('attachment; filename="acme-')
    assert "no-store" in reply["Cache-Control"]
    assert b"".join(reply.streaming_content) == export.path.read_bytes()  # type: ignore[attr-defined]
    assert AuditEntry.objects.filter(action="data.export_downloaded").count() == 1
    client.post(PAGE, {"action": "remove", "export": str(export.pk)})
    assert not export.path.exists()
    assert client.get(f"{PAGE}/exports/{export.pk}").status_code == 404


async def test_a_download_under_asgi_comes_in_pieces(tmp_path: Any) -> None:
    from django.test import AsyncRequestFactory

    from chatapp.dashboard.downloads import CHUNK, download

    path = tmp_path / "big.zip"
    path.write_bytes(b"x" * (3 * CHUNK + 5))
    reply = download(AsyncRequestFactory().get("/"), path, "big.zip", 3 * CHUNK + 5)
    assert reply.is_async
    assert [len(piece) async for piece in reply] == [CHUNK, CHUNK, CHUNK, 5]


def test_deleting_the_team_needs_its_name_and_leads_to_where_it_can_be_undone(team: Team) -> None:
    client = logged_in(team.owner)
    reply = client.post(PAGE, {"action": "delete", "confirm": "acm"})
    assert reply.status_code == 400
    assert "Type acme to confirm." in reply.content.decode()
    reply = client.post(PAGE, {"action": "delete", "confirm": "acme"}, follow=True)
    html = reply.content.decode()
    assert reply.redirect_chain == [(OWN, 302)]
    assert "Undo, and open Acme again" in html
    assert client.get(PAGE).status_code == 404
    assert logged_in(team.member).get("/t/acme/").status_code == 404
    deletion = Deletion.objects.get()
    stranger = logged_in(team.member)
    assert stranger.post(OWN, {"action": "undo", "deletion": str(deletion.pk)}).status_code == 404
    client.post(OWN, {"action": "undo", "deletion": str(deletion.pk)})
    assert client.get(PAGE).status_code == 200


def test_the_api_says_and_does_what_the_page_does(team: Team, sent: Sent) -> None:
    a_chat(team.member, "old", days_ago=40)
    client = logged_in(team.owner)
    base = "/api/t/acme"
    assert client.get(f"{base}/retention").json() == {"days": None, "keep_starred": True, "usage_days": 400}
    assert client.get(f"{base}/retention/preview?days=30").json()["conversations"] == 1
    figures(team, 100)
    for usage_days, rows in (("", 0), ("&usage_days=99", 1)):
        told = client.get(f"{base}/retention/preview?days=30{usage_days}").json()
        assert told["usage_rows"] == rows
    changed = client.put(f"{base}/retention", {"days": 30}, content_type="application/json")
    assert changed.json() == {"days": 30, "keep_starred": True, "usage_days": 400}
    for days in (0, "x", 99999):
        reply = client.put(f"{base}/retention", {"days": days}, content_type="application/json")
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "rule.days"), days
    made = client.post(f"{base}/exports")
    assert made.status_code == 202
    assert client.post(f"{base}/exports").status_code == 409
    stopped = client.delete(f"{base}/exports/{made.json()['id']}").json()
    assert stopped["state"] == "cancelled"
    reply = client.post(f"{base}/deletion", {"confirm": "x"}, content_type="application/json")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "confirm")
    reply = client.post(f"{base}/deletion", {"confirm": "acme"}, content_type="application/json")
    assert (reply.status_code, reply.json()["state"]) == (202, "waiting")
    assert client.get(f"{base}/retention").status_code == 404


# --- one's own data -----------------------------------------------------------------------------------------------


def test_a_person_exports_and_downloads_what_is_theirs_alone(team: Team, sent: Sent) -> None:
    a_chat(team.member, "one", "two")
    client = logged_in(team.member)
    for _ in range(2):
        client.post(OWN, sending(client.get(OWN).content.decode(), "export"))
    export = OwnExport.objects.get()
    progress = f"{OWN}/exports/{export.pk}/progress"
    assert progress in client.get(OWN).content.decode()
    sent.run()
    assert client.get(progress).json() == {"state": "done", "percent": 100}
    reply = client.get(f"{OWN}/exports/{export.pk}")
    assert b"".join(reply.streaming_content) == export.path.read_bytes()  # type: ignore[attr-defined]
    for path in (progress, f"{OWN}/exports/{export.pk}"):
        assert logged_in(team.owner).get(path).status_code == 404
        assert Client().get(path).status_code == 302
    client.post(OWN, {"action": "remove", "export": str(export.pk)})
    assert not export.path.exists()


def test_the_last_owner_of_a_team_is_told_which_and_stays(team: Team) -> None:
    client = logged_in(team.owner)
    assert "You are the last owner of" in client.get(OWN).content.decode()
    reply = client.post(OWN, {"action": "delete", "confirm": "owner@acme.test", "password": "a password"})
    assert reply.status_code == 400
    assert "Acme" in reply.content.decode()
    assert User.objects.filter(email="owner@acme.test", is_active=True).exists()
    assert team.member.user is not None
    add_member(tenant=team.tenant, user=team.member.user, role=Role.OWNER)
    assert "You are the last owner of" not in client.get(OWN).content.decode()


def test_leaving_needs_the_password_and_the_address(team: Team) -> None:
    client = logged_in(team.member)
    for sent, field in (
        ({"confirm": "member@acme.test", "password": "wrong"}, "password"),
        ({"confirm": "someone@acme.test", "password": "a password"}, "confirm"),
        ({"confirm": "", "password": "a password"}, "confirm"),
    ):
        reply = client.post(OWN, {"action": "delete", **sent})
        assert reply.status_code == 400
        assert f'id="id_{field}_error"' in reply.content.decode()
    assert User.objects.filter(email="member@acme.test", is_active=True).exists()


def test_who_has_no_password_needs_a_fresh_login(team: Team) -> None:
    user = team.member.user
    assert user is not None
    user.set_unusable_password()
    user.save()
    client = logged_in(team.member)
    User.objects.update(last_login=timezone.now() - timedelta(hours=1))
    assert "your login is too old" in client.get(OWN).content.decode()
    reply = client.post(OWN, {"action": "delete", "confirm": user.email})
    assert reply.status_code == 400
    User.objects.update(last_login=timezone.now())
    assert client.post(OWN, {"action": "delete", "confirm": user.email}).status_code == 302


def test_who_leaves_is_out_at_once_and_leaves_figures_and_a_name_in_the_log(team: Team, sent: Sent) -> None:
    user = team.member.user
    assert user is not None
    a_chat(team.member, "one", "two")
    kept = a_chat(team.owner, "kept")
    store(access=team.member, name="never sent.txt", content=io.BytesIO(b"mine"), purpose="user_data")
    request_own_export(user=user)
    sent.run()
    other = logged_in(team.member)
    client = logged_in(team.member)
    reply = client.post(OWN, {"action": "delete", "confirm": "MEMBER@acme.test", "password": "a password"}, follow=True)
    assert "Your account is deleted" in reply.content.decode()
    assert other.get("/t/acme/").status_code in (302, 404)
    assert not Membership.objects.filter(user_id=user.pk).exists()
    assert Conversation.objects.count() == 2, "what they wrote goes in the background"
    sent.run()
    assert [row.pk for row in Conversation.objects.all()] == [kept.pk]
    assert not User.objects.filter(pk=user.pk).exists()
    assert not StoredFile.objects.exists(), "and not the team's keys' either"
    figures = Generation.objects.get(conversation=None)
    assert (figures.principal, figures.prompt_tokens, figures.digest) == (own.NOBODY, 7, "")
    assert not OwnExport.objects.exists()
    entry = AuditEntry.objects.get(action="member.account_deleted")
    assert (entry.actor_name, entry.tenant_id) == ("member@acme.test", team.tenant.pk)
    assert Tenant.objects.count() == 1
    sent.run()


def test_the_page_says_why_the_log_keeps_a_name(team: Team) -> None:
    html = logged_in(team.member).get(OWN).content.decode()
    assert "audit logs keep your address" in html


def test_operators_undo_a_deletion_or_begin_it_before_its_time_and_never_delete_the_bare_row(
    team: Team, sent: Sent
) -> None:
    from chatapp.audit.services import operator as acting
    from chatapp.data.deletion import request_deletion

    operator = User.objects.create_superuser("op@octavo.test", "a password")
    client = Client()
    client.force_login(operator, backend="django.contrib.auth.backends.ModelBackend")
    chosen = {"action": "delete_selected", "_selected_action": [str(team.tenant.pk)], "post": "yes"}
    client.post("/admin/tenants/tenant/", chosen)
    assert Tenant.objects.filter(pk=team.tenant.pk).exists()
    deletion = request_deletion(tenant=team.tenant, actor=acting(operator))
    assert (deletion.actor_kind, deletion.actor_name, deletion.state) == ("operator", "op@octavo.test", "waiting")
    assert client.get("/admin/data/deletion/").status_code == 200
    assert client.get(f"/admin/data/deletion/{deletion.pk}/change/").status_code == 200
    client.post("/admin/data/deletion/", {"action": "undo", "_selected_action": [str(deletion.pk)]})
    team.tenant.refresh_from_db()
    assert team.tenant.suspended_at is None
    again = request_deletion(tenant=team.tenant, actor=acting(operator))
    for _ in range(2):
        client.post("/admin/data/deletion/", {"action": "begin", "_selected_action": [str(again.pk)]})
        client.post("/admin/data/deletion/", {"action": "begin", "_selected_action": [str(deletion.pk)]})
    assert {args for _, args in sent.calls} == {(str(again.pk),)}
    again.refresh_from_db()
    assert again.due_at <= timezone.now()
