"""What web APIs ask of a worker besides one answer to messages: several choices, logprobs, raw prompts, tools.

A real worker over a real server. Choices and prompts are tried on the tiny model, tools on the real SmolLM2 with a
template that knows of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from chatapp.streaming import cancel, submit, workers
from chatapp.streaming.assembly import Assembly, assembled
from chatapp.streaming.follow import follower
from engine import protocol
from engine.grammar_spec import GrammarSpec
from engine.protocol import (
    AnyEvent,
    Cancelled,
    ChatMessage,
    Delta,
    Failed,
    Finished,
    Part,
    Refused,
    Request,
    Started,
    SystemText,
    Tool,
    ToolCall,
)
from engine.sampling_params import SamplingParams
from tests.wire.conftest import InProcess, Wire, a_question, a_request, answer_of, tokens_of, until

pytestmark = pytest.mark.usefixtures("closing")
Serve: TypeAlias = Callable[..., InProcess]


def parts_of(events: list[AnyEvent], index: int = 0) -> list[Part]:
    return [part for event in events if isinstance(event, Delta) for part in event.parts if part.index == index]


async def ask(request: Request) -> list[AnyEvent]:
    submit.enqueue(request)
    return await asyncio.wait_for(answer_of(request.id), 60)


async def refused(request: Request) -> Refused:
    event = (await ask(request))[-1]
    assert isinstance(event, Refused), event
    assert not event.retryable
    return event


def text_of(found: Assembly, index: int = 0) -> str:
    return found.choice(index).text


# --- several choices ----------------------------------------------------------------------------------------------


async def test_a_run_ends_when_the_last_of_its_choices_has(wire: Wire, serve: Serve) -> None:
    """Choices of different lengths: each says why it ended with its last text, and the end follows the last one."""
    served = serve()
    params = SamplingParams(n=4, max_tokens=60, temperature=1.5, seed=3, stop=("e", "a"))
    request = a_request(params=params)
    events = await ask(request)
    found = assembled(events)
    alone = await asyncio.to_thread(lambda: served.stop() or served.engine.generate([request.messages], params))
    assert isinstance(events[-1], Finished)
    assert events[-1].finish_reason == alone[0].finish_reason
    lengths = set()
    for index, answer in enumerate(alone):
        parts = parts_of(events, index)
        assert [part.finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert parts[-1].finish_reason == answer.finish_reason
        assert [t for part in parts for t in part.token_ids] == answer.token_ids
        assert text_of(found, index) == answer.text
        lengths.add(len(answer.token_ids))
    assert len(lengths) > 1, "they ended at different steps"
    usage, timing = events[-1].usage, events[-1].timing
    assert usage is not None
    assert timing is not None
    assert usage.completion_tokens == sum(len(answer.token_ids) for answer in alone)
    assert usage.prompt_tokens == alone[0].prompt_tokens, "counted once"
    assert timing.decode_s > 0
    assert [type(event) for event in events].count(Started) == 1


async def test_the_parts_of_one_step_are_one_event(wire: Wire, serve: Serve) -> None:
    serve()
    params = SamplingParams(n=3, max_tokens=20, temperature=1.0, ignore_eos=True)
    events = await ask(a_request(params=params))
    deltas = [event for event in events if isinstance(event, Delta)]
    assert len(deltas) <= 20 + 2, "the first choice may be a step ahead of those that wait for its prompt"
    assert max(len(delta.parts) for delta in deltas) == 3
    assert len(tokens_of(events)) == 60
    seqs = [event.seq for event in events]
    assert seqs == list(range(len(events)))


async def test_stop_with_a_choice_already_ended_keeps_its_end_and_counts_all(wire: Wire, serve: Serve) -> None:
    """C10: the second choice is stopped by its own first letters, the first one by the caller."""
    served = serve()
    probe = SamplingParams(n=2, max_tokens=4000, temperature=1.2, seed=11, ignore_eos=True)
    question = [ChatMessage("user", "Hello, who are you?")]
    first, second = served_texts(served, question, probe)
    stop = next(second[a : a + 3] for a in range(5, 200) if second[a : a + 3] not in first)
    params = SamplingParams(n=2, max_tokens=4000, temperature=1.2, seed=11, ignore_eos=True, stop=(stop,))
    request = a_request(messages=question, params=params)
    submit.enqueue(request)
    async for event in follower().follow(request.id):
        if isinstance(event, Delta) and any(part.finish_reason for part in event.parts):
            break
    cancel.cancel(request.id)
    events = await asyncio.wait_for(answer_of(request.id), 20)
    last = events[-1]
    assert isinstance(last, Cancelled)
    assert last.finish_reason is None
    assert [part.finish_reason for part in parts_of(events, 1)][-1] == "stop"
    assert {part.finish_reason for part in parts_of(events, 0)} == {None}
    assert last.usage is not None
    assert last.usage.completion_tokens == len(tokens_of(events))
    await until(lambda: not any(served.engine.pool.refs))


def served_texts(served: InProcess, messages: list[ChatMessage], params: SamplingParams) -> tuple[str, str]:
    """What an engine alone says, on a copy of it that no worker has."""
    from engine import LLMEngine

    engine = LLMEngine(served.engine.config)
    short = [answer.text for answer in engine.generate([messages], with_tokens(params, 220))]
    return short[0], short[1]


def with_tokens(params: SamplingParams, tokens: int) -> SamplingParams:
    import msgspec

    return msgspec.structs.replace(params, max_tokens=tokens)


async def test_a_fault_in_one_choice_ends_the_run_as_failed_and_frees_the_others(
    wire: Wire, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: that request alone."""
    served = serve()
    advance = served.engine._advance

    def faulty(sequence: Any, drawn: Any) -> Any:
        if sequence.request_id.startswith("broken") and sequence.index == 1 and sequence.num_output == 3:
            return served.engine._finish(sequence, "error", error="made up")
        return advance(sequence, drawn)

    monkeypatch.setattr(served.engine, "_advance", faulty)
    params = SamplingParams(n=3, max_tokens=3000, temperature=1.0, ignore_eos=True)
    other = a_question(tokens=60)
    submit.enqueue(other)
    events = await ask(a_request(id="broken", params=params))
    last = events[-1]
    assert isinstance(last, Failed)
    assert (last.code, last.retryable) == ("engine_error", True)
    assert last.usage is not None
    assert last.usage.completion_tokens == len(tokens_of(events)) < 30
    assert isinstance((await answer_of(other.id))[-1], Finished)
    await until(lambda: not any(served.engine.pool.refs))


