"""Words in the titles and messages of one's own conversations: newest conversation first, at most one hit in each.

Words may stand in any order, in the title or in one message; "words in quotes" stand together. Neither case nor accents
count, and no character is special. It is the same on every database: what may match is found there, and looked at here.

The work is bounded by time and not by what somebody has: a search looks at conversations in parts, newest first, and
gives what it has found by then, with the cursor to go on behind. At least one part is looked at each time.
"""

from __future__ import annotations

import re
import time
import unicodedata
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import F, Func, IntegerField, Q

from chatapp.chat import selectors
from chatapp.chat.models import Conversation, Message
from chatapp.chat.selectors import Filters
from chatapp.chat.text import settled
from chatapp.cursors import behind, cursor_of
from chatapp.tenants.access import Access

LONGEST_QUERY = 200
MOST_TERMS = 8
LONGEST_PAGE = 50
ENOUGH_S = 0.7
# How many conversations are looked at in one go: few at first, since most searches find something soon.
FIRST_PART = 25
LARGEST_PART = 400

SNIPPET = 140
BEFORE = 40
MARKS = re.compile("[\u0300-\u036f]+")
APOSTROPHES = ("\u2019", "\u02bc")
QUOTES = '"“”„«»'
TERM = re.compile(rf"[{QUOTES}]([^{QUOTES}]*)(?:[{QUOTES}]|$)|([^\s{QUOTES}]+)")
# Would only be seen as such.
NOISE = re.compile(r"\*\*|`{1,3}|^#{1,6} |^> ", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    """A piece of a title or snippet; `marked`: it is what was looked for."""

    text: str
    marked: bool


@dataclass(frozen=True)
class Hit:
    """`message`: the newest one that matches, None where only the title does."""

    conversation: Conversation
    title: list[Part]
    snippet: list[Part]
    message: uuid.UUID | None = None
    role: str = ""
    said_at: datetime | None = None


@dataclass(frozen=True)
class Found:
    """`next`: where to go on, None when all has been looked at. There may be no hits and still a next."""

    hits: list[Hit]
    next: str | None


@dataclass(frozen=True)
class Term:
    """A word, or several that stand together. Of a folded text."""

    words: tuple[str, ...]
    pattern: re.Pattern[str]

    def search(self, folded: str) -> re.Match[str] | None:
        return self.pattern.search(folded)


@dataclass(frozen=True)
class _Chat:
    pk: uuid.UUID
    title: str
    updated_at: datetime


@dataclass(frozen=True)
class _Message:
    id: uuid.UUID
    role: str
    text: str
    at: datetime


def fold(text: str) -> str:
    """What does not count taken off: case, and accents of Latin, Greek and Cyrillic letters."""
    if text.isascii():
        return text.lower()
    for apostrophe in APOSTROPHES:
        text = text.replace(apostrophe, "'")
    return MARKS.sub("", unicodedata.normalize("NFD", text.casefold()))


def terms(query: str) -> list[Term]:
    """What has to be there, each once."""
    found: dict[tuple[str, ...], Term] = {}
    for phrase, word in TERM.findall(settled(query[:LONGEST_QUERY])):
        words = tuple(fold(phrase or word).split())
        if words and any(unicodedata.category(c)[0] not in "CZ" for c in "".join(words)):
            found.setdefault(words, Term(words, re.compile(r"\s+".join(map(re.escape, words)))))
    return list(found.values())[:MOST_TERMS]


def search(access: Access, query: str, *, filters: Filters | None = None, cursor: str = "", limit: int = 20) -> Found:
    """Raises Forbidden, and BadInput for a cursor that is none."""
    wanted = terms(query)
    rows = selectors.own(access, filters or Filters())
    light = rows.filter(behind(cursor, moment="updated_at")) if cursor else rows
    if not wanted:
        return Found([], None)
    limit = max(1, min(limit, LONGEST_PAGE))
    until, size = time.monotonic() + ENOUGH_S, FIRST_PART
    hits: list[tuple[_Chat, _Message | None]] = []
    last: _Chat | None = None
    while True:
        behind_last = light.filter(_older(last)) if last is not None else light
        part = [_Chat(*row) for row in behind_last.values_list("pk", "title", "updated_at")[:size]]
        messages = _messages(part, wanted)
        for chat in part:
            last = chat
            said = messages.get(chat.pk, [])
            if said or all(term.search(fold(chat.title)) for term in wanted):
                hits.append((chat, max(said, key=lambda one: (one.at, one.id)) if said else None))
            if len(hits) == limit:
                break
        over = len(part) < size and (not part or last is part[-1])
        if over or len(hits) == limit or time.monotonic() > until:
            break
        size = min(2 * size, LARGEST_PART)
    whole = rows.prefetch_related("tags").in_bulk([chat.pk for chat, _ in hits])
    found = [_hit(whole[chat.pk], message, wanted) for chat, message in hits if chat.pk in whole]
    return Found(found, None if over or last is None else cursor_of(last.updated_at, last.pk))


# --- parts --------------------------------------------------------------------------------------------------------


class _Bytes(Func):
    """How many bytes a text has in UTF-8, which are as many as its characters where it is ASCII."""

    function = "OCTET_LENGTH"
    output_field = IntegerField()

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template="LENGTH(CAST(%(expressions)s AS BLOB))", **extra)


