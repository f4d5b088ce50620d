"""A collector for tests: takes spans over OTLP/HTTP, as any collector does, and keeps them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from engine import tracing
from tests.stack import wait_for

FAILED = Status.StatusCode.STATUS_CODE_ERROR


@dataclass(frozen=True)
class Seen:
    """One span. Times are in seconds of the Unix epoch; `parent` is empty for a trace's first."""

    name: str
    service: str
    trace: str
    id: str
    parent: str
    began: float
    ended: float
    failed: bool
    attributes: dict[str, Any]


@dataclass
class Collector:
    url: str
    spans: list[Seen] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)

    def seen(self, *names: str) -> dict[str, Seen]:
        """All spans by name, once these have arrived."""
        wait_for(lambda: {*names} <= {span.name for span in list(self.spans)}, 10, 0.01)
        return {span.name: span for span in list(self.spans)}

    def of(self, trace: str) -> dict[str, Seen]:
        """A trace's spans by name; the last of each."""
        return {span.name: span for span in list(self.spans) if span.trace == trace}

    def take(self, body: bytes) -> None:
        self.raw.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = next(a.value.string_value for a in resource.resource.attributes if a.key == "service.name")
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                attributes = {a.key: getattr(a.value, a.value.WhichOneof("value") or "") for a in span.attributes}
                self.spans.append(
                    Seen(
                        span.name, service, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
                        span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9, span.status.code == FAILED,
                        attributes,
                    )
                )  # fmt: skip


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept = Collector(f"http://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield kept
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def keeping_traces(monkeypatch: pytest.MonkeyPatch, url: str) -> Iterator[None]:
    """This very process keeps traces meanwhile, as the service octavo-tests."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setattr(tracing, "_spans", None)
    tracing.begin("tests")
    spans = tracing._spans
    assert spans is not None
    try:
        yield
    finally:
        spans.end()
        monkeypatch.setattr(tracing, "_spans", None)
