"""/v1/completions as OpenAI's own client and evaluation harnesses read it, against an engine that says what the test
tells it to."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import openai
import pytest

from engine import protocol
from engine.protocol import Finished, Logprob, Part, TokenLogprob, Usage
from tests.api.inprocess import Engine, client, engine, http, make, team, until
from tests.chat.conftest import Team, server, worker

__all__ = ["client", "engine", "http", "make", "server", "team", "worker"]

LENGTH = Finished(finish_reason="length", usage=Usage(prompt_tokens=7, cached_tokens=3, completion_tokens=2))


def told(token: str, logprob: float, *top: tuple[str, float], data: list[int] | None = None) -> TokenLogprob:
    return TokenLogprob(token, logprob, 5, data, [Logprob(name, value) for name, value in top])


ONCE = [told(" upon", -1.0, (" upon", -1.0)), told(" a", -0.5, (" the", -0.25))]
"""Of the prompt "Once upon a", from its second token on."""


async def test_a_prompt_is_answered_in_openais_shape_whole_and_streamed(
    client: openai.AsyncOpenAI, engine: Engine
) -> None:
    steps = [[Part(text=" upon", token_ids=[1])], [Part(text=" a time", token_ids=[2])]]
    asked = asyncio.create_task(client.completions.create(model="default", prompt="Once", seed=5, user="u"))
    request = await engine.say(*steps, end=LENGTH)
    assert (request.text, request.params.max_tokens, request.params.seed) == ("Once", 16, 5)
    answer = await asked
    assert (answer.object, answer.id[:5]) == ("text_completion", "cmpl-")
    (choice,) = answer.choices
    assert (choice.index, choice.text, choice.finish_reason, choice.logprobs) == (0, " upon a time", "length", None)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (7, 2, 9)
    opening = asyncio.create_task(
        client.completions.create(model="default", prompt="Once", stream=True, stream_options={"include_usage": True})
    )
    await engine.say(*steps, end=LENGTH)
    chunks = [chunk async for chunk in await opening]
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == " upon a time"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None, None, "length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == answer.usage


async def test_several_prompts_of_every_kind_are_one_answer_with_openais_indices(
    client: openai.AsyncOpenAI, engine: Engine
) -> None:
    for prompts in (["A", "B"], [[1, 2], [3]]):
        for stream in (False, True):
            asked: Any = asyncio.create_task(
                client.completions.create(model="default", prompt=prompts, n=2, stream=stream)  # type: ignore[call-overload]
            )
            takens = [await engine.take(), await engine.take()]
            requests = {taken.id: protocol.decode_request(taken.payload) for taken in takens}
            assert [r.text or r.token_ids for r in requests.values()] == prompts
            # The second is done before the first has begun.
            for taken in reversed(takens):
                name = "first" if taken is takens[0] else "second"
                engine.tell(taken, protocol.Started(seq=0, prompt_tokens=4, cached_tokens=1))
                parts = [Part(index=i, text=f"{name} {i}", token_ids=[1], finish_reason="stop") for i in (1, 0)]
                engine.tell(taken, protocol.Delta(seq=1, parts=parts))
                usage = Usage(prompt_tokens=4, cached_tokens=1, completion_tokens=2)
                engine.worker.end(taken, Finished(seq=2, finish_reason="stop", usage=usage))
            answer = await asked
            said = ["first 0", "first 1", "second 0", "second 1"]
            if stream:
                chunks = [chunk async for chunk in answer]
                texts = {n: "".join(c.choices[0].text for c in chunks if c.choices[0].index == n) for n in range(4)}
                assert list(texts.values()) == said
                ends = [chunk.choices[0].index for chunk in chunks if chunk.choices[0].finish_reason]
                assert sorted(ends) == [0, 1, 2, 3]
            else:
                assert [(choice.index, choice.text) for choice in answer.choices] == list(enumerate(said))
                assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (8, 4)
                assert answer.usage.prompt_tokens_details.cached_tokens == 2
    one = asyncio.create_task(client.completions.create(model="default", prompt=[1, 2, 3]))
    assert (await engine.say([Part(text="x", token_ids=[1])])).token_ids == [1, 2, 3]
    assert len((await one).choices) == 1


async def test_logprobs_have_the_legacy_shape_with_offsets_that_point_into_the_text(
    client: openai.AsyncOpenAI, engine: Engine
) -> None:
    steps = [
        [Part(text="Hé", token_ids=[1], logprobs=[told("Hé", -0.5, ("Hé", -0.5), ("Ho", -1.5))])],
        [Part(text="", token_ids=[2], logprobs=[told("\ufffd", -0.25, data=[240, 159])])],
        [Part(text="👋!", token_ids=[3, 4], logprobs=[told("\ufffd", -0.125, data=[145, 139]), told("!", -0.0625)])],
    ]
    kwargs: Any = {"model": "default", "prompt": "x", "logprobs": 2}
    asked = asyncio.create_task(client.completions.create(**kwargs))
    request = await engine.say(*steps)
    assert (request.params.logprobs, request.params.prompt_logprobs) == (2, None)
    (choice,) = (await asked).choices
    found = choice.logprobs
    assert found is not None
    assert found.tokens == ["Hé", "bytes:\\xf0\\x9f", "bytes:\\x91\\x8b", "!"]
    assert found.token_logprobs == [-0.5, -0.25, -0.125, -0.0625]
    assert found.text_offset == [0, 2, 2, 3]
    assert choice.text[3:] == "!"
    assert found.top_logprobs is not None
    assert found.top_logprobs[0] == {"Hé": -0.5, "Ho": -1.5}
    assert found.top_logprobs[3] == {"!": -0.0625}, "the drawn one is always told of"
    opening = asyncio.create_task(client.completions.create(**kwargs, stream=True))
    await engine.say(*steps)
    chunks = [chunk.choices[0].logprobs async for chunk in await opening]
    assert [offset for one in chunks if one for offset in one.text_offset or ()] == found.text_offset
    assert [token for one in chunks if one for token in one.tokens or ()] == found.tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_with_logprobs_is_what_an_evaluation_harness_scores_with(
    client: openai.AsyncOpenAI, engine: Engine, stream: bool
) -> None:
    """Log-likelihood: the prompt's own tokens, the first without one, and one token that is generated behind them."""
    steps = [
        [Part(prompt_logprobs=ONCE[:1])],
        [Part(prompt_logprobs=ONCE[1:], text=" time", token_ids=[9], logprobs=[told(" time", -0.75)])],
        [Part(finish_reason="length")],
    ]
    for prompt, text, first in (("Once upon a", "Once upon a", "Once"), ([8, 1, 2], " upon a", "")):
        for most, more in ((1, [(" time", -0.75)]), (0, [])):
            asked: Any = asyncio.create_task(
                client.completions.create(  # type: ignore[call-overload]
                    model="default", prompt=prompt, echo=True, logprobs=1, max_tokens=most, stream=stream
                )
            )
            request = await engine.say(*steps, end=LENGTH)
            assert (request.params.prompt_logprobs, request.params.logprobs, request.params.max_tokens) == (1, 1, 1)
            answer = await asked
            choices = [chunk.choices[0] async for chunk in answer] if stream else list(answer.choices)
            assert "".join(choice.text for choice in choices) == text + "".join(token for token, _ in more)
            tokens = [token for c in choices if c.logprobs for token in c.logprobs.tokens]
            values = [value for c in choices if c.logprobs for value in c.logprobs.token_logprobs]
            tops = [top for c in choices if c.logprobs for top in c.logprobs.top_logprobs]
            offsets = [offset for c in choices if c.logprobs for offset in c.logprobs.text_offset]
            assert tokens == [first, " upon", " a", *(token for token, _ in more)]
            assert values == [None, -1.0, -0.5, *(value for _, value in more)]
            assert tops[:3] == [None, {" upon": -1.0}, {" a": -0.5, " the": -0.25}]
            assert [text[at:] for at in offsets[1:3]] == [" upon a", " a"]
            assert choices[-1].finish_reason == "length"


