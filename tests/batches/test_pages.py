"""Who looks after a team's keys sees their batches, stops them, and gets the results."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from chatapp.audit.models import AuditEntry
from chatapp.batches.models import Batch, Status
from tests.batches.conftest import go, line
from tests.chat.conftest import ScriptedWorker, Team

PAGE = "/t/acme/admin/batches"
API = "/api/t/acme/batches"
BACKEND = "django.contrib.auth.backends.ModelBackend"
Begin = Callable[..., Batch]


@pytest.fixture
def owner(team: Team) -> Client:
    client = Client()
    client.force_login(team.owner.user, backend=BACKEND)  # type: ignore[arg-type]
    return client


def test_an_empty_list_teaches_how_to_send_one(owner: Client) -> None:
    text = owner.get(PAGE).content.decode()
    assert "There are no batches yet" in text
    assert "client.batches.create(" in text
    assert "http://testserver/v1" in text


def test_a_batch_is_seen_under_way_and_refused_with_what_is_wrong(
    owner: Client, begun: Begin, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    under_way, bad = go(begun(line("a"), line("b"), metadata={"name": "Nightly <b>"})), go(begun(b"no json"))
    worker.answer("A")
    record()
    text = owner.get(PAGE).content.decode()
    assert "Nightly &lt;b&gt;" in text
    assert '<progress max="2" value="1">' in text
    assert "1 of 2" in text
    assert "Line 1: This line is not parseable as valid JSON." in text
    assert bad.public_id in text
    Batch.objects.filter(pk=under_way.pk).update(paused_code="insufficient_quota", paused_because="All is used.")
    text = owner.get(PAGE).content.decode()
    assert "Paused" in text
    assert "All is used." in text


def test_it_is_cancelled_once_and_the_log_says_by_whom(owner: Client, begun: Begin, team: Team) -> None:
    batch = go(begun(line("a")))
    assert owner.post(f"{PAGE}/{batch.pk}/cancel").status_code == 302
    batch.refresh_from_db()
    assert batch.status == Status.CANCELLING
    entry = AuditEntry.objects.get(action="batch.cancelled")
    assert (entry.actor_name, entry.object_name) == (str(team.owner.actor.name), batch.public_id)
    Batch.objects.filter(pk=batch.pk).update(status=Status.CANCELLED)
    text = owner.post(f"{PAGE}/{batch.pk}/cancel", follow=True).content.decode()
    assert "cannot be cancelled: it is cancelled" in text


def test_results_are_downloaded_and_it_is_noted_who_did(owner: Client, begun: Begin, finish: Begin) -> None:
    batch = finish(begun(line("a"), line("b", temperature=9)))
    for what, name in (("output", "a"), ("errors", "b")):
        reply = owner.get(f"{PAGE}/{batch.pk}/{what}")
        assert json.loads(reply.getvalue())["custom_id"] == name
        assert reply["Content-Disposition"] == f'attachment; filename="{batch.public_id}_{what}.jsonl"'
    assert [entry.details for entry in AuditEntry.objects.filter(action="batch.downloaded").order_by("at")] == [
        {"file": "output"}, {"file": "errors"},
    ]  # fmt: skip
    assert owner.get(f"{PAGE}/{batch.pk}/nothing").status_code == 404


def test_the_same_by_http(owner: Client, begun: Begin) -> None:
    made = [begun(line("a")) for _ in range(3)]
    found: Any = owner.get(API).json()
    assert [item["public_id"] for item in found["items"]] == [batch.public_id for batch in made[::-1]]
    assert found["next"] is None
    one = owner.get(f"{API}/{made[0].pk}").json()
    assert (one["status"], one["total"], one["completed"]) == ("validating", 0, 0)
    assert owner.get(API, {"cursor": "odd"}).json()["error"]["param"] == "cursor"
    stopped = owner.post(f"{API}/{made[0].pk}/cancel", content_type="application/json")
    assert stopped.json()["status"] == "cancelling"
