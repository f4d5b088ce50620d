"""The load client against a real HTTP server whose answers are known, and against the product."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bench.load import Answer, Target, Work, house_rules, percentile, report, run
from tests.bench.chat_server import ChatServer
from tests.stack import Stack

SMALL = Work(tenants=2, users=2, turns=3, system_words=20, words=5, max_tokens=4)


async def test_every_user_sends_its_tenants_rules_and_the_conversation_so_far() -> None:
    with ChatServer() as server:
        await run(Target(server.url, ["a", "b"]), SMALL)
        mine, others = server.asked("a"), server.asked("b")
    assert sorted(map(len, mine)) == [2, 2, 4, 4, 6, 6], "rules and the turn; then two messages more a turn"
    (rules,) = {messages[0]["content"] for messages in mine}
    assert len(rules.split()) == SMALL.system_words
    assert {messages[0]["content"] for messages in others} != {rules}
    last = max(mine, key=len)
    assert [message["role"] for message in last] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert last[2]["content"] == "word0 word1 word2 word3 ", "the server's own answer goes back to it"
    assert len({messages[1]["content"] for messages in mine + others}) == SMALL.in_flight, "no user asks as another"


async def test_what_is_measured_is_what_the_server_sent() -> None:
    with ChatServer() as server:
        figures, failures = await run(Target(server.url), SMALL)
        bodies = [body for _, body in server.seen]
    assert not failures
    assert figures["answers"] == 12
    assert figures["output tokens"] == 12 * SMALL.max_tokens
    words = [sum(len(message["content"].split()) for message in body["messages"]) for body in bodies[1:]]
    assert figures["prompt tokens"] == sum(words), "the greeting before the run is not counted"
    assert figures["cached share"] == round(sum(count // 2 for count in words) / sum(words), 3)
    assert 0 < figures["TTFT p50, s"] <= figures["TTFT p95, s"]
    assert all(body["temperature"] == 0 and body["ignore_eos"] and body["stream"] for body in bodies)


async def test_without_keys_nothing_is_authorised_and_with_fewer_keys_than_tenants_they_are_shared() -> None:
    with ChatServer() as server:
        await run(Target(server.url), Work(turns=1, system_words=0))
        assert {key for key, _ in server.seen} == {None}
    with ChatServer() as server:
        await run(Target(server.url, ["a", "b"]), Work(tenants=3, users=1, turns=1, system_words=0))
        assert sorted(str(key) for key, _ in server.seen[1:]) == ["Bearer a", "Bearer a", "Bearer b"]


async def test_two_servers_are_asked_the_same_and_another_seed_asks_something_else() -> None:
    asked = []
    for seed in (0, 0, 1):
        with ChatServer() as server:
            await run(Target(server.url), Work(tenants=2, users=2, turns=2, seed=seed, max_tokens=2))
            asked.append(sorted(map(str, server.asked())))
    assert asked[0] == asked[1]
    assert not set(asked[0]) & set(asked[2])


@pytest.mark.parametrize(
    ("instead", "said"),
    [("refuse", "HTTP 429"), ("break", "out of words"), ("uncounted", "without its usage")],
)
async def test_what_ends_one_user_is_counted_and_leaves_the_others_alone(instead: str, said: str) -> None:
    victim = 0

    def second_turn_of_the_first(body: dict[str, Any]) -> str | None:
        nonlocal victim
        victim = victim or (id(body) if len(body["messages"]) == 4 else 0)
        return instead if victim == id(body) else None

    with ChatServer(second_turn_of_the_first) as server:
        figures, failures = await run(Target(server.url), SMALL)
    assert [said in str(failure) for failure in failures] == [True]
    assert figures["errors"] == 1
    assert figures["answers"] == 3 * SMALL.turns + 1


async def test_a_server_that_says_nothing_ends_the_run_in_time() -> None:
    silent = ChatServer(lambda body: "silent" if len(body["messages"]) > 1 else None)
    with silent as server, pytest.raises(TimeoutError):
        await run(Target(server.url, timeout_s=0.5), SMALL)


@pytest.mark.parametrize("transport", ["http", "ws"])
async def test_the_product_gives_every_answer_its_tokens(stack: Stack, transport: str) -> None:
    work = Work(tenants=2, users=1, turns=2, system_words=20, words=5, max_tokens=6)
    figures, failures = await run(Target(stack.url, [stack.key(0), stack.key(1)], transport), work)
    assert not failures
    assert figures["output tokens"] == 2 * 2 * 6
    assert 0 < figures["cached share"] < 1
    assert figures["ITL p50, ms"] > 0


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert percentile(values, 0.5) == 51
    assert percentile(values, 0.95) == 96
    assert percentile(values, 1.0) == 100
    assert percentile([7.0], 0.95) == 7
    assert math.isnan(percentile([], 0.5))


def test_the_report_adds_tokens_up_and_takes_gaps_over_all_answers() -> None:
    answers = [
        Answer(ttft_s=0.1, gaps_s=[0.01, 0.02], prompt=100, cached=50, output=3),
        Answer(ttft_s=0.3, gaps_s=[0.03], prompt=300, cached=250, output=2),
    ]
    figures = report(answers, 1, wall_s=2.0, in_flight=2)
    assert figures["output, tok/s"] == 2.5
    assert figures["cached share"] == 0.75
    assert (figures["TTFT p50, s"], figures["ITL p50, ms"], figures["errors"]) == (0.3, 20.0, 1)


def test_rules_have_exactly_the_words_that_were_asked_for() -> None:
    import random

    for words in (1, 10, 450):
        assert len(house_rules(random.Random(words), words).split()) == words
