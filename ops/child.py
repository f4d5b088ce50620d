"""Run a command that ends when its parent ends: `python -m ops.child COMMAND …`.

On Linux the kernel sends SIGTERM to the command when the parent dies, however it dies, so that a killed supervisor
leaves no server behind holding its port. Elsewhere the command simply runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(sig: int = signal.SIGTERM) -> None:
    """Ask the kernel for `sig` when our parent thread ends; a parent that is already gone counts as ending now."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, sig, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), sig)


if __name__ == "__main__":
    die_with_parent()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606
