"""The client without asyncio: `Octavo`, with the names of AsyncOctavo.

Each has an event loop in a thread of its own, on which the async client does the work; so many threads may use one at
once, and a KeyboardInterrupt, which only ever meets the caller, cancels what that caller waits for and nothing else.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from octavo_client.aio import AsyncOctavo
from octavo_client.answer import Answer
from octavo_client.call import Event
from octavo_client.errors import ClientClosed, OctavoError
from octavo_client.frames import RateLimit, SessionCreated, TextDelta
from octavo_client.options import Input
from octavo_client.streams import AsyncConversation, AsyncStream, AsyncSubscription
from octavo_client.topics import Change

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from octavo_client.options import Params

Result = TypeVar("Result")
# Some systems deliver no Ctrl-C to a thread that waits for a lock without end.
LOOK_S = 0.5
CLOSE_S = 5.0


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="octavo-client", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Its result. Whatever interrupts the wait cancels the work."""
        if self.loop.is_closed() or threading.current_thread() is self.thread:
            work.close()
            raise ClientClosed("This client is closed.", code="closed")
        try:
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:  # it was closed a moment ago
            work.close()
            raise ClientClosed("This client is closed.", code="closed") from None
        try:
            while not concurrent.futures.wait([future], timeout=LOOK_S).done:
                if not self.thread.is_alive():
                    raise ClientClosed("This client is closed.", code="closed")
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClientClosed("This client is closed.", code="closed") from None
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        if not self.loop.is_closed():
            try:
                self.loop.call_soon_threadsafe(self.loop.stop)
            except RuntimeError:  # closed meanwhile
                return
            if threading.current_thread() is not self.thread:
                self.thread.join(CLOSE_S)


