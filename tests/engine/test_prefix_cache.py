"""What the prefix cache finds, and above all what it does not find."""

from __future__ import annotations

import random

import pytest

from engine.outputs import RequestRefused, StepError
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
    assert engine.pool.num_cached == 3, "two full blocks and one token of a third"
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
    assert cached == length - 1
    assert engine.runner.batches[0] == {"r": 1}


def test_the_next_turn_finds_the_blocks_of_the_answer() -> None:
    engine = null_engine(num_blocks=64)
    prompt = prompt_of(10)
    answer, _ = ask(engine, prompt, params=SamplingParams(max_tokens=21))
    _, cached = ask(engine, prompt + answer + prompt_of(5, 9))
    assert cached == 30, "all but the answer's last token have been computed"


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


@pytest.mark.parametrize("public_end", [8, 7, 9, 11, 12, 3])
def test_what_is_shared_ends_at_the_regions_edge(public_end: int) -> None:
    """Same tokens, same public region, other private salt: what lies before the region's edge is shared, no more."""
    engine = null_engine(num_blocks=64)
    prompt = prompt_of(17)
    ask(engine, prompt, tenant="a", regions=[Region(public_end, "public"), Region(17, "a")])
    _, cached = ask(engine, prompt, tenant="b", regions=[Region(public_end, "public"), Region(17, "b")])
    assert cached == public_end
    _, cached = ask(engine, prompt, tenant="a", regions=[Region(public_end, "public"), Region(17, "a")])
    assert cached == 16


def test_other_tokens_before_an_equal_block_are_another_block() -> None:
    engine = null_engine(num_blocks=64)
    tail = prompt_of(8, 5)
    ask(engine, [1, 2, 3, 4, *tail, 9])
    assert ask(engine, [1, 2, 3, 5, *tail, 9])[1] == 3


def test_nothing_is_found_before_it_is_computed() -> None:
    engine = null_engine(num_blocks=64, token_budget=4, block_size=4)
    prompt = prompt_of(20)
    engine.add_request("first", prompt, GREEDY, tenant="t")
    engine.step()
    assert len(engine.cache) == 1, "one block of four tokens has been computed"
    match = engine.cache.match(engine._live["first"][0])
    assert (len(match.entries), match.tokens) == (1, 4)


def test_two_tenants_that_compute_the_same_block_end_up_with_one_copy() -> None:
    engine = null_engine(num_blocks=64, token_budget=64)
    prompt = prompt_of(16)
    for name in ("one", "two"):
        engine.add_request(name, prompt, GREEDY, tenant=name, regions=[Region(16, "public")])
    engine.step()
    one, two = engine._live["one"][0].block_table, engine._live["two"][0].block_table
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
    assert engine.prompts.pin("v1", prompt, regions) == 13, "up to the private region, in the middle of a block"
    for seed in range(1, 9):
        ask(engine, prompt_of(40, seed), tenant="flood")
    assert ask(engine, prompt, regions=regions)[1] >= 13
    engine.prompts.release("v1")
    assert engine.pool.pinned() == []
    ask(engine, prompt_of(58, 9), tenant="flood")
    assert ask(engine, prompt, regions=regions)[1] == 0


def test_a_new_version_of_a_prompt_takes_over_the_pins_of_the_old_one() -> None:
    engine = null_engine(num_blocks=32)
    tables = []
    for seed in (1, 2):
        prompt, regions = prompt_of(20, seed), [Region(16, "prompt"), Region(20, "conversation")]
        ask(engine, prompt, regions=regions)
        assert engine.prompts.pin("tenant's prompt", prompt, regions) == 16
        tables.append(engine.pool.pinned())
    assert not set(tables[0]) & set(tables[1])
    engine.check_integrity()


