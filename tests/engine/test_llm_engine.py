"""The whole engine over tiny random models in float32: right answers in every mode, ends, faults, limits."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.config import EngineConfigError
from engine.outputs import RequestRefused, StepError, StepOutput
from engine.protocol import ChatMessage, SystemText
from engine.regions import Region
from tests.engine.null_model import expected, null_engine
from tests.engine.tiny import EOS, VOCAB

Make = Callable[..., LLMEngine]
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)


def prompts(count: int = 12) -> list[list[int]]:
    """Prompts of 3 to 120 tokens, of which many share a beginning."""
    rng = random.Random(4)
    system = rng.choices(range(3, VOCAB), k=40)
    return [
        system[: rng.choice([0, 16, 33, 40])] + rng.choices(range(3, VOCAB), k=rng.randrange(3, 80))
        for _ in range(count)
    ]


def collect(engine: LLMEngine) -> dict[str, list[StepOutput]]:
    outputs: dict[str, list[StepOutput]] = {}
    while engine.has_work():
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
        engine.check_integrity()
    return outputs


def text_of(outputs: list[StepOutput]) -> str:
    return "".join(output.text for output in outputs)


def tokens_of(outputs: list[StepOutput]) -> list[int]:
    return [token for output in outputs for token in output.new_token_ids]


@pytest.fixture(scope="module")
def one_by_one(tiny_path: Any) -> list[list[int]]:
    """The answers without cache, batch or chunks: one request after the other, each prompt in one step."""
    config = EngineConfig(
        model=str(tiny_path), dtype="float32", device="cpu", num_blocks=64, prefix_caching=False, max_num_seqs=1
    )
    engine = LLMEngine(config)
    return [engine.generate([prompt], GREEDY)[0].token_ids for prompt in prompts()]


# --- the same answer in every mode ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "happens"),
    [
        ({"prefix_caching": False}, ()),
        ({}, ("cached_tokens",)),
        ({"token_budget": 8, "max_num_seqs": 8}, ("cached_tokens",)),
        ({"block_size": 4, "num_blocks": 1024, "token_budget": 13, "max_num_seqs": 12}, ("cached_tokens",)),
        ({"block_size": 1, "num_blocks": 3000}, ("cached_tokens",)),
        ({"num_blocks": 16, "max_num_seqs": 8}, ("preemptions", "evictions")),
        ({"num_blocks": 16, "max_num_seqs": 8, "prefix_caching": False}, ("preemptions",)),
        ({"num_blocks": 40, "hash_bits": 2, "token_budget": 33}, ("cached_tokens",)),
    ],
    ids=str,
)
def test_cache_chunks_batches_and_preemption_change_no_answer(
    tiny_engine: Make, one_by_one: list[list[int]], settings: dict[str, Any], happens: tuple[str, ...]
) -> None:
    """I3, C2, C5 over a real model."""
    engine = tiny_engine(**settings)
    for _ in range(2):
        answers = engine.generate(prompts(), GREEDY)
        assert [answer.token_ids for answer in answers] == one_by_one
    for counter in happens:
        assert engine.counters()[counter] > 0, f"this was to be tested with {counter}"


def test_a_seed_gives_the_same_tokens_in_any_batch_and_after_a_preemption(tiny_engine: Make) -> None:
    """C24 in float32: the tiny model's logits agree far beyond what could move a draw here."""
    params = SamplingParams(max_tokens=24, seed=11, temperature=0.8, top_p=0.95, ignore_eos=True)
    alone = tiny_engine(max_num_seqs=1, prefix_caching=False)
    wanted = [alone.generate([prompt], params)[0].token_ids for prompt in prompts()]
    for settings in ({}, {"num_blocks": 16, "max_num_seqs": 8}, {"token_budget": 9, "max_num_seqs": 9}):
        engine = tiny_engine(**settings)
        assert [answer.token_ids for answer in engine.generate(prompts(), params)] == wanted
    other = engine.generate(prompts(), SamplingParams(max_tokens=24, seed=12, temperature=0.8, ignore_eos=True))
    assert [answer.token_ids for answer in other] != wanted


