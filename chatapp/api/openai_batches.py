"""/v1/batches: OpenAI's Batch API over chatapp.batches, and how the addresses answer a line of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponse

from chatapp.api import openai_chat_types, openai_completions_types
from chatapp.api import openai_types as wire
from chatapp.api.answering import in_thread
from chatapp.api.http import answer, error_body, json_of, with_key
from chatapp.api.openai_calls import problem_body, status_of
from chatapp.api.openai_chat import ChatTeller
from chatapp.api.openai_completions import CompletionTeller
from chatapp.api.operations import Operation
from chatapp.batches import selectors, services
from chatapp.batches.endpoints import ENDPOINTS
from chatapp.batches.models import WINDOW, Batch
from chatapp.batches.results import file_id
from chatapp.chat import stateless
from chatapp.chat.instructions import ASSISTANT_MODEL
from chatapp.chat.models import Generation
from chatapp.chat.requests import model_of
from chatapp.errors import BadInput, Refusal
from chatapp.files.models import StoredFile
from chatapp.streaming.assembly import Assembly
from chatapp.tenants.access import Access
from engine.protocol import Terminal

LONGEST_PAGE = 100


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None


class BatchError(msgspec.Struct, frozen=True, kw_only=True):
    """`line`: of the input file, counted from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Why the file was refused; of a batch under way: why it does not go on at the moment."""

    object: str = "list"
    data: list[BatchError]


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    total: int
    completed: int
    failed: int


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "batch"
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str = WINDOW
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


MOMENTS = (
    "in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at",
    "cancelled_at",
)  # fmt: skip
DECODER = msgspec.json.Decoder(BatchRequest)

OPERATIONS = (
    Operation("POST", "/v1/batches", "Begin a batch", body=BatchRequest, answer=BatchObject),
    Operation(
        "GET", "/v1/batches", "List batches, a page at a time", answer=BatchList, query={"after": str, "limit": int}
    ),
    Operation("GET", "/v1/batches/{batch_id}", "How a batch stands", answer=BatchObject),
    Operation("POST", "/v1/batches/{batch_id}/cancel", "Cancel a batch and keep what is done", answer=BatchObject),
)


def shown(row: Batch) -> BatchObject:
    total, completed, failed = selectors.counts(row)
    errors = [BatchError(**error) for error in row.errors]
    if row.paused_because:
        errors.append(BatchError(code=row.paused_code, message=row.paused_because))
    moments: dict[str, Any] = {name: _seconds(getattr(row, name)) for name in MOMENTS}
    return BatchObject(
        id=row.public_id,
        endpoint=row.endpoint,
        errors=BatchErrors(data=errors) if errors else None,
        input_file_id=StoredFile(pk=row.input_file).public_id,
        status=row.status,
        output_file_id=file_id(row.output_file),
        error_file_id=file_id(row.error_file),
        created_at=int(row.created_at.timestamp()),
        request_counts=RequestCounts(total=total, completed=completed, failed=failed),
        metadata=row.metadata,
        **moments,
    )


def _seconds(moment: datetime | None) -> int | None:
    return int(moment.timestamp()) if moment is not None else None


@with_key("GET", "POST")
async def batches(request: HttpRequest, access: Access) -> HttpResponse:
    if request.method == "POST":
        wanted = wire.parse(DECODER, json_of(request))
        row = await in_thread(services.create, access=access, **msgspec.structs.asdict(wanted))
        return answer(shown(row))
    return answer(await in_thread(_list, access, request.GET.get("after"), request.GET.get("limit", "20")))


@with_key("GET")
async def batch(request: HttpRequest, access: Access, batch_id: str) -> HttpResponse:
    return answer(shown(await in_thread(selectors.batch, access, batch_id)))


@with_key("POST")
async def cancel(request: HttpRequest, access: Access, batch_id: str) -> HttpResponse:
    return answer(shown(await in_thread(services.cancel, access=access, batch_id=batch_id)))


def _list(access: Access, after: str | None, limit: str) -> BatchList:
    if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and 1 <= int(limit) <= LONGEST_PAGE):
        raise wire.RequestError(f"limit must be from 1 to {LONGEST_PAGE}.", param="limit")
    page = selectors.batches(access, after=after, limit=int(limit))
    items = [shown(row) for row in page.items]
    return BatchList(
        data=items,
        first_id=items[0].id if items else None,
        last_id=items[-1].id if items else None,
        has_more=page.more,
    )


# --- a line of a batch --------------------------------------------------------------------------------------------


def _read(parse: Callable[[bytes], Any], body: bytes) -> Any:
    """As the address reads it; its complaints as refusals."""
    try:
        wanted = parse(body)
    except wire.RequestError as bad:
        raise BadInput(bad.message, code=bad.code, param=bad.param) from None
    if wanted.stream:
        raise BadInput("A request of a batch cannot be streamed; leave stream out.", param="stream")
    return wanted


class _Line:
    def refused(self, refusal: Refusal) -> bytes:
        return wire.encode(error_body(refusal.status, refusal.message, code=refusal.code, param=refusal.param))

    def ended(self, event: Terminal) -> tuple[int, bytes]:
        return status_of(event), wire.encode(problem_body(event))  # type: ignore[arg-type]


class ChatLine(_Line):
    def check(self, access: Access, body: bytes) -> None:
        wanted = _read(openai_chat_types.parse_chat, body)
        if wanted.model is None or not wanted.model.startswith(ASSISTANT_MODEL):
            model_of(access, wanted.model)

    def begin(self, access: Access, body: bytes, **how: Any) -> None:
        wanted = _read(openai_chat_types.parse_chat, body)
        stateless.complete(
            access=access,
            messages=wanted.conversation(),
            params=wanted.params(),
            model=wanted.model,
            cache_salt=wanted.cache_salt,
            leased=False,
            **wanted.tooling(),
            **how,
        )

    def answered(self, body: bytes, generations: Sequence[Generation], found: Sequence[Assembly]) -> bytes:
        return wire.encode(ChatTeller(openai_chat_types.parse_chat(body), generations[0]).whole(found))


class CompletionLine(_Line):
    def check(self, access: Access, body: bytes) -> None:
        wanted = _read(openai_completions_types.parse_completion, body)
        _prompts(wanted)
        model_of(access, wanted.model)

    def begin(self, access: Access, body: bytes, **how: Any) -> None:
        wanted = _read(openai_completions_types.parse_completion, body)
        stateless.complete_all(
            access=access,
            prompts=_prompts(wanted),
            params=wanted.params(),
            model=wanted.model,
            cache_salt=wanted.cache_salt,
            leased=False,
            **how,
        )

    def answered(self, body: bytes, generations: Sequence[Generation], found: Sequence[Assembly]) -> bytes:
        wanted = openai_completions_types.parse_completion(body)
        return wire.encode(CompletionTeller(wanted, wanted.prompts(), generations[0]).whole(found))


def _prompts(wanted: openai_completions_types.CompletionRequest) -> list[Any]:
    try:
        return list(wanted.prompts())
    except wire.RequestError as bad:
        raise BadInput(bad.message, code=bad.code, param=bad.param) from None


def register() -> None:
    """Called once the apps are there."""
    ENDPOINTS["/v1/chat/completions"] = ChatLine()
    ENDPOINTS["/v1/completions"] = CompletionLine()