# --- log probabilities ---------------------------------------------------------------------------------------------


async def test_logprobs_stand_one_to_one_beside_the_token_ids_also_of_held_back_and_stopped_text(
    wire: Wire, serve: Serve
) -> None:
    served = serve()
    alone = served_texts(served, [ChatMessage("user", "x")], SamplingParams(n=2, temperature=1.0, seed=5))[0]
    stop = alone[12:20]
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=200, logprobs=3, prompt_logprobs=2, stop=(stop,))
    request = a_request(messages=[ChatMessage("user", "x")], params=params)
    events = await ask(request)
    assert served.stop() == 0
    (expected,) = served.engine.generate([request.messages], params)
    tokenizer = served.engine.tokenizer
    parts = parts_of(events)
    assert expected.finish_reason == "stop"
    for part in parts:
        assert [entry.id for entry in part.logprobs] == part.token_ids
    told = [entry for part in parts for entry in part.logprobs]
    assert expected.logprobs is not None
    assert [(t.id, t.logprob) for t in told] == [(t.token_id, t.logprob) for t in expected.logprobs]
    assert [[(top.id, top.logprob) for top in t.top] for t in told] == [t.top for t in expected.logprobs]
    spelt = b"".join(bytes(t.bytes) if t.bytes is not None else t.token.encode() for t in told).decode(errors="replace")
    assert spelt == tokenizer.decode([t.id for t in told])
    assert any(not part.text for part in parts), "some of it was held back"
    prompt = [entry for part in parts for entry in part.prompt_logprobs]
    ids, _ = tokenizer.render_chat([], request.messages, "s")
    assert [entry.id for entry in prompt] == ids[1:]
    assert prompt[0].top
    assert "<|im_end|>" in [entry.token for entry in prompt], "a control token has its name"


