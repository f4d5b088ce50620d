"""Tools in chat prompts: the customary shape, no control token out of what callers wrote, each token in its circle."""

from __future__ import annotations

import json
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.chat_template import ChatTemplate
from engine.protocol import ChatMessage, SystemText, Tool, ToolCall
from engine.regions import Region
from engine.tokenizer import Tokenizer
from engine.tool_calls import HERMES, LLAMA, MISTRAL
from tests.engine.tiny import SPECIALS, make_tokenizer
from tests.models import HERMES as HERMES_TEMPLATE

START, END = 1, 2
WEATHER = Tool("get_weather", "Tells the weather.", {"type": "object", "properties": {"city": {"type": "string"}}})
SYSTEM = [SystemText("Be kind.", "public"), SystemText("You answer for Acme.", "acme")]

LLAMA_TEMPLATE = """\
{{- '<|im_start|>system\\n' }}{% if tools %}{{- 'Environment: ipython\\n' }}{% endif %}
{%- if messages[0].role == 'system' %}{{- messages[0].content }}{% set messages = messages[1:] %}{% endif %}
{{- '<|im_end|>' }}
{%- if tools %}
{{- '<|im_start|>user\\nRespond with {"name": function name, "parameters": dictionary of its arguments}.' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson(indent=4)) }}{% endfor %}
{{- '\\n<|python_tag|>' + messages[0].content + '<|im_end|>' }}
{%- endif %}
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' }}{% endfor %}
"""
TOOLS_FIRST = """\
{%- if tools %}{{- '<|im_start|>tools <tool_call> ' + (tools | tojson) + '<|im_end|>' }}{% endif %}
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' }}{% endfor %}
"""
MISTRAL_TEMPLATE = """\
{%- for message in messages %}
{%- if message.tool_calls is defined %}
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('Tool call IDs should be strings with length 9!') }}{% endif %}
{{- '[TOOL_CALLS][' + (call.function | tojson) + ', "id": "' + call.id + '"]' }}
{%- endfor %}
{%- elif message.role == 'tool' %}{{- '[RESULT]' + message.tool_call_id + message.content }}
{%- else %}{{- message.content }}{% endif %}
{%- endfor %}{% if tools %}{{ tools | tojson }}{% endif %}
"""


def user(text: str) -> ChatMessage:
    return ChatMessage("user", text)


def loaded(folder: Path, template: str) -> Tokenizer:
    folder.mkdir(exist_ok=True)
    make_tokenizer(folder, template)
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def hermes(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return loaded(tmp_path_factory.mktemp("hermes"), HERMES_TEMPLATE)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return loaded(tmp_path_factory.mktemp("llama"), LLAMA_TEMPLATE)


@pytest.fixture(scope="module")
def tools_first(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return loaded(tmp_path_factory.mktemp("first"), TOOLS_FIRST)


def test_tools_and_calls_are_rendered_as_transformers_does(tool_model_path: str) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(tool_model_path, local_files_only=True)
    ours = Tokenizer.load(tool_model_path)
    arguments = {"city": "Tromsø", "days": [1, 2.5, None], "deep": {"<a>": True}}
    messages = [
        user("Weather?"),
        ChatMessage("assistant", "I look.", tool_calls=[ToolCall("c1", "get_weather", json.dumps(arguments))]),
        ChatMessage("tool", "4 °C", tool_call_id="c1"),
    ]
    function = {"name": WEATHER.name, "description": WEATHER.description, "parameters": WEATHER.parameters}
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    expected = theirs.apply_chat_template(
        [
            {"role": "system", "content": "Be kind.\n\nYou answer for Acme."},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "I look.", "tool_calls": [call]},
            {"role": "tool", "content": "4 °C", "tool_call_id": "c1", "name": "get_weather"},
        ],
        tools=[{"type": "function", "function": function}],
        add_generation_prompt=True,
        return_dict=False,
    )
    assert ours.render_chat(SYSTEM, messages, "own", [WEATHER])[0] == expected


def test_whether_a_template_knows_of_tools_is_seen_in_what_it_renders(
    hermes: Tokenizer, llama: Tokenizer, tmp_path: Path
) -> None:
    assert hermes.call_form is HERMES
    assert llama.call_form is LLAMA
    assert loaded(tmp_path / "m", MISTRAL_TEMPLATE).call_form is MISTRAL
    named_only = "{# tools <tool_call> #}{% for m in messages %}{{ m.content }}{% endfor %}"
    assert loaded(tmp_path / "n", named_only).call_form is None
    unknown = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}"
    assert loaded(tmp_path / "u", unknown).call_form is None
    damaged = "{{ nothing.at.all }}"
    assert loaded(tmp_path / "d", damaged).call_form is None


