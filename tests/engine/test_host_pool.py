"""The host tier: what had to leave the pool comes back by a copy, and is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig, EngineConfigError
from engine.host_pool import HostPool
from engine.llm_engine import LLMEngine
from engine.outputs import StepError
from engine.regions import Region
from engine.sampling_params import SamplingParams
from tests.engine.null_model import expected, null_engine
from tests.engine.test_prefix_cache import ask, prompt_of
from tests.engine.tiny import make_tiny, numeric

SHORT = SamplingParams(max_tokens=2, temperature=0.0)


def flooded(host_blocks: int | None, *, flood: int = 1) -> LLMEngine:
    """An engine whose pool of 16 blocks has seen a conversation of 30 tokens, and then `flood` prompts that fill it."""
    engine = null_engine(num_blocks=16, host_kv_memory_bytes=host_blocks)
    ask(engine, prompt_of(30), params=SHORT)
    for seed in range(1, flood + 1):
        ask(engine, prompt_of(62, seed), tenant="flood", params=SHORT)
    return engine


def test_an_evicted_conversation_comes_back_from_the_host_and_not_without_one() -> None:
    for host_blocks, found in ((None, 0), (16, 29)):
        engine = flooded(host_blocks)
        engine.runner.batches.clear()
        answer, cached = ask(engine, prompt_of(30), params=SHORT)
        assert (answer, cached) == (expected(prompt_of(30), 2), found)
        assert engine.runner.batches[0] == {"r": min(30 - found, 16)}


def test_what_comes_back_leaves_the_host() -> None:
    engine = flooded(32)
    assert engine.cache.host is not None
    before = len(engine.cache.host)
    ask(engine, prompt_of(30), params=SHORT)
    assert engine.counters()["host_loaded_blocks"] == 7
    # Seven came back, and as many of the flood's had to make room for them.
    assert len(engine.cache.host) <= before + 1


def test_a_flood_takes_host_memory_from_itself() -> None:
    """Ten times what the host holds: the conversation keeps its eight blocks, the flood shares the rest with itself."""
    engine = flooded(24, flood=10)
    assert ask(engine, prompt_of(30), params=SHORT) == (expected(prompt_of(30), 2), 29)


def test_the_salt_counts_on_the_host_as_well() -> None:
    engine = null_engine(num_blocks=16, host_kv_memory_bytes=64)
    prompt = prompt_of(30)
    ask(engine, prompt, tenant="a", regions=[Region(10, "public"), Region(30, "a")])
    ask(engine, prompt_of(58, 1), tenant="flood")
    assert ask(engine, prompt, tenant="b", regions=[Region(10, "public"), Region(30, "b")])[1] == 10
    ask(engine, prompt_of(58, 2), tenant="flood")
    assert ask(engine, prompt, tenant="a", regions=[Region(10, "public"), Region(30, "a")])[1] == 29


def test_two_that_go_on_from_one_evicted_beginning_load_it_once() -> None:
    engine = flooded(32)
    prompts = {name: [*prompt_of(28), *prompt_of(6, seed)] for name, seed in (("x", 5), ("y", 6))}
    for name, prompt in prompts.items():
        engine.add_request(name, prompt, SHORT, tenant="t")
    answers: dict[str, list[int]] = {name: [] for name in prompts}
    while engine.has_work():
        for output in engine.step():
            assert output.cached_tokens == 28
            answers[output.request_id] += output.new_token_ids
        engine.check_integrity()
    assert answers == {name: expected(prompt, 2) for name, prompt in prompts.items()}
    assert engine.counters()["host_loaded_blocks"] == 7


def test_what_was_not_copied_in_a_failed_step_is_not_found() -> None:
    engine = flooded(32)
    engine.runner.fails_at = "copy"
    engine.add_request("r", prompt_of(30), SHORT, tenant="t")
    with pytest.raises(StepError):
        engine.step()
    engine.check_integrity()
    assert ask(engine, prompt_of(30), params=SHORT)[0] == expected(prompt_of(30), 2)
    for seed in range(1, 4):
        assert ask(engine, prompt_of(62, seed), tenant="flood", params=SHORT)[0] == expected(prompt_of(62, seed), 2)


def test_a_pinned_prompt_that_was_evicted_comes_back_and_is_pinned_again() -> None:
    engine = null_engine(num_blocks=16, host_kv_memory_bytes=64)
    prompt, regions = prompt_of(28), [Region(23, "prompt"), Region(28, "chat")]
    engine.prompts.warm("v1", prompt, regions, tenant="t")
    while engine.has_work():
        engine.step()
    ask(engine, prompt_of(62, 9), tenant="needs everything", params=SHORT)
    assert engine.pool.num_pinned == 0
    assert ask(engine, prompt, regions=regions)[1] == 23
    assert engine.pool.num_pinned == 6


def test_a_prompt_restored_from_disk_sends_what_it_evicts_to_the_host_unharmed(tmp_path: Path) -> None:
    chat, regions = prompt_of(28, 4), [Region(23, "prompt"), Region(28, "chat")]
    first = null_engine(num_blocks=16, prompt_store=str(tmp_path))
    first.prompts.warm("v1", chat, regions, tenant="t")
    while first.has_work():
        first.step()
    assert first.prompts.store is not None
    first.prompts.store.flush()
    engine = null_engine(num_blocks=16, host_kv_memory_bytes=64, prompt_store=str(tmp_path))
    ask(engine, prompt_of(60, 5), tenant="other", params=SHORT)
    assert engine.prompts.restore("v1", chat, regions, tenant="t") == 23
    engine.check_integrity()
    assert ask(engine, chat, regions=regions)[1] == 23
    assert ask(engine, prompt_of(60, 5), tenant="other", params=SHORT) == (expected(prompt_of(60, 5), 2), 59)
    # Now the prompt itself lies on the host: what the disk brings takes its place.
    assert engine.prompts.restore("v1", chat, regions, tenant="t") in (0, 23)
    engine.check_integrity()
    assert ask(engine, chat, regions=regions, params=SHORT) == (expected(chat, 2), 27)


@pytest.mark.parametrize(
    ("kind", "kv_dtype"),
    [("float32", "bfloat16"), ("float32", "int8"), ("float32", "fp8"), ("int8", "bfloat16"), ("bf16", "int8")],
)
def test_real_keys_and_values_survive_the_way_to_the_host_and_back(tmp_path: Path, kind: str, kv_dtype: str) -> None:
    model = str(make_tiny(tmp_path / "tiny", head_dim=32))
    settings: Any = {"num_blocks": 12, "block_size": 16, "host_kv_memory_bytes": 1 << 22, **numeric(kind)}
    engine = LLMEngine(EngineConfig(model=model, kv_dtype=kv_dtype, device="cpu", **settings))
    prompt = [3 + i * i % 350 for i in range(100)]
    params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    (cold,) = engine.generate([prompt], params)
    engine.generate([[3 + (i * 7 + 1) % 350 for i in range(170)]], params)
    (back,) = engine.generate([prompt], params)
    assert back.cached_tokens == 99
    assert engine.counters()["host_loaded_blocks"] >= 5
    assert back.token_ids == cold.token_ids


def test_host_memory_that_is_not_there_is_refused_at_the_start() -> None:
    config: Any = EngineConfig(host_kv_memory_bytes=1 << 50)
    with pytest.raises(EngineConfigError, match=r"host_kv_memory_bytes is .* are free; lower it"):
        config.host_blocks(1 << 20, 1 << 30)


def test_the_slot_that_goes_is_the_oldest_of_who_holds_most_for_its_weight() -> None:
    host = HostPool(6, 100, {"heavy": 4.0})
    heavy = [host.take("heavy") for _ in range(4)]
    light = [host.take("light") for _ in range(2)]
    assert host.is_full
    assert host.next_to_go() == light[0]
    host.hold(light[0])
    host.hold(light[1])
    assert host.next_to_go() == heavy[0], "what is on hold does not go"
    host.let_go(light[1])
    host.clear(light[0])
    assert {host.take("light")} == {light[0]}
    assert host.next_to_go() == light[1]
