"""A step launched before the result of the one before it is in: the same answers, and nothing is lost, leaked or read.

The null model, deferred, computes as late as it may and in the order of the calls, as a GPU does; what it reads back
through the block tables shows whether that order is enough.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from engine import LLMEngine, SamplingParams
from engine.outputs import StepError, StepOutput
from engine.regions import Region
from engine.sequence import SequenceState
from tests.engine.hash_model import VOCAB, hash_engine
from tests.engine.null_model import expected, null_engine
from tests.engine.test_llm_engine import collect, prompts, text_of, tokens_of

Make = Callable[..., LLMEngine]
FREE = SamplingParams(max_tokens=12, ignore_eos=True)


def ahead(engine: LLMEngine) -> list[tuple[list[str], bool]]:
    """From now on: the requests of every launch, and whether another step was in flight."""
    launches: list[tuple[list[str], bool]] = []
    launch = engine.runner.launch

    def watch(batch: Any, behind: Any) -> Any:
        launches.append(([sequence.request_id for sequence in batch], bool(behind)))
        return launch(batch, behind)

    engine.runner.launch = watch  # type: ignore[method-assign]
    return launches


def told(outputs: dict[str, list[StepOutput]]) -> dict[tuple[str, int], Any]:
    """All that a client learns of each choice."""
    choices = {(name, output.index): [] for name, each in outputs.items() for output in each}
    for name, each in outputs.items():
        for output in each:
            choices[name, output.index].append(output)
    return {
        choice: (
            tokens_of(each),
            text_of(each),
            [o.finish_reason for o in each if o.finish_reason],
            [o.started[0] for o in each if o.started],
            [one for o in each for one in o.logprobs or []],
            [one for o in each for one in o.prompt_logprobs or []],
        )
        for choice, each in choices.items()
    }


# --- the same answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize(
    ("settings", "happens"),
    [
        ({}, ("cached_tokens",)),
        ({"num_blocks": 30}, ("preemptions",)),
        ({"num_blocks": 30, "host_kv_memory_bytes": 20}, ("preemptions", "host_loaded_blocks")),
        ({"num_blocks": 24, "window": 9}, ()),
        ({"prefix_caching": False, "token_budget": 4}, ()),
        ({"block_size": 1, "num_blocks": 200}, ("cached_tokens",)),
    ],
    ids=str,
)
def test_overlap_changes_no_answer(settings: dict[str, Any], happens: tuple[str, ...], deferred: bool) -> None:
    results = []
    for overlap in (False, True):
        engine = null_engine(**{"num_blocks": 200, "overlap": overlap, "deferred": deferred, **settings})
        launches = ahead(engine)
        rng = random.Random(3)
        for number in range(12):
            prompt = [1 + i * i % 96 for i in range(rng.choice([0, 8, 17]))]
            prompt += rng.choices(range(1, 96), k=rng.randrange(1, 30))
            params = SamplingParams(max_tokens=rng.randrange(1, 20), n=rng.choice([1, 1, 2]), ignore_eos=True)
            engine.add_request(str(number), prompt, params, tenant="ab"[number % 2])
        outputs = collect(engine)
        results.append(told(outputs))
        share = sum(behind for _, behind in launches) / len(launches)
        assert share > 0.9 if overlap else share == 0, "this was to be tested with overlap"
        for counter in happens:
            assert engine.counters()[counter] > 0, f"this was to be tested with {counter}"
    assert results[0] == results[1]


def test_every_kind_of_request_is_answered_alike_beside_every_other() -> None:
    """The hash model draws for real: seeds, filters, penalties, logprobs, ends."""
    kinds = [
        SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True),
        SamplingParams(max_tokens=20, seed=5, temperature=0.9, top_p=0.8, top_k=9),
        SamplingParams(max_tokens=20, seed=6, n=2, stop_token_ids=tuple(range(0, VOCAB, 7))),
        SamplingParams(max_tokens=9, frequency_penalty=1.0, repetition_penalty=1.2, seed=1),
        SamplingParams(max_tokens=9, logprobs=2, prompt_logprobs=1, seed=2),
        SamplingParams(max_tokens=12, min_tokens=5, stop_token_ids=tuple(range(0, VOCAB, 3)), seed=3),
        SamplingParams(max_tokens=30, repetition_stop=8, temperature=0.0, logit_bias={5: 100.0}),
        SamplingParams(max_tokens=1, seed=4),
    ]
    results = []
    for overlap in (False, True):
        engine = hash_engine(overlap=overlap, num_blocks=60, max_num_seqs=5)
        launches = ahead(engine)
        rng = random.Random(8)
        for number in range(32):
            prompt = rng.choices(range(1, VOCAB), k=rng.randrange(1, 25))
            engine.add_request(str(number), prompt, kinds[number % len(kinds)], tenant="ab"[number % 2])
        results.append(told(collect(engine)))
        assert any(behind for _, behind in launches) == overlap
    assert results[0] == results[1]
    assert any("stop" in choice[2] for choice in results[0].values())


@pytest.mark.parametrize(
    "settings",
    [{}, {"num_blocks": 16, "max_num_seqs": 8}, {"token_budget": 32}, {"batch_invariant": True}],
    ids=str,
)
def test_a_real_model_says_the_same_text_and_stops_at_the_same_place(tiny_engine: Make, settings: Any) -> None:
    free = [answer.text for answer in tiny_engine().generate(prompts(), SamplingParams(max_tokens=24, temperature=0.0))]
    results = []
    for overlap in (False, True):
        engine = tiny_engine(overlap=overlap, **settings)
        launches = ahead(engine)
        for number, (prompt, text) in enumerate(zip(prompts(), free, strict=True)):
            stop = () if number % 2 else (text[len(text) // 2 :][:3],)
            params = SamplingParams(max_tokens=24, temperature=0.0, stop=tuple(s for s in stop if s))
            engine.add_request(str(number), prompt, params)
        results.append(told(collect(engine)))
        assert any(behind for _, behind in launches) == overlap
    assert results[0] == results[1]


# --- the rule -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        {"frequency_penalty": 0.5},
        {"min_tokens": 3},
        {"logit_bias": {3: 1.0}},
        {"logprobs": 0},
        {"prompt_logprobs": 0},
    ],
    ids=str,
)
def test_no_step_is_launched_behind_one_whose_tokens_the_host_must_see_first(params: dict[str, Any]) -> None:
    engine = hash_engine(overlap=True)
    launches = ahead(engine)
    engine.add_request("plain", [1, 2, 3], FREE)
    engine.add_request("not", [4, 5, 6], SamplingParams(max_tokens=4, ignore_eos=True, **params))
    collect(engine)
    beside = [behind for (names, behind), (before, _) in zip(launches[1:], launches, strict=False) if "not" in before]
    assert len(beside) == 4
    assert not any(beside)
    assert any(behind for _, behind in launches), "alone, the plain one goes ahead again"


def test_with_speculation_no_step_is_launched_ahead() -> None:
    engine = null_engine(num_blocks=32, overlap=True, speculation=True)
    launches = ahead(engine)
    engine.add_request("r", [1, 2, 3], FREE)
    assert tokens_of(collect(engine)["r"]) == expected([1, 2, 3], 12)
    assert not any(behind for _, behind in launches)


def test_overlap_is_on_by_default_where_the_runner_works_by_itself_and_can_be_turned_off() -> None:
    assert null_engine(num_blocks=8, deferred=True).overlap
    assert not null_engine(num_blocks=8).overlap
    assert not null_engine(num_blocks=8, deferred=True, overlap=False).overlap


def test_nothing_is_computed_behind_a_token_that_is_known_to_be_the_last() -> None:
    engine = null_engine(num_blocks=32, deferred=True)
    launches = ahead(engine)
    engine.add_request("r", [1, 2, 3], SamplingParams(max_tokens=3))
    engine.prompts.warm("p", [7, 8, 9, 10], [Region(3, "public"), Region(4, "a")])
    collect(engine)
    names = [name for batch, _ in launches for name in batch]
    assert (names.count("r"), names.count("")) == (3, 1)


def test_a_request_that_stops_has_one_row_too_many_and_it_is_dropped() -> None:
    engine = null_engine(num_blocks=32, deferred=True)
    launches = ahead(engine)
    said = expected([1, 2, 3], 12)
    engine.add_request("r", [1, 2, 3], SamplingParams(max_tokens=12, stop_token_ids=(said[4],)))
    engine.add_request("other", [4, 5], FREE)
    outputs = collect(engine)
    assert tokens_of(outputs["r"]) == said[: said.index(said[4]) + 1]
    assert tokens_of(outputs["other"]) == expected([4, 5], 12)
    assert sum("r" in batch for batch, _ in launches) == said.index(said[4]) + 2
    assert engine.counters()["output_tokens"] == len(tokens_of(outputs["r"])) + 12


# --- blocks of those who are gone while a row of theirs is in flight ------------------------------------------------


def test_blocks_of_an_aborted_request_serve_another_at_once_though_a_row_is_in_flight() -> None:
    """C9, I2: free on return; the row that is still to be computed writes before the new owner does."""
    engine = null_engine(num_blocks=4, max_num_seqs=2, deferred=True)
    engine.add_request("r", [1, 2, 3, 4, 5, 6], SamplingParams(max_tokens=10))
    for _ in range(3):
        engine.step()
    flight = engine._flight
    assert flight is not None
    assert [sequence.request_id for sequence in flight.batch] == ["r"]
    held = set(engine._live["r"][0].block_table)
    assert engine.abort("r")
    assert not engine.abort("r")
    assert engine.pool.num_used == 0
    engine.check_integrity()
    engine.add_request("next", [9] * 14, SamplingParams(max_tokens=2))
    engine.step()
    assert held & set(engine._live["next"][0].block_table)
    assert tokens_of(collect(engine)["next"])[-1] == expected([9] * 14, 2)[-1]


def test_abort_while_the_result_is_awaited_ends_the_request_and_its_row_in_the_step_behind() -> None:
    engine = null_engine(num_blocks=32, deferred=True)
    launch = engine.runner.launch

    def launch_and_abort(batch: Any, behind: Any) -> Any:
        pending = launch(batch, behind)
        result = pending.result

        def abort_and_result() -> Any:
            drawn = result()
            if "r" in engine._live and any(s.request_id == "r" and s.num_output == 5 for s in drawn):
                assert engine.abort("r")
                engine.check_integrity()
            return drawn

        pending.result = abort_and_result
        return pending

    engine.runner.launch = launch_and_abort  # type: ignore[method-assign]
    engine.add_request("r", [1, 2, 3], FREE)
    engine.add_request("other", [4, 5, 6], FREE)
    outputs = collect(engine)
    assert [o.finish_reason for o in outputs["r"] if o.finish_reason] == ["abort"]
    assert tokens_of(outputs["r"]) == expected([1, 2, 3], 5)
    assert tokens_of(outputs["other"]) == expected([4, 5, 6], 12)


def test_a_request_preempted_in_flight_keeps_the_token_that_it_was_getting() -> None:
    engine = null_engine(num_blocks=8, max_num_seqs=4, deferred=True)
    for number in range(3):
        engine.add_request(str(number), [number + 1] * 7, SamplingParams(max_tokens=12), tenant="t")
    kept, outputs = 0, dict[str, list[StepOutput]]()
    while engine.has_work():
        flight = engine._flight
        before = {s: s.num_output for s, count in flight.batch.items() if count == 1} if flight is not None else {}
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
        for sequence, said in before.items():
            if sequence.state is SequenceState.PREEMPTED:
                assert sequence.num_output == said + 1
                kept += 1
        engine.check_integrity()
    assert kept, "this was to be tested with a preemption in flight"
    for number in range(3):
        assert tokens_of(outputs[str(number)]) == expected([number + 1] * 7, 12)
        started = [o.started is not None for o in outputs[str(number)]]
        assert started == [True] + [False] * (len(started) - 1)


def test_a_request_preempted_before_its_first_token_is_in_starts_with_that_token() -> None:
    engine = null_engine(num_blocks=5, deferred=True)
    engine.add_request("older", [1] * 6, SamplingParams(max_tokens=8), tenant="t")
    engine.step()
    engine.add_request("newer", [2] * 8, SamplingParams(max_tokens=8), tenant="t")
    outputs = [output for _ in range(2) for output in engine.step()]
    (sequence,) = engine._live["newer"]
    assert sequence.state is SequenceState.PREEMPTED
    (first,) = [output for output in outputs if output.request_id == "newer"]
    assert (first.started, first.new_token_ids) == ((8, 0), expected([2] * 8, 1))
    rest = collect(engine)["newer"]
    assert [output.started for output in rest] == [None] * len(rest)
    assert tokens_of([first, *rest]) == expected([2] * 8, 8)


def test_what_is_in_flight_is_not_admitted_again_before_it_has_its_token() -> None:
    engine = null_engine(num_blocks=8)
    engine.add_request("r", [1, 2, 3], FREE)
    (sequence,) = engine._live["r"]
    assert engine.scheduler.schedule(behind={sequence: 3}) == {}
    assert engine.scheduler.schedule() == {sequence: 3}
    engine.abort("r")


def test_a_tenant_is_charged_the_same_for_prompts_whose_chunks_overlap() -> None:
    charged = []
    for overlap in (False, True):
        engine = null_engine(num_blocks=64, overlap=overlap, prefix_caching=False, max_num_seqs=1, token_budget=5)
        costs: dict[str, float] = {}
        charge = engine.scheduler.fairness.charge

        def count(tenant: str, cost: float, costs: Any = costs, charge: Any = charge) -> None:
            costs[tenant] = costs.get(tenant, 0.0) + cost
            charge(tenant, cost)

        engine.scheduler.fairness.charge = count  # type: ignore[method-assign]
        for number in range(6):
            engine.add_request(str(number), [number + 1] * 13, FREE, tenant="ab"[number % 2])
        collect(engine)
        charged.append(costs)
    assert charged[0] == charged[1]


def test_a_prompt_longer_than_the_pool_goes_on_in_the_blocks_behind_its_window() -> None:
    """I7: the step in flight is behind the window too; else the prompt would preempt itself for ever."""
    prompt = [1 + i * i % 96 for i in range(30)]
    engine = null_engine(num_blocks=7, block_size=1, max_num_seqs=1, token_budget=4, window=1, deferred=True)
    engine.add_request("r", prompt, SamplingParams(max_tokens=3))
    assert tokens_of(collect(engine)["r"]) == expected(prompt, 3)
    assert engine.scheduler.preemptions == 0


# --- faults ---------------------------------------------------------------------------------------------------------


def test_a_step_that_fails_on_the_device_ends_what_runs_with_it_and_behind_it() -> None:
    """C12, I11: nothing keeps blocks, and nothing that the failed steps were to write can be found."""
    engine = null_engine(num_blocks=32, max_num_seqs=2, deferred=True, host_kv_memory_bytes=8)
    engine.add_request("one", [1] * 6, FREE, tenant="t")
    engine.add_request("two", [2] * 6, FREE, tenant="t")
    engine.add_request("waits", [3] * 6, FREE, tenant="t")
    for _ in range(3):
        engine.step()
    engine.runner.fails_at = "run"
    with pytest.raises(StepError, match="a broken step") as error:
        engine.step()
    assert sorted(error.value.request_ids) == ["one", "two"]
    assert engine.pool.num_used == 0
    engine.check_integrity()
    engine.add_request("one", [1] * 6, FREE, tenant="t")
    outputs = collect(engine)
    assert tokens_of(outputs["waits"]) == expected([3] * 6, 12)
    assert tokens_of(outputs["one"]) == expected([1] * 6, 12)


def test_a_copy_that_a_failed_device_never_made_is_not_found() -> None:
    """C12, I4: the block went to the host for the step behind the one that fails."""
    prompt = [1 + i * i % 96 for i in range(12)]
    engine = null_engine(num_blocks=6, deferred=True, host_kv_memory_bytes=8)
    engine.add_request("first", prompt, SamplingParams(max_tokens=1))
    collect(engine)
    engine.add_request("long", [9] * 11, FREE)
    engine.step()
    engine.runner.fails_at = "run"
    with pytest.raises(StepError):
        engine.step()
    assert engine.pool.evictions == 1
    engine.check_integrity()
    engine.add_request("again", prompt, SamplingParams(max_tokens=3))
    assert tokens_of(collect(engine)["again"]) == expected(prompt, 3)


def test_logits_that_are_no_numbers_end_their_request_and_its_row_in_flight() -> None:
    engine = null_engine(num_blocks=32, deferred=True)
    engine.add_request("bad", [1, 2, 3], FREE)
    engine.add_request("good", [4, 5, 6], FREE)
    for _ in range(3):
        engine.step()
    engine.runner.broken.add("bad")
    outputs = collect(engine)
    assert [o.finish_reason for o in outputs["bad"]] == ["error"]
    assert tokens_of(outputs["good"]) == expected([4, 5, 6], 12)[3:]


def test_an_end_leaves_the_engine_idle_though_a_row_is_in_flight() -> None:
    engine = null_engine(num_blocks=32, deferred=True)
    said = expected([1, 2, 3], 12)
    params = SamplingParams(max_tokens=12, stop_token_ids=(said[3],))
    for _ in range(2):
        engine.add_request("r", [1, 2, 3], params)
        assert tokens_of(collect(engine)["r"]) == said[: said.index(said[3]) + 1]
        assert not engine.has_work()
        assert engine.pool.num_used == 0
    steps = engine.steps
    engine.add_request("next", [1, 2, 3], SamplingParams(max_tokens=1))
    assert engine.step()[0].finish_reason == "length"
    assert engine.steps == steps + 1
