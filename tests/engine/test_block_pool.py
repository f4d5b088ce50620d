"""The block pool against a model of it that is too simple to be wrong, and its few rules one by one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.block_pool import BlockPool, BlockState

TENANTS = ("a", "b", "c")


class PoolMachine(RuleBasedStateMachine):
    """Tables are allocated, shared, kept and released at random; the model is a counter and two sets."""

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[int] = []
        self.pool = BlockPool(12, self.evicted.append)
        self.tables: list[list[int]] = []
        self.kept: set[int] = set()
        self.pins: list[list[int]] = []

    @rule(count=st.integers(0, 6), tenant=st.sampled_from(TENANTS))
    def allocate(self, count: int, tenant: str) -> None:
        if count > self.pool.num_available:
            return
        free, held = self.pool.num_free, {block for table in self.tables for block in table}
        pinned = set(self.pool.pinned())
        idle_unpinned = self.kept - held - pinned
        self.evicted.clear()
        table = self.pool.allocate(count, tenant)
        assert len(set(table)) == count
        assert not set(table) & held
        assert len(self.evicted) == max(0, count - free), "cached blocks go only when no free one is left"
        if set(self.evicted) & pinned:
            assert idle_unpinned <= set(self.evicted), "a pinned block went before an unpinned one"
        self.kept -= set(self.evicted)
        # As in the prefix cache, a pin's blocks that lost their content are no longer its own.
        self.pins = [[block for block in blocks if block not in self.evicted] for blocks in self.pins]
        self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.pool.release(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), count=st.integers(0, 6))
    def keep(self, data: st.DataObject, count: int) -> None:
        for block in data.draw(st.sampled_from(self.tables))[:count]:
            self.pool.keep(block)
            self.kept.add(block)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        table = data.draw(st.lists(st.sampled_from(sorted(self.kept)), unique=True))
        self.pool.acquire(table)
        self.tables.append(table)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(sorted(self.kept)), unique=True))
        self.pins.append(blocks[: self.pool.pin(blocks)])

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        self.pool.unpin(self.pins.pop(data.draw(st.integers(0, len(self.pins) - 1))))

    @invariant()
    def every_block_is_in_one_state_and_counted(self) -> None:
        held = Counter(block for table in self.tables for block in table)
        assert self.pool.refs == [held[block] for block in range(12)]
        for block in range(12):
            state = BlockState.USED if held[block] else BlockState.CACHED if block in self.kept else BlockState.FREE
            assert self.pool.state(block) == state
        assert self.pool.num_used == len(held)
        assert self.pool.num_cached == len(self.kept - set(held))
        assert self.pool.num_free + self.pool.num_cached + self.pool.num_used == 12
        assert set(self.pool.pinned()) == {block for blocks in self.pins for block in blocks}
        self.pool.check_integrity()


PoolMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_pool_agrees_with_its_model_in_any_order_of_calls = PoolMachine.TestCase


def cached(pool: BlockPool, count: int, tenant: str = "t") -> list[int]:
    """A released table of findable blocks, head first."""
    table = pool.allocate(count, tenant)
    for block in table:
        pool.keep(block)
    pool.release(table)
    return table


def test_tail_is_evicted_before_head_and_old_before_new() -> None:
    evicted: list[int] = []
    pool = BlockPool(6, evicted.append)
    old, new = cached(pool, 3), cached(pool, 3)
    pool.allocate(6, "other")
    assert evicted == [*reversed(old), *reversed(new)]


def test_used_again_means_evicted_last() -> None:
    evicted: list[int] = []
    pool = BlockPool(4, evicted.append)
    first, second = cached(pool, 2), cached(pool, 2)
    pool.acquire(first)
    pool.release(first)
    pool.allocate(2, "other")
    assert evicted == [*reversed(second)]


def test_pinned_blocks_go_only_when_nothing_else_is_left() -> None:
    evicted: list[int] = []
    pool = BlockPool(6, evicted.append)
    pinned, other = cached(pool, 3), cached(pool, 3)
    assert pool.pin(pinned) == 3
    pool.allocate(3, "x")
    assert evicted == [*reversed(other)]
    pool.allocate(3, "x")
    assert evicted == [*reversed(other), *reversed(pinned)]
    assert pool.num_pinned == 0


def test_no_more_than_half_of_the_pool_can_be_pinned() -> None:
    pool = BlockPool(7)
    assert pool.pin(cached(pool, 5)) == 3
    assert pool.num_pinned == 3


def test_a_block_pinned_twice_stays_pinned_until_both_pins_are_gone() -> None:
    pool = BlockPool(4)
    table = cached(pool, 2)
    pool.pin(table)
    pool.pin(table[:1])
    pool.unpin(table)
    assert pool.pinned() == table[:1]
    pool.unpin(table[:1])
    assert pool.pinned() == []
    pool.check_integrity()


def test_a_longer_pin_over_a_shorter_one_keeps_tail_before_head() -> None:
    evicted: list[int] = []
    pool = BlockPool(6, evicted.append)
    table = cached(pool, 3)
    pool.pin(table[:1])
    pool.pin(table)
    pool.allocate(6, "x")
    assert evicted == [*reversed(table)]


def test_counts_per_tenant_follow_the_blocks_content() -> None:
    pool = BlockPool(4)
    cached(pool, 2, "a")
    table = pool.allocate(2, "b")
    assert pool.blocks_of == {"a": 2, "b": 2}
    pool.allocate(2, "c")
    pool.release(table)
    assert pool.blocks_of == {"c": 2}


def test_releasing_more_often_than_acquired_is_an_error() -> None:
    pool = BlockPool(2)
    table = pool.allocate(1, "a")
    pool.release(table)
    with pytest.raises(AssertionError, match="released more often"):
        pool.release(table)


def test_the_audit_notices_what_does_not_add_up() -> None:
    pool = BlockPool(4)
    table = pool.allocate(2, "a")
    pool.check_integrity()
    pool.refs[table[0]] = 0
    with pytest.raises(AssertionError, match="!= 4 blocks"):
        pool.check_integrity()