async def test_the_bytes_of_half_characters_put_together_are_the_text(wire: Wire, serve: Serve) -> None:
    serve()
    grammar = GrammarSpec("choice", json.dumps(["é👋 ok"]))
    events = await ask(a_request(params=SamplingParams(temperature=0.0, logprobs=0, grammar=grammar)))
    told = [entry for part in parts_of(events) for entry in part.logprobs]
    assert any("\N{REPLACEMENT CHARACTER}" in entry.token for entry in told)
    assert all((entry.bytes is None) == ("\N{REPLACEMENT CHARACTER}" not in entry.token) for entry in told)
    assert not any(entry.top for entry in told)
    data = b"".join(bytes(e.bytes) if e.bytes is not None else e.token.encode() for e in told)
    assert data.decode() == "é👋 ok"


async def test_without_logprobs_none_are_told(wire: Wire, serve: Serve) -> None:
    serve()
    for event in await ask(a_question(tokens=5)):
        assert b"logprob" not in protocol.encode(event)


# --- raw prompts ---------------------------------------------------------------------------------------------------


async def test_a_raw_text_is_continued_without_a_template_and_its_control_tokens_count(
    wire: Wire, serve: Serve
) -> None:
    served = serve()
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    text = "<|im_start|>user\nthe quick brown"
    events = await ask(a_request(messages=[], text=text, params=params))
    ids = served.engine.tokenizer.encode(text, special=True)
    again = await ask(a_request(messages=[], token_ids=ids, params=params))
    assert served.stop() == 0
    (alone,) = served.engine.generate([ids], params)
    assert ids[0] == 1, "the mark of a turn is one token"
    assert tokens_of(events) == tokens_of(again) == alone.token_ids
    assert isinstance(events[0], Started)
    assert events[0].prompt_tokens == len(ids)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"token_ids": [3, 10**6]}, "invalid_token"),
        ({"token_ids": [-1]}, "invalid_token"),
        ({"token_ids": []}, "empty_prompt"),
        ({"text": ""}, "empty_prompt"),
        ({"text": "word " * 9000}, "context_length_exceeded"),
        ({"text": "a b c d e", "max_prompt_tokens": 2}, "context_length_exceeded"),
    ],
    ids=["beyond the vocabulary", "negative", "no ids", "no text", "too long", "longer than allowed"],
)
async def test_a_raw_prompt_that_cannot_run_is_refused_by_its_field(
    fields: dict[str, Any], code: str, wire: Wire, serve: Serve
) -> None:
    serve()
    event = await refused(a_request(messages=[], **fields))
    assert (event.code, event.param) == (code, "prompt")


async def test_a_raw_prompt_is_shared_under_its_salt_alone(wire: Wire, serve: Serve) -> None:
    serve()

    async def cached(salt: str) -> int:
        request = Request(
            id=f"raw {salt} {next(numbers)}", tenant="t", model="m", messages=[], salt=salt, text="the quick " * 40,
            params=SamplingParams(max_tokens=1),
        )  # fmt: skip
        started = (await ask(request))[0]
        assert isinstance(started, Started)
        return started.cached_tokens

    numbers = iter(range(9))
    assert await cached("a") == 0
    assert await cached("a") > 30
    assert await cached("b") == 0


# --- tools ---------------------------------------------------------------------------------------------------------

WEATHER = Tool(
    "get_weather",
    "Tells the weather in a city.",
    {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"],
    },
)
NOW = Tool("now", "Tells the time.")


