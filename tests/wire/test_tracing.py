"""What a worker process says of a request's way: in its log by the request's id, in a trace as its phases."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise

import pytest

from chatapp.streaming import submit
from engine.protocol import Finished, Refused, SamplingParams
from tests.otlp import collecting
from tests.wire.conftest import Process, Wire, a_question, a_request, answer_of, text_of

pytestmark = pytest.mark.usefixtures("closing")
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
QUESTION = "Where does the quixotic zyzzyva keep its marmalade?"


async def test_a_worker_says_of_each_request_whose_it_is_and_where_its_time_went_but_no_word_of_it(
    wire: Wire, process: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        worker = await process().ready()
        request = a_question(
            tokens=12, text=QUESTION, request_id="req_7", traceparent=f"00-{TRACE}-{SPAN}-01"
        )  # fmt: skip
        submit.enqueue(request)
        events = await answer_of(request.id)
        assert isinstance(events[-1], Finished)
        too_long = SamplingParams(max_tokens=100_000)
        refused = a_request(params=too_long, request_id="req_8", tool_choice="required")
        submit.enqueue(refused)
        assert isinstance((await answer_of(refused.id))[-1], Refused)
        worker.popen.terminate()
        status, said = worker.end()
        assert status == 0
    lines = [json.loads(line) for line in said.splitlines()]  # each of them
    assert all(list(line)[:3] == ["timestamp", "level", "event"] for line in lines)
    about = [line for line in lines if line.get("request_id") == "req_7"]
    assert [line["event"] for line in about] == ["generation.begun", "generation.ended"]
    assert {(line["generation"], line["tenant"], line["trace_id"]) for line in about} == {(request.id, "t", TRACE)}
    assert (about[1]["status"], about[1]["output_tokens"]) == ("finished", 12)
    assert [line["status"] for line in lines if line.get("request_id") == "req_8"] == ["refused"]

    answer = text_of(events)
    words = [word for word in (QUESTION + " " + answer).split() if len(word) > 5]
    assert len(words) > 4
    exported = b"".join(collector.raw)
    assert not [word for word in words if word in said or word.encode() in exported]

    found = collector.of(TRACE)
    whole = found["generation"]
    assert (whole.parent, whole.service) == (SPAN, "octavo-engine")
    assert whole.attributes["octavo.request_id"] == "req_7"
    assert (whole.attributes["gen_ai.usage.output_tokens"], whole.attributes["octavo.attempt"]) == (12, 1)
    phases = [found[name] for name in ("queue", "prepare", "schedule", "prefill", "decode")]
    assert {phase.parent for phase in phases} == {whole.id}
    for before, after in pairwise(phases):
        assert before.began <= before.ended == pytest.approx(after.began, abs=1e-5)
    assert phases[0].began == pytest.approx(whole.began, abs=1e-5)
    assert phases[-1].ended <= whole.ended
    assert phases[-1].ended > phases[-1].began
