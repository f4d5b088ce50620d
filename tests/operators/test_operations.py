"""The operators' dashboard: what it says of engines, queues, work, faults and health, and who may see it and drain."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from chatapp import ticks
from chatapp.accounts.models import User
from chatapp.audit.models import AuditEntry
from chatapp.chat.models import Generation
from chatapp.chat.services import ask
from chatapp.ids import first_id, new_id
from chatapp.limits.models import TenantLimits
from chatapp.limits.selectors import ensure, forget
from chatapp.operators import health, overview
from chatapp.scope import unscoped
from chatapp.streaming import finished, fleet
from chatapp.tenants.models import Tenant
from chatapp.usage.rollup import roll_up
from engine import protocol
from engine.protocol import WorkerDetails
from tests.chat.conftest import ScriptedWorker, Team
from tests.tenants.people import log_in
from tests.usage.conftest import use

pytestmark = pytest.mark.django_db

QUESTION = "What is the secret of the vault?"


@pytest.fixture(autouse=True)
def fresh(server: redis.Redis) -> Iterator[None]:
    """Nothing is kept from the test before; rows of all may be read, as in the administration."""
    overview.forget()
    forget()
    with unscoped("admin"):
        yield


@pytest.fixture
def operator() -> User:
    return User.objects.create_superuser("op@octavo.test", "a password")


def beat(server: redis.Redis, worker: str, model: str, *, beats_ago_s: float = 0, **fields: Any) -> None:
    """A heartbeat as a worker sends it, so long ago."""
    details = WorkerDetails(
        id=worker, model=model, context=99, block_size=16, num_blocks=100, pid=1, host="box", **fields
    )
    server.fcall(*protocol.heartbeat(worker, details))
    server.zincrby(protocol.WORKERS, -beats_ago_s * 1000, worker)


@pytest.fixture
def model(settings: Any) -> str:
    return str(settings.OCTAVO_MODEL_NAME)


def look() -> dict[str, Any]:
    """As a page gets it: through JSON, and not the one of a moment ago."""
    overview.forget()
    found: dict[str, Any] = json.loads(json.dumps(overview.look()))
    return found


def sign(found: dict[str, Any], name: str) -> dict[str, str]:
    return next(one for signs in found["health"].values() for one in signs if one["name"] == name)


# --- engines ------------------------------------------------------------------------------------------------------


def test_a_worker_is_shown_with_its_load_its_memory_and_its_heartbeat(server: redis.Redis, model: str) -> None:
    told = {
        "device": "cpu",
        "dtype": "bfloat16",
        "version": "1.2",
        "started_ms": 5000,
        "step_ms": 12.3456,
        "preemptions": 4,
    }
    beat(server, "w1", model, beats_ago_s=1.2, running=3, waiting=2, steps=70, **told)
    figures = {"used": 40, "cached": 25, "free": 35}
    server.xadd(protocol.line_key("w1"), {"line": json.dumps({"at_ms": 1, "number": 7, "figures": figures})})
    found = look()
    (one,) = found["engines"]["workers"]
    assert 1.2 <= one.pop("beat_s") < 2.5
    expected = {
        "id": "w1", "model": model, "state": "good", "says": "Takes requests", "host": "box", "device": "cpu",
        "dtype": "bfloat16", "steps": 70, "running": 3, "waiting": 2, "held": 0, "blocks": 100, "used": 40,
        "cached": 25, "tokens_a_block": 16, "can": "drain", "version": "1.2",
        "started_ms": 5000, "step_ms": 12.35, "preemptions": 4, "threads": 0,
    }  # fmt: skip
    assert {name: one[name] for name in expected} == expected
    (served,) = found["engines"]["models"]
    assert (served["state"], served["workers"], served["taking"], served["running"]) == ("good", 1, 1, 3)


def test_without_a_worker_the_model_is_broken_and_it_says_what_that_means(model: str) -> None:
    found = look()
    (served,) = found["engines"]["models"]
    assert (served["name"], served["state"]) == (model, "bad")
    assert found["findings"][0] == {
        "state": "bad", "text": f"{model}: No worker serves it: what is asked waits.", "where": "models",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "state", "says", "can"),
    [
        ({"beats_ago_s": 12}, "bad", "No heartbeat for 12 s", ""),
        ({"healthy": False}, "bad", "A step of its engine failed; its process ends", "drain"),
        ({"draining": True}, "warn", "Drained: idle, takes nothing new", "take"),
        ({"draining": True, "running": 2}, "warn", "Drains: 2 to finish, takes nothing new", "take"),
        ({"draining": True, "stopping": True}, "warn", "Ends once what runs is done", ""),
        ({}, "good", "Takes requests, idle", "drain"),
    ],
)
def test_what_a_worker_is_in_is_said_in_words(
    server: redis.Redis, model: str, fields: dict[str, Any], state: str, says: str, can: str
) -> None:
    beat(server, "w1", model, **fields)
    (one,) = look()["engines"]["workers"]
    assert (one["state"], one["says"], one["can"]) == (state, says, can)


def test_a_worker_that_holds_work_without_a_step_is_stalled(server: redis.Redis, model: str) -> None:
    beat(server, "w1", model)
    server.sadd(protocol.held_key("w1"), "g1")
    server.hset(protocol.worker_key("w1"), "stepped_ms", int(time.time() * 1000) - 45_000)
    (one,) = look()["engines"]["workers"]
    assert (one["state"], one["says"]) == ("bad", "Holds 1 and has made no step for 45 s")
    assert look()["engines"]["models"][0]["taking"] == 0


def test_a_wish_to_drain_counts_before_the_worker_has_heard_of_it(server: redis.Redis, model: str) -> None:
    beat(server, "w1", model)
    server.fcall(*protocol.drain("w1"))
    found = look()["engines"]
    assert found["workers"][0]["can"] == "take"
    assert (found["models"][0]["state"], found["models"][0]["workers"], found["models"][0]["taking"]) == ("bad", 1, 0)
    assert found["models"][0]["says"] == "No worker takes requests, as all drain: what is asked waits"


def test_what_waits_is_shown_by_team_and_model_with_the_age_of_the_oldest(
    server: redis.Redis, team: Team, strangers: Team, worker: ScriptedWorker, model: str
) -> None:
    # As it would be had it come 42 seconds ago: an entry's id is its time.
    key = protocol.requests_key(model, str(team.tenant.pk))
    server.xadd(key, {"id": "g1", "request": "{}"}, id=f"{int(time.time() * 1000) - 42_000}-0")
    server.xgroup_create(key, protocol.REQUEST_GROUP, "0")
    server.zadd(protocol.backlog_key(model), {str(team.tenant.pk): 0.0})
    for number in (2, 3, 4):
        request = protocol.Request(id=f"g{number}", tenant=str(strangers.tenant.pk), model=model, messages=[], salt="s")
        server.fcall(*protocol.enqueue(request))
    server.zrem(protocol.backlog_key(model), str(team.tenant.pk))
    assert worker.take().id == "g2", "what is being answered does not wait"
    server.zadd(protocol.backlog_key(model), {str(team.tenant.pk): 0.0})
    found = look()
    first, second = found["engines"]["queues"]
    assert (first["team"], first["queued"]) == ("Acme", 1)
    assert 41 < first["oldest_s"] < 60
    assert (second["team"], second["slug"], second["queued"], second["model"]) == ("Other", "other", 2, model)
    assert second["oldest_s"] < 20
    assert second["bytes"] > 100
    served = found["engines"]["models"][0]
    assert (served["queued"], served["teams"], served["state"]) == (3, 2, "warn")
    assert served["says"].startswith("Somebody has waited 4")


def test_a_thousand_teams_that_wait_are_counted_and_the_longest_waits_are_shown(
    server: redis.Redis, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "MOST_QUEUES", 30)
    for number in range(50):
        request = protocol.Request(id=f"g{number}", tenant=str(new_id()), model=model, messages=[], salt="s")
        server.fcall(*protocol.enqueue(request))
    found = look()["engines"]
    assert len(found["queues"]) == 20
    assert found["more_queues"] == 30
    assert found["queues"][0]["team"] == "A team that is gone"
    assert found["models"][0]["teams"] == 50


def test_when_redis_is_down_the_page_says_so_and_still_shows_the_database(settings: Any, team: Team) -> None:
    use(team.tenant, timezone.now())
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    found = look()
    assert found["engines"] is None
    assert found["findings"][0]["text"].startswith("Redis: does not answer.")
    assert sign(found, "Migrations")["state"] == "good"
    assert len(found["slow"]) == 1


def test_a_redis_that_is_silent_is_said_before_who_looks_has_gone(settings: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and never says a word
        settings.REDIS_URL = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        began = time.monotonic()
        found = look()
    assert time.monotonic() - began < 8, "the page waits ten seconds"
    assert found["engines"] is None
    assert found["findings"][0]["text"].startswith("Redis: does not answer.")


# --- work ---------------------------------------------------------------------------------------------------------


def test_teams_stand_by_what_was_computed_for_them_beside_what_their_weight_gives(team: Team, strangers: Team) -> None:
    now = timezone.now()
    for _ in range(3):
        use(team.tenant, now, prompt_tokens=100, cached_tokens=60, output_tokens=20)
    use(strangers.tenant, now, prompt_tokens=900, cached_tokens=900, output_tokens=60)
    use(strangers.tenant, now - timedelta(days=2), output_tokens=9999)
    ensure(team.tenant)
    TenantLimits.objects.filter(tenant=team.tenant).update(weight=3)
    forget()
    roll_up()
    first, second = look()["teams"]
    assert (first["name"], first["computed"], first["requests"]) == ("Acme", 180, 3)
    assert (first["prompt"], first["cached"], first["output"]) == (300, 180, 60)
    assert (first["share"], first["weight"], first["due"]) == (0.75, 3, 0.75)
    assert (second["name"], second["computed"], second["share"], second["due"]) == ("Other", 60, 0.25, 0.25)


def test_a_team_whose_first_question_is_open_is_there_already(team: Team) -> None:
    ask(access=team.member, text=QUESTION)
    (one,) = look()["teams"]
    assert (one["name"], one["unfinished"], one["computed"]) == ("Acme", 1, 0)


def test_the_cost_of_a_look_does_not_grow_with_the_teams(
    team: Team, django_assert_max_num_queries: Any, server: redis.Redis
) -> None:
    use(team.tenant, timezone.now())
    Tenant.objects.bulk_create(Tenant(slug=f"t{number}", name=f"T {number}") for number in range(600))
    for tenant in Tenant.objects.order_by("slug")[:30]:
        ensure(tenant)
        use(tenant, timezone.now())
    roll_up()
    forget()
    started = time.perf_counter()
    with django_assert_max_num_queries(20):
        found = look()
    assert time.perf_counter() - started < 3
    assert len(found["teams"]) == 12
    assert found["more_teams"] == 18
    with django_assert_max_num_queries(0):
        overview.look()["teams"]


def test_the_slowest_of_the_last_hour_come_first_with_their_phases(team: Team, operator: User) -> None:
    now = timezone.now()
    kept = ask(access=team.member, text=QUESTION)
    slow = {"queue_s": 4.0, "prefill_s": 1.0, "decode_s": 7.0}
    use(team.tenant, now - timedelta(seconds=13), generation_id=kept.pk, ended_at=now, timing=slow)
    use(team.tenant, now - timedelta(seconds=3), ended_at=now)
    old = now - timedelta(minutes=61)
    use(team.tenant, old, ended_at=now, generation_id=first_id(old))
    first, second = look()["slow"]
    assert (first["queue_s"], first["prefill_s"], first["decode_s"], first["rest_s"]) == (4.0, 1.0, 7.0, 1.0)
    assert (first["total_s"], first["team"], first["kind"]) == (13.0, "Acme", "chat")
    assert log_in(operator).get(first["link"]).status_code == 200
    assert second["link"] == "", "its generation has been deleted since"


def test_at_most_ten_slow_requests_are_shown_however_many_there_were(team: Team) -> None:
    now = timezone.now()
    for number in range(40):
        use(team.tenant, now - timedelta(seconds=number), ended_at=now)
    assert [round(one["total_s"]) for one in look()["slow"]] == list(range(39, 29, -1))


# --- faults -------------------------------------------------------------------------------------------------------


def test_answers_that_failed_are_counted_by_code_and_lead_to_their_list(team: Team, operator: User) -> None:
    now = timezone.now()
    for seconds in (50, 20):
        use(team.tenant, now, state="failed", error_code="engine_died", ended_at=now - timedelta(seconds=seconds))
    use(team.tenant, now, state="timeout", error_code="", ended_at=now - timedelta(seconds=30))
    for state in ("finished", "cancelled", "refused"):
        use(team.tenant, now, state=state)
    first, second = look()["faults"]
    assert (first["code"], first["count"], first["says"]) == ("engine_died", 2, "The worker went while it answered")
    assert 20 <= first["ago_s"] < 30
    assert (second["code"], second["count"]) == ("timeout", 1)
    clock = time.monotonic
    with pytest.MonkeyPatch.context() as later:
        later.setattr(overview, "SLOWLY_S", 120.0)
        later.setattr(time, "monotonic", lambda: clock() + 60)
        aged = overview.look()["faults"][0]["ago_s"]
    assert 80 <= aged < 140, "it is not looked up again, and grows older nevertheless"
    died, other = (ask(access=access, text=QUESTION) for access in (team.member, team.owner))
    Generation.objects.filter(pk=died.pk).update(state="failed", error_code="engine_died")
    Generation.objects.filter(pk=other.pk).update(state="failed", error_code="engine_fault")
    page = log_in(operator).get(first["link"]).content.decode()
    assert str(died.pk) in page
    assert str(other.pk) not in page


def test_a_worker_that_vanished_a_task_that_broke_and_a_record_set_aside_are_faults(
    server: redis.Redis, model: str
) -> None:
    beat(server, "killed", model, beats_ago_s=61)
    beat(server, "alive", model)
    server.fcall(*protocol.orphans("alive", model))
    ticks.note_failure("chatapp.data.tasks.tend", ValueError("a secret"))
    ticks.note_failure("chatapp.data.tasks.tend", ValueError("another"))
    server.xadd(protocol.FINISHED, {"id": "g1", "status": "finished", "tenant": "t", "model": model})
    (entry,) = finished.read("c", block_s=0.01)
    finished.set_aside(entry, "DataError")
    found = look()
    by_kind = {one["kind"]: one for one in found["faults"]}
    assert by_kind["workers"]["code"] == "killed"
    assert by_kind["workers"]["says"] == f"A worker of {model} went without a word, on box"
    assert 60 < by_kind["workers"]["ago_s"] < 70
    assert (by_kind["tasks"]["code"], by_kind["tasks"]["count"]) == ("data.tasks.tend", 2)
    assert by_kind["tasks"]["says"] == "Failed with ValueError: see celery.log"
    assert (by_kind["records"]["code"], by_kind["records"]["count"]) == ("DataError", 1)
    assert sign(found, "Set aside")["state"] == "bad"
    assert "secret" not in json.dumps(found)


# --- health -------------------------------------------------------------------------------------------------------


def test_redis_is_judged_by_what_would_lose_answers(server: redis.Redis) -> None:
    before = server.config_get("maxmemory-policy")["maxmemory-policy"]
    try:
        server.config_set("maxmemory-policy", "allkeys-lru")
        found = sign(look(), "Eviction")
        assert (found["state"], found["value"]) == ("bad", "allkeys-lru")
        server.config_set("maxmemory-policy", "noeviction")
        assert sign(look(), "Eviction")["state"] == "good"
    finally:
        server.config_set("maxmemory-policy", before)
    assert " ms" in sign(look(), "Answers in")["value"]
    assert "up" in sign(look(), "Redis")["value"]


def test_a_full_redis_is_said_before_it_refuses(server: redis.Redis) -> None:
    used = int(server.info("memory")["used_memory"])
    try:
        server.config_set("maxmemory", int(used * 1.2))
        assert sign(look(), "Memory")["state"] in ("warn", "bad")
        assert sign(look(), "Memory")["says"] == "From 85% on, new questions are refused."
        server.config_set("maxmemory", int(used * 2))
        assert (sign(look(), "Memory")["state"], sign(look(), "Memory")["says"]) == ("good", "")
    finally:
        server.config_set("maxmemory", 0)


def test_a_redis_without_a_bound_is_said(server: redis.Redis) -> None:
    found = sign(look(), "Memory")
    assert (found["state"], found["says"].rpartition(": ")[2]) == ("warn", "set maxmemory.")


def test_a_recorder_that_is_behind_or_silent_is_said(server: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sign(look(), "Recorder") == {
        "name": "Recorder",
        "value": "nothing to record yet",
        "state": "good",
        "says": "",
    }
    server.xadd(protocol.FINISHED, {"id": "g1"}, id=f"{int(time.time() * 1000) - 30_500}-0")
    found = look()
    assert sign(found, "Recorder")["state"] == "bad", "what is to be recorded and nobody ever asked for"
    assert sign(found, "Yet to record")["value"] == "1, the oldest 30 s old"
    assert sign(found, "Yet to record")["state"] == "warn"
    server.xgroup_create(protocol.FINISHED, protocol.RECORDER_GROUP, "$")
    finished.read("c", block_s=0.01)
    assert sign(look(), "Recorder")["state"] == "good"
    monkeypatch.setattr(health, "LATE_RECORDER_S", -1)
    assert sign(look(), "Recorder")["state"] == "bad"


def test_beat_and_the_worker_of_background_tasks_are_known_by_their_signs(server: redis.Redis, settings: Any) -> None:
    ticks._noted.clear()
    assert sign(look(), "Beat")["value"] == "no sign of it yet"
    ticks.note(ticks.BEAT)
    ticks.note(ticks.BEAT)
    assert server.xlen(ticks.BEAT) == 1
    assert sign(look(), "Beat")["value"] == "sent a task 0 s ago"
    server.delete(ticks.BEAT)
    ticks.note(ticks.BEAT)
    assert server.xlen(ticks.BEAT) == 0, "once a second at most"
    server.xadd(ticks.WORKER, {"at": 1}, id=f"{int(time.time() * 1000) - 40_000}-0")
    found = sign(look(), "Celery worker")
    assert (found["value"], found["state"]) == ("ended a task 40 s ago", "bad")
    broker = redis.Redis.from_url(settings.REDIS_URL, db=settings.OCTAVO_CELERY_DATABASE)
    broker.rpush("celery", *["{}"] * 250)
    assert sign(look(), "Tasks that wait") == {
        "name": "Tasks that wait", "value": "250", "state": "warn",
        "says": "The worker is behind: give it more threads.",
    }  # fmt: skip
    broker.delete("celery")
    broker.close()


def test_no_task_fails_because_a_sign_of_it_cannot_be_left(settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    ticks._noted.clear()
    ticks.note(ticks.WORKER)
    ticks.note_failure("a.task", None)


def test_a_migration_that_is_not_applied_is_said() -> None:
    assert sign(look(), "Migrations") == {"name": "Migrations", "value": "all applied", "state": "good", "says": ""}
    MigrationRecorder(connection).record_unapplied("sessions", "0001_initial")
    found = sign(look(), "Migrations")
    assert (found["value"], found["state"]) == ("1 not applied", "bad")


def test_the_database_says_what_it_is_how_large_and_how_quick() -> None:
    found = look()
    names = [one["name"] for one in found["health"]["database"]]
    assert names[:3] == ["Database", "Answers in", "Size"]
    assert {"Write-ahead log", "Migrations", "Disk of the data folder"} <= set(names)
    assert found["health"]["database"][0]["value"].startswith(("SQLite 3.", "PostgreSQL 1"))


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (89, "89 s"), (120, "2 min"), (7200, "2 h"), (200_000, "2 days")]
)
def test_times_are_said_in_the_unit_that_fits(seconds: float, words: str) -> None:
    assert health.duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KB"), (20 * 1024**2, "20 MB"), (3 * 1024**4, "3.0 TB")],
)
def test_sizes_are_said_in_the_unit_that_fits(count: int, words: str) -> None:
    assert health.size(count) == words


# --- who sees it, and draining ------------------------------------------------------------------------------------


def test_the_first_page_brings_the_figures_and_the_same_come_as_json(
    operator: User, team: Team, server: redis.Redis, model: str
) -> None:
    beat(server, "w1", model)
    ask(access=team.member, text=QUESTION)
    client = log_in(operator)
    page = client.get(reverse("admin:index")).content.decode()
    start = page.index('<script id="figures" type="application/json">') + 45
    brought = json.loads(page[start : page.index("</script>", start)])
    asked = client.get(reverse("operations-figures"))
    assert asked["Cache-Control"].startswith("max-age=0")
    assert asked.json().keys() == brought.keys()
    assert [one["id"] for one in brought["engines"]["workers"]] == ["w1"]
    for secret in (QUESTION, "member@acme.test", team.tenant.salt):
        assert secret not in page
        assert secret not in asked.content.decode()


def test_who_is_no_operator_gets_no_figures_and_drains_nothing(team: Team, server: redis.Redis, model: str) -> None:
    """P11."""
    beat(server, "w1", model)
    staff = log_in(User.objects.create_user("staff@octavo.test", "a password", is_staff=True))
    page = staff.get(reverse("admin:index"))
    assert page.status_code == 200
    assert b"w1" not in page.content, "staff have their lists there, and no more"
    paths = [reverse("operations-figures"), *(reverse(name, args=["w1"]) for name in ("worker-drain", "worker-take"))]
    for client, status in ((staff, 403), (log_in(team.owner), 302), (Client(), 302)):
        for path in paths:
            assert client.post(path).status_code in (status, 405), path
            assert client.get(path).status_code in (status, 405), path
    assert not server.hexists(protocol.worker_key("w1"), protocol.DRAIN)
    assert not AuditEntry.objects.filter(action__startswith="worker.").exists()


def drains(server: redis.Redis, worker: str) -> bool:
    return bool(server.hexists(protocol.worker_key(worker), protocol.DRAIN))


def test_of_two_workers_one_is_drained_by_a_press_and_taken_back_and_both_stand_in_the_log(
    operator: User, server: redis.Redis, model: str
) -> None:
    beat(server, "host.example-1-aa", model)
    beat(server, "w2", model)
    client = log_in(operator)
    reply = client.post(reverse("worker-drain", args=["host.example-1-aa"]), follow=True)
    assert reply.redirect_chain == [("/admin/", 302)]
    assert b"host.example-1-aa takes nothing new." in reply.content
    assert drains(server, "host.example-1-aa")
    assert not drains(server, "w2")
    client.post(reverse("worker-drain", args=["host.example-1-aa"]))  # in another tab, which shows an older state
    reply = client.post(reverse("worker-take", args=["host.example-1-aa"]), follow=True)
    assert b"host.example-1-aa takes requests again." in reply.content
    assert not drains(server, "host.example-1-aa")
    entries = AuditEntry.objects.filter(action__startswith="worker.").order_by("at")
    said = [(one.action, one.object_name, one.details, one.actor_name, one.tenant_id) for one in entries]
    assert said == [
        ("worker.drained", "host.example-1-aa", {"model": model}, "op@octavo.test", None),
        ("worker.taken_back", "host.example-1-aa", {"model": model}, "op@octavo.test", None),
    ]


def test_the_last_worker_of_a_model_is_drained_only_by_who_has_read_what_that_means(
    operator: User, server: redis.Redis, model: str
) -> None:
    beat(server, "w1", model)
    beat(server, "w2", model, draining=True)
    client, path = log_in(operator), reverse("worker-drain", args=["w1"])
    asked = client.post(path, follow=True)
    assert asked.redirect_chain == [(f"{path}?sure", 302)]
    assert not drains(server, "w1"), "a press alone does not do it"
    text = asked.content.decode()
    assert f"the last worker that takes requests for {model}" in text
    assert "ends as timed out after 10 min" in text
    assert "/readyz says unavailable" in text
    assert client.post(f"{path}?sure").status_code == 302
    assert drains(server, "w1")


def test_that_another_model_is_still_served_is_not_hidden_by_the_warning(
    operator: User, server: redis.Redis, model: str
) -> None:
    beat(server, "w1", model)
    beat(server, "o1", "other")
    text = log_in(operator).get(f"{reverse('worker-drain', args=['w1'])}?sure").content.decode()
    assert f"the last worker that takes requests for {model}" in text
    assert "/readyz" not in text
    assert not drains(server, "w1"), "to look at the question is no answer"


def test_a_worker_that_has_gone_meanwhile_is_said_and_nothing_is_noted(
    operator: User, server: redis.Redis, model: str
) -> None:
    beat(server, "w1", model, beats_ago_s=9)
    client = log_in(operator)
    for name in ("worker-drain", "worker-take"):
        for worker in ("w1", "w9", "ü\N{ZERO WIDTH SPACE}ö"):
            reply = client.post(reverse(name, args=[worker]), follow=True)
            assert b"There is no such worker any more." in reply.content
    assert client.get(reverse("worker-drain", args=["w9"])).status_code == 404
    assert not AuditEntry.objects.filter(action__startswith="worker.").exists()


def test_without_redis_nothing_is_drained_and_nothing_noted(
    operator: User, server: redis.Redis, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat(server, "w1", model)
    beat(server, "w2", model)

    def lost(*args: Any, **given: Any) -> None:
        raise redis.exceptions.ConnectionError

    monkeypatch.setattr("chatapp.streaming.draining.connection.call", lost)
    reply = log_in(operator).post(reverse("worker-drain", args=["w1"]), follow=True)
    assert b"no worker can be told anything" in reply.content
    assert not AuditEntry.objects.filter(action__startswith="worker.").exists()
