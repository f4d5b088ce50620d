"""Grammars alone, without a model: every token is drawn evenly from those a mask allows, which finds any hole in it."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from engine import grammar
from engine.grammar import CACHED, GrammarCompiler, GrammarState, apply_masks
from engine.grammar_spec import GrammarError, GrammarSpec
from engine.tokenizer import Tokenizer
from tests.engine.json_check import problems
from tests.engine.tiny import EOS, VOCAB, make_tokenizer

SPARE = 16  # logits beyond the tokenizer's entries, as padded models have them
WIDTH = VOCAB + SPARE
SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "member": {"type": "boolean"},
        },
        "required": ["name", "age", "member"],
        "additionalProperties": False,
    },
    "optional fields": {
        "type": "object",
        "properties": {f"f{i}": {"enum": ["a", "ä€😀", 'quo"te', 7, None]} for i in range(5)},
        "required": ["f2"],
        "additionalProperties": False,
    },
    "nested": {
        "type": "object",
        "properties": {
            "items": {
                "type": "array",
                "minItems": 1,
                "maxItems": 3,
                "items": {
                    "type": "object",
                    "properties": {
                        "kind": {"enum": ["book", "tool"]},
                        "code": {"type": "string", "pattern": "^[a-c]{2,4}$"},
                    },
                    "required": ["kind", "code"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["items"],
        "additionalProperties": False,
    },
    "recursive": {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": {
                "anyOf": [
                    {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
                    {"const": "leaf"},
                    {"type": "null"},
                ]
            }
        },
    },
    "not an object": {"type": ["boolean", "null"]},
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(folder)
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer.backend, [EOS], WIDTH)


def schema_spec(schema: Any) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(schema))


def allowed(state: GrammarState) -> list[int]:
    logits = torch.zeros(1, WIDTH)
    apply_masks(logits, [0], [state])
    assert set(logits.flatten().tolist()) <= {0.0, -torch.inf}
    return torch.nonzero(logits[0] == 0).flatten().tolist()


def wander(state: GrammarState, seed: int, most: int = 2000) -> list[int]:
    """Tokens drawn evenly from the allowed ones until the answer ends or has `most`; without the one that ends it."""
    chance, said = np.random.default_rng(seed), list[int]()
    while not state.finished and len(said) < most:
        token = int(chance.choice(allowed(state)))
        state.accept(token)
        assert state.failure is None
        if token != EOS:
            said.append(token)
    return said


@pytest.mark.parametrize("name", SCHEMAS)
def test_whatever_is_drawn_under_a_schema_parses_and_is_valid(
    compiler: GrammarCompiler, tokenizer: Tokenizer, name: str
) -> None:
    grammar, answers = compiler.compile(schema_spec(SCHEMAS[name])), set()
    for seed in range(25):
        state = grammar.start()
        text = tokenizer.decode(wander(state, seed), skip_special=False)
        assert state.finished
        assert not problems(json.loads(text), SCHEMAS[name])
        answers.add(text)
    assert len(answers) > 2


def test_any_json_object_is_an_object(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    grammar, ended = compiler.compile(GrammarSpec("json_object")), 0
    for seed in range(12):
        state = grammar.start()
        text = tokenizer.decode(wander(state, seed, 600), skip_special=False)
        assert text.startswith("{")
        if state.finished:
            ended += 1
            assert isinstance(json.loads(text), dict)
    assert ended


@pytest.mark.parametrize(
    "pattern",
    [
        r"[a-z]{3,9}@[a-z]{2,5}\.(org|net)",
        r"(\d{1,3}\.){3}\d{1,3}",
        r"^(yes|no)( [äöü€😀]{1,4}){0,3}$",
        r'"[^"\\]{0,20}"',
        r"(?i)b[lo]ck.{0,6}",
        r"\p{Lu}{2}|0x[0-9A-F]+",
    ],
)
def test_whatever_is_drawn_under_a_regular_expression_matches_all_of_it(
    compiler: GrammarCompiler, tokenizer: Tokenizer, pattern: str
) -> None:
    grammar = compiler.compile(GrammarSpec("regex", pattern))
    for seed in range(25):
        state = grammar.start()
        text = tokenizer.decode(wander(state, seed, 200), skip_special=False)
        if state.finished:
            assert re.fullmatch(pattern.replace(r"\p{Lu}", "[^a-z0-9]"), text), text


def test_each_of_the_choices_is_said_and_nothing_else(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    choices = ["yes", "yes, and more", 'quo"te\\\n', "😀 ä", "<|im_end|>", "a b"]
    grammar = compiler.compile(GrammarSpec("choice", json.dumps(choices)))
    said = {tokenizer.decode(wander(grammar.start(), seed), skip_special=False) for seed in range(200)}
    assert said == set(choices)


def test_an_answer_ends_only_where_its_grammar_may_end_and_never_holds_a_special_token(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    state = compiler.compile(GrammarSpec("regex", "[ab]{2,3}|<.im_end.>")).start()
    specials = {0, 1, 2}
    assert not specials & set(allowed(state))
    for letter, may_end in (("a", False), ("b", True)):
        state.accept(tokenizer.encode(letter)[0])
        assert specials & set(allowed(state)) == ({EOS} if may_end else set())
        assert not state.finished
        assert not state.must_end
    state.accept(tokenizer.encode("a")[0])
    assert state.finished
    assert state.must_end
    assert allowed(state) == [EOS]


def test_tokens_that_the_tokenizer_does_not_have_are_forbidden(compiler: GrammarCompiler) -> None:
    state = compiler.compile(GrammarSpec("regex", "(.|\n)*")).start()
    assert len(allowed(state)) > VOCAB * 0.6  # no bytes that only continue a character
    assert max(allowed(state)) < VOCAB


def test_logits_may_be_narrower_than_the_tokenizer(tokenizer: Tokenizer) -> None:
    narrow = GrammarCompiler(tokenizer.backend, [EOS], 301)
    logits = torch.zeros(2, 301)
    apply_masks(logits, [1], [narrow.compile(GrammarSpec("regex", "[a-z]+")).start()])
    assert not logits[0].any()
    assert 0 < int((logits[1] == 0).sum()) < 301


def test_masks_change_their_own_rows_only_and_alone_or_together_the_same(compiler: GrammarCompiler) -> None:
    specs = [schema_spec(schema) for schema in SCHEMAS.values()]
    states = [compiler.compile(spec).start() for spec in specs]
    for seed, state in enumerate(states):
        wander(state, seed, most=seed)
    original = torch.randn(12, WIDTH, generator=torch.Generator().manual_seed(0))
    rows = [11, 0, 7, 3, 4]
    together = original.clone()
    apply_masks(together, rows, states)
    for row in range(12):
        alone = original.clone()
        if row in rows:
            apply_masks(alone, [row], [states[rows.index(row)]])
            assert alone[row].isinf().any()
        assert torch.equal(alone[row], together[row])


def test_a_row_of_unusable_logits_stays_unusable(compiler: GrammarCompiler) -> None:
    logits = torch.full((1, WIDTH), torch.nan)
    apply_masks(logits, [0], [compiler.compile(GrammarSpec("json_object")).start()])
    assert logits.isnan().all()


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_state_rebuilt_from_its_tokens_goes_on_as_the_original_would(compiler: GrammarCompiler, name: str) -> None:
    grammar = compiler.compile(schema_spec(SCHEMAS[name]))
    whole = wander(grammar.start(), 5)
    for cut in range(0, len(whole), max(1, len(whole) // 6)):
        first = grammar.start(whole[:cut])
        copied, rebuilt = first.copy(), grammar.start(whole[:cut])
        for token in whole[cut:]:
            assert allowed(copied) == allowed(rebuilt) == allowed(first)
            for state in (copied, rebuilt):
                state.accept(token)
            first = first.copy()
            first.accept(token)
        assert copied.finished == rebuilt.finished == first.finished


def test_a_copy_goes_its_own_way(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    state = compiler.compile(GrammarSpec("regex", "a[xy]|b[z]")).start()
    copy = state.copy()
    copy.accept(tokenizer.encode("b")[0])
    assert tokenizer.encode("a")[0] in allowed(state)
    assert tokenizer.encode("z")[0] in allowed(copy)


def test_a_token_that_the_grammar_forbids_ends_only_that_answer(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    spec = GrammarSpec("regex", "[ab]+")
    grammar = compiler.compile(spec)
    wrong, right = grammar.start(), grammar.start()
    wrong.accept(tokenizer.encode("z")[0])
    assert wrong.failure is not None
    assert "\n" not in wrong.failure
    logits = torch.zeros(2, WIDTH)
    apply_masks(logits, [0, 1], [wrong, right])
    assert logits[0].isinf().all()
    assert not logits[1].isinf().all()
    assert compiler.compile(spec) is grammar


def test_blanks_between_the_parts_of_json_are_bounded(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    """A model at a loss writes line breaks for ever where a grammar lets it."""
    grammar = compiler.compile(schema_spec(SCHEMAS["flat"]))
    assert grammar.start(tokenizer.encode('{\n        "name": "x",\r\n\t"age" : 1, "member":true\n}')).finished
    assert grammar.start(tokenizer.encode("{\n\n\n")).failure
    assert grammar.start(tokenizer.encode("{" + " " * 60)).failure


def many(make: Any, size: int = 60_000) -> Any:
    """The largest value that `make(count)` gives in about `size` bytes of JSON."""
    return make(size * 64 // len(json.dumps(make(64))))


def nested(levels: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


PATTERN = {"type": "string", "pattern": "x"}
HOSTILE: dict[str, GrammarSpec | tuple[str, str]] = {
    "not JSON": ("json_schema", "{'type': 'object'}"),
    "nothing": ("json_schema", ""),
    "an array": ("json_schema", "[]"),
    "half a pair": ("json_schema", '{"const": "\ud800"}'),
    "a megabyte": ("json_schema", json.dumps({"enum": ["x" * 1000] * 1000})),
    "a megabyte of brackets": ("json_schema", "[" * 10**6),
    "sixty kilobytes of brackets": ("json_schema", '{"a":' * 12_000),
    "deep nesting": ("json_schema", json.dumps(nested(80))),
    "an unknown kind": ("prose", "in rhyme"),
    "a keyword that is not enforced": ("json_schema", '{"type": "array", "uniqueItems": true}'),
    "not": ("json_schema", '{"type": "string", "not": {"const": "a"}}'),
    "if": ("json_schema", '{"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}}'),
    "not, allowed by the library's own keyword": ("json_schema", '{"x-guidance": {"lenient": true}, "not": {}}'),
    "an unknown format": ("json_schema", '{"type": "string", "format": "colour"}'),
    "a wrong type": ("json_schema", '{"type": "strin"}'),
    "a contradiction": ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}'),
    "a $ref to nowhere": ("json_schema", '{"$ref": "#/$defs/none"}'),
    "a $ref elsewhere": ("json_schema", '{"$ref": "https://example.org/schema.json"}'),
    "a $ref to itself": ("json_schema", '{"$ref": "#"}'),
    "$refs in a circle": (
        "json_schema",
        '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}',
    ),
    "patterns under one allOf": (
        "json_schema",
        json.dumps({"type": "string", "allOf": [{"pattern": f"a{i}"} for i in range(48)]}),
    ),
    "patterns of properties": (
        "json_schema",
        json.dumps(many(lambda n: {"type": "object", "patternProperties": {f"^a{i}$": PATTERN for i in range(n)}})),
    ),
    "alternatives to the tenth power": (
        "json_schema",
        json.dumps({"allOf": [{"anyOf": [{"minimum": i}, {"maximum": i + 9}]} for i in range(10)]}),
    ),
    "a long common multiple": (
        "json_schema",
        json.dumps({"allOf": [{"type": "integer", "multipleOf": p} for p in (983, 991, 997)]}),
    ),
    "an unclosed group": ("regex", "(a"),
    "a backslash at the end": ("regex", "a\\"),
    "another rule inside": ("regex", "a/\nstart: /b\\"),
    "a look-ahead": ("regex", "(?=a)b"),
    "a back-reference": ("regex", r"(a)\1"),
    "an empty expression": ("regex", ""),
    "an expression for nothing but the end": ("regex", "^$"),
    "an expression that nothing matches": ("regex", r"[^\x00-\x{10ffff}]"),
    "a long expression": ("regex", "a" * 5000),
    "a costly expression": ("regex", "[^a]{0,1000}" * 300),
    "choices that are none": ("choice", "[]"),
    "choices that are no text": ("choice", '["a", 1]'),
    "an empty choice": ("choice", '["a", ""]'),
    "a text beside json_object": ("json_object", "{}"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_grammar_that_cannot_be_enforced_is_refused_in_one_line_and_costs_little(
    compiler: GrammarCompiler, name: str
) -> None:
    """Refused, not ignored; within some seconds of the clock, the engine's process computes next to nothing."""
    kind, text = HOSTILE[name]
    cpu, memory = time.process_time(), resident_mib()
    with pytest.raises(GrammarError) as refusal:
        compiler.compile(GrammarSpec(kind, text))
    line = str(refusal.value)
    assert 20 < len(line) < 450
    assert "\n" not in line
    assert line.endswith(".")
    assert time.process_time() - cpu < 2.0
    assert resident_mib() - memory < 100