def test_a_conversations_next_turn_finds_the_turn_before(tiny_engine: Make) -> None:
    engine = tiny_engine()
    system = [SystemText("You are a helpful assistant in the house of the tenant. " * 3, "prompt salt")]
    turns = [ChatMessage("user", "hello world, what is a block table and why is the fox so quick?")]
    prompt, regions = engine.tokenizer.render_chat(system, turns, "conversation salt")
    engine.add_request("one", prompt, GREEDY, tenant="t", regions=regions)
    outputs = collect(engine)["one"]
    assert outputs[0].started == (len(prompt), 0)
    turns += [ChatMessage("assistant", text_of(outputs)), ChatMessage("user", "and then?")]
    longer, regions = engine.tokenizer.render_chat(system, turns, "conversation salt")
    engine.add_request("two", longer, GREEDY, tenant="t", regions=regions)
    cached = collect(engine)["two"][0].started[1]
    assert cached >= len(prompt) // 16 * 16 - 16
    stranger, regions = engine.tokenizer.render_chat(system, turns, "another conversation's salt")
    engine.add_request("three", stranger, GREEDY, tenant="t", regions=regions)
    cached = collect(engine)["three"][0].started[1]
    assert cached == regions[-2].end // 16 * 16, "the tenant's prompt is shared, the conversation is not"


# --- how an answer ends ---------------------------------------------------------------------------------------------


def test_an_answer_ends_at_eos_whose_token_is_told_and_whose_text_is_not(tiny_engine: Make) -> None:
    engine = tiny_engine()
    prompt = prompts()[0]
    free = engine.generate([prompt], GREEDY)[0].token_ids
    # Make the seventh token of the free answer the model's end.
    engine._eos = frozenset({free[6]})
    cut = free.index(free[6]) + 1
    engine.add_request("r", prompt, SamplingParams(max_tokens=24, temperature=0.0))
    outputs = collect(engine)["r"]
    assert tokens_of(outputs) == free[:cut]
    assert outputs[-1].finish_reason == "stop"
    assert text_of(outputs) == engine.tokenizer.decode(free[: cut - 1])
    assert outputs[-1].completion_tokens == cut


def test_min_tokens_forbids_the_end_and_ignore_eos_goes_on_behind_it(tiny_engine: Make) -> None:
    engine = tiny_engine()
    prompt = prompts()[0]
    first = engine.generate([prompt], GREEDY)[0].token_ids[0]
    stop_at_once = SamplingParams(max_tokens=9, temperature=0.0, stop_token_ids=(first,))
    assert engine.generate([prompt], stop_at_once)[0].token_ids == [first]
    later = SamplingParams(max_tokens=9, min_tokens=5, temperature=0.0, stop_token_ids=(first, 10**6), ignore_eos=True)
    answer = engine.generate([prompt], later)[0]
    assert len(answer.token_ids) >= 5
    assert first not in answer.token_ids[:5]
    engine._eos = frozenset({first})
    assert engine.generate([prompt], GREEDY)[0].token_ids[0] == first
    assert len(engine.generate([prompt], GREEDY)[0].token_ids) == 24


