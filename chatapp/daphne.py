"""daphne as this product runs it: `python -m chatapp.daphne` takes what `python -m daphne` takes, and ends in order.

daphne cancels everything at once when it is told to end. Here TERM and INT begin a drain: health checks say "stopping"
and new sockets get a 503, so that a proxy turns to another process; open sockets are told `session.expiring` and closed
with 1001; requests under way get OCTAVO_WEB_GRACE_S seconds to end; then streams end with a retryable error, and the
process exits with status 0. A thread that waits for a database or a Redis that is silent does not hold it up for longer
than LAST_S beyond that: whatever it does survives a crash, so it survives this.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

import structlog
from autobahn.twisted.websocket import ConnectionDeny
from daphne.cli import CommandLineInterface
from daphne.server import Server
from daphne.ws_protocol import WebSocketProtocol
from twisted.internet import defer, reactor

from chatapp import stopping

log = structlog.get_logger("chatapp.daphne")  # its own name is __main__

LOOK_EVERY_S = 0.05
# For closing handshakes, and for the last bytes of streams that have been ended.
CLOSING_S = 1.0
LAST_S = 2.0
# Connections that have come and wait to be accepted while the loop is busy; the system may allow less (somaxconn).
# Twisted's own 50 are had by one burst, and whoever comes then is cut off by the kernel, without a word.
MOST_COMING = 4096
# What an application writes last is on its way to the kernel with the loop's next turns.
FLUSH_S = 0.05

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class DrainingServer(Server):
    def __init__(self, application: Any, **options: Any) -> None:
        options["endpoints"] = [with_backlog(one) for one in options.get("endpoints") or ()]
        super().__init__(self._or_turned_away, **options)
        self._inner = application

    async def _or_turned_away(self, scope: Scope, receive: Receive, send: Any) -> None:
        if scope["type"] != "websocket" or not stopping.begun.reached:
            await self._inner(scope, receive, send)
            return
        await receive()
        turn_away(send.args[0])

    def run(self) -> None:
        # autobahn would drop the connection of whoever sends too much or what is no websocket, without a word: a client
        # that is not told why (1009, 1002, 1007) connects and sends the same again.
        # It takes what is left out for its own default here, and not for what daphne has said: pages without an origin.
        reactor.callWhenRunning(lambda: self.ws_factory.setProtocolOptions(failByDrop=False, allowNullOrigin=True))
        super().run()

    def kill_all_applications(self) -> Any:
        """The reactor goes on until what this gives has happened."""
        return defer.Deferred.fromFuture(asyncio.ensure_future(self._drained()))

    async def _drained(self) -> None:
        from django.conf import settings

        grace_s = settings.OCTAVO_WEB_GRACE_S
        end_in(grace_s + CLOSING_S + LAST_S)
        log.info("web.stopping", open=self._open())
        stopping.begun.reach()
        await self._until_idle(grace_s)
        left = self._open()
        stopping.over.reach()
        for protocol in list(self.connections):
            if isinstance(protocol, WebSocketProtocol) and protocol.state == protocol.STATE_OPEN:
                protocol.sendCloseFrame(code=stopping.GOING_AWAY)
        await self._until_idle(CLOSING_S)
        cut = await self._cut()
        await asyncio.sleep(FLUSH_S)
        log.info("web.stopped", late=left, cut=cut)

    def _running(self) -> list[asyncio.Future[None]]:
        found = (details.get("application_instance") for details in self.connections.values())
        return [application for application in found if application is not None and not application.done()]

    def _open(self) -> int:
        return len(self._running())

    async def _until_idle(self, most_s: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + most_s
        while self._open() and loop.time() < until:  # noqa: ASYNC110  # daphne's own futures, and sockets beside them
            await asyncio.sleep(LOOK_EVERY_S)

    async def _cut(self) -> int:
        running = self._running()
        for application in running:
            application.cancel()
        if running:
            await asyncio.wait(running, timeout=CLOSING_S)
        return len(running)


def with_backlog(endpoint: str) -> str:
    """A description of where to listen, as Twisted reads it; one that says a number of its own keeps it."""
    if not endpoint.startswith(("tcp:", "unix:", "ssl:")) or ":backlog=" in endpoint:
        return endpoint
    return f"{endpoint}:backlog={MOST_COMING}"


def turn_away(protocol: Any) -> None:
    """Answer a handshake with 503, which is what proxies and clients try elsewhere; daphne knows 403 alone."""
    protocol.handshake_deferred.errback(ConnectionDeny(503, "This server is being stopped"))
    del protocol.handshake_deferred
    protocol.server.protocol_disconnected(protocol)


def end_in(seconds: float) -> None:
    """Python waits at its end for threads that wait for others."""

    def end() -> None:
        log.warning("web.stopped_late", after_s=seconds)
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)

    last = threading.Timer(seconds, end)
    last.daemon = True
    last.start()


class DrainingCommandLine(CommandLineInterface):
    server_class = DrainingServer


def main() -> None:
    assert reactor is not None
    # A person or a program waits for what is asked here, and can ask again; nothing else is in a hurry.
    os.environ.setdefault("OCTAVO_DATABASE_WAIT_S", "5")
    DrainingCommandLine().run(sys.argv[1:])


if __name__ == "__main__":
    main()
