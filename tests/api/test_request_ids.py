"""A request's id and its trace go where its work goes: into the log, to the engine, to the recorder, to tasks."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from asgiref.sync import sync_to_async
from django.test import AsyncClient

from chatapp.audit.source import on_behalf_of, set_source, source
from chatapp.celery import _hand_on, _say_done, _take_up
from chatapp.chat.models import Generation, State
from chatapp.chat.reaper import reap
from chatapp.logs import formatter
from engine import tracing
from engine.protocol import Delta, Finished, Part, Started
from tests.api.inprocess import Engine, engine, http, make, prompt_headers, team
from tests.api.sockets import line
from tests.chat.conftest import Team, record, server, worker
from tests.otlp import collecting, keeping_traces

__all__ = ["engine", "http", "make", "prompt_headers", "record", "server", "team", "worker"]

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = f"00-{TRACE}-{SPAN}-01"
HELLO = {"model": "default", "messages": [{"role": "user", "content": "A zyzzyva, please."}]}
SAID = [Part(text="Here is your zyzzyva.", token_ids=[1], finish_reason="stop")]
Lines = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What has been logged so far with these fields, as the product writes it."""
    written: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(self.format(record))

    handler, root = Kept(), logging.getLogger()
    handler.setFormatter(formatter())
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)

    def having(**fields: Any) -> list[dict[str, Any]]:
        found = [json.loads(text) for text in written]
        return [entry for entry in found if all(entry.get(name) == value for name, value in fields.items())]

    yield having
    root.removeHandler(handler)
    root.setLevel(level)
    assert "zyzzyva" not in "".join(written), "no text of a chat is logged"


