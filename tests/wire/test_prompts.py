"""Published prompts and token counts between the product and real workers: hints, acknowledgements, letting go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias

import pytest

from chatapp.streaming import connection, prompts, submit, workers
from engine import protocol
from engine.protocol import ChatMessage, Finished, PublishedPrompt, Started, SystemText
from engine.tokenizer import Tokenizer
from tests.wire.conftest import MODEL, InProcess, Process, Wire, a_question, answer_of, until

pytestmark = pytest.mark.usefixtures("closing")
Serve: TypeAlias = Callable[..., InProcess]
TEXT = "You answer for a shop that sells tents, boots and stoves. Be brief. " * 4


def published(version: str, text: str = TEXT, prompt: str = "p1", tenant: str = "a") -> PublishedPrompt:
    return PublishedPrompt(
        tenant=tenant, version=version, prompt=prompt, system=[SystemText(text, f"salt of {tenant}")]
    )


async def cached(text: str, version: str, prompt: str = "p1", tenant: str = "a") -> int:
    request = a_question(
        tenant, tokens=4, system=[SystemText(text, f"salt of {tenant}")], prompt=prompt, prompt_version=version
    )
    submit.enqueue(request)
    events = await answer_of(request.id)
    assert isinstance(events[-1], Finished)
    return next(event.cached_tokens for event in events if isinstance(event, Started))


async def test_a_worker_acknowledges_a_prompt_once_it_is_in_memory(wire: Wire, serve: Serve) -> None:
    served = serve()
    await until(workers.live)
    assert prompts.announce(published("v1")) == 1
    await until(lambda: prompts.warm_workers("v1") == {served.worker.id})
    assert served.engine.pool.pinned()
    assert 0 < wire.redis.ttl(protocol.warm_key("v1")) <= protocol.WARM_TTL_S  # type: ignore[operator]
    assert await cached(TEXT, "v1") > 30, "the first who asks finds it computed"
    wire.redis.delete(protocol.warm_key("v1"))
    prompts.announce(published("v1"))
    await until(lambda: prompts.warm_workers("v1") == {served.worker.id})


async def test_no_worker_misses_a_hint_that_was_sent_when_its_heartbeat_was_seen(wire: Wire, serve: Serve) -> None:
    for number in range(3):
        served = serve()
        await until(lambda served=served: any(worker.id == served.worker.id for worker in workers.live()))
        prompts.announce(published(f"v{number}"), worker=served.worker.id)
        await until(lambda number=number, served=served: prompts.warm_workers(f"v{number}") == {served.worker.id})


async def test_a_hint_for_one_worker_is_not_minded_by_the_others(wire: Wire, serve: Serve) -> None:
    first, second = serve(), serve()
    await until(lambda: len(workers.live()) == 2)
    prompts.announce(published("v1"), worker=second.worker.id)
    await until(lambda: prompts.warm_workers("v1"))
    await asyncio.sleep(0.3)
    assert prompts.warm_workers("v1") == {second.worker.id}
    assert first.worker.prompts.pinned == {}


async def test_prompts_are_announced_to_the_engines_of_their_models_alone(wire: Wire, serve: Serve) -> None:
    serve()
    await until(workers.live)
    assert prompts.announce(published("v1"), models={"another"}) == 0
    assert prompts.announce(published("v1"), models={"another", MODEL}) == 1


async def test_several_prompts_of_a_tenant_are_kept_side_by_side(wire: Wire, serve: Serve) -> None:
    served = serve()
    await until(workers.live)
    texts = {"p1": TEXT, "p2": TEXT.replace("shop", "school")}
    for name, text in texts.items():
        prompts.announce(published(f"v of {name}", text, name))
        await until(lambda name=name: prompts.warm_workers(f"v of {name}"))
    assert served.worker.prompts.pinned == {"p1": "v of p1", "p2": "v of p2"}
    for name, text in texts.items():
        assert await cached(text, f"v of {name}", name) > 30


async def test_a_released_prompt_is_unpinned_and_late_requests_do_not_pin_it_again(wire: Wire, serve: Serve) -> None:
    served = serve()
    await until(workers.live)
    prompts.announce(published("v1"))
    await until(lambda: prompts.warm_workers("v1"))
    prompts.release("p1", "v1")
    await until(lambda: not served.engine.pool.pinned())
    assert prompts.warm_workers("v1") == set()
    assert wire.redis.get(protocol.published_key("v1")) is None
    await cached(TEXT, "v1")
    assert not served.engine.pool.pinned()
    assert served.worker.prompts.pinned == {}
    prompts.announce(published("v1"))
    await until(lambda: served.engine.pool.pinned())


async def test_a_request_with_the_former_version_does_not_take_the_newer_ones_place(wire: Wire, serve: Serve) -> None:
    """It was accepted before the switch and starts after it."""
    served = serve()
    await until(workers.live)
    newer = TEXT.replace("brief", "kind")
    for version, text in (("v1", TEXT), ("v2", newer)):
        prompts.announce(published(version, text))
        await until(lambda version=version: prompts.warm_workers(version))
    pinned = set(served.engine.pool.pinned())
    await cached(TEXT, "v1")
    assert served.worker.prompts.pinned == {"p1": "v2"}
    assert set(served.engine.pool.pinned()) == pinned


async def test_the_former_version_stays_pinned_until_the_newer_one_is_computed(wire: Wire, serve: Serve) -> None:
    served = serve(token_budget=32, max_num_seqs=8)
    engine = served.engine
    await until(workers.live)
    prompts.announce(published("v1"))
    await until(lambda: prompts.warm_workers("v1"))
    seen = []
    advance = engine.prompts.advance

    def watched(*args: object) -> None:
        seen.append(len(engine.pool.pinned()))
        advance(*args)  # type: ignore[arg-type]

    engine.prompts.advance = watched
    prompts.announce(published("v2", "Another house. " + TEXT * 3))
    await until(lambda: prompts.warm_workers("v2"))
    assert len(seen) > 2
    assert all(seen), "there was no moment without a pinned prompt"


# --- how long is a text? ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["Be brief.", TEXT, "Grüße, 삼겹살 👨‍👩‍👧 e\u0301\n\n\ttabs <|im_start|>"])
@pytest.mark.parametrize("preamble", [[], ["Of the house."]])
async def test_a_count_equals_what_an_answer_shares(
    wire: Wire, serve: Serve, tiny_path: str, text: str, preamble: list[str]
) -> None:
    served = serve()
    await until(workers.live)
    counted = await asyncio.to_thread(prompts.count, [*preamble, text], model=MODEL)
    system = [SystemText(part, f"salt {n}") for n, part in enumerate([*preamble, text])]
    _, regions = Tokenizer.load(tiny_path).render_chat(system, [ChatMessage("user", "Hello?")], "own")
    assert counted.tokens == regions[-2].end > 0
    assert counted.own_tokens == len(Tokenizer.load(tiny_path).encode(text)) < counted.tokens
    assert (counted.block_size, counted.context) == (served.engine.block_size, served.engine.context)
    assert counted.tenant_blocks == served.engine.max_blocks_per_tenant
    assert not [key for key in wire.key_names() if ":count:" in key or ":counted:" in key], "no text stays"


async def test_a_real_worker_process_counts_within_a_second_while_it_answers_and_logs_no_text(
    wire: Wire, process: Callable[..., Process]
) -> None:
    worker = await process().ready()
    running = a_question(tokens=3000)
    submit.enqueue(running)
    await until(lambda: wire.state(running.id) == "running")
    for number in range(5):
        counted = await asyncio.to_thread(prompts.count, [f"The vault opens at {number}. " * 50], model=MODEL)
        assert counted.tokens > 50
    prompts.announce(published("v1", "The vault opens at nine. " * 20))
    await until(lambda: prompts.warm_workers("v1"))
    worker.popen.terminate()
    status, said = await asyncio.to_thread(worker.end)
    assert status == 0
    assert "vault" not in said
    assert "prompt.warm" in said


async def test_without_a_worker_a_count_says_so_at_once(wire: Wire) -> None:
    with pytest.raises(prompts.NoWorker):
        prompts.count(["text"], model=MODEL)
    wire.beat("deaf")
    with pytest.raises(prompts.NoAnswer):
        await asyncio.to_thread(prompts.count, ["text"], model=MODEL, within_s=0.2)
    assert not [key for key in wire.key_names() if ":count" in key]


async def test_of_two_workers_one_answers_a_count(wire: Wire, serve: Serve) -> None:
    serve(), serve()
    await until(lambda: len(workers.live()) == 2)
    for _ in range(10):
        await asyncio.to_thread(prompts.count, ["text"], model=MODEL)
    await asyncio.sleep(0.2)
    assert not [key for key in wire.key_names() if ":count" in key]


async def test_an_odd_or_too_long_count_request_harms_nobody(
    wire: Wire, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    serve()
    await until(workers.live)
    client = connection.sync_redis()
    for request_id, payload in (("odd", b"{no json"), ("long", b"x" * (protocol.MOST_COUNT_BYTES + 1))):
        client.set(protocol.count_key(request_id), payload, ex=5)
        client.xadd(protocol.control_key(MODEL), protocol.count_hint(request_id))
    with caplog.at_level(logging.DEBUG):
        assert (await asyncio.to_thread(prompts.count, ["The vault."], model=MODEL)).tokens
    assert "vault" not in caplog.text
    with pytest.raises(ValueError, match="bytes"):
        prompts.count(["x" * protocol.MOST_COUNT_BYTES], model=MODEL)
