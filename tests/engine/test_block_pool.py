"""The block pool against a model of it that is too simple to be wrong, and its few rules one by one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.block_pool import NO_PARENT, BlockPool, BlockState

TENANTS = ("a", "b", "c")


class PoolMachine(RuleBasedStateMachine):
    """Tables are allocated, shared, kept and released at random; the model is a counter and a few sets.

    A table's findable blocks are a chain from its start, as in the prefix cache.
    """

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[int] = []
        self.pool = BlockPool(12, self.evict)
        self.pool.weight["c"] = 3.0
        self.tables: list[list[int]] = []
        self.parent: dict[int, int] = {}  # of the findable blocks
        self.owner: dict[int, str] = {}
        self.pins: list[list[int]] = []

    @property
    def kept(self) -> set[int]:
        return set(self.parent)

    def evict(self, block: int) -> None:
        """Everything is as it was before this block was given up, so here is the place to judge the choice."""
        held = {other for table in self.tables for other in table}
        assert block not in held, "an evicted block was in use"
        assert block not in self.parent.values(), "an evicted block had findable children"
        pinned = self.pool.pinned()
        leaves = self.kept - held - set(self.parent.values())
        if block in pinned:
            assert leaves <= set(pinned), "a pinned block went before an unpinned one"
        else:
            # After the allocation under way its tenant holds all of it.
            holds = {
                tenant: (count + (self.wanted if tenant == self.allocating else 0)) / (3.0 if tenant == "c" else 1.0)
                for tenant, count in self.pool.blocks_of.items()
            }
            others = {self.owner[leaf] for leaf in leaves - set(pinned)}
            assert holds[self.owner[block]] == max(holds[tenant] for tenant in others), "another one held more"
        del self.parent[block]
        self.evicted.append(block)

    def chain(self, block: int) -> list[int]:
        """A findable block with all that it builds on, head first."""
        table: list[int] = []
        while block != NO_PARENT:
            table.insert(0, block)
            block = self.parent[block]
        return table

    @rule(count=st.integers(0, 6), tenant=st.sampled_from(TENANTS))
    def allocate(self, count: int, tenant: str) -> None:
        if count > self.pool.num_available:
            return
        free, held = self.pool.num_free, {block for table in self.tables for block in table}
        self.evicted.clear()
        self.allocating, self.wanted = tenant, count
        table = self.pool.allocate(count, tenant)
        assert len(set(table)) == count
        assert not set(table) & held
        assert len(self.evicted) == max(0, count - free), "cached blocks go only when no free one is left"
        # As in the prefix cache, a pin's blocks that lost their content are no longer its own.
        self.pins = [[block for block in blocks if block not in self.evicted] for blocks in self.pins]
        self.owner.update(dict.fromkeys(table, tenant))
        self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), spare=st.integers(0, 3))
    def release(self, data: st.DataObject, spare: int) -> None:
        self.pool.release(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))), spare)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), count=st.integers(0, 6), under=st.integers(-1, 11))
    def keep(self, data: st.DataObject, count: int, under: int) -> None:
        table = data.draw(st.sampled_from(self.tables))
        chain = self.chain(under) if under in self.parent else []
        if table and table[0] not in self.parent and not set(chain) & set(table):
            # What a table builds on is in the table: so a used block's parents are used.
            self.pool.acquire(chain)
            table[:0] = chain
        parent = NO_PARENT
        for block in table[:count]:
            if block not in self.parent:
                self.pool.keep(block, parent, 1)
                self.parent[block] = parent
            parent = block

    @precondition(lambda self: self.parent)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        leaves = sorted(self.kept - set(self.parent.values()))
        block = data.draw(st.sampled_from(leaves))
        self.pool.drop(block)
        del self.parent[block]
        self.pins = [[other for other in blocks if other != block] for blocks in self.pins]

    @precondition(lambda self: self.parent)
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        table = self.chain(data.draw(st.sampled_from(sorted(self.parent))))
        self.pool.acquire(table)
        self.tables.append(table)

    @precondition(lambda self: self.parent)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(sorted(self.parent)), unique=True))
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
        assert self.pool.used_of == Counter(self.owner[block] for block in held)
        assert self.pool.blocks_of == Counter(self.owner[block] for block in held.keys() | self.kept)
        assert set(self.pool.pinned()) == {block for blocks in self.pins for block in blocks}
        self.pool.check_integrity()


PoolMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_pool_agrees_with_its_model_in_any_order_of_calls = PoolMachine.TestCase


def cached(pool: BlockPool, count: int, tenant: str = "t", spare: int = 0) -> list[int]:
    """A released table of findable blocks, head first."""
    table = pool.allocate(count, tenant)
    for parent, block in zip([NO_PARENT, *table], table, strict=False):
        pool.keep(block, parent, 16)
    pool.release(table, spare)
    return table


def test_tail_is_evicted_before_head_and_old_before_new() -> None:
    evicted: list[int] = []
    pool = BlockPool(6, evicted.append)
    old, new = cached(pool, 3), cached(pool, 3)
    pool.allocate(6, "other")
    assert evicted == [*reversed(old), *reversed(new)]


def test_who_holds_most_for_its_weight_pays_however_recently_it_was_there() -> None:
    evicted: list[int] = []
    pool = BlockPool(8, evicted.append)
    pool.weight["heavy"] = 4.0
    heavy, small, large = cached(pool, 4, "heavy"), cached(pool, 1, "small"), cached(pool, 3, "large")
    table = pool.allocate(2, "new")
    assert evicted == [large[2], large[1]]
    pool.release(table)
    pool.allocate(2, "new")
    assert evicted == [large[2], large[1]], "free blocks come first"
    pool.allocate(2, "newer")
    # large holds 1, small holds 1, heavy 4 / 4: the same for all, and the longest released goes first.
    assert evicted[2] == heavy[3]
    assert small[0] in evicted[3:] or large[0] in evicted[3:]


def test_a_flood_takes_from_itself_and_not_from_a_tenant_that_holds_little() -> None:
    pool = BlockPool(16)
    quiet = cached(pool, 4, "quiet")
    for _ in range(50):
        cached(pool, 6, "flood")
    assert all(pool.state(block) == BlockState.CACHED for block in quiet)
    assert pool.blocks_of == {"quiet": 4, "flood": 12}


def test_what_the_next_turn_can_do_without_goes_before_older_heads() -> None:
    """T-LRU: the last two blocks of each conversation are spare; they go first, those of the oldest before all."""
    evicted: list[int] = []
    pool = BlockPool(8, evicted.append)
    old, new = cached(pool, 4, spare=2), cached(pool, 4, spare=2)
    pool.allocate(6, "t")
    assert evicted == [old[3], old[2], new[3], new[2], old[1], old[0]]


def test_a_shared_head_is_not_evicted_before_what_builds_on_it() -> None:
    """The conversation released last shares its head with one released before: the head outlives both tails."""
    evicted: list[int] = []
    pool = BlockPool(6, evicted.append)
    head = pool.allocate(2, "t")
    for parent, block in zip([NO_PARENT, *head], head, strict=False):
        pool.keep(block, parent, 16)
    tails = []
    for spare in (0, 4):
        tail = pool.allocate(2, "t")
        pool.acquire(head)
        for parent, block in zip([head[-1], *tail], tail, strict=False):
            pool.keep(block, parent, 16)
        pool.release(head + tail, spare)
        tails.append(tail)
    pool.release(head)
    pool.allocate(6, "t")
    assert set(evicted[:4]) == {*tails[0], *tails[1]}
    assert evicted[4:] == [head[1], head[0]]


def test_dropping_a_block_that_others_build_on_is_an_error() -> None:
    pool = BlockPool(4)
    table = cached(pool, 2)
    with pytest.raises(AssertionError, match="no findable leaf"):
        pool.drop(table[0])


def test_a_blocks_lifetime_is_the_time_from_its_allocation_to_its_eviction() -> None:
    pool = BlockPool(2)
    pool.now = 10.0
    cached(pool, 2)
    pool.now = 14.0
    pool.allocate(1, "t")
    pool.now = 18.0
    pool.allocate(1, "t")
    assert pool.lifetime_s == 6.0


def test_a_weight_is_remembered_for_as_long_as_its_tenant_runs_or_holds_something() -> None:
    pool = BlockPool(4)
    pool.set_weight("a", 2.0)
    table = cached(pool, 2, "a")
    pool.forget_weight("a")
    assert pool.weight == {"a": 2.0}
    pool.acquire(table)
    pool.set_weight("a", 3.0)
    pool.release(table)
    pool.allocate(4, "b")
    assert pool.weight == {"a": 3.0}, "it has something to run"
    pool.forget_weight("a")
    assert pool.weight == {}


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
