"""The four ways to ask, each keeping what it saw: every text, when each piece came, and what was wrong with it.

- /ws/v1 by the published client (octavo_client), which resumes by itself;
- /ws/ui by a socket of our own that does what the browser does, and trusts no number;
- /v1/chat/completions, streamed: it is cut with its connection, and asked for again under its Idempotency-Key;
- /v1/responses in the background: its stream is taken up behind the last number that came.

What a client may see more than once (a stream that was cut) is kept apart: `cuts`.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import websockets
from octavo_client import AsyncOctavo, OctavoError
from octavo_client.frames import Queued, TextDelta
from websockets.asyncio.client import connect

from tests.chaos.questions import BROWSER, CHAT, RESPONSES, SOCKET, Question

SILENT_S = 12.0  # a browser looks again when nothing has come for some seconds
AGAIN_S = (0.3, 0.6, 1.0, 2.0)
GIVE_UP_S = 240.0
BROKEN = (OSError, httpx.HTTPError, websockets.WebSocketException, asyncio.TimeoutError, EOFError)


@dataclass
class Seen:
    """An answer as its client saw it. `ended`: the reason of each choice, or why it was not answered."""

    question: Question
    texts: list[str] = field(default_factory=list)
    reasons: list[str | None] = field(default_factory=list)
    ended: str = ""
    ids: list[str] = field(default_factory=list)
    tokens: int = 0
    asked_at: float = field(default_factory=time.monotonic)
    ended_at: float = 0.0
    came_at: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    cuts: list[tuple[float, list[str]]] = field(default_factory=list)
    asked_again: int = 0
    reconnected: int = 0

    def __post_init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.texts = [""] * self.question.choices
        self.reasons = [None] * self.question.choices

    @property
    def id(self) -> str:
        """The generation's, as a plain UUID in hexadecimal digits."""
        return self.ids[-1] if self.ids else ""

    def named(self, response_id: str) -> None:
        plain = response_id.replace("-", "")[-32:]
        if plain not in self.ids:
            self.ids.append(plain)

    def came(self, index: int, text: str, reason: str | None = None) -> None:
        if text:
            self.came_at.append(time.monotonic())
        self.texts[index] += text
        self.reasons[index] = reason or self.reasons[index]

    def end(self, how: str, tokens: int = 0) -> None:
        self.ended, self.tokens, self.ended_at = how, tokens, time.monotonic()

    def cut(self) -> None:
        """The connection of a stream is gone, and with it what was told on it."""
        self.cuts.append((time.monotonic(), self.texts))
        self._clear()


def _body(question: Question) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question.text}], "model": "default", **question.params}


async def _events(reply: httpx.Response) -> AsyncIterator[str]:
    async for line in reply.aiter_lines():
        if line.startswith("data:"):
            yield line[5:].strip()


def _wait(reply: httpx.Response | None, tries: int) -> float:
    said = reply.headers.get("retry-after") if reply is not None else None
    return min(float(said), 5.0) if said else AGAIN_S[min(tries, len(AGAIN_S) - 1)]


