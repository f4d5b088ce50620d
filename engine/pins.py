"""Prompts whose blocks are evicted last: how the room for them is shared, and how they come back.

Owns which blocks are pinned for whom, by name. Promises: half of the pool at most is pinned; a tenant gets room from
the one that has most, until both have the same; what is not pinned, because it was evicted or had no room, is tried
again with its tenant's next prompt. Evicting a pinned block, when nothing else is left, is the pool's right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.sequence import Sequence

if TYPE_CHECKING:
    from engine.prefix_cache import CachedBlock, PrefixCache


@dataclass(slots=True)
class _Pin:
    """A prompt that stays: its first `upto` tokens, and what of it is pinned now. `lost`: some of it is not."""

    sequence: Sequence
    upto: int
    entries: list[CachedBlock] = field(default_factory=list)
    lost: bool = False


class Pins:
    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._pins: dict[str, _Pin] = {}

    def pin(self, name: str, sequence: Sequence, upto: int) -> int:
        """Pin what is cached of the sequence's first `upto` tokens under `name`, instead of what that name had.

        Returns how many tokens are pinned.
        """
        self.unpin(name)
        pin = self._pins[name] = _Pin(sequence, upto)
        return self._take(pin)

    def unpin(self, name: str) -> None:
        """Take off the pins of `name`. An unknown name is fine."""
        pin = self._pins.pop(name, None)
        if pin is not None:
            self._give(pin.entries)

    def forget(self, tenant: str) -> None:
        """Take off all pins of a tenant's prompts."""
        for name in [name for name, pin in self._pins.items() if pin.sequence.tenant == tenant]:
            self.unpin(name)

    def holders(self) -> Iterator[tuple[str, CachedBlock]]:
        """The pinned blocks, each with a tenant whose prompt it belongs to."""
        for pin in self._pins.values():
            for entry in pin.entries:
                yield pin.sequence.tenant, entry

    def sequence(self, name: str) -> Sequence | None:
        """The prompt that has this name, whether or not all of it is pinned now."""
        pin = self._pins.get(name)
        return pin.sequence if pin is not None else None

    def restore(self, tenant: str) -> None:
        """Pin what is not pinned of a tenant's prompts, where it is cached by now and there is room."""
        for pin in self._pins.values():
            if pin.lost and pin.sequence.tenant == tenant:
                self._give(pin.entries)
                pin.entries = []
                self._take(pin)

    def leave(self, entry: CachedBlock) -> None:
        """The block is about to be evicted or forgotten."""
        if self._cache.pool.is_pinned(entry.block):
            for pin in self._pins.values():
                if entry in pin.entries:
                    pin.entries.remove(entry)
                    pin.lost = True

    def _take(self, pin: _Pin) -> int:
        """Pin as much of the prompt as can be; how many tokens that is."""
        match = self._cache.match_first(pin.sequence, pin.upto)
        found = list(match.entries)
        if match.source is not None and match.tokens == pin.upto:
            found.append(match.source)
        pin.lost = True
        tokens = 0
        for entry in found:
            if self._cache.on_host(entry):
                return tokens
            while not self._cache.pool.pin([entry.block]):
                if not self._take_one_from_the_richest(pin.sequence.tenant):
                    return tokens
            pin.entries.append(entry)
            tokens = min(tokens + self._cache.block_size, pin.upto)
        pin.lost = tokens < pin.upto
        return tokens

    def _take_one_from_the_richest(self, tenant: str) -> bool:
        """Take one pin from the tenant that has most, unless that is hardly more than `tenant` has."""
        held = Counter[str]()
        for pin in self._pins.values():
            held[pin.sequence.tenant] += len(pin.entries)
        richest, most = max(held.items(), key=lambda item: item[1])
        if most <= held[tenant] + 1:
            return False
        largest = max((p for p in self._pins.values() if p.sequence.tenant == richest), key=lambda p: len(p.entries))
        self._give([largest.entries.pop()])
        largest.lost = True
        return True

    def _give(self, entries: list[CachedBlock]) -> None:
        self._cache.pool.unpin([entry.block for entry in entries])