COLUMNS = ("pk", "conversation_id", "role", "text", "created_at")


class _Characters(Func):
    function = "LENGTH"
    output_field = IntegerField()


def _older(last: _Chat) -> Q:
    return Q(updated_at__lt=last.updated_at) | Q(updated_at=last.updated_at, id__lt=last.pk)


def _messages(part: Sequence[_Chat], wanted: Sequence[Term]) -> dict[uuid.UUID, list[_Message]]:
    """Those that may match, by conversation. Of plain ASCII the database knows it; other texts are looked at here."""
    found: dict[uuid.UUID, list[_Message]] = {}
    # By what their titles leave open, so that nothing is asked for that the title has already.
    groups: dict[tuple[Term, ...], list[uuid.UUID]] = {}
    for one in part:
        title = fold(one.title)
        groups.setdefault(tuple(term for term in wanted if not term.search(title)), []).append(one.pk)
    for left, keys in groups.items():
        needed = left or wanted
        plain = Q()
        for word in {word for term in needed for word in term.words}:
            plain &= Q(text__icontains=word)
        sized = Message.objects.alias(size=_Bytes(F("text")), length=_Characters(F("text"))).order_by()
        rows = sized.filter(plain | Q(size__gt=F("length")), conversation__in=keys)
        for pk, of, role, text, at in rows.values_list(*COLUMNS).iterator():
            folded = fold(text)
            if all(term.search(folded) for term in needed):
                found.setdefault(of, []).append(_Message(pk, role, text, at))
    return found


def _hit(conversation: Conversation, best: _Message | None, wanted: Sequence[Term]) -> Hit:
    marked = parts(conversation.title, wanted)
    if best is None:
        return Hit(conversation, marked, [])
    return Hit(conversation, marked, snippet(best.text, wanted), best.id, best.role, best.at)


def snippet(text: str, wanted: Sequence[Term]) -> list[Part]:
    """Some words around the first place that matches."""
    folded, origin = _mapped(text)
    starts = [match.start() for term in wanted if (match := term.search(folded))]
    at = origin[min(starts)] if starts else 0
    begin = max(0, at - BEFORE)
    if begin:
        space = text.find(" ", begin, at)
        begin = space + 1 if space >= 0 else begin
    end = min(len(text), begin + SNIPPET)
    if end < len(text):
        space = text.rfind(" ", at, end)
        end = space if space > at + BEFORE else end
    cut = " ".join(NOISE.sub("", text[begin:end]).split())
    return parts(f"{'…' if begin else ''}{cut}{'…' if end < len(text) else ''}", wanted)


def parts(text: str, wanted: Sequence[Term]) -> list[Part]:
    """The text in pieces, those marked that match."""
    folded, origin = _mapped(text)
    marks = [False] * len(text)
    for term in wanted:
        for match in term.pattern.finditer(folded):
            for at in range(origin[match.start()], origin[match.end() - 1] + 1):
                marks[at] = True
    found: list[Part] = []
    begin = 0
    for at in range(1, len(text) + 1):
        if at == len(text) or (marks[at] != marks[begin] and not MARKS.match(text[at])):
            found.append(Part(text[begin:at], marks[begin]))
            begin = at
    return found


def _mapped(text: str) -> tuple[str, Sequence[int]]:
    """The folded text, and for each of its characters the place that it comes from."""
    if text.isascii():
        return text.lower(), range(len(text))
    pieces = [fold(character) for character in text]
    return "".join(pieces), [at for at, piece in enumerate(pieces) for _ in piece]
