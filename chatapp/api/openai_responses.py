"""/v1/responses: create, stream, retrieve, resume, cancel, delete, and what went in.

A response that is kept outlives its caller: any process can retrieve it or go on telling it from behind any number,
while it runs and after. One that is not is stopped when its caller goes, as a chat completion is. In a stream headers
go out with the first event, so that what is refused has its own status; after HEADERS_AFTER_S they go out regardless.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from chatapp import scope
from chatapp.api import openai_responses_types as wire
from chatapp.api.answering import in_thread, stop_soon
from chatapp.api.calls import Call
from chatapp.api.following import TextGone
from chatapp.api.http import answer, json_of, with_key
from chatapp.api.openai_calls import HEADERS_AFTER_S, KEEP_ALIVE, KEEP_ALIVE_S, refused
from chatapp.api.operations import Operation
from chatapp.errors import Refusal
from chatapp.lines import one_line
from chatapp.responses import selectors, services, shapes
from chatapp.responses.items import renamed
from chatapp.responses.models import StoredResponse
from chatapp.responses.narrator import Narrator
from chatapp.tenants.access import Access
from engine import protocol

CANCEL_S = 5.0
MOST_NUMBER = 2**31

OPERATIONS = [
    Operation(
        "POST", "/v1/responses", "Create a response", wire.CreateRequest, shapes.Response, shapes.AnyEvent,
    ),
    Operation(
        "GET", "/v1/responses/{response_id}", "Retrieve a response, or go on with its stream", None, shapes.Response,
        shapes.AnyEvent, query={"stream": bool, "starting_after": int, "include": list[str]},
    ),
    Operation("DELETE", "/v1/responses/{response_id}", "Delete a response", None, shapes.ResponseDeleted),
    Operation("POST", "/v1/responses/{response_id}/cancel", "Stop a response in the background", None, shapes.Response),
    Operation(
        "GET", "/v1/responses/{response_id}/input_items", "List what a response was asked with", None, shapes.ItemList,
        query={"limit": int, "order": str, "after": str, "include": list[str]},
    ),
]  # fmt: skip

_starting: set[asyncio.Future[StoredResponse]] = set()


@with_key("POST")
async def responses(request: HttpRequest, access: Access) -> HttpResponseBase:
    asked = wire.parse(json_of(request))
    row = await _created(
        asked.kept, access=access, wanted=asked.wanted(), idempotency_key=request.headers.get("Idempotency-Key")
    )
    request.standings = row.generation.standings  # type: ignore[attr-defined]
    if row.background and not asked.stream:
        return answer(await in_thread(selectors.shown, row))
    call = ResponseCall(access, row, kept=asked.kept)
    return await (call.streamed() if asked.stream else call.whole())


async def _created(kept: bool, **arguments: Any) -> StoredResponse:
    """services.create in a thread. Where nothing is kept, a caller that goes away meanwhile stops it, unseen."""
    starting = asyncio.ensure_future(in_thread(services.create, **arguments))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        _starting.add(starting)
        starting.add_done_callback(_starting.discard if kept else _stop_unseen)
        raise


def _stop_unseen(starting: asyncio.Future[StoredResponse]) -> None:
    _starting.discard(starting)
    if not starting.cancelled() and starting.exception() is None:
        stop_soon(str(starting.result().pk))


@with_key("GET", "DELETE")
async def response(request: HttpRequest, access: Access, response_id: str) -> HttpResponseBase:
    if request.method == "DELETE":
        return answer(
            shapes.ResponseDeleted(id=await in_thread(services.delete, access=access, response_id=response_id))
        )
    stream = wire.flag(request.GET.get("stream"), "stream")
    after = _cursor(request)
    wire.includable(_listed(request, "include"))
    row = await in_thread(selectors.response, access, response_id)
    if stream:
        return await ResponseCall(access, row, after=after).streamed(resumed=True)
    return answer(await in_thread(selectors.shown, row))


def _cursor(request: HttpRequest) -> int:
    """The last number that the caller has: `starting_after`, or what a reader of events sends again; -1: none."""
    limits = {"least": 0, "most": MOST_NUMBER, "default": -1}
    if "starting_after" in request.GET:
        return wire.whole_number(request.GET["starting_after"], "starting_after", **limits)
    return wire.whole_number(request.headers.get("Last-Event-ID") or None, "Last-Event-ID", **limits)


def _listed(request: HttpRequest, name: str) -> list[str]:
    return [*request.GET.getlist(name), *request.GET.getlist(f"{name}[]")]


@with_key("POST")
async def cancel(request: HttpRequest, access: Access, response_id: str) -> HttpResponse:
    row = await in_thread(services.cancel, access=access, response_id=response_id)
    if row.generation.unfinished:
        await ResponseCall(access, row).ended_within(CANCEL_S)
        row = await in_thread(selectors.response, access, response_id)
    return answer(await in_thread(selectors.shown, row))


@with_key("GET")
async def input_items(request: HttpRequest, access: Access, response_id: str) -> HttpResponse:
    limit = wire.whole_number(
        request.GET.get("limit"), "limit", least=1, most=selectors.MOST_PAGE, default=selectors.PAGE
    )
    order = request.GET.get("order", "desc")
    if order not in ("asc", "desc"):
        raise wire.RequestError("order is asc or desc.", param="order", code="invalid_type")
    wire.includable(_listed(request, "include"))
    row = await in_thread(selectors.response, access, response_id)
    after = request.GET.get("after") or None
    return answer(selectors.input_page(row, after=after, limit=limit, newest_first=order == "desc"))


class ResponseCall(Call):
    """One response on its way to one caller, who has its events up to the number `after`."""

    def __init__(self, access: Access, row: StoredResponse, *, kept: bool = True, after: int = -1) -> None:
        super().__init__(access, row.generation, stateless=not kept)
        self._row = row
        self._kept = kept
        self._after = after
        self._narrator = Narrator(selectors.base_of(row, store=kept))

    async def whole(self) -> HttpResponse:
        self.hold()
        event: protocol.AnyEvent | None = None
        try:
            with self.watched():
                while not isinstance(event, protocol.Terminal):
                    event = await self.event()
                    assert event is not None, "there is no timeout here"
                    self._narrator.tell_all([event])
        except TextGone:
            for event in await self._told_again():
                self._narrator.tell_all([event])
        finally:
            await self.leave()
        assert isinstance(event, protocol.Terminal)
        if not isinstance(event, protocol.Finished):
            return _refused(event)
        return answer(self._narrator.response)

    async def streamed(self, *, resumed: bool = False) -> HttpResponseBase:
        """`resumed`: that it ended badly is a part of what is told, and not of how the call itself went."""
        self.hold()
        first: protocol.AnyEvent | None = None
        again: list[protocol.AnyEvent] | None = None
        try:
            with self.watched():
                first = await self.event(HEADERS_AFTER_S)
        except TextGone:
            await self.leave()
            again = await self._told_again()
        except BaseException:
            await self.leave()
            raise
        if not resumed and isinstance(first, protocol.Terminal) and not isinstance(first, protocol.Finished):
            await self.leave()
            return _refused(first)
        # The stream has its own: should nobody ever read it, nothing must go on renewing.
        self.release()
        reply = StreamingHttpResponse(self._stream(first, again), content_type="text/event-stream")
        reply["X-Accel-Buffering"] = "no"  # a proxy in front must not collect it
        return reply

    async def ended_within(self, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        try:
            while not self.ended:
                if await self.event(max(0.0, deadline - loop.time())) is None:
                    return False
        except TextGone:  # it has ended, long ago
            return True
        finally:
            await self.leave()
        return True

    async def _told_again(self) -> list[protocol.AnyEvent]:
        """All of it once its log has expired, to a narrator that begins anew. Raises TextGone if nothing is kept."""
        if not self._kept:
            raise TextGone("The text of this response is not kept any more; ask again.", param="response_id")
        self._row = await in_thread(selectors.response, self.access, self._row.public_id)
        self._narrator = Narrator(selectors.base_of(self._row))
        return list(selectors.told_by_row(self._row))

    async def _stream(
        self, first: protocol.AnyEvent | None, again: list[protocol.AnyEvent] | None
    ) -> AsyncIterator[bytes]:
        scope.enter(self.access.tenant)  # the request's own scope ended with its headers
        try:
            if again is not None:
                yield self._said(again)
                return
            self.hold()
            with self.watched():
                async with aclosing(self._chunks(first)) as chunks:
                    async for chunk in chunks:
                        yield chunk
        except Refusal as bad:
            error = shapes.StreamError(
                sequence_number=self._narrator.number, code=bad.code, message=bad.message, param=bad.param
            )
            yield _sse(error)
        finally:
            await self.leave()

    async def _chunks(self, first: protocol.AnyEvent | None) -> AsyncGenerator[bytes]:
        yield self._said([], opening=True) or KEEP_ALIVE
        event = first
        try:
            while True:
                if event is not None and (chunk := self._said([event])):
                    yield chunk
                if isinstance(event, protocol.Terminal):
                    return
                event = await self.event(KEEP_ALIVE_S)
                if event is None:
                    yield KEEP_ALIVE
        except TextGone:
            again = await self._told_again()
        yield self._said(again)

    def _said(self, events: Iterable[protocol.AnyEvent], *, opening: bool = False) -> bytes:
        """What these add to the stream, without what the caller has."""
        told = list(self._narrator.opening()) if opening else self._narrator.tell_all(events)
        fresh = [said for said in told if said.sequence_number > self._after]
        if fresh:
            self._after = fresh[-1].sequence_number
        return b"".join(map(_sse, fresh))


def _refused(event: protocol.Terminal) -> HttpResponse:
    param = renamed(event.param) if event.param else None
    return refused(msgspec.structs.replace(event, param=param))


def _sse(event: shapes.AnyEvent) -> bytes:
    head = f"event: {shapes.kind_of(event)}\nid: {event.sequence_number}\ndata: "
    return head.encode() + one_line(event) + b"\n\n"
