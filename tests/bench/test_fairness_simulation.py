"""I8 over the simulation that `python -m bench.fairness` prints: steps and tokens are counted, no time is taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench import fairness
from bench.fairness import SCENARIOS, Request, bound, first_tokens, flood, largest_gap, simulate

Make = Callable[[float], list[Request]]
SCALE = 0.3


@pytest.mark.parametrize("make", SCENARIOS.values(), ids=list(SCENARIOS))
def test_the_service_gap_stays_below_the_bound_and_does_not_grow_with_time(make: Make) -> None:
    requests = make(SCALE)
    run = simulate(requests)
    half = len(run.at_s) // 2
    assert largest_gap(run) < bound(requests) / 4
    assert largest_gap(run, half) <= 1.5 * largest_gap(run, 0, half)


@pytest.mark.parametrize("make", SCENARIOS.values(), ids=list(SCENARIOS))
def test_fairness_costs_at_most_three_per_cent_of_the_throughput(make: Make) -> None:
    requests = make(SCALE)
    fair, fcfs = simulate(requests), simulate(requests, fcfs=True)
    assert fair.tokens == fcfs.tokens
    assert fair.seconds <= 1.03 * fcfs.seconds


def test_first_come_first_served_is_not_fair_by_the_same_measure() -> None:
    """So that a small gap means something: B has waited all the time while A's requests, sent before, were served."""
    requests = [*flood("A", 40, 128, 64), *flood("B", 40, 128, 64)]
    assert largest_gap(simulate(requests, fcfs=True)) > 10 * largest_gap(simulate(requests)) > 0


def test_a_single_request_beside_a_flood_has_its_first_token_within_twice_the_steps_it_takes_alone() -> None:
    """C16."""
    requests = SCENARIOS["flood and single"](SCALE)
    alone = simulate([request for request in requests if request.tenant == "B"])
    beside = first_tokens(requests, simulate(requests), "B")
    assert len(beside) == len(alone.first_token) > 1
    assert max(beside) <= 2 * max(alone.first_token.values())


def test_the_table_and_the_csv_have_every_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "service.csv"
    assert fairness.main(["--scale", "0.05", "--csv", str(path)]) == 0
    printed, written = capsys.readouterr().out, path.read_text()
    for name in SCENARIOS:
        assert f"\n{name} " in printed
        assert f"\n{name}," in written
