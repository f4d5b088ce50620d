"""What chatapp.api.pace adds to daphne, against a real daphne."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from chatapp.api.asyncapi import CLOSE_CODES
from tests.stack import ROOT, free_port, wait_for


@dataclass
class Served:
    url: str
    log: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    port = free_port()
    log = tmp_path_factory.mktemp("daphne") / "log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "daphne", "-p", str(port), "tests.api.paced_app:application"],
            cwd=ROOT,
            stdout=out,
            stderr=out,
        )
    try:
        wait_for(lambda: "Listening on TCP" in log.read_text(), 30)
        yield Served(f"ws://127.0.0.1:{port}/", log)
    finally:
        server.terminate()
        server.wait(20)


@pytest.mark.parametrize("code", [1000, *CLOSE_CODES])
def test_a_socket_closes_with_the_code_that_the_application_says(served: Served, code: int) -> None:
    with connect(served.url) as socket:
        socket.send(f"close {code}")
        with pytest.raises(ConnectionClosed):
            socket.recv(5)
        assert socket.close_code == code


def test_what_is_still_sent_while_the_socket_closes_is_no_fault(served: Served) -> None:
    with connect(served.url, close_timeout=0.5) as socket:
        socket.send("chatter")
        assert socket.recv(5) == "more"
        socket.send("close 4429")
        with suppress(ConnectionClosed):
            while socket.recv(5):
                pass
        assert socket.close_code == 4429
    time.sleep(1.5)  # daphne looks once a second at what its applications raised
    assert "Disconnected" not in served.log.read_text()


SIZES = [3, 124, 125, 126, 127, 65_535, 65_536, 1, 400_000, 5]


def test_frames_of_every_length_arrive_whole_and_in_order_without_daphnes_detour(served: Served) -> None:
    with connect(served.url, max_size=2**21) as socket:
        socket.send("say " + " ".join(map(str, SIZES)))
        heard = [socket.recv(10) for _ in SIZES]
        assert [len(text) for text in heard] == [max(size, len(f"{n} ")) for n, size in enumerate(SIZES)]
        assert [text.split()[0] for text in map(str, heard)] == [str(n) for n in range(len(SIZES))]
        socket.send("usual")
        assert socket.recv(5) == "0", "they went the long way: does daphne keep its parts elsewhere?"


def test_what_the_kernel_does_not_take_at_once_arrives_behind_the_rest(served: Served) -> None:
    """The client reads nothing for a while: buffers fill up, the application waits, and the order holds."""
    sizes = [50_000] * 200
    with connect(served.url, max_queue=1, max_size=2**21) as socket:
        socket.send("say " + " ".join(map(str, sizes)))
        time.sleep(0.5)
        heard = [str(socket.recv(10)) for _ in sizes]
    assert [text.split()[0] for text in heard] == [str(n) for n in range(len(sizes))]
    assert {len(text) for text in heard} == {50_000}