def test_a_stop_string_ends_the_answer_and_never_leaks(tiny_engine: Make) -> None:
    engine = tiny_engine()
    prompt = prompts()[1]
    whole = engine.generate([prompt], GREEDY)[0]
    for start in (1, len(whole.text) // 2, len(whole.text) - 3):
        stop = whole.text[start : start + 3]
        engine.add_request("r", prompt, msgspec.structs.replace(GREEDY, stop=(stop,)))
        outputs = collect(engine)["r"]
        assert text_of(outputs) == whole.text[: whole.text.index(stop)]
        assert outputs[-1].finish_reason == "stop"


def test_text_is_flushed_at_max_tokens_and_joins_to_the_decoded_tokens(tiny_engine: Make) -> None:
    engine = tiny_engine()
    for number, prompt in enumerate(prompts()):
        for max_tokens in (1, 2, 7, 24):
            params = SamplingParams(
                max_tokens=max_tokens, temperature=1.5, seed=number, stop=("never said",), ignore_eos=True
            )
            answer = engine.generate([prompt], params)[0]
            assert len(answer.token_ids) == max_tokens
            assert answer.text == engine.tokenizer.decode(answer.token_ids)
            assert answer.finish_reason == "length"


def test_the_context_ends_an_answer_without_max_tokens(tiny_engine: Make) -> None:
    engine = tiny_engine(max_model_len=50)
    assert engine.context == 50
    prompt = prompts()[0][:30]
    answer = engine.generate([prompt], SamplingParams(temperature=0.0, ignore_eos=True))[0]
    assert (len(answer.token_ids), answer.finish_reason) == (20, "length")


def test_every_request_starts_once_and_ends_once_with_its_totals(tiny_engine: Make) -> None:
    engine = tiny_engine(num_blocks=16, max_num_seqs=8, token_budget=24)
    for number, prompt in enumerate(prompts()):
        engine.add_request(str(number), prompt, GREEDY, tenant=f"t{number % 3}")
    for number, outputs in ((int(name), outputs) for name, outputs in collect(engine).items()):
        assert [output.started is not None for output in outputs] == [True] + [False] * (len(outputs) - 1)
        assert [output.finish_reason for output in outputs] == [None] * (len(outputs) - 1) + ["length"]
        last = outputs[-1]
        assert (last.prompt_tokens, last.completion_tokens) == (len(prompts()[number]), 24)
        assert outputs[0].started == (last.prompt_tokens, last.cached_tokens)
    assert engine.scheduler.preemptions > 0


# --- abort ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 6])
def test_abort_in_any_state_frees_the_blocks_at_once_and_harms_nobody(tiny_engine: Make, steps: int) -> None:
    """C9, I2: waiting, in the middle of its prompt, decoding. Twice, and for an unknown id, it does nothing."""
    engine = tiny_engine(token_budget=32, prefix_caching=False)
    prompt = prompts()[3]
    wanted = engine.generate([prompts()[1]], GREEDY)[0].token_ids
    engine.add_request("stays", prompts()[1], GREEDY)
    engine.add_request("goes", (prompt * 9)[:100], GREEDY)
    told = [output for _ in range(steps) for output in engine.step()]
    assert engine.abort("goes") is True
    assert engine.abort("goes") is False
    assert engine.abort("never lived") is False
    engine.check_integrity()
    held = [block for sequence in engine.scheduler.running for block in sequence.block_table]
    assert engine.pool.num_used == len(held)
    assert {sequence.request_id for sequence in engine.scheduler.running} <= {"stays"}
    rest = collect(engine)
    assert [output.finish_reason for output in rest["goes"]] == ["abort"]
    assert rest["goes"][0].started is None
    assert tokens_of([o for o in told if o.request_id == "stays"] + rest["stays"]) == wanted


def test_abort_between_launch_and_result_of_the_last_token(tiny_engine: Make) -> None:
    """C9: the abort comes while the step that would end the answer is being computed."""
    engine = tiny_engine()
    launch = engine.runner.launch

    def launch_and_abort(batch: Any, behind: Any) -> Any:
        pending = launch(batch, behind)
        if any(sequence.request_id == "r" and sequence.num_output == 23 for sequence in pending.result()):
            assert engine.abort("r")
            assert not engine.abort("r")
            engine.check_integrity()
        return pending

    engine.runner.launch = launch_and_abort  # type: ignore[method-assign]
    engine.add_request("r", prompts()[0], GREEDY)
    engine.add_request("other", prompts()[1], SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True))
    outputs = collect(engine)
    assert [o.finish_reason for o in outputs["r"] if o.finish_reason] == ["abort"]
    assert len(tokens_of(outputs["r"])) == 23
    assert len(tokens_of(outputs["other"])) == 30


