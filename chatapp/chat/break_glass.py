"""What an operator sees of a team's chats while a reading is open (chatapp.audit.break_glass).

Runs in the scope of that team alone. The list shows who and when, and no title, which would tell of the chat; a
conversation is shown only once its reading is in the team's log.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, QuerySet

from chatapp.audit import break_glass
from chatapp.audit.models import BreakGlass
from chatapp.chat.models import Conversation, Message
from chatapp.cursors import behind, cursor_of
from chatapp.errors import NotFound
from chatapp.files.selectors import with_files
from chatapp.scope import tenant_scope

PAGE = 50


@dataclass(frozen=True)
class Page:
    items: Sequence[Conversation]
    next: str | None


def _kept(reading: BreakGlass) -> QuerySet[Conversation]:
    """What its owner has deleted is not to be read either."""
    return Conversation.objects.filter(tenant=reading.tenant, deleted_at=None)


def conversations(*, user: Any, reading_id: uuid.UUID, cursor: str = "") -> tuple[BreakGlass, Page]:
    """Newest first, each with `number` of messages. Raises NotFound, Forbidden, BadInput."""
    reading = break_glass.reading(user=user, reading_id=reading_id)
    with tenant_scope(reading.tenant):
        found = _kept(reading).annotate(number=Count("messages"))
        found = found.select_related("user", "key").defer("title").order_by("-updated_at", "-id")
        if reading.conversation_id is not None:
            found = found.filter(pk=reading.conversation_id)
        if cursor:
            found = found.filter(behind(cursor, moment="updated_at"))
        items = list(found[: PAGE + 1])
    more, items = len(items) > PAGE, items[:PAGE]
    return reading, Page(items, cursor_of(items[-1].updated_at, items[-1].pk) if more else None)


def conversation(
    *, user: Any, reading_id: uuid.UUID, conversation_id: uuid.UUID
) -> tuple[BreakGlass, Conversation, list[Message]]:
    """One conversation with its messages, oldest first; the team's log says so from now on."""
    reading = break_glass.reading(user=user, reading_id=reading_id)
    with tenant_scope(reading.tenant):
        allowed = reading.conversation_id in (None, conversation_id)
        found = _kept(reading).select_related("user", "key").filter(pk=conversation_id).first() if allowed else None
        if found is None:
            raise NotFound("There is no such conversation.")
        break_glass.note_read(user=user, found=reading, conversation=found)
        return reading, found, list(found.messages.prefetch_related(with_files()))
