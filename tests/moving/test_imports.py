"""Chats from elsewhere: told by their content, bounded, whole or not at all, once, and taken back."""

from __future__ import annotations

import io
import json
import zipfile
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from chatapp.chat import selectors, tags
from chatapp.chat.models import Conversation, Message
from chatapp.chat.services import ask
from chatapp.data.retention import set_retention
from chatapp.errors import BadInput, Conflict, Forbidden, NotFound
from chatapp.moving import found, reader, services
from chatapp.moving.models import Import, Imported
from tests.chat.conftest import Team
from tests.moving.conftest import a_chat, a_tree, as_file, chatgpt, logged_in, node, open_webui, upload

pytestmark = pytest.mark.django_db


def exported(team: Team, access: Any) -> dict[str, Any]:
    reply = logged_in(access).get("/api/t/acme/conversations/export?format=json")
    return dict(json.loads(reply.getvalue()))


def without_ids(document: dict[str, Any]) -> list[Any]:
    """The conversations with numbers for ids."""
    told = []
    for one in document["conversations"]:
        numbers = {message["id"]: at for at, message in enumerate(one["messages"])}
        said = [{**m, "id": numbers[m["id"]], "parent_id": numbers.get(m["parent_id"])} for m in one["messages"]]
        told.append({**one, "id": None, "messages": said})
    return told


def test_what_was_exported_comes_back_the_same_but_for_its_ids(team: Team) -> None:
    a_tree(team.member)
    a_chat(team.member, "\u202eodd\x00", "", days_ago=1, archived_at=timezone.now())
    before = exported(team, team.member)
    reply = upload(logged_in(team.owner), "acme", before)
    assert reply.status_code == 200, reply.content
    after = exported(team, team.owner)
    assert len(after["conversations"]) == 2
    assert without_ids(after)[0] == without_ids(before)[0]
    again = upload(logged_in(team.member), "acme", after)
    assert again.json()["conversations"] == 2, "a colleague's are not one's own"


def test_a_chat_of_chatgpt_becomes_a_tree_of_what_was_said(team: Team) -> None:
    reply = upload(logged_in(team.member), "acme", [chatgpt()], name="anything.txt").json()
    assert (reply["source"], reply["conversations"], reply["messages"]) == ("chatgpt", 1, 4)
    assert reply["left_out"] == {"tools": 2, "thoughts": 1, "images": 1, "files": 1}
    chat = Conversation.objects.get(title="Tides")
    assert chat.user == team.member.user
    assert chat.archived_at is not None
    assert chat.created_at == datetime.fromtimestamp(1_700_000_000.5, UTC)
    said = {message.text: message for message in chat.messages.all()}
    assert set(said) == {"Why tides?", "The moon pulls.\n\nAnd the sun.", "Gravity.", "And this?"}
    assert said["And this?"].parent == said["The moon pulls.\n\nAnd the sun."]
    assert said["Gravity."].parent == said["Why tides?"]
    told = Imported.objects.get().told
    assert told[str(said["The moon pulls.\n\nAnd the sun."].pk)] == {"model": "gpt-4o"}
    note = logged_in(team.member).get(f"/api/t/acme/conversations/{chat.pk}/notes").json()
    assert note["imported"]["name"] == "ChatGPT"


def test_a_chat_of_open_webui_keeps_its_branches_tags_and_star(team: Team) -> None:
    reply = upload(logged_in(team.member), "acme", [open_webui()]).json()
    assert (reply["source"], reply["messages"], reply["left_out"]) == ("open_webui", 3, {"thoughts": 1, "files": 1})
    chat = Conversation.objects.get(title="Greeting")
    assert chat.starred_at is not None
    assert [tag.name for tag in chat.tags.all()] == ["small talk"]
    assert [(m.text, m.status) for m in chat.messages.all()] == [("Hi", "done"), ("Hello.", "done"), ("Hey", "stopped")]


