"""What AsyncOctavo gives to read from: streams of answers, subscriptions, conversations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from octavo_client.answer import Answer
from octavo_client.call import Call, Event
from octavo_client.frames import TextDelta
from octavo_client.topics import Change, Subscription

if TYPE_CHECKING:
    from typing_extensions import Self

    from octavo_client.aio import AsyncOctavo


class AsyncStream:
    """An answer under way: `async for event in stream`, or `async for text in stream.texts()`.

    `answer` is what has come of it so far. Leaving it before its end cancels the answer: by `break`, an exception, the
    end of `async with stream`, or because nobody holds it any more.
    """

    def __init__(self, client: AsyncOctavo, call: Call) -> None:
        self._client = client
        self._call = call
        self._news = asyncio.Event()
        call.changed = self._news.set

    @property
    def answer(self) -> Answer:
        return self._call.answer

    @property
    def response_id(self) -> str | None:
        """None until the server has accepted it."""
        return self._call.answer.response_id

    @property
    def position(self) -> int:
        """The last event that `answer` has: what `AsyncOctavo.resume` takes as `after`."""
        return self._call.cursor.last

    @property
    def ended(self) -> bool:
        """The server has said its last word, or the answer has failed. Events may still be unread."""
        return self._call.ended

    def cancel(self) -> None:
        """Stop the answer. The stream goes on to its end, which says `cancelled`."""
        self._client._stop(self._call, abandon=False)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        await self._news_or_end()
        event = self._call.next_event()
        if event is None:
            raise StopAsyncIteration
        return event

    async def some(self) -> list[Event]:
        """All events that have come and were not read, at least one; none after the last."""
        await self._news_or_end()
        events = []
        while (event := self._call.next_event()) is not None:
            events.append(event)
        return events

    async def _news_or_end(self) -> None:
        """Until there is an event to read, or no more to come. Raises what the answer failed with, after its events."""
        call = self._call
        while not call.events:
            if call.ended:
                if call.error is not None:
                    raise call.error
                return
            self._news.clear()
            await self._news.wait()

    async def texts(self, index: int = 0) -> AsyncIterator[str]:
        """The text of one choice, piece by piece."""
        async with self:
            async for event in self:
                if isinstance(event, TextDelta) and event.index == index and event.delta:
                    yield event.delta

    async def whole(self) -> Answer:
        """Wait for the end, and give the answer; a task that is cancelled meanwhile cancels it."""
        self._call.collect = True
        async with self:
            async for _ in self:
                pass
        return self._call.answer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Leave it."""
        if not self._call.ended:
            self._client._stop(self._call, abandon=True)

    def __del__(self) -> None:
        if not self._call.ended:
            self._client._stop_soon(self._call)


class AsyncSubscription:
    """`async for change in octavo.subscribe("conversations")`. The first change is `Subscribed`, and so is one after
    each time that something may have been missed: load then what you show."""

    def __init__(self, client: AsyncOctavo, reader: Subscription) -> None:
        self._client = client
        self._reader = reader
        self._news = asyncio.Event()
        reader.changed = self._news.set

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        while (change := self._reader.next_event()) is None:
            if self._reader.error is not None:
                raise self._reader.error
            if self._reader.ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return change

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Hear of it no more."""
        if not self._reader.ended:
            self._client._leave(self._reader)

    def __del__(self) -> None:
        if not self._reader.ended:
            self._client._leave_soon(self._reader)


class AsyncConversation:
    """One conversation: `id` is None until the first question is accepted; `last` is its newest answer."""

    def __init__(
        self, client: AsyncOctavo, conversation_id: str | None, *, assistant_id: str | None, model: str | None
    ) -> None:
        self._client = client
        self._id = conversation_id
        self._first: dict[str, Any] = {"assistant_id": assistant_id, "model": model}
        self.last: Answer | None = None

    @property
    def id(self) -> str | None:
        return self._id or (self.last.conversation_id if self.last is not None else None)

    def stream(self, text: str, **options: Any) -> AsyncStream:
        """Ask here; takes what `AsyncOctavo.stream` takes."""
        self._id = self.id  # should this one be refused, the conversation is still known
        where = {"conversation_id": self._id} if self._id else self._first
        stream = self._client.stream(text, **{**where, **options})
        self.last = stream.answer
        return stream

    async def complete(self, text: str, **options: Any) -> Answer:
        return await self.stream(text, **options).whole()

    async def ask(self, text: str, **options: Any) -> str:
        return (await self.complete(text, **options)).text
