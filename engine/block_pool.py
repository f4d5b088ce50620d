"""The physical blocks of the KV pool: reference counts, free list, LRU of reusable blocks, pins, counts per tenant.

Owns which block is in which state, and the counts. Promises, after every call:

- every block is in exactly one of: free (reference 0, holds nothing), cached (reference 0, findable, reusable),
  used (reference >= 1); free + cached + used == total;
- every operation is O(1) per block, whatever the pool's size;
- of the cached blocks of one sequence the tail is evicted before the head, so that a findable block's parent is
  always still there: `release` goes from tail to head, and `allocate` evicts the least recently released first.

It does not know tokens, hashes or sequences: the prefix cache decides which blocks are findable (`keep`) and is told
when one of them is evicted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import IntEnum


class BlockState(IntEnum):
    FREE = 0
    CACHED = 1
    USED = 2


class BlockPool:
    """Blocks 0 .. num_blocks - 1. `on_evict(block)` is called as a cached block loses its content."""

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None] | None = None) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {num_blocks}")
        self.num_blocks = num_blocks
        self.on_evict = on_evict
        self.refs: list[int] = [0] * num_blocks
        self.owner: list[str | None] = [None] * num_blocks
        self.blocks_of: dict[str, int] = {}
        """Blocks, used and cached, whose content a tenant paid for; a tenant without any has no entry."""
        self.evictions = 0
        self.kept = bytearray(num_blocks)
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the block freed last is the warmest in memory
        self._cached: OrderedDict[int, None] = OrderedDict()  # the least recently released first
        self._cached_pinned: OrderedDict[int, None] = OrderedDict()
        self._pins: dict[int, int] = {}

    # --- counts ---------------------------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached) + len(self._cached_pinned)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    @property
    def num_available(self) -> int:
        """How many blocks `allocate` could hand out now: the free and the cached ones."""
        return len(self._free) + len(self._cached) + len(self._cached_pinned)

    @property
    def num_pinned(self) -> int:
        return len(self._pins)

    def state(self, block: int) -> BlockState:
        if self.refs[block]:
            return BlockState.USED
        return BlockState.CACHED if self.kept[block] else BlockState.FREE

    def pinned(self) -> list[int]:
        return list(self._pins)

    # --- the life of a block --------------------------------------------------------------------------------------

    def allocate(self, count: int, tenant: str) -> list[int]:
        """`count` blocks with reference 1 and no content: free ones first, then the least recently used cached ones.

        The caller has looked at `num_available`; asking for more is an error of the caller.
        """
        assert count <= self.num_available, f"{count} blocks asked for, {self.num_available} available"
        blocks = []
        for _ in range(count):
            block = self._free.pop() if self._free else self._evict()
            self.refs[block] = 1
            self.owner[block] = tenant
            blocks.append(block)
        if count:
            self.blocks_of[tenant] = self.blocks_of.get(tenant, 0) + count
        return blocks

    def acquire(self, blocks: Sequence[int]) -> None:
        """One more reference on each block; all hold content, used or cached. No allocation can take them now."""
        for block in blocks:
            if self.refs[block] == 0:
                assert self.kept[block], f"block {block} is free, its content is gone"
                del (self._cached_pinned if block in self._pins else self._cached)[block]
            self.refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One reference less on each block of a table given from head to tail; the last one makes it cached or free."""
        for block in reversed(blocks):
            assert self.refs[block] > 0, f"block {block} released more often than acquired"
            self.refs[block] -= 1
            if self.refs[block]:
                continue
            if not self.kept[block]:
                self._disown(block)
                self._free.append(block)
            elif block in self._pins:
                self._cached_pinned[block] = None
            else:
                self._cached[block] = None

    def keep(self, block: int) -> None:
        """The used `block` became findable: at reference 0 its content stays until room is needed."""
        assert self.refs[block] > 0, f"block {block} is not in use"
        self.kept[block] = 1

    def drop(self, block: int) -> None:
        """A findable block is findable no longer; without references it is free at once. Its pins are off."""
        self.kept[block] = 0
        pinned = self._pins.pop(block, 0)
        if self.refs[block] == 0:
            del (self._cached_pinned if pinned else self._cached)[block]
            self._disown(block)
            self._free.append(block)

    def _evict(self) -> int:
        if self._cached:
            block, _ = self._cached.popitem(last=False)
        else:  # pins hold only as long as somebody else's blocks can go: a full pool must still make progress
            block, _ = self._cached_pinned.popitem(last=False)
            del self._pins[block]
        if self.on_evict is not None:
            self.on_evict(block)
        self.kept[block] = 0
        self._disown(block)
        self.evictions += 1
        return block

    def _disown(self, block: int) -> None:
        tenant = self.owner[block]
        assert tenant is not None, f"block {block} has no owner"
        self.owner[block] = None
        left = self.blocks_of[tenant] - 1
        if left:
            self.blocks_of[tenant] = left
        else:
            del self.blocks_of[tenant]

    # --- pins -----------------------------------------------------------------------------------------------------

    def pin(self, blocks: Sequence[int]) -> int:
        """Evict these findable blocks only when nothing else is left; given from head to tail. Pins count.

        At most half of the pool can be pinned; the number of blocks of `blocks` that are pinned now is returned.
        """
        done = 0
        for block in blocks:
            assert self.kept[block], f"block {block} is not findable; only findable blocks can be pinned"
            if block not in self._pins and len(self._pins) >= self.num_blocks // 2:
                break
            self._pins[block] = self._pins.get(block, 0) + 1
            done += 1
        for block in reversed(blocks[:done]):  # tail first, as in `release`, for the same order of eviction
            if self.refs[block] == 0:
                self._cached.pop(block, None)
                self._cached_pinned[block] = None
                self._cached_pinned.move_to_end(block)  # it may have been pinned before, alone
        return done

    def unpin(self, blocks: Sequence[int]) -> None:
        """Take one pin off each block, given from head to tail. The caller knows that they hold what it pinned."""
        for block in reversed(blocks):
            self._pins[block] -= 1
            if self._pins[block]:
                continue
            del self._pins[block]
            if self.refs[block] == 0:
                del self._cached_pinned[block]
                self._cached[block] = None

    # --- audit ----------------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raise AssertionError naming the first block or count that contradicts the promises above. O(num_blocks)."""
        free, cached = self._free, [*self._cached, *self._cached_pinned]
        used = sum(1 for refs in self.refs if refs)
        assert min(self.refs) >= 0, "a reference count is negative"
        assert len(free) + len(cached) + used == self.num_blocks, (
            f"{len(free)} free + {len(cached)} cached + {used} used != {self.num_blocks} blocks"
        )
        assert len(set(free)) == len(free), "a block is in the free list twice"
        assert not set(free) & set(cached), "a block is both free and cached"
        for block in free:
            assert self.state(block) == BlockState.FREE, f"free block {block} is referenced or findable"
            assert self.owner[block] is None, f"free block {block} belongs to {self.owner[block]!r}"
        for block in cached:
            assert self.state(block) == BlockState.CACHED, f"cached block {block} is referenced or not findable"
        for block in self._pins:
            assert self.kept[block], f"pinned block {block} is not findable"
            assert block not in self._cached, f"pinned block {block} waits among the unpinned"
        assert all(block in self._pins for block in self._cached_pinned), "an unpinned block waits among the pinned"
        assert len(self._pins) <= self.num_blocks // 2, f"{len(self._pins)} blocks pinned, over half of the pool"
        counts: dict[str, int] = {}
        for tenant in self.owner:
            if tenant is not None:
                counts[tenant] = counts.get(tenant, 0) + 1
        assert counts == self.blocks_of, f"counts per tenant {self.blocks_of} are not the owners' {counts}"
        assert sum(counts.values()) == used + len(cached), "a used or cached block has no owner"
