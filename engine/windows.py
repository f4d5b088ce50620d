"""Blocks behind the sliding window of a running sequence: no layer reads them again, so they can be given back.

Only where every layer of the model has a window. They stay until somebody needs the room: as long as they are there the
prefix cache finds them, and all that builds on them. What is given back has left the cache before, and with it what
builds on it; blocks that others hold too, or that are pinned, stay where they are. It knows neither queues nor tenants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.block_pool import BlockPool
from engine.prefix_cache import PrefixCache
from engine.sequence import GONE, Sequence

NOTHING: Mapping[Sequence, int] = {}


class Windows:
    """`window`: tokens that the layer which sees most sees, itself included. `budget`: tokens of a step at most."""

    def __init__(self, pool: BlockPool, cache: PrefixCache, *, block_size: int, window: int, budget: int) -> None:
        self.pool = pool
        self.cache = cache
        self.block_size = block_size
        self.window = window
        self.span = self.span_of(window, budget, block_size)

    @staticmethod
    def span_of(window: int, budget: int, block_size: int) -> int:
        """Blocks with which a sequence of any length can go on by itself: its window, a step, and the edges of both."""
        return -(-(window + budget) // block_size) + 2

    def give_back(self, sequences: Iterable[Sequence], wanted: int, behind: Mapping[Sequence, int] = NOTHING) -> bool:
        """Free blocks of these running sequences until `wanted` are available or none is left; whether any was.

        `behind`: the tokens of each in the step in flight. What only these look at can go: whoever gets it writes to it
        later.
        """
        found = False
        for sequence in sequences:
            if self.pool.num_available >= wanted:
                break
            found = self._give_back(sequence, behind.get(sequence, 0)) or found
        return found

    def _give_back(self, sequence: Sequence, in_flight: int) -> bool:
        # The next token scheduled sees from here on.
        behind = max(0, sequence.num_computed + in_flight - self.window + 1) // self.block_size
        if behind <= sequence.num_behind:
            return False
        table, pool = sequence.block_table, self.pool
        places = [
            place
            for place in range(behind)
            if (block := table[place]) != GONE and pool.refs[block] == 1 and not pool.is_pinned(block)
        ]
        if not places:
            return False
        blocks = [table[place] for place in places]
        # Nobody else holds what builds on the first of them, so nobody's blocks lose their parents.
        self.cache.distrust(blocks[:1], (sequence,))
        pool.release(blocks)
        for place in places:
            table[place] = GONE
        sequence.num_told = min(sequence.num_told, places[0])
        sequence.num_behind = behind
        return True