def test_a_pool_full_of_pins_still_runs_and_unpinning_what_was_evicted_is_harmless() -> None:
    engine = null_engine(num_blocks=8)
    prompt, regions = prompt_of(18), [Region(16, "prompt"), Region(18, "x")]
    ask(engine, prompt, regions=regions, params=SamplingParams(max_tokens=1))
    assert engine.prompts.pin("p", prompt, regions) == 16
    other = prompt_of(30, 7)
    assert ask(engine, other, params=SamplingParams(max_tokens=2))[0] == expected(other, 2)
    engine.prompts.pin("q", other, [Region(8, "tenant t"), Region(30, "tenant t")])
    engine.prompts.release("p")
    engine.prompts.release("p")
    engine.check_integrity()


# --- part-filled blocks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("common", [1, 3, 4, 5, 7, 15, 18])
def test_a_match_counts_in_tokens(common: int) -> None:
    engine = null_engine(num_blocks=64)
    first, second = prompt_of(19, 1), prompt_of(19, 1)[:common] + [96 if t != 96 else 95 for t in prompt_of(9, 2)]
    second[common] = first[common] % 96 + 1
    ask(engine, first)
    answer, cached = ask(engine, second)
    assert cached == common
    assert answer == expected(second, 6)


def test_of_many_that_begin_alike_the_one_that_agrees_longest_is_copied() -> None:
    engine = null_engine(num_blocks=256, block_size=8)
    rng = random.Random(3)
    said: list[list[int]] = []
    for _ in range(40):
        prompt = [rng.choice((1, 2)) for _ in range(8)] + [50, 51]
        longest = max((len(common_start(prompt[:-1], other)) for other in said), default=0)
        _, cached = ask(engine, prompt, params=SamplingParams(max_tokens=1))
        assert cached == longest
        said.append(prompt)


def common_start(one: list[int], two: list[int]) -> list[int]:
    end = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    return one[:end]


def test_the_source_of_a_copy_is_left_as_it_was() -> None:
    """Three go on from one beginning; each answer reads only its own continuation."""
    engine = null_engine(num_blocks=64, max_num_seqs=4)
    beginning = prompt_of(6)
    ask(engine, beginning)
    prompts = {name: [*beginning, seed, seed + 1, seed + 2] for name, seed in (("x", 11), ("y", 22), ("z", 33))}
    for name, prompt in prompts.items():
        engine.add_request(name, prompt, GREEDY, tenant="t")
    answers: dict[str, list[int]] = {name: [] for name in prompts}
    while engine.has_work():
        for output in engine.step():
            assert output.cached_tokens == 6
            answers[output.request_id] += output.new_token_ids
    assert answers == {name: expected(prompt, 6) for name, prompt in prompts.items()}
    assert ask(engine, beginning)[0] == expected(beginning, 6)


