"""The supervisor of `make run`: started, asked, waited for and ended."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import xmlrpc.client
from pathlib import Path
from typing import Any

from ops.child import die_with_parent
from ops.setup import ROOT

# The supervisor ends its programs one after the other, each within its stopwaitsecs.
STOP_S = 70.0
# Programs of supervisord.conf that need the database.
SITE = ("web", "recorder", "celery", "beat")


class StartError(Exception):
    """Octavo cannot start; the message is the one line that the user needs."""


def start_supervisor(env: dict[str, str], conf: Path) -> subprocess.Popen[bytes]:
    # Its own session: Ctrl-C reaches this process only, which then stops the supervisor in order.
    return subprocess.Popen(
        [sys.executable, "-m", "supervisor.supervisord", "-c", str(conf)],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def wait_for_the_one_before(run: Path) -> None:
    """Of a `make run` that was killed the supervisor ends its programs in order, with their ports in use."""
    deadline, said = time.monotonic() + STOP_S, False
    while answers(run / "supervisor.sock"):
        if time.monotonic() > deadline:
            raise StartError(f"The Octavo before does not end: something answers at {run / 'supervisor.sock'}.")
        if not said:
            print("  The Octavo before is still ending; waiting for it", flush=True)
        said = True
        time.sleep(0.2)


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def check_supervisor(supervisor: subprocess.Popen[bytes], data: Path) -> None:
    if supervisor.poll() is not None:
        raise StartError(ended(data))


def ended(data: Path) -> str:
    return f"The supervisor ended: {last_line(data / 'logs' / 'supervisord.log')}"


def start_site(run: Path) -> None:
    """Start the programs that need the database, which is prepared while the engines load their models."""
    rpc = supervised(run)
    for process in rpc.getAllProcessInfo():
        if process["statename"] == "STOPPED" and process["name"].partition("-")[0] in SITE:
            rpc.startProcess(f"{process['group']}:{process['name']}", False)


def supervised(run: Path) -> Any:
    """The supervisor whose socket is in this run folder, to be called; an OSError where it does not answer."""
    from supervisor.xmlrpc import SupervisorTransport

    transport = SupervisorTransport(None, None, f"unix://{run}/supervisor.sock")
    return xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport).supervisor


def last_line(log: Path) -> str:
    """In a person's words: of a structured line what happened, and why."""
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    if not lines:
        return "its log is empty"
    try:
        said = json.loads(lines[-1])
    except ValueError:
        return lines[-1]
    if not isinstance(said, dict):
        return lines[-1]
    why = str(said.get("exception") or said.get("error") or said.get("reason") or said.get("cause") or "").strip()
    return ": ".join(part for part in (str(said.get("event", "")), why.splitlines()[-1] if why else "") if part)


def failed_program(run: Path, data: Path) -> str | None:
    """The first program that keeps ending right after its start, with the last line of its log."""
    with contextlib.suppress(OSError, xmlrpc.client.Error):
        for process in supervised(run).getAllProcessInfo():
            if process["statename"] in ("BACKOFF", "FATAL"):
                name = process["name"]
                return f"{name}: {last_line(data / 'logs' / f'{name}.log')}"
    return None


def stop(supervisor: subprocess.Popen[bytes]) -> None:
    """End the supervisor and with it every program; insist when it does not listen."""
    if supervisor.poll() is None:
        supervisor.terminate()
        try:
            supervisor.wait(STOP_S)
        except subprocess.TimeoutExpired:
            supervisor.kill()  # its programs end with it: ops.child
            supervisor.wait()
