"""Finding and ordering chats by HTTP: search in titles and messages, tags, and changes of several conversations."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from ninja import Field, Query, Router, Schema

from chatapp.api.product.base import AccessRequest, needs
from chatapp.api.product.conversations import REFUSALS, Item
from chatapp.chat import conversations, present, selectors, tags
from chatapp.chat.conversations import MOST_AT_ONCE
from chatapp.chat.models import LONGEST_TAG
from chatapp.chat.search import LONGEST_PAGE, LONGEST_QUERY, Hit, search
from chatapp.chat.tags import MOST_TAGS
from chatapp.tenants.permissions import Permission

router = Router(tags=["chat"])
CHAT = needs(Permission.CHAT)
TagName = Field(max_length=10 * LONGEST_TAG)


class Filters(Schema):
    """As those of the list of conversations."""

    starred: bool | None = None
    archived: bool = False
    deleted: bool = False
    tag: str = Field("", max_length=LONGEST_TAG)
    assistant_id: UUID | None = None


class Piece(Schema):
    """`marked`: it is what was looked for."""

    text: str
    marked: bool


class Found(Schema):
    """The newest message that matches; null where only the title does."""

    message_id: UUID
    role: Literal["user", "assistant"]
    created_at: datetime
    snippet: list[Piece]


class SearchHit(Schema):
    conversation: Item
    title: list[Piece]
    message: Found | None


class Hits(Schema):
    """`next`: the cursor of what comes behind, null at the end. The work of one search is bounded, so there may be no
    items and still a next: go on there."""

    items: list[SearchHit]
    next: str | None


class Tag(Schema):
    """`conversations`: how many have it."""

    name: str
    conversations: int


class Tags(Schema):
    items: list[Tag]


class Renaming(Schema):
    """Where there is a tag of the new name already, the two become one."""

    name: str = TagName
    to: str = TagName


class Touched(Schema):
    conversations: int


class Changes(Schema):
    """What is left out stays. `deleted` false: asked back."""

    ids: list[UUID] = Field(max_length=MOST_AT_ONCE)
    starred: bool | None = None
    archived: bool | None = None
    deleted: bool | None = None
    add_tags: list[str] = Field([], max_length=MOST_TAGS)
    remove_tags: list[str] = Field([], max_length=5 * MOST_TAGS)


class Changed(Schema):
    """Those that are not in it are not there, or not any more."""

    items: list[Item]


@router.get("/t/{slug}/conversations/search", response={200: Hits, **REFUSALS}, auth=CHAT, summary="Search")
def found(
    request: AccessRequest,
    slug: str,
    filters: Query[Filters],
    q: str = Query("", max_length=LONGEST_QUERY),
    cursor: str = "",
    limit: int = Query(20, ge=1, le=LONGEST_PAGE),
) -> Any:
    """One's own conversations that have all these words in their title or in a message, the last used first. Words in
    quotes stand together; neither case nor accents count. Without a word nothing is found."""
    wanted = selectors.Filters(**filters.dict())
    page = search(request.auth, q, filters=wanted, cursor=cursor, limit=limit)
    return {"items": [_hit(hit) for hit in page.hits], "next": page.next}


@router.post("/t/{slug}/conversations/changes", response={200: Changed, **REFUSALS}, auth=CHAT)
def change(request: AccessRequest, slug: str, body: Changes) -> Any:
    """Star, archive, delete, ask back or tag several conversations."""
    wanted = body.dict()
    ids = wanted.pop("ids")
    changed = conversations.change_many(access=request.auth, conversation_ids=ids, **wanted)
    return {"items": [present.conversation_item(one) for one in changed]}


@router.get("/t/{slug}/tags", response={200: Tags, **REFUSALS}, auth=CHAT, summary="List tags")
def listed(request: AccessRequest, slug: str) -> Any:
    """One's own, by name."""
    return {"items": [{"name": name, "conversations": count} for name, count in selectors.tags(request.auth)]}


@router.patch("/t/{slug}/tags", response={200: Touched, **REFUSALS}, auth=CHAT, summary="Rename a tag")
def rename(request: AccessRequest, slug: str, body: Renaming) -> Any:
    """On all of one's conversations."""
    return {"conversations": tags.rename_tag(access=request.auth, name=body.name, to=body.to)}


@router.delete("/t/{slug}/tags", response={200: Touched, **REFUSALS}, auth=CHAT, summary="Remove a tag")
def remove(request: AccessRequest, slug: str, name: str = Query(..., max_length=10 * LONGEST_TAG)) -> Any:
    """From all of one's conversations."""
    return {"conversations": tags.remove_tag(access=request.auth, name=name)}


def _hit(hit: Hit) -> dict[str, Any]:
    message = None
    if hit.message is not None:
        message = {
            "message_id": hit.message,
            "role": hit.role,
            "created_at": hit.said_at,
            "snippet": [vars(part) for part in hit.snippet],
        }
    item = present.conversation_item(hit.conversation)
    return {"conversation": item, "title": [vars(part) for part in hit.title], "message": message}
