"""The clients of bench.soak: all sorts of them, coming and going, for as long as they are let.

Each kind is a loop of its own that asks for something, reads it its own way, and says to the `Book` what it waited for
and what went wrong. What a client does on purpose (stopping, hanging up, not reading) is no error; an answer with a
hole in it, a refusal, a broken connection are, by their kind. Knows nothing of processes and memory.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import websockets

from bench.load import NOUNS, VERBS, sentence

ENDS = ("response.completed", "response.incomplete", "response.cancelled", "response.failed")
DELTA = "response.output_text.delta"
ANSWER_S = 120.0


@dataclass
class Book:
    """What clients saw, since the last page and in all."""

    first_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


class Broken(Exception):
    """What a server must not do; the message is its kind."""


class Reader:
    """One response as its reader sees it: waits, and whether anything is missing."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.began = self.last = time.perf_counter()
        self.seq = 0
        self.heard = 0

    def text(self) -> None:
        now = time.perf_counter()
        (self.book.gaps_s if self.heard else self.book.first_s).append(now - self.last)
        self.last = now
        self.heard += 1

    def frame(self, frame: dict[str, Any]) -> bool:
        """Whether it was the last one."""
        if frame["type"] == "error":
            raise Broken(f"error {frame['code']}")
        if frame["type"] == DELTA:
            if frame["first_seq"] != self.seq + 1:
                raise Broken("a hole in an answer")
            self.seq = frame["seq"]
            self.text()
        if frame["type"] == "response.failed":
            raise Broken(f"failed {(frame.get('error') or {}).get('code')}")
        return frame["type"] in ENDS


@dataclass(frozen=True)
class Site:
    """Where the product is, with a key for each team, and the cookie of a person who is logged in."""

    url: str
    keys: list[str]
    slug: str
    cookie: str

    @property
    def ws(self) -> str:
        return self.url.replace("http", "ws", 1)

    @asynccontextmanager
    async def api_socket(self, rng: random.Random, **options: Any) -> AsyncIterator[Any]:
        headers = {"Authorization": f"Bearer {rng.choice(self.keys)}"}
        async with websockets.connect(f"{self.ws}/ws/v1", additional_headers=headers, **options) as socket:
            await created(socket)
            yield socket

    @asynccontextmanager
    async def ui_socket(self) -> AsyncIterator[Any]:
        address, headers = f"{self.ws}/ws/ui?tenant={self.slug}", {"Cookie": self.cookie}
        async with websockets.connect(address, additional_headers=headers, origin=self.url) as socket:  # type: ignore[arg-type]
            await created(socket)
            yield socket


async def created(socket: Any) -> None:
    frame = json.loads(await socket.recv())
    if frame["type"] != "session.created":
        raise Broken(f"not let in: {frame.get('code', frame['type'])}")


async def log_in(url: str, email: str, password: str) -> str:
    """The cookies of a session, as a header has them."""
    async with httpx.AsyncClient(base_url=url, follow_redirects=True, timeout=30) as client:
        page = await client.get("/accounts/login/")
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
        if token is None:
            raise Broken("the login page has no form")
        form = {"login": email, "password": password, "csrfmiddlewaretoken": token[1]}
        await client.post("/accounts/login/", data=form, headers={"Referer": f"{url}/accounts/login/"})
        if "sessionid" not in client.cookies:
            raise Broken("nobody is logged in")
        return "; ".join(f"{name}={value}" for name, value in client.cookies.items())


def ask(input: Any, tokens: int, **more: Any) -> str:
    params = {"max_tokens": tokens, "temperature": 0.7}
    return json.dumps({"type": "response.create", "input": input, "params": params, **more})


def words(rng: random.Random) -> str:
    return sentence(rng, rng.randrange(4, 20))


async def read(socket: Any, reader: Reader) -> dict[str, Any]:
    """To the end; its last frame."""
    async with asyncio.timeout(ANSWER_S):
        while True:
            frame: dict[str, Any] = json.loads(await socket.recv())
            if reader.frame(frame):
                return frame


# --- the kinds ------------------------------------------------------------------------------------------------------


async def chats(site: Site, book: Book, rng: random.Random) -> None:
    """A page: a conversation of some turns, read as it comes."""
    async with site.ui_socket() as socket:
        conversation: dict[str, Any] = {}
        for _ in range(rng.randrange(1, 4)):
            reader = Reader(book)
            await socket.send(ask(words(rng), rng.randrange(8, 48), **conversation))
            queued = json.loads(await socket.recv())
            reader.frame(queued)
            conversation = {"conversation_id": queued["conversation_id"]}
            await read(socket, reader)
            await asyncio.sleep(rng.random() * 2)


async def streams(site: Site, book: Book, rng: random.Random) -> None:
    """A program that reads a chat completion over HTTP."""
    await _streamed(site, book, rng, most=10_000)


