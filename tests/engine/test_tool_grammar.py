"""Forced and strict calls: whatever the grammar allows is read back as calls that keep to their schemas, and a
broken-off answer goes on from its tokens as if nothing had been."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.detokenizer import ReadDetokenizer, ShowingVocabulary, TokenizerVocabulary
from engine.grammar import JSON_OPTIONS, CompiledGrammar, GrammarCompiler, GrammarState
from engine.grammar_spec import GrammarError
from engine.protocol import Tool, ToolCallPart
from engine.tokenizer import Tokenizer
from engine.tool_calls import HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, CallForm, CallReading
from engine.tool_grammar import check_schema, tool_grammar
from tests.engine.tiny import CHATML, EOS, make_tokenizer

ADD = Tool(
    "add",
    "",
    {
        "properties": {
            "n": {"$ref": "#/$defs/small"},
            "s": {"type": "string", "maxLength": 3},
            "e": {"enum": ["a", "é"]},
        },
        "required": ["n", "e"],
        "$defs": {"small": {"type": "integer", "minimum": 0, "maximum": 99}},
    },
)
NOW = Tool("now")
FORMS = [HERMES, LLAMA, MISTRAL, MISTRAL_NAMED]
READING = {form: CallReading(form, frozenset({"add", "now"}), "g") for form in FORMS}


@pytest.fixture(scope="module", params=["marks are text", "marks are control tokens"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("grammar")
    make_tokenizer(folder, CHATML)
    if request.param == "marks are control tokens":
        file = folder / "tokenizer.json"
        data = json.loads(file.read_text())
        marks = dict.fromkeys(mark for form in FORMS for mark in form.marks if mark)
        for number, mark in enumerate(marks):
            token = len(data["model"]["vocab"])
            data["model"]["vocab"][mark] = token
            flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
            data["added_tokens"].append({"id": token, "content": mark, **flags})
            assert number < 20
        file.write_text(json.dumps(data))
    return Tokenizer.load(folder)


def compiled(tokenizer: Tokenizer, form: CallForm, *, forced: bool = True, parallel: bool = True) -> CompiledGrammar:
    compiler = GrammarCompiler(tokenizer.backend, [EOS], tokenizer.backend.get_vocab_size())
    return compiler.compile(
        tool_grammar(
            form,
            [ADD, NOW],
            forced=forced,
            parallel=parallel,
            enforced=["add", "now"],
            control=tokenizer.control_id,
            options=JSON_OPTIONS,
        )
    )


def allowed(state: GrammarState) -> list[int]:
    bits = state._masks.bits([state])[0]
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()


def walk(grammar: CompiledGrammar, chance: random.Random) -> list[int]:
    """An answer of tokens at random among those allowed; it ends as soon as it may, one time in two."""
    state, said = grammar.start(), list[int]()
    while not state.finished:
        tokens = allowed(state)
        token = EOS if EOS in tokens and chance.random() < 0.5 else chance.choice(tokens)
        if token == EOS:
            break
        said.append(token)
        state.accept(token)
        assert state.failure is None
        assert len(said) < 4000
    return said


def reader(tokenizer: Tokenizer, form: CallForm, stops: tuple[str, ...] = ()) -> tuple[ReadDetokenizer, Any]:
    parser = READING[form].parser(0)
    ids = {tokenizer.control_id(mark): mark for mark in form.marks}
    shown = {token: mark for token, mark in ids.items() if token is not None}
    vocabulary = ShowingVocabulary(TokenizerVocabulary(tokenizer.backend), shown)
    return ReadDetokenizer(vocabulary, stops, 0, parser), parser


def calls_of(parts: list[ToolCallPart]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for part in parts:
        if part.id:
            found.append((part.name, ""))
        found[-1] = (found[-1][0], found[-1][1] + part.arguments)
    return found


def assert_kept(name: str, arguments: Any) -> None:
    if name == "now":
        assert arguments == {}
        return
    assert name == "add"
    assert {"n", "e"} <= set(arguments) <= {"n", "e", "s"}
    assert arguments["n"] in range(100)
    assert arguments["e"] in ("a", "é")
    assert len(arguments.get("s", "")) <= 3


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.kind + " named" * form.named)
def test_whatever_a_forced_grammar_allows_is_read_back_as_calls_by_their_schemas(
    form: CallForm, parallel: bool, tokenizer: Tokenizer
) -> None:
    grammar = compiled(tokenizer, form, parallel=parallel)
    chance, counts = random.Random(f"{form.kind}{parallel}"), set()
    for _ in range(12):
        said = walk(grammar, chance)
        detokenizer, parser = reader(tokenizer, form)
        text = "".join(detokenizer.push(token)[0] for token in said) + detokenizer.finish()
        assert text == ""
        assert parser.called
        found = calls_of(parser.take())
        for name, arguments in found:
            assert_kept(name, json.loads(arguments))
        counts.add(len(found))
    several = parallel and not form.bare  # the Llama form has one call
    assert (max(counts) > 1) == several
    assert min(counts) == 1


def ids_of(tokenizer: Tokenizer, form: CallForm, text: str) -> list[int]:
    """The tokens of an answer, the form's marks as the model says them."""
    for mark in form.marks:
        if mark and (token := tokenizer.control_id(mark)) is not None and mark in text:
            before, _, behind = text.partition(mark)
            return [*ids_of(tokenizer, form, before), token, *ids_of(tokenizer, form, behind)]
    return tokenizer.encode(text)


