"""What can be read of files. What is not the asker's is NotFound, like what never was."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Prefetch, Q, QuerySet, Sum
from django.utils import timezone

from chatapp.errors import NotFound
from chatapp.files.models import Attachment, Purpose, ReadingState, StoredFile, parse_file_id
from chatapp.files.prompt import block
from chatapp.tenants.access import Access
from chatapp.tenants.models import Tenant
from chatapp.tenants.permissions import Permission


@dataclass(frozen=True)
class Page:
    items: Sequence[StoredFile]
    more: bool


def own(access: Access) -> QuerySet[StoredFile]:
    """A person's own files, or those of the team's keys; none whose time is over. Evaluate it in the tenant's scope."""
    access.require(Permission.CHAT)
    owner = Q(user=access.user) if access.user is not None else Q(user=None)
    living = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    return StoredFile.objects.filter(owner, living, tenant=access.tenant)


def file(access: Access, file_id: object, *, param: str = "file_id") -> StoredFile:
    found = own(access).filter(pk=parse_file_id(file_id)).first()
    if found is None:
        raise NotFound("There is no such file.", param=param)
    return found


def files(
    access: Access, *, after: object = None, limit: int = 100, newest_first: bool = True, purpose: str | None = None
) -> Page:
    """`after`: the id of the last file of the page before this one. Raises NotFound for one that is not there."""
    rows = own(access)
    if purpose is not None:
        # Of a text that is no purpose the database is not asked: PostgreSQL refuses some of them, such as U+0000.
        rows = rows.filter(purpose=purpose) if purpose in Purpose.values else rows.none()
    if after is not None:
        last = file(access, after, param="after")
        earlier = Q(created_at__lt=last.created_at) | Q(created_at=last.created_at, pk__lt=last.pk)
        later = Q(created_at__gt=last.created_at) | Q(created_at=last.created_at, pk__gt=last.pk)
        rows = rows.filter(earlier if newest_first else later)
    order = ("-created_at", "-pk") if newest_first else ("created_at", "pk")
    found = list(rows.order_by(*order)[: limit + 1])
    return Page(found[:limit], len(found) > limit)


def used(tenant: Tenant) -> int:
    """Bytes that a team keeps now, in all its files."""
    return StoredFile.objects.filter(tenant=tenant).aggregate(sum=Sum("bytes"))["sum"] or 0


def with_files() -> Prefetch[Any]:
    """For queries of messages: each with `attachments`, their files and what was read of them, but for the text."""
    rows = Attachment.objects.select_related("file__reading").defer("file__reading__text").order_by("position")
    return Prefetch("attachments", queryset=rows)


def prompt_blocks(message_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, list[str]]:
    """What stands in front of these messages in a prompt. A file that was deleted stands nowhere any more."""
    rows = Attachment.objects.filter(message__in=message_ids, file__reading__state=ReadingState.READY)
    found: dict[uuid.UUID, list[str]] = {}
    for row in rows.select_related("file__reading").order_by("position"):
        reading = row.file.reading
        found.setdefault(row.message_id, []).append(block(row.file.name, reading.text, reading.pages))
    return found
