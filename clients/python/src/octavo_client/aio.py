"""The client for asyncio: `AsyncOctavo`, its streams and conversations. Drives the core with websockets and a timer."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from octavo_client.answer import Answer
from octavo_client.call import Call
from octavo_client.core import Close, Core, Open, Send
from octavo_client.errors import ConnectionFailed, OctavoError
from octavo_client.frames import RateLimit, SessionCreated
from octavo_client.options import SUBPROTOCOL, Input, key_of, request_of, socket_url
from octavo_client.streams import AsyncConversation, AsyncStream, AsyncSubscription
from octavo_client.topics import Subscription

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from octavo_client.options import Params

Ticket = Callable[[], str | Awaitable[str]]

MOST_BYTES = 64 * 1024 * 1024
CLOSE_S = 1.0
# Refusals of a handshake that a server or a proxy may have got over a moment later.
PASSING = frozenset({408, 425, 429, *range(500, 600)})


class AsyncOctavo:
    """A connection to an Octavo server that lasts: it reconnects and resumes by itself.

        async with AsyncOctavo("https://chat.example.org", api_key="octv_…") as octavo:
            print(await octavo.ask("What is the capital of France?"))

    `url` and `api_key` are taken from OCTAVO_URL and OCTAVO_API_KEY where they are not given. `ticket`: in place of a
    key, a function (async or not) that gives a fresh one-time ticket for each connection. `timeout`: seconds that an
    answer may take, None for any. `connect_timeout`: seconds until the first connection must stand, `give_up_after`:
    seconds without a connection after which everything fails. `max_retries`: how often a request is sent again that
    the server refuses for the moment (a full queue, a limit by the minute).

    Use one for all that a program asks; it belongs to the event loop that it first connects on.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        ticket: Ticket | None = None,
        timeout: float | None = 600.0,
        connect_timeout: float = 15.0,
        give_up_after: float = 300.0,
        max_retries: int = 3,
    ) -> None:
        self.url = socket_url(url)
        self._key = None if ticket is not None else key_of(api_key)
        if self._key is None and ticket is None:
            raise ValueError("Give an api_key (or OCTAVO_API_KEY), or a ticket function.")
        self._ticket = ticket
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        self._core = Core(give_up_s=give_up_after, max_retries=max_retries, changed=self._changed)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._outboxes: dict[int, asyncio.Queue[str | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- the connection ---------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def connect(self) -> None:
        """Wait until the connection stands; calls make one by themselves. Raises ConnectionFailed, SessionEnded."""
        self._attach()
        if self._core.state == "ended":
            assert self._core.error is not None
            raise self._core.error.copy()
        self._core.connect(self._now())
        self._pump()
        loop = asyncio.get_running_loop()
        ends = loop.time() + self.connect_timeout
        while self._core.state not in ("open", "ended"):
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.add(waiter)
            try:
                await asyncio.wait_for(waiter, max(0.0, ends - loop.time()))
            except asyncio.TimeoutError:
                message = f"{self.url} could not be reached within {self.connect_timeout:g} s. {self._core.reason}"
                error = ConnectionFailed(message.strip(), code="unreachable", retryable=True)
                self._core.close(error)
                self._pump()
                raise error from None
            finally:
                self._waiters.discard(waiter)
        if self._core.error is not None:
            raise self._core.error.copy()

    async def close(self) -> None:
        """Close the connection. Answers in conversations go on at the server; stateless ones end."""
        self._core.close()
        self._pump()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=2 * CLOSE_S)
        for task in list(self._tasks):
            task.cancel()

    @property
    def state(self) -> str:
        """idle, connecting, open, waiting (to try again), ended."""
        return self._core.state

    @property
    def session(self) -> SessionCreated | None:
        """What the server said about this connection: its limits, when it expires."""
        return self._core.session

    @property
    def rate_limits(self) -> list[RateLimit]:
        """Where this key stood in its limits by the minute when the server last said so."""
        return self._core.rate_limits

    # --- asking -----------------------------------------------------------------------------------------------------

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
    ) -> AsyncStream:
        """Ask, and read the answer as it comes.

        `input`: a text for a conversation (a new one, or `conversation_id`, behind `parent_id`), or a list of
        {role, content}, of which nothing is kept. Without one: `question_id`, to have a question of the conversation
        answered once more, or `continue_id`, to go on with an answer that was cut, stopped or broken off; the rest is a
        message of its own. `parent_id` "root": the question stands beside the conversation's first. `stream_id`:
        answers of one lane come one after the other.
        `idempotency_key`: names this request, so that asking twice answers once; made where it is not given.
        `timeout`: seconds for this answer, the client's where it is None. `extra`: parameters that this version of the
        client does not know.

        The answer is under way at once. Leaving the stream before its end cancels it.
        """
        request = request_of(
            input,
            conversation_id=conversation_id,
            parent_id=parent_id,
            assistant_id=assistant_id,
            model=model,
            stream_id=stream_id,
            idempotency_key=idempotency_key,
            params={**params, **(extra or {})},
        )
        return self._start(Call(request), timeout)

    async def complete(self, input: Input | None = None, **options: Any) -> Answer:
        """Ask, and wait for the whole answer; takes what `stream` takes. Cancelling the task cancels the answer.

        A stateless answer whose connection breaks is asked for anew, as nobody has read any of it yet.
        """
        stream = self.stream(input, **options)
        return await stream.whole()

    async def ask(self, input: Input | None = None, **options: Any) -> str:
        """Ask, and wait for the text of the answer; takes what `stream` takes."""
        return (await self.complete(input, **options)).text

    def resume(self, response_id: str, *, after: int = -1, timeout: float | None = None) -> AsyncStream:
        """Read a response that runs, or has ended, from behind the event `after` on (-1: all of it).

        From another process, or after a restart: `stream.position` is what to keep for it.
        """
        return self._start(Call(None, response_id=response_id, after=after), timeout)

    async def cancel(self, response_id: str) -> Answer:
        """Stop a response by its id; waits for, and gives, how it ended."""
        stream = self.resume(response_id)
        stream.cancel()
        return await stream.whole()

    def subscribe(self, topic: str) -> AsyncSubscription:
        """Changes of a topic as they happen: `conversations` (this key's own), or `usage`."""
        self._attach()
        reader = self._core.subscribe(topic, self._now())
        self._pump()
        return AsyncSubscription(self, reader)

    def conversation(
        self, conversation_id: str | None = None, *, assistant_id: str | None = None, model: str | None = None
    ) -> AsyncConversation:
        """A conversation, a new one without an id: what is asked there knows what was said before."""
        return AsyncConversation(self, conversation_id, assistant_id=assistant_id, model=model)

    # --- driving the core -------------------------------------------------------------------------------------------

    def _attach(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("This client belongs to another event loop; make one for each.")

    def _now(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    def _start(self, call: Call, timeout: float | None) -> AsyncStream:
        self._attach()
        self._core.start(call, self._now(), timeout_s=self.timeout if timeout is None else timeout)
        self._pump()
        return AsyncStream(self, call)

    def _stop(self, call: Call, *, abandon: bool) -> None:
        if self._loop is None or self._loop.is_closed():
            return
        (self._core.abandon if abandon else self._core.cancel)(call, self._now())
        self._pump()

    def _stop_soon(self, call: Call) -> None:
        """From wherever a stream is collected, another thread included."""
        if self._loop is not None and not call.ended:
            with contextlib.suppress(RuntimeError):  # the loop is closed: so are its connections
                self._loop.call_soon_threadsafe(lambda: self._stop(call, abandon=True))

    def _leave(self, reader: Subscription) -> None:
        self._core.topics.remove(reader)
        self._pump()

    def _leave_soon(self, reader: Subscription) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._leave, reader)

    def _changed(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _pump(self) -> None:
        """Do what the core wants done, and wake it when it wants to be woken."""
        for action in self._core.actions():
            if isinstance(action, Open):
                outbox: asyncio.Queue[str | None] = asyncio.Queue()
                self._outboxes[action.connection] = outbox
                task = asyncio.get_running_loop().create_task(self._connection(action.connection, outbox))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif action.connection in self._outboxes:
                self._outboxes[action.connection].put_nowait(action.text if isinstance(action, Send) else None)
                if isinstance(action, Close):
                    del self._outboxes[action.connection]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._core.deadline()
        if deadline is not None and self._loop is not None:
            self._timer = self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._core.tick(self._now())
        self._pump()

    async def _connection(self, number: int, outbox: asyncio.Queue[str | None]) -> None:
        """One connection, from its opening to its end."""
        code, reason, fatal = 1006, "", False
        opening = asyncio.ensure_future(self._open())
        closing: asyncio.Task[str | None] | None = None
        try:
            # Whatever is in the outbox before it is open can only be the wish to close it.
            closing = asyncio.create_task(outbox.get())
            await asyncio.wait({opening, closing}, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                return
            connection = opening.result()
            self._core.opened(number, self._now())
            self._pump()
            code, reason = await self._talk(number, connection, outbox, closing)
        except InvalidStatus as refusal:
            status = refusal.response.status_code
            reason = f"{self.url} answers with status {status}."
            fatal = status not in PASSING and self._core.session is None
        except (OSError, InvalidHandshake, asyncio.TimeoutError) as failure:
            reason = f"{type(failure).__name__}: {failure}"
        except OctavoError as failure:  # of the function that gives tickets
            reason, fatal = failure.message, not failure.retryable
        except asyncio.CancelledError:
            raise
        except Exception as failure:  # of the function that gives tickets, or an address that cannot be meant
            reason = f"{type(failure).__name__}: {failure}"
            fatal = self._core.session is None
        finally:
            for task in (opening, closing):
                if task is not None and not task.done():
                    task.cancel()
            self._outboxes.pop(number, None)
        self._core.lost(number, self._now(), code=code, reason=reason, fatal=fatal)
        self._pump()

    async def _open(self) -> ClientConnection:
        headers, protocols = {}, [Subprotocol(SUBPROTOCOL)]
        if self._ticket is not None:
            # One that is not async may wait for the network, so it runs beside the loop.
            is_async = inspect.iscoroutinefunction(self._ticket)
            given = self._ticket() if is_async else await asyncio.to_thread(self._ticket)
            ticket = await given if inspect.isawaitable(given) else given
            protocols.append(Subprotocol(f"octavo.ticket.{ticket}"))
        else:
            headers["Authorization"] = f"Bearer {self._key}"
        return await connect(
            self.url,
            additional_headers=headers,
            subprotocols=protocols,
            compression=None,  # small frames, and each at once
            open_timeout=self.connect_timeout,
            ping_interval=None,  # the core asks by frames, which prove that the server works and not only its socket
            close_timeout=CLOSE_S,
            max_size=MOST_BYTES,
        )

    async def _talk(
        self,
        number: int,
        connection: ClientConnection,
        outbox: asyncio.Queue[str | None],
        first: asyncio.Task[str | None],
    ) -> tuple[int, str]:
        """Until it closes: how it did."""

        async def send_all() -> None:
            text = await first
            while text is not None:
                await connection.send(text)
                text = await outbox.get()
            await connection.close()

        sending = asyncio.create_task(send_all())
        try:
            async for text in connection:
                self._core.received(number, text, self._now())
                self._pump()
        except ConnectionClosed:
            pass
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionClosed):
                await sending
            await connection.close()
        return connection.close_code or 1006, connection.close_reason or ""
