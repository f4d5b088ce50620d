"""Ends sockets whose right to be open has ended: a revoked key, a membership that is gone, a logged-out session.

One task a process asks the database about all of its sockets at once, twice a second, so the cost does not grow with
traffic. Knows no frames: a socket registers what to call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import structlog
from channels.db import database_sync_to_async
from django.contrib.sessions.models import Session
from django.utils import timezone

from chatapp.tenants.access import Access, revoked

log = structlog.get_logger(__name__)

# Twice, so that what has ended is noticed within a second.
EVERY_S = 0.5


@dataclass(eq=False)
class Watch:
    """One open socket. `session_key` is None for sockets that a key opened."""

    access: Access
    session_key: str | None
    end: Callable[[], None]


def _ended(watches: list[Watch]) -> list[Watch]:
    gone = revoked({watch.access for watch in watches})
    keys = {watch.session_key for watch in watches if watch.session_key is not None}
    live = set(
        Session.objects.filter(session_key__in=keys, expire_date__gt=timezone.now()).values_list(
            "session_key", flat=True
        )
    )
    return [
        watch
        for watch in watches
        if watch.access in gone or (watch.session_key is not None and watch.session_key not in live)
    ]


class Guard:
    """Use `guard()`: one for each event loop."""

    def __init__(self) -> None:
        self._watches: set[Watch] = set()
        self._task: asyncio.Task[None] | None = None

    def add(self, watch: Watch) -> None:
        self._watches.add(watch)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def remove(self, watch: Watch) -> None:
        self._watches.discard(watch)

    async def _run(self) -> None:
        while self._watches:
            await asyncio.sleep(EVERY_S)
            watches = list(self._watches)
            try:
                ended = await database_sync_to_async(_ended, thread_sensitive=False)(watches)
            except Exception as error:
                # Without a database nothing can be revoked either; the next round asks again.
                log.warning("guard.waiting", error=type(error).__name__)
                continue
            for watch in ended:
                self.remove(watch)
                watch.end()


_guards: WeakKeyDictionary[asyncio.AbstractEventLoop, Guard] = WeakKeyDictionary()


def guard() -> Guard:
    return _guards.setdefault(asyncio.get_running_loop(), Guard())
