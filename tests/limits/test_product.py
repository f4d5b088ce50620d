"""Limits in the running product: real processes, engine and recorder."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from chatapp.limits.selectors import REMEMBERED_S
from tests.stack import Stack, wait_for

pytestmark = pytest.mark.long
TEAM = 2


@pytest.fixture
def database(stack: Stack) -> Iterator[sqlite3.Connection]:
    path = stack.data / "db.sqlite3"
    with contextlib.closing(sqlite3.connect(path, timeout=20, isolation_level=None)) as connection:
        yield connection


@pytest.fixture
def limits(stack: Stack, database: sqlite3.Connection) -> Iterator[Any]:
    """Set overrides of a demo team; they hold from the next request on, and go when the test ends."""
    slug = stack.demo["tenants"][TEAM]["slug"]
    touched: set[str] = set()

    def put(**columns: Any) -> None:
        for name, value in columns.items():
            touched.add(name)
            done = database.execute(
                f"UPDATE limits_tenantlimits SET {name} = ?"
                " WHERE tenant_id = (SELECT id FROM tenants_tenant WHERE slug = ?)",
                (value, slug),
            )
            assert done.rowcount == 1
        time.sleep(REMEMBERED_S + 0.1)  # written behind the processes' backs

    yield put
    put(**dict.fromkeys(touched))


def meter(stack: Stack, database: sqlite3.Connection) -> tuple[int, int]:
    """(used, reserved) of the team."""
    found = database.execute(
        "SELECT used, reserved FROM limits_meter JOIN tenants_tenant t ON t.id = tenant_id"
        " WHERE subject = '' AND t.slug = ? ORDER BY month DESC",
        (stack.demo["tenants"][TEAM]["slug"],),
    ).fetchone()
    return found or (0, 0)


def call(stack: Stack, **body: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "Say hello."}], "temperature": 0, "max_tokens": 8, **body}
    headers = {"Authorization": f"Bearer {stack.key(TEAM)}"}
    return httpx.post(f"{stack.url}/v1/chat/completions", json=body, headers=headers, timeout=120)


def settled(stack: Stack, database: sqlite3.Connection) -> int:
    return int(wait_for(lambda: (found := meter(stack, database))[1] == 0 and found, 60)[0])


def test_fifty_calls_at_once_spend_at_most_what_ten_may(stack: Stack, database: Any, limits: Any) -> None:
    """P10, over the wire."""
    assert call(stack).status_code == 200
    used = settled(stack, database)
    limits(tokens_per_month=100_000_000)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(call, stack, max_tokens=64, ignore_eos=True)
        each = int(wait_for(lambda: meter(stack, database)[1], 30, 0.01)) - 64 + 8
        running.result()
    used = settled(stack, database)
    budget = used + 10 * each
    limits(tokens_per_month=budget)
    with ThreadPoolExecutor(50) as pool:
        replies = list(pool.map(lambda _: call(stack, ignore_eos=True), range(50)))
    accepted = [reply for reply in replies if reply.status_code == 200]
    refused = [reply for reply in replies if reply.status_code == 429]
    assert len(accepted) + len(refused) == 50
    assert len(accepted) >= 10, "what ten may use is there for ten"
    assert {reply.json()["error"]["code"] for reply in refused} <= {"rate_limit_exceeded", "insufficient_quota"}
    assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
    spent = settled(stack, database)
    assert spent <= budget
    assert spent - used == sum(reply.json()["usage"]["total_tokens"] for reply in accepted), "each is paid for once"


def test_openais_client_tells_quota_from_rates(stack: Stack, database: Any, limits: Any) -> None:
    client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key(TEAM), max_retries=2)
    messages: Any = [{"role": "user", "content": "Say hello."}]
    limits(requests_per_minute=1000)
    raw = client.chat.completions.with_raw_response.create(model="default", messages=messages, max_tokens=4)
    assert raw.headers["x-ratelimit-limit-requests"] == "1000"
    assert int(raw.headers["x-ratelimit-remaining-requests"]) < 1000
    with client.chat.completions.with_streaming_response.create(
        model="default", messages=messages, max_tokens=4, stream=True
    ) as streamed:
        assert streamed.headers["x-ratelimit-limit-requests"] == "1000"
        assert "[DONE]" in streamed.read().decode()
    limits(tokens_per_month=1)
    with pytest.raises(openai.RateLimitError) as refused:
        client.chat.completions.create(model="default", messages=messages, max_tokens=4)
    assert refused.value.code == "insufficient_quota"


def test_a_prompt_longer_than_the_plan_allows_is_refused_by_the_engine_with_the_numbers(
    stack: Stack, database: Any, limits: Any
) -> None:
    limits(context_tokens=10)
    reply = call(stack)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert "at most 10 are allowed" in error["message"]
    limits(context_tokens=None)
    assert call(stack).status_code == 200, "without a restart"


def test_answers_one_after_the_other_are_never_too_many_at_once(stack: Stack, limits: Any) -> None:
    limits(concurrent_answers=1)
    assert [call(stack).status_code for _ in range(8)] == [200] * 8
