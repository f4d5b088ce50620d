"""Generations on their way to one HTTP caller as one answer of OpenAI's: whole, or streamed as server-sent events.

A caller that goes away stops all of them: at once when the server notices, and by their leases in any case. So does the
end of the key's rights, as on a socket. Headers go out with the first event, so that what is refused has its own
status; after HEADERS_AFTER_S they go out regardless, and later errors come as an event. What the events look like to
the caller, a Teller says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from http import HTTPStatus
from typing import Any, Protocol

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from chatapp import scope
from chatapp.api import openai_types as wire
from chatapp.api.answering import share
from chatapp.api.calls import Call, cancelled
from chatapp.api.http import answer, error_body
from chatapp.api.responses import NEVER_AGAIN, problem
from chatapp.chat.models import Generation
from chatapp.errors import Refusal
from chatapp.lines import one_line
from chatapp.streaming.assembly import Assembly
from chatapp.tenants.access import Access, BadKey
from engine import protocol

HEADERS_AFTER_S = 2.0
KEEP_ALIVE_S = 15.0
FINGERPRINT = "octavo"
SERVICE_TIER = "default"
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

STATUS = {
    protocol.Refused: HTTPStatus.BAD_REQUEST,
    protocol.Cancelled: HTTPStatus.CONFLICT,
    protocol.TimedOut: HTTPStatus.GATEWAY_TIMEOUT,
    protocol.Interrupted: HTTPStatus.SERVICE_UNAVAILABLE,
    protocol.Failed: HTTPStatus.SERVICE_UNAVAILABLE,
}


class Teller(Protocol):
    """The shapes of one address. `at`: which of the generations; `end`: once all of them have finished."""

    def whole(self, found: Sequence[Assembly]) -> Any: ...

    def tell(self, at: int, event: protocol.AnyEvent) -> Iterable[Any]: ...

    def end(self, found: Sequence[protocol.Terminal]) -> Iterable[Any]: ...

    def field(self, at: int, param: str | None) -> str | None:
        """The caller's name for a field that the engine names."""


