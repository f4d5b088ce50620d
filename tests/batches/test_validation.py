"""A file's mistakes are told by line, and nothing of a file with mistakes is begun."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from chatapp.batches import services, validation
from chatapp.batches.models import Batch, BatchItem, Status
from chatapp.chat.models import Generation
from chatapp.errors import BadInput, Forbidden, NotFound, TooMany
from chatapp.files import selectors as files
from chatapp.files import services as file_services
from chatapp.scope import tenant_scope
from chatapp.webhooks.services import create as create_webhook
from tests.batches.conftest import CHAT, go, line, upload
from tests.chat.conftest import Team

Begin = Callable[..., Batch]


def complaints(batch: Batch) -> list[tuple[Any, ...]]:
    return [(error["line"], error["code"], error["param"]) for error in go(batch).errors]


def test_every_mistake_is_told_with_its_line_and_nothing_is_begun(begun: Begin) -> None:
    batch = begun(
        line("a"),
        b"not json",
        {"custom_id": "x", "method": "POST", "url": CHAT},
        line("a"),
        line("b", url="/v1/completions"),
        {**line("c"), "method": "GET"},
        {**line("d"), "custom_id": 7},
        {**line("e"), "custom_id": ""},
        line("f", temperature="hot"),
        line("g", model="no-such-model"),
        line("h", stream=True),
        b"",
        b"[1]",
        line("i", n="two"),
        b'{"custom_id": "\\ud800", "method": "POST", "url": "/v1/chat/completions", "body": {}}',
        b"\xff\xfe",
        line("j", model=3),
    )
    assert complaints(batch) == [
        (2, "invalid_json_line", None),
        (3, "invalid_request", None),
        (4, "duplicate_custom_id", "custom_id"),
        (5, "invalid_url", "url"),
        (6, "invalid_method", "method"),
        (7, "invalid_request", "custom_id"),
        (8, "invalid_custom_id", "custom_id"),
        (9, "invalid_type", "body.temperature"),
        (10, "model_not_found", "body.model"),
        (11, "invalid_request", "body.stream"),
        (13, "invalid_request", None),
        (14, "invalid_type", "body.n"),
        (15, "invalid_json_line", None),
        (16, "invalid_json_line", None),
        (17, "invalid_type", "body.model"),
    ]
    assert batch.status == Status.FAILED
    assert batch.failed_at is not None
    assert all(error["message"] for error in batch.errors)
    go(batch)
    assert not BatchItem.objects.exists()
    assert not Generation.objects.exists()


def test_a_good_file_is_under_way_with_its_lines_counted_whatever_ends_them(begun: Begin, team: Team) -> None:
    text = b"\xef\xbb\xbf" + b"\r\n".join([json.dumps(line("a")).encode(), b"", json.dumps(line("ü ☂ \n")).encode()])
    batch = begun(text)
    go(batch)
    assert (batch.status, batch.total) == (Status.IN_PROGRESS, 2)
    assert list(batch.items.values_list("line", "custom_id")) == [(1, "a"), (3, "ü ☂ \n")]


def test_a_mark_of_byte_order_in_a_line_of_its_own_is_an_empty_line(begun: Begin) -> None:
    batch = begun(b"\xef\xbb\xbf\r\n" + json.dumps(line("a")).encode())
    go(batch)
    assert (batch.status, batch.errors) == (Status.IN_PROGRESS, [])
    assert list(batch.items.values_list("line", "custom_id")) == [(2, "a")]


def test_an_empty_file_is_no_batch(begun: Begin) -> None:
    assert complaints(begun(b"", b"  ")) == [(None, "empty_file", None)]


def test_more_lines_than_there_may_be_are_refused(begun: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "MOST_LINES", 3)
    assert complaints(begun(*(line(str(n)) for n in range(5)))) == [(4, "too_many_requests", None)]


def test_a_line_without_an_end_is_not_read_into_memory(begun: Begin, settings: Any) -> None:
    settings.OCTAVO_MAX_BODY = 2000
    batch = begun(line("a"), b"x" * 50_000, line("b"), line("c", "y" * 3000))
    assert complaints(batch) == [(2, "too_large", None), (4, "too_large", None)]


def test_complaints_are_bounded(begun: Begin) -> None:
    assert len(complaints(begun(*[b"no json"] * 300))) == validation.MOST_ERRORS


def test_a_file_that_was_deleted_meanwhile_is_said_to_be(begun: Begin, team: Team) -> None:
    batch = begun(line("a"))
    file_services.delete(access=team.key, file_id=str(batch.input_file))
    assert complaints(batch) == [(None, "file_not_found", None)]


def test_a_refused_file_is_told_to_webhooks(begun: Begin, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    webhook, _ = create_webhook(access=team.owner, url="https://8.8.8.8/", events=["batch.failed"])
    batch = begun(b"no json", metadata={"job": "nightly"})
    go(batch)
    (delivery,) = webhook.deliveries.all()
    assert delivery.payload["data"]["id"] == batch.public_id
    assert delivery.payload["data"]["metadata"] == {"job": "nightly"}


# --- beginning one ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
        ({"metadata": {"x" * 65: "x"}}, "metadata"),
        ({"metadata": {"x": "x" * 513}}, "metadata"),
        ({"metadata": {"x": "\0"}}, "metadata"),
    ],
)
def test_what_a_batch_cannot_be_is_refused_by_its_field(team: Team, changes: dict[str, Any], param: str) -> None:
    file = upload(team, line("a"))
    wanted: dict[str, Any] = {"input_file_id": file.public_id, "endpoint": CHAT, "completion_window": "24h", **changes}
    with pytest.raises(BadInput) as refused:
        services.create(access=team.key, **wanted)
    assert refused.value.param == param


def test_only_a_file_of_ones_own_for_batches_will_do(team: Team, strangers: Team) -> None:
    with tenant_scope(strangers.tenant):
        foreign = upload(strangers, line("a"))
    how = {"endpoint": CHAT, "completion_window": "24h"}
    with tenant_scope(team.tenant), pytest.raises(NotFound):
        services.create(access=team.key, input_file_id=foreign.public_id, **how)
    other = file_services.store(access=team.key, name="x", content=[b"{}"], purpose="user_data")
    with pytest.raises(BadInput, match="upload it with the purpose batch"):
        services.create(access=team.key, input_file_id=other.public_id, **how)
    with pytest.raises(Forbidden, match="API keys"):
        services.create(access=team.member, input_file_id=other.public_id, **how)
    assert files.used(team.tenant) > 0


def test_unfinished_batches_of_a_team_are_bounded(begun: Begin, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MOST_UNFINISHED", 2)
    first = begun(line("a"))
    begun(line("b"))
    with pytest.raises(TooMany, match="2 unfinished"):
        begun(line("c"))
    Batch.objects.filter(pk=first.pk).update(status=Status.COMPLETED, completed_at=timezone.now())
    begun(line("c"))
