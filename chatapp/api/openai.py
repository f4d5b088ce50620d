"""The OpenAI-compatible HTTP API: chat completions, streamed or whole, and the models a key may use.

A caller that goes away stops its answer: at once when the server notices, and by the lease in any case. So does the end
of the key's rights, as on a socket. Headers go out with the first event, so that what is refused has its own status;
after HEADERS_AFTER_S they go out regardless.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import datetime
from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from chatapp import scope
from chatapp.api import openai_types as wire
from chatapp.api.answering import complete, in_thread
from chatapp.api.calls import Call
from chatapp.api.http import answer, body_of, error, error_body, with_key
from chatapp.api.responses import problem
from chatapp.chat.instructions import ASSISTANT_MODEL
from chatapp.chat.models import Generation
from chatapp.prompts.selectors import choosable
from chatapp.streaming import workers
from chatapp.tenants.access import Access, BadKey
from engine import protocol

log = structlog.get_logger(__name__)

HEADERS_AFTER_S = 2.0
KEEP_ALIVE_S = 15.0
FINGERPRINT = "octavo"
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

STATUS = {
    protocol.Refused: HTTPStatus.BAD_REQUEST,
    protocol.Cancelled: HTTPStatus.CONFLICT,
    protocol.TimedOut: HTTPStatus.GATEWAY_TIMEOUT,
    protocol.Interrupted: HTTPStatus.SERVICE_UNAVAILABLE,
    protocol.Failed: HTTPStatus.SERVICE_UNAVAILABLE,
}


@with_key("POST")
async def chat_completions(request: HttpRequest, access: Access) -> HttpResponseBase:
    wanted = wire.parse(body_of(request))
    generation = await complete(
        access=access,
        messages=[{"role": message.role, "content": message.text} for message in wanted.messages],
        params=wanted.params(),
        model=wanted.model,
        cache_salt=wanted.cache_salt,
        idempotency_key=request.headers.get("Idempotency-Key"),
    )
    request.standings = generation.standings  # type: ignore[attr-defined]
    call = ChatCall(access, generation)
    if wanted.stream:
        return await call.streamed(wanted.include_usage)
    return await call.whole()


@with_key("GET")
async def models(request: HttpRequest, access: Access) -> HttpResponse:
    return answer(wire.ModelList(data=await in_thread(_models, access)))


@with_key("GET")
async def model(request: HttpRequest, access: Access, name: str) -> HttpResponse:
    wanted = access.tenant.model if name == "default" else name
    for found in await in_thread(_models, access):
        if found.id == wanted:
            return answer(found)
    return error(404, f"There is no model {name[:100]!r} for your team.", code="model_not_found", param="model")


def _models(access: Access) -> list[wire.Model]:
    """The team's models, its default first, and its assistants as models of their own.

    All of them, alive or not: a list that changes whenever a worker starts anew would have clients forget what they
    use. How long a context may be, a live worker says.
    """
    tenant = access.tenant
    contexts: dict[str, list[int]] = {}
    for worker in workers.live():
        contexts.setdefault(worker.model, []).append(worker.context)

    def shown(name: str, served_by: str, since: datetime) -> wire.Model:
        return wire.Model(
            id=name,
            created=int(since.timestamp()),
            available=served_by in contexts,
            max_model_len=max(contexts[served_by]) if served_by in contexts else msgspec.UNSET,
        )

    names = sorted(tenant.models, key=lambda name: name != tenant.model)
    return [
        *(shown(name, name, tenant.created_at) for name in names),
        *(
            shown(f"{ASSISTANT_MODEL}{assistant.slug}", tenant.model, assistant.created_at)
            for assistant in choosable(tenant)
        ),
    ]


@with_key("GET", "POST", "PUT", "PATCH", "DELETE")
async def unknown(request: HttpRequest, access: Access, rest: str = "") -> HttpResponse:
    return error(404, f"There is nothing at {request.path[:200]}.", code="unknown_url")


class ChatCall(Call):
    """One chat completion on its way to one caller."""

    def __init__(self, access: Access, generation: Generation) -> None:
        super().__init__(access, generation)
        self._about: dict[str, Any] = {
            "id": f"chatcmpl-{generation.pk.hex}",
            "created": int(generation.created_at.timestamp()),
            "model": generation.model,
            "system_fingerprint": FINGERPRINT,
        }

    async def whole(self) -> HttpResponse:
        texts: list[str] = []
        self.hold()
        try:
            with self.watched():
                while True:
                    event = await self.event()
                    assert event is not None, "there is no timeout here"
                    if isinstance(event, protocol.Delta):
                        texts += [part.text for part in event.parts if part.index == 0]
                    elif isinstance(event, protocol.Terminal):
                        return self._completion("".join(texts), event)
        finally:
            await self.leave()

    async def streamed(self, include_usage: bool) -> HttpResponseBase:
        self.hold()
        try:
            with self.watched():
                first = await self.event(HEADERS_AFTER_S)
            if isinstance(first, protocol.Terminal) and not isinstance(first, protocol.Finished):
                await self.leave()
                return _refused(first)
        except BaseException:
            await self.leave()
            raise
        # The stream has its own: should nobody ever read it, nothing must go on renewing.
        self.release()
        response = StreamingHttpResponse(self._stream(first, include_usage), content_type="text/event-stream")
        response["X-Accel-Buffering"] = "no"  # a proxy in front must not collect it
        return response

    async def _stream(self, first: protocol.AnyEvent | None, include_usage: bool) -> AsyncIterator[bytes]:
        scope.enter(self.access.tenant)  # the request's own scope ended with its headers
        self.hold()
        try:
            with self.watched():
                async with aclosing(self._chunks(first, include_usage)) as chunks:
                    async for chunk in chunks:
                        yield chunk
        except BadKey as bad:
            yield _event(error_body(bad.status, bad.message, code=bad.code))
        finally:
            await self.leave()

    async def _chunks(self, first: protocol.AnyEvent | None, include_usage: bool) -> AsyncGenerator[bytes]:
        unset: Any = None if include_usage else msgspec.UNSET
        event = first
        if event is None:
            yield KEEP_ALIVE
        while True:
            if isinstance(event, protocol.Started):
                yield self._chunk(wire.DeltaMessage(role="assistant", content=""), unset)
            elif isinstance(event, protocol.Delta):
                text = "".join(part.text for part in event.parts if part.index == 0)
                if text:
                    yield self._chunk(wire.DeltaMessage(content=text), unset)
            elif isinstance(event, protocol.Finished):
                yield self._chunk(wire.DeltaMessage(), unset, event.finish_reason or "stop")
                if include_usage:
                    yield _event(wire.ChatChunk(**self._about, choices=[], usage=_usage(event)))
                yield DONE
                return
            elif isinstance(event, protocol.Terminal):
                yield _event(_problem_body(event))
                return
            event = await self.event(KEEP_ALIVE_S)
            if event is None:
                yield KEEP_ALIVE

    def _chunk(self, delta: wire.DeltaMessage, usage: Any, finish_reason: str | None = None) -> bytes:
        choice = wire.ChunkChoice(index=0, delta=delta, finish_reason=finish_reason)
        return _event(wire.ChatChunk(**self._about, choices=[choice], usage=usage))

    def _completion(self, text: str, event: protocol.Terminal) -> HttpResponse:
        if not isinstance(event, protocol.Finished):
            return _refused(event)
        choice = wire.Choice(
            index=0, message=wire.AnswerMessage(content=text), finish_reason=event.finish_reason or "stop"
        )
        return answer(wire.ChatCompletion(**self._about, choices=[choice], usage=_usage(event)))


def _event(body: Any) -> bytes:
    return b"data: " + wire.encode(body) + b"\n\n"


def _usage(event: protocol.Terminal) -> wire.ChatUsage:
    usage = event.usage or protocol.Usage()
    return wire.ChatUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=wire.PromptDetails(cached_tokens=usage.cached_tokens),
    )


def _status(event: protocol.Terminal) -> int:
    return next((status for kind, status in STATUS.items() if isinstance(event, kind)), 500)


def _problem_body(event: protocol.Terminal) -> wire.ErrorAnswer:
    found = problem(event)  # type: ignore[arg-type]
    if found is None:
        return error_body(HTTPStatus.CONFLICT, "This response was cancelled.", code="cancelled")
    return error_body(_status(event), found.message, code=found.code, param=found.param)


def _refused(event: protocol.Terminal) -> HttpResponse:
    response = answer(_problem_body(event), _status(event))
    if event.retryable:
        response["Retry-After"] = "2"
    if isinstance(event, protocol.Cancelled):
        # OpenAI's clients repeat a 409 by themselves: what somebody has stopped would start again.
        response["x-should-retry"] = "false"
    return response
