"""C25: an answer that is broken off at any event of its log and gone on with elsewhere is that of one engine.

An engine answers, and what it says is kept as a worker would log it. For each place where that log might end a second
engine is given what stands before it; what both have said together must equal the whole, down to ids, text, calls, log
probabilities and ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from engine import EngineConfig, LLMEngine, SamplingParams, wire_requests
from engine.continuation import Begun, CannotContinue, SaidChoice, begun
from engine.grammar_spec import GrammarSpec
from engine.outputs import StepOutput
from engine.parts import PartWriter
from engine.protocol import ChatMessage, Delta, Part, Request, Started, SystemText, Tool
from tests.engine.tiny import make_tiny
from tests.models import HERMES

WEATHER = Tool(
    "get_weather",
    parameters={
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "São Paulo"]}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
)
FLAT = (
    '{"type":"object","required":["name","n"],'
    '"properties":{"name":{"type":"string","maxLength":20},"n":{"type":"integer"}}}'
)
NO_BLANKS = dict.fromkeys((200, 201, 204, 223), -100.0)
"""Tokens that a random model would go on with for ever where JSON allows them."""
EMOJI = GrammarSpec("regex", "(👋🏽|👨‍👩‍👧|삼겹살|é)( (👋🏽|👨‍👩‍👧|삼겹살|é)){2,3}")


def ask(text: str = "who are you", tools: Sequence[Tool] = (), **params: Any) -> Request:
    settings = SamplingParams(**{"max_tokens": 40, "temperature": 0.9, "seed": 5, **params})
    more: dict[str, Any] = (
        {"tools": list(tools), "tool_choice": "required", "parallel_tool_calls": False} if tools else {}
    )
    return Request(
        id="r", tenant="t", model="m", messages=[ChatMessage("user", text)], salt="own",
        system=[SystemText("You are a helpful assistant.", "team")], params=settings, **more,
    )  # fmt: skip


ASKED = {
    "plain": ask(temperature=0.0, ignore_eos=True),
    "sampled twice, penalised": ask(n=2, max_tokens=25, frequency_penalty=0.6, presence_penalty=0.3, ignore_eos=True),
    "three of different lengths": ask(n=3, stop=("e",), temperature=1.3, seed=3),
    "stop strings half seen": ask(stop=("zq\x00never", "the "), ignore_eos=True, seed=8, max_tokens=60),
    "least tokens": ask(min_tokens=12, stop=("e", "a"), seed=2),
    "a string of JSON open": ask(grammar=GrammarSpec("json_schema", FLAT), max_tokens=80),
    "half an emoji": ask(grammar=EMOJI, max_tokens=120),
    "two in a form": ask(grammar=GrammarSpec("choice", '["👋🏽 yes", "삼겹살, no"]'), n=2),
    "calls of functions": ask(tools=[WEATHER], max_tokens=120, logit_bias=NO_BLANKS),
    "log probabilities": ask(logprobs=2, prompt_logprobs=1, max_tokens=12, ignore_eos=True),
    "in circles": ask(repetition_stop=16, temperature=0.0, logit_bias={70: 100.0}, ignore_eos=True),
}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = make_tiny(
        tmp_path_factory.mktemp("models") / "tiny", head_dim=32, template=HERMES, max_position_embeddings=2048
    )

    def engine(**settings: Any) -> LLMEngine:
        return LLMEngine(
            EngineConfig(**{"model": str(folder), "device": "cpu", "num_blocks": 256, "token_budget": 64} | settings)
        )

    return engine


@pytest.fixture(scope="module")
def first(make: Any) -> LLMEngine:
    return make(weights="bf16")


@pytest.fixture(scope="module")
def second(make: Any) -> LLMEngine:
    return make(weights="bf16")


def log_of(engine: LLMEngine, request: Request, name: str, before: Begun | None = None) -> list[Started | Delta]:
    """What a worker would log of it, in its order, all parts of a step in one event."""
    token_ids, regions = wire_requests.rendered(engine.tokenizer, request)
    grammar = wire_requests.compiled(engine, request) if wire_requests.needs_grammar(request) else None
    engine.add_request(
        name, token_ids, request.params, tenant=request.tenant, regions=regions, grammar=grammar,
        calls=wire_requests.reading(engine.tokenizer.call_form, request), begun=before,
    )  # fmt: skip
    writer = PartWriter(engine.vocabulary)
    events: list[Started | Delta] = []
    while engine.has_work():
        parts = []
        for output in engine.step():
            assert output.error is None, output.error
            if output.started is not None:
                events.append(Started(prompt_tokens=output.started[0], cached_tokens=output.started[1]))
            if says(output):
                parts.append(writer.part(output))
        if parts:
            events.append(Delta(parts=parts))
    engine.check_integrity()
    assert not any(engine.pool.refs)
    return events


def says(output: StepOutput) -> bool:
    return bool(
        output.new_token_ids or output.text or output.tool_calls or output.prompt_logprobs or output.finish_reason
    )


def whole(events: Sequence[Started | Delta]) -> dict[int, dict[str, Any]]:
    """What a log says of each choice, however it was cut into parts."""
    found: dict[int, dict[str, Any]] = defaultdict(
        lambda: {"text": "", "ids": [], "calls": {}, "logprobs": [], "prompt": [], "end": []}
    )
    for event in events:
        for part in event.parts if isinstance(event, Delta) else ():
            choice = found[part.index]
            choice["text"] += part.text
            choice["ids"] += part.token_ids
            choice["logprobs"] += part.logprobs
            choice["prompt"] += part.prompt_logprobs
            for call in part.tool_calls:
                one = choice["calls"].setdefault(call.call, ["", "", ""])
                choice["calls"][call.call] = [one[0] + call.id, one[1] + call.name, one[2] + call.arguments]
            if part.finish_reason:
                choice["end"].append(part.finish_reason)
    return dict(found)


@pytest.mark.parametrize("asked", ASKED)
def test_wherever_an_answer_breaks_off_the_next_engine_says_exactly_the_rest(
    first: LLMEngine, second: LLMEngine, asked: str
) -> None:
    request = ASKED[asked]
    events = log_of(first, request, "whole")
    wanted = whole(events)
    assert len(wanted) == request.params.n
    assert all(len(choice["end"]) == 1 for choice in wanted.values())
    for cut in range(len(events)):
        begun_so = begun(events[:cut])
        if begun_so.ended(request.params.n):
            continue
        rest = log_of(second, request, f"cut {cut}", begun_so)
        started = sum(isinstance(event, Started) for event in rest)
        assert started == (begun_so.started is None), "the prompt is told of once"
        assert whole([*events[:cut], *rest]) == wanted, f"broken off behind {cut} events"


def test_the_answers_break_off_where_something_is_held_back_or_open(first: LLMEngine) -> None:
    """So that the test above shows something: some tokens have no text yet, and there are ends of each kind."""
    held = set()
    ends = set()
    for name, request in ASKED.items():
        events = log_of(first, request, "again")
        parts = [part for event in events if isinstance(event, Delta) for part in event.parts]
        if any(part.token_ids and not part.text and not part.tool_calls for part in parts[:-1]):
            held.add(name)
        ends |= {part.finish_reason for part in parts}
    assert {"half an emoji", "stop strings half seen", "calls of functions"} <= held
    assert {"stop", "length", "tool_calls"} <= ends


def test_an_answer_goes_on_under_preemption_and_beside_others(make: Any, first: LLMEngine) -> None:
    """Broken off in the middle, all at once in a pool for three of them."""
    small = make(weights="bf16", num_blocks=13, max_num_seqs=8)
    logs = {f"r{n}": log_of(first, ask(f"number {n}", ignore_eos=True, seed=n), f"r{n}") for n in range(6)}
    ids: dict[str, list[int]] = {}
    for n, (name, events) in enumerate(logs.items()):
        request = ask(f"number {n}", ignore_eos=True, seed=n)
        token_ids, regions = wire_requests.rendered(small.tokenizer, request)
        before = begun(events[: 5 + 3 * n])
        ids[name] = list(before.choice(0).token_ids)
        small.add_request(name, token_ids, request.params, tenant=f"t{n % 2}", regions=regions, begun=before)
    while small.has_work():
        for output in small.step():
            ids[output.request_id] += output.new_token_ids
    assert small.scheduler.preemptions > 0
    assert ids == {name: whole(events)[0]["ids"] for name, events in logs.items()}
    small.check_integrity()


def test_an_engine_that_reads_the_prompt_or_the_answer_otherwise_does_not_go_on(second: LLMEngine) -> None:
    request = ask()
    token_ids, regions = wire_requests.rendered(second.tokenizer, request)

    def go_on(before: Begun) -> None:
        second.add_request("r", token_ids, request.params, tenant="t", regions=regions, begun=before)

    right = Started(prompt_tokens=len(token_ids), cached_tokens=0)
    with pytest.raises(CannotContinue, match=f"{len(token_ids) + 1} tokens"):
        go_on(Begun(Started(prompt_tokens=len(token_ids) + 1, cached_tokens=0)))
    with pytest.raises(CannotContinue, match="read otherwise"):
        go_on(Begun(right, {0: SaidChoice([70, 71, 72], "nothing like it")}))
    with pytest.raises(CannotContinue, match="calls functions"):
        go_on(Begun(right, {0: SaidChoice([70], "", [("call_1", "f", "{}")])}))
    assert not second.has_work()
    second.check_integrity()


def test_what_ended_with_the_last_token_of_the_log_ends_at_once(first: LLMEngine, second: LLMEngine) -> None:
    """A log cannot look like this unless its writer was another version; the answer ends nevertheless."""
    request = ask(temperature=0.0, ignore_eos=True, max_tokens=7)
    events = log_of(first, request, "whole")
    *most, last = events
    assert isinstance(last, Delta)
    unended = Delta(parts=[Part(text=part.text, token_ids=part.token_ids) for part in last.parts])
    rest = log_of(second, request, "rest", begun([*most, unended]))
    assert whole([*most, unended, *rest]) == whole(events)


def test_while_one_runs_alone_nothing_else_does(first: LLMEngine) -> None:
    def add(name: str, text: str, tenant: str = "t") -> None:
        request = ask(text, ignore_eos=True)
        token_ids, regions = wire_requests.rendered(first.tokenizer, request)
        first.add_request(name, token_ids, request.params, tenant=tenant, regions=regions)

    for n in range(3):
        add(f"r{n}", f"number {n}")
    heard = {output.request_id for _ in range(6) for output in first.step()}
    assert heard == {"r0", "r1", "r2"}
    first.run_alone("suspect")
    assert not first.has_work(), "it has yet to come"
    add("r3", "number 3")
    add("suspect", "number 0")  # the twin of one that is held
    assert first.has_work()
    heard = {output.request_id for _ in range(8) for output in first.step()}
    assert heard == {"suspect"}
    first.check_integrity()
    first.run_alone(None)
    heard = set()
    while first.has_work():
        heard |= {output.request_id for output in first.step()}
    assert heard == {"r0", "r1", "r2", "r3", "suspect"}
    assert not any(first.pool.refs)
