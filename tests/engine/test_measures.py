"""What a worker counts: histograms say what was observed, and a step's gaps are those of its requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as Theirs

from engine.measures import GAP_S, LATENCY_S, Histogram, Measures

VALUES = st.one_of(st.sampled_from(LATENCY_S), st.floats(0, 1000))


@given(st.lists(st.tuples(VALUES, st.integers(1, 5))))
def test_a_histogram_says_what_prometheus_own_says(observed: list[tuple[float, int]]) -> None:
    registry = CollectorRegistry()
    theirs = Theirs("t", "t", buckets=LATENCY_S, registry=registry)
    ours = Histogram(LATENCY_S)
    for value, count in observed:
        ours.observe(value, count)
        for _ in range(count):
            theirs.observe(value)
    assert dict(ours.cumulated()) == {
        sample.labels["le"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "t_bucket"
    }
    assert abs(ours.total - (registry.get_sample_value("t_sum") or 0.0)) < 1e-6 * (1 + ours.total)


@given(st.lists(st.lists(st.integers(0, 7), unique=True), max_size=30))
def test_a_steps_gaps_are_those_between_a_requests_tokens(steps: list[list[int]]) -> None:
    """Steps by the requests that got tokens in them; step n is told at n seconds / 8."""
    measures, expected = Measures(), Histogram(GAP_S)
    last: dict[int, float] = {}
    for number, got in enumerate(steps):
        now = number / 8
        for request in got:
            if request in last:
                measures.said(last[request])
                expected.observe(now - last[request])
            last[request] = now
        measures.stepped(now - 0.0625, now, len(got))
    assert measures.gap_s.counts == expected.counts
    assert measures.gap_s.total == expected.total
    assert sum(measures.step_s.counts) == len(steps)
    assert sum(measures.step_tokens.counts) == sum(map(bool, steps)), "a step without tokens is no iteration"


def test_only_what_ended_by_itself_says_how_long_it_took() -> None:
    measures = Measures()
    measures.ended("abort")
    measures.ended("stop", (0.5, 1.0, 2.0), 10, 20)
    assert measures.finished == {"abort": 1, "stop": 1}
    assert [h.total for h in (measures.queue_s, measures.prefill_s, measures.decode_s)] == [0.5, 1.0, 2.0]
    assert measures.whole_s.total == 3.5
    assert (measures.prompt_tokens.total, measures.output_tokens.total) == (10, 20)


def test_lag_is_counted_from_the_oldest_step_that_was_told() -> None:
    now = 10.0
    measures = Measures(clock=lambda: now)
    measures.flushed(began=9.75, oldest=None)
    assert sum(measures.told_s.counts) == 0, "a heartbeat's answer tells nothing of steps"
    measures.flushed(began=9.5, oldest=8.0)
    assert measures.told_s.total == 2.0
    assert measures.round_trip_s.total == 0.75
