"""Text as people send it: cleaned of what databases refuse, measured, and cut to a title."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from django.conf import settings

from chatapp.errors import BadInput

TITLE_LENGTH = 60
UNSEEN = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})
JOINER = "\u200d"
# What is shown for half a character, where a text was cut inside one.
HALF = "\ufffd"
# They would turn the direction of whatever stands beside the title.
DIRECTIONS = dict.fromkeys([0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
# Markdown, as far as it would look odd in a list of titles.
FENCE = re.compile(r"(`{3,}|~{3,})[\w+#.-]*\s*")
BEFORE_LINE = re.compile(r"(?:#{1,6}\s+|>\s*|[-*+]\s+|\d{1,3}[.)]\s+)+")
LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*\)")
EMPHASIS = re.compile(r"(?<!\w)(\*{1,3}|_{1,3}|~~|`+)(?=\S)(.+?)(?<=\S)\1(?!\w)")
RULES = frozenset("-*_=~# ")
# More of a line is not looked at: patterns above take time that grows with its square.
READ_OF_LINE = 300


def clean(text: object, *, param: str) -> str:
    """The text without U+0000 and lone surrogates, which databases and UTF-8 refuse. Raises BadInput with `param`."""
    text = measured(text, param=param)
    if not any(unicodedata.category(character) not in UNSEEN for character in text):
        raise BadInput("The message is empty.", code="empty", param=param)
    return text


def measured(text: object, *, param: str) -> str:
    """As `clean`, but it may be empty."""
    if not isinstance(text, str):
        raise BadInput("The message must be a text.", param=param)
    limit = settings.OCTAVO_MAX_MESSAGE
    if len(text) > limit:
        raise BadInput(
            f"The message has {len(text)} characters; at most {limit} can be sent.", code="too_long", param=param
        )
    return settled(text)


def settled(text: str) -> str:
    """Without U+0000 and lone surrogates."""
    return text.replace("\0", "").encode("utf-8", "ignore").decode()


def one_line(text: str) -> str:
    """Without what would turn the direction of what stands beside it; one space between words."""
    return " ".join(text.translate(DIRECTIONS).split())


def joined(answer: str, rest: str) -> str:
    """An answer and what goes on with it; half a character at the cut is left to the rest."""
    return answer.rstrip(HALF) + rest if rest else answer


def plain(text: object, *, param: str, longest: int) -> str:
    """A short text of a program's making, which must come as it is or not at all. Raises BadInput naming `param`."""
    if not isinstance(text, str) or not 0 < len(text) <= longest:
        raise BadInput(f"{param} must be a text of 1 to {longest} characters.", param=param)
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise BadInput(f"{param} holds a character that is none (U+0000 or a lone surrogate).", param=param)
    return text


def title(text: str) -> str:
    """The first line's first words without markdown, at most about sixty characters, never cut inside a word where
    there is a choice."""
    line = next((found for part in lines_of(text) if (found := plain_line(part))), "New chat")
    if len(line) <= TITLE_LENGTH:
        return line
    cut = line[: TITLE_LENGTH + 1].rpartition(" ")[0]
    if len(cut) >= TITLE_LENGTH // 2:
        return cut + "…"
    end = TITLE_LENGTH
    while end > TITLE_LENGTH // 2 and not _may_cut(line, end):
        end -= 1
    return line[:end] + "…"


def lines_of(text: str) -> Iterator[str]:
    """The beginnings of its lines, without what turns directions and without control characters."""
    for line in text.translate(DIRECTIONS).splitlines():
        yield "".join(c for c in line.strip()[:READ_OF_LINE] if c == "\t" or unicodedata.category(c) != "Cc")


def plain_line(line: str) -> str:
    """A line as it reads: no markdown around it, one space between words. "" of a fence, a rule, or nothing at all."""
    line = " ".join(line.split())
    if FENCE.fullmatch(line) or set(line) <= RULES:
        return ""
    read = BEFORE_LINE.sub("", line, count=1)
    read = EMPHASIS.sub(r"\2", EMPHASIS.sub(r"\2", LINK.sub(r"\1", read)))
    return " ".join(read.split()) or line


def _may_cut(text: str, at: int) -> bool:
    """Whether readers see two characters beside this place: not inside an accent, an emoji, a flag or a syllable."""
    before, after = text[at - 1], text[at]
    if JOINER in (before, after) or unicodedata.category(after) in ("Mn", "Mc", "Me"):
        return False
    if "\U0001f3fb" <= after <= "\U0001f3ff":  # skin tones
        return False
    if "\u1160" <= after <= "\u11ff":  # vowels and finals of a decomposed Korean syllable
        return False
    flags = 0
    while flags < at and "\U0001f1e6" <= text[at - 1 - flags] <= "\U0001f1ff":
        flags += 1
    return not (flags % 2 and "\U0001f1e6" <= after <= "\U0001f1ff")