GOOD, BAD = '{"name": "add", "arguments": {"n": 7, "e": "a"}}', '{"name": "add", "arguments": {"n": 700, "e": "a"}}'


def takes(tokenizer: Tokenizer, form: CallForm, grammar: CompiledGrammar, text: str) -> bool:
    state = grammar.start(ids_of(tokenizer, form, text))
    return state.failure is None and (state.finished or EOS in allowed(state))


def test_a_strict_call_keeps_to_its_schema_and_the_text_around_it_is_free(tokenizer: Tokenizer) -> None:
    free = compiled(tokenizer, HERMES, forced=False)
    call, wrong = f"<tool_call>\n{GOOD}\n</tool_call>", f"<tool_call>\n{BAD}\n</tool_call>"
    for text, fine in (("hello", True), (call, True), (f"I look: {call}\n{call} so.", True), (wrong, False)):
        assert takes(tokenizer, HERMES, free, text) == fine
    free = compiled(tokenizer, MISTRAL, forced=False)
    for text, fine in (("a [TOOL", True), (f"x[TOOL_CALLS][{GOOD}]", True), (f"[TOOL_CALLS][{BAD}]", False)):
        assert takes(tokenizer, MISTRAL, free, text) == fine
    free = compiled(tokenizer, LLAMA, forced=False)
    for text, fine in (("hello {", True), (GOOD.replace("arguments", "parameters"), True), (BAD, False), ("{}", False)):
        assert takes(tokenizer, LLAMA, free, text) == fine


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.kind + " named" * form.named)
def test_an_answer_that_is_fed_again_up_to_any_token_goes_on_as_if_undisturbed(
    form: CallForm, tokenizer: Tokenizer
) -> None:
    """Grammar, text, calls and ids are functions of the tokens: what a continued answer needs."""
    grammar = compiled(tokenizer, form)
    said = walk(grammar, random.Random(5))
    loose = ids_of(tokenizer, form, "I look, wait.\n<tool_call>[TOOL_CALLS]" + GOOD + " no stop here, STOP and more")
    for ids, stops, held_to in ((said, (), True), (loose, ("STOP",), False)):
        whole, parser = reader(tokenizer, form, stops)
        steps = [(*whole.push(token), parser.take(), parser.called) for token in ids]
        for cut in range(len(ids) + 1):
            again, parser = reader(tokenizer, form, stops)
            assert [(*again.push(token), parser.take(), parser.called) for token in ids[:cut]] == steps[:cut]
            assert [(*again.push(token), parser.take(), parser.called) for token in ids[cut:]] == steps[cut:]
            if held_to:
                state, fresh = grammar.start(ids[:cut]), grammar.start()
                for token in ids[:cut]:
                    fresh.accept(token)
                assert state.finished == fresh.finished
                assert state.finished or allowed(state) == allowed(fresh)


def test_text_that_a_reader_holds_goes_out_before_a_stop_string(tokenizer: Tokenizer) -> None:
    detokenizer, parser = reader(tokenizer, HERMES, ("STOP",))
    text, ended = "", False
    for token in tokenizer.encode("a <tool_STOP b"):
        more, ended = detokenizer.push(token)
        text += more
        if ended:
            break
    assert (text, ended, parser.called) == ("a <tool_", True, False)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [({"type": "array"}, "schema of an object"), ({"a": "x" * 70_000}, "at most 65,536")],
    ids=["no object", "large"],
)
def test_parameters_that_cannot_be_worked_with_are_named(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(GrammarError, match=said) as raised:
        check_schema(Tool("f", "", parameters))
    assert "parameters of f" in str(raised.value)


@pytest.mark.parametrize("depth", [100, 100_000])
def test_parameters_nested_beyond_measure_are_refused_and_no_crash(depth: int) -> None:
    deep: dict[str, Any] = {}
    for _ in range(depth):
        deep = {"a": deep}
    with pytest.raises(GrammarError, match="parameters of f"):
        check_schema(Tool("f", "", deep))
    while deep:  # level by level: freeing it at once would recurse
        deep = deep["a"]


def test_a_schema_with_the_librarys_own_settings_changes_nothing(tmp_path: Path) -> None:
    make_tokenizer(tmp_path, CHATML)
    tokenizer = Tokenizer.load(tmp_path)
    compiler = GrammarCompiler(tokenizer.backend, [EOS], tokenizer.backend.get_vocab_size())
    tool = Tool(
        "f", "", {"properties": {"a": {"type": "integer"}}, "x-guidance": {"lenient": True, "item_separator": "#"}}
    )
    grammar = tool_grammar(
        HERMES, [tool], forced=True, parallel=False, enforced=["f"], control=lambda _: None, options=JSON_OPTIONS
    )
    text = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    state = compiler.compile(grammar).start(tokenizer.encode(text))
    assert state.failure is None
    assert state.finished