def test_a_part_filled_block_that_a_fuller_one_replaces_is_free_again() -> None:
    """Ten turns of one conversation: what lies in the pool is the conversation, not ten of its part-filled ends."""
    engine = null_engine(num_blocks=64, block_size=8)
    prompt = prompt_of(5)
    for seed in range(10):
        answer, _ = ask(engine, prompt)
        prompt = [*prompt, *answer, *prompt_of(3, seed)]
    held = engine.pool.num_cached
    assert held == -(-(len(prompt) - 4) // 8)


def test_a_copy_that_failed_is_never_found() -> None:
    engine = null_engine(num_blocks=64)
    ask(engine, prompt_of(6))
    engine.runner.fails_at = "copy"
    longer = [*prompt_of(6), 7, 8, 9]
    engine.add_request("r", longer, GREEDY, tenant="t")
    with pytest.raises(StepError):
        engine.step()
    engine.check_integrity()
    assert ask(engine, longer) == (expected(longer, 6), 6)


# --- waiting twins, and several choices -----------------------------------------------------------------------------


def test_of_waiting_twins_one_computes_the_prompt_and_the_others_copy_its_end() -> None:
    engine = null_engine(num_blocks=64, max_num_seqs=4, token_budget=64)
    prompt = prompt_of(22)
    for name in "abcd":
        engine.add_request(name, prompt, GREEDY, tenant="t")
    answers: dict[str, list[int]] = {name: [] for name in "abcd"}
    cached = {}
    while engine.has_work():
        for output in engine.step():
            answers[output.request_id] += output.new_token_ids
            cached[output.request_id] = output.cached_tokens
    assert cached == {"a": 0, "b": 21, "c": 21, "d": 21}
    assert engine.runner.batches[0] == {"a": 22}
    assert engine.runner.batches[1] == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert all(answer == expected(prompt, 6) for answer in answers.values())


def test_a_twin_waits_only_while_the_other_computes_what_it_needs() -> None:
    """The long prompt is computed in chunks; what shares only its first blocks starts as soon as those are there."""
    engine = null_engine(num_blocks=64, max_num_seqs=4, token_budget=8)
    long, short = prompt_of(60, 1), prompt_of(60, 1)[:8] + prompt_of(4, 2)
    engine.add_request("long", long, GREEDY, tenant="t")
    engine.add_request("short", short, GREEDY, tenant="t")
    engine.step()
    assert engine._live["short"][0].row == -1
    while not engine._live["short"][0].num_output:
        engine.step()
    assert engine._live["short"][0].num_cached == 8
    assert engine._live["long"][0].num_output == 1 or engine._live["long"][0].num_computed < 60


def test_a_twin_takes_over_when_the_one_it_waited_for_is_aborted() -> None:
    engine = null_engine(num_blocks=64, max_num_seqs=4, token_budget=8)
    prompt = prompt_of(30)
    for name in "ab":
        engine.add_request(name, prompt, GREEDY, tenant="t")
    engine.step()
    engine.abort("a")
    answer: list[int] = []
    while engine.has_work():
        for output in engine.step():
            answer += output.new_token_ids if output.request_id == "b" else []
    assert answer == expected(prompt, 6)


def test_tenants_do_not_wait_for_each_others_twins() -> None:
    engine = null_engine(num_blocks=64, max_num_seqs=4, token_budget=64)
    for name in "ab":
        engine.add_request(name, prompt_of(16), GREEDY, tenant=name, regions=[Region(16, "public")])
    engine.step()
    assert engine.runner.batches[0] == {"a": 16, "b": 16}


def test_waiting_twins_hold_up_nobody_else() -> None:
    engine = null_engine(num_blocks=128, max_num_seqs=4, token_budget=8)
    for number in range(30):
        engine.add_request(f"twin {number}", prompt_of(60), GREEDY, tenant="t")
    engine.add_request("other", prompt_of(7, 5), GREEDY, tenant="other")
    engine.step()
    engine.step()
    assert engine._live["other"][0].row >= 0


def test_the_choices_of_a_request_share_its_prompt() -> None:
    engine = null_engine(num_blocks=64, block_size=4, max_num_seqs=8, token_budget=64)
    prompt = prompt_of(22)
    engine.add_request("r", prompt, SamplingParams(max_tokens=6, n=4), tenant="t")
    started, answers = [], {index: [] for index in range(4)}
    ended = []
    while engine.has_work():
        for output in engine.step():
            started += [output.started] if output.started else []
            answers[output.index] += output.new_token_ids
            ended += [output.index] if output.finish_reason else []
        engine.check_integrity()
        if engine.steps == 2:
            tables = [sequence.block_table for sequence in engine._live["r"]]
            assert all(table[:5] == tables[0][:5] for table in tables), "the five full blocks of the prompt"
            assert len({table[5] for table in tables}) == 4, "each has its own copy of the sixth"
    assert started == [(22, 0)]
    assert sorted(ended) == [0, 1, 2, 3]
    assert all(answer == expected(prompt, 6) for answer in answers.values())
    assert engine.counters()["prompt_tokens"] == 22


# --- prompts that stay ----------------------------------------------------------------------------------------------

PROMPT, CHAT = prompt_of(23, 4), [*prompt_of(23, 4), 5, 6, 7, 8, 9]
REGIONS = [Region(23, "prompt"), Region(28, "chat")]


def test_a_warmed_prompt_is_found_by_the_first_who_asks_and_says_nothing_itself() -> None:
    engine = null_engine(num_blocks=64)
    engine.prompts.warm("v1", CHAT, REGIONS, tenant="t")
    while engine.has_work():
        assert engine.step() == []
    assert engine.pool.num_pinned == 6
    answer, cached = ask(engine, CHAT, regions=REGIONS)
    assert (answer, cached) == (expected(CHAT, 6), 23)


def test_warming_takes_its_turn_by_the_tenants_share() -> None:
    engine = null_engine(num_blocks=64, token_budget=8)
    engine.prompts.warm("v1", CHAT, REGIONS, tenant="t")
    engine.step()
    engine.add_request("other", prompt_of(5), GREEDY, tenant="other")
    engine.step()
    assert engine.runner.batches[1]["other"] == 5


def test_a_prompt_released_while_it_is_computed_ends_there() -> None:
    engine = null_engine(num_blocks=64, token_budget=8)
    engine.prompts.warm("v1", CHAT, REGIONS, tenant="t")
    engine.step()
    engine.prompts.release("v1")
    engine.prompts.release("v1")
    assert not engine.has_work()
    assert engine.pool.num_pinned == 0
    engine.check_integrity()


def test_a_prompt_too_long_for_the_pool_is_refused() -> None:
    engine = null_engine(num_blocks=4)
    with pytest.raises(RequestRefused, match="23 tokens, but at most 16 fit"):
        engine.prompts.warm("v1", CHAT, REGIONS, tenant="t")
    assert not engine.has_work()


def test_an_evicted_pin_comes_back_with_the_tenants_next_request() -> None:
    engine = null_engine(num_blocks=16)
    engine.prompts.warm("v1", CHAT, REGIONS, tenant="t")
    while engine.has_work():
        engine.step()
    ask(engine, prompt_of(58, 9), tenant="needs everything")
    assert engine.pool.num_pinned == 0
    ask(engine, CHAT, regions=REGIONS)
    assert engine.pool.num_pinned == 6
    for seed in range(5):
        ask(engine, prompt_of(30, seed), tenant="flood")
    assert ask(engine, CHAT, regions=REGIONS)[1] >= 23


def test_two_tenants_share_the_room_for_pins_whoever_came_first() -> None:
    engine = null_engine(num_blocks=16)
    for name, seed in (("first", 1), ("second", 2)):
        prompt, regions = prompt_of(33, seed), [Region(32, name), Region(33, f"{name}'s chat")]
        engine.prompts.warm(name, prompt, regions, tenant=name)
        while engine.has_work():
            engine.step()
        engine.check_integrity()
    assert engine.pool.num_pinned == 8
    owners = [engine.pool.owner[block] for block in engine.pool.pinned()]
    assert owners.count("first") == owners.count("second") == 4


def test_a_tenant_with_many_prompts_has_no_more_room_for_pins_than_one_with_one() -> None:
    engine = null_engine(num_blocks=32)
    for number in range(12):
        prompt, regions = prompt_of(9, number), [Region(8, "many"), Region(9, "chat")]
        engine.prompts.warm(f"many {number}", prompt, regions, tenant="many")
        while engine.has_work():
            engine.step()
    prompt, regions = prompt_of(41, 99), [Region(40, "one"), Region(41, "chat")]
    engine.prompts.warm("one", prompt, regions, tenant="one")
    while engine.has_work():
        engine.step()
    owners = [engine.pool.owner[block] for block in engine.pool.pinned()]
    assert owners.count("one") >= 7
    assert len(owners) == 16
    engine.check_integrity()


def test_a_prompt_that_found_no_room_is_pinned_once_there_is_some() -> None:
    engine = null_engine(num_blocks=32)
    for name in ("first", "second"):
        prompt, regions = prompt_of(61, len(name)), [Region(60, name), Region(61, "chat")]
        engine.prompts.warm(name, prompt, regions, tenant=name)
        while engine.has_work():
            engine.step()
    assert engine.pool.num_pinned == 16
    engine.prompts.release("first")
    assert engine.pool.num_pinned < 15
    ask(engine, prompt_of(61, len("second")), tenant="second", regions=[Region(60, "second"), Region(61, "chat")])
    assert engine.pool.num_pinned == 15


# --- limits of a tenant ---------------------------------------------------------------------------------------------


def test_a_tenant_runs_no_more_than_its_limit_and_others_are_not_held_up() -> None:
    engine = null_engine(num_blocks=64, max_num_seqs=4, max_seqs_per_tenant=2, token_budget=32)
    for number in range(5):
        engine.add_request(f"a{number}", prompt_of(5, number), GREEDY, tenant="a")
    engine.add_request("b", prompt_of(5, 9), GREEDY, tenant="b")
    most = 0
    while engine.has_work():
        engine.step()
        running, _ = engine.scheduler.counts()
        most = max(most, running.get("a", 0))
    assert most == 2
    assert any("b" in batch for batch in engine.runner.batches[:2])


def test_a_tenants_sequences_never_use_more_than_its_share_of_the_pool() -> None:
    engine = null_engine(num_blocks=32, max_num_seqs=8, max_kv_share=0.25, token_budget=64)
    with pytest.raises(RequestRefused, match="33 tokens, but at most 32 fit"):
        engine.add_request("long", prompt_of(33), GREEDY, tenant="a")
    for number in range(6):
        engine.add_request(f"a{number}", prompt_of(9, number), SamplingParams(max_tokens=20), tenant="a")
    answers: dict[str, list[int]] = {f"a{number}": [] for number in range(6)}
    while engine.has_work():
        for output in engine.step():
            answers[output.request_id] += output.new_token_ids
        assert engine.pool.used_of.get("a", 0) <= 8
    assert answers == {f"a{number}": expected(prompt_of(9, number), 20) for number in range(6)}


def test_a_share_that_comes_with_a_request_holds_from_then_on_for_its_tenant_alone() -> None:
    engine = null_engine(num_blocks=32, max_num_seqs=8, token_budget=64)
    with pytest.raises(RequestRefused, match="33 tokens, but at most 32 fit"):
        engine.add_request("long", prompt_of(33), GREEDY, tenant="a", kv_share=0.25)
    for wrong in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(RequestRefused, match="kv_share"):
            engine.add_request("wrong", prompt_of(3), GREEDY, tenant="a", kv_share=wrong)
    most = {}
    for share in (0.25, 0.5, 1.0):
        for number in range(6):
            name, params = f"{share}-{number}", SamplingParams(max_tokens=20)
            engine.add_request(name, prompt_of(9, number), params, tenant="a", kv_share=share)
        engine.add_request(f"{share}-b", prompt_of(33), GREEDY, tenant="b")
        most[share] = 0
        while engine.has_work():
            engine.step()
            most[share] = max(most[share], engine.pool.used_of.get("a", 0))
    assert most[0.25] <= 8 < most[0.5] <= 16 < most[1.0]
    assert engine.scheduler._blocks_of == {}, "nothing is kept of tenants that are gone"


def test_a_prompt_above_its_own_bound_is_refused_with_both_numbers() -> None:
    engine = null_engine(num_blocks=32)
    with pytest.raises(RequestRefused, match="11 tokens, but at most 10 are allowed") as refused:
        engine.add_request("a", prompt_of(11), GREEDY, max_prompt_tokens=10)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")
    engine.add_request("a", prompt_of(10), GREEDY, max_prompt_tokens=10)