def test_an_id_can_be_used_again_at_once_after_an_abort_but_not_while_it_lives(tiny_engine: Make) -> None:
    """C11."""
    engine = tiny_engine()
    wanted = engine.generate([prompts()[1]], GREEDY)[0].token_ids
    engine.add_request("r", prompts()[0], GREEDY)
    with pytest.raises(RequestRefused, match="id r is live") as refused:
        engine.add_request("r", prompts()[1], GREEDY)
    assert refused.value.code == "duplicate_request_id"
    engine.step()
    engine.abort("r")
    engine.add_request("r", prompts()[1], GREEDY)
    outputs = collect(engine)["r"]
    assert outputs[0].finish_reason == "abort"
    assert tokens_of(outputs[1:]) == wanted
    engine.add_request("r", prompts()[1], GREEDY)
    assert tokens_of(collect(engine)["r"]) == wanted


# --- faults ---------------------------------------------------------------------------------------------------------


def test_a_step_that_raises_ends_all_that_run_and_the_waiting_go_on(tiny_engine: Make) -> None:
    """C12, I11: the worker learns whom to tell; nothing keeps blocks; the next step works."""
    engine = tiny_engine(max_num_seqs=2)
    wanted = engine.generate([prompts()[2]], GREEDY)[0].token_ids
    for number in range(3):
        engine.add_request(str(number), prompts()[number], GREEDY, tenant="t")
    engine.step()
    engine.step()
    engine.abort("0")
    launch = engine.runner.launch

    def fail(batch: Any, behind: Any) -> Any:
        raise RuntimeError("the device is gone")

    engine.runner.launch = fail  # type: ignore[method-assign]
    with pytest.raises(StepError, match="RuntimeError: the device is gone") as error:
        engine.step()
    assert sorted(error.value.request_ids) == ["1", "2"]
    engine.check_integrity()
    assert engine.pool.num_used == 0
    engine.runner.launch = launch  # type: ignore[method-assign]
    engine.add_request("3", prompts()[2], GREEDY)
    outputs = collect(engine)
    assert [output.finish_reason for output in outputs.pop("0")] == ["abort"], "what was ended before is still told"
    assert tokens_of(outputs.pop("3")) == wanted
    assert not outputs


def test_a_waiting_request_survives_a_step_that_raises() -> None:
    engine = null_engine(num_blocks=32, max_num_seqs=1)
    engine.add_request("runs", [1, 2, 3], GREEDY, tenant="t")
    engine.add_request("waits", [4, 5, 6], GREEDY, tenant="t")
    launch = engine.runner.launch
    engine.runner.launch = lambda batch, behind: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(StepError) as error:
        engine.step()
    assert error.value.request_ids == ["runs"]
    engine.runner.launch = launch  # type: ignore[method-assign]
    assert tokens_of(collect(engine)["waits"]) == expected([4, 5, 6], 24)


def test_a_fault_in_one_request_ends_that_request_only(tiny_engine: Make) -> None:
    """I11: one request's text cannot be made, one gets logits that are no numbers; the third does not notice."""
    engine = tiny_engine(prefix_caching=False)
    wanted = engine.generate([prompts()[2]], GREEDY)[0].token_ids
    for name, prompt in zip(("bad text", "bad logits", "good"), prompts(), strict=False):
        engine.add_request(name, prompt, GREEDY)
    engine.step()
    assert engine._live["bad text"][0].detokenizer is not None
    engine._live["bad text"][0].detokenizer.push = lambda token: 1 / 0  # type: ignore[method-assign, union-attr]
    block = engine._live["bad logits"][0].block_table[0]
    engine.runner._kv.data[:, :, block] = torch.nan  # type: ignore[attr-defined]
    outputs = collect(engine)
    assert outputs["bad text"][-1].finish_reason == "error"
    assert "ZeroDivisionError" in (outputs["bad text"][-1].error or "")
    assert outputs["bad logits"][-1].finish_reason == "error"
    assert "not a number" in (outputs["bad logits"][-1].error or "")
    assert [len(outputs[name]) for name in ("bad text", "bad logits")] == [1, 1]
    assert len(tokens_of(outputs["good"])) == 23
    assert tokens_of(outputs["good"]) == wanted[1:]


