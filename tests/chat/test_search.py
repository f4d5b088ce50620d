"""Search in one's own chats: what is found, what is marked, and that it ends in time whatever somebody has."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from chatapp.chat import search as module
from chatapp.chat.models import Conversation, Message, Tag
from chatapp.chat.search import Part, fold, search, snippet, terms
from chatapp.chat.selectors import Filters
from tests.chat.conftest import Team


def chat(team: Team, title: str, *texts: str, age: int = 0, **fields: Any) -> Conversation:
    at = timezone.now() - timedelta(minutes=age)
    made = Conversation.objects.create(
        **{"tenant": team.tenant, "user": team.member.user, "title": title, "updated_at": at, **fields}
    )
    for number, text in enumerate(texts):
        Message.objects.create(
            conversation=made,
            role=("user", "assistant")[number % 2],
            text=text,
            created_at=at + timedelta(seconds=number),
        )
    return made


def titles(team: Team, query: str, **more: Any) -> list[str]:
    return [hit.conversation.title for hit in search(team.member, query, **more).hits]


def said(parts: list[Part]) -> str:
    return "".join(f"[{part.text}]" if part.marked else part.text for part in parts)


def test_words_are_found_in_any_order_in_titles_and_in_messages_and_together_in_quotes(team: Team) -> None:
    chat(team, "Prefix caches", "How do they work?", "Blocks are shared by hash.", age=1)
    chat(team, "Dinner", "What goes with shared plates?", "Bread, and prefix it with soup.", age=2)
    assert titles(team, "shared blocks") == titles(team, "blocks shared") == ["Prefix caches"]
    assert titles(team, "shared") == ["Prefix caches", "Dinner"], "the last used first"
    assert titles(team, "caches hash") == ["Prefix caches"], "a word in the title, the other in a message"
    assert titles(team, '"shared plates"') == ["Dinner"]
    assert titles(team, '"plates shared"') == []
    assert titles(team, '"shared pla') == ["Dinner"], "while somebody types, the quotes are open"
    assert titles(team, "nothing of it") == []
    assert titles(team, "plates soup") == [], "two messages are no message"


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("cafe", "Au CAFÉ du coin"),
        ("CAFÉ", "the cafe at noon"),
        ("cafe", "cafe\u0301 with the accent beside it"),
        ("strasse", "Die Straße ist lang"),
        ("don't", "I don\u2019t know"),
        ("ΑΘΗΝΑ", "Στην Αθήνα το βράδυ"),
        ("ёлка", "Новогодняя Елка"),
        ("提示词", "怎样写提示词"),
        ("한국", "한국어로 말해 줘"),
        ("\U0001f469\u200d\U0001f680", "An astronaut 👩‍🚀 and a rocket"),
        ("100%", "I am 100% sure"),
        ("a_b", "the name a_b is free"),
        (r"C:\new", r"It is in C:\new\folder"),
        ("'; DROP", "Robert'; DROP TABLE students"),
    ],
)
def test_neither_case_nor_accents_count_and_no_character_is_special(team: Team, query: str, text: str) -> None:
    chat(team, "One", text)
    chat(team, "Another", "the name aXb, 1000 percent, cave, new folder, I do not")
    hits = search(team.member, query).hits
    assert [hit.conversation.title for hit in hits] == ["One"]
    assert any(part.marked for part in hits[0].snippet)
    assert "".join(part.text for part in hits[0].snippet) == text


@pytest.mark.parametrize("query", ["", "  ", '"', '""', "\0", "\u200b", "“”", "\ud800"])
def test_what_says_nothing_finds_nothing(team: Team, query: str) -> None:
    chat(team, "One", "two")
    assert search(team.member, query).hits == []


def test_a_long_query_is_cut_and_not_refused_here(team: Team) -> None:
    chat(team, "One", "word " * 50)
    assert titles(team, "word " * 5000) == titles(team, "wo\ud800rd\0") == ["One"]
    assert len(terms("a b c d e f g h i j k")) == module.MOST_TERMS


def test_the_place_is_shown_with_the_words_marked_and_the_newest_message_is_meant(team: Team) -> None:
    long = (
        "Some words before it, so that they are cut off here. " * 3 + "The **warm cache** keeps it, " + "and on " * 60
    )
    chat(team, "Caches & more", "cache?", long)
    (hit,) = search(team.member, "CACHE").hits
    assert said(hit.title) == "[Cache]s & more"
    assert hit.role == "assistant"
    found = said(hit.snippet)
    assert "The warm [cache] keeps it" in found
    assert found.startswith("…")
    assert found.endswith("…")
    assert len(found) < module.SNIPPET + 10


def test_a_snippet_of_hostile_text_is_text_in_pieces() -> None:
    pieces = snippet("<img src=x onerror=alert(1)> café <b>", terms("cafe b"))
    assert said(pieces) == "<img src=x onerror=alert(1)> [café] <[b]>"


def test_folding_keeps_letters_that_are_no_accents() -> None:
    assert fold("Ünïcode ŒUVRE ẞ İ ﬁ") == "unicode œuvre ss i fi"
    assert fold("हिन्दी") == "हिन्दी", "vowel signs are letters there"


def test_filters_hold_for_a_search_too(team: Team) -> None:
    now = timezone.now()
    chat(team, "Plain", "needle", age=1)
    chat(team, "Starred", "needle", age=2, starred_at=now)
    chat(team, "Archived", "needle", age=3, archived_at=now)
    chat(team, "Deleted", "needle", age=4, deleted_at=now)
    Tag.objects.create(conversation=chat(team, "Tagged", "needle", age=5), name="work")
    assert titles(team, "needle") == ["Plain", "Starred", "Tagged"]
    assert titles(team, "needle", filters=Filters(starred=True)) == ["Starred"]
    assert titles(team, "needle", filters=Filters(archived=True)) == ["Archived"]
    assert titles(team, "needle", filters=Filters(deleted=True)) == ["Deleted"]
    assert titles(team, "needle", filters=Filters(tag="work")) == ["Tagged"]
    assert titles(team, "needle", filters=Filters(assistant_id=uuid.uuid4())) == []


def test_nobody_finds_what_others_have_said(team: Team, strangers: Team) -> None:
    """P11."""
    chat(team, "Mine", "needle")
    chat(team, "A colleague's", "needle", user=team.owner.user)
    chat(team, "A key's", "needle", user=None, key=team.key.key)
    chat(strangers, "Foreign", "needle", user=strangers.member.user)
    assert titles(team, "needle") == ["Mine"]
    assert [hit.conversation.title for hit in search(team.key, "needle").hits] == ["A key's"]


def test_pages_of_a_search_miss_and_repeat_nothing_in_ties_too(team: Team) -> None:
    at = timezone.now()
    for number in range(90):
        chat(team, f"Chat {number}", "needle" if number % 3 == 0 else "hay", updated_at=at)
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        found = search(team.member, "needle", cursor=cursor, limit=7)
        seen += [hit.conversation.title for hit in found.hits]
        cursor = found.next
    assert sorted(seen) == sorted(f"Chat {number}" for number in range(0, 90, 3))


def test_a_search_that_takes_too_long_says_where_to_go_on(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(60):
        chat(team, f"Chat {number}", "hay", age=number)
    chat(team, "Old", "needle", age=1000)
    monkeypatch.setattr(module, "ENOUGH_S", 0.0)
    found = search(team.member, "needle")
    assert found.hits == []
    rounds = 0
    while found.next is not None:
        found = search(team.member, "needle", cursor=found.next)
        rounds += 1
    assert [hit.conversation.title for hit in found.hits] == ["Old"]
    assert 1 < rounds < 5, "a part each time, and each part once"


def test_ten_thousand_conversations_are_searched_in_bounded_time(team: Team) -> None:
    """The figures are in the log; here it is the bound that counts: no request works much longer than it may."""
    at = timezone.now()
    made = Conversation.objects.bulk_create(
        Conversation(tenant=team.tenant, user=team.member.user, title=f"Chat {n}", updated_at=at - timedelta(hours=n))
        for n in range(10_000)
    )
    Message.objects.bulk_create(Message(conversation=one, role="user", text="hay and grass, 100 m") for one in made)
    begun = time.monotonic()
    found = search(team.member, "needle")
    assert time.monotonic() - begun < module.ENOUGH_S + 1.5
    while found.next is not None:
        found = search(team.member, "needle", cursor=found.next)
    begun = time.monotonic()
    assert len(search(team.member, "grass").hits) == 20
    assert time.monotonic() - begun < 1.0
