"""Traces of a message across web, Redis, engine and recorder: on where OTEL_EXPORTER_OTLP_ENDPOINT says where to.

Owns what a trace consists of: a W3C `traceparent` travels in each Request, and every process adds spans to it. Off, a
span costs a comparison and OpenTelemetry's tracer is not even imported (engine.otel does that). Promises: no text of a
chat in any attribute, no waiting for a collector, and nobody notices when there is none.

The caller's traceparent goes into the Request also where this process keeps no traces: the next one may.
"""

from __future__ import annotations

import os
import re
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.otel import Open, Spans

# https://www.w3.org/TR/trace-context/: version, trace id, parent id, flags. Later versions may have more behind them.
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
LONGEST = 512
KNOWN_FLAGS = 0b11  # sampled; the trace id is random

_spans: Spans | None = None
_NONE: AbstractContextManager[None] = nullcontext()


def wanted() -> bool:
    """Whether the environment, by OpenTelemetry's own variables, asks for traces."""
    get = os.environ.get
    off = get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or get("OTEL_TRACES_EXPORTER", "") == "none"
    return not off and bool(get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or get("OTEL_EXPORTER_OTLP_ENDPOINT"))


def begin(service: str) -> None:
    """Once in a process, at its start: keep traces, under this name of the service, if they are wanted."""
    global _spans
    if _spans is None and wanted():
        from engine.otel import Spans

        _spans = Spans(service)


def on() -> bool:
    return _spans is not None


def span(
    name: str, *, kind: str = "internal", parent: str = "", **attributes: str | int | float | bool
) -> AbstractContextManager[Any]:
    """The current span while the block runs, a child of `parent` (a traceparent) or of the one that is current.

    `kind`: internal, server, client, producer or consumer. Attributes are ids, names and numbers, never what anybody
    wrote; dots in their names are written as two underscores. An error that leaves the block marks it, by its kind.
    """
    return _NONE if _spans is None else _spans.span(name, kind, parent, attributes)


def opened(name: str, *, kind: str, parent: str = "", **attributes: str | int | float | bool) -> Open | None:
    """A span that ends with `Open.end`, wherever that is called; `Open.within()` makes it the current one."""
    return None if _spans is None else _spans.opened(name, kind, parent, attributes)


def note(**attributes: str | int | float | bool) -> None:
    """More about the current span."""
    if _spans is not None:
        _spans.note(attributes)


def current() -> str:
    """The traceparent of the current span; empty where there is none."""
    return "" if _spans is None else _spans.current()


def trace_id() -> str:
    return "" if _spans is None else _spans.trace_id()


class Part:
    """One of these spans. `began`, `ended`: seconds of time.monotonic(); `parent`: a traceparent, of the first only."""

    __slots__ = ("attributes", "began", "ended", "failed", "kind", "name", "parent")

    def __init__(
        self,
        name: str,
        began: float,
        ended: float,
        *,
        kind: str = "internal",
        parent: str = "",
        failed: str = "",
        **attributes: str | int | float | bool,
    ) -> None:
        self.name = name
        self.began = began
        self.ended = ended
        self.kind = kind
        self.parent = parent
        self.failed = failed
        self.attributes = attributes


def trace_id_of(traceparent: str) -> str:
    return traceparent[3:35]


def ended(*parts: Part) -> None:
    """Spans of what is over, the first one the parent of the others. May be called from an engine loop: making them is
    another thread's work."""
    if _spans is not None:
        _spans.ended(parts)


def traceparent(given: str) -> str:
    """What a caller sent, where it is one: as version 00 with the flags of it, which is what we know. Else empty."""
    found = _TRACEPARENT.fullmatch(given.strip(" \t")) if len(given) <= LONGEST else None
    if found is None:
        return ""
    version, trace, parent, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace, 16) or not int(parent, 16):
        return ""
    return f"00-{trace}-{parent}-{int(flags, 16) & KNOWN_FLAGS:02x}"