def test_old_exports_of_open_webui_and_single_chats_are_read_too(team: Team) -> None:
    plain = [
        {"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "image_url"}]},
        {"role": "assistant", "content": "I see"},
    ]
    report = services.bring(access=team.member, file=as_file({"title": "Old", "chat": {"messages": plain}}))
    assert (report.conversations, report.messages, dict(report.left_out)) == (1, 2, {"images": 1})
    assert (
        services.bring(access=team.member, file=as_file(b"\xef\xbb\xbf" + json.dumps(chatgpt()).encode())).conversations
        == 1
    )


def test_the_zip_file_that_chatgpt_sends_is_opened(team: Team) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("user.json", json.dumps({"email": "a@b.test"}))
        archive.writestr("conversations-000.json", json.dumps([chatgpt("One", "1")]))
        archive.writestr("conversations-001.json", json.dumps([chatgpt("Two", "2", create_time=1_600_000_000)]))
    report = services.bring(access=team.member, file=out)
    # The same was said at the same times in both: what counts is that, and not a title or an id.
    assert (report.conversations, report.already) == (1, 1)


def test_looking_changes_nothing_and_says_what_would_come(team: Team) -> None:
    loop = {**chatgpt("Loop"), "mapping": {"a": node("a", "b", "user", "x"), "b": node("b", "a", "user", "y")}}
    reply = upload(logged_in(team.member), "acme", [chatgpt(), loop], dry_run="true").json()
    assert (reply["conversations"], reply["refused_count"], reply["titles"]) == (1, 1, ["Tides"])
    assert reply["refused"] == [{"title": "Loop", "why": "Its messages follow one another in a circle."}]
    assert reply["import_id"] is None
    assert not Conversation.objects.exists()
    assert not Import.objects.exists()


@pytest.mark.parametrize(
    ("mapping", "why"),
    [
        ({"a": node("a", "gone", "user", "x")}, "not in it"),
        ({"a": node("a", "a", "user", "x")}, "circle"),
        ({"a": node("a", None)}, "Nothing was said"),
        ({"a": 7}, "messages is none"),
        ({str(n): node(str(n), str(n - 1) if n else None, "user", "x") for n in range(12)}, "12 messages"),
    ],
)
def test_a_tree_that_is_none_is_refused_in_words_and_the_others_come(
    team: Team, monkeypatch: pytest.MonkeyPatch, mapping: Any, why: str
) -> None:
    monkeypatch.setattr(found, "MOST_MESSAGES", 11)
    report = services.bring(access=team.member, file=as_file([chatgpt(mapping=mapping), chatgpt("Good")]))
    assert why in report.refused[0].why
    assert [chat.title for chat in Conversation.objects.all()] == ["Good"]


def test_times_are_never_in_the_future_nor_before_what_they_follow(team: Team) -> None:
    nodes = [
        node("a", None, "user", "x", 4_000_000_000),
        node("b", "a", "assistant", "y", 1e300),
        node("c", "b", "user", "z", -5),
    ]
    services.bring(access=team.member, file=as_file([chatgpt(mapping={n["id"]: n for n in nodes}, update_time=9e11)]))
    said = list(Message.objects.order_by("created_at"))
    assert [message.text for message in said] == ["x", "y", "z"]
    assert all(message.created_at <= timezone.now() + timedelta(milliseconds=1) for message in said)
    assert Conversation.objects.get().updated_at <= timezone.now()


def test_the_same_file_twice_makes_no_doubles_unless_they_are_wanted(team: Team) -> None:
    content = [chatgpt(), open_webui()]
    assert services.bring(access=team.member, file=as_file(content)).conversations == 2
    again = services.bring(access=team.member, file=as_file(content))
    assert (again.conversations, again.already, again.batch) == (0, 2, None)
    assert Conversation.objects.count() == 2
    assert services.bring(access=team.member, file=as_file(content), again=True).conversations == 2
    own = exported(team, team.member)
    assert services.look(access=team.member, file=as_file(own)).conversations == 0
    assert Import.objects.count() == 2


def test_only_what_an_import_has_brought_is_told_of_and_also_where_it_breaks_off(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_tree(team.owner)
    told: list[str] = []
    monkeypatch.setattr(services, "changed", lambda conversation: told.append(conversation.title))
    content = [chatgpt(), open_webui()]
    monkeypatch.setattr(services, "MOST_CONVERSATIONS", 1)
    with pytest.raises(BadInput):
        services.bring(access=team.member, file=as_file(content))
    assert told == ["Tides"]
    services.bring(access=team.member, file=as_file(content[:1]))
    assert told == ["Tides"], "nothing new has come, and the owner's chat is none of it"


def test_an_export_of_what_stands_here_is_known_again_until_it_goes_on(team: Team) -> None:
    chat = a_tree(team.member)
    own = exported(team, team.member)
    assert services.look(access=team.member, file=as_file(own)).already == 1
    Message.objects.create(conversation=chat, role="user", text="more")
    assert services.look(access=team.member, file=as_file(own)).conversations == 1


def test_undo_takes_back_what_came_but_for_what_was_gone_on_with(team: Team) -> None:
    client = logged_in(team.member)
    made = upload(client, "acme", [chatgpt(is_archived=False), open_webui()]).json()
    assert logged_in(team.owner).delete(f"/api/t/acme/imports/{made['import_id']}").status_code == 404
    used = Conversation.objects.get(title="Tides")
    ask(access=team.member, text="Go on.", conversation_id=used.pk)
    undone = client.delete(f"/api/t/acme/imports/{made['import_id']}").json()
    gone = Conversation.objects.get(title="Greeting")
    assert (undone["conversation_ids"], undone["kept"]) == ([str(gone.pk)], 1)
    assert [chat.pk for chat in selectors.conversations(team.member).items] == [used.pk]
    assert gone.deleted_at is not None, "it can still be asked back"
    assert client.delete(f"/api/t/acme/imports/{made['import_id']}").status_code == 404
    assert services.bring(access=team.member, file=as_file([open_webui()])).conversations == 1, (
        "it is not here any more"
    )


def test_an_imported_chat_goes_on_as_any_other(team: Team, worker: Any) -> None:
    services.bring(access=team.member, file=as_file([chatgpt()]))
    chat = Conversation.objects.get()
    leaf = chat.messages.get(text="And this?")
    ask(access=team.member, text="Tell me more.", conversation_id=chat.pk, parent_id=leaf.parent_id)
    request = worker.answer("More.")
    assert [(m.role, m.content) for m in request.messages][-3:] == [
        ("user", "Why tides?"), ("assistant", "The moon pulls.\n\nAnd the sun."), ("user", "Tell me more."),
    ]  # fmt: skip


def test_one_file_at_a_time_and_one_that_was_cut_short_stands_in_nobodys_way(team: Team) -> None:
    stuck = Import.objects.create(tenant=team.tenant, user=team.member.user)
    with pytest.raises(Conflict):
        services.bring(access=team.member, file=as_file([chatgpt()]))
    assert services.bring(access=team.owner, file=as_file([chatgpt()])).conversations == 1
    Import.objects.filter(pk=stuck.pk).update(created_at=timezone.now() - timedelta(hours=1))
    assert services.bring(access=team.member, file=as_file([chatgpt()])).conversations == 1


def test_a_file_that_ends_in_the_middle_keeps_what_is_whole_and_can_be_undone(team: Team) -> None:
    data = json.dumps([chatgpt("One"), open_webui()]).encode()[:-40]
    with pytest.raises(BadInput, match="ends in the middle"):
        services.bring(access=team.member, file=as_file(data))
    (chat,) = Conversation.objects.all()
    assert chat.messages.count() == 4
    (batch,) = services.imports_of(team.member)
    services.undo(access=team.member, import_id=batch.pk)
    assert not Conversation.objects.filter(deleted_at=None).exists()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"hello", b"[]", b"{}", b"[1, 2]", b"[[[[", b'{"conversations": []}', b"[" * 100_000, b"PK\x03\x04broken",
        json.dumps([{"title": "x", "mapping": None}]).encode(), b'{"a":1' + b',"a":1' * 50, b"\xff\xfe", b'["\\ud83d"]',
        json.dumps([{"uuid": "x", "chat_messages": []}]).encode(), b'["\\udc4b"]', b'[{"title": "\\udc4b"}]',
    ],
)  # fmt: skip
def test_what_is_no_export_is_refused_with_what_would_be(team: Team, content: bytes) -> None:
    reply = upload(logged_in(team.member), "acme", content)
    assert reply.status_code == 400, reply.content
    assert reply.json()["error"]["code"] in ("unknown_format", "damaged")
    assert not Import.objects.exists()