async def test_echo_alone_repeats_the_prompt_before_each_answer(client: openai.AsyncOpenAI, engine: Engine) -> None:
    steps = [[Part(index=i, text=f"-{i}", token_ids=[1], finish_reason="stop") for i in (0, 1)]]
    for stream in (False, True):
        asked: Any = asyncio.create_task(
            client.completions.create(model="default", prompt="Once", echo=True, n=2, stream=stream)  # type: ignore[call-overload]
        )
        request = await engine.say(*steps)
        assert request.params.prompt_logprobs is None, "what the caller has needs no computing"
        answer = await asked
        choices = [chunk.choices[0] async for chunk in answer] if stream else list(answer.choices)
        texts = ["".join(choice.text for choice in choices if choice.index == index) for index in (0, 1)]
        assert texts == ["Once-0", "Once-1"]


async def test_prompts_that_a_caller_leaves_are_all_stopped(
    http: httpx2.AsyncClient, engine: Engine, team: Team
) -> None:
    """C10, for several at once, in whatever state each of them is."""
    queue = protocol.requests_key(engine.worker.model, str(team.tenant.pk))
    for stream in (False, True):
        body = {"prompt": ["A", "B", "C"], "stream": stream, "max_tokens": 9}
        asked = asyncio.create_task(http.send(http.build_request("POST", "/v1/completions", json=body), stream=True))
        takens = [await engine.take(), await engine.take()]
        engine.tell(takens[1], protocol.Started(seq=0, prompt_tokens=1, cached_tokens=0))
        if stream:
            await (await asked).aclose()
        else:
            asked.cancel()
        await engine.until_stopped(*takens)
        for seq, taken in enumerate(takens):
            engine.worker.end(taken, protocol.Cancelled(seq=seq))
        await until(lambda: engine.worker.redis.xlen(queue) == 0)  # the third has left it as well