def test_blocks_of_an_answer_that_went_wrong_are_not_found_again(tiny_engine: Make) -> None:
    """They may hold what made it go wrong. Other prompts keep theirs; whoever shares the blocks goes on or fails."""
    engine = tiny_engine()
    prompt, other = (prompts()[5] * 9)[:70], prompts()[0]
    params = msgspec.structs.replace(GREEDY, max_tokens=40)
    wanted = engine.generate([prompt], params)[0].token_ids
    engine.generate([other], GREEDY)
    engine.prompts.pin("p", prompt, [Region(32, "tenant "), Region(70, "tenant ")])
    for name in ("poisoned", "sharing", "branching off"):
        engine.add_request(name, prompt[: 40 if name == "branching off" else 70], params)
    engine.step()
    engine.runner._kv.data[:, :, engine._live["poisoned"][0].block_table[3]] = torch.nan  # type: ignore[attr-defined]
    outputs = collect(engine)
    assert outputs["poisoned"][-1].finish_reason == outputs["sharing"][-1].finish_reason == "error"
    assert outputs["branching off"][-1].finish_reason == "length"
    assert engine.pool.pinned() == []
    for cached in (0, 64):
        answer = engine.generate([prompt], params)[0]
        assert (answer.token_ids, answer.cached_tokens // 64 * 64) == (wanted, cached)
    assert engine.generate([other], GREEDY)[0].cached_tokens > 0


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "regions", "code"),
    [
        ([], [], "empty_prompt"),
        ([3, VOCAB], [], "invalid_token"),
        ([3, -1], [], "invalid_token"),
        ([3] * 512, [], "context_length_exceeded"),
        ([3] * 9, [Region(5, "a")], "invalid_regions"),
        ([3] * 9, [Region(5, "a"), Region(4, "b"), Region(9, "c")], "invalid_regions"),
    ],
)
def test_what_cannot_run_is_refused_and_leaves_nothing_behind(
    tiny_engine: Make, prompt: list[int], regions: list[Region], code: str
) -> None:
    engine = tiny_engine()
    with pytest.raises(RequestRefused) as refused:
        engine.add_request("r", prompt, GREEDY, regions=regions)
    assert refused.value.code == code
    assert not engine.has_work()


@pytest.mark.parametrize("prompt", [[5.0, 6.0], [5, "x"], [True, 5]])
def test_what_is_no_token_id_is_refused_and_the_next_request_runs(tiny_engine: Make, prompt: list[Any]) -> None:
    engine = tiny_engine()
    with pytest.raises(RequestRefused, match="not within 0"):
        engine.add_request("r", prompt, GREEDY)
    with pytest.raises(RequestRefused, match="not within 0"):
        engine.generate([prompt], GREEDY)
    assert len(engine.generate([[5, 6]], GREEDY)) == 1


def test_generate_refuses_one_prompt_and_leaves_nothing_of_the_others_behind(tiny_engine: Make) -> None:
    engine = tiny_engine()
    with pytest.raises(RequestRefused):
        engine.generate([[3, 4], []], GREEDY)
    assert not engine.has_work()
    assert len(engine.generate(["the quick brown fox", [ChatMessage("user", "hello")]], GREEDY)) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"num_blocks": 10**9},
            r"pool of 1000000000 blocks needs .* GiB, but .* free; set num_blocks to \d+ or less",
        ),
        ({"num_blocks": None, "kv_memory_bytes": 10**15}, r"set kv_memory_bytes to \d+ or less"),
        ({"num_blocks": None, "kv_memory_bytes": 100}, r"would hold no block.*raise kv_memory_bytes"),
        ({"max_model_len": 513}, r"max_model_len 513 is beyond the model's own 512 tokens"),
        ({"block_size": 0}, r"block_size must be a whole number from 1, not 0"),
        ({"num_blocks": "5"}, r"num_blocks must be a whole number from 1, not '5'"),
        ({"token_budget": True}, r"token_budget must be a whole number from 1, not True"),
        ({"threads": 100_000}, r"threads must be at most 1024, not 100000"),
        ({"spare_tokens": float("nan")}, r"spare_tokens must be a whole number from 0, not nan"),
        ({"max_kv_share": "1"}, r"max_kv_share must be above 0 and at most 1, not 1"),
        ({"max_itl_ms": 0}, r"max_itl_ms must be above 0, not 0"),
        ({"kv_dtype": "int4"}, r"kv_dtype 'int4' is unknown; choose bfloat16, int8, fp8"),
        ({"device": "abacus"}, r"device 'abacus' is not one that this engine runs on"),
        ({"token_budget": 8, "max_num_seqs": 9}, r"token_budget 8 is below max_num_seqs 9"),
    ],
)
def test_settings_that_cannot_work_are_one_line_that_says_what_to_change(
    tiny_engine: Make, settings: dict[str, Any], message: str
) -> None:
    """C13: the line; the command line's exit status is tested with it."""
    with pytest.raises(EngineConfigError, match=message) as error:
        tiny_engine(**settings)
    assert "\n" not in str(error.value)