async def hangs_up(site: Site, book: Book, rng: random.Random) -> None:
    """One that is closed in the middle."""
    await _streamed(site, book, rng, most=rng.randrange(1, 6))


async def _streamed(site: Site, book: Book, rng: random.Random, most: int) -> None:
    body = {
        "model": "default", "messages": [{"role": "user", "content": words(rng)}], "stream": True,
        "max_tokens": rng.randrange(8, 48),
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {rng.choice(site.keys)}"}
    reader = Reader(book)
    async with (
        httpx.AsyncClient(base_url=site.url, timeout=ANSWER_S) as client,
        client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as reply,
    ):
        if reply.status_code != 200:
            raise Broken(f"HTTP {reply.status_code}")
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise Broken(f"in stream {chunk['error'].get('code')}")
                if any(choice["delta"].get("content") for choice in chunk["choices"]):
                    reader.text()
            if reader.heard >= most:
                return


async def stops(site: Site, book: Book, rng: random.Random) -> None:
    """Stop, after some words."""
    async with site.api_socket(rng) as socket:
        await socket.send(ask([{"role": "user", "content": words(rng)}], 200))
        queued = json.loads(await socket.recv())
        reader = Reader(book)
        reader.frame(queued)
        after = rng.randrange(0, 6)
        async with asyncio.timeout(ANSWER_S):
            while reader.seq < after:
                if reader.frame(json.loads(await socket.recv())):
                    return
        await socket.send(json.dumps({"type": "response.cancel", "response_id": queued["response_id"]}))
        await read(socket, reader)


async def reads_slowly(site: Site, book: Book, rng: random.Random) -> None:
    """Takes a frame when it likes; the library stops reading from the network meanwhile."""
    async with site.api_socket(rng, max_queue=1) as socket:
        await socket.send(ask([{"role": "user", "content": words(rng)}], 64))
        reader = Reader(Book())  # its waits are its own
        async with asyncio.timeout(ANSWER_S):
            while not reader.frame(json.loads(await socket.recv())):  # noqa: ASYNC110  this is its pace
                await asyncio.sleep(rng.random())


async def never_reads(site: Site, book: Book, rng: random.Random) -> None:
    async with site.api_socket(rng, max_queue=1) as socket:
        for _ in range(3):
            await socket.send(ask([{"role": "user", "content": words(rng)}], 64))
        await asyncio.sleep(10)
        socket.transport.abort()


async def vanishes(site: Site, book: Book, rng: random.Random) -> None:
    """A tab that is gone in the middle of an answer, without a word; the next one reads the rest."""
    reader = Reader(book)
    async with site.ui_socket() as socket:
        await socket.send(ask(words(rng), 48))
        queued = json.loads(await socket.recv())
        reader.frame(queued)
        async with asyncio.timeout(ANSWER_S):
            while reader.seq < 3:
                if reader.frame(json.loads(await socket.recv())):
                    return
        socket.transport.abort()
    await asyncio.sleep(rng.random())
    async with site.ui_socket() as socket:
        frame = {"type": "response.resume", "response_id": queued["response_id"], "after": reader.seq}
        await socket.send(json.dumps(frame))
        reader.last = time.perf_counter()
        await read(socket, reader)


async def cycles(site: Site, book: Book, rng: random.Random) -> None:
    """Connect, stream, disconnect."""
    async with site.api_socket(rng) as socket:
        reader = Reader(book)
        await socket.send(ask([{"role": "user", "content": f"Name a {rng.choice(NOUNS)} to {rng.choice(VERBS)}."}], 6))
        await read(socket, reader)


Client = Callable[[Site, Book, random.Random], Awaitable[None]]
KINDS: tuple[Client, ...] = (
    chats, streams, cycles, chats, hangs_up, stops, reads_slowly, never_reads, vanishes, cycles,
)  # fmt: skip


async def load(site: Site, book: Book, users: int, until: asyncio.Event, pause_s: float = 1.0) -> None:
    """So many clients at once, of each kind as many as of any other, until the event is set and they have ended."""

    async def loop(number: int) -> None:
        kind, rng = KINDS[number % len(KINDS)], random.Random(number)
        name = kind.__name__  # type: ignore[attr-defined]
        while not until.is_set():
            try:
                await kind(site, book, rng)
                book.done[name] += 1
            except Broken as error:
                book.errors[f"{name}: {error}"] += 1
                await asyncio.sleep(pause_s)
            except (OSError, httpx.HTTPError, websockets.WebSocketException, TimeoutError) as error:
                book.errors[f"{name}: {type(error).__name__}"] += 1
                await asyncio.sleep(pause_s)
            await asyncio.sleep(pause_s * rng.random())

    await asyncio.gather(*(loop(number) for number in range(users)))
