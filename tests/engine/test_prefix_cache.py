"""What the prefix cache finds, and above all what it does not find."""

from __future__ import annotations

import random

import pytest

from engine.regions import Region
from engine.sampling_params import SamplingParams
from tests.engine.null_model import expected, null_engine

GREEDY = SamplingParams(max_tokens=6, temperature=0.0)


def ask(engine, prompt, *, tenant="t", regions=(), params=GREEDY):
    """The answer's tokens and how many prompt tokens came from the cache; the engine runs until it is done."""
    engine.add_request("r", prompt, params, tenant=tenant, regions=regions)
    tokens, cached = [], -1
    while engine.has_work():
        for output in engine.step():
            tokens += output.new_token_ids
            cached = output.cached_tokens
    engine.check_integrity()
    return tokens, cached


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(1, 97), k=length)


@pytest.mark.parametrize("hash_bits", [1, 4, 64])
def test_colliding_hashes_never_change_an_answer(hash_bits: int) -> None:
    """C2: with a hash of 4 bits (and of 1) nearly every look-up collides; the null model would see a foreign block."""
    engine = null_engine(num_blocks=64, hash_bits=hash_bits)
    rng = random.Random(1)
    shared = prompt_of(16)
    hits = 0
    for number in range(60):
        prompt = shared[: rng.randrange(1, 17)] + prompt_of(rng.randrange(1, 20), number % 7)
        tokens, cached = ask(engine, prompt)
        assert tokens == expected(prompt, 6)
        hits += cached > 0
    assert hits > 20


def test_found_blocks_survive_an_allocation_between_look_up_and_use() -> None:
    """C3: pool of 4 blocks; A's two cached blocks are found, then B needs 3: A's answer must not read B's tokens."""
    engine = null_engine(num_blocks=4, block_size=4, max_num_seqs=2)
    a, b = prompt_of(9, 1), prompt_of(10, 2)
    ask(engine, a, params=SamplingParams(max_tokens=1))
    assert engine.pool.num_cached == 2
    short = SamplingParams(max_tokens=2)
    engine.add_request("b", b, short, tenant="t")
    engine.add_request("a", a, short, tenant="t")
    answers: dict[str, list[int]] = {"a": [], "b": []}
    while engine.has_work():
        for output in engine.step():
            answers[output.request_id] += output.new_token_ids
        engine.check_integrity()
    assert answers == {"a": expected(a, 2), "b": expected(b, 2)}


def test_acquired_blocks_are_not_evicted_by_the_same_admission() -> None:
    """C3, inside one admission: 2 blocks are found at reference 0, and the rest of the prompt needs all others."""
    engine = null_engine(num_blocks=4, block_size=4)
    head = prompt_of(9, 1)
    ask(engine, head, params=SamplingParams(max_tokens=1))
    whole = head[:8] + prompt_of(8, 3)
    tokens, cached = ask(engine, whole, params=SamplingParams(max_tokens=1))
    assert cached == 8
    assert tokens == expected(whole, 1)


@pytest.mark.parametrize("length", [4, 8, 16])
def test_a_wholly_cached_prompt_still_computes_one_token(length: int) -> None:
    """C4: the length is a multiple of the block size and everything is cached."""
    engine = null_engine(num_blocks=32)
    prompt = prompt_of(length)
    first, _ = ask(engine, prompt)
    engine.runner.batches.clear()
    second, cached = ask(engine, prompt)
    assert second == first == expected(prompt, 6)
    assert cached == length - 4
    assert engine.runner.batches[0] == {"r": 4}


def test_the_next_turn_finds_the_blocks_of_the_answer() -> None:
    engine = null_engine(num_blocks=64)
    prompt = prompt_of(10)
    answer, _ = ask(engine, prompt, params=SamplingParams(max_tokens=21))
    _, cached = ask(engine, prompt + answer + prompt_of(5, 9))
    # All but the answer's last token have been computed: 30 of 31 tokens, so 7 full blocks of 4.
    assert cached == 28


@pytest.mark.parametrize("hash_bits", [1, 64])
def test_other_salts_share_nothing(hash_bits: int) -> None:
    engine = null_engine(num_blocks=64, hash_bits=hash_bits)
    prompt = prompt_of(17)
    for salt, tenant in (("one", "a"), ("two", "a"), ("one", "b"), ("two", "b")):
        _, cached = ask(engine, prompt, tenant=tenant, regions=[Region(17, salt)])
        assert cached == (16 if tenant == "b" else 0), "the salt decides, and only the salt"


def test_without_regions_nothing_is_shared_between_tenants() -> None:
    engine = null_engine(num_blocks=64)
    prompt = prompt_of(17)
    assert ask(engine, prompt, tenant="a")[1] == 0
    assert ask(engine, prompt, tenant="b")[1] == 0
    assert ask(engine, prompt, tenant="a")[1] == 16


