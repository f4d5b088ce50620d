"""Whether this process has been told to end, and who wants to hear of it.

It ends in two stages (chatapp.daphne): with `begun` nothing long may start any more and sockets are asked to leave,
with `over` the time that whatever still runs was given has passed. Both happen once, on the event loop; what is called
must not wait, and a call may be taken back until then. A process that is not told ends as it always did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from chatapp.errors import Refusal

GOING_AWAY = 1001


class Stage:
    def __init__(self) -> None:
        self.reached = False
        self._wanted: set[Callable[[], object]] = set()

    def call(self, wanted: Callable[[], object]) -> Callable[[], None]:
        """Call it then, or now where it is so already. Gives what takes it back, which is safe to repeat."""
        if self.reached:
            wanted()
        else:
            self._wanted.add(wanted)
        return lambda: self._wanted.discard(wanted)

    def reach(self) -> None:
        """Safe to repeat."""
        self.reached = True
        wanted, self._wanted = self._wanted, set()
        for call in wanted:
            call()


class Stopping(Refusal):
    status = 503
    code = "server_stopping"
    retryable = True

    def __init__(self) -> None:
        super().__init__("This server is being stopped. Ask again: another takes over.", retry_after_s=1)


begun = Stage()
over = Stage()


def leave_at_once(close: Callable[[int], Awaitable[None]]) -> Callable[[], None]:
    """Close a socket that loses nothing by being opened anew as soon as the process begins to end; takes back as
    `Stage.call` does."""
    closing: list[asyncio.Future[None]] = []  # held on to, or it may be collected before it has run
    return begun.call(lambda: closing.append(asyncio.ensure_future(close(GOING_AWAY))))
