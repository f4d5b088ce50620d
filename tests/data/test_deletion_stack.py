"""A team is deleted from the whole product while it is used: engine, Redis's files, database, prompt files, sockets."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from engine import occupancy_wire, protocol
from tests.conftest import ROOT
from tests.stack import Stack, started, wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
CANARY = "canaryxq7f3a9c51d2"


@pytest.fixture
def own_stack(tmp_path: Path, model_path: str) -> Iterator[Stack]:
    """One of its own: a team of it goes."""
    yield from started(tmp_path / "stack", model_path)


def manage(stack: Stack, code: str) -> str:
    socket = stack.redis.connection_pool.connection_kwargs["path"]
    return subprocess.run(
        [sys.executable, "manage.py", "shell", "-v0", "-c", code],
        cwd=ROOT,
        env={
            **os.environ,
            "OCTAVO_DATA": str(stack.data),
            "REDIS_URL": f"unix://{socket}",
            "DJANGO_SETTINGS_MODULE": "chatapp.settings.local",
            "OCTAVO_MODEL": stack.model,
        },
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def row(stack: Stack, sql: str) -> Any:
    with contextlib.closing(sqlite3.connect(stack.data / "db.sqlite3", timeout=20)) as database:
        return database.execute(sql).fetchone()


def answered(stack: Stack, tenant: int, text: str) -> httpx.Response:
    body = {"model": "default", "messages": [{"role": "user", "content": text}], "max_tokens": 8}
    headers = {"Authorization": f"Bearer {stack.key(tenant)}"}
    return httpx.post(f"{stack.url}/v1/chat/completions", json=body, headers=headers, timeout=60)


def shown(stack: Stack) -> occupancy_wire.Table:
    """All that the worker's frames say."""
    worker = wait_for(stack.workers)[0].id
    table = occupancy_wire.Table()
    entries: Any = stack.redis.xrange(protocol.occupancy_key(worker))
    for _, fields in entries:
        table.apply(occupancy_wire.decode_head(fields[b"head"]), fields[b"cells"])
    return table


def files_with(stack: Stack, needle: bytes) -> list[str]:
    found = []
    for path in stack.data.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # the database's side files come and go
            if path.is_file() and not path.is_symlink() and needle in path.read_bytes():
                found.append(str(path.relative_to(stack.data)))
    return sorted(found)


def test_a_deleted_team_is_nowhere_in_the_whole_product_and_the_others_go_on(own_stack: Stack) -> None:
    stack = own_stack
    slug = stack.demo["tenants"][0]["slug"]
    manage(
        stack,
        f"""
from chatapp.scope import unscoped
from chatapp.tenants.models import Tenant
from chatapp.prompts.services import publish
with unscoped("demo"):
    publish(tenant=Tenant.objects.get(slug={slug!r}), text="You are {CANARY}. " * 20)
""",
    )
    tenant = str(json.loads(manage(stack, f"""
import json
from chatapp.tenants.models import Tenant
print(json.dumps(str(Tenant.objects.get(slug={slug!r}).pk)))
""")))  # fmt: skip
    headers = {"Authorization": f"Bearer {stack.key(0)}"}
    with connect(f"{stack.ws_url}/ws/v1", additional_headers=headers, ping_interval=None) as socket:
        socket.recv(timeout=10)
        socket.send(json.dumps({"type": "response.create", "input": f"Remember {CANARY}", "params": {"max_tokens": 8}}))
        kinds = {"response.completed", "response.incomplete"}
        wait_for(lambda: json.loads(socket.recv(timeout=60))["type"] in kinds, 60)
        for number in (0, 1):
            assert answered(stack, number, f"{CANARY if not number else 'hello'}").status_code == 200
        tag = protocol.owner_tag(tenant)
        prompts = stack.data / "prompts"
        wait_for(lambda: any(path.name.startswith(tag) for path in prompts.iterdir()))
        wait_for(lambda: tenant in shown(stack).tenants)
        assert files_with(stack, CANARY.encode())
        socket.send(
            json.dumps(
                {"type": "response.create", "input": "Count.", "params": {"max_tokens": 2000, "ignore_eos": True}}
            )
        )
        manage(
            stack,
            f"""
from datetime import timedelta
from chatapp.audit.services import SYSTEM
from chatapp.data.deletion import request_deletion
from chatapp.tenants.models import Tenant
request_deletion(tenant=Tenant.objects.get(slug={slug!r}), actor=SYSTEM, grace=timedelta(0))
""",
        )
        with pytest.raises(ConnectionClosed):
            wait_for(lambda: socket.recv(timeout=20) is None, 30)
        assert socket.close_code == 4440
    assert answered(stack, 0, "hello?").status_code == 401
    wait_for(lambda: row(stack, "SELECT state FROM data_deletion")[0] in ("done", "failed"), 120, 0.25)
    state, error, report = row(stack, "SELECT state, error, report FROM data_deletion")
    assert (state, error) == ("done", ""), report
    told = json.loads(report)
    assert told["engines"] == {"forgot": 1, "did_not_answer": []}
    assert told["redis_files"]["aof"] == "rewritten"
    assert set(told["found_afterwards"].values()) == {0}
    assert tenant not in shown(stack).tenants
    assert not [path for path in prompts.iterdir() if path.name.startswith(tag)]
    assert files_with(stack, CANARY.encode()) == []
    assert not [key for key in stack.redis.scan_iter() if tenant.encode() in key]
    assert row(stack, f"SELECT count(*) FROM tenants_tenant WHERE slug = '{slug}'")[0] == 0
    assert answered(stack, 1, "hello again").status_code == 200
    assert "tenant.not_forgotten" not in stack.log("engine")
    entry = row(stack, "SELECT object_name FROM audit_auditentry WHERE action = 'tenant.deleted'")
    assert entry == (slug,)