@pytest.mark.parametrize(
    ("public_end", "hit"),
    [(8, 8), (7, 4), (9, 8), (11, 8), (12, 12), (3, 0)],
)
def test_a_block_takes_the_salt_of_its_most_private_token(public_end: int, hit: int) -> None:
    """Same tokens, same public region, other private salt: what ends before the region's edge is shared, no more."""
    engine = null_engine(num_blocks=64)
    prompt = prompt_of(17)
    ask(engine, prompt, tenant="a", regions=[Region(public_end, "public"), Region(17, "a")])
    _, cached = ask(engine, prompt, tenant="b", regions=[Region(public_end, "public"), Region(17, "b")])
    assert cached == hit
    _, cached = ask(engine, prompt, tenant="a", regions=[Region(public_end, "public"), Region(17, "a")])
    assert cached == 16


def test_other_tokens_before_an_equal_block_are_another_block() -> None:
    engine = null_engine(num_blocks=64)
    tail = prompt_of(8, 5)
    ask(engine, [1, 2, 3, 4, *tail, 9])
    assert ask(engine, [1, 2, 3, 5, *tail, 9])[1] == 0


def test_nothing_is_found_before_it_is_computed() -> None:
    engine = null_engine(num_blocks=64, token_budget=4, block_size=4)
    prompt = prompt_of(20)
    engine.add_request("first", prompt, GREEDY, tenant="t")
    engine.step()
    assert len(engine.cache) == 1, "one block of four tokens has been computed"
    entries = engine.cache.match(engine._live["first"])
    assert len(entries) == 1


def test_twins_that_compute_the_same_block_end_up_with_one_copy() -> None:
    engine = null_engine(num_blocks=64, token_budget=64)
    prompt = prompt_of(16)
    for name in ("one", "two"):
        engine.add_request(name, prompt, GREEDY, tenant="t")
    engine.step()
    one, two = engine._live["one"].block_table, engine._live["two"].block_table
    assert one[:4] == two[:4]
    assert engine.pool.num_used == 4
    answers: dict[str, list[int]] = {"one": [], "two": []}
    while engine.has_work():
        for output in engine.step():
            answers[output.request_id] += output.new_token_ids
        engine.check_integrity()
    assert answers["one"][-5:] == answers["two"][-5:] == expected(prompt, 6)[-5:]


def test_blocks_of_an_aborted_answer_stay_for_the_next_turn() -> None:
    engine = null_engine(num_blocks=64, token_budget=8)
    prompt = prompt_of(32)
    engine.add_request("r", prompt, GREEDY, tenant="t")
    engine.step()
    engine.step()
    engine.abort("r")
    engine.step()
    assert ask(engine, prompt)[1] == 16


def test_evicted_blocks_are_not_found() -> None:
    engine = null_engine(num_blocks=8)
    first = prompt_of(16, 1)
    ask(engine, first)
    ask(engine, prompt_of(26, 2))
    tokens, cached = ask(engine, first)
    assert cached < 16
    assert tokens == expected(first, 6)


def test_switched_off_it_finds_and_keeps_nothing() -> None:
    engine = null_engine(num_blocks=16, prefix_caching=False)
    for _ in range(2):
        assert ask(engine, prompt_of(16)) == (expected(prompt_of(16), 6), 0)
    assert engine.pool.num_free == 16


def test_a_pinned_prompt_outlives_a_flood_and_an_unpinned_one_does_not() -> None:
    engine = null_engine(num_blocks=16)
    regions = [Region(13, "prompt"), Region(20, "conversation")]
    prompt = prompt_of(20)
    ask(engine, prompt, regions=regions)
    assert engine.pin_prompt("v1", prompt, regions) == 12, "three whole blocks lie before the private region"
    for seed in range(1, 9):
        ask(engine, prompt_of(30, seed), tenant="flood")
    assert ask(engine, prompt, regions=regions)[1] == 12
    engine.unpin_prompt("v1")
    assert engine.pool.pinned() == []
    for seed in range(1, 9):
        ask(engine, prompt_of(30, seed), tenant="flood")
    assert ask(engine, prompt, regions=regions)[1] == 0


def test_a_new_version_of_a_prompt_takes_over_the_pins_of_the_old_one() -> None:
    engine = null_engine(num_blocks=32)
    tables = []
    for seed in (1, 2):
        prompt, regions = prompt_of(20, seed), [Region(16, "prompt"), Region(20, "conversation")]
        ask(engine, prompt, regions=regions)
        assert engine.pin_prompt("tenant's prompt", prompt, regions) == 16
        tables.append(engine.pool.pinned())
    assert not set(tables[0]) & set(tables[1])
    engine.check_integrity()


def test_a_pool_full_of_pins_still_runs_and_unpinning_what_was_evicted_is_harmless() -> None:
    engine = null_engine(num_blocks=8)
    prompt, regions = prompt_of(18), [Region(16, "prompt"), Region(18, "x")]
    ask(engine, prompt, regions=regions, params=SamplingParams(max_tokens=1))
    assert engine.pin_prompt("p", prompt, regions) == 16
    other = prompt_of(30, 7)
    assert ask(engine, other, params=SamplingParams(max_tokens=2))[0] == expected(other, 2)
    engine.pin_prompt("q", other, [Region(8, "tenant t"), Region(30, "tenant t")])
    engine.unpin_prompt("p")
    engine.unpin_prompt("p")
    engine.check_integrity()