class Calls:
    """Several generations of one caller, read as they come."""

    def __init__(self, access: Access, generations: Sequence[Generation]) -> None:
        self.access = access
        self.calls = [Call(access, generation) for generation in generations]
        self._waiting: dict[asyncio.Task[protocol.AnyEvent | None], int] = {}
        self._ready: list[tuple[int, protocol.AnyEvent]] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        with ExitStack() as stack:
            for call in self.calls:
                stack.enter_context(call.watched())
            yield

    def hold(self) -> None:
        for call in self.calls:
            call.hold()

    def release(self) -> None:
        for call in self.calls:
            call.release()

    async def next(self, timeout_s: float | None = None) -> tuple[int, protocol.AnyEvent] | None:
        """The next event and whose it is; None when none came in time. Raises BadKey, Refusal."""
        if len(self.calls) == 1:
            event = await self.calls[0].event(timeout_s)
            return None if event is None else (0, event)
        while not self._ready:
            waited_for = self._waiting.values()
            for at, call in enumerate(self.calls):
                if not call.ended and at not in waited_for:
                    self._waiting[asyncio.create_task(call.event())] = at
            assert self._waiting, "all of them have ended"
            done, _ = await asyncio.wait(self._waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return None
            for task in sorted(done, key=self._waiting.__getitem__):
                at = self._waiting.pop(task)
                event = task.result()
                if event is not None:
                    self._ready.append((at, event))
        return self._ready.pop(0)

    async def leave(self) -> None:
        """The caller has everything, or has gone. Safe to repeat."""
        waiting, self._waiting = list(self._waiting), {}
        await asyncio.gather(*(cancelled(task) for task in waiting))
        for call in self.calls:
            await call.leave()


async def answered(
    access: Access, generations: Sequence[Generation], teller: Teller, *, stream: bool
) -> HttpResponseBase:
    await share(generations)
    calls = Calls(access, generations)
    return await (_streamed(calls, teller) if stream else _whole(calls, teller))


async def _whole(calls: Calls, teller: Teller) -> HttpResponse:
    found = [Assembly() for _ in calls.calls]
    calls.hold()
    try:
        with calls.watched():
            while any(one.terminal is None for one in found):
                came = await calls.next()
                assert came is not None, "there is no timeout here"
                at, event = came
                found[at].add(event)
                if _failed(event):
                    return refused(event, teller, at)
            return answer(teller.whole(found))
    finally:
        await calls.leave()


async def _streamed(calls: Calls, teller: Teller) -> HttpResponseBase:
    calls.hold()
    try:
        with calls.watched():
            first = await calls.next(HEADERS_AFTER_S)
        if first is not None and _failed(first[1]):
            await calls.leave()
            return refused(first[1], teller, first[0])
    except BaseException:
        await calls.leave()
        raise
    # The stream has its own: should nobody ever read it, nothing must go on renewing.
    calls.release()
    response = StreamingHttpResponse(_stream(calls, teller, first), content_type="text/event-stream")
    response["X-Accel-Buffering"] = "no"  # a proxy in front must not collect it
    return response


async def _stream(calls: Calls, teller: Teller, first: tuple[int, protocol.AnyEvent] | None) -> AsyncIterator[bytes]:
    scope.enter(calls.access.tenant)  # the request's own scope ended with its headers
    calls.hold()
    try:
        with calls.watched():
            async with aclosing(_events(calls, teller, first)) as events:
                async for event in events:
                    yield event
    except BadKey as bad:
        yield event_of(error_body(bad.status, bad.message, code=bad.code))
    except Refusal as bad:  # its text is not kept any more
        yield event_of(error_body(bad.status, bad.message, code=bad.code, param=bad.param))
    finally:
        await calls.leave()


async def _events(calls: Calls, teller: Teller, came: tuple[int, protocol.AnyEvent] | None) -> AsyncGenerator[bytes]:
    finished: dict[int, protocol.Terminal] = {}
    while True:
        if came is None:
            yield KEEP_ALIVE
        else:
            at, event = came
            if _failed(event):
                yield event_of(problem_body(event, teller, at))
                return
            told = b"".join(event_of(chunk) for chunk in teller.tell(at, event))
            if told:
                yield told
            if isinstance(event, protocol.Terminal):
                finished[at] = event
                if len(finished) == len(calls.calls):
                    last = teller.end([finished[one] for one in sorted(finished)])
                    yield b"".join(event_of(chunk) for chunk in last) + DONE
                    return
        came = await calls.next(KEEP_ALIVE_S)


def event_of(body: Any) -> bytes:
    return b"data: " + one_line(body) + b"\n\n"


def _failed(event: protocol.AnyEvent) -> bool:
    return isinstance(event, protocol.Terminal) and not isinstance(event, protocol.Finished)


def status_of(event: protocol.AnyEvent) -> int:
    return next((status for kind, status in STATUS.items() if isinstance(event, kind)), 500)


def problem_body(event: Any, teller: Teller | None = None, at: int = 0) -> wire.ErrorAnswer:
    """What is said of a generation that ended so, in OpenAI's shape."""
    found = problem(event)
    if found is None:
        return error_body(HTTPStatus.CONFLICT, "This response was cancelled.", code="cancelled")
    param = found.param if teller is None else teller.field(at, found.param)
    return error_body(status_of(event), found.message, code=found.code, param=param)


def refused(event: Any, teller: Teller | None = None, at: int = 0) -> HttpResponse:
    response = answer(problem_body(event, teller, at), status_of(event))
    if event.retryable:
        response["Retry-After"] = "2"
    if event.code in NEVER_AGAIN:
        response["x-should-retry"] = "false"  # OpenAI's clients repeat every 503 otherwise
    if isinstance(event, protocol.Cancelled):
        # OpenAI's clients repeat a 409 by themselves: what somebody has stopped would start again.
        response["x-should-retry"] = "false"
    return response
