"""Large files over the wire: they go through the web process without ever lying in its memory."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import psutil
import pytest

from tests.stack import Stack

pytestmark = pytest.mark.long

MB = 1024 * 1024
SIZE_MB = 80
PART = bytes(range(256)) * 4096


def web(stack: Stack) -> list[psutil.Process]:
    port = int(stack.url.rpartition(":")[2])
    found = [
        psutil.Process(connection.pid)
        for connection in psutil.net_connections("tcp")
        if connection.status == "LISTEN" and connection.laddr.port == port and connection.pid
    ]
    assert found, "nobody listens there"
    return found


def most_memory(process: psutil.Process) -> int:
    """The most that a process has had in memory since it began, in bytes."""
    with open(f"/proc/{process.pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def form(size_mb: int) -> Iterator[bytes]:
    yield b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="large.bin"\r\n\r\n'
    for _ in range(size_mb):
        yield PART
    yield b"\r\n--x--\r\n"


def test_a_large_file_goes_up_and_comes_back_without_lying_in_memory(stack: Stack) -> None:
    processes = web(stack)
    before = {process.pid: most_memory(process) for process in processes}
    headers = {"Authorization": f"Bearer {stack.key()}", "Content-Type": "multipart/form-data; boundary=x"}
    with httpx.Client(base_url=stack.url, timeout=120) as client:
        made: Any = client.post("/v1/files", content=form(SIZE_MB), headers=headers)
        assert made.status_code == 200, made.text
        assert made.json()["bytes"] == SIZE_MB * MB
        up = {process.pid: most_memory(process) - before[process.pid] for process in processes}
        assert max(up.values()) < SIZE_MB * MB / 2, up
        digest = hashlib.sha256()
        path = f"/v1/files/{made.json()['id']}"
        with client.stream("GET", f"{path}/content", headers={"Authorization": headers["Authorization"]}) as reply:
            for part in reply.iter_bytes():
                digest.update(part)
        expected = hashlib.sha256()
        for _ in range(SIZE_MB):
            expected.update(PART)
        assert digest.digest() == expected.digest()
        assert client.delete(path, headers={"Authorization": headers["Authorization"]}).status_code == 200
    grown = {process.pid: most_memory(process) - before[process.pid] for process in processes}
    assert max(grown.values()) < SIZE_MB * MB / 2, grown


@pytest.mark.parametrize("path", ["/v1/files", "/v1/chat/completions"])
def test_what_is_far_too_large_is_cut_while_it_comes(stack: Stack, path: str) -> None:
    host, _, port = stack.url.removeprefix("http://").partition(":")
    sent = 0
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {1 << 40}\r\n\r\n"
        connection.sendall(head.encode())
        with suppress(OSError):  # reset, or broken: as the system says it
            for _ in range(400):
                connection.sendall(PART)
                sent += len(PART)
    assert sent < (130 if path == "/v1/files" else 30) * MB
