"""Slots in host memory for blocks that had to leave the pool: to come back by a copy instead of being computed again.

Owns which slot holds whose block, and which goes first when all are taken: of the tenant that holds most for its
weight, the one that came first. A block leaves the pool only after those that build on it, so within a tenant the
slots go tail before head as well. Slots are numbered on from the pool's blocks, so that a copy is a pair of numbers
wherever it goes. It does not know what lies in a slot; the prefix cache does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from engine.block_pool import NEVER


class HostPool:
    """Slots first .. first + size - 1. `weight`: tenants' shares, 1 for those without an entry. `touched`: who follows
    the slots finds there which have been taken, cleared or handed over, and empties it.
    """

    def __init__(self, size: int, first: int, weight: Mapping[str, float], touched: set[int] | None = None) -> None:
        self.size = size
        self.first = first
        self.touched = set() if touched is None else touched
        self.loaded = 0
        """Blocks that went back to the pool."""
        self._weight = weight
        self._free = list(range(first + size - 1, first - 1, -1))
        self._held: dict[str, OrderedDict[int, None]] = {}  # the first to come first; a tenant without any has no entry
        self._owner: dict[int, str] = {}
        self._used_at: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._owner)

    @property
    def is_full(self) -> bool:
        return not self._free

    def next_to_go(self) -> int | None:
        """The slot to be cleared when one is needed; None when there is none that can be."""
        if not self._held:
            return None
        tenant = max(self._held, key=lambda name: len(self._held[name]) / self._weight.get(name, 1.0))
        return next(iter(self._held[tenant]))

    def take(self, tenant: str, used_at: float = NEVER) -> int:
        """A free slot, for a block of this tenant, last used then. The caller has seen to it that there is one."""
        slot = self._free.pop()
        self._owner[slot] = tenant
        self._used_at[slot] = used_at
        self.touched.add(slot)
        self._held.setdefault(tenant, OrderedDict())[slot] = None
        return slot

    def is_on_hold(self, slot: int) -> bool:
        return slot not in self._held.get(self._owner[slot], ())

    def hold(self, slot: int) -> None:
        """Keep a taken slot from going until it is cleared: it is about to be read."""
        tenant = self._owner[slot]
        mine = self._held[tenant]
        del mine[slot]
        if not mine:
            del self._held[tenant]

    def let_go(self, slot: int) -> None:
        """A held slot may go again, as if it had just come."""
        self._held.setdefault(self._owner[slot], OrderedDict())[slot] = None

    def owner(self, slot: int) -> str:
        return self._owner[slot]

    def used_at(self, slot: int) -> float:
        """When the block in a taken slot was last used, in the pool."""
        return self._used_at[slot]

    def hand_over(self, slot: int, tenant: str) -> None:
        """Another tenant's from now on: one that shares it. It may go again, as if it had just come."""
        if not self.is_on_hold(slot):
            self.hold(slot)
        self._owner[slot] = tenant
        self.touched.add(slot)
        self.let_go(slot)

    def clear(self, slot: int) -> None:
        """The slot holds nothing any more."""
        if not self.is_on_hold(slot):
            self.hold(slot)
        del self._owner[slot], self._used_at[slot]
        self.touched.add(slot)
        self._free.append(slot)

    def check_integrity(self) -> None:
        """Raise AssertionError where the counts contradict each other; nothing may be on hold between two steps."""
        assert len(self._free) + len(self._owner) == self.size, "a slot is neither free nor taken"
        assert not set(self._free) & self._owner.keys(), "a slot is both free and taken"
        held = {slot: tenant for tenant, slots in self._held.items() for slot in slots}
        assert held == self._owner, f"{len(self._owner) - len(held)} slots are on hold"
