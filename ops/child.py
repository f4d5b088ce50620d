"""Run a command that ends when its parent ends: `python -m ops.child COMMAND …`.

It may have as many files open as this machine lets its user have: each socket is one, and the usual 1,024 are few.

On Linux the kernel sends SIGTERM to the command when the parent dies, however it dies, so that a killed supervisor
leaves no server behind holding its port. Elsewhere the command simply runs.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
MOST_FILES = 65_536


def die_with_parent(sig: int = signal.SIGTERM) -> None:
    """Ask the kernel for `sig` when our parent thread ends; a parent that is already gone counts as ending now."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, sig, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), sig)


def raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    raise_file_limit()
    die_with_parent()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606
