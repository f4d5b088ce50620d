"""The physical blocks of the KV pool: reference counts, free list, what may be evicted in which order, pins, counts.

Owns which block is in which state, the forest of findable blocks (a block's KV depends on those before it: its parent),
and the counts per tenant. Promises, after every call:

- every block is in exactly one of: free (reference 0, holds nothing), cached (reference 0, findable, reusable),
  used (reference >= 1); free + cached + used == total;
- only leaves are evicted, so the parent of a findable block is always there;
- who pays for a new block is the tenant that holds most for its weight; of its leaves first those that its next turn
  can do without (`spare`), the longest released first, then the others in the same order. Pinned blocks go last of all;
- no operation depends on the pool's size; an eviction costs O(tenants + log(blocks));
- `touched` has every block of which anything that can be seen has changed since it was last emptied.

It does not know tokens, hashes or sequences: the prefix cache decides which blocks are findable (`keep`) and is told
when one of them is evicted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from enum import IntEnum

PINNABLE = 2
"""At most 1 / PINNABLE of the pool can be pinned: the rest must serve whatever comes."""
NO_PARENT = -1
NEVER = -1.0


class BlockState(IntEnum):
    FREE = 0
    CACHED = 1
    USED = 2


class _Rank(IntEnum):
    """The order in which a tenant's leaves are given up."""

    SPARE = 0
    CACHED = 1
    PINNED = 2


