"""Which conversations used most. Metadata only: a title is told to whoever has the conversation, and to nobody else."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from django.db.models import Count, F, Max, Sum

from chatapp.chat import used
from chatapp.chat.models import Conversation, Generation
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission


@dataclass(frozen=True)
class Cost:
    """`title` is empty where the reader does not own the conversation. Tokens are what budgets count."""

    conversation_id: uuid.UUID
    title: str
    own: bool
    principal: str
    who: str
    answers: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    tokens: int
    last_at: datetime


def costliest(access: Access, start: datetime, end: datetime, most: int) -> list[Cost]:
    """By the tokens of what was asked for from `start` to before `end`; deleted conversations are left out."""
    access.require(Permission.READ_USAGE)
    counted = (
        Generation.objects.filter(
            tenant=access.tenant, created_at__gte=start, created_at__lt=end, prompt_tokens__gt=0,
            conversation__isnull=False,
        )
        .order_by()
        .values("conversation")
        # By itself: beside the next ones its names would be theirs.
        .annotate(tokens=Sum(F("prompt_tokens") + F("completion_tokens")))
        .annotate(
            answers=Count("pk"),
            prompt_tokens=Sum("prompt_tokens"),
            cached_tokens=Sum("cached_tokens"),
            output_tokens=Sum("completion_tokens"),
            last_at=Max("created_at"),
        )
        .order_by("-tokens", "conversation")
    )  # fmt: skip
    # Looked up by the few that are shown: joined, all of the period's answers would be.
    rows: list[Any] = []
    found: dict[uuid.UUID, Conversation] = {}
    groups = counted.iterator(chunk_size=500)
    while len(rows) < most and (some := list(islice(groups, min(most, 500)))):
        there = Conversation.objects.filter(pk__in=[row["conversation"] for row in some], deleted_at__isnull=True)
        found |= {each.pk: each for each in there.only("pk", "title", "user_id", "key_id")}
        rows += [row for row in some if row["conversation"] in found]
    rows = rows[:most]
    owners = {row["conversation"]: _owner(found[row["conversation"]]) for row in rows}
    names = used.names(set(owners.values()))
    costs = []
    for row in rows:
        pk = row.pop("conversation")
        own = owners[pk] == access.principal and access.may(Permission.CHAT)
        title = found[pk].title if own else ""
        costs.append(Cost(conversation_id=pk, title=title, own=own, principal=owners[pk], who=names[owners[pk]], **row))
    return costs


def _owner(of: Conversation) -> str:
    return f"user:{of.user_id}" if of.user_id else f"key:{of.key_id}"
