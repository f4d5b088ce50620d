"""The whole product as `make run` starts it, once for all the tests that need it: real processes, model and Redis."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import redis

from engine import occupancy_wire, protocol
from tests.prepared import put_database

ROOT = Path(__file__).resolve().parent.parent
START_S = 120.0


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for(what: Callable[[], Any], timeout_s: float = 30.0, every_s: float = 0.05) -> Any:
    """Poll until `what()` is true and return it; an AssertionError when it stays false."""
    deadline = time.monotonic() + timeout_s
    while not (found := what()):
        assert time.monotonic() < deadline, f"{getattr(what, '__doc__', None) or what} did not become true"
        time.sleep(every_s)
    return found


class Stack:
    """A running product. `demo` is its demo.json; `redis` a client of its Redis; `root`: whose code, if not this."""

    def __init__(self, data: Path, model: str, root: Path = ROOT, **env: str) -> None:
        self.data = data
        self.model = model
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.ws_url = f"ws://127.0.0.1:{self.port}"
        data.mkdir(parents=True, exist_ok=True)
        if root == ROOT and "DATABASE_URL" not in env:
            put_database(data)
        outside = ("REDIS_URL", "DATABASE_URL", "DJANGO_SETTINGS_MODULE", "OCTAVO_DATA")
        clean = {name: value for name, value in os.environ.items() if name not in outside}
        self._said = (data / "said").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ops.run"],
            cwd=root,
            env={**clean, "PORT": str(self.port), "OCTAVO_DATA": str(data), "OCTAVO_MODEL": model, **env},
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_for(lambda: "Octavo is ready" in self.said() or self.process.poll() is not None, START_S)
            assert self.process.poll() is None, f"the product did not start: {self.said()}"
        except BaseException:
            self.stop()
            raise
        self.demo: dict[str, Any] = json.loads((data / "demo.json").read_text())
        if url := env.get("REDIS_URL"):
            from engine.bus import connect

            self.redis = connect(url)
            return
        sockets = [data / "valkey.sock", *Path("/tmp").glob("octavo-*/valkey.sock")]
        self.redis = redis.Redis(unix_socket_path=str(next(path for path in sockets if path.exists())), protocol=2)

    def said(self) -> str:
        return (self.data / "said").read_text()

    def key(self, tenant: int = 0) -> str:
        return str(self.demo["tenants"][tenant]["api_key"])

    def log(self, program: str) -> str:
        return (self.data / "logs" / f"{program}.log").read_text(errors="replace")

    def workers(self) -> list[protocol.WorkerDetails]:
        now = self.redis.time()
        since = now[0] * 1000 - 3000
        ids: Any = self.redis.zrange(protocol.WORKERS, since, "+inf", byscore=True)
        found = []
        for worker in ids:
            details: Any = self.redis.hget(protocol.worker_key(worker.decode()), "details")
            if details:
                found.append(msgspec.json.decode(details, type=protocol.WorkerDetails))
        return found

    def used_blocks(self) -> int:
        """Blocks that sequences hold, by the newest frame of the live worker."""
        worker = wait_for(self.workers)[0].id
        entries: Any = self.redis.xrevrange(protocol.occupancy_key(worker), count=1)
        if not entries:
            return 0
        return occupancy_wire.decode_head(entries[0][1][b"head"]).figures.used

    def running(self) -> int:
        """Generations that some worker holds."""
        return sum(int(self.redis.scard(key)) for key in self.redis.keys("octavo:held:*"))  # type: ignore[arg-type, union-attr]

    def wait_idle(self) -> None:
        wait_for(lambda: self.running() == 0 and self.used_blocks() == 0, 30)

    def published_tokens(self, tenant: int) -> int:
        """Tokens of a demo tenant's published prompt with the template's opening, by the model's own tokenizer."""
        import sqlite3

        from engine.tokenizer import Tokenizer

        with contextlib.closing(sqlite3.connect(self.data / "db.sqlite3")) as database:
            (text,) = database.execute(
                "SELECT version.text FROM prompts_promptversion version"
                " JOIN prompts_systemprompt prompt ON prompt.published_id = version.id"
                " JOIN tenants_tenant tenant ON tenant.id = prompt.tenant_id WHERE tenant.slug = ?",
                (self.demo["tenants"][tenant]["slug"],),
            ).fetchone()
        return len(Tokenizer.load(self.model).encode(f"<|im_start|>system\n{text}", special=True))

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60)
        if self.process.poll() is None:
            self.process.kill()


def started(folder: Path, model: str, **env: str) -> Iterator[Stack]:
    stack = Stack(folder, model, **env)
    try:
        yield stack
    finally:
        stack.stop()
