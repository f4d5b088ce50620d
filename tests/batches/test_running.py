"""A batch is answered in full and once, behind the team's chats, whatever dies, and ends within its day."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis
import time_machine
from django.utils import timezone

from chatapp.batches import running, services
from chatapp.batches.models import Batch, BatchAnswer, BatchItem, ItemState, Status
from chatapp.chat import reaper
from chatapp.chat.models import Generation, State
from chatapp.chat.services import ask
from chatapp.errors import Conflict
from chatapp.files import services as files
from chatapp.files.models import StoredFile
from chatapp.limits.models import Meter, TenantLimits
from chatapp.limits.selectors import ensure, forget, month_of
from chatapp.tenants import keys
from chatapp.tenants.models import ApiKey
from chatapp.webhooks.services import create as create_webhook
from engine import protocol
from engine.protocol import Cancelled, Delta, Finished, Interrupted, Part, Refused, Started, Tell, Usage
from tests.batches.conftest import file_of, go, line
from tests.chat.conftest import ScriptedWorker, Team

Begin = Callable[..., Batch]
Record = Callable[[], int]


def test_a_batch_is_answered_line_by_line_in_the_shapes_of_the_address(begun: Begin, finish: Begin, team: Team) -> None:
    webhook, _ = create_webhook(access=team.owner, url="https://8.8.8.8/", events=["batch.completed"])
    batch = finish(begun(line("a"), line("b", "Bye"), metadata={"job": "1"}))
    assert batch.status == Status.COMPLETED
    assert (batch.total, batch.completed, batch.failed, batch.error_file) == (2, 2, 0, None)
    first, second = file_of(batch.output_file)
    assert (first["custom_id"], second["custom_id"], first["error"]) == ("a", "b", None)
    assert first["id"].startswith("batch_req_")
    assert first["response"]["status_code"] == 200
    body = first["response"]["body"]
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["content"] == "Hello"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert body["id"] == f"chatcmpl-{first['response']['request_id']}"
    output = StoredFile.objects.get(pk=batch.output_file)
    assert (output.purpose, output.name) == ("batch_output", f"{batch.public_id}_output.jsonl")
    assert not BatchItem.objects.exists(), "what it was made of is gone"
    assert not BatchAnswer.objects.exists()
    (delivery,) = webhook.deliveries.all()
    assert delivery.payload["data"]["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    assert delivery.payload["data"]["output_file_id"] == output.public_id
    assert "Hello" not in json.dumps(delivery.payload)


def test_completions_with_several_prompts_and_choices_are_one_line(
    begun: Begin, worker: ScriptedWorker, record: Record
) -> None:
    body = {"prompt": ["One", "Two"], "n": 2, "max_tokens": 4, "logprobs": 1}
    asked = {"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": body}
    batch = go(begun(asked, endpoint="/v1/completions"))
    for _ in range(2):
        taken = worker.take()
        prompt = protocol.decode_request(taken.payload).text
        logprob = protocol.TokenLogprob(token="t", logprob=-0.5, top=[protocol.Logprob(token="t", logprob=-0.5)])
        parts = [
            Part(index=index, text=f"{prompt} {index}", token_ids=[1], logprobs=[logprob], finish_reason="length")
            for index in range(2)
        ]
        told = [Started(seq=0, prompt_tokens=2, cached_tokens=0), Delta(seq=1, parts=parts)]
        worker._call(protocol.tell(worker.name, [Tell(taken.id, taken.attempt, event, 1.0) for event in told]))
        used = Usage(prompt_tokens=2, cached_tokens=0, completion_tokens=2)
        worker.end(taken, Finished(seq=2, finish_reason="length", usage=used))
        record()
    go(batch)
    assert batch.status == Status.COMPLETED
    (found,) = file_of(batch.output_file)
    choices = found["response"]["body"]["choices"]
    assert [choice["text"] for choice in choices] == ["One 0", "One 1", "Two 0", "Two 1"]
    assert choices[0]["logprobs"]["token_logprobs"] == [-0.5]
    assert found["response"]["body"]["usage"]["total_tokens"] == 8


def test_nothing_is_begun_while_something_of_the_team_waits(
    begun: Begin, team: Team, worker: ScriptedWorker, record: Record
) -> None:
    question = ask(access=team.member, text="I am in a hurry")
    batch = go(begun(line("a"), line("b")))
    assert batch.status == Status.IN_PROGRESS
    assert not BatchAnswer.objects.exists()
    assert worker.take().id == str(question.pk)
    go(batch)
    assert BatchAnswer.objects.count() == 1, "and the next only when this one does not wait any more"
    worker.take()
    go(batch)
    assert BatchAnswer.objects.count() == 2


def test_a_few_are_answered_at_once_of_all_a_teams_batches_together(
    begun: Begin, worker: ScriptedWorker, settings: Any
) -> None:
    settings.OCTAVO_BATCH_AT_ONCE = 2
    first, second = begun(*(line(str(n)) for n in range(5))), begun(line("x"))
    for _ in range(4):
        for batch in (first, second):
            go(batch)
            if BatchAnswer.objects.count() > len(worker.redis.smembers(protocol.held_key(worker.name))):
                worker.take()
    assert BatchAnswer.objects.count() == 2


def test_half_of_what_a_team_may_have_at_once_stays_free_for_chats(
    begun: Begin, team: Team, worker: ScriptedWorker, settings: Any
) -> None:
    settings.OCTAVO_BATCH_AT_ONCE = 10
    ensure(team.tenant)
    TenantLimits.objects.filter(tenant=team.tenant).update(concurrent_answers=4)
    forget()
    batch = begun(*(line(str(n)) for n in range(9)))
    for expected in (1, 2, 2, 2):
        go(batch)
        assert BatchAnswer.objects.count() == expected
        if expected > len(worker.redis.smembers(protocol.held_key(worker.name))):
            worker.take()
    assert ask(access=team.member, text="Is there room?").unfinished


def test_it_has_all_of_its_day_and_no_lease(begun: Begin, worker: ScriptedWorker) -> None:
    batch = go(begun(line("a")))
    request = protocol.decode_request(worker.take().payload)
    assert not request.leased
    assert abs(request.deadline_ms / 1000 - batch.expires_at.timestamp()) < 1


# --- what dies ----------------------------------------------------------------------------------------------------


def test_a_worker_that_is_killed_at_its_check_leaves_a_file_that_is_read_again(
    begun: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = begun(*(line(str(n)) for n in range(7)))
    monkeypatch.setattr(running, "ROWS", 3)
    real = running._renew
    monkeypatch.setattr(running, "_renew", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        go(batch)
    assert batch.items.count() == 3
    monkeypatch.setattr(running, "_renew", real)
    go(batch)
    assert (batch.status, batch.items.count(), batch.total) == (Status.IN_PROGRESS, 7, 7)


def test_a_killed_workers_lease_ends_and_the_beat_finds_what_has_something_to_do(
    begun: Begin, handed: list[str], finish: Begin
) -> None:
    batch = begun(line("a"))
    Batch.objects.filter(pk=batch.pk).update(lease_until=timezone.now() + running.LEASE)
    assert go(batch).status == Status.VALIDATING
    assert running.tend() == 0
    with time_machine.travel(timezone.now() + running.LEASE + timedelta(seconds=1)):
        assert running.tend() == 1
        assert handed == [str(batch.pk)]
        finish(batch)
    assert running.tend() == 0


def test_an_item_that_was_accepted_and_never_queued_is_answered_once(
    begun: Begin, finish: Begin, monkeypatch: pytest.MonkeyPatch, server: redis.Redis, settings: Any
) -> None:
    """Killed between the database and Redis: the reaper queues it, and nobody begins it again."""
    from chatapp.chat import queueing

    def away(*args: Any, **kwargs: Any) -> Any:
        raise redis.exceptions.ConnectionError

    batch = begun(line("a"))
    real = queueing.enqueue
    monkeypatch.setattr(queueing, "enqueue", away)
    go(batch)
    monkeypatch.setattr(queueing, "enqueue", real)
    assert Generation.objects.get().state == State.ACCEPTED
    go(batch)
    assert Generation.objects.count() == 1
    with time_machine.travel(timezone.now() + timedelta(seconds=10)):
        assert reaper.reap()["queued"] == 1
    finish(batch)
    assert Generation.objects.count() == 1
    assert batch.completed == 1


def test_one_that_a_full_queue_undid_is_begun_again_later(
    begun: Begin, finish: Begin, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chatapp.chat import queueing
    from chatapp.streaming.submit import QueueFull

    def full(request: protocol.Request, *args: Any) -> int:
        raise QueueFull(request.tenant, 5)

    batch = begun(line("a"))
    real = queueing.enqueue
    monkeypatch.setattr(queueing, "enqueue", full)
    go(batch)
    assert not Generation.objects.exists()
    assert not BatchAnswer.objects.exists()
    assert batch.next_at is not None
    monkeypatch.setattr(queueing, "enqueue", real)
    finish(batch)
    assert batch.completed == 1


def test_an_answer_that_a_fault_of_ours_stopped_is_asked_for_again_and_then_given_up(
    begun: Begin, worker: ScriptedWorker, record: Record
) -> None:
    batch = begun(line("a"))
    for _ in range(3):
        go(batch)
        worker.end(worker.take(), Interrupted(seq=0, code="engine_died", message="The engine died.", retryable=True))
        record()
    go(batch)
    assert (batch.status, batch.completed, batch.failed) == (Status.COMPLETED, 0, 1)
    (bad,) = file_of(batch.error_file)
    assert bad["response"]["status_code"] == 503
    assert bad["response"]["body"]["error"]["code"] == "engine_died"
    assert Generation.objects.count() == 3


def test_two_workers_at_once_begin_an_item_once(begun: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = go(begun(b"\n".join(json.dumps(line(x)).encode() for x in "ab")))
    item = batch.items.get(line=2)
    access = running._access(batch)
    assert access is not None
    assert running._begin(batch, item, access)
    again = BatchItem.objects.get(pk=item.pk)
    running._begin(batch, again, access)
    assert item.answers.count() == 1


def test_a_result_that_was_written_by_a_worker_that_died_then_is_not_written_again(
    begun: Begin, finish: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = begun(line("a"))
    from chatapp.batches import results

    real = results.finish
    monkeypatch.setattr(results, "finish", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        finish(batch)
    assert StoredFile.objects.filter(purpose="batch_output").count() == 1
    monkeypatch.setattr(results, "finish", real)
    finish(batch)
    assert batch.status == Status.COMPLETED
    assert StoredFile.objects.filter(purpose="batch_output").count() == 1


# --- what is refused ----------------------------------------------------------------------------------------------


def test_a_request_that_cannot_be_is_an_error_of_its_line_and_of_no_other(
    begun: Begin, worker: ScriptedWorker, record: Record, finish: Begin
) -> None:
    batch = go(begun(line("long", max_tokens=999_999), line("odd", temperature=9.5), line("big"), line("good")))
    worker.end(worker.take(), Refused(seq=0, code="context_length_exceeded", param="messages", message="Too long."))
    record()
    finish(batch)
    assert (batch.completed, batch.failed) == (1, 3)
    errors = {found["custom_id"]: found["response"] for found in file_of(batch.error_file)}
    assert {name: found["status_code"] for name, found in errors.items()} == {"long": 400, "odd": 400, "big": 400}
    assert errors["long"]["body"]["error"]["param"] == "max_tokens"
    assert errors["odd"]["body"]["error"]["param"] == "temperature"
    assert errors["big"]["body"]["error"]["code"] == "context_length_exceeded"


def test_a_used_up_budget_pauses_it_with_words_and_it_goes_on_when_there_is_more(
    begun: Begin, team: Team, finish: Begin
) -> None:
    ensure(team.tenant)
    TenantLimits.objects.filter(tenant=team.tenant).update(tokens_per_month=1000)
    Meter.objects.create(tenant=team.tenant, month=month_of(timezone.now()), subject="", used=999)
    forget()
    batch = go(begun(line("a")))
    assert (batch.status, batch.paused_code) == (Status.IN_PROGRESS, "insufficient_quota")
    assert "1,000 tokens" in batch.paused_because
    assert batch.next_at is not None
    assert batch.next_at > timezone.now()
    assert running.tend() == 0, "nobody looks again before"
    TenantLimits.objects.filter(tenant=team.tenant).update(tokens_per_month=None)
    forget()
    finish(batch)
    assert (batch.completed, batch.paused_because) == (1, "")


def test_without_the_keys_rights_nothing_goes_on_and_a_successor_takes_over(
    begun: Begin, team: Team, finish: Begin
) -> None:
    batch = go(begun(b""))  # to have the file read by a key that works
    batch = begun(line("a"), line("b"))
    key = team.key.key
    assert key is not None
    new, _ = keys.rotate_key(access=team.owner, key_id=key.pk, overlap="0")
    finish(batch)
    assert batch.completed == 2
    assert set(Generation.objects.values_list("principal", flat=True)) == {f"key:{new.pk}"}
    last = begun_with(team, new, line("c"))
    ApiKey.objects.filter(pk=new.pk).update(revoked_at=timezone.now())
    go(last)
    assert (last.status, last.paused_code) == (Status.VALIDATING, "invalid_api_key")
    with time_machine.travel(last.expires_at + timedelta(minutes=1)):
        go(last)
    assert last.status == Status.FAILED


def begun_with(team: Team, key: ApiKey, *lines: Any) -> Batch:
    from tests.batches.conftest import upload

    file = upload(team, *lines)
    return Batch.objects.create(tenant=team.tenant, key=key, endpoint="/v1/chat/completions", input_file=file.pk)


def test_a_storage_that_is_full_holds_the_results_back_until_there_is_room(
    begun: Begin, team: Team, finish: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = begun(line("a"))
    real = files.quota_of
    monkeypatch.setattr(files, "quota_of", lambda tenant: 1)
    with pytest.raises(AssertionError, match="nothing is queued"):
        finish(batch)
    assert (batch.status, batch.paused_code) == (Status.FINALIZING, "storage_full")
    monkeypatch.setattr(files, "quota_of", real)
    assert go(batch).status == Status.COMPLETED
    assert len(file_of(batch.output_file)) == 1


def test_results_that_find_no_room_for_a_week_are_given_up(
    begun: Begin, finish: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = begun(line("a"))
    monkeypatch.setattr(files, "quota_of", lambda tenant: 1)
    with pytest.raises(AssertionError, match="nothing is queued"):
        finish(batch)
    with time_machine.travel(batch.expires_at + running.PATIENCE + timedelta(minutes=1)):
        go(batch)
    assert (batch.status, batch.errors[0]["code"]) == (Status.FAILED, "storage_full")
    assert not batch.items.exists()


def test_results_may_be_larger_than_what_people_may_upload(begun: Begin, finish: Begin, settings: Any) -> None:
    batch = begun(line("a"))
    settings.OCTAVO_MAX_FILE = 100
    assert finish(batch).status == Status.COMPLETED
    assert StoredFile.objects.get(pk=batch.output_file).bytes > 100


# --- cancelled, and out of time -----------------------------------------------------------------------------------


def test_cancelled_it_keeps_what_is_done_and_stops_what_runs(
    begun: Begin, team: Team, worker: ScriptedWorker, record: Record
) -> None:
    batch = go(begun(line("done"), line("runs"), line("waits")))
    worker.answer("Done")
    record()
    go(batch)
    running_one = worker.begin("Half")
    services.cancel(access=team.key, batch_id=batch.public_id)
    go(batch)
    assert batch.status == Status.CANCELLING
    more = Delta(seq=2, parts=[Part(text="x", token_ids=[9])])
    told = worker._call(protocol.tell(worker.name, [Tell(running_one.id, running_one.attempt, more, 1.0)]))
    assert protocol.parse_told(told)[0].outcome == "cancelled"
    worker.end(running_one, Cancelled(seq=3))
    record()
    go(batch)
    assert (batch.status, batch.completed, batch.failed) == (Status.CANCELLED, 1, 2)
    assert [found["custom_id"] for found in file_of(batch.output_file)] == ["done"]
    errors = file_of(batch.error_file)
    assert [(found["custom_id"], found["error"]["code"]) for found in errors] == [
        ("runs", "batch_cancelled"), ("waits", "batch_cancelled"),
    ]  # fmt: skip
    with pytest.raises(Conflict, match="it is cancelled"):
        services.cancel(access=team.key, batch_id=batch.public_id)


def test_cancelled_before_its_file_was_read_it_has_no_files(begun: Begin, team: Team) -> None:
    batch = begun(line("a"))
    services.cancel(access=team.key, batch_id=batch.public_id)
    go(batch)
    assert (batch.status, batch.output_file, batch.error_file) == (Status.CANCELLED, None, None)


def test_after_its_day_it_ends_with_what_there_is(begun: Begin, worker: ScriptedWorker, record: Record) -> None:
    batch = go(begun(line("done"), line("waits")))
    worker.answer("Done")
    record()
    go(batch)
    taken = worker.take()
    with time_machine.travel(batch.expires_at + timedelta(seconds=30)):
        go(batch)
        assert batch.status == Status.FINALIZING
        worker.end(taken, Cancelled(seq=0))
        record()
        go(batch)
    assert (batch.status, batch.completed, batch.failed) == (Status.EXPIRED, 1, 1)
    assert [found["error"]["code"] for found in file_of(batch.error_file)] == ["batch_expired"]


def test_items_that_end_are_counted_as_they_do(
    begun: Begin, worker: ScriptedWorker, record: Record, team: Team
) -> None:
    from chatapp.batches import selectors

    batch = go(begun(line("a"), line("b")))
    worker.answer("A")
    record()
    assert selectors.counts(selectors.batch(team.key, batch.public_id)) == (2, 1, 0)
    assert batch.items.filter(state=ItemState.DONE).count() == 1


def test_a_recorded_end_hands_the_batch_on_at_once(
    begun: Begin, worker: ScriptedWorker, record: Record, handed: list[str], django_capture_on_commit_callbacks: Any
) -> None:
    batch = go(begun(line("a")))
    with django_capture_on_commit_callbacks(execute=True):
        worker.answer("A")
        record()
    assert handed == [str(batch.pk)]
