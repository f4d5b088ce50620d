"""A worker's /metrics: what it says is what it did, to nobody who does not know the token."""

from __future__ import annotations

import asyncio
import http.client
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from chatapp.streaming import cancel, submit, workers
from engine import metrics
from engine.protocol import Finished
from tests.wire.conftest import MODEL, InProcess, Process, Wire, a_question, answer_of, until

pytestmark = pytest.mark.usefixtures("closing")
TOKEN = "a token of 32 characters, or more"
WORDS = "The vault opens at nine."


def ask(address: str, path: str = "/metrics", token: str | None = TOKEN, method: str = "GET") -> tuple[int, str]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=5)
    try:
        connection.request(method, path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


class Seen(dict[str, float]):
    """The samples of a scrape by name and labels, without the model's name, as `name{a=b}`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = {name: value for name, value in sample.labels.items() if name != "model_name"}
                shown = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
                self[f"{sample.name}{{{shown}}}" if shown else sample.name] = sample.value


@pytest.fixture
def watched(serve: Callable[..., InProcess]) -> Iterator[Callable[..., tuple[InProcess, str]]]:
    """Starts a worker with its metrics: (it, their address)."""
    servers: list[metrics.MetricsServer] = []

    def start(*, by_tenant: bool = False, **settings: Any) -> tuple[InProcess, str]:
        served = serve(**settings)
        worker = served.worker
        collector = metrics.WorkerCollector(served.engine, worker.measures, worker.details, by_tenant=by_tenant)
        servers.append(metrics.serve(collector, host="127.0.0.1", port=0, token=TOKEN))
        worker.metrics = servers[-1].address
        return served, worker.metrics

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


async def test_a_scrape_says_what_the_answers_say(wire: Wire, watched: Any) -> None:
    served, address = watched()
    requests = [a_question(f"t{n % 2}", tokens=12 + n, text=WORDS) for n in range(4)]
    for request in requests:
        submit.enqueue(request)
    ends = [(await answer_of(request.id))[-1] for request in requests]
    stopped = a_question(tokens=8000)
    submit.enqueue(stopped)
    await until(lambda: served.engine.scheduler.running)
    running = Seen(ask(address)[1])
    assert running["octavo_num_requests_running"] == 1
    assert running["octavo_kv_blocks{state=used}"] > 0
    assert running["octavo_kv_cache_usage_perc"] == running["octavo_kv_blocks{state=used}"] / served.engine.num_blocks
    await asyncio.to_thread(cancel.cancel, stopped.id)
    await until(lambda: not served.engine.has_work() and not served.worker.bus._outbox.active)

    status, text = ask(address)
    seen = Seen(text)
    assert status == 200
    usages = [end.usage for end in ends if isinstance(end, Finished) and end.usage is not None]
    timings = [end.timing for end in ends if isinstance(end, Finished) and end.timing is not None]
    assert len(usages) == len(timings) == 4
    totals = served.engine.totals
    assert seen["octavo_request_success_total{finished_reason=length}"] == 4
    assert seen["octavo_request_success_total{finished_reason=abort}"] == 1
    assert seen["octavo_request_prompt_tokens_sum"] == sum(usage.prompt_tokens for usage in usages)
    assert seen["octavo_request_generation_tokens_sum"] == sum(usage.completion_tokens for usage in usages) == 54
    assert seen["octavo_prefix_cache_hits_total"] == totals["cached_tokens"] >= sum(u.cached_tokens for u in usages) > 0
    assert seen["octavo_prefix_cache_queries_total"] == seen["octavo_prompt_tokens_total"] == totals["prompt_tokens"]
    assert seen["octavo_generation_tokens_total"] == totals["output_tokens"] > 54
    for name, part in (("queue", "queue_s"), ("prefill", "prefill_s"), ("decode", "decode_s")):
        of_all = sum(getattr(timing, part) for timing in timings)
        assert seen[f"octavo_request_{name}_time_seconds_sum"] == pytest.approx(of_all, abs=1e-6), name
        assert seen[f"octavo_request_{name}_time_seconds_count"] == 4
    # The stopped one has had a first token too; and every later token of a request ended a gap.
    assert seen["octavo_time_to_first_token_seconds_count"] == 5
    assert seen["octavo_inter_token_latency_seconds_count"] == seen["octavo_generation_tokens_total"] - 5
    assert seen["octavo_engine_steps_total"] == served.engine.steps >= seen["octavo_iteration_tokens_count"] > 0
    assert seen["octavo_iteration_tokens_sum"] == totals["computed_tokens"]
    assert seen["octavo_redis_round_trip_seconds_count{program=worker}"] > 0
    assert 0 < seen["octavo_publish_lag_seconds_count"] <= seen["octavo_redis_round_trip_seconds_count{program=worker}"]
    assert seen["octavo_num_requests_running"] == seen["octavo_num_requests_waiting"] == 0
    assert seen["process_resident_memory_bytes"] > 0
    assert served.stop() == 0


async def test_nothing_of_what_is_said_or_by_whom_is_in_a_scrape(wire: Wire, watched: Any) -> None:
    served, address = watched(num_blocks=4096)
    request = a_question("tenant-ada", tokens=4000, text=WORDS, conversation="conversation-7")
    submit.enqueue(request)
    await until(lambda: served.engine.scheduler.running)
    text = ask(address)[1]
    assert Seen(text)["octavo_tenants_active"] == 1
    assert not [secret for secret in ("vault", "tenant-ada", "conversation-7", request.id) if secret in text]
    await asyncio.to_thread(cancel.cancel, request.id)


async def test_service_by_tenant_is_said_where_it_is_asked_for(wire: Wire, watched: Any) -> None:
    served, address = watched(by_tenant=True)
    requests = [a_question(tenant, tokens=8000) for tenant in ("a", "b")]
    for request in requests:
        submit.enqueue(request)
    await until(lambda: len(served.engine.scheduler.running) == 2 and served.engine.steps > 8)
    seen = Seen(ask(address)[1])
    service = [seen["octavo_tenant_service{tenant=a}"], seen["octavo_tenant_service{tenant=b}"]]
    assert min(service) > 0
    assert seen["octavo_fairness_spread"] <= served.engine.scheduler.token_budget
    for request in requests:
        await asyncio.to_thread(cancel.cancel, request.id)


async def test_a_request_that_waits_in_the_engine_waits_in_the_queue(wire: Wire, watched: Any) -> None:
    """It is taken at once for fairness's sake, and is not being prefilled while somebody else has its place."""
    served, _ = watched(max_num_seqs=1)
    first, second = a_question(tokens=400), a_question(tokens=1, text="Me too?")
    submit.enqueue(first)
    await until(lambda: served.engine.scheduler.running)
    run_first = served.worker._runs[first.id].taken_at
    submit.enqueue(second)
    end = (await answer_of(second.id))[-1]
    assert isinstance(end, Finished)
    assert end.timing is not None
    assert end.timing.prefill_s < 0.5 * (time.monotonic() - run_first)
    assert end.timing.queue_s > end.timing.prefill_s


def test_only_whoever_knows_the_token_reads_and_only_metrics() -> None:
    class Nothing(Collector):
        def collect(self) -> list[Any]:
            return []

    server = metrics.serve(Nothing(), host="127.0.0.1", port=0, token=TOKEN)
    try:
        for path, token, method, status in (
            ("/metrics", None, "GET", 401),
            ("/metrics", "", "GET", 401),
            ("/metrics", TOKEN[:-1], "GET", 401),
            ("/metrics", "tok\u00e9n", "GET", 401),
            ("/metrics?a=b", TOKEN, "GET", 200),
            ("/", TOKEN, "GET", 404),
            ("/metrics/", TOKEN, "GET", 404),
            ("/metrics", TOKEN, "POST", 501),
        ):
            found, body = ask(server.address, path, token, method)
            assert found == status, (path, token, method)
            assert status == 200 or "process_" not in body
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.long
async def test_a_worker_announces_where_its_metrics_are_and_refuses_to_show_them_to_all(
    process: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OCTAVO_METRICS_TOKEN", raising=False)
    status, said = process("--metrics-port", "0").end()
    assert (status, said.count("\n")) == (1, 1), said
    assert "OCTAVO_METRICS_TOKEN" in said
    monkeypatch.setenv("OCTAVO_METRICS_TOKEN", TOKEN)
    await process("--metrics-port", "0").ready()
    details = workers.live()[0]
    assert Seen(ask(details.metrics)[1])["octavo_worker_healthy"] == 1
    assert f'model_name="{MODEL}"' in ask(details.metrics)[1]
    status, said = process("--metrics-port", details.metrics.rpartition(":")[2]).end()
    assert (status, said.splitlines()[-1].startswith("--metrics-port: 127.0.0.1:")) == (1, True), said
