"""The pages about prompts and the same actions by HTTP: what they show, keep, and refuse."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from chatapp.audit.models import AuditEntry
from chatapp.prompts import measure, selectors, services
from chatapp.prompts.models import PromptVersion, SystemPrompt
from chatapp.tenants.access import access_for_user
from chatapp.tenants.models import Role, Tenant
from chatapp.tenants.services import add_member
from tests.chat.conftest import Team

BASE = "/t/acme/admin/prompts"
API = "/api/t/acme/prompts"


def browser(team: Team, who: str = "owner") -> Client:
    client = Client()
    client.force_login(getattr(team, who).user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def auditor(team: Team) -> Client:
    from chatapp.accounts.models import User

    user = User.objects.create_user("auditor@acme.test", "a password")
    add_member(tenant=team.tenant, user=user, role=Role.AUDITOR)
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def the_assistant(team: Team) -> SystemPrompt:
    return SystemPrompt.objects.get(tenant=team.tenant)


def as_json(client: Client, method: str, path: str, body: Any = None) -> Any:
    return getattr(client, method)(path, data=body, content_type="application/json")


def test_an_empty_team_is_told_what_instructions_are(team: Team) -> None:
    tenant = Tenant.objects.create(slug="new", name="New")
    add_member(tenant=tenant, user=team.owner.user, role=Role.OWNER)  # type: ignore[arg-type]
    page = browser(team).get("/t/new/admin/prompts").content.decode()
    assert "keeps one copy in its memory" in page
    assert "Make the first assistant" in page


def test_writing_publishing_comparing_and_rolling_back_by_pages(team: Team) -> None:
    client, assistant = browser(team), the_assistant(team)
    page = f"{BASE}/{assistant.pk}"
    assert "You answer for acme." in client.get(page).content.decode()
    form = {"text": "Line one.\r\n  <b>Line</b> two.\r\n", "revision": 0, "note": "", "action": "save"}
    assert client.post(page, form).status_code == 302
    draft = selectors.draft(assistant)
    assert draft is not None
    assert draft.text == "Line one.\n  <b>Line</b> two.\n", "as it was typed, but for the line ends"
    shown = client.get(page).content.decode()
    assert "&lt;b&gt;Line&lt;/b&gt; two.\n</textarea>" in shown
    refused = client.post(page, {**form, "revision": 1, "action": "publish"})
    assert refused.status_code == 400
    assert "Say in a few words why" in refused.content.decode()
    assert client.post(page, {**form, "revision": 1, "action": "publish", "note": "Two lines"}).status_code == 302
    new = SystemPrompt.objects.get(pk=assistant.pk).published
    assert new is not None
    assert (new.number, new.note) == (2, "Two lines")
    old = PromptVersion.objects.get(prompt=assistant, number=1)
    for view, words in (("split", "side by side"), ("unified", "in one column")):
        diff = client.get(f"{BASE}/versions/{old.pk}/diff/{new.pk}?view={view}").content.decode()
        assert words in diff
        assert "&lt;b&gt;" in diff
        assert "<b>Line" not in diff
    rolled = client.post(f"{BASE}/versions/{old.pk}", {"note": ""})
    assert rolled.status_code == 302
    versions = client.get(f"{page}/versions").content.decode()
    assert "the text of version 1" in versions
    assert "Back to version 1" in versions
    actions = AuditEntry.objects.order_by("at", "id").values_list("action", flat=True)
    assert list(actions) == ["prompt.draft_begun", "prompt.published", "prompt.rolled_back"]


def test_a_second_editor_sees_what_saving_would_change_and_keeps_what_was_typed(team: Team) -> None:
    client, assistant = browser(team), the_assistant(team)
    services.save_draft(access=team.owner, assistant_id=assistant.pk, text="Theirs.", revision=0)
    page = f"{BASE}/{assistant.pk}"
    late = client.post(page, {"text": "Mine.", "revision": 0, "note": "", "action": "save"})
    assert late.status_code == 409
    shown = late.content.decode()
    assert ">\nMine.</textarea>" in shown
    assert "<del>Theirs</del>" in shown
    revision = re.search(r'name="revision" value="(\d+)"', shown)
    assert revision is not None
    knowing = {"text": "Mine.", "revision": revision[1], "note": "", "action": "save"}
    assert client.post(page, knowing).status_code == 302
    assert selectors.draft(assistant).text == "Mine."  # type: ignore[union-attr]


def test_a_double_click_publishes_once(team: Team) -> None:
    client, assistant = browser(team), the_assistant(team)
    form = {"text": "New.", "revision": 0, "note": "x", "action": "publish", "once": "the-same"}
    assert [client.post(f"{BASE}/{assistant.pk}", form).status_code for _ in range(2)] == [302, 302]
    assert list(PromptVersion.objects.order_by("number").values_list("number", flat=True)) == [1, 2]


def test_assistants_are_made_ordered_and_archived_by_pages(team: Team) -> None:
    client = browser(team)
    made = client.post(BASE, {"action": "create", "name": "Legal desk", "description": "Contracts"})
    assert made.status_code == 302
    legal = SystemPrompt.objects.get(slug="legal-desk")
    assert str(legal.pk) in made["Location"]
    again = client.post(BASE, {"action": "create", "name": "Legal desk"})
    assert again.status_code == 400
    assert "already" in again.content.decode()
    client.post(BASE, {"action": "up", "assistant": legal.pk})
    assert [one.name for one in selectors.assistants(team.tenant)] == ["Legal desk", "Assistant"]
    settings = f"{BASE}/{legal.pk}/settings"
    assert client.post(settings, {"action": "archive", "name": "wrong"}, follow=True).status_code == 200
    assert SystemPrompt.objects.get(pk=legal.pk).archived_at is None
    client.post(settings, {"action": "archive", "name": "Legal desk"})
    assert SystemPrompt.objects.get(pk=legal.pk).archived_at is not None
    assert "Archived" in client.get(BASE).content.decode()
    client.post(BASE, {"action": "restore", "assistant": legal.pk})
    assert SystemPrompt.objects.get(pk=legal.pk).archived_at is None
    bad = client.post(settings, {"action": "change", "name": "Legal desk", "slug": "No!", "description": ""})
    assert bad.status_code == 400


def test_an_auditor_reads_and_a_member_does_not(team: Team) -> None:
    assistant = the_assistant(team)
    reader = auditor(team)
    page = reader.get(f"{BASE}/{assistant.pk}")
    assert page.status_code == 200
    assert "You answer for acme." in page.content.decode()
    assert "<textarea" not in page.content.decode()
    assert reader.post(f"{BASE}/{assistant.pk}", {"text": "x", "revision": 0, "action": "save"}).status_code == 403
    assert reader.get(f"{BASE}/{assistant.pk}/settings").status_code == 403
    assert browser(team, "member").get(f"{BASE}/{assistant.pk}").status_code == 403


def test_a_thousand_versions_come_in_pages(team: Team) -> None:
    assistant = the_assistant(team)
    from django.utils import timezone

    PromptVersion.objects.bulk_create(
        PromptVersion(prompt=assistant, number=number, text=f"{number}", published_at=timezone.now())
        for number in range(2, 1001)
    )
    client = browser(team)
    first = client.get(f"{BASE}/{assistant.pk}/versions").content.decode()
    assert "?before=951" in first
    assert "?before" not in client.get(f"{BASE}/{assistant.pk}/versions?before=50").content.decode()
    for odd in ("x", "-1", "9" * 30, ""):
        assert client.get(f"{BASE}/{assistant.pk}/versions?before={odd}").status_code == 200
    page = client.get(f"{API}/{assistant.pk}/versions").json()
    assert (len(page["items"]), page["next"]) == (50, 951)
    assert client.get(f"{API}/{assistant.pk}/versions?before=951").json()["items"][0]["number"] == 950


def test_all_of_it_by_http(team: Team) -> None:
    client = browser(team)
    made = as_json(client, "post", API, {"name": "Legal desk"})
    assert made.status_code == 201
    at = f"{API}/{made.json()['id']}"
    assert as_json(client, "patch", at, {"description": "Contracts"}).json()["description"] == "Contracts"
    assert client.get(f"{at}/draft").json() is None
    draft = as_json(client, "put", f"{at}/draft", {"text": "e\u0301\r\n", "revision": 0}).json()
    assert (draft["text"], draft["revision"], draft["number"]) == ("e\u0301\n", 1, None)
    late = as_json(client, "put", f"{at}/draft", {"text": "late", "revision": 0})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "draft_changed")
    missing = as_json(client, "post", f"{at}/publish", {"note": "", "revision": 1})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "note")
    first = as_json(client, "post", f"{at}/publish", {"note": "First", "revision": 1}).json()
    assert (first["number"], first["by"], first["note"]) == (1, team.owner.user.get_short_name(), "First")  # type: ignore[union-attr]
    as_json(client, "put", f"{at}/draft", {"text": "Second", "revision": 0})
    second = as_json(client, "post", f"{at}/publish", {"note": "More", "revision": 1}).json()
    changes = client.get(f"{API}/versions/{first['id']}/diff/{second['id']}").json()
    assert (changes["added"], changes["removed"]) == (1, 2)
    back = as_json(client, "post", f"{API}/versions/{first['id']}/roll-back", {}).json()
    assert (back["number"], back["restores"]) == (3, 1)
    assert client.get(f"{API}/versions/{back['id']}").json()["answers"] == 0
    assert as_json(client, "post", f"{at}/default").json()["default"] is True
    assert as_json(client, "post", f"{at}/archive").status_code == 409
    assert as_json(client, "post", f"{at}/move", {"direction": "up"}).json() == {"done": True}
    assert as_json(client, "post", f"{at}/unpublish").json()["published"] is None
    assert as_json(client, "delete", f"{at}/draft?revision=7").json() == {"done": True}
    listed = client.get(API).json()["items"]
    assert [item["name"] for item in listed] == ["Legal desk", "Assistant"]
    found = as_json(client, "post", f"{API}/measure", {"text": "Hello"}).json()
    assert (found["state"], found["tokens"]) == ("no_worker", 0)


@pytest.mark.usefixtures("server")
def test_measuring_has_a_pace_of_its_own_for_each_who_asks(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MOST_A_MINUTE", 2)
    client = browser(team)
    said = [as_json(client, "post", f"{API}/measure", {"text": "Hello"}) for _ in range(3)]
    assert [reply.status_code for reply in said] == [200, 200, 429]
    assert said[2].json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(said[2]["Retry-After"]) <= 121


@pytest.mark.parametrize(
    ("body", "param"),
    [({}, "text"), ({"text": 3}, "text"), ({"text": None}, "text"), ({"text": "a\0"}, "text"),
     ({"text": "x" * 100_001}, "text"), ({"text": "x", "revision": -1}, "revision"),
     ({"text": "x", "revision": "many"}, "revision"), ({"text": "x", "revision": 10**30}, "revision")],
)  # fmt: skip
def test_bad_input_is_answered_with_the_field(team: Team, body: dict[str, Any], param: str) -> None:
    reply = as_json(browser(team), "put", f"{API}/{the_assistant(team).pk}/draft", body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].split(".")[-1] == param


def test_keys_need_the_scope_and_sessions_the_token(team: Team) -> None:
    bearer = {"Authorization": f"Bearer {team.secret}"}
    assert Client().get(API, headers=bearer).status_code == 403
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(team.owner.user, backend="django.contrib.auth.backends.ModelBackend")
    assert as_json(strict, "post", API, {"name": "x"}).status_code == 403


def test_foreign_versions_are_not_compared_and_versions_of_two_assistants_neither(team: Team, strangers: Team) -> None:
    """P11."""
    mine, theirs = (selectors.published(one.tenant) for one in (team, strangers))
    assert mine is not None
    assert theirs is not None
    client = browser(team)
    other = services.publish(tenant=team.tenant, text="Other.", name="Other")
    for a, b in ((mine, theirs), (theirs, mine), (mine, other)):
        assert client.get(f"{BASE}/versions/{a.pk}/diff/{b.pk}").status_code == 404
    for path in (f"{BASE}/{theirs.prompt_id}", f"{BASE}/versions/{theirs.pk}", f"{API}/{theirs.prompt_id}"):
        assert client.get(path).status_code == 404
    assert access_for_user(team.owner.user, "acme").tenant == team.tenant  # type: ignore[arg-type]