async def test_an_api_call_s_id_and_trace_reach_the_engine_and_the_recorder(
    http: httpx2.AsyncClient, engine: Engine, record: Callable[[], int], lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting() as collector:
        with keeping_traces(monkeypatch, collector.url):
            headers = {"X-Request-Id": "my own id", "traceparent": CALLER}
            asked = asyncio.create_task(http.post("/v1/chat/completions", json=HELLO, headers=headers))
            request = await engine.say(SAID)
            answer = await asked
            assert await sync_to_async(record)() == 1
        found = collector.of(TRACE)
    assert answer.headers["x-request-id"] == request.request_id == "my own id"
    said = {entry["event"]: entry for entry in lines(request_id="my own id")}
    assert list(said) == ["generation.queued", "request.done", "generation.recorded"]
    assert {said["generation.queued"]["generation"], said["generation.recorded"]["generation"]} == {request.id}
    assert {entry["trace_id"] for entry in said.values()} == {TRACE}
    assert (said["request.done"]["route"], said["request.done"]["status"]) == ("/v1/chat/completions", 200)
    assert said["request.done"]["tenant"] == request.tenant

    called, submitted, recorded = (found[name] for name in ("POST /v1/chat/completions", "submit", "record"))
    assert called.parent == SPAN
    assert submitted.parent == called.id
    assert recorded.parent == submitted.id
    assert request.traceparent == f"00-{TRACE}-{submitted.id}-01"
    assert called.attributes["http.response.status_code"] == 200
    assert submitted.attributes["octavo.generation"] == request.id
    assert b"zyzzyva" not in b"".join(collector.raw)


async def test_a_streamed_answer_s_span_lasts_to_its_last_word(
    http: httpx2.AsyncClient, engine: Engine, prompt_headers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting() as collector, keeping_traces(monkeypatch, collector.url):
        call = asyncio.create_task(engine.take())
        async with http.stream("POST", "/v1/chat/completions", json={**HELLO, "stream": True}) as streamed:
            taken = await call
            engine.tell(taken, Started(seq=0, prompt_tokens=7, cached_tokens=3), Delta(seq=1, parts=SAID))
            words = streamed.aiter_text()
            while "zyzzyva" not in await anext(words):
                pass
            until_then = time.time()
            engine.worker.end(taken, Finished(seq=2, finish_reason="stop"))
            async for _ in words:
                pass
        found = await sync_to_async(collector.seen)("POST /v1/chat/completions", "submit")
    whole = found["POST /v1/chat/completions"]
    assert (whole.parent, found["submit"].parent) == ("", whole.id)
    assert found["submit"].ended < until_then < whole.ended


async def test_a_caller_s_trace_goes_on_behind_us_where_we_keep_none(http: httpx2.AsyncClient, engine: Engine) -> None:
    headers = {"traceparent": CALLER}
    asked = asyncio.create_task(http.post("/v1/chat/completions", json=HELLO, headers=headers))
    assert (await engine.say(SAID)).traceparent == CALLER
    await asked
    asked = asyncio.create_task(http.post("/v1/chat/completions", json=HELLO, headers={"traceparent": "nonsense"}))
    request = await engine.say(SAID)
    await asked
    assert request.traceparent == ""
    assert request.request_id.startswith("req_"), "a call without an id gets one"


async def test_each_frame_of_a_socket_is_a_request_of_its_own(team: Team, engine: Engine, lines: Lines) -> None:
    frame = {"type": "response.create", "input": HELLO["messages"]}
    headers = ((b"traceparent", CALLER.encode()),)
    async with line(team.secret, headers=headers) as socket:
        ids = []
        for _ in range(2):
            await socket.send(type="ping")
            await socket.send(**frame)
            ids.append(await engine.say(SAID))
            await socket.read_until("response.completed")
        session = socket.hello["session_id"]
    assert [request.request_id for request in ids] == [f"{session}/1", f"{session}/2"]
    assert {request.traceparent for request in ids} == {CALLER}
    for request in ids:
        assert [entry["event"] for entry in lines(request_id=request.request_id)] == ["generation.queued"]
    async with line(team.secret, headers=((b"x-request-id", b"theirs"),)) as socket:
        await socket.send(**frame)
        assert (await engine.say(SAID)).request_id == "theirs/1"
        await socket.read_until("response.completed")
    async with line(team.secret, headers=((b"x-request-id", b"x" * 120),)) as socket:
        await socket.send(**frame)
        request_id = (await engine.say(SAID)).request_id
        assert request_id.startswith("req_"), "no room is left in the audit log for the number behind it"
        await socket.read_until("response.completed")


async def test_a_socket_s_answer_is_one_span_from_its_frame_to_its_end(
    team: Team, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting() as collector:
        with keeping_traces(monkeypatch, collector.url):
            async with line(team.secret) as socket:
                await socket.send(type="response.create", input=HELLO["messages"])
                request = await engine.say(SAID)
                await socket.read_until("response.completed")
        found = collector.seen("response.create", "submit")
    assert found["response.create"].parent == ""
    assert found["submit"].parent == found["response.create"].id
    assert request.traceparent.split("-")[1] == found["response.create"].trace
    assert found["response.create"].attributes["octavo.request_id"] == request.request_id


async def test_pages_and_refusals_say_their_id_and_only_the_pattern_of_an_address(team: Team, lines: Lines) -> None:
    browser = AsyncClient()
    page = await browser.get("/accounts/login/", headers={"X-Request-Id": "a-page"})
    assert page.headers["x-request-id"] == "a-page"
    (said,) = lines(request_id="a-page")
    assert (said["event"], said["route"], said["status"]) == ("request.done", "/accounts/login/", 200)
    gone = await browser.get("/t/acme/shared/a-secret-token/", headers={"X-Request-Id": "a-secret"})
    assert gone.headers["x-request-id"] == "a-secret"
    assert "a-secret-token" not in json.dumps(lines(request_id="a-secret"))
    for watched in ("/healthz", "/metrics", "/metrics/targets"):
        await browser.get(watched, headers={"X-Request-Id": "watching"})
    assert lines(request_id="watching") == []


async def test_what_the_reaper_records_is_said_for_the_request_that_asked_for_it(
    http: httpx2.AsyncClient, engine: Engine, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.create_task(http.post("/v1/chat/completions", json=HELLO, headers={"X-Request-Id": "reaped"}))
    request = await engine.say(SAID)
    await asked
    monkeypatch.setattr("chatapp.chat.reaper.GRACE", timedelta(seconds=-1))
    await sync_to_async(reap)()
    assert (await Generation.objects.aget(pk=request.id)).state == State.FINISHED
    assert [entry["request_id"] for entry in lines(event="generation.recorded")] == ["reaped"]


class _Task:
    """A task as Celery hands it to the receivers of its signals; `headers`: those of its message."""

    name = "chatapp.tests.task"

    def __init__(self, headers: dict[str, Any], eager: bool = False) -> None:
        self.request = _Request(headers)
        self.request.is_eager = eager


class _Request(dict):  # type: ignore[type-arg]
    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def test_a_task_is_done_for_the_request_that_sent_it_and_the_next_one_is_not(lines: Lines) -> None:
    headers: dict[str, Any] = {}
    set_source("192.0.2.1", "req_1", None, CALLER)
    _hand_on(headers=headers)
    set_source(None, "")
    sent, ticked = _Task(headers), _Task({})
    _take_up(task_id="1", task=sent)
    assert (source().request_id, source().address, source().traceparent) == ("req_1", None, CALLER)
    _say_done(task=sent, state="SUCCESS")
    assert [(entry["event"], entry["task"]) for entry in lines(request_id="req_1")] == [("task.done", _Task.name)]
    _take_up(task_id="2", task=ticked)
    assert (source().request_id, source().traceparent) == ("task_2", "")
    _say_done(task=ticked, state="SUCCESS")
    assert len(lines(event="task.done")) == 1, "beat's come every few seconds"
    set_source("192.0.2.1", "req_3")
    _take_up(task_id="3", task=_Task({}, eager=True))
    assert source().request_id == "req_3", "what is done where it was sent stays in its own context"
    set_source(None, "")


def test_a_task_is_a_part_of_its_sender_s_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector, keeping_traces(monkeypatch, collector.url):
        headers: dict[str, Any] = {}
        with tracing.span("submit", parent=CALLER), on_behalf_of("req_1"):
            _hand_on(headers=headers)
        sent = _Task(headers)
        _take_up(task_id="1", task=sent)
        assert tracing.trace_id() == TRACE
        _say_done(task=sent, state="SUCCESS")
        assert tracing.trace_id() == "", "the thread's next task is not a part of it"
        found = collector.seen("submit", f"task {_Task.name}")
        set_source(None, "")
    assert found[f"task {_Task.name}"].parent == found["submit"].id
    assert found[f"task {_Task.name}"].attributes == {"octavo.request_id": "req_1"}
