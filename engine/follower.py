"""The process of a rank other than 0: does its part of what rank 0 computes. Started by engine.rank_links only.

Owns its part of the model and of the KV pool. Knows neither sequences, text nor Redis: rank 0 sends it each step as
flat arrays, and it sends back no more than blocks, where those are asked for. It ends when its socket closes; a fault
of its own it says there, and ends.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import msgspec

from engine.config import EngineConfig, EngineConfigError
from engine.models.errors import ModelError
from engine.models.ranks import Share

if TYPE_CHECKING:
    from engine.tensor_parallel import FollowingRunner

PR_SET_PDEATHSIG = 1


class Setup(msgspec.Struct, frozen=True):
    """What a follower is told first. `device`: torch's name of its own."""

    config: EngineConfig
    size: int
    port: int
    timeout_s: float
    device: str


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; elsewhere than on Linux, do nothing."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def main(argv: list[str]) -> int:
    rank, handle, parent = map(int, argv)
    die_with(parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # rank 0 decides when it is over
    link = Connection(handle)
    try:
        runner = _join(rank, link)
        gc.collect()
        gc.freeze()
        try:
            runner.follow()
        except (EOFError, ConnectionError):  # rank 0 has ended
            runner.close()
    except (EOFError, ConnectionError):
        return 0
    except (EngineConfigError, ModelError) as error:
        return _say(link, "refused", str(error))
    except Exception as error:
        status = _say(link, "fault", " ".join(f"{type(error).__name__}: {error}".split()))
        if status:
            traceback.print_exc()
        return status
    return 0


def _join(rank: int, link: Connection) -> FollowingRunner:
    setup: Setup = link.recv()
    from engine.tensor_parallel import FollowingRunner

    return FollowingRunner.join(Share(rank, setup.size), setup, link)


def _say(link: Connection, kind: str, text: str) -> int:
    try:
        link.send((kind, text))
    except OSError:
        return 0  # what failed was the end of rank 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