class Clients:
    """Of all tenants, at the address `url`. `ask` returns when the answer has ended, or can be given up."""

    def __init__(self, url: str, tenants: list[dict[str, Any]]) -> None:
        self._url = url
        self._tenants = tenants
        self._octavo: dict[int, AsyncOctavo] = {}
        self._cookies: dict[int, str] = {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)  # a kept one may just be closing
        self._http = httpx.AsyncClient(base_url=url, limits=limits, timeout=httpx.Timeout(SILENT_S, read=45.0))

    async def __aenter__(self) -> Clients:
        for number, tenant in enumerate(self._tenants):
            self._octavo[number] = AsyncOctavo(
                self._url, api_key=tenant["api_key"], give_up_after=GIVE_UP_S, timeout=GIVE_UP_S, max_retries=20
            )
            self._cookies[number] = await self._login(tenant["member"])
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._octavo.values():
            await client.close()
        await self._http.aclose()

    async def _login(self, person: dict[str, str]) -> str:
        async with httpx.AsyncClient(base_url=self._url, timeout=60) as http:
            token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', (await http.get("/accounts/login/")).text)
            assert token
            fields = {"csrfmiddlewaretoken": token[1], "login": person["email"], "password": person["password"]}
            await http.post("/accounts/login/", data=fields, headers={"Origin": self._url})
            assert "sessionid" in http.cookies, "the login failed"
            return "; ".join(f"{name}={value}" for name, value in http.cookies.items())

    async def ask(self, question: Question) -> Seen:
        seen = Seen(question)
        way = {SOCKET: self._by_client, BROWSER: self._by_browser, CHAT: self._by_chat, RESPONSES: self._by_response}
        try:
            async with asyncio.timeout(GIVE_UP_S):
                await way[question.way](seen)
        except TimeoutError:
            seen.end(f"no end within {GIVE_UP_S:.0f} s")
        return seen

    # --- /ws/v1 -----------------------------------------------------------------------------------------------------

    async def _by_client(self, seen: Seen) -> None:
        question = seen.question
        stateless = question.choices > 1
        asked: Any = [{"role": "user", "content": question.text}] if stateless else question.text
        stream = self._octavo[question.tenant].stream(asked, **question.params)
        last = 0
        try:
            async for event in stream:
                if isinstance(event, Queued):
                    seen.named(event.response_id)
                elif isinstance(event, TextDelta):
                    if event.seq < last:
                        seen.problems.append(f"event {event.seq} came behind {last}")
                    last = event.seq
                    seen.came(event.index, event.delta, event.finish_reason)
        except OctavoError as error:
            seen.end(f"{error.code}: {error}")
            return
        answer = stream.answer
        if answer.texts != seen.texts:
            seen.problems.append("the events are another text than the answer")
        seen.end(answer.status, answer.usage.completion_tokens if answer.usage else 0)

    # --- /ws/ui -----------------------------------------------------------------------------------------------------

    async def _by_browser(self, seen: Seen) -> None:
        frame = {
            "type": "response.create",
            "event_id": "ask",
            "input": seen.question.text,
            "params": seen.question.params,
            "idempotency_key": uuid.uuid4().hex,
        }
        last, tries = -1, 0
        while not seen.ended:
            resume = {"type": "response.resume", "event_id": "resume", "response_id": seen.id, "after": last}
            try:
                async with connect(
                    f"{self._url.replace('http', 'ws', 1)}/ws/ui?tenant={self._tenants[seen.question.tenant]['slug']}",
                    additional_headers={"Cookie": self._cookies[seen.question.tenant]},
                    origin=self._url,  # type: ignore[arg-type]
                    open_timeout=SILENT_S,
                    close_timeout=0.5,
                    ping_interval=None,
                    max_size=None,
                ) as socket:
                    await socket.send(json.dumps(resume if seen.id else frame))
                    while not seen.ended:
                        said = json.loads(await asyncio.wait_for(socket.recv(), SILENT_S))
                        if said["type"] == "error":
                            if not said.get("retryable"):
                                seen.end(f"{said['code']}: {said['message']}")
                                break
                            seen.asked_again += 1
                            await asyncio.sleep(min(said.get("retry_after_ms") or 1000, 5000) / 1000)
                            await socket.send(json.dumps(resume if seen.id else frame))
                            continue
                        tries = 0
                        last = self._frame(seen, said, last)
            except BROKEN:
                seen.reconnected += 1
                await asyncio.sleep(_wait(None, tries))
                tries += 1

    @staticmethod
    def _frame(seen: Seen, said: dict[str, Any], last: int) -> int:
        """Take a frame in; the number of the last event that has come with it."""
        kind = said["type"]
        if kind == "response.queued":
            seen.named(said["response_id"])
        elif kind == "response.created":
            return max(last, 0)
        elif kind == "response.output_text.delta":
            text, first, had = said.get("delta", ""), said["first_seq"], seen.texts[0]
            if first == 1 and last > 0:  # the database has it in one piece
                if not text.startswith(had):
                    seen.problems.append("what was said before is told otherwise by the database")
                text = text[len(had) :]
            elif first != max(last, 0) + 1:
                seen.problems.append(f"event {first} came behind {last}")
            seen.came(0, text, said.get("finish_reason"))
            return int(said["seq"])
        elif kind in ("response.completed", "response.incomplete", "response.cancelled"):
            if said["seq"] != max(last, 0) + 1:
                seen.problems.append(f"the end is event {said['seq']} and came behind {last}")
            seen.end(kind.removeprefix("response."), said["usage"]["completion_tokens"] if "usage" in said else 0)
        elif kind == "response.failed":
            error = said.get("error") or {}
            seen.end(f"{error.get('code')}: {error.get('message')}")
        return last

    # --- /v1/chat/completions ---------------------------------------------------------------------------------------

    async def _by_chat(self, seen: Seen) -> None:
        body = {**_body(seen.question), "stream": True, "stream_options": {"include_usage": True}}
        headers = {**self._key(seen.question.tenant), "Idempotency-Key": uuid.uuid4().hex}
        tries = 0
        while not seen.ended:
            reply: httpx.Response | None = None
            try:
                async with self._http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as reply:
                    if reply.status_code == 200:
                        await self._chunks(seen, reply)
                    else:
                        await reply.aread()
                        self._refusal(seen, reply)
            except BROKEN:
                pass
            if seen.ended:
                return
            if any(seen.texts):
                seen.cut()
            seen.asked_again += 1
            await asyncio.sleep(_wait(reply, tries))
            tries += 1

    @staticmethod
    async def _chunks(seen: Seen, reply: httpx.Response) -> None:
        tokens = 0
        async for data in _events(reply):
            if data == "[DONE]":
                reasons = ["incomplete" if reason == "length" else "completed" for reason in seen.reasons]
                seen.end(reasons[0], tokens)
                return
            chunk = json.loads(data)
            if "error" in chunk:
                # The caller went away, said the server: this one has not, its web process has been frozen. Or it is
                # told to end, and asks its callers to come again.
                if chunk["error"].get("code") not in ("cancelled", "server_stopping"):
                    seen.end(f"{chunk['error'].get('code')}: {chunk['error'].get('message')}")
                return
            seen.named(chunk["id"])
            for choice in chunk.get("choices") or ():
                seen.came(choice["index"], choice["delta"].get("content") or "", choice.get("finish_reason"))
            if chunk.get("usage"):
                tokens = chunk["usage"]["completion_tokens"]

    @staticmethod
    def _refusal(seen: Seen, reply: httpx.Response) -> None:
        if reply.status_code not in (409, 429, 499) and reply.status_code < 500:
            seen.end(f"HTTP {reply.status_code}: {reply.text[:200]}")

    def _key(self, tenant: int) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._tenants[tenant]['api_key']}"}

    # --- /v1/responses ----------------------------------------------------------------------------------------------

    async def _by_response(self, seen: Seen) -> None:
        params = dict(seen.question.params)
        body = {
            "input": seen.question.text,
            "max_output_tokens": params.pop("max_tokens"),
            "background": True,
            "stream": True,
            **params,
        }
        headers = {**self._key(seen.question.tenant), "Idempotency-Key": uuid.uuid4().hex}
        last, tries, public = -1, 0, ""
        while not seen.ended:
            reply: httpx.Response | None = None
            where = f"/v1/responses/{public}?stream=true" + (f"&starting_after={last}" if last >= 0 else "")
            call: dict[str, Any] = {"url": where} if public else {"url": "/v1/responses", "json": body}
            try:
                async with self._http.stream("GET" if public else "POST", headers=headers, **call) as reply:
                    if reply.status_code != 200:
                        await reply.aread()
                        self._refusal(seen, reply)
                    else:
                        async for data in _events(reply):
                            event = json.loads(data)
                            public = event.get("response", {}).get("id") or public
                            last = self._event(seen, event, last)
                            tries = 0
            except BROKEN:
                pass
            if not seen.ended:
                seen.reconnected += 1
                await asyncio.sleep(_wait(reply, tries))
                tries += 1

    @staticmethod
    def _event(seen: Seen, event: dict[str, Any], last: int) -> int:
        kind, number = event["type"], event["sequence_number"]
        if kind == "error":
            return last
        if number != last + 1:
            seen.problems.append(f"event {number} came behind {last}")
        if "response" in event:
            seen.named(event["response"]["id"])
        if kind == "response.output_text.delta":
            seen.came(0, event["delta"])
        elif kind in ("response.completed", "response.incomplete", "response.cancelled"):
            seen.end(kind.removeprefix("response."), event["response"]["usage"]["output_tokens"])
        elif kind == "response.failed":
            error = event["response"].get("error") or {}
            seen.end(f"{error.get('code')}: {error.get('message')}")
        return int(number)