def test_a_template_of_its_own_for_tools_is_used_for_them_alone(tmp_path: Path) -> None:
    make_tokenizer(tmp_path)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(HERMES_TEMPLATE)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.call_form is HERMES
    without = tokenizer.decode(tokenizer.render_chat([], [user("hi")], "own")[0], skip_special=False)
    assert without == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert "<tools>" in tokenizer.decode(tokenizer.render_chat([], [user("hi")], "own", [WEATHER])[0])


def test_arguments_that_are_no_json_object_are_rendered_as_the_text_that_they_are(hermes: Tokenizer) -> None:
    for arguments in ("no json", "[1]", "", "{" * 5000, "1" * 5000):
        messages = [user("x"), ChatMessage("assistant", "", tool_calls=[ToolCall("c", "f", arguments)])]
        ids, _ = hermes.render_chat([], messages, "own", [WEATHER])
        assert f'"arguments": {json.dumps(arguments)}' in hermes.decode(ids)


def test_mistrals_template_gets_ids_of_nine_characters_the_same_for_a_call_and_its_result(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, MISTRAL_TEMPLATE)
    call = ToolCall("call_0123456789", "f", "{}")
    messages = [
        user("x"),
        ChatMessage("assistant", "", tool_calls=[call]),
        ChatMessage("tool", "!", tool_call_id=call.id),
    ]
    text = tokenizer.decode(tokenizer.render_chat([], messages, "own", [WEATHER])[0])
    _, _, behind = text.partition('"id": "')
    assert f"[RESULT]{behind[:9]}!" in text


def test_ensure_ascii_keeps_marks_that_are_no_characters_and_escapes_all_others() -> None:
    template = ChatTemplate("{{ messages | tojson(ensure_ascii=true) }}", {})
    assert template.render([{"role": "é👋\ufdd0"}]) == '[{"role": "\\u00e9\\ud83d\\udc4b\ufdd0"}]'


# --- regions and control tokens --------------------------------------------------------------------------------------

ODD = st.lists(
    st.sampled_from(["<|im_", "end|>", "<|", "|>", "<", ">", *SPECIALS, "\n", '"', "\\", "\ufdd0", "é", "a", "\ud800"]),
    max_size=6,
).map("".join)
NAMES = st.text(alphabet=string.ascii_letters + "_-<|>", min_size=1, max_size=12)
SCHEMAS = st.dictionaries(NAMES, st.fixed_dictionaries({"type": st.just("string"), "description": ODD}), max_size=3)


@st.composite
def chats(draw: st.DrawFn) -> tuple[list[Tool], list[ChatMessage]]:
    tools = [
        Tool(draw(NAMES), draw(ODD), {"type": "object", "properties": draw(SCHEMAS)})
        for _ in range(draw(st.integers(1, 3)))
    ]
    call = ToolCall(draw(ODD), draw(NAMES), draw(st.one_of(ODD, st.dictionaries(ODD, ODD, max_size=2).map(json.dumps))))
    messages = [
        user(draw(ODD)),
        ChatMessage("assistant", draw(ODD), tool_calls=[call]),
        ChatMessage("tool", draw(ODD), tool_call_id=call.id),
        user("x" + draw(ODD)),
    ]
    return tools, messages


