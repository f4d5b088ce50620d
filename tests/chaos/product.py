"""The whole product with several engines and web processes, behind a proxy, under the supervisor of `make run`.

The programs are those of supervisord.conf, with the same commands; engine and web come several times, each web process
at a port of its own. Signals go to the programs' own processes; the supervisor starts what has died, as it does for
everybody. Embedded Valkey with its append-only file, SQLite.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import redis

from engine import occupancy_wire, protocol
from ops import run as make_run
from ops import supervision
from ops.engines import CONF
from ops.messages import compile_catalogues
from tests.chaos.proxy import Proxy
from tests.prepared import put_database
from tests.stack import START_S, free_port, wait_for

OUTSIDE = ("REDIS_URL", "DATABASE_URL", "DJANGO_SETTINGS_MODULE", "OCTAVO_DATA", "OCTAVO_MODELS", "PORT")
SEVERAL = ("engine", "web")


def _program(text: str, name: str) -> re.Match[str]:
    found = re.search(rf"^\[program:{name}\]\n(?:.+\n)+", text, re.MULTILINE)
    assert found, f"supervisord.conf has a program {name}"
    return found


def several(text: str, ports: list[int], engines: int) -> str:
    """supervisord.conf with so many engines, and a web process at each of the ports."""
    for name, count in (("engine", engines), ("web", len(ports))):
        found = _program(text, name)
        copies = []
        for number in range(count):
            one = found.group().replace(f"[program:{name}]", f"[program:{name}-{number}]")
            one = one.replace(f"/logs/{name}.log", f"/logs/{name}-{number}.log")
            if name == "web":
                one = one.replace("%(ENV_PORT)s", str(ports[number]))
            copies.append(one)
        text = text[: found.start()] + "\n".join(copies) + text[found.end() :]
    return text


class Product:
    """Running. `demo` is its demo.json, `url` the proxy's address, `redis` a client of its Redis."""

    def __init__(self, data: Path, model: str, *, engines: int = 2, webs: int = 2, **env: str) -> None:
        self.data = data
        self.ports = [free_port() for _ in range(webs)]
        self.proxy = Proxy(self.ports)
        self.url = f"http://127.0.0.1:{self.proxy.port}"
        data.mkdir(parents=True, exist_ok=True)
        (data / "logs").mkdir(exist_ok=True)
        put_database(data)
        self._run = make_run.run_folder(data)
        clean = {name: value for name, value in os.environ.items() if name not in OUTSIDE}
        with patch.dict(os.environ, {**clean, "OCTAVO_MODEL": model, **env}, clear=True):
            self._env = make_run.environment(data, self._run, "127.0.0.1", self.proxy.port, {})
        conf = self._run / "supervisord.conf"
        conf.write_text(several(CONF.read_text(), self.ports, engines))
        compile_catalogues()
        self._env = make_run.counting(self._env, data)
        self.supervisor = supervision.start_supervisor(self._env, conf)
        self._rpc = supervision.supervised(self._run)
        self.redis = redis.Redis(unix_socket_path=f"{self._run}/valkey.sock", protocol=2)
        self.proxy.start()
        try:
            make_run.prepare(self._env)
            self.demo: dict[str, Any] = json.loads((data / "demo.json").read_text())
            supervision.start_site(self._run)
            wait_for(lambda: self.is_whole(engines), START_S, 0.25)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Product:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def is_whole(self, engines: int) -> bool:
        """every web process is ready, and every engine lives"""
        with contextlib.suppress(OSError, redis.RedisError):
            return all(self.is_ready(port) for port in self.ports) and len(self.workers()) >= engines
        return False

    def serves(self) -> bool:
        """some web process is ready, which needs a worker, Redis and the database"""
        return any(self.is_ready(port) for port in self.ports)

    @staticmethod
    def is_ready(port: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def programs(self) -> dict[str, dict[str, Any]]:
        """By name: pid, statename and the like."""
        return {one["name"]: one for one in self._rpc.getAllProcessInfo()}

    def pid(self, program: str) -> int | None:
        """None while it is not running."""
        return self.programs()[program]["pid"] or None

    def send(self, program: str, number: signal.Signals) -> bool:
        """False where there is nobody to send it to."""
        pid = self.pid(program)
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def wake_all(self) -> None:
        for program in self.programs():
            self.send(program, signal.SIGCONT)

    def workers(self) -> list[protocol.WorkerDetails]:
        """Those with a heartbeat."""
        seconds, _ = self.redis.time()  # type: ignore[misc]
        ids: Any = self.redis.zrange(protocol.WORKERS, seconds * 1000 - 3000, "+inf", byscore=True)
        details: list[Any] = [self.redis.hget(protocol.worker_key(worker.decode()), "details") for worker in ids]
        return [msgspec.json.decode(one, type=protocol.WorkerDetails) for one in details if one]

    def used_blocks(self) -> dict[str, int]:
        """Blocks that sequences hold, by the newest frame of each live worker."""
        found = {}
        for worker in self.workers():
            entries: Any = self.redis.xrevrange(protocol.occupancy_key(worker.id), count=1)
            if entries:
                found[worker.id] = occupancy_wire.decode_head(entries[0][1][b"head"]).figures.used
        return found

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.data / "db.sqlite3", timeout=20)) as database, database:
            return database.execute(query, values).fetchall()

    def log(self, program: str) -> Iterator[str]:
        """Its lines, those of a rotated file first."""
        for path in (self.data / "logs" / f"{program}.log.1", self.data / "logs" / f"{program}.log"):
            if path.exists():
                yield from path.read_text(errors="replace").splitlines()

    def stop(self) -> None:
        if self.supervisor.poll() is None:
            with contextlib.suppress(OSError):
                self.wake_all()  # a stopped process takes no TERM
        supervision.stop(self.supervisor)
        self.proxy.stop()
        shutil.rmtree(self._env["PROMETHEUS_MULTIPROC_DIR"], ignore_errors=True)
        if self._run != self.data:
            shutil.rmtree(self._run, ignore_errors=True)


def wait_whole(product: Product, engines: int, timeout_s: float = 90.0) -> float:
    """Seconds until all of it served again."""
    began = time.monotonic()
    wait_for(lambda: product.is_whole(engines), timeout_s, 0.25)
    return time.monotonic() - began
