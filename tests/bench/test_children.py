"""Nothing that a benchmark started outlives it, whatever ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench.children import ChildError, answers, environment, family, run_module, started, wait_until
from tests.bench.chat_server import ChatServer
from tests.stack import wait_for

PARENT_AND_CHILD = ["sh", "-c", "sleep 1000 & sleep 1000"]
# A benchmark: it says the numbers of its child's family once there are two, and waits.
BENCHMARK = """
import time
from bench.children import family, heed_signals, started
heed_signals()
with started(["sh", "-c", "sleep 1000; true"], None) as process:
    while len(family(process)) < 2:
        time.sleep(0.01)
    print(*[member.pid for member in family(process)], flush=True)
    time.sleep(1000)
"""


def gone(member: psutil.Process) -> bool:
    return not member.is_running() or member.status() == psutil.STATUS_ZOMBIE


def grown(process: subprocess.Popen[bytes], count: int) -> list[psutil.Process]:
    wait_for(lambda: len(family(process)) == count)
    return family(process)


def test_an_error_ends_the_child_and_what_it_has_started() -> None:
    members: list[psutil.Process] = []

    def fail(process: subprocess.Popen[bytes]) -> None:
        members.extend(grown(process, 3))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), started(PARENT_AND_CHILD, None) as process:
        fail(process)
    wait_for(lambda: all(map(gone, members)), 5)


def test_a_child_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    command = ["sh", "-c", f"trap '' TERM; touch {tmp_path}/deaf; while :; do sleep 0.05; done"]
    with started(command, None, timeout_s=0.2) as process:
        wait_for((tmp_path / "deaf").exists)
    assert process.returncode == -signal.SIGKILL


@pytest.fixture
def benchmark() -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    running = subprocess.Popen(
        [sys.executable, "-c", BENCHMARK],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job has Ctrl-C switched off, and hands that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert running.stdout is not None
    members = [psutil.Process(int(number)) for number in running.stdout.readline().split()]
    yield running, members
    for process in [running, *members]:
        if isinstance(process, subprocess.Popen) or not gone(process):
            process.kill()
    running.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_benchmark_and_its_children(
    benchmark: tuple[subprocess.Popen[str], list[psutil.Process]], number: int
) -> None:
    running, members = benchmark
    assert len(members) == 2
    running.send_signal(number)
    running.wait(10)
    wait_for(lambda: all(map(gone, members)), 5)


def test_a_killed_benchmark_takes_its_child_with_it(
    benchmark: tuple[subprocess.Popen[str], list[psutil.Process]],
) -> None:
    running, (child, _) = benchmark
    running.kill()
    running.wait(10)
    wait_for(lambda: gone(child), 5)


def test_a_server_that_ends_before_it_is_ready_is_named_with_its_last_words(tmp_path: Path) -> None:
    said = tmp_path / "said"
    words = ["sh", "-c", "echo first; echo no room >&2; exit 3"]
    named = pytest.raises(ChildError, match="ended with status 3: no room")
    with said.open("wb") as output, started(words, output) as process, named:
        wait_until(lambda: False, process, said, 10)


def test_a_server_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    said = tmp_path / "said"
    given_up = pytest.raises(ChildError, match="not ready within 0 s: it said nothing")
    with said.open("wb") as output, started(["sleep", "1000"], output) as process, given_up:
        wait_until(lambda: False, process, said, 0.2)
    assert process.poll() is not None


def test_readiness_is_a_200_and_nothing_else() -> None:
    with ChatServer() as server:
        assert answers(f"{server.url}/health")
        assert not answers(f"{server.url}/elsewhere")
    assert not answers(f"{server.url}/health")


def test_a_program_that_is_not_there_is_an_error_of_one_line() -> None:
    named = pytest.raises(ChildError, match="no-such-server cannot be run: No such file")
    with named, started(["/nowhere/no-such-server"], None):
        pytest.fail("it cannot run")


def test_a_module_that_fails_or_takes_too_long_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ChildError, match=r"bench\.nothing ended with status 1"):
        run_module("bench.nothing", timeout_s=30)
    begun = time.monotonic()
    with pytest.raises(ChildError, match=r"http\.server took longer than 0 s"):
        run_module("http.server", "0", timeout_s=0.3)
    assert time.monotonic() - begun < 30
    run_module("this", timeout_s=30)
    assert "Namespaces are one honking great idea" in capfd.readouterr().out


def test_a_child_sees_no_ones_data_or_redis_but_the_engines_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere")
    monkeypatch.setenv("OCTAVO_MODEL", "another")
    monkeypatch.setenv("OCTAVO_WORKER_THREADS", "1")
    seen = environment(OCTAVO_DATA="here")
    assert "REDIS_URL" not in seen
    assert "OCTAVO_MODEL" not in seen
    assert (seen["OCTAVO_WORKER_THREADS"], seen["OCTAVO_DATA"]) == ("1", "here")
    assert "PATH" in seen
