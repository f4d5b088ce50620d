"""What runs when: budgets, admission, preemption, fairness between tenants, progress. Steps and tokens are counted."""

from __future__ import annotations

import random

import pytest

from engine.llm_engine import LLMEngine
from engine.outputs import RequestRefused
from engine.sampling_params import SamplingParams
from engine.scheduler import Batch
from engine.sequence import Sequence, SequenceState
from tests.engine.null_model import expected, null_engine


def params(max_tokens: int = 8) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(1, 97), k=length)


class Run:
    """Steps an engine and keeps what it says: answers, first-token steps, finish reasons."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self.answers: dict[str, list[int]] = {}
        self.first_token_at: dict[str, int] = {}
        self.reasons: dict[str, str] = {}

    def step(self) -> None:
        for output in self.engine.step():
            self.answers.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.new_token_ids:
                self.first_token_at.setdefault(output.request_id, self.engine.steps)
            if output.finish_reason:
                assert output.request_id not in self.reasons, "a request ended twice"
                self.reasons[output.request_id] = output.finish_reason

    def until_idle(self, limit: int = 20_000) -> Run:
        for _ in range(limit):
            if not self.engine.has_work():
                return self
            self.step()
        raise AssertionError(f"no end after {limit} steps")


# --- budget ---------------------------------------------------------------------------------------------------------


def test_no_step_exceeds_the_budget_while_a_long_prompt_runs_among_chats() -> None:
    """C18: one 8k-token prompt among 16 running chats."""
    engine = null_engine(num_blocks=1024, block_size=16, max_num_seqs=17, token_budget=64, max_model_len=9000)
    run = Run(engine)
    for chat in range(16):
        engine.add_request(f"chat-{chat}", prompt_of(10, chat), params(400), tenant="chats")
    while len(run.first_token_at) < 16:
        run.step()
    engine.add_request("long", prompt_of(8000, 99), params(2), tenant="long")
    before = len(engine.runner.batches)
    while "long" not in run.first_token_at:
        run.step()
    batches = engine.runner.batches[before:]
    assert len(batches) == -(-8000 // (64 - 16))
    for batch in batches:
        assert sum(batch.values()) <= 64
        assert batch["long"] <= 64 - 16
        assert [batch[f"chat-{chat}"] for chat in range(16)] == [1] * 16, "every chat gets its token in every step"


def test_decodes_come_first_and_prompts_share_what_is_left() -> None:
    engine = null_engine(num_blocks=64, token_budget=8, max_num_seqs=4)
    engine.add_request("a", prompt_of(6, 1), params())
    engine.add_request("b", prompt_of(12, 2), params())
    engine.step()
    assert engine.runner.batches[-1] == {"a": 6, "b": 2}
    engine.step()
    assert engine.runner.batches[-1] == {"a": 1, "b": 7}
    engine.step()
    assert engine.runner.batches[-1] == {"a": 1, "b": 3}


@pytest.mark.parametrize("token_budget", [4, 5, 16, 64, 1000])
def test_the_budget_changes_no_answer(token_budget: int) -> None:
    engine = null_engine(num_blocks=200, token_budget=token_budget)
    run = Run(engine)
    for number in range(10):
        engine.add_request(str(number), prompt_of(5 + 7 * number, number), params(), tenant=f"t{number % 3}")
    run.until_idle()
    assert run.answers == {str(n): expected(prompt_of(5 + 7 * n, n), 8) for n in range(10)}


# --- what fits ------------------------------------------------------------------------------------------------------


def test_a_prompt_that_can_never_fit_is_refused_with_both_numbers_and_the_next_one_runs() -> None:
    """C14, first half: prompt of 1,002 tokens, pool for 784."""
    engine = null_engine(num_blocks=49, block_size=16)
    with pytest.raises(RequestRefused) as refused:
        engine.add_request("big", prompt_of(1002), params())
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.param == "messages"
    assert "1002" in refused.value.message
    assert "784" in refused.value.message
    engine.add_request("small", prompt_of(784 - 8), params())
    assert Run(engine).until_idle().reasons == {"small": "length"}


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers() -> None:
    engine = null_engine(num_blocks=100, max_model_len=64)
    with pytest.raises(RequestRefused, match=r"64 tokens, but at most 63"):
        engine.add_request("big", prompt_of(64), params())
    engine.add_request("fits", prompt_of(63), params())
    run = Run(engine).until_idle()
    assert run.reasons == {"fits": "length"}
    assert len(run.answers["fits"]) == 1


def test_an_answer_that_fills_the_pool_ends_with_length() -> None:
    """C14, second half: prompt 1,000 + max_tokens 24, pool for 1,008. The last token drawn needs no slot."""
    engine = null_engine(num_blocks=63, block_size=16)
    engine.add_request("r", prompt_of(1000), params(24))
    run = Run(engine).until_idle()
    assert run.reasons == {"r": "length"}
    assert run.answers["r"] == expected(prompt_of(1000), 9)
    assert engine.scheduler.preemptions == 0


def test_a_head_that_does_not_fit_is_passed_over_by_other_tenants_and_by_its_own() -> None:
    engine = null_engine(num_blocks=20, max_num_seqs=8, token_budget=80)
    run = Run(engine)
    engine.add_request("runs", prompt_of(40, 1), params(30), tenant="a")
    run.step()
    engine.add_request("big", prompt_of(60, 2), params(2), tenant="b")
    engine.add_request("small of b", prompt_of(4, 3), params(2), tenant="b")
    engine.add_request("small of c", prompt_of(4, 4), params(2), tenant="c")
    while "small of b" not in run.reasons or "small of c" not in run.reasons:
        run.step()
    assert "big" not in run.first_token_at
    assert "runs" not in run.reasons
    run.until_idle()
    assert run.answers["big"] == expected(prompt_of(60, 2), 2)


def test_a_big_head_is_not_passed_over_for_ever() -> None:
    """Small ones of new tenants keep coming; once `patience` have passed none is admitted until the big one fits."""
    engine = null_engine(num_blocks=16, max_num_seqs=4, token_budget=64, patience=20)
    run = Run(engine)
    number = 0

    def keep_small_ones_coming() -> None:
        nonlocal number
        while engine.scheduler.num_waiting < 4:
            engine.add_request(f"small-{number}", prompt_of(8, number), params(2 + number % 5), tenant=f"s{number}")
            number += 1

    keep_small_ones_coming()
    run.step()
    engine.add_request("big", prompt_of(60, 5), params(1), tenant="big")
    for _ in range(200):
        keep_small_ones_coming()
        run.step()
        if "big" in run.reasons:
            break
    assert run.reasons.get("big") == "length"


# --- preemption -----------------------------------------------------------------------------------------------------


def test_preempted_sequences_hit_the_cache_when_they_come_back_and_all_finish() -> None:
    """C5, scaled: 512 requests in a pool for 8. Every answer is right."""
    engine = null_engine(num_blocks=8 * 6, block_size=4, max_num_seqs=16, token_budget=64)
    run = Run(engine)
    readmitted_hits = 0
    admit = engine.scheduler._admit

    def admit_and_count(sequence: Sequence, batch: Batch) -> object:
        nonlocal readmitted_hits
        was_preempted = sequence.state is SequenceState.PREEMPTED
        admission = admit(sequence, batch)
        readmitted_hits += was_preempted and sequence.num_computed >= engine.block_size
        return admission

    engine.scheduler._admit = admit_and_count
    for number in range(512):
        engine.add_request(
            str(number), prompt_of(8 + number % 9, number), params(8 + number % 5), tenant=str(number % 5)
        )
    run.until_idle()
    assert len(run.reasons) == 512
    for number in range(512):
        assert run.answers[str(number)] == expected(prompt_of(8 + number % 9, number), 8 + number % 5)
    assert engine.scheduler.preemptions > 0
    assert readmitted_hits > 0


def test_a_pool_just_too_small_for_two_does_not_thrash() -> None:
    """C15: two that run fit, but not to their end. One preemption, not a loop."""
    engine = null_engine(num_blocks=15, block_size=4, max_num_seqs=2, token_budget=64)
    run = Run(engine)
    for seed, name in enumerate(("old", "new")):
        engine.add_request(name, prompt_of(20, seed), params(16), tenant="t")
    run.until_idle()
    assert engine.scheduler.preemptions == 1
    assert engine.steps < 40
    assert run.answers["old"] == expected(prompt_of(20, 0), 16)
    assert run.answers["new"] == expected(prompt_of(20, 1), 16)


@pytest.mark.parametrize("num_blocks", range(24, 64, 4))
def test_preemptions_stay_below_two_a_finished_sequence_whatever_the_pool(num_blocks: int) -> None:
    """C15, more of its kind: 40 sequences of 6 to 16 blocks in pools from 24 blocks up."""
    engine = null_engine(num_blocks=num_blocks, block_size=4, max_num_seqs=8, token_budget=64)
    run = Run(engine)
    for number in range(40):
        engine.add_request(str(number), prompt_of(12 + number % 20, number), params(30), tenant=str(number % 3))
    run.until_idle()
    assert len(run.reasons) == 40
    assert engine.scheduler.preemptions <= 80


def test_the_newest_of_the_most_served_tenant_is_preempted() -> None:
    engine = null_engine(num_blocks=12, block_size=4, max_num_seqs=4, token_budget=64)
    run = Run(engine)
    for name, tenant in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        engine.add_request(name, prompt_of(8, ord(tenant) + int(name[1])), params(20), tenant=tenant)
    while not engine.scheduler.preemptions:
        run.step()
    running = {sequence.request_id for sequence in engine.scheduler.running}
    assert running == {"a1", "b1"}, "tenant a has two answers, so it is the most served; a2 is its newest"
    run.until_idle()
    assert len(run.answers["a2"]) == 20


# --- fairness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt_length", [10, 60, 200])
def test_a_single_request_gets_its_first_token_soon_although_another_tenant_floods(prompt_length: int) -> None:
    """C16: A keeps 200 queued and holds every slot; B's first token comes within twice the steps it takes alone."""
    settings = {"num_blocks": 400, "block_size": 4, "max_num_seqs": 8, "token_budget": 32}
    alone = null_engine(**settings)
    alone.add_request("b", prompt_of(prompt_length, 7), params(), tenant="B")
    run = Run(alone)
    while "b" not in run.first_token_at:
        run.step()
    steps_alone = run.first_token_at["b"]

    engine = null_engine(**settings)
    run = Run(engine)
    for number in range(200):
        engine.add_request(f"a{number}", prompt_of(40 + number % 30, number), params(60), tenant="A")
    for _ in range(50):
        run.step()
    assert len(engine.scheduler.running) == 8
    assert engine.scheduler.num_waiting > 150
    start = engine.steps
    engine.add_request("b", prompt_of(prompt_length, 7), params(), tenant="B")
    while "b" not in run.first_token_at:
        run.step()
    assert run.first_token_at["b"] - start <= 2 * steps_alone


