"""Every generation that ends has its row, in the same transaction, and the row outlives what it names."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.utils import timezone

from chatapp.chat import recorder, services
from chatapp.chat.models import Conversation, Generation, State
from chatapp.limits.models import Meter
from chatapp.prompts.models import SystemPrompt
from chatapp.usage.models import Kind, UsageRow
from engine.protocol import Cancelled, Failed, Finished, Refused, Timing, Usage
from tests.chat.conftest import ScriptedWorker, Team, record, worker

__all__ = ["record", "worker"]

TIMING = Timing(queue_s=0.25, prefill_s=0.5, decode_s=2.0)
HELLO = [{"role": "user", "content": "Hello"}]


def test_an_answer_in_a_chat_leaves_a_row_without_its_text(
    team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    generation = services.ask(access=team.member, text="What is our secret?")
    taken = worker.begin("It", " is")
    usage = Usage(prompt_tokens=7, cached_tokens=3, completion_tokens=2)
    worker.end(taken, Finished(seq=3, finish_reason="stop", usage=usage, timing=TIMING))
    record()
    row = UsageRow.objects.get()
    assert (row.generation_id, row.tenant, row.kind) == (generation.pk, team.tenant, Kind.CHAT)
    assert (row.principal, row.principal_name) == (team.member.principal, "member@acme.test")
    prompt = SystemPrompt.objects.get(tenant=team.tenant)
    assert (row.assistant_id, row.assistant_name) == (str(prompt.pk), prompt.name)
    assert row.prompt_version_id == str(prompt.published_id)
    assert (row.prompt_tokens, row.cached_tokens, row.output_tokens) == (7, 3, 2)
    assert (row.queue_us, row.prefill_us, row.decode_us, row.first_token_us) == (250_000, 500_000, 2_000_000, 750_000)
    assert (row.state, row.finish_reason, row.model) == ("finished", "stop", generation.model)
    assert row.total_us > 0
    assert "secret" not in str(vars(row))


def test_a_keys_answer_is_the_apis(team: Team, worker: ScriptedWorker, record: Callable[[], int]) -> None:
    services.complete(access=team.key, messages=HELLO)
    worker.answer("Hi")
    services.ask(access=team.key, text="In a conversation")
    worker.answer("Hi")
    record()
    assert {(row.kind, row.principal, row.principal_name) for row in UsageRow.objects.all()} == {
        (Kind.API, team.key.principal, "tests")
    }


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (Cancelled(seq=3), "cancelled"),
        (Failed(seq=3, code="engine_failed", message="It failed."), "failed"),
        (Refused(seq=3, code="too_long", message="Too long."), "refused"),
    ],
)
def test_every_end_has_a_row(
    team: Team, worker: ScriptedWorker, record: Callable[[], int], event: Any, state: str
) -> None:
    services.ask(access=team.member, text="Hi")
    worker.end(worker.begin("a", "b"), event)
    record()
    row = UsageRow.objects.get()
    assert (row.state, row.error_code) == (state, event.code or "")
    assert (row.prompt_tokens, row.output_tokens) == (7, 2), "what was computed until then counts"


def test_an_interrupted_answer_has_a_row_and_a_replay_writes_none(team: Team) -> None:
    generation = services.ask(access=team.member, text="Hi")
    for _ in range(2):
        recorder.write(generation, recorder.Answer(), State.INTERRUPTED)
    row = UsageRow.objects.get()
    assert (row.state, row.output_tokens, row.first_token_us) == ("interrupted", 0, None)


def test_without_the_row_the_generation_does_not_end_either(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = services.ask(access=team.member, text="Hi")

    def fail(**facts: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(recorder, "record_usage", fail)
    with pytest.raises(OSError, match="disk"):
        recorder.write(generation, recorder.Answer(), State.INTERRUPTED)
    generation.refresh_from_db()
    assert generation.unfinished


def test_a_row_outlives_the_person_the_key_the_prompt_and_the_conversation(
    team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    services.ask(access=team.member, text="Hi")
    worker.answer("Hi")
    services.complete(access=team.key, messages=HELLO)
    worker.answer("Hi")
    record()
    before = list(UsageRow.objects.order_by("pk").values())
    Conversation.objects.all().delete()
    assert team.member.user is not None
    assert team.key.key is not None
    team.member.user.delete()
    team.key.key.delete()
    SystemPrompt.objects.update(published=None)
    SystemPrompt.objects.all().delete()
    assert list(UsageRow.objects.order_by("pk").values()) == before
    assert len(before) == 2


def test_the_generations_of_earlier_versions_get_the_same_rows(
    team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    """The migration's work, run over what the recorder has written rows for already."""
    for access in (team.member, team.owner):
        services.ask(access=access, text="Hi")
        worker.answer("Hi")
    services.complete(access=team.key, messages=HELLO)
    worker.answer("Hi", "!")
    record()
    services.ask(access=team.member, text="Still running")
    written = list(UsageRow.objects.order_by("pk").values())
    assert len(written) == 3
    migration = importlib.import_module("chatapp.usage.migrations.0002_backfill")
    migration.backfill(apps, None)
    assert list(UsageRow.objects.order_by("pk").values()) == written, "rows that are there stay"
    UsageRow.objects.all().delete()
    migration.backfill(apps, None)
    assert list(UsageRow.objects.order_by("pk").values()) == written
    assert Generation.objects.count() == 4


def test_what_earlier_versions_used_counts_for_this_month(
    team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    for _ in range(2):
        services.ask(access=team.member, text="Hi")
        worker.answer("Hi")
    services.complete(access=team.key, messages=HELLO)
    worker.answer("Hi", "!")
    record()
    counted = set(Meter.objects.values_list("subject", "month", "used"))
    assert {subject for subject, _, _ in counted} == {"", team.member.principal, team.key.principal}
    assert all(used for _, _, used in counted)
    former = {"generation_id": uuid.uuid4(), "at": timezone.now() - timedelta(days=32)}
    UsageRow.objects.create(**{**UsageRow.objects.values()[0], **former})
    migration = importlib.import_module("chatapp.usage.migrations.0003_meters")
    Meter.objects.filter(subject="").update(used=1)
    Meter.objects.exclude(subject="").delete()
    migration.fill(apps, None)
    assert Meter.objects.get(subject="").used == 1, "what has counted stays"
    Meter.objects.all().delete()
    migration.fill(apps, None)
    assert set(Meter.objects.values_list("subject", "month", "used")) == counted
