"""`make run` as its user sees it: it gets ready, survives its parts, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from websockets.sync.client import connect

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for(what: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)


class Octavo:
    def __init__(self, data: Path) -> None:
        self.data = data
        self.port = free_port()
        self.start()

    def start(self) -> None:
        env = {k: v for k, v in os.environ.items() if k not in ("REDIS_URL", "DATABASE_URL", "DJANGO_SETTINGS_MODULE")}
        self.output = (self.data.parent / "output").open("w+")
        self.process = subprocess.Popen(
            ["make", "run"],
            cwd=ROOT,
            env={**env, "PORT": str(self.port), "OCTAVO_DATA": str(self.data)},
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        wait_for(lambda: "Octavo is ready" in self.said() or self.process.poll() is not None, 120)
        assert self.process.poll() is None, self.said()
        self.children = psutil.Process(self.process.pid).children(recursive=True)

    def said(self) -> str:
        self.output.seek(0)
        return self.output.read()

    def part(self, words: str) -> psutil.Process | None:
        """The process whose command line has these words, None while there is none."""
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # or a zombie
                line = " ".join(process.cmdline())
                if words in line and "ops.child" not in line:
                    return process
        return None

    def get(self, path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def interrupt(self) -> None:
        """Ctrl-C: the terminal sends SIGINT to the whole foreground group."""
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(60)

    def left(self) -> list[psutil.Process]:
        return [p for p in self.children if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Empty for the first test; the others start on what it leaves, as one does after a crash."""
    return tmp_path_factory.mktemp("run") / "data"


@pytest.fixture
def octavo(data: Path) -> Iterator[Octavo]:
    running = Octavo(data)
    yield running
    if running.process.poll() is None:
        running.interrupt()
    for process in running.left():
        process.kill()


def test_it_gets_ready_writes_the_demo_file_and_ctrl_c_leaves_nothing_running(octavo: Octavo) -> None:
    assert octavo.get("/readyz") == 200
    file = octavo.data / "demo.json"
    assert file.stat().st_mode & 0o777 == 0o600
    demo = json.loads(file.read_text())
    assert demo["url"] == f"http://127.0.0.1:{octavo.port}"
    assert set(demo["operator"]) == {"email", "password"}
    assert len(demo["tenants"]) >= 4
    for tenant in demo["tenants"]:
        assert set(tenant) == {"slug", "name", "api_key", "admin", "member"}
    key = {"Authorization": f"Bearer {demo['tenants'][0]['api_key']}"}
    with connect(f"ws://127.0.0.1:{octavo.port}/ws/v1", additional_headers=key) as asking:
        asking.send(json.dumps({"type": "response.create", "input": "Tell me a long story."}))
        while json.loads(asking.recv(30))["type"] != "response.output_text.delta":
            pass
        # Read all the while: who does not is cut off with what it has not taken.
        with ThreadPoolExecutor(1) as reader:
            reading = reader.submit(lambda: {json.loads(text)["type"] for text in asking})
            octavo.interrupt()
            wait_for(lambda: not octavo.left(), 10)
            assert "session.expiring" in reading.result(10)
        assert asking.close_code == 1001
    assert octavo.get("/healthz") == 0
    octavo.start()
    assert json.loads(file.read_text()) == demo, "a second start finds the data again"


def test_what_dies_is_started_again(octavo: Octavo) -> None:
    parts = ("engine.worker", "daphne", "manage.py recorder", "chatapp.celery worker", "chatapp.celery beat")
    before = {words: octavo.part(words) for words in parts}
    for victim in before.values():
        assert victim is not None
        victim.kill()

    def again(words: str) -> bool:
        now = octavo.part(words)
        return now is not None and now != before[words]

    for words in parts:
        wait_for(lambda words=words: again(words), 60)
    wait_for(lambda: octavo.get("/readyz") == 200, 60)
    octavo.children = psutil.Process(octavo.process.pid).children(recursive=True)
    octavo.interrupt()
    wait_for(lambda: not octavo.left(), 10)


def test_a_killed_make_takes_everything_with_it(octavo: Octavo) -> None:
    octavo.process.kill()
    octavo.process.wait(10)
    wait_for(lambda: not octavo.left(), 60)
    assert octavo.get("/healthz") == 0


def test_a_second_signal_keeps_nothing_from_being_stopped(octavo: Octavo) -> None:
    running = octavo.part("ops.run")
    assert running is not None
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
        running.send_signal(number)
        time.sleep(0.3)
    running.wait(60)
    assert not [process for process in octavo.left() if process.pid != octavo.process.pid and process != running]


def test_a_killed_supervisor_takes_everything_with_it(octavo: Octavo) -> None:
    supervisor = octavo.part("supervisor.supervisord")
    assert supervisor is not None
    supervisor.kill()
    octavo.process.wait(60)
    wait_for(lambda: not octavo.left(), 30)
    assert "The supervisor ended" in octavo.said()
