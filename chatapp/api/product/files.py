"""Files for chats: put here, read by a worker, and attached to a question by their ids (…/conversations, `file_ids`).

A person's file belongs to that person; one that a key brings belongs to the team's keys. What a person puts here and
attaches to nothing is gone after a day.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

from django.db import transaction
from django.utils import timezone
from ninja import File, Router, Schema, Status
from ninja.files import UploadedFile

from chatapp.api.product.base import AccessRequest, ErrorAnswer, needs
from chatapp.chat.attachments import LARGEST_FILE, context_of
from chatapp.chat.requests import model_of
from chatapp.downloads import stored
from chatapp.errors import BadInput, Conflict, NotFound
from chatapp.files import jobs, kinds, present, selectors, services
from chatapp.files.models import UNREAD, Purpose, Reading, ReadingState, StoredFile
from chatapp.limits.selectors import limits_of
from chatapp.tenants.permissions import Permission

router = Router(tags=["files"])
CHAT = needs(Permission.CHAT)
REFUSALS = {400: ErrorAnswer, 401: ErrorAnswer, 403: ErrorAnswer, 404: ErrorAnswer}
UNATTACHED = timedelta(days=1)


class Unreadable(Schema):
    code: str
    message: str


class FileAnswer(Schema):
    """`state`: queued or running while it is read; ready, with `tokens` where an engine has counted them; or failed,
    and `error` says why. `context_tokens`: what a prompt may have altogether; null while no engine runs."""

    id: str
    name: str
    bytes: int
    created_at: datetime
    state: Literal["queued", "running", "ready", "failed"]
    kind: str | None
    pages: int | None
    tokens: int | None
    context_tokens: int | None
    error: Unreadable | None


class Text(Schema):
    """What was read, as it stands in prompts."""

    id: str
    name: str
    pages: int | None
    text: str


@router.post("/t/{slug}/files", response={201: FileAnswer, 413: ErrorAnswer, **REFUSALS}, auth=CHAT)
def upload(request: AccessRequest, slug: str, file: File[UploadedFile]) -> Any:
    """Text, Markdown, PDF, CSV or source code, told by its bytes."""
    access = request.auth
    try:
        kinds.kind_of(file.read(kinds.HEAD))
    except kinds.Unreadable as refused:
        raise BadInput(refused.message, code=refused.code, param="file") from None
    file.seek(0)
    expires_at = timezone.now() + UNATTACHED if access.user is not None else None
    found = services.store(
        access=access,
        name=file.name or "",
        content=file,
        purpose=Purpose.USER_DATA,
        expires_at=expires_at,
        most=LARGEST_FILE,
    )
    jobs.request(found)
    return Status(201, _answer(request, found.public_id, ""))


@router.get("/t/{slug}/files/{file_id}", response={200: FileAnswer, **REFUSALS}, auth=CHAT, summary="A file's state")
def one(request: AccessRequest, slug: str, file_id: str, model: str = "") -> Any:
    """`model`: whose tokens are meant; the team's default one without."""
    return _answer(request, file_id, model)


def _answer(request: AccessRequest, file_id: str, model: str) -> dict[str, Any]:
    access = request.auth
    found = selectors.file(access, file_id)
    reading = Reading.objects.filter(file=found).defer("text").first()
    if reading is None and found.purpose == Purpose.USER_DATA:
        reading = jobs.request(found)
    name = model_of(access, model)
    tokens = jobs.tokens_of(reading, name) if reading is not None else None
    return {**present.file(found, reading, tokens), "context_tokens": context_of(limits_of(access), name)}


@router.delete("/t/{slug}/files/{file_id}", response={204: None, 409: ErrorAnswer, **REFUSALS}, auth=CHAT)
def delete(request: AccessRequest, slug: str, file_id: str) -> Any:
    """A file that a message has stays with the message: 409."""
    found = selectors.file(request.auth, file_id)
    with transaction.atomic():
        # Whoever attaches it at this moment locks it as well (chatapp.chat.attachments).
        StoredFile.objects.select_for_update().filter(pk=found.pk).first()
        if found.user_id is not None and found.attachments.exists():
            raise Conflict(
                "This file belongs to a message that was sent. Delete the conversation.", code="file_attached"
            )
        services.delete(access=request.auth, file_id=file_id)
    return Status(204, None)


@router.get("/t/{slug}/files/{file_id}/content", response={200: None, **REFUSALS}, auth=CHAT)
def content(request: AccessRequest, slug: str, file_id: str) -> Any:
    """The bytes as they came, to be saved: no browser shows them as a page."""
    found = selectors.file(request.auth, file_id)
    try:
        return stored(request, services.open_file(found), size=found.bytes, name=found.name)
    except FileNotFoundError:
        raise NotFound("The bytes of this file are gone.", param="file_id") from None


@router.get("/t/{slug}/files/{file_id}/text", response={200: Text, 409: ErrorAnswer, **REFUSALS}, auth=CHAT)
def text(request: AccessRequest, slug: str, file_id: str) -> Any:
    """409 while it is being read, and where it cannot be."""
    found = selectors.file(request.auth, file_id)
    reading = Reading.objects.filter(file=found).first()
    if reading is None or reading.state in UNREAD:
        raise Conflict("This file is still being read. Try again in a moment.", code="file_not_ready")
    if reading.state != ReadingState.READY:
        raise Conflict(reading.error, code="file_unreadable")
    return {"id": found.public_id, "name": found.name, "pages": reading.pages, "text": reading.text}
