"""What the web's /metrics says: of HTTP, websockets, Redis, queues, workers, the recorder and Celery."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.db import DatabaseError
from django.test import AsyncClient, Client
from django.utils import timezone

from chatapp import ticks
from chatapp.api.frames import Pong
from chatapp.api.outbox import Outbox
from chatapp.chat import reaper, recorder, services
from chatapp.chat.models import Generation
from chatapp.chat.tasks import reap
from chatapp.metrics import figures, sockets, state
from chatapp.origins import from_our_pages
from chatapp.streaming import finished
from engine import protocol
from engine.protocol import Part, WorkerDetails
from tests.chat.conftest import ScriptedWorker, Team
from tests.metrics.conftest import Scraper

pytestmark = pytest.mark.django_db
WORDS = "The vault opens at nine."


def test_requests_are_counted_by_route_and_never_by_what_they_name(
    scraper: Scraper, client: Client, team: Team
) -> None:
    assert team.owner.user is not None
    client.force_login(team.owner.user)
    lists, one = "api/t/<slug>/conversations", "api/t/<slug>/conversations/<conversation_id>"
    assert client.get("/api/t/acme/conversations").status_code == 200
    for slug in ("acme", "nobody", "WORDS"):
        reply = client.get(f"/api/t/{slug}/conversations/0b0e7ac8-0000-7000-8000-000000000001")
        assert reply.status_code == 404
    assert client.get("/no/such/page-at-all").status_code == 404
    assert client.generic("BREW", "/healthz").status_code == 405
    text = scraper.text()
    routes = {line.partition('route="')[2].partition('"')[0] for line in text.splitlines() if "route=" in line}
    assert {lists, one, "none"} <= routes
    assert scraper.grown("octavo_http_requests_total{method=other,route=none,status=405}") == 1
    assert scraper.grown("octavo_http_requests_total{method=GET,route=none,status=404}") == 1
    assert not [word for word in ("acme", "nobody", "WORDS", "0b0e7ac8", "page-at-all", "BREW") if word in text]


def test_async_requests_are_counted_as_others_are(scraper: Scraper) -> None:
    assert asyncio.run(AsyncClient().get("/healthz")).status_code == 200
    assert scraper.grown("octavo_http_requests_total{method=GET,route=healthz,status=200}") == 1
    assert scraper.grown("octavo_http_request_duration_seconds_count{route=healthz}") == 1


def test_nothing_of_a_team_is_in_a_scrape(
    scraper: Scraper, team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    generation = services.ask(access=team.member, text=WORDS)
    worker.answer("The password is swordfish.")
    assert record() == 1
    services.ask(access=team.member, text=WORDS)
    text = scraper.text()
    assert "octavo_recorded_total" in text
    tenant, person = team.tenant, team.member.user
    assert person is not None
    hidden = [WORDS, "vault", "swordfish", "acme", str(tenant.pk), tenant.pk.hex, str(generation.pk), person.email]
    assert not [word for word in hidden if word in text]


def test_queues_and_workers_are_as_they_are(
    scraper: Scraper, team: Team, strangers: Team, worker: ScriptedWorker, settings: Any, monkeypatch: Any
) -> None:
    model = settings.OCTAVO_MODEL_NAME
    monkeypatch.setattr(figures, "_program", "web")  # whatever another test has made of this process
    assert scraper.read()[f"octavo_workers{{model_name={model},state=healthy}}"] == 0
    for access in (team.member, team.member, strangers.member):
        services.ask(access=access, text=WORDS)
    worker.beat()
    for name, fields in (("w2", {"healthy": False}), ("w3", {"draining": True})):
        details = WorkerDetails(id=name, model=model, context=99, block_size=16, num_blocks=9, pid=1, **fields)
        worker.redis.fcall(*protocol.heartbeat(name, details))
    seen = scraper.read()
    assert seen[f"octavo_queue_depth{{model_name={model}}}"] == 3
    assert seen[f"octavo_queue_tenants{{model_name={model}}}"] == 2
    assert 0 <= seen[f"octavo_queue_oldest_seconds{{model_name={model}}}"] < 60
    for kind, count in (("healthy", 1), ("unhealthy", 1), ("draining", 1), ("silent", 0)):
        assert seen[f"octavo_workers{{model_name={model},state={kind}}}"] == count, kind
    assert scraper.grown("octavo_submissions_total{outcome=accepted}") == 3
    assert scraper.grown("octavo_redis_round_trip_seconds_count{program=web}") >= 3
    worker.take()
    assert scraper.read()[f"octavo_queue_depth{{model_name={model}}}"] == 2
    worker.redis.zincrby(protocol.WORKERS, -4000, worker.name)
    seen = scraper.read()
    assert [seen[f"octavo_workers{{model_name={model},state={kind}}}"] for kind in ("healthy", "silent")] == [0, 1]


def test_the_recorder_says_what_it_wrote_and_how_late(
    scraper: Scraper, team: Team, worker: ScriptedWorker, record: Callable[[], int], settings: Any
) -> None:
    services.ask(access=team.member, text=WORDS)
    worker.answer("Hello.")
    waiting = scraper.read()
    assert waiting["octavo_recorder_backlog"] == 1
    assert waiting["octavo_recorder_oldest_seconds"] >= 0
    assert record() == 1
    assert scraper.grown(f"octavo_recorded_total{{model_name={settings.OCTAVO_MODEL_NAME},status=finished}}") == 1
    assert scraper.grown("octavo_recorder_lag_seconds_count") == 1
    assert 0 < scraper.grown("octavo_recorder_lag_seconds_sum") < 60
    assert scraper.grown("octavo_record_duration_seconds_count") == 1
    assert scraper.read()["octavo_recorder_backlog"] == 0


def test_an_answer_that_no_worker_could_end_is_counted_by_whoever_ends_it(
    scraper: Scraper, team: Team, server: redis.Redis, record: Callable[[], int], settings: Any
) -> None:
    services.ask(access=team.member, text=WORDS)
    server.flushdb()
    Generation.objects.update(created_at=timezone.now() - timedelta(seconds=10))
    for _ in range(3):
        reaper.reap()
    assert record() == 0
    lost = f"octavo_recorded_total{{model_name={settings.OCTAVO_MODEL_NAME},status=interrupted}}"
    assert scraper.grown(lost) == 1


def test_what_cannot_be_recorded_is_counted_as_such(
    scraper: Scraper, team: Team, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    services.ask(access=team.member, text=WORDS)
    worker.answer("Hello.")

    def broken(generation_id: str) -> bool:
        raise ValueError("not today")

    monkeypatch.setattr(recorder, "record", broken)
    monkeypatch.setattr(recorder, "MOST_ATTEMPTS", 1)
    entries = finished.read("tests", block_s=0.0)
    recorder.Recorder(lambda: False).handle(entries[0])
    assert scraper.grown("octavo_record_failures_total") == scraper.grown("octavo_recorder_set_aside_total") == 1
    assert scraper.grown(f"octavo_recorded_total{{model_name={settings.OCTAVO_MODEL_NAME},status=finished}}") == 0
    assert scraper.read()["octavo_recorder_aside"] == 1
    assert scraper.read()["octavo_dead_letters"] == 0


def test_tasks_are_counted_by_name_and_end(scraper: Scraper, monkeypatch: pytest.MonkeyPatch) -> None:
    reap.delay()
    assert scraper.grown("octavo_celery_tasks_total{state=success,task=chat.tasks.reap}") == 1
    at = scraper.read()["octavo_celery_task_last_success_timestamp_seconds{task=chat.tasks.reap}"]
    assert abs(at - time.time()) < 60
    assert scraper.grown("octavo_celery_task_duration_seconds_count{task=chat.tasks.reap}") == 1

    def broken() -> None:
        raise ValueError("not today")

    monkeypatch.setattr("chatapp.chat.tasks.reaper.reap", broken)
    reap.apply()
    assert scraper.grown("octavo_celery_tasks_total{state=failure,task=chat.tasks.reap}") == 1
    seen = scraper.read()
    assert seen["octavo_celery_task_last_success_timestamp_seconds{task=chat.tasks.reap}"] == at


def test_celery_shows_signs_of_life_once_there_were_some(scraper: Scraper, server: redis.Redis) -> None:
    ages = ("octavo_celery_beat_age_seconds", "octavo_celery_worker_age_seconds")
    server.delete(ticks.BEAT, ticks.WORKER)
    assert not [age for age in ages if age in scraper.read()], "no alert without a sign to go by"
    server.xadd(ticks.BEAT, {"at": 1}, id=f"{int(1000 * (time.time() - 90))}-0")
    server.xadd(ticks.WORKER, {"at": 1})
    seen = scraper.read()
    assert 89 < seen[ages[0]] < 120
    assert 0 <= seen[ages[1]] < 30


def test_redis_and_database_are_looked_at(scraper: Scraper, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = scraper.read()
    assert seen["octavo_redis_up"] == seen["octavo_database_up"] == seen["octavo_redis_persistent"] == 1
    assert seen["octavo_redis_memory_used_bytes"] > 0
    settings.REDIS_URL = "unix:///nowhere/valkey.sock"

    class Away:
        def cursor(self) -> Any:
            raise DatabaseError("away")

    monkeypatch.setattr(state, "database", Away())
    seen = scraper.read()
    assert seen["octavo_redis_up"] == seen["octavo_database_up"] == 0
    assert seen[f"octavo_workers{{model_name={settings.OCTAVO_MODEL_NAME},state=healthy}}"] == 0, "who could take any?"
    assert "octavo_redis_memory_used_bytes" not in seen


def test_a_redis_that_takes_connections_and_says_nothing_is_down_before_prometheus_gives_up(
    scraper: Scraper, settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert state.ANSWERS_WITHIN_S < 10
    monkeypatch.setattr(state, "ANSWERS_WITHIN_S", 0.3)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        settings.REDIS_URL = f"unix://{tmp_path}/s"
        began = time.monotonic()
        seen = scraper.read()
        assert time.monotonic() - began < 3
    assert seen["octavo_redis_up"] == 0
    assert seen["octavo_database_up"] == 1


# --- websockets ---------------------------------------------------------------------------------------------------


async def open_and_end(path: str, code: int | None, *, during: Callable[[], None], scope: str = "websocket") -> None:
    """A socket at this address that an application accepts, and that ends with this code."""
    told = [{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": code}]

    async def receive() -> Any:
        return told.pop(0)

    async def send(message: Any) -> None:
        return None

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        during()
        await receive()

    await sockets.counted(application)({"type": scope, "path": path}, receive, send)
    sockets._watching.pop(asyncio.get_running_loop()).cancel()


@pytest.mark.parametrize(
    ("path", "code", "socket", "said"),
    [
        ("/ws/ui", 1001, "ui", "1001"),
        ("/ws/v1", 4401, "api", "4401"),
        ("/ws/v1", 4999, "api", "other"),
        ("/ws/ops/occupancy", None, "operators", "1005"),
        ("/ws/t/acme/memory", 1000, "memory", "1000"),
        ("/ws/t/acme/else", 1000, "other", "1000"),
        ("/ws/ui/../acme", 1000, "other", "1000"),
    ],
)
def test_sockets_are_counted_by_their_address_and_their_end(
    scraper: Scraper, path: str, code: int | None, socket: str, said: str
) -> None:
    open_now = f"octavo_websocket_connections{{socket={socket}}}"
    seen = []
    asyncio.run(open_and_end(path, code, during=lambda: seen.append(figure(socket))))
    assert seen == [1.0 + scraper._before.get(open_now, 0.0)]
    assert scraper.grown(open_now) == 0
    assert scraper.grown(f"octavo_websocket_connections_opened_total{{socket={socket}}}") == 1
    assert scraper.grown(f"octavo_websocket_connections_closed_total{{code={said},socket={socket}}}") == 1
    assert "acme" not in scraper.text()


def test_a_socket_that_another_site_s_page_opened_is_counted_with_the_code_that_it_was_told(scraper: Scraper) -> None:
    """As 1006 it would look like a network that loses connections."""
    coming: list[dict[str, Any]] = [
        {"type": "websocket.connect"},
        {"type": "websocket.receive", "text": "{}"},
        {"type": "websocket.disconnect", "code": 4403},
    ]

    async def receive() -> Any:
        return coming.pop(0)

    async def send(message: Any) -> None:
        return None

    async def never(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError

    async def opened() -> None:
        scope = {"type": "websocket", "path": "/ws/ui", "headers": [(b"host", b"a"), (b"origin", b"http://b")]}
        await sockets.counted(from_our_pages(never))(scope, receive, send)
        sockets._watching.pop(asyncio.get_running_loop()).cancel()

    asyncio.run(opened())
    assert scraper.grown("octavo_websocket_connections_closed_total{code=4403,socket=ui}") == 1


def figure(socket: str) -> float:
    from chatapp.metrics import figures

    return float(figures.sockets_open.labels(socket)._value.get())


def test_a_socket_that_does_not_take_its_frames_is_seen(scraper: Scraper) -> None:
    with asyncio.Runner() as runner:
        taking = asyncio.Event()

        async def send(text: str) -> None:
            await taking.wait()

        async def close(code: int) -> None:
            return None

        async def begin() -> asyncio.Task[None]:
            sending = asyncio.create_task(outbox.run())
            outbox.put(Pong())
            outbox.put_delta("r", 1, 1, [Part(text="four")])
            await asyncio.sleep(0)
            return sending

        async def end() -> None:
            taking.set()
            outbox.close(1000)
            await sending

        outbox = Outbox(send, close)
        sockets.outboxes.add(outbox)
        sending = runner.run(begin())
        assert outbox.lag(time.monotonic() + 5) == pytest.approx(5, abs=0.5)
        outbox._since -= 3
        sockets.look()
        stuck = scraper.read()
        runner.run(end())
        sockets.look()
        free = scraper.read()

    assert stuck["octavo_websocket_outbox_lag_seconds"] >= 3
    assert stuck["octavo_websocket_outbox_behind"] == 1
    assert stuck["octavo_websocket_outbox_chars"] == 4
    assert free["octavo_websocket_outbox_lag_seconds"] == free["octavo_websocket_outbox_behind"] == 0
    assert free["octavo_websocket_outbox_chars"] == 0


def test_a_loop_that_is_held_up_is_seen(scraper: Scraper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "LOOK_EVERY_S", 0.01)

    async def run() -> None:
        watching = asyncio.create_task(sockets.watch())
        await asyncio.sleep(0)
        time.sleep(0.3)  # noqa: ASYNC251  what must not be done, for once
        await asyncio.sleep(0.02)
        watching.cancel()

    asyncio.run(run())
    late = scraper.grown("octavo_event_loop_lag_seconds_count") - scraper.grown(
        "octavo_event_loop_lag_seconds_bucket{le=0.25}"
    )
    assert late >= 1


async def test_what_ended_sockets_leave_behind_is_freed_before_much_of_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Left:
        """Refers to itself, as a socket does to what refers to it."""

        def __init__(self) -> None:
            self.itself = self

    monkeypatch.setattr(sockets, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(sockets, "COLLECT_EVERY_S", 0.05)
    gc.disable()
    watching = asyncio.create_task(sockets.watch())
    try:
        left = weakref.ref(Left())
        assert left() is not None
        async with asyncio.timeout(5):
            while left() is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
        watching.cancel()
