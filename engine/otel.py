"""OpenTelemetry's tracer behind engine.tracing, imported only where traces are wanted.

Owns the provider of one process and the thread that makes spans of what is over. Spans go out in batches by
OpenTelemetry's own thread, over OTLP/HTTP; where the collector is away they are dropped once its queue is full, which
the log says once a minute. What the environment says of samplers, headers, queues and resources is obeyed by the SDK.

Promises: nothing here waits for the network in a caller's thread, no error gets out, and the end of the process waits
END_S for the last spans.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_NAMESPACE, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from engine.tracing import Part

log = structlog.get_logger(__name__)

END_S = 1.0
SAY_EVERY_S = 60.0
KINDS = {kind.name.lower(): kind for kind in SpanKind}


class _Exporter(SpanExporter):
    """OTLP over HTTP, which tells of a collector that is away once in a while and not with every batch."""

    def __init__(self) -> None:
        self._inner = OTLPSpanExporter()
        self._lost = 0
        self._say_at = 0.0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._lost += len(spans)
            if time.monotonic() >= self._say_at:
                self._say_at = time.monotonic() + SAY_EVERY_S
                log.warning("traces.not_exported", spans=self._lost)
                self._lost = 0
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True


class Open:
    """A span under way."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def within(self) -> AbstractContextManager[Any]:
        return trace.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def note(self, **attributes: str | int | float | bool) -> None:
        self._span.set_attributes(_named(attributes))

    def name(self, name: str) -> None:
        self._span.update_name(name)

    def fail(self, reason: str) -> None:
        self._span.set_status(Status(StatusCode.ERROR, reason))

    def end(self) -> None:
        """Safe to repeat."""
        if self._span.is_recording():
            self._span.end()


class Spans:
    """The spans of this process."""

    def __init__(self, service: str) -> None:
        # Its loggers say each failed attempt, and each span that a full queue drops.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        wanted = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        if wanted not in (None, "", "http/protobuf"):
            log.warning("traces.protocol", wanted=wanted, spoken="http/protobuf")
        resource = Resource.create(
            {
                # The environment's own name stands for all processes, and each has a name of its own nevertheless.
                SERVICE_NAME: f"{os.environ.get('OTEL_SERVICE_NAME') or 'octavo'}-{service}",
                SERVICE_NAMESPACE: "octavo",
                SERVICE_INSTANCE_ID: f"{socket.gethostname()}-{os.getpid()}",
            }
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_Exporter()))
        self._tracer = self._provider.get_tracer("octavo")
        self._over: queue.SimpleQueue[tuple[tuple[Part, ...], float] | None] = queue.SimpleQueue()
        self._maker = threading.Thread(target=self._make, name="spans", daemon=True)
        self._maker.start()
        atexit.register(self.end)

    def opened(self, name: str, kind: str, parent: str, attributes: Mapping[str, Any]) -> Open:
        context = _context(parent) if parent else None
        return Open(self._tracer.start_span(name, context, KINDS[kind], _named(attributes)))

    @contextmanager
    def span(self, name: str, kind: str, parent: str, attributes: Mapping[str, Any]) -> Iterator[None]:
        opened = self.opened(name, kind, parent, attributes)
        try:
            with opened.within():
                yield
        except Exception as error:
            opened.fail(type(error).__name__)  # its words may quote what somebody wrote
            raise
        finally:
            opened.end()

    def note(self, attributes: Mapping[str, Any]) -> None:
        trace.get_current_span().set_attributes(_named(attributes))

    def current(self) -> str:
        found = trace.get_current_span().get_span_context()
        if not found.is_valid:
            return ""
        return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"

    def trace_id(self) -> str:
        found = trace.get_current_span().get_span_context()
        return f"{found.trace_id:032x}" if found.is_valid else ""

    def ended(self, parts: tuple[Part, ...]) -> None:
        self._over.put((parts, time.time() - time.monotonic()))

    def _make(self) -> None:
        while (item := self._over.get()) is not None:
            parts, epoch = item
            try:
                self._make_all(parts, epoch)
            except Exception as error:
                log.warning("traces.not_made", error=type(error).__name__)
        self._provider.shutdown()

    def _make_all(self, parts: tuple[Part, ...], epoch: float) -> None:
        """`epoch`: the time at which time.monotonic() was 0."""
        first, *inner = parts
        outer = self._tracer.start_span(
            first.name, _context(first.parent), KINDS[first.kind], _named(first.attributes),
            start_time=_ns(first.began + epoch),
        )  # fmt: skip
        within = trace.set_span_in_context(outer, Context())
        for part in inner:
            span = self._tracer.start_span(
                part.name, within, KINDS[part.kind], _named(part.attributes), start_time=_ns(part.began + epoch)
            )
            _fail(span, part)
            span.end(_ns(part.ended + epoch))
        _fail(outer, first)
        outer.end(_ns(first.ended + epoch))

    def end(self) -> None:
        """Send what is left, as far as it gets within END_S."""
        self._over.put(None)
        self._maker.join(END_S)


def _context(traceparent: str) -> Context:
    """That span as the parent; an empty one: a trace begins."""
    if not traceparent:
        return Context()
    _, trace_id, parent, flags = traceparent.split("-")
    found = SpanContext(int(trace_id, 16), int(parent, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    return trace.set_span_in_context(NonRecordingSpan(found), Context())


def _named(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in attributes.items()}


def _fail(span: trace.Span, part: Part) -> None:
    if part.failed:
        span.set_status(Status(StatusCode.ERROR, part.failed))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
