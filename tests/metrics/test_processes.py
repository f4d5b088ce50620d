"""Several processes count into one folder: the web says the sum of all, and forgets how the dead ones were."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from chatapp.metrics import views
from ops import run
from ops.run import counting, environment, made_once
from tests.conftest import ROOT
from tests.metrics.conftest import samples

WRITER = """
import os, socket, sys
if len(sys.argv) > 3:  # as in a container: its own name, and a pid that others have too
    socket.gethostname, os.getpid = (lambda: sys.argv[3]), (lambda: 7)
from chatapp.metrics import figures
figures.this_is(sys.argv[1])
figures.recorded.labels("finished", "m").inc(2)
figures.sockets_open.labels("ui").inc(3)
figures.outbox_lag.set(float(sys.argv[2]))
figures.redis_took(0.002)
figures.task_success.labels("a").set(float(sys.argv[2]))
print("written", flush=True)
sys.stdin.read()
"""


def writer(folder: Path, program: str, number: int, *host: str) -> subprocess.Popen[str]:
    """A process of the product's that counts, and goes on to run."""
    started = subprocess.Popen(
        [sys.executable, "-c", WRITER, program, str(number), *host],
        cwd=ROOT,
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "written\n"
    return started


@pytest.mark.parametrize("hosts", [((), ()), (("a-container",), ("another_container",))], ids=["here", "containers"])
def test_the_web_says_what_all_processes_counted(
    hosts: tuple[tuple[str, ...], ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr(views.StateCollector, "collect", lambda _: iter(()))

    def seen() -> dict[str, float]:
        return samples(generate_latest(views.registry()).decode())

    writers = [writer(tmp_path, "recorder", 1, *hosts[0]), writer(tmp_path, "celery", 5, *hosts[1])]
    try:
        found = seen()
        assert found["octavo_recorded_total{model_name=m,status=finished}"] == 4
        assert found["octavo_websocket_connections{socket=ui}"] == 6
        assert found["octavo_websocket_outbox_lag_seconds"] == 5
        assert found["octavo_redis_round_trip_seconds_count{program=recorder}"] == 1
        assert found["octavo_redis_round_trip_seconds_count{program=celery}"] == 1
        writers[1].kill()
        writers[1].wait()
        found = seen()
        assert found["octavo_recorded_total{model_name=m,status=finished}"] == 4, "counts go on from where they were"
        assert found["octavo_websocket_connections{socket=ui}"] == 3
        assert found["octavo_websocket_outbox_lag_seconds"] == 1
        assert found["octavo_celery_task_last_success_timestamp_seconds{task=a}"] == 5
        writers.append(writer(tmp_path, "celery", 5, *hosts[1]))
        found = seen()
        assert found["octavo_recorded_total{model_name=m,status=finished}"] == 6, (
            "also of one that came again under its name"
        )
        assert found["octavo_websocket_connections{socket=ui}"] == 6
    finally:
        for one in writers:
            one.kill()
            one.communicate()


def test_a_file_that_a_killed_process_left_unfinished_hides_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr(views.StateCollector, "collect", lambda _: iter(()))
    (tmp_path / "counter_1.db").touch()
    (tmp_path / "histogram_1.db").write_bytes(b"\xff" * 64)
    (tmp_path / "gauge_livesum_1.db").write_bytes(b"\x10")
    started = writer(tmp_path, "recorder", 1)
    try:
        assert (
            samples(generate_latest(views.registry()).decode())["octavo_recorded_total{model_name=m,status=finished}"]
            == 2
        )
    finally:
        started.kill()
        started.communicate()


def test_refusals_are_counted_from_zero_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prometheus sees no increase in a series that begins with its first count."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr(views.StateCollector, "collect", lambda _: iter(()))
    started = writer(tmp_path, "web", 1)
    try:
        found = samples(generate_latest(views.registry()).decode())
        for outcome in ("accepted", "full", "overloaded"):
            assert found[f"octavo_submissions_total{{outcome={outcome}}}"] == 0
    finally:
        started.kill()
        started.communicate()


def test_one_that_comes_again_before_anybody_asked_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr(views.StateCollector, "collect", lambda _: iter(()))
    for asked in (False, True):
        one = writer(tmp_path, "recorder", 1, "a-container")
        found = samples(generate_latest(views.registry()).decode()) if asked else {}
        one.kill()
        one.communicate()
    assert found["octavo_recorded_total{model_name=m,status=finished}"] == 4
    assert found["octavo_websocket_connections{socket=ui}"] == 3, "not those of the one before"


@pytest.mark.parametrize("room", ["some", "none", "no memory"])
def test_a_start_begins_with_an_empty_folder_that_is_its_owners_alone(
    room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory where there is room for it, where no full disk kills who counts."""
    data, memory = tmp_path / "data", tmp_path / "memory"
    for folder in (data, memory):
        folder.mkdir()
    monkeypatch.setattr(run, "MEMORY", memory if room != "no memory" else tmp_path / "nowhere")
    if room == "none":
        monkeypatch.setattr(run, "COUNTS_NEED", 1 << 60)
    first = Path(counting({}, data)["PROMETHEUS_MULTIPROC_DIR"])
    assert first.is_relative_to(memory if room == "some" else data)
    (first / "counter_1.db").write_bytes(b"of another time")
    assert counting({"A": "b"}, data) == {"A": "b", "PROMETHEUS_MULTIPROC_DIR": str(first)}
    assert list(first.iterdir()) == []
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert [path for path in memory.iterdir() if path != first] == []
    assert counting({}, tmp_path)["PROMETHEUS_MULTIPROC_DIR"] != str(first), "each data folder has its own"


def test_a_token_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "metrics_token"
    token = made_once(path)
    assert len(token) >= 32
    assert made_once(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert made_once(tmp_path / "another") != token


def test_make_run_has_metrics_ready_and_production_only_with_a_token_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [*os.environ]:
        if name.startswith("OCTAVO_"):
            monkeypatch.delenv(name)
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1/0")

    def env() -> tuple[str | None, str | None]:
        found = environment(tmp_path, tmp_path, "127.0.0.1", 8000, {"m": "/models/m"})
        return found.get("OCTAVO_METRICS_TOKEN"), found.get("OCTAVO_WORKER_METRICS_PORT")

    token, port = env()
    assert (token, port) == ((tmp_path / "metrics_token").read_text(), "0")
    monkeypatch.setenv("OCTAVO_METRICS_TOKEN", "one that was chosen")
    monkeypatch.setenv("OCTAVO_WORKER_METRICS_PORT", "9100")
    assert env() == ("one that was chosen", "9100")
    monkeypatch.delenv("OCTAVO_METRICS_TOKEN")
    monkeypatch.delenv("OCTAVO_WORKER_METRICS_PORT")
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "chatapp.settings.production")
    assert env() == (None, None), "a worker would not start without a token"
    monkeypatch.setenv("OCTAVO_METRICS_TOKEN_FILE", str(tmp_path / "metrics_token"))
    assert env() == (None, "0")


@pytest.mark.parametrize(
    ("token", "starts"), [("0123456789" * 3 + "x", False), ("x" * 64, False), ("0123456789" * 3 + "xy", True)]
)
def test_production_takes_no_token_that_can_be_guessed(tmp_path: Path, token: str, starts: bool) -> None:
    from tests.project.test_settings import run, safe

    (tmp_path / "token").write_text(token)
    env = {**safe(), "OCTAVO_DATA": str(tmp_path), "OCTAVO_METRICS_TOKEN_FILE": str(tmp_path / "token")}
    done = run("from django.conf import settings as s; print(s.OCTAVO_METRICS_TOKEN)", "production", **env)
    assert (done.returncode == 0) is starts, done.stderr
    if starts:
        assert done.stdout.strip() == token
    else:
        assert "OCTAVO_METRICS_TOKEN" in done.stderr
