"""Traces cost nothing where nobody wants them, hold up nobody where their collector is away, and say no text."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from structlog.testing import capture_logs

from engine import otel, tracing
from engine.tracing import Part
from tests.conftest import ROOT
from tests.otlp import Collector, collecting, keeping_traces
from tests.stack import wait_for

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """One that takes what this process says, which keeps traces meanwhile."""
    with collecting() as kept, keeping_traces(monkeypatch, kept.url):
        yield kept


@pytest.mark.parametrize(
    ("given", "understood"),
    [
        (CALLER, CALLER),
        (f"  {CALLER}\t", CALLER),
        (f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-00"),
        (f"00-{TRACE}-{SPAN}-ff", f"00-{TRACE}-{SPAN}-03"),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", CALLER),
        (f"cc-{TRACE}-{SPAN}-01.more", ""),
        (f"00-{TRACE}-{SPAN}-01-more", ""),
        (f"ff-{TRACE}-{SPAN}-01", ""),
        (f"00-{'0' * 32}-{SPAN}-01", ""),
        (f"00-{TRACE}-{'0' * 16}-01", ""),
        (CALLER.upper(), ""),
        (f"00-{TRACE[1:]}-{SPAN}-01", ""),
        (f"cc-{TRACE}-{SPAN}-01-" + "x" * 600, ""),
        ("", ""),
        ("\N{ARABIC-INDIC DIGIT ONE}" * 55, ""),
    ],
)
def test_a_traceparent_is_taken_where_it_is_one(given: str, understood: str) -> None:
    """The cases of W3C Trace Context, section 3.2."""
    assert tracing.traceparent(given) == understood


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_traces_are_kept_where_the_environment_says_so(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], wanted: bool
) -> None:
    for name in ("ENDPOINT", "TRACES_ENDPOINT"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert tracing.wanted() is wanted


def test_where_nobody_wants_traces_their_tracer_is_not_even_imported() -> None:
    """Of web, Celery and the worker's bus. (redis-py brings OpenTelemetry's metrics along by itself.)"""
    program = (
        "import os, sys, django\n"
        "os.environ['DJANGO_SETTINGS_MODULE'] = 'chatapp.settings.test'\n"
        "django.setup()\n"
        "import chatapp.celery, chatapp.middleware, chatapp.chat.services, engine.bus, engine.worker\n"
        "from engine import tracing\n"
        "tracing.begin('web')\n"
        "with tracing.span('x', kind='server', octavo__tenant='t'): assert tracing.current() == ''\n"
        "tracing.ended(tracing.Part('x', 0, 1))\n"
        "assert tracing.opened('x', kind='server') is None and not tracing.on()\n"
        "heavy = ('engine.otel', 'opentelemetry.sdk.trace', 'opentelemetry.exporter', 'google.protobuf', 'requests')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    env = {"PATH": "/usr/bin:/bin"}
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    assert said.stdout == "[]\n"


def test_spans_of_what_is_over_lie_in_their_caller_s_trace_at_their_own_times(collector: Collector) -> None:
    now, clock = time.monotonic(), time.time()
    tracing.ended(
        Part("generation", now - 3, now, kind="consumer", parent=CALLER, octavo__attempt=2),
        Part("queue", now - 3, now - 2),
        Part("decode", now - 2, now, failed="engine_error"),
    )
    found = collector.seen("generation", "queue", "decode")
    whole = found["generation"]
    assert (whole.trace, whole.parent, whole.service) == (TRACE, SPAN, "octavo-tests")
    assert whole.attributes == {"octavo.attempt": 2}
    assert {found["queue"].parent, found["decode"].parent} == {whole.id}
    assert found["decode"].failed
    assert not found["queue"].failed
    assert found["queue"].ended - found["queue"].began == pytest.approx(1, abs=1e-3)
    assert whole.ended == pytest.approx(clock, abs=0.5)


def test_an_error_marks_its_span_by_its_kind_and_its_words_stay_here(collector: Collector) -> None:
    def fail() -> None:
        with tracing.span("outer", parent=CALLER):
            assert tracing.trace_id() == TRACE
            with tracing.span("inner"):
                raise ValueError("a private question")

    with pytest.raises(ValueError, match="a private question"):
        fail()
    found = collector.seen("outer", "inner")
    assert found["inner"].parent == found["outer"].id
    assert found["outer"].parent == SPAN
    assert found["inner"].failed
    assert found["outer"].failed
    assert b"ValueError" in b"".join(collector.raw)
    assert b"private" not in b"".join(collector.raw)


def test_a_caller_that_keeps_no_trace_has_none_kept(collector: Collector) -> None:
    tracing.ended(Part("generation", 0, 1, parent=f"00-{TRACE}-{SPAN}-00"), Part("queue", 0, 1))
    with tracing.span("submit", parent=f"00-{TRACE}-{SPAN}-00"):
        assert tracing.current().startswith(f"00-{TRACE}-")
        assert tracing.current().endswith("-00"), "and the engine hears of it"
    with tracing.span("own"):
        pass
    assert list(collector.seen("own")) == ["own"]


@pytest.mark.parametrize("silent", [False, True], ids=["refuses", "never answers"])
def test_a_collector_that_is_away_holds_up_nobody(monkeypatch: pytest.MonkeyPatch, silent: bool) -> None:
    """Neither who says spans, nor the end of the process; the log says it once."""
    monkeypatch.setattr(otel, "END_S", 0.3)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60" if silent else "0.2")
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        if silent:
            listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with capture_logs() as lines:
            with keeping_traces(monkeypatch, url):
                began = time.monotonic()
                for _ in range(3000):  # more than the queue has room for
                    tracing.ended(Part("generation", 0, 1), Part("queue", 0, 1))
                said_s = time.monotonic() - began
                if not silent:
                    wait_for(lambda: [line for line in lines if line["event"] == "traces.not_exported"], 10, 0.01)
                began = time.monotonic()
            ended_s = time.monotonic() - began
    assert said_s < 2, "10 µs each, and here other tests run beside it"
    assert ended_s < 2
    assert len([line for line in lines if line["event"] == "traces.not_exported"]) == (0 if silent else 1)
