"""The counters alone: what they charge, whom they lift, what they forget."""

from __future__ import annotations

import random

import pytest

from engine.fairness import Fairness


def test_service_is_cost_over_weight() -> None:
    fairness = Fairness()
    fairness.enter("light", 1.0)
    fairness.enter("heavy", 4.0)
    fairness.charge("light", 8)
    fairness.charge("heavy", 8)
    assert fairness.service("light") == 4 * fairness.service("heavy") == 8


def test_who_wakes_up_is_lifted_to_the_least_active_counter_and_not_above() -> None:
    fairness = Fairness()
    fairness.enter("a")
    fairness.enter("b")
    fairness.charge("a", 100)
    fairness.charge("b", 40)
    fairness.enter("new")
    assert fairness.service("new") == 40
    fairness.charge("b", 5)
    fairness.leave("new")
    fairness.enter("new")
    assert fairness.service("new") == 45


def test_leaving_and_coming_back_does_not_wipe_out_a_debt() -> None:
    fairness = Fairness()
    fairness.enter("a")
    fairness.enter("b")
    fairness.charge("a", 1000)
    fairness.leave("a")
    fairness.enter("a")
    assert fairness.service("a") == 1000


def test_a_lone_tenant_that_pauses_is_not_ahead_of_a_newcomer_for_ever() -> None:
    fairness = Fairness()
    fairness.enter("a")
    fairness.charge("a", 1000)
    fairness.leave("a")
    fairness.enter("b")
    fairness.enter("a")
    assert fairness.service("b") == fairness.service("a")


def test_idle_tenants_are_forgotten_once_their_counter_says_nothing() -> None:
    fairness = Fairness()
    fairness.enter("stays")
    for number in range(1000):
        fairness.enter(f"t{number}")
        fairness.charge(f"t{number}", 1)
        fairness.charge("stays", 2)
        fairness.leave(f"t{number}")
    assert len(fairness._service) < 5


def test_active_counters_never_fall_below_the_floor() -> None:
    rng = random.Random(0)
    fairness = Fairness()
    active: set[str] = set()
    before: dict[str, float] = {}
    for _ in range(3000):
        tenant = f"t{rng.randrange(6)}"
        if tenant not in active:
            fairness.enter(tenant, rng.choice([0.5, 1, 3]))
            active.add(tenant)
            assert fairness.service(tenant) >= before.get(tenant, 0.0), "a counter went back"
        elif rng.random() < 0.3:
            before[tenant] = fairness.service(tenant)
            fairness.leave(tenant)
            active.remove(tenant)
        else:
            fairness.charge(tenant, rng.randrange(20))
        assert all(fairness.service(each) >= fairness._floor for each in active)


def test_a_weight_must_be_positive() -> None:
    with pytest.raises(ValueError, match="weight of tenant 'a'"):
        Fairness().enter("a", 0.0)
