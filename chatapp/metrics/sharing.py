"""Who is who among the processes that count into one folder, also where each is in a container of its own.

There all have the same few pids, and none sees another's in /proc. So a process is known by its host and its pid, and
lives as long as it holds a lock on a file of that name, which the kernel releases however it ends.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from prometheus_client import values
from prometheus_client.multiprocess import mark_process_dead

_host = socket.gethostname().replace("_", "-").replace("/", "-")
_held: list[int] = []


def identity() -> str:
    """No underscore in it: the library cuts its files' names there."""
    return f"{_host}-{os.getpid()}"


def _sign(folder: Path, who: str) -> Path:
    return folder / f"{who}.alive"


def begin() -> None:
    """Before the first figure is made. Where no folder is named, each process has its own figures, in memory."""
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if not folder:
        return
    # A container that was started again has its name and its pids again: what it said of itself then is over.
    mark_process_dead(identity(), path=folder)
    handle = os.open(_sign(Path(folder), identity()), os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(handle, fcntl.LOCK_SH)
    _held.append(handle)
    values.ValueClass = values.MultiProcessValue(identity)


def alive(folder: Path, who: str) -> bool:
    try:
        handle = os.open(_sign(folder, who), os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def forget_dead(folder: Path) -> None:
    """Counts of a process that has ended stay; what it said of how things are with it does not."""
    for who in {file.stem.rpartition("_")[2] for file in folder.glob("gauge_live*_*.db")}:
        if not alive(folder, who):
            mark_process_dead(who, path=str(folder))
