"""The pacer against simulated machines: here their true coefficients are known, and their noise has a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.pacer import StepPacer


@dataclass
class Machine:
    """Takes base + decodes x a + prompt tokens x b seconds for a step, times a noise of median 1."""

    base: float = 0.004
    decode: float = 0.0012
    prefill: float = 0.0005
    noise: float = 0.1
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def true_s(self, prefill: int, decodes: int) -> float:
        return self.base + self.decode * decodes + self.prefill * prefill

    def step(
        self, pacer: StepPacer, decodes: int, prefill: int | None = None, factor: float = 1.0
    ) -> tuple[int, float]:
        """Run one step with all the prompt tokens that the pacer allows, or with `prefill`; (tokens, seconds)."""
        tokens = pacer.cap(decodes) if prefill is None else prefill
        seconds = self.true_s(tokens, decodes) * self.rng.lognormvariate(0, self.noise) * factor
        pacer.observe(tokens, decodes, seconds)
        return tokens, seconds


def learnt(machine: Machine, bound_s: float = 0.06, steps: int = 300) -> StepPacer:
    pacer = StepPacer(bound_s, most=256)
    for number in range(steps):
        machine.step(pacer, decodes=number * 7 % 16 + 1, prefill=None if number % 3 else 0)
    return pacer


@settings(max_examples=40, deadline=None)
@given(
    base=st.floats(0.0005, 0.01),
    decode=st.floats(0.0001, 0.0015),
    prefill=st.floats(0.0002, 0.001),
    noise=st.floats(0.0, 0.2),
    seed=st.integers(0, 2**32),
)
def test_few_steps_exceed_the_bound_and_prefill_gets_nearly_what_the_bound_allows(
    base: float, decode: float, prefill: float, noise: float, seed: int
) -> None:
    """C18 in seconds: 16 decodes take at most 34 ms of the bound of 60, so the rest is there for prompts."""
    machine = Machine(base, decode, prefill, noise, random.Random(seed))
    pacer = StepPacer(0.06, most=256)
    decodes, over, got, possible, count = 8, 0, 0, 0, 1200
    for number in range(count + 200):
        if machine.rng.random() < 0.05:
            decodes = machine.rng.randint(1, 16)
        tokens, seconds = machine.step(pacer, decodes)
        if number >= 200:
            over += seconds > pacer.bound_s
            got += tokens
            # What would go over in one step of twenty if all about the machine were known: z(0.95) = 1.645.
            room = pacer.bound_s / (1 + 1.645 * noise) - machine.true_s(0, decodes)
            possible += max(pacer.least, min(pacer.most, int(room / prefill)))
    assert over / count < 0.09
    assert got / possible > 0.75


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 500), st.floats(0, 1e4)), max_size=60), st.integers(0, 999)
)
def test_the_cap_is_always_within_its_limits_whatever_was_measured(
    steps: list[tuple[int, int, float]], decodes: int
) -> None:
    pacer = StepPacer(0.05, most=300, least=20)
    for prefill, decoding, seconds in steps:
        pacer.observe(prefill, decoding, seconds)
        assert 20 <= pacer.cap(decodes) <= 300
        assert pacer.cap(decodes + 1) <= pacer.cap(decodes) or not decodes
        assert pacer.step_s(1, 1) >= 0


def test_without_decodes_nobody_is_held_up_and_the_cap_is_the_most() -> None:
    pacer = StepPacer(0.001, most=512)
    assert pacer.cap(0) == 512
    pacer.observe(512, 0, 3.0)
    assert pacer.cap(0) == 512


def test_before_anything_was_observed_a_prompt_advances_by_the_least_chunk() -> None:
    pacer = StepPacer(0.05, most=512, least=16)
    assert pacer.cap(4) == 16
    assert pacer.step_s(100, 4) == 0.0


def test_a_new_pacer_knows_the_machine_after_some_tens_of_steps() -> None:
    machine = Machine(noise=0.05)
    pacer = StepPacer(0.06, most=256)
    machine.step(pacer, decodes=0, prefill=200)
    for number in range(60):
        machine.step(pacer, decodes=4, prefill=None if number % 2 else 0)
    assert pacer.cap(4) == pytest.approx((0.06 / 1.15 - machine.true_s(0, 4)) / machine.prefill, rel=0.25)


def test_one_step_that_takes_ten_times_as_long_hardly_changes_the_cap_and_is_soon_forgotten() -> None:
    machine = Machine(noise=0.02)
    pacer = learnt(machine)
    before = pacer.cap(8)
    assert 16 < before < 256
    machine.step(pacer, decodes=8, factor=10.0)
    assert pacer.cap(8) > 0.8 * before
    for _ in range(40):
        machine.step(pacer, decodes=8)
    assert pacer.cap(8) > 0.93 * before


def test_a_first_step_that_takes_ten_times_as_long_is_forgotten_as_soon_as_others_are_known() -> None:
    machine = Machine(noise=0.02)
    pacer = StepPacer(0.06, most=256)
    machine.step(pacer, decodes=0, prefill=100, factor=10.0)
    for number in range(80):
        machine.step(pacer, decodes=8, prefill=None if number % 2 else 0)
    assert pacer.cap(8) > 0.6 * (0.06 - machine.true_s(0, 8)) / machine.prefill


def test_frequent_outliers_do_not_shut_prefill_down() -> None:
    machine = Machine(noise=0.05)
    pacer = learnt(machine, bound_s=0.1)
    before = pacer.cap(8)
    for number in range(500):
        machine.step(pacer, decodes=8, factor=10.0 if number % 12 == 0 else 1.0)
    assert pacer.cap(8) > 0.3 * before


def test_a_machine_that_becomes_three_times_slower_is_noticed_within_forty_steps() -> None:
    machine = Machine(noise=0.05)
    pacer = learnt(machine, bound_s=0.15)
    for _ in range(40):
        machine.step(pacer, decodes=8, factor=3.0)
    late = [machine.step(pacer, decodes=8, factor=3.0)[1] for _ in range(100)]
    assert sum(seconds > 0.15 for seconds in late) <= 10
    assert pacer.cap(8) > 16


def test_a_machine_that_becomes_faster_again_gets_its_prefill_back() -> None:
    machine = Machine(noise=0.05)
    pacer = learnt(machine, bound_s=0.15)
    before = pacer.cap(8)
    for _ in range(100):
        machine.step(pacer, decodes=8, factor=3.0)
    assert pacer.cap(8) < 0.5 * before
    for _ in range(100):
        machine.step(pacer, decodes=8)
    assert pacer.cap(8) > 0.8 * before


def test_a_bound_that_decodes_alone_exceed_leaves_prompts_the_least_chunk() -> None:
    pacer = learnt(Machine(decode=0.01), bound_s=0.06)
    assert pacer.cap(16) == 16


def test_the_estimate_tells_base_decodes_and_prompt_tokens_apart() -> None:
    machine = Machine(noise=0.05)
    pacer = learnt(machine, steps=1500)
    for prefill, decodes in [(0, 1), (0, 16), (16, 1), (100, 4), (16, 16), (60, 8)]:
        assert pacer.step_s(prefill, decodes) == pytest.approx(machine.true_s(prefill, decodes), rel=0.15)


def test_a_clock_that_went_backwards_and_an_empty_step_teach_nothing() -> None:
    pacer = learnt(Machine())
    before = pacer.step_s(100, 8)
    pacer.observe(10, 8, -1.0)
    pacer.observe(10, 8, 0.0)
    pacer.observe(0, 0, 5.0)
    assert pacer.step_s(100, 8) == before


@pytest.mark.parametrize("arguments", [(0.0, 256, 16), (-1.0, 256, 16), (0.05, 8, 16), (0.05, 256, 0)])
def test_limits_that_cannot_work_are_refused(arguments: tuple[float, int, int]) -> None:
    with pytest.raises(ValueError, match="step"):
        StepPacer(*arguments)
