"""Grammars in the engine: models that know nothing of them answer in the form that was asked for.

The model is random, so that what a mask lets through is said sooner or later; one test has a real one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.grammar_spec import GrammarSpec
from engine.outputs import RequestRefused, StepOutput
from engine.protocol import ChatMessage
from engine.regions import Region
from tests.engine.json_check import problems
from tests.engine.null_model import null_engine
from tests.engine.test_grammar import SCHEMAS, schema_spec
from tests.engine.test_llm_engine import collect, text_of, tokens_of
from tests.engine.tiny import EOS, VOCAB

Make = Callable[..., LLMEngine]
SMOLLM2 = Path(__file__).parents[2] / ".cache" / "models" / "smollm2-135m-instruct"
CODE = GrammarSpec("regex", r"[A-Z]{2}-[0-9]{4}( (new|used|ä€😀))*")


def answers(engine: LLMEngine, asked: list[SamplingParams], prompt: str = "a tenant asks") -> list[list[StepOutput]]:
    """All at once, each as a tenant of its own, so that a small pool preempts fairly."""
    for number, params in enumerate(asked):
        engine.add_request(f"r{number}", engine.tokenizer.encode(f"{prompt} {number}"), params, tenant=f"t{number}")
    outputs = collect(engine)
    return [outputs[f"r{number}"] for number in range(len(asked))]


def mixed(count: int = 16, **settings: Any) -> list[SamplingParams]:
    """Every other request without a grammar."""
    specs = [schema_spec(schema) for schema in SCHEMAS.values()] + [CODE, GrammarSpec("choice", '["yes", "no, never"]')]
    settings = {"max_tokens": 120, **settings}
    return [
        SamplingParams(seed=n, grammar=specs[n // 2 % len(specs)] if n % 2 else None, ignore_eos=not n % 2, **settings)
        for n in range(count)
    ]


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_random_model_answers_in_valid_json(tiny_engine: Make, name: str) -> None:
    engine, ended = tiny_engine(), 0
    spec = schema_spec(SCHEMAS[name])
    for outputs in answers(engine, [SamplingParams(seed=seed, max_tokens=400, grammar=spec) for seed in range(12)]):
        if outputs[-1].finish_reason == "stop":
            ended += 1
            assert not problems(json.loads(text_of(outputs)), SCHEMAS[name])
    assert ended > 6


def test_an_answer_matches_its_expression_or_is_one_of_the_choices(tiny_engine: Make) -> None:
    engine = tiny_engine()
    choices = ["yes", "no, never", "Ä😀"]
    asked = [SamplingParams(seed=seed, max_tokens=200, grammar=CODE) for seed in range(8)]
    asked += [SamplingParams(seed=s, grammar=GrammarSpec("choice", json.dumps(choices))) for s in range(12)]
    results = answers(engine, asked)
    for outputs in results[:8]:
        assert outputs[-1].finish_reason == "length" or re.fullmatch(CODE.text, text_of(outputs))
    said = [text_of(outputs) for outputs in results[8:]]
    assert {outputs[-1].finish_reason for outputs in results[8:]} == {"stop"}
    assert set(said) <= set(choices)
    assert len(set(said)) > 1


def test_several_choices_of_a_request_each_keep_to_the_grammar(tiny_engine: Make) -> None:
    engine = tiny_engine()
    found = engine.generate(
        ["the block pool"], SamplingParams(n=5, max_tokens=400, grammar=schema_spec(SCHEMAS["flat"]))
    )
    texts = [answer.text for answer in found if answer.finish_reason == "stop"]
    assert len(texts) > 2
    assert len(set(texts)) > 1
    for text in texts:
        assert not problems(json.loads(text), SCHEMAS["flat"])


@pytest.mark.parametrize("name", ["<|im_end|>", "<|im_start|>", "<|endoftext|>"])
def test_the_name_of_a_special_token_in_a_grammar_is_only_text(tiny_engine: Make, name: str) -> None:
    engine = tiny_engine()
    literal = f"a{name}b"
    specs = {
        json.dumps(literal): schema_spec({"const": literal}),
        literal: GrammarSpec("choice", json.dumps([literal])),
        name: GrammarSpec("regex", re.escape(name)),
    }
    asked = [SamplingParams(max_tokens=60, grammar=spec) for spec in specs.values()]
    for text, outputs in zip(specs, answers(engine, asked), strict=True):
        assert (text_of(outputs), outputs[-1].finish_reason) == (text, "stop")


@pytest.mark.parametrize(
    "spec",
    [
        schema_spec({"const": 2**64}),
        schema_spec({"type": "object", "title": 2**70}),
        schema_spec({"type": "number", "multipleOf": True}),
        schema_spec({"type": "object", "properties": {f"k{n}": {"type": "integer"} for n in range(1500)}}),
        schema_spec({"anyOf": [{"type": "object", "properties": {"k": {"const": f"x{n}"}}} for n in range(900)]}),
        GrammarSpec("choice", json.dumps([f"c{n}" for n in range(5000)])),
    ],
    ids=["huge number", "huge title", "multipleOf true", "1,500 properties", "900 alternatives", "5,000 choices"],
)
def test_what_could_only_fail_later_is_refused_at_submission(tiny_engine: Make, spec: GrammarSpec) -> None:
    with pytest.raises(RequestRefused, match="cannot be enforced") as refused:
        tiny_engine().add_request("r", [5, 6], SamplingParams(grammar=spec))
    assert refused.value.code == "invalid_grammar"


def test_what_one_tenant_had_compiled_is_compiled_anew_for_another(tiny_engine: Make) -> None:
    """Else the time a schema takes would tell whether somebody else uses it."""
    engine = tiny_engine()
    one = engine.compile_grammar(CODE, "one")
    assert engine.compile_grammar(CODE, "one") is one
    assert engine.compile_grammar(CODE, "two") is not one


def test_settings_that_leave_no_token_end_their_own_answer_and_distrust_nothing(tiny_engine: Make) -> None:
    engine = tiny_engine()
    prompt = [3 + i for i in range(60)]
    regions = [Region(48, "public"), Region(60, "chat")]
    calm = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
    engine.add_request("before", prompt, calm, tenant="b", regions=regions)
    collect(engine)
    nothing_left = [
        SamplingParams(min_tokens=5, stop_token_ids=tuple(range(VOCAB))),
        SamplingParams(min_tokens=5, stop_token_ids=tuple(range(VOCAB)), grammar=CODE),
    ]
    for number, params in enumerate(nothing_left):
        other = [Region(48, "public"), Region(60, f"other chat {number}")]
        engine.add_request("contradiction", prompt, params, tenant="a", regions=other)
        last = collect(engine)["contradiction"][-1]
        assert (last.finish_reason, last.error) == ("error", "its settings leave no token to say")
    engine.add_request("after", prompt, calm, tenant="b", regions=regions)
    assert collect(engine)["after"][-1].cached_tokens == 59


def test_the_answer_ends_as_soon_as_nothing_else_can_follow(tiny_engine: Make) -> None:
    """The last token is the closing brace: no step is spent on a token that ends the answer, nor is one awaited."""
    engine = tiny_engine()
    spec = schema_spec({"type": "object", "properties": {}, "additionalProperties": False})
    for ignore_eos in (False, True):
        (outputs,) = answers(engine, [SamplingParams(grammar=spec, ignore_eos=ignore_eos, max_tokens=200)])
        assert outputs[-1].finish_reason == "stop"
        assert json.loads(text_of(outputs)) == {}
        assert tokens_of(outputs)[-1] != EOS


def test_min_tokens_holds_the_end_back_while_something_else_can_be_said(tiny_engine: Make) -> None:
    engine = tiny_engine()
    params = [
        SamplingParams(seed=s, min_tokens=20, max_tokens=60, grammar=GrammarSpec("regex", "[a-z]+")) for s in range(6)
    ]
    for outputs in answers(engine, params):
        assert len(tokens_of(outputs)) > 20
        assert re.fullmatch("[a-z]+", text_of(outputs))
    params = [SamplingParams(seed=s, min_tokens=20, grammar=GrammarSpec("regex", "[ab]{1,3}c?")) for s in range(6)]
    for outputs in answers(engine, params):
        assert outputs[-1].finish_reason == "stop"
        assert re.fullmatch("[ab]{1,3}c?", text_of(outputs))


def test_max_tokens_cuts_an_answer_off_with_length_and_what_was_said_can_be_continued(tiny_engine: Make) -> None:
    engine = tiny_engine()
    spec = schema_spec(SCHEMAS["flat"])
    (outputs,) = answers(engine, [SamplingParams(max_tokens=7, grammar=spec)])
    assert outputs[-1].finish_reason == "length"
    state = engine.compile_grammar(spec).start(tokens_of(outputs))
    assert state.failure is None
    assert not state.finished


def test_neighbours_without_a_grammar_are_not_affected_and_alone_or_together_is_the_same(tiny_engine: Make) -> None:
    asked = mixed()
    together = [tokens_of(outputs) for outputs in answers(tiny_engine(), asked)]
    alone = tiny_engine(prefix_caching=False)
    for number, params in enumerate(asked):
        alone.add_request("one", alone.tokenizer.encode(f"a tenant asks {number}"), params)
        assert tokens_of(collect(alone)["one"]) == together[number]


def test_a_preempted_answer_is_the_same(tiny_engine: Make) -> None:
    asked = mixed(12, min_tokens=30)
    undisturbed = answers(tiny_engine(), asked)
    crowded = tiny_engine(num_blocks=20)
    disturbed = answers(crowded, asked)
    assert crowded.counters()["preemptions"] > 0
    assert [tokens_of(o) for o in disturbed] == [tokens_of(o) for o in undisturbed]


def test_draft_tokens_are_held_to_the_grammar_too(tiny_engine: Make) -> None:
    """Whatever is guessed, right, wrong, forbidden or beyond the end: the answer is that of no guess at all."""
    engine = tiny_engine()
    prompt = engine.tokenizer.encode("a tenant asks")
    params = SamplingParams(seed=3, max_tokens=200, grammar=schema_spec(SCHEMAS["flat"]))
    engine.add_request("plain", prompt, params)
    right = tokens_of(collect(engine)["plain"])
    engine.add_request("drafted", prompt, params)
    said: list[int] = []
    schedule, steps = engine.scheduler.schedule, 0

    def with_drafts(*arguments: Any) -> Any:
        batch = schedule(*arguments)
        for sequence in batch:
            if sequence.num_output:
                ahead = right[sequence.num_output :][:3]
                guess = [ahead, [*ahead[:1], 7, 9], [11], [*ahead, EOS, EOS]][steps % 4]
                room = len(sequence.block_table) * engine.block_size - sequence.num_tokens
                sequence.draft = guess[: max(0, room)]
                batch[sequence] += len(sequence.draft)
        return batch

    engine.scheduler.schedule = with_drafts  # type: ignore[method-assign]
    while engine.has_work():
        for output in engine.step():
            said += output.new_token_ids
            reason = output.finish_reason
        steps += 1
    assert said == right
    assert reason == "stop"
    assert steps < len(right) - 5


def test_logit_bias_cannot_leave_the_grammar(tiny_engine: Make) -> None:
    engine = tiny_engine()
    letter = engine.tokenizer.encode("z")[0]
    params = SamplingParams(max_tokens=20, logit_bias={letter: 100.0}, grammar=GrammarSpec("regex", "[ab]{4}"))
    assert re.fullmatch("[ab]{4}", text_of(answers(engine, [params])[0]))


def test_a_grammar_that_cannot_be_enforced_is_refused_at_submission(tiny_engine: Make) -> None:
    engine = tiny_engine()
    for spec in (GrammarSpec("regex", "(?=a)b"), schema_spec({"type": "array", "uniqueItems": True})):
        with pytest.raises(RequestRefused, match=r"cannot be enforced: .*\.$") as refusal:
            engine.add_request("r", [5], SamplingParams(grammar=spec))
        assert (refusal.value.code, refusal.value.param) == ("invalid_grammar", "response_format")
    assert not engine.has_work()


def test_an_engine_without_a_tokenizer_says_that_it_takes_no_grammar() -> None:
    with pytest.raises(RequestRefused, match="no tokenizer"):
        null_engine(num_blocks=8).add_request("r", [5], SamplingParams(grammar=GrammarSpec("json_object")))


def test_a_grammar_with_a_dead_end_ends_its_own_answer_with_the_reason(tiny_engine: Make) -> None:
    engine = tiny_engine()
    dead_end = {"properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"], "$defs": {"n": {"$ref": "#/$defs/n"}}}
    dead_end = {"type": "object", "additionalProperties": False, **dead_end}
    asked = [
        SamplingParams(max_tokens=60, ignore_eos=True),
        SamplingParams(max_tokens=200, grammar=schema_spec(dead_end)),
    ]
    fine, dead = answers(engine, asked)
    assert dead[-1].finish_reason == "error"
    assert dead[-1].error is not None
    assert "nothing may follow" in dead[-1].error
    assert len(tokens_of(fine)) == 60
    assert tokens_of(fine) == tokens_of(answers(tiny_engine(), asked[:1])[0])


def test_a_model_whose_output_is_no_number_is_blamed_and_not_its_grammar(
    tiny_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine()
    logits = engine.runner._model.logits  # type: ignore[attr-defined]
    monkeypatch.setattr(engine.runner._model, "logits", lambda hidden: logits(hidden) * torch.nan)  # type: ignore[attr-defined]
    (outputs,) = answers(engine, [SamplingParams(grammar=GrammarSpec("json_object"))])
    assert outputs[-1].error == "the model's output was not a number"


@pytest.mark.skipif(not (SMOLLM2 / "tokenizer.json").is_file(), reason="the real model is not converted here")
def test_a_real_model_fills_in_a_form() -> None:
    engine = LLMEngine(EngineConfig(model=str(SMOLLM2), num_blocks=64))
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 30},
            "country": {"enum": ["France", "Germany", "Japan"]},
            "capital": {"type": "boolean"},
        },
        "required": ["city", "country", "capital"],
        "additionalProperties": False,
    }
    question = [ChatMessage("user", "Describe Paris as JSON with city, country and capital.")]
    params = SamplingParams(temperature=0.0, max_tokens=80, grammar=schema_spec(schema))
    (answer,) = engine.generate([question], params)
    assert answer.finish_reason == "stop"
    assert not problems(json.loads(answer.text), schema)
    assert json.loads(answer.text)["country"] == "France"
