"""The Responses API of the whole product, with a real model: by OpenAI's own client, and over a killed server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.stack import ROOT, Stack, free_port, wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
LONG: dict[str, Any] = {"model": "default", "temperature": 0, "input": "Tell a long story of a frog and a pond."}


def block_size(stack: Stack) -> int:
    return int(wait_for(stack.workers)[0].block_size)


def test_a_conversation_goes_on_cheaply_from_what_is_kept_here(client: openai.OpenAI, stack: Stack) -> None:
    """The second turn computes little more than what is new in it: its beginning is in the cache, the answer too."""
    first = client.responses.create(**LONG, max_output_tokens=64, extra_body={"ignore_eos": True})
    assert first.status == "incomplete"
    assert first.incomplete_details is not None
    assert first.incomplete_details.reason == "max_output_tokens"
    second = client.responses.create(
        model="default", input="And then?", previous_response_id=first.id, temperature=0, max_output_tokens=8
    )
    assert first.usage is not None
    assert second.usage is not None
    told = first.usage.total_tokens
    assert second.usage.input_tokens > told
    assert second.usage.input_tokens_details.cached_tokens >= told - block_size(stack)
    kept = client.responses.retrieve(second.id)
    assert kept.output_text == second.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_what_runs_in_the_background_stops_within_a_step_when_it_is_cancelled(
    client: openai.OpenAI, stack: Stack
) -> None:
    made = client.responses.create(**LONG, max_output_tokens=1024, background=True, extra_body={"ignore_eos": True})
    wait_for(lambda: client.responses.retrieve(made.id).output_text)
    stopped = client.responses.cancel(made.id)
    assert stopped.status == "cancelled"
    assert stopped.output_text
    stack.wait_idle()
    wait_for(lambda: client.responses.retrieve(made.id).to_dict() == stopped.to_dict())


@pytest.fixture
def another_server(stack: Stack) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A second process that serves the same product, to be killed."""
    web = next(
        process
        for process in psutil.Process(stack.process.pid).children(recursive=True)
        if "chatapp.daphne" in process.cmdline() and "ops.child" not in process.cmdline()
    )
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "chatapp.daphne", "--port", str(port), "chatapp.asgi:application"],
        cwd=ROOT,
        env=web.environ(),
    )
    url = f"http://127.0.0.1:{port}"

    def is_up() -> bool:
        try:
            return httpx.get(f"{url}/healthz").status_code == 200
        except httpx.HTTPError:
            return False

    try:
        wait_for(is_up, 60)
        yield url, server
    finally:
        server.kill()
        server.wait(10)


def test_an_answer_whose_server_was_killed_goes_on_and_is_resumed_from_another(
    client: openai.OpenAI, stack: Stack, another_server: tuple[str, subprocess.Popen[bytes]]
) -> None:
    url, server = another_server
    first = client.with_options(base_url=f"{url}/v1")
    stream = first.responses.create(**LONG, max_output_tokens=160, stream=True, extra_body={"ignore_eos": True})
    seen: list[Any] = []
    for event in stream:
        seen.append(event)
        if sum(one.type == "response.output_text.delta" for one in seen) == 5:
            break
    server.kill()
    response_id = seen[0].response.id
    while_it_runs = client.responses.retrieve(response_id)
    assert while_it_runs.status == "in_progress", "else this would prove nothing"
    rest = list(client.responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number))
    events = [*seen, *rest]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == text
    assert last.response.usage.output_tokens == 160
    whole = client.responses.create(**LONG, max_output_tokens=160, extra_body={"ignore_eos": True})
    assert whole.output_text == text
    assert client.responses.retrieve(response_id).output_text == text