def test_a_full_pool_makes_room_for_a_tenant_that_runs_nothing() -> None:
    """C16 for blocks instead of slots."""
    engine = null_engine(num_blocks=40, block_size=4, max_num_seqs=16, token_budget=64)
    run = Run(engine)
    for number in range(30):
        engine.add_request(f"a{number}", prompt_of(16, number), params(40), tenant="A")
    for _ in range(20):
        run.step()
    start = engine.steps
    engine.add_request("b", prompt_of(30, 7), params(4), tenant="B")
    while "b" not in run.first_token_at:
        run.step()
    assert run.first_token_at["b"] - start <= 2
    run.until_idle()
    assert run.answers["a7"] == expected(prompt_of(16, 7), 40)


def test_making_room_never_takes_the_last_running_sequence_of_a_tenant() -> None:
    engine = null_engine(num_blocks=100, max_num_seqs=2, token_budget=16)
    run = Run(engine)
    for tenant in ("a", "b", "c"):
        engine.add_request(tenant, prompt_of(8, ord(tenant)), params(30), tenant=tenant)
    run.until_idle()
    assert engine.scheduler.preemptions == 0
    assert set(run.reasons) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("weights", "shapes", "rows"),
    [((1, 1), (1, 1), 8), ((1, 3), (1, 1), 8), ((1, 1), (1, 6), 8), ((2, 1), (4, 1), 8), ((3, 1), (1, 1), 2)],
)
def test_backlogged_tenants_get_service_by_weight_with_a_gap_that_does_not_grow(
    weights: tuple[int, int], shapes: tuple[int, int], rows: int
) -> None:
    engine = null_engine(num_blocks=200, block_size=4, max_num_seqs=rows, token_budget=24)
    run = Run(engine)
    rng = random.Random(3)
    counts = {"a": 0, "b": 0}
    gaps = []
    for step in range(3000):
        for tenant, weight, shape in zip("ab", weights, shapes, strict=True):
            while engine.scheduler.counts()[1].get(tenant, 0) < 4:
                name = f"{tenant}{counts[tenant]}"
                counts[tenant] += 1
                prompt = prompt_of(4 + shape * rng.randrange(4, 12), rng.randrange(10**6))
                engine.add_request(name, prompt, params(rng.randrange(2, 10)), tenant=tenant, weight=weight)
        run.step()
        if step > 100:
            gaps.append(abs(engine.scheduler.fairness.service("a") - engine.scheduler.fairness.service("b")))
    early, late = max(gaps[: len(gaps) // 3]), max(gaps[-len(gaps) // 3 :])
    service = engine.scheduler.fairness.service("a")
    assert service > 5_000
    assert late <= early * 1.5 + 50, "the gap grows with time"
    assert late < 400, "the gap is more than a few sequences' worth"


def test_a_pause_earns_no_credit() -> None:
    engine = null_engine(num_blocks=200, max_num_seqs=4, token_budget=16)
    run = Run(engine)
    engine.add_request("early", prompt_of(4), params(2), tenant="sleeper")
    run.until_idle()
    for number in range(40):
        engine.add_request(f"w{number}", prompt_of(10, number), params(20), tenant="worker")
    for _ in range(100):
        run.step()
    engine.add_request("back", prompt_of(4), params(2), tenant="sleeper")
    fairness = engine.scheduler.fairness
    assert fairness.service("sleeper") == fairness.service("worker")


def test_recomputing_after_a_preemption_is_not_charged_again() -> None:
    engine = null_engine(num_blocks=18, block_size=4, max_num_seqs=3, token_budget=8, prefix_caching=False)
    run = Run(engine)
    engine.add_request("keeps the tenant active", prompt_of(1), params(70), tenant="t")
    for seed, name in enumerate(("old", "new")):
        engine.add_request(name, prompt_of(20, seed), params(12), tenant="t")
    while not {"old", "new"} <= run.reasons.keys():
        run.step()
    assert engine.scheduler.preemptions
    outputs = len(run.answers["keeps the tenant active"]) + 24
    # A prompt token that is computed alone in a step counts as a decode and is free: at most the prompts' last ones.
    assert 1 + 40 - 3 <= engine.scheduler.fairness.service("t") - 2 * outputs <= 1 + 40


def test_cached_prompt_tokens_are_not_charged() -> None:
    engine = null_engine(num_blocks=64, token_budget=64)
    run = Run(engine)
    engine.add_request("stays", prompt_of(4, 1), params(500), tenant="t")
    engine.add_request("first", prompt_of(33), params(1), tenant="t")
    run.step()
    before = engine.scheduler.fairness.service("t")
    engine.add_request("second", prompt_of(33), params(1), tenant="t")
    run.step()
    # The second: one uncached prompt token and one output; "stays": one output.
    assert engine.scheduler.fairness.service("t") - before == 1 + 2 + 2


# --- progress -------------------------------------------------------------------------------------------------------


def test_a_turn_with_nothing_to_run_does_not_stop_the_others() -> None:
    """C17: the tenant whose turn it is has lost its requests to aborts, in the queue and while running."""
    engine = null_engine(num_blocks=20, max_num_seqs=2)
    run = Run(engine)
    for number in range(6):
        engine.add_request(f"a{number}", prompt_of(8, number), params(), tenant="a")
        engine.add_request(f"b{number}", prompt_of(8, 50 + number), params(), tenant="b")
    run.step()
    for number in range(6):
        assert engine.abort(f"a{number}")
    run.until_idle(limit=200)
    assert {run.reasons[f"b{number}"] for number in range(6)} == {"length"}
    assert {run.reasons[f"a{number}"] for number in range(6)} == {"abort"}


def test_every_step_with_work_computes_something_in_a_full_pool() -> None:
    """C17: no livelock, from many tenants and a pool that holds hardly more than one sequence."""
    engine = null_engine(num_blocks=9, block_size=4, max_num_seqs=8, token_budget=8)
    run = Run(engine)
    for number in range(60):
        engine.add_request(
            str(number), prompt_of(1 + number % 28, number), params(1 + number % 9), tenant=str(number % 7)
        )
    while engine.scheduler.has_work():
        steps = engine.steps
        run.step()
        assert engine.steps == steps + 1, "a step had work and did nothing"
        assert engine.steps < 5000
    for number in range(60):
        wanted = min(1 + number % 9, 37 - (1 + number % 28))
        assert run.answers[str(number)] == expected(prompt_of(1 + number % 28, number), wanted)


def test_a_preempted_sequence_that_comes_back_finds_what_nobody_needed_meanwhile() -> None:
    engine = null_engine(num_blocks=16, block_size=4, max_num_seqs=2, token_budget=64)
    run = Run(engine)
    engine.add_request("old", prompt_of(20, 0), params(14), tenant="t")
    engine.add_request("new", prompt_of(28, 1), params(14), tenant="t")
    while not engine.scheduler.preemptions:
        run.step()
    back = len(engine.runner.batches)
    run.until_idle()
    computed = next(batch["new"] for batch in engine.runner.batches[back:] if "new" in batch)
    assert computed <= 12, "it is recomputed from the first block that was taken, not from the start"
    assert run.answers["new"] == expected(prompt_of(28, 1), 14)


def test_only_admissions_count_as_being_passed_not_the_steps_of_waiting() -> None:
    """A head that has waited for many steps in a full house does not stop small ones once there is a row again."""
    engine = null_engine(num_blocks=24, max_num_seqs=2, token_budget=64, patience=3)
    run = Run(engine)
    engine.add_request("short", prompt_of(8, 1), params(30), tenant="a")
    engine.add_request("long", prompt_of(8, 2), params(60), tenant="a")
    run.step()
    engine.add_request("big", prompt_of(80, 3), params(2), tenant="a")
    for _ in range(25):
        run.step()
    assert engine._live["big"][0].skips == 0
    engine.add_request("small", prompt_of(8, 4), params(2), tenant="a")
    while "small" not in run.reasons:
        run.step()
    assert "long" not in run.reasons
    assert engine._live["big"][0].skips == 1
    run.until_idle()
    assert run.answers["big"] == expected(prompt_of(80, 3), 2)
