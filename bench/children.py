"""Child processes of a benchmark, none of which outlives it: not an error, not Ctrl-C, not a kill of the benchmark.

Owns the children it started and all that descends from them. A child has a session of its own, so that Ctrl-C reaches
the benchmark alone, which then ends its children in order. Does not know what they do.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

import psutil

from ops.child import die_with_parent
from ops.run import die_with_make
from ops.setup import ROOT

STOP_S = 60.0  # the product's supervisor gives its programs up to 40


class ChildError(Exception):
    """A child did not start, ended badly or took too long; the message is one line."""


def environment(**settings: str) -> dict[str, str]:
    """Ours without what would point the product at somebody's data, Redis or model, and with `settings`."""
    outside = ("REDIS_URL", "DATABASE_URL", "DJANGO_SETTINGS_MODULE", "PORT")
    own = ("OCTAVO_WORKER_",)  # settings of the engine: these may be what is measured
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in outside and (not name.startswith("OCTAVO_") or name.startswith(own))
    }
    return {**kept, **settings}


def family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The child and all its descendants, as long as it lives."""
    try:
        head = psutil.Process(process.pid)
        return [head, *head.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def stop(process: subprocess.Popen[bytes], timeout_s: float = STOP_S) -> None:
    """Ask the child to end, insist after `timeout_s`, and end whatever it has left behind."""
    members = family(process)
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            members += family(process)
            process.kill()
            process.wait()
    for member in members:
        # is_running compares start times as well: a number that somebody else has by now is left alone.
        with contextlib.suppress(psutil.NoSuchProcess):
            if member.is_running() and member.status() != psutil.STATUS_ZOMBIE:
                member.kill()


@contextlib.contextmanager
def started(
    command: Sequence[str], output: IO[bytes] | None, timeout_s: float = STOP_S, **settings: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command while the body runs; what both streams say goes to `output`, or to ours."""
    try:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(**settings),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    except OSError as error:
        raise ChildError(f"{Path(command[0]).name} cannot be run: {error.strerror}") from None
    try:
        yield process
    finally:
        stop(process, timeout_s)


def last_line(output: Path) -> str:
    lines = output.read_text(errors="replace").strip().splitlines() if output.exists() else []
    return lines[-1] if lines else "it said nothing"


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes], output: Path, timeout_s: float) -> None:
    """Poll until the server is ready; ChildError with its last words when it ends or takes too long."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if process.poll() is not None:
            raise ChildError(f"it ended with status {process.returncode}: {last_line(output)}")
        if time.monotonic() > deadline:
            raise ChildError(f"it was not ready within {timeout_s:.0f} s: {last_line(output)}")
        time.sleep(0.1)


def answers(url: str) -> bool:
    """Whether a GET is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def run_module(module: str, *arguments: str, timeout_s: float) -> None:
    """`python -m module arguments` to its end, its output on ours; ChildError when it fails or takes too long."""
    with started([sys.executable, "-m", module, *arguments], None, 5.0) as process:
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ChildError(f"{module} took longer than {timeout_s:.0f} s") from None
    if status:
        raise ChildError(f"{module} ended with status {status}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@functools.cache
def heed_signals() -> None:
    """An end that the system asks for is an end by Ctrl-C: the bodies above are left in order."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)


def ended(main: Callable[[list[str]], int]) -> NoReturn:
    """Run a benchmark's command as the process that it is, and end with its status; none of its children stays."""
    die_with_make()
    heed_signals()
    try:
        sys.exit(main(sys.argv[1:]))
    except ChildError as error:
        sys.exit(f"It could not be measured: {error}")
    except KeyboardInterrupt:
        print("\nStopped; nothing is left running.", file=sys.stderr)
        sys.exit(130)
