"""Calls read out of an answer: the same however it is cut into pieces, nothing lost, nothing that is none."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol import ToolCallPart
from engine.tool_calls import HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, CallForm, CallParser, CallReading, form_of

NAMES = frozenset({"get_weather", "now", "f"})
WEATHER = '{"city": "Oslo", "days": [1, {"a": "}"}]}'


def parser(form: CallForm, most: int | None = None) -> CallParser:
    return CallReading(form, NAMES, "generation", most).parser(0)


def read(form: CallForm, pieces: Sequence[str], most: int | None = None) -> tuple[str, list[tuple[str, str]], bool]:
    """Content, calls (name, arguments), and whether the last one is whole."""
    reader = parser(form, most)
    text, parts = "", list[ToolCallPart]()
    for piece in pieces:
        text += reader.feed(piece)
        parts += reader.take()
    text += reader.finish()
    parts += reader.take()
    calls: list[tuple[str, str]] = []
    for part in parts:
        if part.call == len(calls):
            assert part.id
            assert part.name
            calls.append((part.name, part.arguments))
        else:
            assert part.call == len(calls) - 1, "calls come one after another"
            assert not part.id
            assert not part.name
            calls[-1] = (calls[-1][0], calls[-1][1] + part.arguments)
    return text, calls, reader.called


def call(name: str = "get_weather", arguments: str = WEATHER, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def tagged(inner: str) -> str:
    return f"<tool_call>\n{inner}\n</tool_call>"


ONE, TWO = [("get_weather", WEATHER)], [("get_weather", WEATHER), ("now", "{}")]
NOW = call("now", "{}")

CASES: list[tuple[CallForm, str, str, list[tuple[str, str]]]] = [
    (HERMES, tagged(call()), "", ONE),
    (HERMES, "I look.\n" + tagged(call()), "I look.", ONE),
    (HERMES, tagged(call()) + "\n" + tagged(NOW) + "\n", "", TWO),
    (HERMES, tagged(call() + "\n" + NOW), "", TWO),
    (HERMES, tagged(f"[{call()}, {NOW}]"), "", TWO),
    (HERMES, f"<tool_call>{call()}</tool_call> done. ", "done. ", ONE),
    (HERMES, f"<tool_call>{call()}", "", ONE),
    (HERMES, f"<tool_call>{call()}<tool_call>{NOW}", "", TWO),
    (HERMES, f'<tool_call>{{"arguments": {WEATHER}, "name": "get_weather"}}</tool_call>', "", ONE),
    (HERMES, '<tool_call>{"name": "now"}</tool_call>', "", [("now", "{}")]),
    (HERMES, f'<tool_call>{{"id": "x", "name": "get_weather", "arguments": {WEATHER}, "more": [1]}}', "", ONE),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
    (HERMES, f'<tool_call>{{"name": "get_weather", "arguments": {WEATHER}</tool_call>', "", ONE),
    (HERMES, f"<tool_call>\n<tool_call>{call()}", "<tool_call>\n", ONE),
    (LLAMA, call(key="parameters"), "", ONE),
    (LLAMA, "\n " + call(key="parameters"), "", ONE),
    (LLAMA, "<|python_tag|>" + call(key="parameters"), "", ONE),
    (LLAMA, "Well: <|python_tag|>" + call(key="parameters"), "Well:", ONE),
    (LLAMA, call(key="parameters") + "; " + call("now", "{}", "parameters"), "", TWO),
    (LLAMA, '{"type": "function", "name": "now", "parameters": {}}', "", [("now", "{}")]),
    (MISTRAL, f"[TOOL_CALLS][{call()}, {NOW}]", "", TWO),
    (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "abcdefghi"}]', "", [("f", "{}")]),
    (MISTRAL, f"Text [TOOL_CALLS][{call()}]", "Text", ONE),
    (MISTRAL_NAMED, f"[TOOL_CALLS]get_weather[ARGS]{WEATHER}[TOOL_CALLS]now[ARGS]{{}}", "", TWO),
    (MISTRAL_NAMED, f"[TOOL_CALLS]get_weather{WEATHER}", "", ONE),
    (MISTRAL_NAMED, f"[TOOL_CALLS]get_weather[CALL_ID]abc123def[ARGS]{WEATHER}", "", ONE),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_call_in_its_models_form_is_read_whole_and_character_by_character(number: int) -> None:
    form, text, content, calls = CASES[number]
    assert read(form, [text]) == (content, calls, True)
    assert read(form, list(text)) == (content, calls, True)


NONE = [
    (HERMES, "<tool_call>call me maybe</tool_call>"),
    (HERMES, tagged(call("unknown"))),
    (HERMES, tagged('{"city": "Oslo"}')),
    (HERMES, tagged("{'name': 'now', 'arguments': {}}")),
    (HERMES, tagged('{"name": "now", "arguments": 5}')),
    (HERMES, tagged('{"name": "now", "arguments": "no object"}')),
    (HERMES, "half a mark <tool_c"),
    (HERMES, "a < b, <tool_ callers> and <tool_call"),
    (HERMES, call()),
    (HERMES, '<tool_call>{"name": "no'),
    (HERMES, "  \n"),
    (LLAMA, '{"name": "Bob", "parameters": {}}'),
    (LLAMA, '{"answer": 42}'),
    (LLAMA, "x = " + call(key="parameters")),
    (LLAMA, '{"name": "now"}'),
    (LLAMA, "<|python_tag|>print(1)"),
    (MISTRAL, "[TOOL_CALLS]5"),
    (MISTRAL, "[TOOL_CALLS][]"),
    (MISTRAL_NAMED, "[TOOL_CALLS]unknown[ARGS]{}"),
    (MISTRAL_NAMED, "[TOOL_CALLS]now[ARG]{}"),
    (MISTRAL_NAMED, "[TOOL_CALLS]now"),
]


@pytest.mark.parametrize("number", range(len(NONE)))
def test_what_looks_like_a_call_and_is_none_comes_out_as_text_and_nothing_is_lost(number: int) -> None:
    form, text = NONE[number]
    assert read(form, [text]) == read(form, list(text)) == (text, [], False)


def test_a_call_that_is_cut_off_has_a_beginning_of_its_arguments_and_does_not_count_as_called() -> None:
    envelope = len("}\n</tool_call>")
    for cut in range(1, len(WEATHER)):
        content, calls, whole = read(HERMES, [tagged(call())[: -envelope - cut]])
        assert (content, calls, whole) == ("", [("get_weather", WEATHER[:-cut])], False)


def test_text_behind_the_place_where_a_call_breaks_off_is_not_lost() -> None:
    content, calls, whole = read(HERMES, ['<tool_call>{"name": "now", "arguments": {"a": ]} and more'])
    assert (content, calls, whole) == ("]} and more", [("now", '{"a": ')], False)


def test_arguments_are_handed_on_as_they_come() -> None:
    reader = parser(HERMES)
    pieces = ("<tool_call>\n", '{"name": "f", "argu', 'ments": ', '{"a"', ": 1", "}}")
    said = [(reader.feed(piece), [part.arguments for part in reader.take()]) for piece in pieces]
    assert said == [("", []), ("", []), ("", []), ("", ['{"a"']), ("", [": 1"]), ("", ["}"])]


def test_text_is_held_back_only_while_it_may_be_a_mark() -> None:
    reader = parser(HERMES)
    pieces = ("a ", "b <", "tool", "s", " x", "  ")
    assert [reader.feed(piece) for piece in pieces] == ["a", " b", "", " <tools", " x", ""]
    assert reader.finish() == "  "


def test_ids_depend_on_the_request_the_choice_and_the_call_alone() -> None:
    def ids(request: str, choice: int) -> list[str]:
        reader = CallReading(HERMES, NAMES, request).parser(choice)
        reader.feed(tagged(call()) + tagged(NOW))
        return [part.id for part in reader.take()]

    assert ids("g", 0) == ids("g", 0)
    assert len({*ids("g", 0), *ids("g", 1), *ids("h", 0)}) == 6
    assert all(re.fullmatch(r"call_[0-9a-f]{24}", name) for name in ids("g", 0))


def test_behind_as_many_calls_as_are_wanted_the_answer_is_full() -> None:
    reader = parser(HERMES, most=1)
    assert reader.feed(tagged(call())[:-20]) == ""
    assert not reader.full
    assert reader.feed(tagged(call())[-20:] + "x" + tagged(NOW)) + reader.finish() == ""
    assert reader.full
    assert reader.called
    assert len(reader.take()) == 1


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{% if tools %}…<tool_call>{{ call | tojson }}</tool_call>", HERMES),
        (
            'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}',
            LLAMA,
        ),
        ("{{- '<|python_tag|>' }}", LLAMA),
        ("{{ '[TOOL_CALLS]' }}[…]", MISTRAL),
        ("{{ '[TOOL_CALLS]' + name + '[ARGS]' }}", MISTRAL_NAMED),
        ("<tool_call>\n<function=name>\n<parameter=a>", None),
        ("{% for tool in tools %}{{ tool }}{% endfor %}", None),
    ],
)
def test_the_form_is_told_by_the_marks_in_the_template(template: str, form: CallForm | None) -> None:
    assert form_of(template) is form


# --- properties ----------------------------------------------------------------------------------------------------

TOKENS = {
    HERMES: ["<tool_call>", "</tool_call>", "<tool_", "call>", "<", "\n"],
    LLAMA: ["<|python_tag|>", "<|python", "_tag|>", ";", "; "],
    MISTRAL: ["[TOOL_CALLS]", "[TOOL_", "CALLS]", "[", "]", ", "],
    MISTRAL_NAMED: ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "now", "get_weather", "{}", WEATHER],
}
JSONISH = [
    '{"name": "now", ', '{"name": "f"', '"arguments": ', '"parameters": ', "{}", "{", "}", call(), NOW,
    call(key="parameters"), WEATHER, '"', "\\", "\\\"", " ", "  \n", "x", "é👋", ":", ",", "[", "]", '"name": "no', "5",
]  # fmt: skip


@st.composite
def answers(draw: st.DrawFn) -> tuple[CallForm, str]:
    form = draw(st.sampled_from(list(TOKENS)))
    words = st.sampled_from([*TOKENS[form], *TOKENS[form], *JSONISH])
    return form, "".join(draw(st.lists(words, max_size=14)))


@given(answer=answers(), cuts=st.lists(st.integers(0, 400), max_size=8), most=st.sampled_from([None, 1]))
@settings(max_examples=600, deadline=None)
def test_however_an_answer_is_cut_into_pieces_the_result_is_the_same(
    answer: tuple[CallForm, str], cuts: list[int], most: int | None
) -> None:
    form, text = answer
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(places)]
    assert "".join(pieces) == text
    assert read(form, pieces, most) == read(form, [text], most) == read(form, list(text), most)


MARKS = re.compile(
    r"<tool_call>|</tool_call>|<\|python_tag\|>|\[TOOL_CALLS\]|\[ARGS\]|\[CALL_ID\][\w.\-]*|"
    r'"(?:name|arguments|parameters|id|type)"|"(?:now|f|get_weather)"|now|get_weather|[\s:;,{}\[\]"]'
)


@given(answer=answers())
@settings(max_examples=600, deadline=None)
def test_content_and_calls_account_for_every_character(answer: tuple[CallForm, str]) -> None:
    """What is in neither is a mark of the form: a tag, a key, a bracket, a blank, the name that the call bears."""
    form, text = answer
    content, calls, _ = read(form, [text])
    if not calls:
        assert content == text
    said = sorted(content + "".join(arguments for _, arguments in calls))
    rest = list(text)
    for character in said:
        rest.remove(character)  # fails for what was made up, or said twice
    # Of the marks alone there may be more than of what is missing, never less.
    marks = "".join(MARKS.findall(text))
    for character in set(rest):
        assert rest.count(character) <= marks.count(character), f"{character!r} was lost"


VALUES = st.one_of(st.text(max_size=10), st.integers(), st.none(), st.lists(st.text(max_size=3), max_size=3))
ARGUMENTS = st.dictionaries(st.text(max_size=5), VALUES, max_size=4)


@given(
    calls=st.lists(st.tuples(st.sampled_from(sorted(NAMES)), ARGUMENTS), min_size=1, max_size=3),
    before=st.text(alphabet="ab <\n", max_size=10),
    indent=st.sampled_from([None, 2]),
    form=st.sampled_from([HERMES, MISTRAL, MISTRAL_NAMED, LLAMA]),
)
@settings(max_examples=200, deadline=None)
def test_any_calls_that_a_model_writes_in_its_form_are_read_back(
    calls: list[tuple[str, dict[str, Any]]], before: str, indent: int | None, form: CallForm
) -> None:
    written = [{"name": name, form.arguments: arguments} for name, arguments in calls]
    objects = [json.dumps(item, indent=indent, ensure_ascii=False) for item in written]
    if form is HERMES:
        text = before + "\n".join(map(tagged, objects))
    elif form is MISTRAL:
        text = f"{before}[TOOL_CALLS][{', '.join(objects)}]"
    elif form is MISTRAL_NAMED:
        text = before + "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(a, ensure_ascii=False)}" for name, a in calls)
    else:
        text, before = "; ".join(objects), ""
    content, found, whole = read(form, list(text))
    assert whole
    assert content == before.rstrip(" \n")
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls


def test_a_long_answer_takes_work_in_proportion() -> None:
    """Text that keeps beginning a call, and none of it ends."""

    def work(count: int) -> int:
        text, reader, calls = '<tool_call>{"arguments": {' * count, parser(HERMES), 0

        def counted(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(counted)
        try:
            for place in range(0, len(text), 4):
                reader.feed(text[place : place + 4])
            reader.finish()
        finally:
            sys.setprofile(None)
        return calls

    assert work(400) < 2.2 * work(200)
