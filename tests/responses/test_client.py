"""/v1/responses by OpenAI's own client: whole, streamed, in the background, resumed, stopped, deleted, gone on from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from django.utils import timezone
from openai.types.responses import Response

from chatapp.chat.models import Generation, State
from chatapp.responses.models import StoredResponse
from chatapp.streaming.submit import QueueFull
from chatapp.tenants.models import ApiKey, KeyScope
from chatapp.tenants.services import create_api_key
from chatapp.usage.models import UsageRow
from engine import protocol
from engine.protocol import Cancelled, Failed, Part, Refused
from tests.api.inprocess import openai_client
from tests.chat.conftest import ScriptedWorker, Team
from tests.responses.conftest import Script, finished

pytestmark = pytest.mark.django_db(transaction=True)
HAIKU = "Write a haiku."


async def both(asking: Any, answering: Any) -> Any:
    """What is asked for, while it is being answered."""
    return (await asyncio.gather(asking, answering))[0]


async def ask(client: openai.AsyncOpenAI, script: Script, *says: Any, **body: Any) -> Response:
    said = says or ("Old pond",)
    return await both(client.responses.create(**{"model": "default", "input": HAIKU, **body}), script.answer(*said))


async def events_of(stream: Any) -> list[Any]:
    return [event async for event in stream]


def plain(events: list[Any]) -> list[dict[str, Any]]:
    return [event.to_dict() for event in events]


async def test_a_response_is_whole_and_stays(
    client: openai.AsyncOpenAI, script: Script, recorded: Callable[[], Any], worker: ScriptedWorker
) -> None:
    made = await ask(
        client, script, "Old ", "pond", metadata={"for": "a test"}, temperature=0.5, user="u1", safety_identifier="s1"
    )
    assert (made.status, made.output_text, made.object) == ("completed", "Old pond", "response")
    assert (made.metadata, made.temperature, made.user, made.safety_identifier) == ({"for": "a test"}, 0.5, "u1", "s1")
    assert made.usage is not None
    assert made.usage.to_dict() == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 9,
    }
    assert (made.model, made.error, made.incomplete_details) == (worker.model, None, None)
    assert (made.tools, made.tool_choice, made.parallel_tool_calls, made.truncation) == ([], "auto", True, "disabled")
    before = await client.responses.retrieve(made.id)
    assert before.to_dict() == made.to_dict(), "from the log, before it is recorded"
    await recorded()
    after = await client.responses.retrieve(made.id)
    assert after.to_dict() == made.to_dict(), "from the database"
    assert await UsageRow.objects.acount() == 1


async def test_a_stream_is_resumed_from_any_number_while_it_runs_and_after_its_log_has_expired(
    client: openai.AsyncOpenAI, script: Script, recorded: Callable[[], Any], worker: ScriptedWorker
) -> None:
    async def first() -> list[Any]:
        return await events_of(await client.responses.create(model="default", input=HAIKU, stream=True))

    reading = asyncio.create_task(first())
    taken = await script.taken()
    await script.tell(taken, [Part(text="Old ", token_ids=[1])], [Part(token_ids=[2])])
    response_id = f"resp_{taken.id.replace('-', '')}"
    running = await client.responses.retrieve(response_id, stream=True, starting_after=3)
    resumed = asyncio.create_task(events_of(running))
    await script.tell(taken, [Part(text="pönd\0", token_ids=[3])], first=3)
    await script.end(taken, finished(3))
    told = plain(await reading)
    assert [event["type"] for event in told] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.delta", "response.output_text.delta", "response.output_text.done",
        "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in told] == list(range(10))
    assert plain(await resumed) == told[4:]
    await recorded()

    async def from_everywhere() -> None:
        for after in range(10):
            stream = await client.responses.retrieve(response_id, stream=True, starting_after=after)
            assert plain(await events_of(stream)) == told[after + 1 :], after
        last = {"Last-Event-ID": "6"}
        stream = await client.responses.retrieve(response_id, stream=True, extra_headers=last)
        assert plain(await events_of(stream)) == told[7:]
        assert plain(await events_of(await client.responses.retrieve(response_id, stream=True))) == told

    await from_everywhere()
    await asyncio.to_thread(worker.redis.delete, protocol.generation_key(taken.id), protocol.request_key(taken.id))
    await from_everywhere()


async def test_the_clients_own_stream_helper_reads_it_and_its_snapshots(
    client: openai.AsyncOpenAI, script: Script
) -> None:
    async def read() -> Any:
        async with client.responses.stream(model="default", input=HAIKU) as stream:
            seen = [event async for event in stream]
            return seen, await stream.get_final_response()

    seen, final = await both(read(), script.answer("Old ", "pond"))
    assert final.output_text == "Old pond"
    snapshots = [event.snapshot for event in seen if event.type == "response.output_text.delta"]
    assert snapshots == ["Old ", "Old pond"]


async def test_events_carry_their_numbers_where_readers_of_events_look(
    client: openai.AsyncOpenAI, script: Script
) -> None:
    answering = asyncio.create_task(script.answer("Pond"))
    async with client.responses.with_streaming_response.create(model="default", input=HAIKU, stream=True) as reply:
        assert reply.headers["content-type"] == "text/event-stream"
        assert reply.headers["x-request-id"]
        lines = [line async for line in reply.iter_lines()]
        await answering
    blocks = [block.split("\n") for block in "\n".join(lines).split("\n\n") if not block.startswith(":")]
    for number, (event, key, data) in enumerate(block for block in blocks if len(block) == 3):
        body = json.loads(data.removeprefix("data: "))
        assert (event, key) == (f"event: {body['type']}", f"id: {number}")
        assert body["sequence_number"] == number


async def test_in_the_background_it_is_polled_to_its_end(
    client: openai.AsyncOpenAI, script: Script, recorded: Callable[[], Any]
) -> None:
    made = await client.responses.create(model="default", input=HAIKU, background=True)
    assert (made.status, made.background, made.output, made.usage) == ("queued", True, [], None)
    assert (await client.responses.retrieve(made.id)).status == "queued"
    taken = await script.taken()
    await script.tell(taken, [Part(text="Old ", token_ids=[1])])
    running = await client.responses.retrieve(made.id)
    assert (running.status, running.output_text, running.output[0].status) == ("in_progress", "Old ", "in_progress")  # type: ignore[union-attr]
    await script.tell(taken, [Part(text="pond", token_ids=[2])], first=2)
    await script.end(taken, finished(2))
    assert (await client.responses.retrieve(made.id)).status == "completed"
    await recorded()
    done = await client.responses.retrieve(made.id)
    assert (done.status, done.output_text) == ("completed", "Old pond")
    stream = await client.responses.retrieve(made.id, stream=True)
    assert [event.type for event in await events_of(stream)][:3] == [
        "response.created", "response.queued", "response.in_progress",
    ]  # fmt: skip


async def test_what_runs_in_the_background_can_be_stopped_and_nothing_else(
    client: openai.AsyncOpenAI, script: Script, recorded: Callable[[], Any]
) -> None:
    waiting = await client.responses.create(model="default", input=HAIKU, background=True)
    assert (await client.responses.cancel(waiting.id)).status == "cancelled"
    assert (await client.responses.cancel(waiting.id)).status == "cancelled", "again is harmless"
    running = await client.responses.create(model="default", input=HAIKU, background=True)
    taken = await script.taken()
    await script.tell(taken, [Part(text="Old ", token_ids=[1])])
    stopping = asyncio.create_task(client.responses.cancel(running.id))
    stream = asyncio.create_task(events_of(await client.responses.retrieve(running.id, stream=True)))
    await script.cancelled(taken)
    await script.end(taken, Cancelled(seq=2))
    stopped = await stopping
    assert (stopped.status, stopped.output_text, stopped.output[0].status) == ("cancelled", "Old ", "incomplete")  # type: ignore[union-attr]
    assert (await stream)[-1].type == "response.cancelled"
    await recorded()
    assert (await client.responses.retrieve(running.id)).to_dict() == stopped.to_dict()
    done = await ask(client, script)
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        await client.responses.cancel(done.id)
    assert (await client.responses.retrieve(done.id)).status == "completed"


async def test_a_deleted_response_is_gone_with_its_log_and_its_key_is_free(
    client: openai.AsyncOpenAI, script: Script, recorded: Callable[[], Any], worker: ScriptedWorker
) -> None:
    headers = {"Idempotency-Key": "once"}
    made = await ask(client, script, extra_headers=headers)
    await recorded()
    generation = await Generation.objects.aget()
    assert await client.responses.delete(made.id) is None
    for again in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            await again(made.id)
    assert not worker.redis.exists(protocol.generation_key(str(generation.pk)))
    generation = await Generation.objects.aget()
    assert (generation.completion_tokens, generation.digest, generation.idempotency_key) == (1, "", None)
    running = await client.responses.create(model="default", input=HAIKU, background=True, extra_headers=headers)
    assert running.id != made.id
    taken = await script.taken()
    await client.responses.delete(running.id)
    await script.end(taken, Cancelled(seq=0))
    await recorded()
    assert await StoredResponse.objects.acount() == 0
    assert await Generation.objects.filter(state=State.CANCELLED).acount() == 1


async def test_a_conversation_goes_on_as_a_tree_without_its_instructions(
    client: openai.AsyncOpenAI, script: Script, recorded: Callable[[], Any]
) -> None:
    first = await ask(client, script, "A frog", instructions="Be brief.")
    assert first.instructions == "Be brief."
    after: dict[str, Any] = {"previous_response_id": first.id}
    # Not recorded yet: it is written by whoever goes on from it.
    asked = [
        asyncio.create_task(client.responses.create(model="default", input=text, **after)) for text in ("And?", "Why?")
    ]
    requests = [await script.answer("Splash"), await script.answer("Plop")]
    second, other = await asyncio.gather(*asked)
    assert {second.previous_response_id, other.previous_response_id} == {first.id}
    for request in requests:
        assert [(m.role, m.content) for m in request.messages][:2] == [("user", HAIKU), ("assistant", "A frog")]
        assert "Be brief." not in str(request.system)
    assert {request.messages[-1].content for request in requests} == {"And?", "Why?"}
    third = await both(
        client.responses.create(model="default", input="On.", previous_response_id=second.id), script.answer("Pond")
    )
    row = await StoredResponse.objects.aget(pk=third.id.removeprefix("resp_"))
    assert [f"resp_{key}" for key in row.ancestors] == [first.id, second.id]
    await client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="default", input="On.", previous_response_id=third.id)
    assert refused.value.code == "previous_response_not_found"
    assert first.id in refused.value.message
    assert third.id in refused.value.message


async def test_nothing_follows_what_failed_or_is_being_answered(
    client: openai.AsyncOpenAI, script: Script, recorded: Callable[[], Any]
) -> None:
    running = await client.responses.create(model="default", input=HAIKU, background=True)
    with pytest.raises(openai.ConflictError) as busy:
        await client.responses.create(model="default", input="And?", previous_response_id=running.id)
    assert busy.value.code == "response_in_progress"
    taken = await script.taken()
    await script.end(taken, Failed(seq=0, code="engine_died", message="It fell over."))
    await recorded()
    failed = await client.responses.retrieve(running.id)
    assert failed.status == "failed"
    assert failed.error is not None
    assert (failed.error.code, failed.error.message) == ("server_error", "It fell over.")
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="default", input="And?", previous_response_id=running.id)
    assert (refused.value.code, refused.value.param) == ("previous_response_failed", "previous_response_id")


async def test_what_is_refused_has_its_status_and_what_ends_late_says_so_in_the_stream(
    client: openai.AsyncOpenAI, script: Script, worker: ScriptedWorker
) -> None:
    async def refuse() -> None:
        taken = await script.taken()
        refused = Refused(seq=0, code="context_length_exceeded", param="messages", message="Too long.")
        await script.end(taken, refused)

    for stream in (False, True):
        asking = client.responses.create(model="default", input=HAIKU, stream=stream)  # type: ignore[call-overload]
        with pytest.raises(openai.BadRequestError) as refused:
            await both(asking, refuse())
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")

    async def fail() -> None:
        taken = await script.taken()
        await script.tell(taken, [Part(text="Old ", token_ids=[1])])
        await script.end(taken, Failed(seq=2, code="engine_died"))

    stream = await both(client.responses.create(model="default", input=HAIKU, stream=True), fail())
    last = (await events_of(stream))[-1]
    assert (last.type, last.response.status, last.response.output_text) == ("response.failed", "failed", "Old ")


async def test_a_vanished_caller_stops_only_what_nobody_else_can_have(
    client: openai.AsyncOpenAI, script: Script, worker: ScriptedWorker
) -> None:
    """C10. Kept responses live on and can be resumed from where their caller left."""
    for kept in (False, True):
        asking = asyncio.create_task(client.responses.create(model="default", input=HAIKU, stream=True, store=kept))
        taken = await script.taken()
        await script.tell(taken, [Part(text="Old ", token_ids=[1])])
        stream = await asking
        last = -1
        async for event in stream:
            last = event.sequence_number
            if event.type == "response.output_text.delta":
                break
        await stream.close()

        if not kept:
            await script.cancelled(taken)
            assert await StoredResponse.objects.acount() == 0
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(f"resp_{taken.id.replace('-', '')}")
            await script.end(taken, Cancelled(seq=2))
            continue
        await script.tell(taken, [Part(text="pond", token_ids=[2])], first=2)
        await script.end(taken, finished(2))
        assert not await script.is_cancelled(taken)
        response_id = f"resp_{taken.id.replace('-', '')}"
        rest = await events_of(await client.responses.retrieve(response_id, stream=True, starting_after=last))
        assert rest[0].sequence_number == last + 1
        assert rest[0].delta == "pond"
        assert rest[-1].response.output_text == "Old pond"


async def test_a_repeated_idempotency_key_is_the_same_response(
    client: openai.AsyncOpenAI, script: Script, recorded: Callable[[], Any]
) -> None:
    headers = {"Idempotency-Key": "k1"}
    first = await ask(client, script, extra_headers=headers)
    for _ in range(2):
        again = await client.responses.create(model="default", input=HAIKU, extra_headers=headers)
        assert again.id == first.id
        assert again.output_text == "Old pond"
        stream = await client.responses.create(model="default", input=HAIKU, stream=True, extra_headers=headers)
        assert (await events_of(stream))[-1].response.id == first.id
        await recorded()
    for changed in ({"input": "Other"}, {"metadata": {"a": "b"}}, {"store": False}, {"background": True}):
        with pytest.raises(openai.UnprocessableEntityError) as mismatch:
            await client.responses.create(**{"model": "default", "input": HAIKU, "extra_headers": headers, **changed})
        assert mismatch.value.code == "idempotency_mismatch", changed
    twins = [
        asyncio.create_task(
            client.responses.create(model="default", input="Twice?", extra_headers={"Idempotency-Key": "k2"})
        )
        for _ in range(2)
    ]
    await script.answer("Once")
    one, two = await asyncio.gather(*twins)
    assert one.id == two.id


async def test_a_response_that_is_not_kept_is_the_same_when_it_is_told_again(
    client: openai.AsyncOpenAI, script: Script, recorded: Callable[[], Any]
) -> None:
    headers = {"Idempotency-Key": "k1"}
    first = await ask(client, script, store=False, extra_headers=headers)
    await recorded()
    again = await client.responses.create(model="default", input=HAIKU, store=False, extra_headers=headers)
    assert (again.temperature, again.top_p) == (first.temperature, first.top_p)
    assert again.output == first.output


async def test_input_items_come_in_pages(client: openai.AsyncOpenAI, script: Script) -> None:
    said: Any = [
        {"role": "user", "content": "One"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Two"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "Th"}, {"type": "input_text", "text": "ree"}]},
    ]
    made = await ask(client, script, input=said)
    page = await client.responses.input_items.list(made.id, limit=2)
    assert [item.content[0].text for item in page.data] == ["Th", "Two"]  # type: ignore[union-attr]
    assert page.has_more
    everything = [item async for item in client.responses.input_items.list(made.id, limit=1, order="asc")]
    assert [item.role for item in everything] == ["user", "assistant", "user"]  # type: ignore[union-attr]
    assert len({item.id for item in everything}) == 3
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.input_items.list(made.id, after="msg_none")
    assert refused.value.param == "after"
    referring: Any = [{"type": "item_reference", "id": everything[0].id}, {"role": "user", "content": "?"}]
    again = await ask(client, script, input=referring)
    assert (await _items(client, again.id))[0].content[0].text == "One"


async def _items(client: openai.AsyncOpenAI, response_id: str) -> list[Any]:
    return [item async for item in client.responses.input_items.list(response_id, order="asc")]


async def test_of_another_tenants_or_another_keys_response_nothing_is_known(
    client: openai.AsyncOpenAI, script: Script, recorded: Callable[[], Any], team: Team, strangers: Team
) -> None:
    """P11: to everything that takes an id the same words as for one that never was."""
    made = await ask(client, script, background=True)
    never = "resp_" + "0" * 32
    scopes = (KeyScope.CHAT, KeyScope.SYSTEM)
    colleague = (await asyncio.to_thread(create_api_key, tenant=team.tenant, name="other", scopes=scopes))[1]
    item = (await _items(client, made.id))[0].id
    for secret in (strangers.secret, colleague):
        other = openai_client(secret)
        ways: list[Callable[[str], Any]] = [
            other.responses.retrieve,
            other.responses.cancel,
            other.responses.delete,
            other.responses.input_items.list,
            lambda key, other=other: other.responses.retrieve(key, stream=True),
            lambda key, other=other: other.responses.create(model="default", input="x", previous_response_id=key),
        ]
        for way in ways:
            said = []
            for key in (made.id, never, made.id.upper(), made.id.removeprefix("resp_")):
                with pytest.raises((openai.NotFoundError, openai.BadRequestError)) as refused:
                    await way(key)
                said.append((refused.value.status_code, refused.value.message.replace(key, "ID")))
                assert "pond" not in str(refused.value.body)
            assert len(set(said)) == 1, said
        with pytest.raises(openai.BadRequestError) as unknown:
            await other.responses.create(model="default", input=[{"type": "item_reference", "id": item}])
        assert unknown.value.code == "item_not_found"
    assert (await client.responses.retrieve(made.id)).id == made.id


async def test_what_finds_no_room_in_the_queue_leaves_no_row(
    client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(request: protocol.Request, most: int) -> int:
        raise QueueFull(request.tenant, most)

    monkeypatch.setattr("chatapp.chat.queueing.enqueue", full)
    with pytest.raises(openai.RateLimitError):
        await client.responses.create(model="default", input=HAIKU)
    assert not await StoredResponse.objects.aexists()
    assert not await Generation.objects.aexists()


async def test_a_key_that_is_revoked_in_the_middle_ends_the_stream_and_says_so(
    client: openai.AsyncOpenAI, script: Script, recorded: Callable[[], Any], team: Team
) -> None:
    """P12. What was begun in the background goes on nevertheless: it is the team's."""
    asking = asyncio.create_task(client.responses.create(model="default", input=HAIKU, stream=True, background=True))
    taken = await script.taken()
    await script.tell(taken, [Part(text="Old ", token_ids=[1])])
    reading = asyncio.create_task(events_of(await asking))
    assert team.key.key is not None
    await ApiKey.objects.filter(pk=team.key.key.pk).aupdate(revoked_at=timezone.now())
    told = await reading
    assert [event.type for event in told[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert (told[-1].type, told[-1].code) == ("error", "invalid_api_key")
    assert not await script.is_cancelled(taken)
    await script.end(taken, finished(1))
    await recorded()
    assert (await StoredResponse.objects.aget()).output[0]["content"][0]["text"] == "Old "
