"""What one has said goes along: as Markdown that nothing in a text can break, and as JSON with all of it."""

from __future__ import annotations

import io
import json
import zipfile
from email.message import Message as Header
from typing import Any
from urllib.parse import quote

import pytest
from markdown_it import MarkdownIt

from chatapp.chat.models import Conversation
from chatapp.moving.markdown import whole
from chatapp.moving.names import file_name
from chatapp.tenants.models import Membership, Role
from tests.chat.conftest import Team
from tests.moving.conftest import ODD, a_chat, a_tree, logged_in

pytestmark = pytest.mark.django_db


def got(reply: Any) -> str:
    assert reply.status_code == 200, reply.getvalue()
    return str(reply.getvalue().decode())


def address(chat: Conversation, form: str, **more: Any) -> str:
    extra = "".join(f"&{key}={value}" for key, value in more.items())
    return f"/api/t/acme/conversations/{chat.pk}/export?format={form}{extra}"


def test_markdown_holds_the_shown_branch_with_who_when_and_model(team: Team) -> None:
    chat = a_tree(team.member)
    reply = logged_in(team.member).get(address(chat, "md"))
    text = got(reply)
    assert text.startswith("# Ebbe & Flut: was?\n")
    assert "## member · 2026-03-01 12:01 UTC" in text or "## member@acme.test · 2026-03-01 12:01 UTC" in text
    assert "## Acme (small) · 2026-03-01 12:04 UTC" in text
    assert "# Both" in text
    assert "*This answer was stopped.*" in text
    assert "The moon pulls." not in text, "the other branch"
    first = chat.messages.get(text="And the sun?")
    other = got(logged_in(team.member).get(address(chat, "md", leaf_id=first.pk)))
    assert "The moon pulls." in other
    assert "# Both" not in other
    header = Header()
    header["Content-Disposition"] = reply["Content-Disposition"]
    assert header.get_filename() == "Ebbe & Flut was.md"


def test_json_holds_the_whole_tree(team: Team) -> None:
    chat = a_tree(team.member)
    document = json.loads(got(logged_in(team.member).get(address(chat, "json"))))
    assert (document["format"], document["version"]) == ("octavo.conversations", 1)
    (one,) = document["conversations"]
    assert one["messages"][0]["text"] == ODD
    roles = [(message["role"], message["status"], message["model"]) for message in one["messages"]]
    assert roles == [
        ("user", "done", None), ("assistant", "done", "small"), ("user", "done", None),
        ("assistant", "stopped", "small"),
    ]  # fmt: skip
    assert one["messages"][1]["usage"] == {"prompt_tokens": 7, "cached_tokens": 3, "completion_tokens": 2}
    assert (one["tags"], one["params"], one["model"]) == (["see"], {"temperature": 0.5}, "small")
    assert one["messages"][3]["parent_id"] == one["messages"][0]["id"]


def test_all_of_ones_own_go_at_once_and_nobody_elses(team: Team) -> None:
    for title in ("Sea", "SEA", "../../etc"):
        a_chat(team.member, title, "yes")
    a_chat(team.owner, "THEIRS", "THEIRS")
    a_chat(team.key, "KEYS", "KEYS")
    a_chat(team.member, "gone", "gone", deleted_at="2026-01-01T00:00:00Z")
    client = logged_in(team.member)
    document = json.loads(got(client.get("/api/t/acme/conversations/export?format=json")))
    assert [one["title"] for one in document["conversations"]] == ["Sea", "SEA", "../../etc"]
    reply = client.get("/api/t/acme/conversations/export?format=md")
    archive = zipfile.ZipFile(io.BytesIO(reply.getvalue()))
    assert archive.testzip() is None
    names = archive.namelist()
    assert len({name.casefold() for name in names}) == 3
    assert not any("/" in name or ".." in name for name in names)
    assert b"THEIRS" not in reply.getvalue()
    assert logged_in(team.owner).get(address(Conversation.objects.get(title="Sea"), "md")).status_code == 404


def test_your_data_leads_to_the_chats_of_each_team_that_one_chats_in(team: Team) -> None:
    link = "/api/t/acme/conversations/export?format=json"
    assert link in logged_in(team.member).get("/accounts/data").content.decode()
    Membership.objects.filter(user=team.member.user).update(role=Role.AUDITOR)
    assert link not in logged_in(team.member).get("/accounts/data").content.decode()


def test_an_answer_that_was_gone_on_with_is_one_message(team: Team) -> None:
    chat = a_chat(team.member, "Count.", "One, t\ufffd", days_ago=1)
    first = chat.messages.get(role="assistant")
    chat.messages.create(parent=first, role="assistant", text="wo, three.")
    text = got(logged_in(team.member).get(address(chat, "md")))
    assert "One, two, three." in text
    assert text.count("## ") == 2


def test_an_empty_account_and_an_unknown_format_are_answered_too(team: Team) -> None:
    client = logged_in(team.member)
    assert json.loads(got(client.get("/api/t/acme/conversations/export?format=json")))["conversations"] == []
    refused = client.get("/api/t/acme/conversations/export?format=docx")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "format")


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ("```\nopen", "```\nopen\n```"),
        ("````md\n```\n", "````md\n```\n\n````"),
        ("~~~\n```\n~~~", "~~~\n```\n~~~"),
        ("``` `a", "``` `a"),
        ("```\ndone\n```  ", "```\ndone\n```  "),
        ("a\n<!-- open", "a\n\\<!-- open"),
        ("<!-- a\n--> b", "<!-- a\n--> b"),
        ("<script>\nx\n<!-- y", "\\<script>\nx\n\\<!-- y"),
        ("a\r\nb", "a\nb"),
    ],
)
def test_nothing_stays_open_at_the_end_of_a_text(text: str, closed: str) -> None:
    assert whole(text) == closed
    document = MarkdownIt("commonmark").parse(f"{whole(text)}\n\n## next")
    assert any(token.type == "heading_open" and token.tag == "h2" for token in document)


def test_forty_thousand_unclosed_comments_take_no_time() -> None:
    assert whole("<!--\n" * 40_000).count("\\<!--") == 40_000


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Was ist Ebbe?", "Was ist Ebbe.md"),
        ("潮汐是什么", "潮汐是什么.md"),
        ("مد وجزر", "مد وجزر.md"),
        ("../../etc/passwd", "etc passwd.md"),
        ("CON", "chat CON.md"),
        ("nul.txt", "chat nul.txt.md"),
        ("   ...", "chat.md"),
        ("a\u202egnp.exe", "agnp.exe.md"),
        ("Tides…", "Tides.md"),
    ],
)
def test_a_file_is_called_after_its_chat_on_any_system(title: str, name: str) -> None:
    assert file_name(title, "md") == name


def test_a_long_title_of_wide_letters_fits_into_a_file_name() -> None:
    name = file_name("潮" * 120, "json")
    assert len(name.encode()) <= 200
    assert quote(name)
