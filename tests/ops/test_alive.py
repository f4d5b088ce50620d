"""Health checks of containers, against a real server: who does its work, who has stopped, and who never came."""

from __future__ import annotations

import http.server
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from chatapp import ticks
from engine import protocol
from ops import alive
from tests.conftest import ROOT


@pytest.fixture
def client(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    url = f"{redis_url}?db=9"
    monkeypatch.setenv("REDIS_URL", url)
    monkeypatch.delenv("REDIS_URL_FILE", raising=False)
    with redis.Redis.from_url(url, protocol=2) as found:
        found.flushdb()
        yield found
        found.flushdb()


def why(role: str) -> str:
    """Why it is not alive; empty where it is."""
    try:
        alive.check(role)
    except alive.Dead as reason:
        return str(reason)
    return ""


def ms(client: redis.Redis, ago_s: float) -> int:
    now: Any = client.time()
    return int(now[0] * 1000 - ago_s * 1000)


@pytest.mark.parametrize(
    ("host", "healthy", "ago_s", "expected"),
    [
        (socket.gethostname(), True, 0, ""),
        (socket.gethostname(), True, 60, "none has said anything"),
        (socket.gethostname(), False, 0, "w-1 is not well"),
        ("another", True, 0, "no worker of"),
    ],
)
def test_an_engine_lives_by_the_heartbeat_of_a_worker_of_its_host(
    client: redis.Redis, host: str, healthy: bool, ago_s: float, expected: str
) -> None:
    details = protocol.WorkerDetails(
        id="w-1", model="m", context=1, block_size=1, num_blocks=1, pid=1, host=host, healthy=healthy
    )
    client.zadd(protocol.WORKERS, {"w-1": ms(client, ago_s)})
    client.hset(protocol.worker_key("w-1"), "details", msgspec.json.encode(details))
    assert expected in why("engine")
    assert bool(why("engine")) is bool(expected)


def test_a_recorder_lives_as_long_as_it_asks(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why("recorder"), "no group yet"
    client.xgroup_create(protocol.FINISHED, protocol.RECORDER_GROUP, "0", mkstream=True)
    assert "no recorder of" in why("recorder")
    for name, known in (("another-1", False), (f"{socket.gethostname()}-7", True)):
        client.xreadgroup(protocol.RECORDER_GROUP, name, {protocol.FINISHED: ">"}, count=1)
        assert (why("recorder") == "") is known, name
    monkeypatch.setattr(alive, "RECORDER_S", -1.0)
    assert "no recorder of" in why("recorder")


@pytest.mark.parametrize(("role", "key"), [("celery", ticks.WORKER), ("beat", ticks.BEAT)])
def test_celery_and_beat_live_by_their_ticks(client: redis.Redis, role: str, key: str) -> None:
    assert why(role).endswith("never")
    client.xadd(key, {"at": 1}, id=f"{ms(client, 1000)}-0")
    assert re.search(r"1\d\d\d s ago", why(role))
    client.xadd(key, {"at": 1})
    assert why(role) == ""


def test_without_redis_the_reason_is_said_without_the_address(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("redis://:a-password@127.0.0.1:1/0")
    env = {**os.environ, "REDIS_URL_FILE": str(tmp_path / "url")}
    line = [sys.executable, "-m", "ops.alive", "beat"]
    done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "Redis: ConnectionError\n")


def test_a_web_process_is_asked_under_the_name_that_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    class Site(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/healthz" and self.headers["Host"] == "chat.example.org"
            self.send_response(200 if found else 400)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PORT", str(server.server_port))
        monkeypatch.setenv("OCTAVO_HOSTS", "chat.example.org,other.example.org")
        assert why("web") == ""
        monkeypatch.setenv("OCTAVO_HOSTS", "other.example.org")
        assert "Bad Request" in why("web")
        server.shutdown()
    assert "refused" in why("web")


def test_a_check_loads_neither_django_nor_torch() -> None:
    code = "import sys, ops.alive; print(sorted({'django', 'torch', 'numpy', 'celery'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_ticks_have_the_same_names_on_both_sides() -> None:
    assert (alive.BEAT, alive.CELERY) == (ticks.BEAT, ticks.WORKER)
