"""Long conversations as the server gives them: each text once, compressed, and no more traffic for being long."""

from __future__ import annotations

import asyncio
import gzip
import json
from datetime import timedelta

import pytest
from django.utils import timezone

from chatapp.chat.models import Conversation, Message, MessageRole
from chatapp.chat.views import FIRST_LOOK
from tests.api.sockets import Voice, ui_line, voice
from tests.chat.conftest import Team
from tests.chat.test_pages import data_of, logged_in

__all__ = ["voice"]
BROWSER = {"Accept-Encoding": "gzip, deflate, br"}


def long_chat(team: Team, count: int) -> Conversation:
    """So many messages in one line, each with its number and something to say."""
    found = Conversation.objects.create(tenant=team.tenant, user=team.member.user, title="Long")
    begun = timezone.now() - timedelta(hours=1)
    parent = None
    messages = []
    for number in range(count):
        role = MessageRole.ASSISTANT if number % 2 else MessageRole.USER
        text = f"message {number}: " + "what is to be said of it. " * (20 if number % 2 else 1)
        at = begun + timedelta(seconds=number)
        parent = Message(conversation=found, parent=parent, role=role, text=text, created_at=at)
        messages.append(parent)
    Message.objects.bulk_create(messages)
    return found


def test_the_page_itself_has_the_newest_messages_and_its_data_has_all_of_them(team: Team) -> None:
    found = long_chat(team, 60)
    html = logged_in(team.member).get(f"/t/acme/c/{found.pk}").content.decode()
    seen = html[: html.index('id="page"')]
    assert [f"message {number}: " in seen for number in range(60)] == [
        number >= 60 - FIRST_LOOK for number in range(60)
    ]
    assert [message["text"].split(":")[0] for message in data_of(html)["conversation"]["messages"]] == [
        f"message {number}" for number in range(60)
    ]
    assert f'<a href="?all">Show the {60 - FIRST_LOOK} messages before</a>' in seen


def test_who_has_no_scripts_can_ask_for_the_messages_before(team: Team) -> None:
    found = long_chat(team, 30)
    html = logged_in(team.member).get(f"/t/acme/c/{found.pk}?all").content.decode()
    seen = html[: html.index('id="page"')]
    assert all(f"message {number}: " in seen for number in range(30))
    assert 'href="?all"' not in seen
    short = logged_in(team.member).get(f"/t/acme/c/{long_chat(team, FIRST_LOOK).pk}").content.decode()
    assert 'href="?all"' not in short


def test_the_page_has_no_branch_but_the_newest(team: Team) -> None:
    found = long_chat(team, 4)
    first = found.messages.get(text__startswith="message 0")
    Message.objects.create(conversation=found, parent=first, role=MessageRole.ASSISTANT, text="said in its place")
    html = logged_in(team.member).get(f"/t/acme/c/{found.pk}").content.decode()
    seen = html[: html.index('id="page"')]
    assert "said in its place" in seen
    assert ["message 0:" in seen, "message 1:" in seen, "message 3:" in seen] == [True, False, False]


def test_a_long_conversation_goes_out_compressed_to_who_can_read_that(team: Team) -> None:
    found = long_chat(team, 60)
    client = logged_in(team.member)
    for path in (f"/t/acme/c/{found.pk}", f"/api/t/acme/conversations/{found.pk}"):
        plain, packed = client.get(path), client.get(path, headers=BROWSER)
        assert "Content-Encoding" not in plain
        assert packed["Content-Encoding"] == "gzip"
        assert "Accept-Encoding" in packed["Vary"]
        assert len(packed.content) < len(plain.content) / 3
        assert b"message 59: " in gzip.decompress(packed.content)


def test_pages_that_show_secrets_are_not_compressed(team: Team) -> None:
    """Keys, second factors and sessions: what a length could give away (BREACH) is not behind one there."""
    owner = logged_in(team.owner)
    for path in ("/t/acme/admin/keys/", "/accounts/2fa/", "/accounts/login/"):
        assert "Content-Encoding" not in owner.get(path, headers=BROWSER)
    # What somebody else has put into the address may be in the page, beside what only its reader should know.
    assert owner.get("/t/acme/", headers=BROWSER)["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in owner.get("/t/acme/?guess", headers=BROWSER)


def test_a_compressed_answer_has_the_tag_of_what_it_says(team: Team) -> None:
    """So that it is not sent again for nothing, and a change can be made on condition of it."""
    path = f"/api/t/acme/conversations/{long_chat(team, 20).pk}"
    client = logged_in(team.member)
    packed = client.get(path, headers=BROWSER)
    assert packed["ETag"] == client.get(path)["ETag"] == client.get(path, headers=BROWSER)["ETag"]
    again = client.get(path, headers={**BROWSER, "If-None-Match": packed["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    headers = {**BROWSER, "If-Match": packed["ETag"]}
    renamed = client.patch(path, {"title": "New"}, content_type="application/json", headers=headers)
    assert renamed.status_code == 200
    late = client.patch(path, {"title": "Newer"}, content_type="application/json", headers=headers)
    assert late.status_code == 412


@pytest.mark.django_db(transaction=True)
async def test_what_a_token_costs_on_the_wire_does_not_grow_with_the_conversation(team: Team, voice: Voice) -> None:
    """P5"""
    sizes: dict[int, dict[str, int]] = {}
    for count in (2, 200):
        found = await asyncio.to_thread(long_chat, team, count)
        async with ui_line(team.member.user, "acme") as socket:
            await socket.create(input="And now?", conversation_id=str(found.pk))
            await asyncio.to_thread(voice.answer, *["word "] * 30)
            frames = await socket.read_until("response.completed")
        # How many tokens share a frame is chance; what a frame has beside their text is not.
        sizes[count] = {}
        for frame in frames:
            beside = len(json.dumps(frame)) - len(frame.get("delta", ""))
            sizes[count][frame["type"]] = max(beside, sizes[count].get(frame["type"], 0))
    assert sizes[2].keys() == sizes[200].keys()
    for kind, size in sizes[200].items():
        assert size - sizes[2][kind] < 20, f"{kind}: but for the digits of times"