@pytest.fixture(scope="module")
def tool_engine(tool_model_path: str) -> Any:
    from engine import EngineConfig, LLMEngine

    return LLMEngine(EngineConfig(model=tool_model_path, device="cpu", num_blocks=512))


@pytest.fixture
def tooled(serve: Serve, tool_engine: Any) -> InProcess:
    return serve(runner=lambda _: tool_engine)


def with_tools(tools: list[Tool], *, text: str = "What is the weather in Oslo?", **fields: Any) -> Request:
    fields.setdefault("params", SamplingParams(max_tokens=120, temperature=0.0))
    return a_request(messages=[ChatMessage("user", text)], tools=tools, **fields)


def assert_called(found: Assembly, index: int = 0) -> list[tuple[str, Any]]:
    choice = found.choice(index)
    assert choice.finish_reason == "tool_calls"
    assert choice.text == ""
    return [(call.name, json.loads(call.arguments)) for call in choice.tool_calls]


async def test_a_forced_call_arrives_in_parts_and_keeps_to_its_schema(wire: Wire, tooled: InProcess) -> None:
    await until(workers.live)
    assert workers.live()[0].tools
    request = with_tools([WEATHER], tool_choice="required", parallel_tool_calls=False)
    events = await ask(request)
    ((name, arguments),) = assert_called(assembled(events))
    assert name == "get_weather"
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("C", "F")
    assert len(arguments["city"]) <= 12
    told = [call for part in parts_of(events) for call in part.tool_calls]
    assert len(told) > 4, "as they come"
    assert [bool(call.id) for call in told] == [True] + [False] * (len(told) - 1)
    assert isinstance(events[-1], Finished)
    assert events[-1].finish_reason == "tool_calls"


async def test_each_of_several_choices_calls_by_an_id_of_its_own_and_a_named_function_alone(
    wire: Wire, tooled: InProcess
) -> None:
    params = SamplingParams(n=2, max_tokens=120, temperature=1.0, seed=1)
    request = with_tools([WEATHER, NOW], tool_choice="function", tool_name="now", params=params)
    found = assembled(await ask(request))
    assert [assert_called(found, index) for index in (0, 1)] == [[("now", {})]] * 2
    ids = [found.choice(index).tool_calls[0].id for index in (0, 1)]
    assert len(set(ids)) == 2


async def test_an_answer_that_need_not_call_is_text_or_a_call_of_a_known_function(
    wire: Wire, tooled: InProcess
) -> None:
    for tools in ([NOW], [Tool("now", strict=True)]):
        params = SamplingParams(max_tokens=40, temperature=0.0)
        choice = assembled(await ask(with_tools(tools, text="Say hello.", params=params))).choice()
        assert choice.text or choice.tool_calls
        assert choice.finish_reason in ("stop", "length", "tool_calls")
        assert {call.name for call in choice.tool_calls} <= {"now"}


async def test_a_call_and_its_result_in_the_history_are_part_of_the_prompt(wire: Wire, tooled: InProcess) -> None:
    messages = [
        ChatMessage("user", "Weather?"),
        ChatMessage("assistant", "", tool_calls=[ToolCall("call_1", "get_weather", '{"city": "Oslo", "unit": "C"}')]),
        ChatMessage("tool", "4 degrees <|im_end|>", tool_call_id="call_1"),
    ]
    request = a_request(messages=messages, tools=[WEATHER], params=SamplingParams(max_tokens=8, temperature=0.0))
    events = await ask(request)
    assert isinstance(events[-1], Finished)
    tokenizer = tooled.engine.tokenizer
    ids, _ = tokenizer.render_chat([], messages, "s", [WEATHER])
    assert isinstance(events[0], Started)
    assert events[0].prompt_tokens == len(ids)
    prompt = tokenizer.decode(ids, skip_special=False)
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "C"}}\n</tool_call>' in prompt
    assert "<tool_response>\n4 degrees <|im_end|>\n</tool_response>" in prompt
    assert ids.count(tokenizer.backend.token_to_id("<|im_end|>")) == 4, "what a tool says is text"


