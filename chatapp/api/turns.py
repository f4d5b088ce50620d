"""Who of those that wait for a thread gets the next one: callers in turn, however much each of them asks for.

The threads that make an event loop's synchronous calls are few and first come, first served: behind somebody's three
hundred requests everybody else would wait for all of them. Here each caller (a tenant; before it is known, whoever's
key or session it is) has a line of its own, and a thread that is free goes to the next line: round robin, by calls.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from weakref import WeakKeyDictionary

from chatapp import scope

# As many as concurrent.futures gives a loop that nobody has given threads of its own.
THREADS = min(32, (os.cpu_count() or 1) + 4)

_credential: ContextVar[Hashable] = ContextVar("credential", default=None)


def asked_by(credential: Hashable) -> None:
    """From here to the end of this task or request, until its tenant is known (chatapp.scope.enter)."""
    _credential.set(credential)


def caller() -> Hashable:
    whose = scope.current()
    return whose.tenant if whose is not None and whose.tenant is not None else _credential.get()


class Turns:
    """Of one event loop, with room for so many calls at once."""

    def __init__(self, room: int = THREADS) -> None:
        self._free = room
        # The next to be served is the first line; one that is served goes behind the others.
        self._lines: dict[Hashable, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, who: Hashable) -> AsyncIterator[None]:
        if self._free:  # so nobody waits
            self._free -= 1
        else:
            mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._lines.setdefault(who, deque()).append(mine)
            try:
                await mine
            except asyncio.CancelledError:
                if not mine.cancelled():  # both came at once: it is the next one's
                    self._give()
                raise
        try:
            yield
        finally:
            self._give()

    def _give(self) -> None:
        while self._lines:
            who = next(iter(self._lines))
            line = self._lines.pop(who)
            while line and line[0].done():  # cancelled
                line.popleft()
            if line:
                line.popleft().set_result(None)
                if line:
                    self._lines[who] = line
                return
        self._free += 1


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def here() -> Turns:
    loop = asyncio.get_running_loop()
    if loop not in _of_loop:
        _of_loop[loop] = Turns()
    return _of_loop[loop]
