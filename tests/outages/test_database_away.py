"""The database goes away for a while: what runs goes on, what needs it is told to try again, and all of it heals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.api.conftest import ENDS, text_of
from tests.api.sockets import Voice
from tests.chat.conftest import Team
from tests.outages.conftest import WebProcess, environment, taken
from tests.outages.test_web_processes import WORDS, frames_until, key, said
from tests.stack import ROOT, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.long]

# Who asks hears within so long that the database is away, whatever the reason.
QUICK_S = 8.0


@pytest.fixture
def recorder(tmp_path: Path, redis_url: str, team: Team) -> Iterator[subprocess.Popen[bytes]]:
    with (tmp_path / "recorder.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "recorder"], cwd=ROOT, env=environment(redis_url), stdout=log, stderr=log
        )
    yield process
    process.kill()
    process.wait(10)


@contextlib.contextmanager
def sqlite_locked() -> Iterator[None]:
    """Somebody else writes, and does not end."""
    from django.db import connection

    with contextlib.closing(sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


async def test_while_sqlite_is_locked_answers_go_on_and_are_recorded_afterwards(
    team: Team, voice: Voice, staying: WebProcess, recorder: Any
) -> None:
    from chatapp.chat.models import Generation

    async with connect(f"ws://127.0.0.1:{staying.port}/ws/v1", additional_headers=key(team)) as socket:
        await socket.send(json.dumps({"type": "response.create", "input": "Count."}))
        response = (await frames_until(socket, "response.queued"))[-1]["response_id"]
        answer = await taken(voice)
        with sqlite_locked():
            await said(voice, answer, 1, 80)
            await asyncio.to_thread(voice.finish, answer, 81)
            assert text_of(await frames_until(socket, *ENDS)) == "".join(WORDS)
            began = time.monotonic()
            await socket.send(json.dumps({"type": "response.create", "input": "Again.", "event_id": "e"}))
            error = (await frames_until(socket, "error"))[-1]
            assert (error["code"], error["retryable"], error["event_id"]) == ("unavailable", True, "e")
            assert error["retry_after_ms"] > 0
            assert time.monotonic() - began < QUICK_S
            async with httpx.AsyncClient(headers=key(team), timeout=20) as http:
                body = {"model": "default", "messages": [{"role": "user", "content": "Hi"}]}
                reply = await http.post(f"{staying.url}/v1/chat/completions", json=body)
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "unavailable")
            assert int(reply.headers["retry-after"]) > 0
        row = Generation.objects.filter(pk=response)
        await asyncio.to_thread(wait_for, lambda: row.get().state == "finished")
        recorded = await asyncio.to_thread(row.select_related("message").get)
        assert recorded.message is not None
        assert recorded.message.text == "".join(WORDS)
        await socket.send(json.dumps({"type": "response.create", "input": "Again.", "event_id": "e2"}))
        assert (await frames_until(socket, "response.queued", "error"))[-1]["type"] == "response.queued"
