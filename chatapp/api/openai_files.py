"""/v1/files: OpenAI's Files API for the files of a team's keys (chatapp.files)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
from django.core.exceptions import RequestDataTooBig, TooManyFieldsSent, TooManyFilesSent
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse
from django.http.multipartparser import MultiPartParserError
from django.http.response import HttpResponseBase
from django.utils import timezone

from chatapp.api.answering import in_thread
from chatapp.api.http import answer, with_key
from chatapp.api.openai_types import RequestError
from chatapp.api.operations import Operation
from chatapp.downloads import stored
from chatapp.errors import NotFound
from chatapp.files import selectors, services
from chatapp.files.models import Purpose, StoredFile
from chatapp.tenants.access import Access

# What callers may upload for; the others that OpenAI knows are refused by name.
PURPOSES = (Purpose.USER_DATA.value, Purpose.ASSISTANTS.value, Purpose.BATCH.value)
LONGEST_PAGE = 10_000
LEAST_LIFE_S, LONGEST_LIFE_S = 3600, 30 * 24 * 3600


class FileObject(msgspec.Struct, kw_only=True):
    """`status` is "processed": a file is whole as soon as it is there."""

    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: int | msgspec.UnsetType = msgspec.UNSET
    filename: str
    purpose: str
    status: str = "processed"


class FileList(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(msgspec.Struct, kw_only=True):
    id: str
    object: str = "file"
    deleted: bool = True


def shown(file: StoredFile) -> FileObject:
    return FileObject(
        id=file.public_id,
        bytes=file.bytes,
        created_at=int(file.created_at.timestamp()),
        expires_at=int(file.expires_at.timestamp()) if file.expires_at is not None else msgspec.UNSET,
        filename=file.name,
        purpose=file.purpose,
    )


@with_key("GET", "POST")
async def files(request: HttpRequest, access: Access) -> HttpResponse:
    if request.method == "POST":
        return answer(await in_thread(_create, request, access))
    return answer(await in_thread(_list, request, access))


@with_key("GET", "DELETE")
async def file(request: HttpRequest, access: Access, file_id: str) -> HttpResponse:
    if request.method == "DELETE":
        gone = await in_thread(services.delete, access=access, file_id=file_id)
        return answer(FileDeleted(id=gone.public_id))
    return answer(shown(await in_thread(selectors.file, access, file_id)))


@with_key("GET")
async def content(request: HttpRequest, access: Access, file_id: str) -> HttpResponseBase:
    found = await in_thread(selectors.file, access, file_id)
    try:
        opened = await in_thread(services.open_file, found)
    except FileNotFoundError:
        raise NotFound("The bytes of this file are gone.", param="file_id") from None
    return stored(request, opened, size=found.bytes, name=found.name)


OPERATIONS = (
    Operation(
        "post",
        "/v1/files",
        "Upload a file",
        answer=FileObject,
        form={"file": bytes, "purpose": str, "expires_after[anchor]": str, "expires_after[seconds]": str},
    ),
    Operation(
        "get",
        "/v1/files",
        "List files, a page at a time",
        answer=FileList,
        query={"after": str, "limit": int, "order": str, "purpose": str},
    ),
    Operation("get", "/v1/files/{file_id}", "A file's facts", answer=FileObject),
    Operation("delete", "/v1/files/{file_id}", "Delete a file", answer=FileDeleted),
    Operation("get", "/v1/files/{file_id}/content", "A file's bytes", answer=bytes),
)


def _create(request: HttpRequest, access: Access) -> FileObject:
    upload, fields = form_of(request)
    purpose = fields.get("purpose", "")
    if purpose not in PURPOSES:
        raise RequestError(f"purpose must be one of {', '.join(PURPOSES)}; it is {purpose[:40]!r}.", param="purpose")
    life = _life(fields)
    return shown(
        services.store(
            access=access,
            name=upload.name or "",
            content=upload,
            purpose=purpose,
            expires_at=None if life is None else timezone.now() + life,
        )
    )


def form_of(request: HttpRequest) -> tuple[UploadedFile, Any]:
    """The field `file` of a multipart body, and the other fields. Raises RequestError."""
    if request.content_type != "multipart/form-data":
        raise RequestError("Send the file as multipart/form-data, in the field 'file'.", param="file")
    try:
        upload, fields = request.FILES.get("file"), request.POST
    except (MultiPartParserError, RequestDataTooBig, TooManyFieldsSent, TooManyFilesSent):
        raise RequestError("The body is no form that can be read.", param="file") from None
    if upload is None:
        raise RequestError("There is no file in the field 'file'.", param="file")
    return upload, fields


def _life(fields: Any) -> timedelta | None:
    """OpenAI's clients send expires_after as two fields."""
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise RequestError("expires_after[anchor] must be 'created_at'.", param="expires_after[anchor]")
    if not (seconds and seconds.isascii() and seconds.isdigit() and len(seconds) < 10):
        raise RequestError("expires_after[seconds] must be a whole number.", param="expires_after[seconds]")
    if not LEAST_LIFE_S <= int(seconds) <= LONGEST_LIFE_S:
        raise RequestError(
            f"expires_after[seconds] must be from {LEAST_LIFE_S} to {LONGEST_LIFE_S}.", param="expires_after[seconds]"
        )
    return timedelta(seconds=int(seconds))


def _list(request: HttpRequest, access: Access) -> FileList:
    given = request.GET
    limit, order = given.get("limit", str(LONGEST_PAGE)), given.get("order", "desc")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 8 and 1 <= int(limit) <= LONGEST_PAGE):
        raise RequestError(f"limit must be from 1 to {LONGEST_PAGE}.", param="limit")
    if order not in ("asc", "desc"):
        raise RequestError("order must be asc or desc.", param="order")
    page = selectors.files(
        access,
        after=given.get("after"),
        limit=int(limit),
        newest_first=order == "desc",
        purpose=given.get("purpose"),
    )
    items = [shown(item) for item in page.items]
    return FileList(
        data=items,
        first_id=items[0].id if items else None,
        last_id=items[-1].id if items else None,
        has_more=page.more,
    )
