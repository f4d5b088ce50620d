"""OpenAI's own client against the application in this process: no sockets, a scripted worker, a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import openai
import pytest

from engine import protocol
from engine.protocol import Delta, Finished, Part, Started, Tell, ToolCallPart, Usage
from tests.api.inprocess import Engine, openai_client
from tests.chat.conftest import ScriptedWorker, Team, record, server, strangers, team, worker

__all__ = ["record", "server", "strangers", "team", "worker"]


@pytest.fixture
def client(transactional_db: None, team: Team) -> openai.AsyncOpenAI:
    return openai_client(team.secret)


class Script:
    """Says any events, as the worker; `await`ed from the test's own loop."""

    def __init__(self, worker: ScriptedWorker) -> None:
        self.worker = worker

    async def taken(self) -> protocol.Taken:
        """The next request, once there is one."""
        return await Engine(self.worker).take()

    async def tell(self, taken: protocol.Taken, *parts: Sequence[Part], first: int = 0) -> None:
        """A delta for each of `parts`; before the first one that it has started."""
        events: list[Started | Delta] = [] if first else [Started(seq=0, prompt_tokens=7, cached_tokens=3)]
        events += [Delta(seq=seq, parts=list(part)) for seq, part in enumerate(parts, start=max(1, first))]
        told = [Tell(taken.id, taken.attempt, event, 1.0) for event in events]
        call = protocol.tell(self.worker.name, told)
        replies: Any = await asyncio.to_thread(self.worker.redis.fcall, *call)
        assert all(reply.outcome in ("ok", "cancelled") for reply in protocol.parse_told(replies))

    async def is_cancelled(self, taken: protocol.Taken) -> bool:
        return bool(await asyncio.to_thread(self.worker.redis.hget, protocol.request_key(taken.id), "cancel"))

    async def cancelled(self, taken: protocol.Taken, timeout_s: float = 10.0) -> None:
        """Its worker has been told to stop."""
        for _ in range(int(timeout_s / 0.01)):
            if await self.is_cancelled(taken):
                return
            await asyncio.sleep(0.01)
        raise AssertionError("nobody stopped it")

    async def end(self, taken: protocol.Taken, event: protocol.AnyTerminal) -> None:
        await asyncio.to_thread(self.worker.end, taken, event)

    async def answer(self, *parts: Sequence[Part] | str, finish_reason: str = "stop") -> protocol.Request:
        """All of an answer; returns the request as the worker got it."""
        said = [[Part(text=part, token_ids=[1])] if isinstance(part, str) else part for part in parts]
        taken = await self.taken()
        await self.tell(taken, *said)
        await self.end(taken, finished(len(said), finish_reason))
        return protocol.decode_request(taken.payload)


def finished(deltas: int, finish_reason: str = "stop") -> Finished:
    usage = Usage(prompt_tokens=7, cached_tokens=3, completion_tokens=deltas)
    return Finished(seq=deltas + 1, finish_reason=finish_reason, usage=usage)


def call(number: int, arguments: str, name: str = "") -> list[Part]:
    """A part of a call; its first one has the name."""
    known = f"call_{number}" if name else ""
    return [Part(token_ids=[1], tool_calls=[ToolCallPart(call=number, id=known, name=name, arguments=arguments)])]


@pytest.fixture
def script(worker: ScriptedWorker) -> Script:
    return Script(worker)


@pytest.fixture
def recorded(record: Callable[[], int]) -> Callable[[], Any]:
    """Record what has ended."""

    async def once() -> int:
        return await asyncio.to_thread(record)

    return once