def test_a_file_of_a_later_version_says_so(team: Team) -> None:
    later = {"format": "octavo.conversations", "version": 2, "conversations": [{"messages": []}]}
    with pytest.raises(BadInput, match="another version"):
        services.look(access=team.member, file=as_file(later))


def test_a_chat_beyond_what_may_lie_in_memory_is_passed_over(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MOST_VALUES", 500)
    deep: Any = "x"
    for _ in range(60):
        deep = [deep]
    content = [chatgpt("Wide", junk=[0] * 600), chatgpt("Deep", junk=deep), chatgpt("Good")]
    report = services.bring(access=team.member, file=as_file(content))
    assert (report.conversations, report.refused_count) == (1, 2)
    assert {one.why for one in report.refused} == {"It is too large."}


def test_more_than_a_file_may_hold_is_refused_whole_when_looked_at(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MOST_CONVERSATIONS", 1)
    with pytest.raises(BadInput, match="more than 1 chats"):
        services.look(access=team.member, file=as_file([chatgpt(), open_webui()]))


def test_a_text_that_is_too_long_is_cut_and_titles_are_cleaned(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found, "LONGEST_TEXT", 10)
    long = {"a": node("a", None, "user", "0123456789abc")}
    report = services.bring(access=team.member, file=as_file([chatgpt(" \u202eTi\n\ndes " * 60, mapping=long)]))
    assert dict(report.left_out) == {"cut": 1}
    chat = Conversation.objects.get()
    assert len(chat.title) <= 120
    assert "\u202e" not in chat.title
    assert "\n" not in chat.title
    assert chat.messages.get().text == "012345678…"


def test_what_the_teams_retention_would_delete_is_said_before(team: Team) -> None:
    set_retention(access=team.owner, days=30)
    reply = upload(logged_in(team.member), "acme", [chatgpt(), open_webui()], dry_run="true").json()
    assert (reply["too_old"], reply["retention_days"]) == (1, 30), "the starred one is kept"


def test_the_file_of_a_key_and_of_an_auditor_is_refused(team: Team, strangers: Team) -> None:
    with pytest.raises(Forbidden):
        services.bring(access=team.key, file=as_file([chatgpt()]))
    made = services.bring(access=team.member, file=as_file([chatgpt()]))
    assert made.batch is not None
    with pytest.raises(NotFound):
        services.undo(access=strangers.owner, import_id=made.batch.pk)


def test_a_list_where_a_word_belongs_costs_no_other_chat(team: Team) -> None:
    odd = chatgpt("Odd", mapping={"a": node("a", None, "user", "x")})
    odd["mapping"]["a"]["message"]["content"]["content_type"] = ["text"]
    assert services.bring(access=team.member, file=as_file([odd, chatgpt("Good")])).conversations == 2
    said = {"id": "1", "parent_id": None, "role": "user", "text": "Hi", "status": ["done"]}
    own = {"format": "octavo.conversations", "version": 1, "conversations": [{"title": "Own", "messages": [said]}]}
    assert services.bring(access=team.member, file=as_file(own)).conversations == 1
    assert Message.objects.get(text="Hi").status == "done"


def test_of_parameters_comes_what_a_conversation_keeps(team: Team, worker: Any) -> None:
    """Anything else would stand before every question that is asked in it, and null is nothing to compare with."""
    said = {"id": "1", "parent_id": None, "role": "user", "text": "Hi"}
    params = {"max_tokens": None, "n": 5, "temperature": 0.5, "response_format": {"type": "json_object"}}
    own = {"title": "Own", "messages": [said], "params": params}
    file = {"format": "octavo.conversations", "version": 1, "conversations": [own]}
    services.bring(access=team.member, file=as_file(file))
    chat = Conversation.objects.get()
    assert chat.params == {"temperature": 0.5}
    ask(access=team.member, text="And now?", conversation_id=chat.pk)
    assert worker.answer("Now.").params.temperature == 0.5


def test_tags_come_as_people_may_write_them_and_can_be_taken_off(team: Team) -> None:
    chat = Conversation.objects.create(tenant=team.member.tenant, user=team.member.user, title="Here")
    tags.set_tags(access=team.member, conversation=chat, names=["Work"])
    many = ["#work", "WORK", "e\u0301", "\u00e9", "\u202e", "x" * 100, *(f"t{number}" for number in range(40))]
    services.bring(access=team.member, file=as_file([open_webui(meta={"tags": many})]))
    brought = Conversation.objects.get(title="Greeting")
    names = {tag.name for tag in brought.tags.all()}
    assert len(names) == tags.MOST_TAGS
    assert {"Work", "\u00e9", "x" * 40, "t0"} < names
    for number in range(30):  # as an import of an older version left them
        brought.tags.create(name=f"old {number}")
    tags.change_tags(access=team.member, conversation=brought, remove=["old 0"])
    assert not brought.tags.filter(name="old 0").exists()