async def test_with_tool_choice_none_the_tools_are_left_out_and_nothing_is_read_for_calls(
    wire: Wire, tooled: InProcess
) -> None:
    params = SamplingParams(grammar=GrammarSpec("choice", json.dumps(['<tool_call>{"name": "now"}</tool_call>'])))
    events = await ask(with_tools([NOW], tool_choice="none", params=params))
    plain = await ask(a_request(messages=[ChatMessage("user", "What is the weather in Oslo?")], params=params))
    assert text_of(assembled(events)) == text_of(assembled(plain)) == '<tool_call>{"name": "now"}</tool_call>'
    assert isinstance(events[0], Started)
    assert isinstance(plain[0], Started)
    assert events[0].prompt_tokens == plain[0].prompt_tokens


async def test_a_published_prompt_is_shared_by_requests_with_tools_and_without(wire: Wire, tooled: InProcess) -> None:
    system = [SystemText("You are a helpful assistant of the house of Acme. " * 8, "salt of a")]

    async def cached(salt: str, **fields: Any) -> int:
        parts = [SystemText(system[0].text, salt)]
        params = SamplingParams(max_tokens=1)
        started = (await ask(a_request(system=parts, prompt_version="v", params=params, **fields)))[0]
        assert isinstance(started, Started)
        return started.cached_tokens

    assert await cached("salt of a") == 0
    assert await cached("salt of a", tools=[NOW]) > 50
    assert await cached("salt of b", tools=[NOW]) == 0


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"tool_choice": "function", "tool_name": "other"}, "invalid_request", "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "invalid_request", "tool_choice"),
        ({"token_ids": [3]}, "invalid_request", "tools"),
        ({"params": SamplingParams(grammar=GrammarSpec("json_object"))}, "invalid_request", "response_format"),
        ({"tools": [Tool("f", "", {"type": "string"})], "tool_choice": "required"}, "invalid_request", "tools"),
        ({"tools": [Tool("f", "", {"properties": {"a": {"pattern": "(?=a)"}}}, True)]}, "invalid_grammar", "tools"),
        ({"tools": [Tool("f", "", {"description": "x" * 70_000})]}, "invalid_request", "tools"),
    ],
    ids=["unknown", "none to choose", "raw", "form", "no object", "unenforceable", "large"],
)
async def test_tools_that_make_no_sense_are_refused_by_their_field(
    fields: dict[str, Any], code: str, param: str, wire: Wire, tooled: InProcess
) -> None:
    event = await refused(with_tools(**{"tools": [NOW], **fields}))
    assert (event.code, event.param) == (code, param)
    assert event.message


async def test_a_forced_call_whose_schema_cannot_be_enforced_takes_any_object(wire: Wire, tooled: InProcess) -> None:
    odd = Tool("now", "", {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)"}}})
    params = SamplingParams(max_tokens=30, temperature=0.0)
    choice = assembled(await ask(with_tools([odd], tool_choice="required", params=params))).choice()
    assert choice.tool_calls[0].name == "now"


async def test_a_model_without_tools_refuses_them_in_words_and_serves_all_else(wire: Wire, serve: Serve) -> None:
    serve()
    await until(workers.live)
    assert not workers.live()[0].tools
    event = await refused(with_tools([NOW]))
    assert (event.code, event.param) == ("tools_not_supported", "tools")
    assert event.message is not None
    assert "tool_choice to none" in event.message
    spoken = a_request(messages=[ChatMessage("user", "x"), ChatMessage("tool", "y", tool_call_id="z")])
    event = await refused(spoken)
    assert (event.code, event.param) == ("tools_not_supported", "messages")
    last = (await ask(with_tools([NOW], tool_choice="none", params=SamplingParams(max_tokens=2))))[-1]
    assert isinstance(last, Finished)
