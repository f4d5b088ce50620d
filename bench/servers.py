"""The servers that the load client is pointed at: the product as `make run` starts it, and llama-server beside it.

Owns their start, their port and their temporary data folder, and ends them when the body is left. Does not know the
load. `Cpu` tells what the product's programs have cost between two moments.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psutil

from bench.children import answers, family, started, wait_until
from bench.load import Target
from ops.run import run_folder
from ops.setup import CACHE, MODEL_FILE

GGUF = CACHE / "gguf" / Path(MODEL_FILE).name
START_S = 180.0
LOAD_S = 300.0
SLOTS, CONTEXT = 16, 65536  # of llama-server: one slot a conversation, a cache that holds all of them whole


def cores() -> int:
    return len(os.sched_getaffinity(0))


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


# --- the product ------------------------------------------------------------------------------------------------------


def programs(run: Path) -> dict[int, str]:
    """Process ids of what the supervisor runs, with the names that supervisord.conf gives them."""
    from xmlrpc.client import ServerProxy

    from supervisor.xmlrpc import SupervisorTransport

    transport = SupervisorTransport(None, None, f"unix://{run}/supervisor.sock")
    listed = cast(Any, ServerProxy("http://127.0.0.1", transport=transport)).supervisor.getAllProcessInfo()
    return {process["pid"]: process["group"] for process in listed if process["pid"]}


class Cpu:
    """CPU seconds that each of the product's programs, its descendants included, has spent since this was made."""

    def __init__(self, process: subprocess.Popen[bytes], run: Path) -> None:
        self._process = process
        self._run = run
        self._before = self._seconds()

    def _seconds(self) -> dict[tuple[str, int], float]:
        names = programs(self._run)
        seconds: dict[tuple[str, int], float] = {}
        for member in family(self._process):
            with contextlib.suppress(psutil.NoSuchProcess):
                line = [member, *member.parents()]
                name = next((names[process.pid] for process in line if process.pid in names), "supervisor")
                times = member.cpu_times()
                seconds[name, member.pid] = times.user + times.system
        return seconds

    def spent(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for (name, pid), seconds in self._seconds().items():
            total[name] = total.get(name, 0.0) + seconds - self._before.get((name, pid), 0.0)
        return total


def shares(seconds: dict[str, float]) -> dict[str, float]:
    """Each program's part of the whole, the largest first; empty when nothing was spent."""
    whole = sum(seconds.values())
    ordered = sorted(seconds.items(), key=lambda pair: -pair[1])
    return {name: spent / whole for name, spent in ordered} if whole else {}


class Product:
    """A running Octavo with data of its own."""

    def __init__(self, process: subprocess.Popen[bytes], data: Path) -> None:
        demo = json.loads((data / "demo.json").read_text())
        self.process = process
        self.data = data
        self.run = run_folder(data)
        self.target = Target(demo["url"], [tenant["api_key"] for tenant in demo["tenants"]], timeout_s=LOAD_S)

    def cpu(self) -> Cpu:
        return Cpu(self.process, self.run)


@contextlib.contextmanager
def octavo() -> Iterator[Product]:
    """The product in a temporary data folder on a free port; ChildError when it does not get ready."""
    data = Path(tempfile.mkdtemp(prefix="octavo-bench-"))
    said = data / "said"
    try:
        with (
            said.open("wb") as output,
            started([sys.executable, "-m", "ops.run"], output, PORT=str(free_port()), OCTAVO_DATA=str(data)) as process,
        ):
            wait_until(lambda: b"Octavo is ready" in said.read_bytes(), process, said, START_S)
            yield Product(process, data)
    finally:
        shutil.rmtree(data, ignore_errors=True)


# --- llama-server -----------------------------------------------------------------------------------------------------


def find_llama_server() -> str | None:
    """LLAMA_SERVER, or llama-server on PATH."""
    return os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")


@contextlib.contextmanager
def llama_server(program: str, model: Path = GGUF) -> Iterator[Target]:
    """llama-server with the file that the product's model was made of; ChildError when it does not get ready."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [program, "-m", str(model), "-np", str(SLOTS), "-c", str(CONTEXT), "--kv-unified", "-t", str(cores())]
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as folder:
        said = Path(folder) / "said"
        with (
            said.open("wb") as output,
            started([*command, "--host", "127.0.0.1", "--port", str(port)], output, 10.0) as process,
        ):
            wait_until(lambda: answers(f"{url}/health"), process, said, START_S)
            yield Target(url, timeout_s=LOAD_S)
