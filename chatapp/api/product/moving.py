"""Chats that go and come: exports of one's own conversations, imports from elsewhere, and what is known beside one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import IO, Any, cast
from uuid import UUID

from django.conf import settings
from django.http import StreamingHttpResponse
from django.utils import timezone
from ninja import File, Query, Router, Schema
from ninja.files import UploadedFile

from chatapp.api.product.base import AccessRequest, ErrorAnswer, needs
from chatapp.chat import selectors
from chatapp.data.retention import retention_of
from chatapp.downloads import download
from chatapp.feedback.services import own_ratings
from chatapp.moving import exports, services
from chatapp.moving.models import Import
from chatapp.moving.services import Report
from chatapp.tenants.permissions import Permission

router = Router(tags=["chat"])
CHAT = needs(Permission.CHAT)
REFUSALS = {400: ErrorAnswer, 401: ErrorAnswer, 403: ErrorAnswer, 404: ErrorAnswer}
FORMAT: str = Query("json", description="md or json.")


class Refused(Schema):
    title: str
    why: str


class ImportRow(Schema):
    id: UUID
    source: str
    conversations: int
    messages: int
    created_at: datetime


class Imports(Schema):
    """`most_bytes`: how large a file may be."""

    items: list[ImportRow]
    most_bytes: int


class ImportReport(Schema):
    """`conversations` and `messages`: what can be imported, or was. `already`: chats that are here, and were passed
    over. `left_out`: how much of what they hold no chat here has. `too_old`: chats that retention will delete the next
    night. `refused` and `titles` are the first of them. `import_id`: what to undo; null where nothing came."""

    source: str
    conversations: int
    messages: int
    already: int
    refused_count: int
    refused: list[Refused]
    titles: list[str]
    left_out: dict[str, int]
    oldest: datetime | None
    newest: datetime | None
    too_old: int
    retention_days: int | None
    import_id: UUID | None


class Undone(Schema):
    """`conversation_ids`: those that are gone now, as deleted ones are; `kept`: those that were gone on with."""

    conversation_ids: list[UUID]
    kept: int


class OwnRating(Schema):
    message_id: UUID
    rating: str
    reasons: list[str]
    comment: str
    included: bool


class Origin(Schema):
    source: str
    name: str
    at: datetime


class Notes(Schema):
    """`imported`: where a conversation was said; null: here."""

    imported: Origin | None
    ratings: list[OwnRating]


@router.get(
    "/t/{slug}/conversations/{uuid:conversation_id}/export", response={200: None, **REFUSALS}, auth=CHAT,
    summary="Export a conversation",
)  # fmt: skip
def export_one(
    request: AccessRequest, slug: str, conversation_id: UUID, format: str = FORMAT, leaf_id: UUID | None = None
) -> StreamingHttpResponse:
    """As JSON with all its branches (docs/moving.md), or as Markdown along the branch that ends in `leaf_id`."""
    name, parts = exports.one(request.auth, conversation_id, format, leaf_id)
    return download(request, parts, name)


@router.get("/t/{slug}/conversations/export", response={200: None, **REFUSALS}, auth=CHAT, summary="Export all")
def export_all(request: AccessRequest, slug: str, format: str = FORMAT) -> StreamingHttpResponse:
    """One's own conversations: one JSON file, or a zip file with a Markdown one for each."""
    name, parts = exports.everything(request.auth, format)
    return download(request, parts, name)


@router.post(
    "/t/{slug}/imports", response={200: ImportReport, 409: ErrorAnswer, 413: ErrorAnswer, **REFUSALS}, auth=CHAT,
    summary="Import chats",
)  # fmt: skip
def import_file(
    request: AccessRequest, slug: str, file: File[UploadedFile], dry_run: bool = False, again: bool = False
) -> Any:
    """Octavo's own JSON, ChatGPT's conversations.json or its zip file, or Open WebUI's export. `dry_run`: only look.
    `again`: also what is here already."""
    act = services.look if dry_run else services.bring
    return _report(request, act(access=request.auth, file=cast("IO[bytes]", file.file), again=again))


@router.get("/t/{slug}/imports", response={200: Imports, **REFUSALS}, auth=CHAT, summary="One's latest imports")
def imports(request: AccessRequest, slug: str) -> Any:
    return {"items": services.imports_of(request.auth), "most_bytes": settings.OCTAVO_MAX_FILE}


@router.delete(
    "/t/{slug}/imports/{uuid:import_id}", response={200: Undone, **REFUSALS}, auth=CHAT, summary="Undo an import"
)
def undo(request: AccessRequest, slug: str, import_id: UUID) -> Any:
    """Those that were gone on with stay."""
    _, gone, kept = services.undo(access=request.auth, import_id=import_id)
    return {"conversation_ids": gone, "kept": kept}


@router.get("/t/{slug}/conversations/{uuid:conversation_id}/notes", response={200: Notes, **REFUSALS}, auth=CHAT)
def notes(request: AccessRequest, slug: str, conversation_id: UUID) -> Any:
    """What stands beside a conversation: where it came from, and how one has rated its answers."""
    found = selectors.conversation(request.auth, conversation_id)
    origin = services.imported(found)
    return {
        "imported": origin and {"source": origin.source, "name": origin.get_source_display(), "at": origin.at},
        "ratings": own_ratings(request.auth, found.pk),
    }


def _report(request: AccessRequest, report: Report) -> dict[str, Any]:
    rule = retention_of(request.auth.tenant)
    too_old = 0
    if rule.days is not None:
        cutoff = timezone.now() - timedelta(days=rule.days)
        too_old = sum(at < cutoff and not (starred and rule.keep_starred) for at, starred in report.times)
    times = [at for at, _ in report.times]
    batch: Import | None = report.batch
    return {
        "source": report.source,
        "conversations": report.conversations,
        "messages": report.messages,
        "already": report.already,
        "refused_count": report.refused_count,
        "refused": report.refused,
        "titles": report.titles,
        "left_out": dict(report.left_out),
        "oldest": min(times, default=None),
        "newest": max(times, default=None),
        "too_old": too_old,
        "retention_days": rule.days,
        "import_id": batch.pk if batch is not None else None,
    }