async def test_one_prompt_that_is_refused_refuses_all_and_stops_the_others(
    http: httpx2.AsyncClient, engine: Engine
) -> None:
    asked = asyncio.create_task(http.post("/v1/completions", json={"prompt": ["A", "B"]}))
    first, second = await engine.take(), await engine.take()
    engine.worker.end(
        second, protocol.Refused(seq=0, code="context_length_exceeded", param="prompt", message="Too long.")
    )
    reply = await asked
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt[1]")
    await engine.until_stopped(first)


async def test_a_repeated_idempotency_key_gives_all_the_answers_again(http: httpx2.AsyncClient, engine: Engine) -> None:
    body, headers = {"prompt": ["A", "B"]}, {"Idempotency-Key": "k"}
    asked = [asyncio.create_task(http.post("/v1/completions", json=body, headers=headers)) for _ in range(2)]
    for text in ("a", "b"):
        await engine.say([Part(text=text, token_ids=[1])])
    replies = [*await asyncio.gather(*asked), await http.post("/v1/completions", json=body, headers=headers)]
    assert [reply.status_code for reply in replies] == [200] * 3
    assert len({reply.text for reply in replies}) == 1
    assert [choice["text"] for choice in replies[0].json()["choices"]] == ["a", "b"]
    other = await http.post("/v1/completions", json={"prompt": ["A"]}, headers=headers)
    assert other.status_code == 422


BAD: list[tuple[Any, str | None]] = [
    ({}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt[1]"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [[1], []]}, "prompt[1]"),
    ({"prompt": [[1], [-1]]}, "prompt[1]"),
    ({"prompt": [[1.5]]}, "prompt[0][0]"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": ["x"] * 129}, "prompt"),
    ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "best_of": 2}, "best_of"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
    ({"prompt": "a", "logprobs": 21}, "logprobs"),
    ({"prompt": "a", "logprobs": True}, "logprobs"),
    ({"prompt": "a", "echo": "yes"}, "echo"),
    ({"prompt": "a", "n": 129}, "n"),
    ({"prompt": "a", "model": "gpt-17"}, "model"),
    ({"prompt": "a", "model": "assistant:assistant"}, "model"),
    ({"prompt": "a", "stream_options": {}}, "stream_options"),
]


async def test_wrong_input_is_refused_with_the_field_named(http: httpx2.AsyncClient) -> None:
    for body, param in BAD:
        reply = await http.post("/v1/completions", json=body)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (404 if param == "model" else 400, param), (body, reply.text)
        assert error["message"]
    reply = await http.post("/v1/completions", content=json.dumps({"prompt": "a"}), headers={"Content-Type": "a/b"})
    assert reply.json()["error"]["code"] == "unsupported_content_type"
