"""A conversation as Markdown, for reading elsewhere: title, who, when, text, along one branch.

What somebody wrote cannot break the document: a code block or a piece of HTML that is not closed ends with its
message, so that the next one is a heading again. Nothing else of a text is changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.chat.models import Conversation, Message, MessageRole, MessageStatus
from chatapp.chat.text import one_line
from chatapp.moving.own_format import told_of

FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
# Blocks of HTML that end at a mark of their own and not at an empty line (CommonMark 4.6, the kinds 1 to 5).
OPENS = re.compile(r" {0,3}<(script|pre|style|textarea|!--|\?|!\[CDATA\[|![a-z])", re.IGNORECASE)
ENDS = {"!--": "-->", "?": "?>", "![cdata[": "]]>"}
SPECIAL = re.compile(r"([\\`*_\[\]<>#])")


def markdown(conversation: Conversation, path: Sequence[Message], *, person: str, team: str) -> str:
    """`path`: the branch that is shown, oldest first. `person`: who asks in it."""
    parts = [f"# {escaped(conversation.title)}", _about(conversation, len(path), team)]
    for message in path:
        parts.append("---")
        parts.append(_heading(conversation, message, person, team))
        told = told_of(conversation, message)
        if names := told.get("files"):
            parts.append(_("Files: %(names)s") % {"names": ", ".join(f"`{_plain(name)}`" for name in names)})
        if message.text.strip():
            parts.append(whole(message.text))
        if message.status == MessageStatus.FAILED:
            parts.append("*" + _("This answer broke off.") + "*")
        elif message.status == MessageStatus.STOPPED:
            parts.append("*" + _("This answer was stopped.") + "*")
    return ("\n\n".join(parts) + "\n").encode("utf-8", "replace").decode()


def _about(conversation: Conversation, count: int, team: str) -> str:
    return _("Exported from Octavo, %(team)s, on %(when)s. %(count)d messages, begun on %(begun)s.") % {
        "team": escaped(team),
        "when": _time(timezone.now()),
        "count": count,
        "begun": _time(conversation.created_at),
    }


def _heading(conversation: Conversation, message: Message, person: str, team: str) -> str:
    if message.role == MessageRole.USER:
        who = person
    else:
        model = told_of(conversation, message).get("model")
        who = f"{team} ({model})" if model else team
    return f"## {escaped(who)} · {_time(message.created_at)}"


def _time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _plain(text: str) -> str:
    return one_line(text).replace("`", "'")


def escaped(text: str) -> str:
    """One line in which nothing is markup."""
    return SPECIAL.sub(r"\\\1", one_line(text))


def whole(text: str) -> str:
    """The text with nothing left open at its end."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    lowered = [line.lower() for line in lines]
    last: dict[str, int] = {}
    fence = html = ""
    for number, line in enumerate(lines):
        found = FENCE.fullmatch(line)
        if fence:
            if found and found[1][0] == fence[0] and len(found[1]) >= len(fence) and not found[2].strip():
                fence = ""
        elif html:
            html = "" if html in lowered[number] else html
        elif found and not (found[1][0] == "`" and "`" in found[2]):
            fence = found[1]
        elif opened := OPENS.match(line):
            kind = opened[1].lower()
            end = ENDS.get(kind) or (">" if kind.startswith("!") else f"</{kind}>")
            if end in lowered[number][opened.end() :]:
                continue
            if end not in last:
                last[end] = next((at for at in reversed(range(len(lines))) if end in lowered[at]), -1)
            if last[end] > number:
                html = end
            else:  # never closed: it is text, and so is what follows it
                lines[number] = line.replace("<", "\\<", 1)
    return "\n".join([*lines, fence] if fence else lines)
