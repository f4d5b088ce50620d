"""What a caller may send whole: tools and their answers, forms, several choices, bare prompts. No server is started
but Redis; the request is looked at as the engine would get it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis

from chatapp.chat import services
from chatapp.chat.models import Generation
from chatapp.errors import BadInput, Forbidden, IdempotencyMismatch, NotFound, TooMany
from chatapp.limits import budget
from chatapp.limits.models import TEAM, Meter, Plan, Reservation, TenantLimits
from chatapp.tenants.access import Access, access_for_key
from chatapp.tenants.models import KeyScope
from chatapp.tenants.services import create_api_key
from engine import protocol
from tests.chat.conftest import ScriptedWorker, Team

HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": True,
    },
}
CLOCK = {"type": "function", "name": "clock"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def request_of(generation: Generation) -> protocol.Request:
    assert generation.request is not None
    return protocol.decode_request(bytes(generation.request))


def allow(team: Team, **limits: Any) -> None:
    plan = Plan.objects.create(name="Tried", **limits)
    TenantLimits.objects.update_or_create(tenant=team.tenant, defaults={"plan": plan})


def asked(access: Access, **fields: Any) -> protocol.Request:
    return request_of(services.complete(access=access, **{"messages": HELLO, **fields}))


# --- tools --------------------------------------------------------------------------------------------------------


def test_tools_reach_the_engine_nested_or_flat_with_the_choice_among_them(team: Team) -> None:
    request = asked(team.key, tools=[WEATHER, CLOCK])
    assert [(tool.name, tool.description) for tool in request.tools] == [
        ("get_weather", "The weather in a city"), ("clock", ""),
    ]  # fmt: skip
    assert request.tools[0].parameters == WEATHER["function"]["parameters"]  # type: ignore[index]
    assert [tool.strict for tool in request.tools] == [True, False]
    assert (request.tool_choice, request.tool_name, request.parallel_tool_calls) == ("auto", "", True)
    for choice, want in [
        ("none", ("none", "")),
        ("required", ("required", "")),
        ({"type": "function", "function": {"name": "clock"}}, ("function", "clock")),
        ({"type": "function", "name": "clock"}, ("function", "clock")),
    ]:
        request = asked(team.key, tools=[WEATHER, CLOCK], tool_choice=choice, parallel_tool_calls=False)
        assert (request.tool_choice, request.tool_name) == want
        assert not request.parallel_tool_calls
    only = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CLOCK]}}
    request = asked(team.key, tools=[WEATHER, CLOCK], tool_choice=only)
    assert [tool.name for tool in request.tools] == ["clock"]
    assert request.tool_choice == "required"


def test_a_conversation_with_calls_and_what_they_gave_reaches_the_engine(team: Team) -> None:
    request = asked(
        team.key,
        tools=[WEATHER],
        messages=[
            *HELLO,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": ""},
            {"role": "assistant", "content": ""},
            {"role": "assistant", "content": "Sunny.", "tool_calls": []},
            {"role": "user", "content": "Thanks"},
        ],
    )
    assert [(m.role, m.content, m.tool_call_id) for m in request.messages] == [
        ("user", "Hello", ""), ("assistant", "", ""), ("tool", "", "call_1"), ("assistant", "Sunny.", ""),
        ("user", "Thanks", ""),
    ]  # fmt: skip
    assert request.messages[1].tool_calls == [protocol.ToolCall("call_1", "get_weather", '{"city": "Paris"}')]


def with_function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


def with_call(**fields: Any) -> list[dict[str, Any]]:
    return [*HELLO, {"role": "assistant", "tool_calls": [{**CALL, **fields}]}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": "all"}, "tools"),
        ({"tools": [CLOCK] * 129}, "tools"),
        ({"tools": [CLOCK, CLOCK]}, "tools[1]"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": 5}]}, "tools[0].function"),
        ({"tools": [with_function(name="a b")]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "name": "x" * 65}]}, "tools[0].name"),
        ({"tools": [with_function(description=5)]}, "tools[0].function.description"),
        ({"tools": [with_function(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [with_function(parameters={"a": "x" * 70_000})]}, "tools[0].function.parameters"),
        ({"tools": [with_function(parameters={"a": "\ud800"})]}, "tools[0].function.parameters"),
        ({"tools": [with_function(strict="yes")]}, "tools[0].function.strict"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": {"type": "custom"}}, "tool_choice.type"),
        ({"tools": [CLOCK], "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ({"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "g"}}},
         "tool_choice.function.name"),
        ({"tools": [CLOCK], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"tools": [CLOCK], "tool_choice": "required", "params": {"response_format": {"type": "json_object"}}},
         "response_format"),
        ({"messages": with_call(id=5)}, "messages[1].tool_calls[0].id"),
        ({"messages": with_call(type="custom")}, "messages[1].tool_calls[0].type"),
        ({"messages": with_call(function={"name": "", "arguments": "{}"})}, "messages[1].tool_calls[0].function.name"),
        ({"messages": with_call(function={"name": "f", "arguments": {}})},
         "messages[1].tool_calls[0].function.arguments"),
        ({"messages": [*HELLO, {"role": "assistant", "tool_calls": [CALL, CALL]}]}, "messages[1].tool_calls[1].id"),
        ({"messages": [*HELLO, {"role": "assistant", "tool_calls": 5}]}, "messages[1].tool_calls"),
        ({"messages": [*HELLO, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [*HELLO, {"role": "tool", "content": "x", "tool_call_id": "call_1"}]},
         "messages[1].tool_call_id"),
        ({"messages": [*with_call(), {"role": "tool", "tool_call_id": "call_1"}]}, "messages[2].content"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_tools_and_calls_is_named_to_the_field(team: Team, fields: Any, param: str) -> None:
    with pytest.raises(BadInput) as refused:
        services.complete(access=team.key, **{"messages": HELLO, **fields})
    assert (refused.value.status, refused.value.param) == (400, param)
    assert Generation.objects.count() == 0


# --- parameters ---------------------------------------------------------------------------------------------------


def test_penalties_biases_choices_and_logprobs_reach_the_engine(team: Team) -> None:
    params = asked(
        team.key,
        params={
            "n": 3, "logprobs": 5, "presence_penalty": 1, "frequency_penalty": -2.0, "repetition_penalty": 1.1,
            "logit_bias": {"50": -100, "7": 2.5}, "max_tokens": 9,
        },
    ).params  # fmt: skip
    assert (params.n, params.logprobs, params.max_tokens) == (3, 5, 9)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (1.0, -2.0, 1.1)
    assert params.logit_bias == {50: -100.0, 7: 2.5}


@pytest.mark.parametrize(
    ("params", "kind", "text"),
    [
        ({"response_format": {"type": "text"}}, None, ""),
        ({"response_format": {"type": "json_object"}}, "json_object", ""),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}},
         "json_schema", '"name"'),
        ({"response_format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}, "json_schema", '"name"'),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", '"name"'),
        ({"structured_outputs": {"json": '{"type": "object"}', "regex": None}}, "json_schema", "object"),
        ({"structured_outputs": {"json_object": True}}, "json_object", ""),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"guided_json": SCHEMA}, "json_schema", '"name"'),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["yes", "no"]}, "choice", '["yes","no"]'),
    ],
)  # fmt: skip
def test_the_form_of_an_answer_is_said_in_openais_or_vllms_words(team: Team, params: Any, kind: Any, text: str) -> None:
    grammar = asked(team.key, params=params).params.grammar
    assert (grammar.kind if grammar else None) == kind
    assert grammar is None or text in grammar.text


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {str(n): 1 for n in range(1025)}}, "logit_bias"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": []}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
         "response_format.json_schema.name"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"x": "y" * 70_000}}}},
         "response_format.json_schema.schema"),
        ({"structured_outputs": {"grammar": "x"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_choice": "yes"}, "guided_choice"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "response_format"),
    ],
)  # fmt: skip
def test_a_wrong_parameter_is_named(team: Team, params: Any, param: str) -> None:
    with pytest.raises(BadInput) as refused:
        services.complete(access=team.key, messages=HELLO, params=params)
    assert refused.value.param == param


def test_a_conversation_that_is_kept_has_one_answer_and_shows_nobody_the_teams_prompt(team: Team) -> None:
    for params in ({"n": 2}, {"prompt_logprobs": 0}):
        with pytest.raises(BadInput) as refused:
            services.ask(access=team.member, text="Hi", params=params)
        assert refused.value.param == next(iter(params))


# --- bare prompts -------------------------------------------------------------------------------------------------


def test_a_bare_prompt_comes_as_it_is_with_nothing_of_the_team_in_it(team: Team) -> None:
    request = asked(team.key, messages=None, text=" \nOnce")
    assert (request.text, request.token_ids, request.messages, request.system) == (" \nOnce", None, [], [])
    assert (request.params.max_tokens, request.params.temperature) == (16, 1.0), "as OpenAI's completions do"
    request = asked(team.key, messages=None, token_ids=[1, 2, 3], params={"prompt_logprobs": 0, "max_tokens": 5})
    assert (request.text, request.token_ids) == (None, [1, 2, 3])
    assert (request.params.prompt_logprobs, request.params.max_tokens) == (0, 5)
    assert request.salt == asked(team.key).salt


def test_a_key_that_may_not_send_system_messages_may_not_leave_the_teams_prompt_out(team: Team) -> None:
    plain = access_for_key(create_api_key(tenant=team.tenant, name="plain", scopes=(KeyScope.CHAT,))[1])
    with pytest.raises(Forbidden) as refused:
        services.complete(access=plain, text="Once")
    assert refused.value.param == "prompt"
    with pytest.raises(Forbidden):
        services.complete_all(access=plain, prompts=["Once", "Twice"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": ""}, "prompt"),
        ({"text": "\ud800"}, "prompt"),
        ({"text": "x" * 200_001}, "prompt"),
        ({"token_ids": []}, "prompt"),
        ({"token_ids": [1, -1]}, "prompt"),
        ({"token_ids": [True]}, "prompt"),
        ({"token_ids": [2**31]}, "prompt"),
        ({"text": "a", "tools": [CLOCK]}, "prompt"),
        ({"text": "a", "messages": HELLO}, "messages"),
    ],
)
def test_a_bare_prompt_that_is_none_is_refused(team: Team, fields: Any, param: str) -> None:
    with pytest.raises(BadInput) as refused:
        services.complete(access=team.key, **fields)
    assert refused.value.param == param


def test_an_assistant_answers_no_bare_prompt(team: Team) -> None:
    with pytest.raises(NotFound) as refused:
        services.complete(access=team.key, text="a", model="assistant:assistant")
    assert refused.value.param == "model"


def test_several_prompts_are_accepted_together_and_drawn_apart(team: Team, worker: ScriptedWorker) -> None:
    generations = services.complete_all(access=team.key, prompts=["A", "A", [5, 6]], idempotency_key="k")
    requests = [request_of(generation) for generation in generations]
    assert [(r.text, r.token_ids) for r in requests] == [("A", None), ("A", None), (None, [5, 6])]
    assert len({r.params.seed for r in requests}) == 3
    again = services.complete_all(access=team.key, prompts=["A", "A", [5, 6]], idempotency_key="k")
    assert [g.pk for g in again] == [g.pk for g in generations]
    assert {worker.answer("x").id for _ in range(3)} == {str(g.pk) for g in generations}
    with pytest.raises(IdempotencyMismatch):
        services.complete_all(access=team.key, prompts=["A", "B"], idempotency_key="k")
    seeded = services.complete_all(access=team.key, prompts=["A", "B"], params={"seed": 5})
    assert {request_of(g).params.seed for g in seeded} == {5}
    for wrong in ([], ["x"] * 129, ["x", ""]):
        with pytest.raises(BadInput) as refused:
            services.complete_all(access=team.key, prompts=wrong)
        assert str(refused.value.param).startswith("prompt")


def test_more_prompts_than_answers_at_once_are_refused_and_not_told_to_try_again(team: Team) -> None:
    allow(team, concurrent_answers=2)
    with pytest.raises(BadInput) as refused:
        services.complete_all(access=team.key, prompts=["A", "B", "C"])
    assert (refused.value.param, refused.value.retryable) == ("prompt", False)
    assert len(services.complete_all(access=team.key, prompts=["A", "B"])) == 2


def test_prompts_that_do_not_all_find_room_in_the_queue_leave_nothing_behind(
    team: Team, worker: ScriptedWorker, server: redis.Redis, record: Callable[[], int]
) -> None:
    allow(team, queue_length=2)
    with pytest.raises(TooMany):
        services.complete_all(access=team.key, prompts=["A", "B", "C"], params={"max_tokens": 5})
    assert (Generation.objects.count(), Reservation.objects.count()) == (0, 0)
    worker.beat()
    assert protocol.parse_taken(server.fcall(*protocol.take(worker.name, worker.model, 1, ()))) is None  # type: ignore[arg-type]
    record()
    found = Meter.objects.get(tenant=team.tenant, subject=TEAM)
    assert (found.reserved, found.used) == (0, 0)


# --- what it costs ------------------------------------------------------------------------------------------------


def test_all_choices_and_the_text_of_tools_are_reserved(team: Team) -> None:
    def reserved(**fields: Any) -> int:
        generation = services.complete(access=team.key, **{"messages": HELLO, **fields})
        return Reservation.objects.get(pk=generation.pk).tokens

    one = reserved(params={"max_tokens": 50})
    assert reserved(params={"max_tokens": 50, "n": 4}) == one + 150
    assert reserved(params={"max_tokens": 50}, tools=[WEATHER]) > one + len(str(WEATHER["function"]))
    called = [*HELLO, {"role": "assistant", "tool_calls": [CALL]}]
    assert reserved(params={"max_tokens": 50}, messages=called) > one + len(str(CALL["function"]))
    raw = reserved(messages=None, text="x" * 1000, params={"max_tokens": 50})
    assert raw == budget.TEMPLATE_TOKENS + 1000 + 50
    assert reserved(messages=None, token_ids=[7] * 1000, params={"max_tokens": 50}) == raw


def test_the_bound_of_a_prompt_holds_however_a_template_writes_its_tools(model_path: str) -> None:
    from engine.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(model_path)
    names = {f"property_{n}": {"type": "array", "items": {"enum": ["é", "ß", "삼"]}} for n in range(20)}
    tool = protocol.Tool("f", "What it does. ", {"type": "object", "properties": names})
    for indent in (None, 2, 4):
        text = json.dumps({"type": "function", "function": {"name": "f", "parameters": tool.parameters}}, indent=indent)
        assert len(tokenizer.encode(text)) <= budget.most_prompt_tokens([], [], [tool]) - budget.TEMPLATE_TOKENS


def test_an_answer_of_unsaid_length_is_shortened_so_that_all_its_choices_fit(team: Team) -> None:
    allow(team, tokens_per_month=1000)
    request = asked(team.key, params={"n": 4})
    length = request.params.max_tokens
    assert length is not None
    prompt = budget.most_tokens_of(request)
    assert prompt + 4 * length <= 1000 < prompt + 4 * (length + 1)