# --- looking in -----------------------------------------------------------------------------------------------------


def test_a_snapshot_counts_every_block_and_slot(tiny_engine: Make) -> None:
    engine = tiny_engine(num_blocks=64, max_num_seqs=2, token_budget=64)
    regions = [Region(40, "prompt"), Region(80, "conversation")]
    engine.add_request("a", (prompts()[0] * 9)[:80], GREEDY, tenant="a", regions=regions)
    collect(engine)
    assert engine.prompts.pin("a's", (prompts()[0] * 9)[:80], regions) == 40
    for name in ("b1", "b2", "b3"):
        engine.add_request(name, [3 + ord(c) for c in name] * 20, GREEDY, tenant="b")
    engine.step()
    snapshot = SimpleNamespace(**engine.snapshot())
    assert [len(each) for each in (snapshot.state, snapshot.refs, snapshot.tenant, snapshot.filled)] == [64] * 4
    assert snapshot.tenants == ["a", "b"]
    assert len(snapshot.pinned) == 3
    assert snapshot.running == {"b": 2}
    assert snapshot.waiting == {"b": 1}
    used = [block for block in range(64) if snapshot.state[block] == 2]
    assert used == [block for block in range(64) if snapshot.refs[block]]
    assert sum(snapshot.filled[block] for block in used) == 64, "the step's whole budget lies in slots"
    assert all(snapshot.tenant[block] == 1 for block in used)
    # An answer of 24 tokens, the last of which was not computed.
    assert sum(snapshot.filled[block] for block in range(64) if snapshot.state[block] == 1) == 80 + 23
    assert all(snapshot.filled[block] == 0 for block in range(64) if snapshot.state[block] == 0)
    assert snapshot.counters["output_tokens"] == engine.counters()["output_tokens"]


def test_the_audit_notices_a_leaked_reference() -> None:
    engine = null_engine(num_blocks=8)
    (block,) = engine.pool.allocate(1, "leak")
    with pytest.raises(AssertionError, match=f"block {block} has 1 references, 0 are accounted for"):
        engine.check_integrity()
    engine.pool.release([block])


def test_the_tiny_models_own_eos_ends_an_answer_by_default(tiny_engine: Make) -> None:
    engine = tiny_engine()
    assert engine._eos == {EOS}


def test_the_real_model_answers_alike_with_a_cold_and_a_warm_cache(model_path: str) -> None:
    """I3 with SmolLM2 in float32: three users of one tenant's prompt, in one batch, cold and then warm."""
    engine = LLMEngine(EngineConfig(model=model_path, dtype="float32", device="cpu", num_blocks=128, token_budget=96))
    system = [SystemText("You are the assistant of a bakery. Answer briefly, politely and in plain words. " * 3, "t")]
    params = SamplingParams(max_tokens=10, temperature=0.0)
    rounds = []
    for _ in range(2):
        for number, question in enumerate(("Do you sell rye bread?", "When do you open?", "삼겹살 👋🏽?")):
            prompt, regions = engine.tokenizer.render_chat(system, [ChatMessage("user", question)], f"c{number}")
            engine.add_request(str(number), prompt, params, tenant="t", regions=regions)
        rounds.append(collect(engine))
    cold, warm = rounds
    assert {name: tokens_of(outputs) for name, outputs in cold.items()} == {n: tokens_of(o) for n, o in warm.items()}
    for outputs in warm.values():
        assert outputs[0].started[1] >= 48
        text = engine.tokenizer.decode(tokens_of(outputs))
        assert text_of(outputs) == text
