"""Rank 0's processes of the other ranks, and what is said between them over a socket pair each.

Owns the processes: they are started here and none is left behind, however this process ends (a follower ends when its
socket closes, and on Linux the kernel kills it with the thread that started it, so that thread must live as long as the
engine). Promises: whoever waits for a follower learns at once that it has ended, and what it said last; nobody waits
longer than TIMEOUT_S for one that hangs, except at the start, where weights are read. Knows no torch.

Sockets and not collectives, as followers wait here for the next step for hours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import weakref
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

TIMEOUT_S = 30
"""How long ranks wait for each other within a step. They do the same work, so only one that hangs takes so long."""
CLOSING_S = 5.0
ROOT = Path(__file__).resolve().parents[1]


class RankError(RuntimeError):
    """A rank is lost, or the ranks are out of step: the engine has to be started anew. One line that says why."""


class RankRefused(RankError):
    """A rank cannot start, for the reason that is the message."""


class Followers:
    """The processes of ranks 1 .. size - 1 (engine.follower)."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lost: str | None = None
        """Why nothing can be computed any more."""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._links: list[Connection] = []
        self._end = weakref.finalize(self, _end, self._processes, self._links)
        for rank in range(1, size):
            ours, theirs = socket.socketpair()
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):  # of a read or write, in the middle of a message
                ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", TIMEOUT_S, 0))
            with theirs:
                self._processes.append(_start(rank, theirs))
            self._links.append(Connection(ours.detach()))

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def tell(self, *message: Any) -> None:
        """Send the same to each. What this and `hear` raise is for `fault`."""
        self.tell_each([message] * len(self._links))

    def tell_each(self, messages: list[Any]) -> None:
        """Send each its own, by rank."""
        if self.lost is not None:
            raise RankError(self.lost)
        for link, message in zip(self._links, messages, strict=True):
            link.send(message)

    def hear(self, *, patient: bool = False) -> list[Any]:
        """The next message of each, by rank. A `patient` one waits for as long as they live."""
        return [self._next(rank, None if patient else TIMEOUT_S) for rank in range(1, self.size)]

    def check(self) -> None:
        """Raise RankError where one has ended while nothing was asked of it: then its link has something to read."""
        if self.lost is not None:
            raise RankError(self.lost)
        for link in wait(self._links, timeout=0):
            self._next(1 + self._links.index(cast(Connection, link)), 0)

    def _next(self, rank: int, timeout_s: float | None) -> Any:
        who, link = f"rank {rank} of {self.size}", self._links[rank - 1]
        try:
            if not link.poll(timeout_s):
                raise RankError(f"{who} said nothing for {timeout_s} s")
            kind, value = link.recv()
        except (EOFError, ConnectionError):
            raise RankError(f"{who} {_end_of(self._processes[rank - 1])}") from None
        if kind == "refused":
            raise RankRefused(value)
        if kind == "fault":
            raise RankError(f"{who} failed: {value}")
        return value

    def fault(self, error: Exception) -> RankError:
        """What to raise for an error in what the ranks did together: they are out of step then, and are ended."""
        if self.lost is None:
            self.lost = self._cause(error)
            self._end()
        return RankError(self.lost)

    def _cause(self, error: Exception) -> str:
        if isinstance(error, RankError):
            return str(error)
        # Where a process dies the sums fail first, and say little; its socket says which it was, and how it ended.
        for link in wait(self._links, timeout=1.0):
            try:
                self._next(1 + self._links.index(cast(Connection, link)), 0)
            except RankError as told:
                return str(told)
        line = " ".join(f"{type(error).__name__}: {error}".split())
        return f"the {self.size} ranks are out of step after {line}"

    def hang_up(self) -> None:
        """They end by themselves then."""
        for link in self._links:
            link.close()

    def close(self) -> None:
        """Returns when they have ended; those that do not are killed."""
        self.lost = self.lost or "the ranks were closed"
        self.hang_up()
        with contextlib.suppress(subprocess.TimeoutExpired):
            for process in self._processes:
                process.wait(CLOSING_S)
        self._end()


def _start(rank: int, link: socket.socket) -> subprocess.Popen[bytes]:
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "engine.follower", str(rank), str(link.fileno()), str(os.getpid())],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[link.fileno()],
        # A signal for the whole group is meant for rank 0, which may let answers finish first.
        start_new_session=True,
    )


def _end(processes: list[subprocess.Popen[bytes]], links: list[Connection]) -> None:
    for link in links:
        link.close()
    for process in processes:
        process.kill()  # it may wait for us in a sum, and has nothing to lose
    for process in processes:
        process.wait()


def _end_of(process: subprocess.Popen[bytes]) -> str:
    try:
        status = process.wait(CLOSING_S)
    except subprocess.TimeoutExpired:
        return "has closed its socket"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"
