"""The responses of one socket: asked for, stopped, resumed, and followed to their ends.

What a client asks for is worked on in tasks, so that a Stop gets through while answers run. A response is told by one
task at a time, wherever it was asked for; lanes (chatapp.api.lanes) say which may be asked for already. Closing the
desk stops what only its client could receive (stateless calls); answers in conversations go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import redis.exceptions

from chatapp.api import frames, rate_headers
from chatapp.api.answering import Lease, complete, in_thread
from chatapp.api.following import events
from chatapp.api.lanes import Lanes, Place
from chatapp.api.outbox import Outbox
from chatapp.api.responses import Lagging, Narrator
from chatapp.chat import selectors, services
from chatapp.chat.models import Generation
from chatapp.errors import BadInput, NotFound, Refusal
from chatapp.metrics import figures
from chatapp.streaming.workers import queue_position
from chatapp.tenants.access import Access

MOST_RESPONSES = 32
POSITION_EVERY_S = 1.0


class Put(Protocol):
    def __call__(self, frame: frames.ServerFrame, response_id: str | None = None) -> None: ...


class TooManyResponses(Refusal):
    status = 429
    code = "too_many_responses"
    retryable = True


@dataclass
class _Followed:
    """A response that is being told, by which task, and the place in its lane that it holds until its end."""

    task: asyncio.Task[Any] | None
    place: Place


class Desk:
    """`start` runs a task of the socket; `put` queues a frame that is not text of an answer."""

    def __init__(
        self,
        access: Access,
        outbox: Outbox,
        put: Put,
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        *,
        stateless_allowed: bool,
    ) -> None:
        self.access = access
        self.lanes = Lanes()
        self._outbox = outbox
        self._put = put
        self._start = start
        self._stateless_allowed = stateless_allowed
        self._following: dict[str, _Followed] = {}
        self._starting = 0  # responses that have been asked for and are not followed yet
        self._leases: dict[str, Lease] = {}

    @property
    def holds(self) -> bool:
        """Whether there are answers that end when this socket does."""
        return bool(self._leases)

    def close(self) -> None:
        self._following.clear()
        for lease in self._leases.values():
            lease.end(stop=True)

    # --- asking -----------------------------------------------------------------------------------------------------

    def create(self, frame: frames.Create) -> Coroutine[Any, Any, None]:
        """The work that a question makes. Its place in its lane is taken now, in the order in which frames come.

        Raises TooManyWaiting.
        """
        return self._create(frame, self.lanes.enter(frame.stream_id))

    async def _create(self, frame: frames.Create, place: Place) -> None:
        try:
            await place.come()
            with self._room():
                generation, stateless = await self._asked(frame)
                key = place.response_id = str(generation.pk)
                if place.dropped:  # while it was being accepted; from here on a Stop finds it by its id
                    await in_thread(services.cancel, access=self.access, generation_id=key)
                if stateless and key not in self._leases:
                    self._leases[key] = Lease(key)
                narrator = self._narrator(generation, place.stream_id)
                position, parent_id = await in_thread(_place_of, generation)
            # Nothing is waited for from here until it is followed: another task could take it over unseen.
            former = self._take_over(key)
            self._put(
                frames.Queued(
                    response_id=key,
                    position=position,
                    event_id=frame.event_id,
                    stream_id=place.stream_id,
                    conversation_id=narrator.conversation_id,
                    message_id=narrator.message_id,
                    parent_id=parent_id,
                    model=generation.model,
                ),
                key,
            )
            if (rates := rate_headers.frame(generation.standings or ())) is not None:
                self._put(rates)
            if former is not None:
                former.place.leave()  # it is told here from now on, and holds this lane
            await self._follow(narrator, place, position=position)
        finally:
            if not self._holds(place):
                place.leave()

    async def _asked(self, frame: frames.Create) -> tuple[Generation, bool]:
        if frame.question_id is not None or frame.continue_id is not None:
            return await in_thread(_again, self.access, frame), False
        if isinstance(frame.input, list):
            return await self._stateless(frame, frame.input), True
        if frame.draft_id is not None:
            raise BadInput("A draft is tried out with a list of messages, of which nothing is kept.", param="input")
        if frame.tools or frame.tool_choice is not None:
            given = "tools" if frame.tools else "tool_choice"
            raise BadInput("Tools are for stateless calls, whose input is a list of messages.", param=given)
        generation = await in_thread(
            services.ask,
            access=self.access,
            text=frame.input,
            conversation_id=frame.conversation_id,
            parent_id=frame.parent_id,
            assistant_id=frame.assistant_id,
            params=frame.params,
            model=frame.model,
            idempotency_key=frame.idempotency_key,
            file_ids=frame.file_ids,
        )
        return generation, False

    async def _stateless(self, frame: frames.Create, messages: list[frames.InputMessage]) -> Generation:
        if not self._stateless_allowed and frame.draft_id is None:
            raise BadInput("input must be a text here.", param="input")
        if frame.conversation_id is not None or frame.parent_id is not None:
            raise BadInput("A list of messages stands alone; send a text to a conversation.", param="conversation_id")
        if frame.file_ids:
            raise BadInput("Files are attached to the messages of a conversation.", param="file_ids")
        tools = {
            "tools": frame.tools,
            "tool_choice": frame.tool_choice,
            "parallel_tool_calls": frame.parallel_tool_calls,
        }
        return await complete(
            access=self.access,
            messages=[_message(message) for message in messages],
            params=frame.params,
            model=frame.model,
            assistant_id=frame.assistant_id,
            draft_id=frame.draft_id,
            idempotency_key=frame.idempotency_key,
            **{name: value for name, value in tools.items() if value is not None},
        )

    @contextmanager
    def _room(self) -> Iterator[None]:
        """Room among the responses of this socket, until it is followed. Raises TooManyResponses."""
        if len(self._following) + self._starting >= MOST_RESPONSES:
            raise TooManyResponses(
                f"This socket follows {MOST_RESPONSES} responses already; wait for one to end.", retry_after_s=1
            )
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1

    # --- stopping and resuming --------------------------------------------------------------------------------------

    async def cancel(self, frame: frames.Cancel) -> None:
        """The answer is the ending of the response itself, for whoever follows it."""
        if frame.response_id is not None:
            await in_thread(services.cancel, access=self.access, generation_id=frame.response_id)
            return
        assert frame.stream_id is not None
        places = self.lanes.of(frame.stream_id)
        if not places:
            raise NotFound("Nothing runs or waits in this lane.", param="stream_id")
        for place in places:
            place.drop()
        for place in places:
            if place.response_id is not None:
                await in_thread(services.cancel, access=self.access, generation_id=place.response_id)

    async def resume(self, frame: frames.Resume) -> None:
        generation = await in_thread(selectors.generation, self.access, frame.response_id)
        key = str(generation.pk)
        former = self._take_over(key)
        try:
            with self._room():
                pass
            place = former.place if former is not None else self.lanes.enter(frame.stream_id, at_once=True)
        except BaseException:
            if former is not None:
                former.place.leave()
            raise
        place.response_id = key
        narrator = self._narrator(generation, frame.stream_id or place.stream_id, frame.after)
        try:
            await self._follow(narrator, place)
        finally:
            if not self._holds(place):
                place.leave()

    def _take_over(self, key: str) -> _Followed | None:
        """Whoever tells this response here stops: it is told from another place on, and never twice at once."""
        former = self._following.pop(key, None)
        if former is not None and former.task is not None:
            former.task.cancel()
        self._outbox.forget(key)
        return former

    def _holds(self, place: Place) -> bool:
        """The response is being told by another task now, which keeps its place."""
        return any(followed.place is place for followed in self._following.values())

    # --- answers out ------------------------------------------------------------------------------------------------

    def _narrator(self, generation: Generation, stream_id: str | None, after: int = -1) -> Narrator:
        seen = max(after, 0)
        return Narrator(
            self._outbox,
            str(generation.pk),
            told=seen,
            seen=seen,
            after=after,
            stream_id=stream_id,
            conversation_id=str(generation.conversation_id) if generation.conversation_id else None,
            message_id=str(generation.message_id) if generation.message_id else None,
        )

    async def _follow(self, narrator: Narrator, place: Place, *, position: int = 0) -> None:
        key = narrator.response_id
        self._following[key] = mine = _Followed(asyncio.current_task(), place)
        waiting = self._start(self._positions(narrator, position)) if position > 1 else None
        try:
            while self._following.get(key) is mine:
                try:
                    await self._tell(narrator, waiting, mine)
                    return
                except Lagging:
                    # The log keeps what follows; nothing is followed meanwhile, and nothing piles up.
                    figures.lagged.inc()
                    self._put(narrator.lagged(), key)
                    await self._outbox.room()
        finally:
            if waiting is not None:
                waiting.cancel()
            if self._following.get(key) is mine:
                del self._following[key]

    async def _tell(self, narrator: Narrator, waiting: asyncio.Task[None] | None, mine: _Followed) -> None:
        async with aclosing(events(self.access, narrator.response_id, narrator.after)) as told:
            async for event in told:
                if self._following.get(narrator.response_id) is not mine:
                    return  # taken over; redis-py may have lost the cancellation (chatapp.api.calls.cancelled)
                if waiting is not None:
                    waiting.cancel()
                if narrator.tell(event):
                    lease = self._leases.pop(narrator.response_id, None)
                    if lease is not None:
                        lease.end(stop=False)
                    return

    async def _positions(self, narrator: Narrator, position: int) -> None:
        """Tell how the queue moves, until the answer starts."""
        key = narrator.response_id
        while position:
            await asyncio.sleep(POSITION_EVERY_S)
            with suppress(redis.exceptions.RedisError):  # the next one may get through
                now = await asyncio.to_thread(queue_position, key)
                if now and now != position:
                    self._put(frames.Queued(response_id=key, position=now, stream_id=narrator.stream_id), key)
                position = now


def _again(access: Access, frame: frames.Create) -> Generation:
    """An answer that brings no new question: another one, or the rest of one."""
    kind = "question_id" if frame.question_id is not None else "continue_id"
    others = ("input", "parent_id", "assistant_id", "draft_id", "tools", "tool_choice", "file_ids")
    if frame.question_id is not None and frame.continue_id is not None:
        raise BadInput("Send question_id to answer again or continue_id to go on, not both.", param="continue_id")
    for name in others:
        if getattr(frame, name):
            raise BadInput(f"{kind} brings no {name} with it; leave it out.", param=name)
    if frame.conversation_id is None:
        raise BadInput(f"{kind} needs the conversation_id that it belongs to.", param="conversation_id")
    given: dict[str, Any] = {
        "conversation_id": frame.conversation_id,
        kind: frame.question_id or frame.continue_id,
        "params": frame.params,
        "model": frame.model,
        "idempotency_key": frame.idempotency_key,
    }
    service = services.answer_again if frame.question_id is not None else services.go_on
    return service(access=access, **given)


def _message(given: frames.InputMessage) -> dict[str, Any]:
    """As the services take it."""
    message: dict[str, Any] = {"role": given.role, "content": given.text if given.content is not None else None}
    if given.tool_calls is not None:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": call.type,
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in given.tool_calls
        ]
    if given.tool_call_id is not None:
        message["tool_call_id"] = given.tool_call_id
    return message


def _place_of(generation: Generation) -> tuple[int, str | None]:
    """Its position in the queue, and the question that the answer belongs to."""
    position = queue_position(str(generation.pk)) if generation.unfinished else 0
    message = generation.message if generation.message_id else None
    return position, str(message.parent_id) if message is not None and message.parent_id else None
