"""/v1/batches by OpenAI's own client, in this process."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import openai
import pytest
from openai.types import Batch as OpenAIBatch

from chatapp.api.answering import in_thread
from chatapp.batches import running
from chatapp.batches.models import Batch
from tests.api.test_isolation import ADDRESSES, OF_KEYS
from tests.batches.conftest import CHAT, jsonl, line
from tests.chat.conftest import ScriptedWorker, Team

pytestmark = pytest.mark.django_db(transaction=True)
HOW: dict[str, Any] = {"endpoint": CHAT, "completion_window": "24h"}


def transport() -> httpx.ASGITransport:
    from chatapp.asgi import application

    return httpx.ASGITransport(app=application)  # type: ignore[arg-type]


def client_of(team: Team) -> openai.AsyncOpenAI:
    http = httpx.AsyncClient(transport=transport())
    return openai.AsyncOpenAI(
        base_url="http://testserver/v1", api_key=team.secret, max_retries=0, http_client=http
    )  # fmt: skip


@pytest.fixture
async def client(team: Team) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client_of(team) as made:
        yield made


async def begun(client: openai.AsyncOpenAI, *lines: Any, **more: Any) -> OpenAIBatch:
    file = await client.files.create(file=("in.jsonl", io.BytesIO(jsonl(*lines))), purpose="batch")
    return await client.batches.create(input_file_id=file.id, **HOW, **more)


async def advance(found: OpenAIBatch) -> None:
    await in_thread(running.advance, found.id)


async def test_a_batch_goes_its_way_as_openais_do(
    client: openai.AsyncOpenAI, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    made = await begun(client, line("one"), line("two", temperature=9), metadata={"job": "nightly"})
    assert made.id.startswith("batch_")
    assert (made.object, made.status, made.endpoint, made.completion_window) == ("batch", "validating", CHAT, "24h")
    assert (made.metadata, made.errors, made.output_file_id) == ({"job": "nightly"}, None, None)
    assert made.expires_at == made.created_at + 24 * 3600
    await advance(made)
    under_way = await client.batches.retrieve(made.id)
    assert (under_way.status, under_way.request_counts.total) == ("in_progress", 2)  # type: ignore[union-attr]
    assert under_way.in_progress_at is not None
    await in_thread(worker.answer, "Hello")
    await in_thread(record)
    await advance(made)
    done = await client.batches.retrieve(made.id)
    assert done.status == "completed"
    assert done.request_counts.to_dict() == {"total": 2, "completed": 1, "failed": 1}  # type: ignore[union-attr]
    assert done.completed_at is not None
    assert done.finalizing_at is not None
    assert done.output_file_id is not None
    assert done.error_file_id is not None
    found = json.loads((await client.files.content(done.output_file_id)).content)
    assert found["custom_id"] == "one"
    body = openai.types.chat.ChatCompletion.model_validate(found["response"]["body"])
    assert body.choices[0].message.content == "Hello"
    bad = json.loads((await client.files.content(done.error_file_id)).content)
    assert (bad["custom_id"], bad["response"]["body"]["error"]["param"]) == ("two", "temperature")
    assert (await client.files.retrieve(done.output_file_id)).purpose == "batch_output"


async def test_a_mistake_in_the_file_is_told_with_its_line(client: openai.AsyncOpenAI) -> None:
    made = await begun(client, line("one"), b"nothing")
    await advance(made)
    found = await client.batches.retrieve(made.id)
    assert found.status == "failed"
    assert found.errors is not None
    assert found.errors.data is not None
    assert [(error.line, error.code) for error in found.errors.data] == [(2, "invalid_json_line")]


async def test_batches_are_listed_in_pages_newest_first(client: openai.AsyncOpenAI) -> None:
    made = [(await begun(client, line("x"))).id for _ in range(5)]
    assert [found.id async for found in client.batches.list(limit=2)] == made[::-1]
    for query, param in (({"limit": 0}, "limit"), ({"limit": 101}, "limit"), ({"after": "batch_nothing"}, "after")):
        with pytest.raises(openai.APIStatusError) as refused:
            await client.batches.list(**query)  # type: ignore[arg-type]
        assert refused.value.status_code in (400, 404)
        assert refused.value.body["param"] == param  # type: ignore[index]


async def test_a_batch_is_cancelled_once(client: openai.AsyncOpenAI) -> None:
    made = await begun(client, line("x"))
    assert (await client.batches.cancel(made.id)).status == "cancelling"
    assert (await client.batches.cancel(made.id)).status == "cancelling"
    await advance(made)
    assert (await client.batches.retrieve(made.id)).status == "cancelled"
    with pytest.raises(openai.ConflictError):
        await client.batches.cancel(made.id)


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, 400, "endpoint"),
        ({"completion_window": "1h"}, 400, "completion_window"),
        ({"input_file_id": "file-nothing"}, 404, "input_file_id"),
        ({"input_file_id": 7}, 400, "input_file_id"),
        ({"metadata": {"a": 1}}, 400, "metadata"),
        ({"metadata": ["a"]}, 400, "metadata"),
    ],
)
async def test_what_is_wrong_is_said_by_its_field(team: Team, changes: dict[str, Any], status: int, param: str) -> None:
    async with httpx.AsyncClient(
        transport=transport(), base_url="http://testserver", headers={"Authorization": f"Bearer {team.secret}"}
    ) as http:
        reply = await http.post("/v1/batches", json={"input_file_id": "file-x", **HOW, **changes})
        assert reply.status_code == status
        assert reply.json()["error"]["param"].startswith(param)
        for body in (b"", b"[]", b"{", b'{"endpoint": 1}', b"\xff"):
            assert (await http.post("/v1/batches", content=body)).status_code == 400


async def test_other_teams_find_no_batch_and_other_keys_of_the_team_do(
    client: openai.AsyncOpenAI, team: Team, strangers: Team
) -> None:
    """P11."""
    made = await begun(client, line("x"))
    async with client_of(strangers) as foreign:
        for call in (foreign.batches.retrieve, foreign.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                await call(made.id)
        assert [found async for found in foreign.batches.list()] == []
        with pytest.raises(openai.NotFoundError):
            await foreign.batches.create(input_file_id=made.input_file_id, **HOW)
    assert (await in_thread(Batch.objects.get)).status == "validating"
    walked = {"v1/batches", "v1/batches/<batch_id>", "v1/batches/<batch_id>/cancel"}
    assert {address for address, what in ADDRESSES.items() if what is OF_KEYS and "batches" in address} == walked
