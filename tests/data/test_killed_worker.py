"""A real Celery worker, killed in the middle of an export with SIGKILL; another one makes it whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from django.db import connection
from django.utils import timezone

from chatapp.chat.models import Message
from chatapp.data import exports
from chatapp.data.exports import request_export
from chatapp.data.models import Export, JobState
from chatapp.settings import redis_urls
from tests.chat.conftest import Team
from tests.conftest import ROOT
from tests.data.conftest import a_chat
from tests.stack import wait_for

pytestmark = pytest.mark.long
MESSAGES = 60_000


def database_url() -> str:
    """The database of the tests, for another process."""
    name = str(connection.settings_dict["NAME"])
    if connection.vendor == "sqlite":
        return f"sqlite:///{name}"
    return re.sub(r"/[^/?]*(\?.*)?$", rf"/{name}\1", os.environ["DATABASE_URL"])


@pytest.fixture
def start(redis_url: str, data_folder: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def begin() -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "chatapp.celery",
            "worker",
            "--pool",
            "threads",
            "--concurrency",
            "4",
        ]
        started.append(
            subprocess.Popen(
                [*command, "--loglevel", "WARNING", "--without-gossip", "--without-mingle"],
                cwd=ROOT,
                env={
                    **os.environ,
                    "DJANGO_SETTINGS_MODULE": "chatapp.settings.test",
                    "OCTAVO_DATA": str(data_folder),
                    "REDIS_URL": redis_url,
                    "DATABASE_URL": database_url(),
                },
            )
        )
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait(20)


def test_an_export_whose_worker_is_killed_is_made_by_the_next_and_leaves_no_half_file(
    written: tuple[Team, Team], redis_url: str, start: Callable[[], subprocess.Popen[bytes]]
) -> None:
    team, _ = written
    chat = a_chat(team.member, "first")
    for _ in range(MESSAGES // 5000):
        Message.objects.bulk_create(
            Message(conversation=chat, role="user", text=f"{number} " + os.urandom(100).hex()) for number in range(5000)
        )
    broker, options = redis_urls.celery_broker(redis_url, 4)
    celery = Celery("test", broker=broker, broker_transport_options=options, set_as_current=False)

    def send(export: Export) -> None:
        celery.send_task("chatapp.data.tasks.export", ["team", str(export.pk)])

    export = request_export(access=team.owner)
    send(export)
    worker = start()

    def state() -> Any:
        export.refresh_from_db()
        return export

    wait_for(lambda: state().state == JobState.RUNNING and 5 < export.percent < 90, 90, 0.02)
    worker.kill()
    worker.wait(20)
    assert state().state == JobState.RUNNING, "it was killed in the middle"
    assert [path.suffix for path in export.directory.iterdir()] == [".part"]
    Export.objects.filter(pk=export.pk).update(heartbeat_at=timezone.now() - timedelta(minutes=1))
    exports.tend()
    assert state().state == JobState.QUEUED
    start()
    send(export)
    wait_for(lambda: state().state == JobState.DONE, 120, 0.1)
    assert [path.name for path in export.directory.iterdir()] == [f"{export.pk}.zip"]
    assert export.attempt == 2
    with zipfile.ZipFile(export.path) as file:
        assert file.testzip() is None
        assert file.read("messages.jsonl").count(b"\n") == MESSAGES + 1
    assert (export.size, export.sha256) == (export.path.stat().st_size, _sha256(export.path))


def _sha256(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()