class BlockPool:
    """Blocks 0 .. num_blocks - 1. `on_evict(block)` is called as a cached block loses its content.

    `now`: the time in seconds that its owner keeps, for `lifetime_s` and `used_at` only.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None] | None = None) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {num_blocks}")
        self.num_blocks = num_blocks
        self.on_evict = on_evict
        self.refs: list[int] = [0] * num_blocks
        self.owner: list[str | None] = [None] * num_blocks
        self.blocks_of: dict[str, int] = {}
        """Blocks, used and cached, whose content a tenant paid for; a tenant without any has no entry."""
        self.used_of: dict[str, int] = {}
        """Those of them that are in use."""
        self.weight: dict[str, float] = {}
        """A tenant's share of the pool relative to others; 1 for those without an entry. See `forget_weight`."""
        self._idle: set[str] = set()
        self.kept = bytearray(num_blocks)
        self.filled: list[int] = [0] * num_blocks
        """Tokens that a findable block holds; 0 for others."""
        self.touched: set[int] = set()
        """For who follows the pool: it empties this."""
        self.used_at: list[float] = [NEVER] * num_blocks
        """When a block's references last changed."""
        self.evictions = 0
        self.now = 0.0
        self._lifetimes = 0.0
        self._born: list[float] = [0.0] * num_blocks
        self._num_cached = 0
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the block freed last is the warmest in memory
        self._parent: list[int] = [NO_PARENT] * num_blocks
        self._children: list[int] = [0] * num_blocks
        self._released_at: list[int] = [0] * num_blocks
        self._spare = bytearray(num_blocks)
        self._releases = 0
        # Leaves by tenant as (rank, released at, block). An entry is out of date unless its block's `_queued` is that
        # entry: leaving a heap is then a matter of one assignment.
        self._leaves: dict[str, list[tuple[int, int, int]]] = {}
        self._queued: list[tuple[int, int, int] | None] = [None] * num_blocks
        self._num_leaves: dict[str, int] = {}
        self._pins: dict[int, int] = {}

    # --- counts ---------------------------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return self._num_cached

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    @property
    def num_available(self) -> int:
        """How many blocks `allocate` could hand out now: the free and the cached ones."""
        return len(self._free) + self._num_cached

    @property
    def num_pinned(self) -> int:
        return len(self._pins)

    @property
    def lifetime_s(self) -> float:
        """Mean seconds from a block's allocation to its eviction; 0 before the first one."""
        return self._lifetimes / self.evictions if self.evictions else 0.0

    def state(self, block: int) -> BlockState:
        if self.refs[block]:
            return BlockState.USED
        return BlockState.CACHED if self.kept[block] else BlockState.FREE

    def born(self, block: int) -> float:
        """When the block was allocated, by the owner's time."""
        return self._born[block]

    def pinned(self) -> list[int]:
        return list(self._pins)

    def is_pinned(self, block: int) -> bool:
        return block in self._pins

    # --- the life of a block --------------------------------------------------------------------------------------

    def allocate(self, count: int, tenant: str) -> list[int]:
        """`count` blocks with reference 1 and no content: free ones first, then those whose time has come.

        The caller has looked at `num_available`; asking for more is an error of the caller.
        """
        assert count <= self.num_available, f"{count} blocks asked for, {self.num_available} available"
        if count <= len(self._free):
            blocks = [self._free.pop() for _ in range(count)]
        else:
            blocks = self._free[::-1]
            self._free.clear()
            blocks += self._evict(count - len(blocks), tenant, count)
        for block in blocks:
            self.refs[block] = 1
            self.owner[block] = tenant
            self._born[block] = self.used_at[block] = self.now
        self.touched.update(blocks)
        if count:
            _add(self.blocks_of, tenant, count)
            _add(self.used_of, tenant, count)
        return blocks

    def acquire(self, blocks: Sequence[int]) -> None:
        """One more reference on each block; all hold content, used or cached. No allocation can take them now."""
        for block in blocks:
            if self.refs[block] == 0:
                assert self.kept[block], f"block {block} is free, its content is gone"
                self._num_cached -= 1
                _add(self.used_of, self._owner(block), 1)
                self._unqueue(block)
            self.refs[block] += 1
            self.used_at[block] = self.now
        self.touched.update(blocks)

    def release(self, blocks: Sequence[int], spare: int = 0) -> None:
        """One reference less on each block of a table given from head to tail; the last one makes it cached or free.

        Of the last `spare` blocks the tenant can do without the content at its next turn.
        """
        self._releases += 1
        self.touched.update(blocks)
        for index in range(len(blocks) - 1, -1, -1):
            block = blocks[index]
            assert self.refs[block] > 0, f"block {block} released more often than acquired"
            self.refs[block] -= 1
            self.used_at[block] = self.now
            if self.refs[block]:
                continue
            _add(self.used_of, self._owner(block), -1)
            if not self.kept[block]:
                self._set_free(block)
                continue
            self._num_cached += 1
            self._released_at[block] = self._releases
            self._spare[block] = index >= len(blocks) - spare
            self._queue(block)

    def keep(self, block: int, parent: int = NO_PARENT, filled: int = 0) -> None:
        """The used `block` became findable, `filled` tokens of it, behind the findable `parent`.

        At reference 0 its content stays until room is needed.
        """
        assert self.refs[block] > 0, f"block {block} is not in use"
        assert not self.kept[block], f"block {block} is findable already"
        assert parent == NO_PARENT or self.refs[parent], f"block {block} is in use, and its parent {parent} is not"
        self.kept[block] = 1
        self.filled[block] = filled
        self.touched.add(block)
        self._parent[block] = parent
        if parent != NO_PARENT:
            assert self.kept[parent], f"the parent of block {block}, {parent}, is not findable"
            self._children[parent] += 1
            self._unqueue(parent)

    def drop(self, block: int) -> None:
        """A findable leaf is findable no longer; without references it is free at once. Its pins are off."""
        self._forget(block)
        if self.refs[block] == 0:
            self._num_cached -= 1
            self._set_free(block)

    def _forget(self, block: int) -> None:
        assert self.kept[block], f"block {block} is not findable"
        assert not self._children[block], f"block {block} is no findable leaf"
        self._unqueue(block)
        self.touched.add(block)
        self.kept[block] = 0
        self.filled[block] = 0
        self._pins.pop(block, None)
        parent = self._parent[block]
        if parent != NO_PARENT:
            self._parent[block] = NO_PARENT
            self._children[parent] -= 1
            self._queue(parent)

    def _set_free(self, block: int) -> None:
        self._disown(block)
        self._free.append(block)

    def _disown(self, block: int) -> None:
        tenant = self._owner(block)
        _add(self.blocks_of, tenant, -1)
        self.owner[block] = None
        if tenant in self._idle and tenant not in self.blocks_of:
            self._idle.discard(tenant)
            self.weight.pop(tenant, None)

    def hand_over(self, block: int, tenant: str) -> None:
        """Another tenant pays for a block from now on: one that shares it."""
        former = self._owner(block)
        queued = self._queued[block] is not None
        self.touched.add(block)
        self._unqueue(block)
        if self.refs[block]:
            _add(self.used_of, former, -1)
            _add(self.used_of, tenant, 1)
        self._disown(block)
        self.owner[block] = tenant
        _add(self.blocks_of, tenant, 1)
        if queued:
            self._queue(block)

    def set_weight(self, tenant: str, weight: float) -> None:
        self._idle.discard(tenant)
        self.weight[tenant] = weight

    def forget_weight(self, tenant: str) -> None:
        """The tenant has nothing to run: its weight counts only for as long as blocks are its own."""
        if tenant in self.blocks_of:
            self._idle.add(tenant)
        else:
            self.weight.pop(tenant, None)

    def _owner(self, block: int) -> str:
        tenant = self.owner[block]
        assert tenant is not None, f"block {block} has no owner"
        return tenant

    # --- eviction -------------------------------------------------------------------------------------------------

    def _evict(self, wanted: int, tenant: str, count: int) -> list[int]:
        """Take the content of `wanted` cached blocks, for `tenant`, which will hold `count` more blocks in all."""
        payers = [payer for name in list(self._leaves) if (payer := self._payer(name, tenant, count)) is not None]
        heapq.heapify(payers)
        blocks: list[int] = []
        while len(blocks) < wanted:
            paying = payers[0][-1]
            now = self._payer(paying, tenant, count)
            if now is None:
                heapq.heappop(payers)
            elif now != payers[0]:
                heapq.heapreplace(payers, now)
            else:
                block = heapq.heappop(self._leaves[paying])[-1]
                parent = self._parent[block]
                self._take_content(block)
                blocks.append(block)
                if parent != NO_PARENT and (owner := self._owner(parent)) != paying:
                    # A leaf of another tenant, perhaps its first; it may stand here twice now, which does no harm.
                    newcomer = self._payer(owner, tenant, count)
                    if newcomer is not None:
                        heapq.heappush(payers, newcomer)
        return blocks

    def _take_content(self, block: int) -> None:
        if self.on_evict is not None:
            self.on_evict(block)
        self._forget(block)
        self._num_cached -= 1
        self._disown(block)
        self.evictions += 1
        self._lifetimes += self.now - self._born[block]

    def _payer(self, name: str, allocating: str, count: int) -> tuple[bool, float, int, str] | None:
        """A tenant's place among those who may pay, the first one least; None if it has no leaf."""
        leaves = self._leaves.get(name, [])
        while leaves and self._queued[leaves[0][-1]] is not leaves[0]:
            heapq.heappop(leaves)
        if not leaves:
            self._leaves.pop(name, None)
            return None
        rank, released_at, _ = leaves[0]
        held = self.blocks_of[name] + (count if name == allocating else 0)
        return rank == _Rank.PINNED, -held / self.weight.get(name, 1.0), released_at, name

    def _queue(self, block: int) -> None:
        """Let a cached block be evicted, if it is a leaf."""
        if self.refs[block] or self._children[block] or not self.kept[block]:
            return
        rank = _Rank.PINNED if block in self._pins else _Rank.SPARE if self._spare[block] else _Rank.CACHED
        entry = (int(rank), self._released_at[block], block)
        tenant = self._owner(block)
        leaves = self._leaves.setdefault(tenant, [])
        if self._queued[block] is None:
            _add(self._num_leaves, tenant, 1)
        self._queued[block] = entry
        heapq.heappush(leaves, entry)
        if len(leaves) > 2 * self._num_leaves[tenant] + 64:
            leaves[:] = [entry for entry in leaves if self._queued[entry[-1]] is entry]
            heapq.heapify(leaves)

    def _unqueue(self, block: int) -> None:
        if self._queued[block] is not None:
            self._queued[block] = None
            _add(self._num_leaves, self._owner(block), -1)

    # --- pins -----------------------------------------------------------------------------------------------------

    def pin(self, blocks: Sequence[int]) -> int:
        """Evict these findable blocks only when nothing else is left; given from head to tail. Pins count.

        At most half of the pool can be pinned; the number of blocks of `blocks` that are pinned now is returned.
        """
        done = 0
        for block in blocks:
            assert self.kept[block], f"block {block} is not findable; only findable blocks can be pinned"
            if block not in self._pins and len(self._pins) >= self.num_blocks // PINNABLE:
                break
            self._pins[block] = self._pins.get(block, 0) + 1
            self.touched.add(block)
            done += 1
            self._queue(block)
        return done

    def unpin(self, blocks: Sequence[int]) -> None:
        """Take one pin off each block. The caller knows that they hold what it pinned."""
        self.touched.update(blocks)
        for block in blocks:
            self._pins[block] -= 1
            if self._pins[block] == 0:
                del self._pins[block]
                self._queue(block)

    # --- audit ----------------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raise AssertionError naming the first block or count that contradicts the promises above.

        A few passes of C speed over the pool, and a loop over the blocks that hold something.
        """
        free = set(self._free)
        assert len(free) == len(self._free), "a block is in the free list twice"
        assert min(self.refs) >= 0, "a reference count is negative"
        used = self.num_blocks - self.refs.count(0)
        assert len(free) + self._num_cached + used == self.num_blocks, (
            f"{len(free)} free + {self._num_cached} cached + {used} used != {self.num_blocks} blocks"
        )
        holding = [block for block, owner in enumerate(self.owner) if owner is not None]
        cached = sum(not self.refs[block] for block in holding)
        assert self._num_cached == cached, f"{self._num_cached} blocks are counted as cached, but {cached} are"
        blocks_of: dict[str, int] = {}
        used_of: dict[str, int] = {}
        leaves: dict[str, int] = {}
        children: dict[int, int] = {}
        for block in holding:
            tenant = self._owner(block)
            _add(blocks_of, tenant, 1)
            if self.refs[block]:
                _add(used_of, tenant, 1)
            else:
                assert self.kept[block], f"block {block} is neither referenced nor findable and not free"
            parent = self._parent[block]
            if parent != NO_PARENT:
                assert self.kept[parent], f"the parent {parent} of block {block} is not findable"
                children[parent] = children.get(parent, 0) + 1
        for block in holding:
            has = children.get(block, 0)
            assert self._children[block] == has, f"block {block} has {has} children, not {self._children[block]}"
            leaf = self.kept[block] and not self.refs[block] and not has
            assert bool(leaf) == (self._queued[block] is not None), f"block {block} and the queue of leaves disagree"
            if leaf:
                _add(leaves, self._owner(block), 1)
        for block in free:
            assert self.owner[block] is None, f"block {block} is free and belongs to {self.owner[block]!r}"
            assert not self.refs[block], f"block {block} is free and referenced"
            assert not self.kept[block], f"block {block} is free and findable"
        for counted, found in (
            (self.blocks_of, blocks_of),
            (self.used_of, used_of),
            (self._num_leaves, leaves),
        ):
            assert counted == found, f"counts per tenant {counted} are not the blocks' {found}"
        for tenant, count in leaves.items():
            live = sum(self._queued[entry[-1]] is entry for entry in self._leaves.get(tenant, ()))
            assert live == count, f"{live} of {count} leaves of {tenant!r} can be evicted"
        assert all(self.kept[block] for block in self._pins), "a pinned block is not findable"
        most = self.num_blocks // PINNABLE
        assert len(self._pins) <= most, f"{len(self._pins)} blocks are pinned, at most {most} may be"


def _add(counts: dict[str, int], tenant: str, change: int) -> None:
    count = counts.get(tenant, 0) + change
    if count:
        counts[tenant] = count
    else:
        del counts[tenant]
