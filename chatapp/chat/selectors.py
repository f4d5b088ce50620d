"""What can be read of chats. Every reader takes an Access; what is not the asker's is NotFound, like what never was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Exists, OuterRef, Q, QuerySet

from chatapp.chat.models import UNFINISHED, Conversation, Generation, Message
from chatapp.cursors import behind, cursor_of
from chatapp.errors import NotFound
from chatapp.ids import parse_id
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission

LONGEST_PAGE = 100


@dataclass(frozen=True)
class Page:
    """`next` is the cursor of the page behind this one, None at the end. Items carry `running`."""

    items: Sequence[Conversation]
    next: str | None


def _own(access: Access) -> QuerySet[Conversation]:
    """The asker's conversations in the asker's tenant: members see their own, a key those it started."""
    access.require(Permission.CHAT)
    owner = Q(user=access.user) if access.user is not None else Q(key=access.key)
    return Conversation.objects.filter(owner, tenant=access.tenant, deleted_at=None)


def conversations(access: Access, before: str | None = None, limit: int = 50) -> Page:
    """Newest first. `before` is a cursor from the page before this."""
    limit = max(1, min(limit, LONGEST_PAGE))
    running = Generation.objects.filter(conversation=OuterRef("pk"), state__in=UNFINISHED)
    query = _own(access).annotate(running=Exists(running)).order_by("-updated_at", "-id")
    if before:
        query = query.filter(behind(before, moment="updated_at", param="before"))
    items = list(query[: limit + 1])
    more = len(items) > limit
    items = items[:limit]
    return Page(items, cursor_of(items[-1].updated_at, items[-1].pk) if more else None)


def conversation(access: Access, conversation_id: object) -> Conversation:
    found = _own(access).filter(pk=parse_id(conversation_id)).first()
    if found is None:
        raise NotFound("There is no such conversation.", param="conversation_id")
    return found


def messages(access: Access, conversation_id: object) -> list[Message]:
    """All messages of a conversation, oldest first, each answer with its generation."""
    found = conversation(access, conversation_id)
    return list(found.messages.select_related("generation"))


def generation(access: Access, generation_id: object) -> Generation:
    """A generation that the asker started."""
    access.require(Permission.CHAT)
    found = (
        Generation.objects.select_related("message", "conversation")
        .filter(pk=parse_id(generation_id), tenant=access.tenant, principal=access.principal)
        .exclude(conversation__deleted_at__isnull=False)
        .first()
    )
    if found is None:
        raise NotFound("There is no such response.", param="response_id")
    return found


def running(access: Access) -> int:
    """How many answers of the team wait or run now. Says nothing of whose they are."""
    access.require(Permission.READ_DASHBOARD)
    return Generation.objects.filter(tenant=access.tenant, state__in=UNFINISHED).count()
