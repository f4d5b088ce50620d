"""A worker's figures as Prometheus reads them, and the address that it reads them at.

Owns the names: `octavo_` and then vLLM's, with vLLM's meanings, and names of our own for what vLLM has not (blocks by
state, waste, what sharing saves, service by tenant, the way to Redis). Everything is gathered when somebody asks, out
of numbers that the engine keeps anyway, so that a worker nobody looks at pays nothing. No label has more values than
the engine has states; tenants are one only where that is asked for. Nothing here has ever seen a text.

The server answers at /metrics, to whoever knows the token, and says 404 to all else. It runs in threads of its own and
reads the engine between two of its instructions: a figure may be a step old, never torn.
"""

from __future__ import annotations

import hmac
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from engine.measures import Histogram, Measures
from engine.protocol import WorkerDetails

if TYPE_CHECKING:
    from engine.llm_engine import LLMEngine

PATH = "/metrics"
SLOW_S = 10.0
"""How long a connection may take to ask: one that says nothing holds a thread."""


class WorkerCollector(Collector):
    """`by_tenant`: say each tenant's service too, a series for each that is known to the engine."""

    def __init__(
        self,
        engine: LLMEngine,
        measures: Measures,
        details: Callable[[], WorkerDetails],
        *,
        by_tenant: bool = False,
    ) -> None:
        self._engine = engine
        self._measures = measures
        self._details = details
        self._model = details().model
        self._by_tenant = by_tenant

    def describe(self) -> list[Metric]:
        """Nothing: the names are known by what is collected."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._info()
        yield from self._requests()
        yield from self._memory()
        yield from self._tokens()
        yield from self._fairness()
        yield from self._times()

    # --- of one kind ----------------------------------------------------------------------------------------------

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"octavo_{name}", text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"octavo_{name}", text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram, **labels: str) -> Metric:
        family = HistogramMetricFamily(f"octavo_{name}", text, labels=["model_name", *labels])
        family.add_metric([self._model, *labels.values()], histogram.cumulated(), histogram.total)
        return family

    # --- what there is --------------------------------------------------------------------------------------------

    def _info(self) -> Iterator[Metric]:
        details = self._details()
        build = GaugeMetricFamily(
            "octavo_build_info", "Which version runs; always 1.", labels=["model_name", "version"]
        )
        build.add_metric([details.model, details.version], 1)
        yield build
        labels = {
            "model_name": details.model,
            "device": details.device,
            "dtype": details.dtype,
            "block_size": str(details.block_size),
            "num_blocks": str(details.num_blocks),
        }
        family = GaugeMetricFamily(
            "octavo_cache_config_info", "What the KV pool is made of; always 1.", labels=[*labels]
        )
        family.add_metric([*labels.values()], 1)
        yield family

    def _requests(self) -> Iterator[Metric]:
        details = self._details()
        scheduler = self._engine.scheduler
        yield self._gauge("num_requests_running", "Sequences that have a place in the steps.", details.running)
        yield self._gauge("num_requests_waiting", "Sequences that wait in the engine for a place.", details.waiting)
        yield self._gauge("worker_healthy", "1 unless a fault has been seen.", details.healthy)
        yield self._gauge("worker_draining", "1 while nothing new is taken.", details.draining)
        yield self._counter("num_preemptions", "Sequences that had to give back their blocks.", scheduler.preemptions)
        ended = CounterMetricFamily(
            "octavo_request_success",
            "Requests that have ended, by reason: stop, length and tool_calls are answers.",
            labels=["model_name", "finished_reason"],
        )
        reasons = {"stop": 0, "length": 0, "tool_calls": 0, "abort": 0, "timeout": 0, "refused": 0, "error": 0}
        for reason, count in {**reasons, **dict(self._measures.finished)}.items():
            ended.add_metric([self._model, reason], count)
        yield ended

    def _memory(self) -> Iterator[Metric]:
        engine = self._engine
        pool, size = engine.pool, engine.block_size
        free, cached = pool.num_free, pool.num_cached
        used = pool.num_blocks - free - cached
        yield self._gauge("kv_cache_usage_perc", "Share of the KV pool in use, 1 is all of it.", used / pool.num_blocks)
        blocks = GaugeMetricFamily(
            "octavo_kv_blocks", "Blocks of the KV pool by state.", labels=["model_name", "state"]
        )
        for state, count in (("used", used), ("cached", cached), ("free", free)):
            blocks.add_metric([self._model, state], count)
        yield blocks
        yield self._gauge("kv_pinned_blocks", "Blocks that hold published prompts.", pool.num_pinned)
        host = engine.cache.host
        yield self._gauge("kv_host_blocks", "Blocks kept in host memory.", len(host) if host is not None else 0)
        loaded = host.loaded if host is not None else 0
        yield self._counter("kv_host_loaded_blocks", "Blocks that came back from host memory.", loaded)
        yield self._counter("kv_evictions", "Cached blocks that lost their content to new ones.", pool.evictions)
        tables = [(len(s.blocks), len(s.block_table), s.num_tokens) for s in list(engine.scheduler.running)]
        wasted = sum(max(0, places * size - tokens) for _, places, tokens in tables)
        yield self._gauge("kv_wasted_slots", "Slots of running sequences behind their last token.", wasted)
        saved = max(0, sum(held for held, _, _ in tables) - used)
        yield self._gauge("kv_saved_blocks", "Blocks that running sequences would need more without sharing.", saved)

    def _tokens(self) -> Iterator[Metric]:
        engine = self._engine
        totals, guesses = engine.totals, engine.speculation
        yield self._counter("prompt_tokens", "Prompt tokens of requests that have started.", totals["prompt_tokens"])
        yield self._counter("generation_tokens", "Output tokens.", totals["output_tokens"])
        yield self._counter(
            "prefix_cache_queries", "Prompt tokens looked for in the prefix cache.", totals["prompt_tokens"]
        )
        yield self._counter("prefix_cache_hits", "Those of them that were found.", totals["cached_tokens"])
        drafted, accepted = (guesses.proposed, guesses.accepted) if guesses is not None else (0, 0)
        yield self._counter("spec_decode_num_draft_tokens", "Guesses at the next tokens.", drafted)
        yield self._counter("spec_decode_num_accepted_tokens", "Guesses that were right.", accepted)
        yield self._counter("engine_steps", "Steps of the engine.", engine.steps)

    def _fairness(self) -> Iterator[Metric]:
        service = self._engine.scheduler.fairness.of_active()
        yield self._gauge("tenants_active", "Tenants that have something running or waiting here.", len(service))
        spread = max(service.values()) - min(service.values()) if service else 0.0
        yield self._gauge(
            "fairness_spread",
            "Weighted service by which the most served of the active tenants is ahead of the least served.",
            spread,
        )
        if self._by_tenant:
            family = GaugeMetricFamily(
                "octavo_tenant_service",
                "Weighted service that an active tenant has received.",
                labels=["model_name", "tenant"],
            )
            for tenant, received in service.items():
                family.add_metric([self._model, tenant], received)
            yield family

    def _times(self) -> Iterator[Metric]:
        m = self._measures
        yield self._histogram("time_to_first_token_seconds", "From being asked to the first token.", m.first_token_s)
        yield self._histogram("inter_token_latency_seconds", "Between two tokens of a request.", m.gap_s)
        yield self._histogram("e2e_request_latency_seconds", "From being asked to the last token.", m.whole_s)
        yield self._histogram("request_queue_time_seconds", "From being asked to the first step.", m.queue_s)
        yield self._histogram("request_prefill_time_seconds", "From there to the first token.", m.prefill_s)
        yield self._histogram("request_decode_time_seconds", "From there to the last one.", m.decode_s)
        yield self._histogram("request_prompt_tokens", "Prompt tokens of an answered request.", m.prompt_tokens)
        yield self._histogram("request_generation_tokens", "Output tokens of an answered request.", m.output_tokens)
        yield self._histogram("iteration_tokens", "Tokens that a step takes through the model.", m.step_tokens)
        yield self._histogram("iteration_seconds", "What a step takes.", m.step_s)
        yield self._histogram(
            "redis_round_trip_seconds", "Between a call of Redis and its answer.", m.round_trip_s, program="worker"
        )
        yield self._histogram("publish_lag_seconds", "From a step's end until its events are logged.", m.told_s)


class _Handler(BaseHTTPRequestHandler):
    timeout = SLOW_S
    server: MetricsServer

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self._answer(HTTPStatus.NOT_FOUND, b"")
            return
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        if not hmac.compare_digest(given, b"Bearer " + self.server.token):
            self._answer(HTTPStatus.UNAUTHORIZED, b"", ("WWW-Authenticate", "Bearer"))
            return
        encode, kind = choose_encoder(self.headers.get("Accept", ""))
        self._answer(HTTPStatus.OK, encode(self.server.registry), ("Content-Type", kind))

    def _answer(self, status: HTTPStatus, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(body))), ("Cache-Control", "no-store")):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "octavo"

    def log_message(self, *_: Any) -> None:
        """Nothing: a line every few seconds would bury the others."""


class MetricsServer(ThreadingHTTPServer):
    """Listens from the moment it is made; answers from `start` on. Raises OSError where it cannot listen."""

    daemon_threads = True

    def __init__(self, registry: CollectorRegistry, *, host: str, port: int, token: str) -> None:
        if not token:
            raise ValueError("metrics need a token")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self.registry = registry
        self.token = token.encode()

    def server_bind(self) -> None:
        """Without HTTPServer's look-up of our own name, which waits for a name server that may not be there."""
        socketserver.TCPServer.server_bind(self)

    @property
    def address(self) -> str:
        """host:port under which others find it: this machine's name where it listens at all of its addresses."""
        host, port = str(self.server_address[0]), int(self.server_address[1])
        if host in ("0.0.0.0", "::"):  # noqa: S104
            return f"{socket.gethostname()}:{port}"
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: whoever asked has gone."""


def serve(collector: Collector, *, host: str, port: int, token: str) -> MetricsServer:
    """Answer with what the collector says, and what the system says of this process. Raises OSError where the port
    cannot be had."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    server = MetricsServer(registry, host=host, port=port, token=token)
    server.start()
    return server