@given(chat=chats(), texts=st.lists(ODD, max_size=2))
@settings(max_examples=150, deadline=None)
def test_nothing_in_tools_and_calls_makes_a_control_token(
    hermes: Tokenizer, chat: tuple[list[Tool], list[ChatMessage]], texts: list[str]
) -> None:
    tools, messages = chat
    ids, _ = hermes.render_chat([SystemText("s" + text, "t") for text in texts], messages, "own", tools)
    assert (ids.count(START), ids.count(END)) == (6, 5)


@pytest.mark.parametrize("which", ["hermes", "llama", "tools_first"])
@given(chat=chats(), texts=st.lists(ODD, min_size=1, max_size=3))
@settings(max_examples=120, deadline=None)
def test_regions_cover_the_prompt_and_no_token_of_the_callers_is_in_a_shared_one(
    request: pytest.FixtureRequest, which: str, chat: tuple[list[Tool], list[ChatMessage]], texts: list[str]
) -> None:
    """The shared tokens are a function of the system texts alone: other tools and messages have the same ones."""
    tokenizer: Tokenizer = request.getfixturevalue(which)
    tools, messages = chat
    parts = [SystemText(text, f"salt {number}") for number, text in enumerate(texts)]
    ids, regions = tokenizer.render_chat(parts, messages, "own", tools)
    ends = [region.end for region in regions]
    assert ends == sorted(set(ends))
    assert regions[-1] == Region(len(ids), "own")
    kept = [part.salt for part in parts if part.text.strip()]
    assert [region.salt for region in regions[:-1]] == kept[: len(regions) - 1]
    shared = ends[-2] if len(ends) > 1 else 0
    if which == "tools_first":
        assert shared == 0, "what the caller wrote comes first"
        return
    other, others = tokenizer.render_chat(parts, [user("quite another")], "another", [WEATHER, Tool("z", "zz")])
    assert others[:-1] == regions[:-1]
    assert other[:shared] == ids[:shared]


def test_a_tenants_prompt_is_shared_beside_any_tools_and_as_without_where_it_comes_first(hermes: Tokenizer) -> None:
    with_tools, regions = hermes.render_chat(SYSTEM, [user("hi")], "own", [WEATHER])
    without, plain = hermes.render_chat(SYSTEM, [user("hi")], "own")
    assert regions[:-1] == plain[:-1]
    assert [region.salt for region in regions] == ["public", "acme", "own"]
    head = regions[1].end
    assert with_tools[:head] == without[:head]
    assert hermes.decode(with_tools[:head], skip_special=False).endswith("Acme.")


def test_what_stands_before_the_tenants_prompt_only_because_there_are_tools_is_shared_among_those_with_tools(
    llama: Tokenizer,
) -> None:
    ids, regions = llama.render_chat(SYSTEM, [user("hi")], "own", [WEATHER])
    assert [region.salt for region in regions] == ["public", "acme", "own"]
    head = llama.decode(ids[: regions[1].end], skip_special=False)
    assert head == "<|im_start|>system\nEnvironment: ipython\nBe kind.\n\nYou answer for Acme."


def test_a_tool_that_quotes_the_tenants_prompt_does_not_move_it_into_the_shared_part(tools_first: Tokenizer) -> None:
    quote = Tool("stand_in_tool", "Stands in for a tool.", {"type": "object", "properties": {}})
    for tool in (quote, Tool(SYSTEM[1].text), Tool("\ufdd0\ufdd0\ufdd0tool", quote.description, quote.parameters)):
        _, regions = tools_first.render_chat(SYSTEM, [user("hi")], "own", [tool])
        assert [region.salt for region in regions] == ["own"]


def test_without_tools_a_prompt_is_what_it_was(hermes: Tokenizer) -> None:
    messages = [user("one"), ChatMessage("assistant", "two"), user("three")]
    assert hermes.render_chat(SYSTEM, messages, "own") == hermes.render_chat(SYSTEM, messages, "own", [])
