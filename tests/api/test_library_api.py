"""Search, tags, the archive and changes of several conversations by the product's HTTP API."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction
from django.test import Client

from chatapp.audit.models import AuditEntry
from chatapp.chat.models import Conversation, Message
from tests.api.test_product_api import log_in, refusal
from tests.chat.conftest import Team, server, strangers, team

__all__ = ["server", "strangers", "team"]

LIST = "/api/t/acme/conversations"
TAGS = "/api/t/acme/tags"
JSON = {"content_type": "application/json"}
NEVER = "01890000-0000-7000-8000-000000000000"


@pytest.fixture(autouse=True)
def _commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "on_commit", lambda work, **kw: work())  # a test's transaction never commits


@pytest.fixture
def member(team: Team, server: Any) -> Client:
    return log_in(team, "member")


def chat(team: Team, title: str, *texts: str) -> Conversation:
    made = Conversation.objects.create(tenant=team.tenant, user=team.member.user, title=title)
    for text in texts:
        Message.objects.create(conversation=made, role="user", text=text)
    return made


def titles(client: Client, **filters: Any) -> list[str]:
    return sorted(item["title"] for item in client.get(LIST, filters).json()["items"])


def test_a_search_gives_conversations_with_the_place_that_matches(team: Team, member: Client) -> None:
    found = chat(team, "Caches", "Where does the Café keep it?")
    chat(team, "Other", "nothing")
    reply = member.get(f"{LIST}/search", {"q": "cafe caches"}).json()
    assert reply["next"] is None
    (hit,) = reply["items"]
    assert hit["conversation"]["id"] == str(found.pk)
    assert hit["title"] == [{"text": "Caches", "marked": True}]
    assert hit["message"]["message_id"] == str(Message.objects.get(conversation=found).pk)
    assert {"text": "Café", "marked": True} in hit["message"]["snippet"]
    (only_title,) = member.get(f"{LIST}/search", {"q": "other"}).json()["items"]
    assert only_title["message"] is None
    assert member.get(f"{LIST}/search", {"q": '"%_'}).json() == {"items": [], "next": None}
    assert member.get(f"{LIST}/search").json() == {"items": [], "next": None}
    assert refusal(member.get(f"{LIST}/search", {"q": "x" * 201})) == (400, "invalid_request")
    assert refusal(member.get(f"{LIST}/search", {"q": "x", "cursor": "?"})) == (400, "invalid_request")
    assert member.get(f"{LIST}/search", {"q": "other"})["ETag"]


def test_a_conversation_is_archived_and_tagged_where_it_is_changed(team: Team, member: Client) -> None:
    found = chat(team, "One")
    chat(team, "Two")
    path = f"{LIST}/{found.pk}"
    tag = member.get(path)["ETag"]
    item = member.patch(path, {"archived": True, "tags": ["work", "Später"], "title": "First"}, **JSON).json()
    assert (item["title"], item["tags"]) == ("First", ["Später", "work"])
    assert item["archived_at"]
    assert refusal(member.patch(path, {"archived": False}, headers={"If-Match": tag}, **JSON)) == (412, "changed")
    assert (titles(member), titles(member, archived=True), titles(member, tag="work")) == (["Two"], ["First"], [])
    assert titles(member, archived=True, tag="work") == ["First"]
    assert member.patch(path, {"archived": False}, **JSON).json()["archived_at"] is None
    assert titles(member, tag="Später") == ["First"]
    bad = member.patch(path, {"starred": True, "title": "Never", "tags": ["x" * 41]}, **JSON)
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "tags")
    after = member.get(path).json()
    assert (after["title"], after["starred_at"]) == ("First", None), "all of a change or nothing"


def test_tags_are_listed_renamed_and_removed_everywhere(team: Team, member: Client) -> None:
    for title in ("One", "Two"):
        member.patch(f"{LIST}/{chat(team, title).pk}", {"tags": ["work"]}, **JSON)
    assert member.get(TAGS).json() == {"items": [{"name": "work", "conversations": 2}]}
    assert log_in(team, "owner").get(TAGS).json() == {"items": []}, "a colleague's are a colleague's"
    assert member.patch(TAGS, {"name": "work", "to": "Arbeit"}, **JSON).json() == {"conversations": 2}
    assert titles(member, tag="Arbeit") == ["One", "Two"]
    assert refusal(member.patch(TAGS, {"name": "work", "to": "x"}, **JSON)) == (404, "not_found")
    assert refusal(member.patch(TAGS, {"name": "Arbeit", "to": " "}, **JSON)) == (400, "invalid_request")
    assert member.delete(f"{TAGS}?name=Arbeit").json() == {"conversations": 2}
    assert refusal(member.delete(f"{TAGS}?name=Arbeit")) == (404, "not_found")


def test_several_are_changed_by_one_request(team: Team, member: Client) -> None:
    """P11: what is not the asker's is left out without a word."""
    mine = [str(chat(team, title).pk) for title in ("One", "Two")]
    theirs = Conversation.objects.create(tenant=team.tenant, user=team.owner.user, title="Theirs")
    sent = {"ids": [*mine, str(theirs.pk), NEVER], "archived": True, "add_tags": ["done"]}
    items = member.post(f"{LIST}/changes", sent, **JSON).json()["items"]
    assert [(item["id"], item["tags"]) for item in items] == [(one, ["done"]) for one in mine]
    assert titles(member, archived=True) == ["One", "Two"]
    member.post(f"{LIST}/changes", {"ids": mine, "deleted": True}, **JSON)
    assert titles(member, deleted=True) == ["One", "Two"]
    back = member.post(f"{LIST}/changes", {"ids": mine, "deleted": False, "archived": False}, **JSON).json()["items"]
    assert all(item["deleted_at"] is None for item in back)
    assert titles(member) == ["One", "Two"]
    theirs.refresh_from_db()
    assert theirs.archived_at is None
    assert refusal(member.post(f"{LIST}/changes", {"ids": [NEVER] * 101}, **JSON)) == (400, "invalid_request")
    assert refusal(member.post(f"{LIST}/changes", {"ids": ["x"]}, **JSON)) == (400, "invalid_request")


def test_a_team_says_that_the_model_writes_titles_by_page_and_by_api(team: Team, server: Any) -> None:
    owner = log_in(team)
    path, page = "/api/t/acme/settings", "/t/acme/admin/settings"
    assert owner.get(path).json()["model_titles"] is False
    assert owner.patch(path, {"model_titles": True}, **JSON).json()["model_titles"] is True
    entry = AuditEntry.objects.filter(action="team.changed").latest("at")
    assert entry.details == {"model_titles": [False, True]}
    html = owner.get(page).content.decode()
    assert 'name="model_titles"' in html
    assert "checked" in html[html.index('name="model_titles"') :].split(">")[0]
    assert owner.post(page, {"name": "Acme", "accent": "teal"}).status_code == 302
    assert owner.get(path).json()["model_titles"] is False
    assert refusal(log_in(team, "member").patch(path, {"model_titles": True}, **JSON))[0] == 403