class Octavo:
    """A connection to an Octavo server that lasts: it reconnects and resumes by itself. Many threads may share one.

        with Octavo("https://chat.example.org", api_key="octv_…") as octavo:
            print(octavo.ask("What is the capital of France?"))

    The arguments are those of AsyncOctavo; `ticket` must be a plain function.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        ticket: Callable[[], str] | None = None,
        timeout: float | None = 600.0,
        connect_timeout: float = 15.0,
        give_up_after: float = 300.0,
        max_retries: int = 3,
    ) -> None:
        self._client = AsyncOctavo(
            url,
            api_key=api_key,
            ticket=ticket,
            timeout=timeout,
            connect_timeout=connect_timeout,
            give_up_after=give_up_after,
            max_retries=max_retries,
        )
        self._loop = _Loop()
        # Runs when nobody holds the client any more, and at the program's end.
        self._finish = weakref.finalize(self, self._loop.stop)

    def __enter__(self) -> Self:
        try:
            self.connect()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def connect(self) -> None:
        """Wait until the connection stands; calls make one by themselves. Raises ConnectionFailed, SessionEnded."""
        self._loop.run(self._client.connect())

    def close(self) -> None:
        """Close the connection. Answers in conversations go on at the server; stateless ones end."""
        if self._finish.alive:
            try:
                self._loop.run(self._client.close())
            finally:
                self._finish()

    @property
    def url(self) -> str:
        return self._client.url

    @property
    def state(self) -> str:
        """idle, connecting, open, waiting (to try again), ended."""
        return self._client.state

    @property
    def session(self) -> SessionCreated | None:
        """What the server said about this connection: its limits, when it expires."""
        return self._client.session

    @property
    def rate_limits(self) -> list[RateLimit]:
        """Where this key stood in its limits by the minute when the server last said so."""
        return self._client.rate_limits

    def stream(
        self,
        input: Input | None = None,
        *,
        conversation_id: str | None = None,
        parent_id: str | None = None,
        assistant_id: str | None = None,
        model: str | None = None,
        stream_id: str | None = None,
        idempotency_key: str | None = None,
        timeout: float | None = None,
        extra: Mapping[str, Any] | None = None,
        **params: Unpack[Params],
    ) -> Stream:
        """Ask, and read the answer as it comes; see AsyncOctavo.stream."""

        async def start() -> AsyncStream:
            return self._client.stream(
                input,
                conversation_id=conversation_id,
                parent_id=parent_id,
                assistant_id=assistant_id,
                model=model,
                stream_id=stream_id,
                idempotency_key=idempotency_key,
                timeout=timeout,
                extra=extra,
                **params,
            )

        return Stream(self._loop, self._loop.run(start()), self)

    def complete(self, input: Input | None = None, **options: Any) -> Answer:
        """Ask, and wait for the whole answer; takes what `stream` takes. A KeyboardInterrupt cancels the answer."""
        return self._loop.run(self._client.complete(input, **options))

    def ask(self, input: Input | None = None, **options: Any) -> str:
        """Ask, and wait for the text of the answer; takes what `stream` takes."""
        return self.complete(input, **options).text

    def resume(self, response_id: str, *, after: int = -1, timeout: float | None = None) -> Stream:
        """Read a response that runs, or has ended, from behind the event `after` on; see AsyncOctavo.resume."""

        async def start() -> AsyncStream:
            return self._client.resume(response_id, after=after, timeout=timeout)

        return Stream(self._loop, self._loop.run(start()), self)

    def cancel(self, response_id: str) -> Answer:
        """Stop a response by its id; waits for, and gives, how it ended."""
        return self._loop.run(self._client.cancel(response_id))

    def subscribe(self, topic: str) -> Changes:
        """Changes of a topic as they happen; see AsyncOctavo.subscribe."""

        async def start() -> AsyncSubscription:
            return self._client.subscribe(topic)

        return Changes(self._loop, self._loop.run(start()), self)

    def conversation(
        self, conversation_id: str | None = None, *, assistant_id: str | None = None, model: str | None = None
    ) -> Conversation:
        """A conversation, a new one without an id: what is asked there knows what was said before."""
        return Conversation(self, self._client.conversation(conversation_id, assistant_id=assistant_id, model=model))


class Stream:
    """An answer under way: `for event in stream`, or `for text in stream.texts()`.

    `answer` is what has come of it so far. Leaving it before its end cancels the answer: by `break`, an exception, the
    end of `with stream`, or because nobody holds it any more. One thread at a time reads it; any may cancel it.
    """

    def __init__(self, loop: _Loop, stream: AsyncStream, owner: Octavo) -> None:
        self._loop = loop
        self._stream = stream
        self._owner = owner  # a client that nobody holds ends its connection
        self._read: deque[Event] = deque()

    @property
    def answer(self) -> Answer:
        return self._stream.answer

    @property
    def response_id(self) -> str | None:
        """None until the server has accepted it."""
        return self._stream.response_id

    @property
    def position(self) -> int:
        """The last event that `answer` has: what `Octavo.resume` takes as `after`."""
        return self._stream.position

    def cancel(self) -> None:
        """Stop the answer. The stream goes on to its end, which says `cancelled`."""

        async def stop() -> None:
            self._stream.cancel()

        self._loop.run(stop())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        if not self._read:
            self._read.extend(self._loop.run(self._stream.some()))
        if not self._read:
            raise StopIteration
        return self._read.popleft()

    def texts(self, index: int = 0) -> Iterator[str]:
        """The text of one choice, piece by piece."""
        with self:
            for event in self:
                if isinstance(event, TextDelta) and event.index == index and event.delta:
                    yield event.delta

    def whole(self) -> Answer:
        """Wait for the end, and give the answer."""
        return self._loop.run(self._stream.whole())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave it."""
        if not self._stream.ended:
            try:
                self._loop.run(self._stream.aclose())
            except OctavoError:  # the client is closed, and with it all of its streams
                return


class Changes:
    """`for change in octavo.subscribe("conversations")`; see AsyncSubscription."""

    def __init__(self, loop: _Loop, changes: AsyncSubscription, owner: Octavo) -> None:
        self._loop = loop
        self._changes = changes
        self._owner = owner

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change:
        async def next_one() -> Change | None:
            return await anext(self._changes, None)

        change = self._loop.run(next_one())
        if change is None:
            raise StopIteration
        return change

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hear of it no more."""
        try:
            self._loop.run(self._changes.aclose())
        except ClientClosed:  # and with it all of its readers
            return


class Conversation:
    """One conversation: `id` is None until the first question is accepted; `last` is its newest answer."""

    def __init__(self, client: Octavo, conversation: AsyncConversation) -> None:
        self._client = client
        self._conversation = conversation

    @property
    def id(self) -> str | None:
        return self._conversation.id

    @property
    def last(self) -> Answer | None:
        return self._conversation.last

    def stream(self, text: str, **options: Any) -> Stream:
        """Ask here; takes what `Octavo.stream` takes."""

        async def start() -> AsyncStream:
            return self._conversation.stream(text, **options)

        loop = self._client._loop
        return Stream(loop, loop.run(start()), self._client)

    def complete(self, text: str, **options: Any) -> Answer:
        return self.stream(text, **options).whole()

    def ask(self, text: str, **options: Any) -> str:
        return self.complete(text, **options).text
