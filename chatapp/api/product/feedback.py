"""Thumbs: one's own ratings of answers, and what the admins read of all of them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from ninja import Field, Query, Router, Schema, Status

from chatapp.api.product.base import LIMIT, AccessRequest, ErrorAnswer, needs
from chatapp.api.product.moving import OwnRating
from chatapp.feedback import selectors, services
from chatapp.feedback.models import LONGEST_COMMENT
from chatapp.tenants.permissions import Permission

router = Router(tags=["feedback"])
CHAT = needs(Permission.CHAT)
READ = needs(Permission.READ_FEEDBACK)
REFUSALS = {400: ErrorAnswer, 401: ErrorAnswer, 403: ErrorAnswer, 404: ErrorAnswer}


class Wish(Schema):
    """`include`: the admins may read the question and the answer as well; without it they see neither."""

    rating: Literal["up", "down"]
    reasons: list[str] = Field([], max_length=10)
    comment: str = Field("", max_length=2 * LONGEST_COMMENT)
    include: bool = False


class Filters(Schema):
    """`since` counts, `until` does not any more. `said`: only with a reason, a text, or its chat."""

    rating: Literal["", "up", "down"] = ""
    assistant_id: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None
    said: bool = False


class Feedback(Schema):
    """Whose it is nobody is told. `question` and `answer` are empty where their reader has not included them."""

    id: UUID
    rating: str
    reasons: list[str]
    comment: str
    included: bool
    question: str
    answer: str
    model: str
    assistant: str
    version: int | None
    created_at: datetime


class Group(Schema):
    assistant: str
    number: int | None
    up: int
    down: int


class FeedbackPage(Schema):
    items: list[Feedback]
    next: str | None
    groups: list[Group]


@router.put("/t/{slug}/messages/{uuid:message_id}/rating", response={200: OwnRating, **REFUSALS}, auth=CHAT)
def rate(request: AccessRequest, slug: str, message_id: UUID, body: Wish) -> Any:
    """Rate an answer of one's own conversation, or change that: what is left out is taken back."""
    return services.rate(access=request.auth, message_id=message_id, **body.dict())


@router.delete("/t/{slug}/messages/{uuid:message_id}/rating", response={204: None, **REFUSALS}, auth=CHAT)
def take_back(request: AccessRequest, slug: str, message_id: UUID) -> Any:
    services.take_back(access=request.auth, message_id=message_id)
    return Status(204, None)


@router.get("/t/{slug}/feedback", response={200: FeedbackPage, **REFUSALS}, auth=READ, summary="The team's feedback")
def listed(request: AccessRequest, slug: str, filters: Query[Filters], cursor: str = "", limit: int = LIMIT) -> Any:
    """Newest first; `groups` counts what the filters leave, by assistant and prompt version."""
    wanted = selectors.Filters(**filters.dict())
    page = selectors.page(request.auth, wanted, cursor, limit)
    groups = selectors.groups(request.auth, wanted)
    return {"items": [selectors.present(row) for row in page.items], "next": page.next, "groups": groups}
