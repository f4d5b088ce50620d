"""Chats by the product's HTTP API: lists, questions, answers, changes, and ETags for all of it."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction
from django.test import Client

from chatapp.chat.models import Conversation, Generation, Message
from chatapp.chat.recorder import record
from engine import protocol
from tests.api.test_product_api import log_in, refusal
from tests.chat.conftest import ScriptedWorker, Team, server, strangers, team, worker

__all__ = ["server", "strangers", "team", "worker"]

LIST = "/api/t/acme/conversations"
NEVER = "01890000-0000-7000-8000-000000000000"


@pytest.fixture(autouse=True)
def _commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "on_commit", lambda work, **kw: work())  # a test's transaction never commits


@pytest.fixture
def member(team: Team, server: Any) -> Client:
    return log_in(team, "member")


def ask(client: Client, text: str, path: str = LIST, **headers: str) -> Any:
    return client.post(path, {"text": text}, content_type="application/json", headers=headers)


class Chats:
    """Questions that a worker answers with "Yes.", and its answers are recorded."""

    def __init__(self, worker: ScriptedWorker) -> None:
        self.worker = worker

    def begin(self, client: Client, text: str) -> dict[str, Any]:
        asked: dict[str, Any] = ask(client, text).json()
        self.answer(asked)
        return asked

    def answer(self, asked: dict[str, Any]) -> None:
        assert self.worker.answer("Yes.").id == asked["response_id"]
        assert record(asked["response_id"])


@pytest.fixture
def chats(worker: ScriptedWorker) -> Chats:
    return Chats(worker)


def test_a_program_without_a_socket_asks_and_looks_for_the_answer(member: Client, worker: ScriptedWorker) -> None:
    asked = ask(member, "Is it open?")
    assert asked.status_code == 202
    found = asked.json()
    where = f"/api/t/acme/responses/{found['response_id']}"
    waiting = member.get(where).json()
    assert (waiting["status"], waiting["text"], waiting["last_seq"]) == ("queued", "", -1)
    taken = worker.begin("At ", "nine.")
    assert member.get(where).json()["text"] == "At nine.", "as far as it has come"
    worker.end(taken, protocol.Finished(seq=3, finish_reason="stop"))
    assert record(found["response_id"])
    done = member.get(where).json()
    assert (done["status"], done["text"], done["finish_reason"]) == ("finished", "At nine.", "stop")
    used = {"prompt_tokens": 7, "cached_tokens": 3, "shared_tokens": 0, "completion_tokens": 2}
    assert done["usage"] == used
    read = member.get(f"{LIST}/{found['conversation_id']}").json()
    assert [(m["role"], m["text"]) for m in read["messages"]] == [("user", "Is it open?"), ("assistant", "At nine.")]
    assert read["messages"][1]["id"] == found["message_id"]
    assert read["messages"][1]["parent_id"] == read["messages"][0]["id"] == found["parent_id"]


def test_a_conversation_is_answered_once_at_a_time_and_goes_on_where_it_was(member: Client, chats: Chats) -> None:
    first = ask(member, "One").json()
    path = f"{LIST}/{first['conversation_id']}/messages"
    assert refusal(ask(member, "Two", path)) == (409, "conversation_busy")
    chats.answer(first)
    second = ask(member, "Two", path).json()
    assert second["conversation_id"] == first["conversation_id"]
    assert Message.objects.get(pk=second["parent_id"]).parent_id == Message.objects.get(pk=first["message_id"]).pk


def test_a_program_edits_asks_again_and_goes_on_and_reads_the_tree(member: Client, worker: ScriptedWorker) -> None:
    def post(path: str, body: dict[str, Any]) -> Any:
        return member.post(path, body, content_type="application/json")

    def answered(reply: Any, reason: str = "stop") -> dict[str, Any]:
        assert reply.status_code == 202, reply.content
        asked: dict[str, Any] = reply.json()
        worker.answer("Yes.", finish_reason=reason)
        assert record(asked["response_id"])
        return asked

    first = answered(ask(member, "One"), "length")
    path = f"{LIST}/{first['conversation_id']}"
    edited = answered(post(f"{path}/messages", {"text": "One, edited", "parent_id": "root"}))
    again = answered(post(f"{path}/messages/{first['parent_id']}/answers", {"params": {"temperature": 1}}))
    rest = answered(post(f"{path}/messages/{first['message_id']}/continuations", {}))
    found = {one["id"]: one["parent_id"] for one in member.get(path).json()["messages"]}
    assert found[edited["parent_id"]] is None
    assert again["parent_id"] == first["parent_id"]
    assert found[again["message_id"]] == found[first["message_id"]] == first["parent_id"]
    assert found[rest["message_id"]] == rest["parent_id"] == first["message_id"]
    assert len(found) == 6
    refused = post(f"{path}/messages/{again['message_id']}/continuations", {})
    assert refusal(refused) == (400, "answer_complete")
    assert refused.json()["error"]["param"] == "message_id"
    assert refusal(post(f"{path}/messages", {"text": "x", "parent_id": "branch"}))[0] in (400, 422)
    for kind in ("answers", "continuations"):
        assert refusal(post(f"{path}/messages/{NEVER}/{kind}", {})) == (404, "not_found")


def test_a_repeated_key_begins_nothing_twice(member: Client) -> None:
    sent = {"Idempotency-Key": "mine"}
    assert ask(member, "Hello", **sent).json() == ask(member, "Hello", **sent).json()
    assert refusal(ask(member, "Something else", **sent))[1] == "idempotency_mismatch"
    assert Generation.objects.count() == 1


def test_the_list_is_cut_into_pages_that_miss_and_repeat_nothing(team: Team, member: Client) -> None:
    for number in range(7):
        Conversation.objects.create(tenant=team.tenant, user=team.member.user, title=f"Chat {number}")
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = member.get(LIST, {"cursor": cursor, "limit": 3}).json()
        seen += [item["title"] for item in page["items"]]
        cursor = page["next"]
    assert sorted(seen) == [f"Chat {number}" for number in range(7)]
    assert refusal(member.get(LIST, {"cursor": "yesterday"})) == (400, "invalid_request")
    assert refusal(member.get(LIST, {"limit": 0})) == (400, "invalid_request")


def test_filters_narrow_the_list_and_a_wrong_one_is_named(team: Team, member: Client) -> None:
    for title in ("Red apples", "Green APPLES", "100% sure", "Äpfel"):
        Conversation.objects.create(tenant=team.tenant, user=team.member.user, title=title)
    running = ask(member, "Is it running?").json()["conversation_id"]

    def titles(**filters: Any) -> list[str]:
        return sorted(item["title"] for item in member.get(LIST, filters).json()["items"])

    assert titles(q="apples") == ["Green APPLES", "Red apples"]
    assert titles(q="red apples") == ["Red apples"]
    assert titles(q="%") == ["100% sure"], "what is special to a database is a character like any other"
    assert titles(q="\0äpfel \0") in (["Äpfel"], []), "SQLite folds only ASCII"
    assert titles(running=True) == ["Is it running?"]
    assert "Is it running?" not in titles(running=False)
    assert member.patch(f"{LIST}/{running}", {"starred": True}, content_type="application/json").status_code == 200
    assert titles(starred=True) == ["Is it running?"]
    assert titles(since="2999-01-01T00:00:00Z") == []
    assert len(titles(until="2999-01-01T00:00:00Z")) == 5
    assert member.get(LIST, {"since": "2026-01-01T00:00:00"}).json()["error"]["param"] == "since"
    assert member.get(LIST, {"starred": "perhaps"}).json()["error"]["param"] == "starred"


def test_messages_come_in_pages_newest_first(team: Team, member: Client, chats: Chats) -> None:
    found = chats.begin(member, "One")
    chats.answer(ask(member, "Two", f"{LIST}/{found['conversation_id']}/messages").json())
    path = f"{LIST}/{found['conversation_id']}/messages"
    first = member.get(path, {"limit": 3}).json()
    rest = member.get(path, {"limit": 3, "cursor": first["next"]}).json()
    assert [m["text"] for m in first["items"] + rest["items"]] == ["Yes.", "Two", "Yes.", "One"]
    assert rest["next"] is None


def test_a_title_is_one_line_that_stands_where_it_stands(member: Client, chats: Chats) -> None:
    found = chats.begin(member, "One")
    path = f"{LIST}/{found['conversation_id']}"

    def rename(title: Any) -> Any:
        return member.patch(path, {"title": title}, content_type="application/json")

    assert rename("  My \n\u202e chat 👨‍👩‍👧 ").json()["title"] == "My chat 👨‍👩‍👧"
    for bad in ("", "   ", "\u200b", "x" * 121, "x" * 5000, 7):
        assert rename(bad).status_code == 400, bad
        assert rename(bad).json()["error"]["param"] == "title"
    assert member.get(path).json()["title"] == "My chat 👨‍👩‍👧"


@pytest.mark.parametrize("body", ['"my words"', "[]", "null", "7", '["title"]'])
def test_a_body_that_is_no_object_changes_nothing(member: Client, chats: Chats, body: str) -> None:
    path = f"{LIST}/{chats.begin(member, 'One')['conversation_id']}"
    before = member.get(path).json()["title"]
    refused = member.patch(path, body, content_type="application/json")
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "The body must be a JSON object.")
    assert member.get(path).json()["title"] == before


@pytest.mark.parametrize("text", ["", " \n", "x" * 1_000_000])
def test_a_question_that_cannot_be_asked_is_named(member: Client, text: str) -> None:
    refused = ask(member, text)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "text")


def test_what_was_deleted_is_gone_until_it_is_asked_back(member: Client, chats: Chats) -> None:
    found = chats.begin(member, "One")
    path = f"{LIST}/{found['conversation_id']}"
    assert member.delete(path).status_code == 200
    assert refusal(member.get(path)) == refusal(member.delete(path)) == (404, "not_found")
    assert refusal(ask(member, "Two", f"{path}/messages")) == (404, "not_found")
    assert refusal(member.get(f"/api/t/acme/responses/{found['response_id']}")) == (404, "not_found")
    assert member.get(LIST).json()["items"] == []
    assert [item["id"] for item in member.get(LIST, {"deleted": True}).json()["items"]] == [found["conversation_id"]]
    assert member.post(f"{path}/restore").status_code == 200
    assert member.post(f"{path}/restore").status_code == 200, "saying it again does no harm"
    assert member.get(path).json()["messages"][1]["text"] == "Yes."


def test_deleting_stops_the_answer_under_way(member: Client) -> None:
    asked = ask(member, "One").json()
    member.delete(f"{LIST}/{asked['conversation_id']}")
    assert record(asked["response_id"])
    assert Generation.objects.get(pk=asked["response_id"]).state == "cancelled"


def test_an_answer_is_stopped_and_stays_stopped(member: Client) -> None:
    """P3, by HTTP."""
    asked = ask(member, "One").json()
    stop = f"/api/t/acme/responses/{asked['response_id']}/cancel"
    assert member.post(stop).json() == {"status": "cancelled"}
    assert record(asked["response_id"])
    assert member.post(stop).json() == {"status": "cancelled"}


def test_colleagues_and_keys_find_none_of_it(team: Team, member: Client, chats: Chats) -> None:
    """P11."""
    found = chats.begin(member, "One")
    bearer = {"Authorization": f"Bearer {team.secret}"}
    for path in (f"{LIST}/{found['conversation_id']}", f"/api/t/acme/responses/{found['response_id']}"):
        assert member.get(path).status_code == 200
        assert refusal(log_in(team, "owner").get(path)) == (404, "not_found")
        assert refusal(Client().get(path, headers=bearer)) == (404, "not_found")
    assert Client().get(LIST, headers=bearer).json()["items"] == []
    mine = ask(Client(), "By key", **bearer)
    assert mine.status_code == 202
    assert [item["id"] for item in Client().get(LIST, headers=bearer).json()["items"]] == [
        mine.json()["conversation_id"]
    ]


def test_what_has_not_changed_is_not_sent_again(member: Client, chats: Chats) -> None:
    found = chats.begin(member, "One")
    path = f"{LIST}/{found['conversation_id']}"
    first = member.get(path)
    assert first["Cache-Control"] == "private, no-store", "a browser's disk keeps nobody's chats"
    assert {"Cookie", "Authorization"} <= {name.strip() for name in first["Vary"].split(",")}
    again = member.get(path, headers={"If-None-Match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert member.get(LIST)["ETag"]
    member.patch(path, {"title": "Another"}, content_type="application/json")
    assert member.get(path, headers={"If-None-Match": first["ETag"]}).json()["title"] == "Another"
    assert "ETag" not in member.get(f"{LIST}/{NEVER}")


def test_a_program_may_keep_what_it_has_read_and_ask_again(team: Team, server: Any) -> None:
    bearer = {"Authorization": f"Bearer {team.secret}"}
    first = Client().get(LIST, headers=bearer)
    assert first["Cache-Control"] == "private, no-cache"
    assert Client().get(LIST, headers={**bearer, "If-None-Match": first["ETag"]}).status_code == 304


def test_of_two_who_have_read_the_same_only_one_changes_it(member: Client, chats: Chats) -> None:
    found = chats.begin(member, "One")
    path = f"{LIST}/{found['conversation_id']}"
    tag = member.get(path)["ETag"]

    def rename(title: str, match: str) -> Any:
        return member.patch(path, {"title": title}, content_type="application/json", headers={"If-Match": match})

    assert rename("Mine", tag).status_code == 200
    late = rename("Yours", tag)
    assert refusal(late) == (412, "changed")
    assert member.get(path).json()["title"] == "Mine"
    assert rename("Yours", "*").status_code == 200
    assert rename("Yours", "no tag").status_code == 412
    assert refusal(member.delete(f"{LIST}/{NEVER}", headers={"If-Match": tag})) == (404, "not_found")


@pytest.mark.parametrize("topic", ["settings", "members", "keys", "prompts", "limits", "usage", "audit", "exports"])
def test_every_topic_has_etags(team: Team, topic: str) -> None:
    owner = log_in(team)
    first = owner.get(f"/api/t/acme/{topic}")
    assert first.status_code == 200
    assert owner.get(f"/api/t/acme/{topic}", headers={"If-None-Match": first["ETag"]}).status_code in (304, 200)
    assert owner.get("/api/t/acme/settings", headers={"If-None-Match": "*"}).status_code == 304