COSTLY = {
    "(a+)+b": ("regex", "(a+)+b"),
    "states to the power": ("regex", "(.*a.{20}){9}"),
    "counts of counts": ("regex", "((a{1,999}){1,999}){1,999}"),
    "classes": ("regex", r"(\p{L}|\p{N}){1,500}\p{Lu}\p{Ll}{1,500}"),
    "a million characters": ("json_schema", '{"type": "string", "minLength": 999000, "maxLength": 1000000}'),
    "a million items": ("json_schema", '{"type": "array", "minItems": 1000000}'),
    "no end": ("json_schema", '{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}'),
    "five thousand names": ("json_schema", json.dumps({"enum": [str(i * i) for i in range(5000)]})),
    "three hundred alternative objects": (
        "json_schema",
        json.dumps({"anyOf": [{"type": "object", "properties": {"k": {"const": f"x{i}"}}} for i in range(300)]}),
    ),
    "a $ref to a circle": (
        "json_schema",
        '{"properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"], "$defs": {"n": {"$ref": "#/$defs/n"}}}',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COSTLY)
def test_a_costly_grammar_that_is_taken_keeps_its_masks_and_memory_within_bounds(
    compiler: GrammarCompiler, name: str
) -> None:
    """It may fail once it has used up its limits; then it says why, and the next answer starts anew."""
    memory = resident_mib()
    spec = GrammarSpec(*COSTLY[name])
    for seed in range(3):
        chance, state = np.random.default_rng(seed), compiler.compile(spec).start()
        for _ in range(300):
            cpu = time.process_time()
            logits = torch.zeros(1, WIDTH)
            apply_masks(logits, [0], [state])
            assert time.process_time() - cpu < 1.0
            if state.failure or state.finished:
                break
            state.accept(int(chance.choice(torch.nonzero(logits[0] == 0).flatten().numpy())))
        assert state.failure is None or "\n" not in state.failure
    assert resident_mib() - memory < 200


def resident_mib() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def test_a_grammar_is_compiled_once_and_the_number_kept_is_bounded(tokenizer: Tokenizer) -> None:
    small = GrammarCompiler(tokenizer.backend, [EOS], WIDTH)
    spec = GrammarSpec("json_object")
    first = small.compile(spec)
    assert small.compile(GrammarSpec("json_object")) is first
    for i in range(CACHED + 5):
        small._kept["", GrammarSpec("regex", f"a{i}")] = "refused"  # stands in for a compilation
    assert small.compile(GrammarSpec("regex", "zz")) is not None
    assert len(small._kept) == CACHED
    assert small.compile(spec) is not first


def test_a_refused_grammar_is_refused_again_without_another_trial(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = GrammarSpec("regex", "(b")
    with pytest.raises(GrammarError) as first:
        compiler.compile(spec)
    monkeypatch.setattr(subprocess, "run", None)
    with pytest.raises(GrammarError, match=re.escape(str(first.value))):
        compiler.compile(spec)


@pytest.mark.long
def test_a_plain_schema_is_taken_on_a_machine_that_has_no_time_for_it(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted engine compiles while others start as well; what it refuses then would not go on."""
    late = tmp_path / "late.py"
    late.write_text(f"import runpy, time\ntime.sleep(5)\nrunpy.run_path({str(grammar.TRIAL)!r}, run_name='__main__')\n")
    monkeypatch.setattr(grammar, "TRIAL", late)
    spec = GrammarSpec("json_schema", json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}}))
    assert GrammarCompiler(tokenizer.backend, [EOS], WIDTH).compile(spec)


def test_a_model_without_a_token_that_ends_an_answer_takes_no_grammar(tokenizer: Tokenizer) -> None:
    with pytest.raises(GrammarError, match="no token that ends"):
        GrammarCompiler(tokenizer.backend, [WIDTH + 1], WIDTH).compile(GrammarSpec("json_object"))


def test_a_spec_goes_over_the_wire_and_a_bad_one_does_not() -> None:
    spec = schema_spec(SCHEMAS["nested"])
    assert msgspec.json.decode(msgspec.json.encode(spec), type=GrammarSpec) == spec
    assert len({spec, schema_spec(SCHEMAS["nested"])}) == 1
    with pytest.raises(msgspec.ValidationError, match="not JSON"):
        msgspec.json.decode(b'{"kind": "json_schema", "text": "{"}', type=GrammarSpec)


def test_specs_load_neither_torch_nor_the_library() -> None:
    code = "import engine.grammar_spec, sys; sys.exit(bool({'torch', 'llguidance', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0
