"""The clients of bench.transport, one process of them: so many sockets, an answer on each, every token looked at.

    python -m bench.listeners FOLDER --number 0 --urls URL … --keys KEY … --sockets 150 --tokens 600 --way ws

It opens its sockets and writes FOLDER/open-N, asks on all of them once FOLDER/ask is there, writes FOLDER/asked-N when
all answers have started, and FOLDER/heard-N.json at their ends: what each was, its faults in words, and beside it
heard-N.us, the latency of every token. `--way sse`: streamed chat completions in place of sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import uuid
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import websockets

from bench.said import Heard, now_us

TOGETHER = 24  # sockets that are opened, and answers that are asked for, at once
END_S = 20.0  # after the engine's end, an answer that has not ended is a fault


class Frame(msgspec.Struct):
    """What is looked at of a server's frame."""

    type: str
    response_id: str = ""
    first_seq: int = 0
    seq: int = 0
    delta: str = ""
    finish_reason: str | None = None
    code: str = ""
    message: str = ""


frame_of = msgspec.json.Decoder(Frame).decode
LAST = ("response.completed", "response.incomplete", "response.cancelled", "response.failed")


class Listener:
    """One answer. `drop`: a frame of it that is thrown away unseen, to see that this is noticed."""

    def __init__(self, number: int, options: argparse.Namespace) -> None:
        self.url = options.urls[number % len(options.urls)]
        self.key = options.keys[number % len(options.keys)]
        self.tokens = options.tokens
        self.drop = options.drop if number == 0 else 0
        self.id = ""
        self.heard = Heard(seqs=options.way != "sse")
        self.wire_bytes = 0

    async def open(self) -> None:
        raise NotImplementedError

    async def ask(self) -> None:
        """Return when the answer has started."""
        raise NotImplementedError

    async def hear(self) -> None:
        """Return at its end."""
        raise NotImplementedError

    def take(self, delta: str, first_seq: int, seq: int) -> None:
        if self.drop and self.heard.frames == self.drop:
            self.drop = 0
            return
        self.heard.frame(delta, first_seq, seq, now_us())


class Socket(Listener):
    async def open(self) -> None:
        address = self.url.replace("http", "ws", 1) + "/ws/v1"
        headers = {"Authorization": f"Bearer {self.key}"}
        self.socket = await websockets.connect(address, additional_headers=headers, open_timeout=60, max_queue=None)
        created = frame_of(await self.socket.recv(decode=False))
        if created.type != "session.created":
            raise RuntimeError(f"{created.code}: {created.message}")

    async def ask(self) -> None:
        frame = {
            "type": "response.create",
            "input": [{"role": "user", "content": "Count."}],
            "params": {"max_tokens": self.tokens, "ignore_eos": True},
        }
        await self.socket.send(json.dumps(frame))
        while (told := frame_of(await self.socket.recv(decode=False))).type != "response.created":
            if told.type == "error":
                raise RuntimeError(f"{told.code}: {told.message}")
        self.id = told.response_id

    async def hear(self) -> None:
        while True:
            data = await self.socket.recv(decode=False)
            self.wire_bytes += len(data)
            told = frame_of(data)
            if told.type == "response.output_text.delta":
                self.take(told.delta, told.first_seq, told.seq)
            elif told.type in LAST:
                self.heard.end(told.finish_reason or told.type, self.tokens)
                await self.socket.close()
                return
            elif told.type in ("error", "lagged"):
                self.heard.problems.append(f"{told.type} {told.code}: {told.message}")


class Stream(Listener):
    """A chat completion over plain HTTP/1.1; its chunks are read by hand, since a client library would be the load."""

    async def open(self) -> None:
        parts = urlsplit(self.url)
        self.reader, self.writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 20)

    async def ask(self) -> None:
        body = json.dumps(
            {
                "model": "default",
                "messages": [{"role": "user", "content": "Count."}],
                "max_tokens": self.tokens,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {urlsplit(self.url).netloc}\r\n"
            f"Authorization: Bearer {self.key}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)
        answer = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        if " 200 " not in answer.partition("\r\n")[0]:
            raise RuntimeError(answer[:200])

    async def hear(self) -> None:
        ended = False
        async for chunk in self._chunks():
            self.wire_bytes += len(chunk)
            for line in chunk.split(b"\n"):
                if not line.startswith(b"data: {"):
                    continue
                told = json.loads(line[6:])
                self.id = str(uuid.UUID(told["id"].removeprefix("chatcmpl-")))
                for choice in told["choices"]:
                    if text := choice["delta"].get("content"):
                        self.take(text, 0, 0)
                    if choice.get("finish_reason"):
                        self.heard.end(choice["finish_reason"], self.tokens)
                        ended = True
        if not ended:
            self.heard.end("a broken stream", self.tokens)
        self.writer.close()

    async def _chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self.reader.readline(), 16):
            yield await self.reader.readexactly(size)
            await self.reader.readexactly(2)


async def for_all(listeners: list[Listener], work: Callable[[Listener], Coroutine[Any, Any, None]]) -> None:
    together = asyncio.Semaphore(TOGETHER)

    async def one(listener: Listener) -> None:
        async with together:
            await work(listener)

    await asyncio.gather(*map(one, listeners))


async def run(options: argparse.Namespace) -> list[Listener]:
    kind = Stream if options.way == "sse" else Socket
    listeners: list[Listener] = [kind(options.number + n, options) for n in range(options.sockets)]
    await for_all(listeners, lambda listener: listener.open())
    (options.folder / f"open-{options.number}").touch()
    while not (options.folder / "ask").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await for_all(listeners, lambda listener: listener.ask())
    hearing = [asyncio.create_task(listener.hear()) for listener in listeners]
    (options.folder / f"asked-{options.number}").touch()
    unfinished: set[asyncio.Task[None]] = set(hearing)
    ended_at = None
    while unfinished and (ended_at is None or asyncio.get_running_loop().time() < ended_at + END_S):
        _, unfinished = await asyncio.wait(unfinished, timeout=1.0)
        if ended_at is None and (options.folder / "engine.json").exists():
            ended_at = asyncio.get_running_loop().time()
    for listener, task in zip(listeners, hearing, strict=True):
        if task in unfinished:
            listener.heard.problems.append(f"no end, after {listener.heard.tokens} tokens")
            task.cancel()
        elif (error := task.exception()) is not None:
            listener.heard.problems.append(f"{type(error).__name__}: {error}")
    return listeners


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--number", type=int, required=True, help="of the first socket")
    parser.add_argument("--urls", nargs="+", required=True)
    parser.add_argument("--keys", nargs="+", required=True)
    parser.add_argument("--sockets", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--way", choices=["ws", "sse"], default="ws")
    parser.add_argument("--drop", type=int, default=0, help="throw away this frame of socket 0: a test of the check")
    options = parser.parse_args()
    listeners = asyncio.run(run(options))
    late: array[int] = array("q")
    for listener in listeners:
        late.extend(listener.heard.late_us)
    (options.folder / f"heard-{options.number}.us").write_bytes(late.tobytes())
    answers = [
        {
            "id": listener.id,
            "tokens": listener.heard.tokens,
            "frames": listener.heard.frames,
            "bytes": listener.wire_bytes,
            "crc": listener.heard.crc,
            "problems": listener.heard.problems,
        }
        for listener in listeners
    ]
    cpu = os.times()
    part = options.folder / f"heard-{options.number}.part"
    part.write_text(json.dumps({"answers": answers, "cpu": cpu.user + cpu.system}))
    part.replace(options.folder / f"heard-{options.number}.json")


if __name__ == "__main__":
    main()
