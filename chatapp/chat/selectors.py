"""What can be read of chats. Every reader takes an Access; what is not the asker's is NotFound, like what never was."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from django.db.models import Count, Exists, Model, OuterRef, Q, QuerySet

from chatapp.chat.models import UNFINISHED, Conversation, Generation, Message, Tag
from chatapp.chat.text import settled
from chatapp.cursors import behind, cursor_of, within_time
from chatapp.errors import BadInput, NotFound
from chatapp.files.selectors import with_files
from chatapp.ids import parse_id
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission

LONGEST_PAGE = 100
# In the place of a message's id: none, it stands at the root.
ROOT = "root"
MOST_WORDS = 8
Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True)
class Page(Generic[Row]):
    """`next` is the cursor of the page behind this one, None at the end. Conversations carry `running`."""

    items: Sequence[Row]
    next: str | None


@dataclass(frozen=True)
class Filters:
    """`text`: words that are all in the title; `since` counts, `until` does not any more (of the last activity).
    `archived`: those that were put away, instead of the others. `deleted`: those that can be asked back, archived or
    not, instead of all others. `tag`: as its owner has written it."""

    text: str = ""
    starred: bool | None = None
    running: bool | None = None
    assistant_id: uuid.UUID | None = None
    since: datetime | None = None
    until: datetime | None = None
    deleted: bool = False
    archived: bool = False
    tag: str = ""

    def narrow(self, found: QuerySet[Conversation]) -> QuerySet[Conversation]:
        for word in self.text.replace("\0", "").split()[:MOST_WORDS]:
            found = found.filter(title__icontains=word)
        if not self.deleted:
            found = found.filter(archived_at__isnull=not self.archived)
        if self.tag:
            found = found.filter(Exists(Tag.objects.filter(conversation=OuterRef("pk"), name=settled(self.tag))))
        if self.starred is not None:
            found = found.filter(starred_at__isnull=not self.starred)
        if self.running is not None:
            found = found.filter(_answered() if self.running else ~_answered())
        if self.assistant_id is not None:
            found = found.filter(assistant=self.assistant_id)
        for name, moment in (("since", self.since), ("until", self.until)):
            if moment is not None:
                at = within_time(moment)
                if at is None:
                    raise BadInput(f"{name} must be a moment with its zone.", param=name)
                found = found.filter(Q(updated_at__gte=at) if name == "since" else Q(updated_at__lt=at))
        return found


def _own(access: Access, *, deleted: bool = False) -> QuerySet[Conversation]:
    """The asker's conversations in the asker's tenant: members see their own, a key those it started."""
    access.require(Permission.CHAT)
    owner = Q(user=access.user) if access.user is not None else Q(key=access.key)
    own = Conversation.objects.filter(owner, tenant=access.tenant, deleted_at__isnull=not deleted)
    return own.annotate(running=_answered())


def _answered() -> Exists:
    """A conversation is being answered."""
    return Exists(Generation.objects.filter(conversation=OuterRef("pk"), state__in=UNFINISHED))


def conversations(
    access: Access, before: str | None = None, limit: int = 50, filters: Filters | None = None
) -> Page[Conversation]:
    """Newest first. `before` is a cursor from the page before this."""
    filters = filters or Filters()
    query = own(access, filters).select_related("assistant").prefetch_related("tags")
    if before:
        query = query.filter(behind(before, moment="updated_at", param="cursor"))
    return _page(query, "updated_at", limit)


def own(access: Access, filters: Filters) -> QuerySet[Conversation]:
    """All that the asker has and the filters leave, newest first."""
    return filters.narrow(_own(access, deleted=filters.deleted)).order_by("-updated_at", "-id")


def conversation(access: Access, conversation_id: object, *, deleted: bool = False) -> Conversation:
    """`deleted`: also where it can only be asked back."""
    found = _own(access).filter(pk=parse_id(conversation_id)).first()
    if found is None and deleted:
        found = _own(access, deleted=True).filter(pk=parse_id(conversation_id)).first()
    if found is None:
        raise NotFound("There is no such conversation.", param="conversation_id")
    return found


def tags(access: Access) -> list[tuple[str, int]]:
    """The asker's tags by name, each with how many conversations have it; of those that were deleted none."""
    rows = Tag.objects.filter(conversation__in=_own(access).order_by().values("pk"))
    found = rows.order_by().values_list("name").annotate(count=Count("pk"))
    return sorted(found, key=lambda row: (row[0].casefold(), row[0]))


def messages(access: Access, conversation_id: object) -> list[Message]:
    """All messages of a conversation, oldest first, each answer with its generation, each question with its files."""
    found = conversation(access, conversation_id)
    return list(found.messages.select_related("generation").prefetch_related(with_files()))


def page_of_messages(access: Access, conversation_id: object, cursor: str = "", limit: int = 50) -> Page[Message]:
    """Newest first, each answer with its generation, each question with its files."""
    query = conversation(access, conversation_id).messages.select_related("generation").order_by("-created_at", "-id")
    query = query.prefetch_related(with_files())
    if cursor:
        query = query.filter(behind(cursor, moment="created_at"))
    return _page(query, "created_at", limit)


def _page(query: QuerySet[Row], moment: str, limit: int) -> Page[Row]:
    limit = max(1, min(limit, LONGEST_PAGE))
    items = list(query[: limit + 1])
    more = len(items) > limit
    items = items[:limit]
    return Page(items, cursor_of(getattr(items[-1], moment), items[-1].pk) if more else None)


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
