"""OpenAI's own client against the running product: choices, log probabilities, forms, bare prompts, who leaves."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import openai
import pydantic
import pytest

from tests.stack import Stack, wait_for

pytestmark = pytest.mark.long

CAPITAL: Any = [{"role": "user", "content": "What is the capital of France?"}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


class Capital(pydantic.BaseModel):
    city: str
    large: bool


def test_choices_are_drawn_apart_and_come_to_the_same_streamed(client: openai.OpenAI) -> None:
    kwargs: Any = {
        "model": "default", "messages": CAPITAL, "n": 3, "temperature": 1.0, "seed": 7, "max_tokens": 8,
        "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    whole = client.chat.completions.create(**kwargs)
    texts = [choice.message.content for choice in whole.choices]
    assert len(set(texts)) > 1
    assert [choice.finish_reason for choice in whole.choices] == ["length"] * 3
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 24
    streamed = ["", "", ""]
    ends = []
    for chunk in client.chat.completions.create(**kwargs, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
            ends += [choice.index] if choice.finish_reason else []
        usage = chunk.usage
    assert streamed == texts
    assert sorted(ends) == [0, 1, 2]
    assert usage is not None
    assert usage.completion_tokens == 24


def test_log_probabilities_add_up_to_the_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="default", messages=CAPITAL, logprobs=True, top_logprobs=3, temperature=0, max_tokens=8
    )
    (choice,) = answer.choices
    assert choice.logprobs is not None
    tokens = choice.logprobs.content
    assert tokens is not None
    said = b"".join(bytes(token.bytes or ()) for token in tokens).decode()
    assert said.startswith(str(choice.message.content))
    for token in tokens:
        assert len(token.top_logprobs) == 3
        assert token.logprob == token.top_logprobs[0].logprob, "at temperature 0 the likeliest is drawn"
        assert sum(math.exp(one.logprob) for one in token.top_logprobs) <= 1.001


def test_an_answer_keeps_to_the_form_that_openais_client_asks_for(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model="default", messages=CAPITAL, response_format=Capital, max_tokens=60, temperature=0
    )
    assert isinstance(parsed.choices[0].message.parsed, Capital)
    loose = client.chat.completions.create(
        model="default", messages=CAPITAL, response_format={"type": "json_object"}, max_tokens=200, temperature=0
    )
    if loose.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(str(loose.choices[0].message.content)), dict)
    chosen = client.chat.completions.create(
        model="default", messages=CAPITAL, extra_body={"structured_outputs": {"choice": ["Rome", "Paris"]}}
    )
    assert chosen.choices[0].message.content in ("Rome", "Paris")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="default", messages=CAPITAL, extra_body={"guided_regex": "(?<!a)b"}, max_tokens=5
        )
    assert refused.value.param == "guided_regex"


def test_tools_are_refused_by_a_model_that_knows_of_none(client: openai.OpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="default", messages=CAPITAL, tools=[TOOL], stream=stream)
        assert refused.value.param == "tools"
    spared = client.chat.completions.create(
        model="default", messages=CAPITAL, tools=[TOOL], tool_choice="none", max_tokens=4
    )
    assert spared.choices[0].message.content


def test_bare_prompts_go_on_and_are_scored_as_an_evaluation_harness_does(client: openai.OpenAI) -> None:
    prompts = ["The capital of France is Paris", "The capital of France is carrot"]
    scored = client.completions.create(
        model="default", prompt=prompts, echo=True, logprobs=1, max_tokens=1, temperature=0
    )
    sums = []
    for choice, prompt in zip(scored.choices, prompts, strict=True):
        found = choice.logprobs
        assert found is not None
        assert found.tokens is not None
        assert found.token_logprobs is not None
        assert found.text_offset is not None
        assert choice.text.startswith(prompt)
        assert "".join(found.tokens[:-1]) == prompt
        assert [choice.text[at:].startswith(token) for at, token in zip(found.text_offset, found.tokens, strict=True)]
        assert found.token_logprobs[0] is None
        sums.append(sum(value for value in found.token_logprobs[1:-1] if value is not None))
    assert sums[0] > sums[1] + 1, "Paris is likelier than a carrot"
    alone = client.completions.create(model="default", prompt=prompts[0], echo=True, logprobs=1, max_tokens=0)
    assert alone.choices[0].text == prompts[0]
    assert alone.choices[0].logprobs is not None
    assert alone.choices[0].logprobs.token_logprobs is not None
    # Computed in another batch, so equal but for rounding.
    assert sum(alone.choices[0].logprobs.token_logprobs[1:]) == pytest.approx(sums[0], abs=0.3)  # type: ignore[arg-type]
    on = client.completions.create(model="default", prompt=prompts[0] + ".", max_tokens=8, temperature=0)
    streamed = client.completions.create(
        model="default", prompt=prompts[0] + ".", max_tokens=8, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in streamed) == on.choices[0].text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_client_that_leaves_several_answers_frees_the_blocks_of_all(
    http: httpx.Client, stack: Stack, path: str
) -> None:
    """C10, with n = 2, and with three prompts at once."""
    stack.wait_idle()
    asked: dict[str, Any] = {"messages": CAPITAL, "n": 2} if "chat" in path else {"prompt": ["Once", "Twice", "Thrice"]}
    body = {**asked, "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with http.stream("POST", path, json=body) as reply:
        lines = reply.iter_lines()
        seen = 0
        while seen < 12:
            seen += next(lines).startswith("data:")
        assert wait_for(lambda: stack.running() == (1 if "chat" in path else 3))
    stack.wait_idle()
