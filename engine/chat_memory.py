"""Which blocks a chat has in memory, for whoever looks at it: those that it runs with, else those that its next turn
would find.

Owns what is remembered of chats whose turn has ended: the tokens whose KV was computed, a bounded number of them, so
that the prefix cache can be asked. Promises:

- nothing is done for a chat that nobody looks at, but to copy its token ids when a turn ends;
- a look changes nothing: no reference is taken, no order of eviction touched;
- a chat is found by its tenant and its name together, and only chats of the same tenant are counted as sharing a
  block: neither another tenant's chats nor what they use can be seen in what is said;
- what an idle chat is said to have is what the prefix cache would give its next turn, to the token.

Knows neither text nor Redis. Requests without the name of a chat leave no trace here.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from engine.block_pool import BlockPool
from engine.regions import PUBLIC_SALT, Region
from engine.sampling_params import SamplingParams
from engine.sequence import GONE, Sequence

if TYPE_CHECKING:
    from engine.prefix_cache import CachedBlock, PrefixCache
    from engine.scheduler import Scheduler

MOST_CHATS = 1024
MOST_TOKENS = 2_000_000
"""Of all chats together: 8 MB. Those that ended their last turn longest ago are forgotten first."""
SINCE_S = 5
"""Since when a block is held is told in steps of so many seconds: neighbours are alike then, and told as one run."""

PLATFORM, TEAM, KEPT, OWN, LOST = "platform", "team", "kept", "own", "lost"
"""What a block holds: the platform's preamble; the team's prompt; of the chat's own what was there before this turn,
what this turn adds, and what an idle chat had and has no more."""


@dataclass(slots=True)
class _Chain:
    """Tokens with their salts, and what of them was found in the cache at the last look."""

    tenant: str
    tokens: array[int]
    ends: list[int]
    salts: list[str]
    own: CachedBlock | None = None
    """The first block with something of the chat's own: while it can be found, so can all that come before it."""
    entries: list[CachedBlock] = field(default_factory=list)
    found: int = 0
    """Tokens."""
    lost_at: float = 0.0

    @property
    def private_from(self) -> int:
        return self.ends[-2] if len(self.ends) > 1 else 0

    def sequence(self) -> Sequence:
        regions = [Region(end, salt) for end, salt in zip(self.ends, self.salts, strict=True)]
        return Sequence("", self.tokens, SamplingParams(), tenant=self.tenant, regions=regions)


class ChatMemory:
    """`block_bytes`: what a block takes. `epoch_s`: what to add to the pool's time to get seconds of the Unix epoch."""

    def __init__(
        self, pool: BlockPool, cache: PrefixCache, scheduler: Scheduler, *, block_bytes: int, epoch_s: float
    ) -> None:
        self._pool = pool
        self._cache = cache
        self._scheduler = scheduler
        self._block_bytes = block_bytes
        self._epoch_s = epoch_s
        self._chats: OrderedDict[tuple[str, str], _Chain] = OrderedDict()
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._chats)

    # --- what is remembered ---------------------------------------------------------------------------------------

    def leaving(self, sequence: Sequence) -> tuple[int, int] | None:
        """What `left` needs to know of a sequence that is about to give its blocks back; None: it is no chat's, or has
        computed nothing of the chat's own."""
        own_from, place = sequence.private_from, sequence.private_from // self._cache.block_size
        if not sequence.conversation or sequence.index or sequence.num_computed <= own_from:
            return None
        return sequence.num_computed, sequence.block_table[place]

    def left(self, sequence: Sequence, computed: int, own_block: int) -> None:
        """It has given its blocks back: remember the chat by what was computed of it."""
        key = sequence.tenant, sequence.conversation
        self._forget(key)
        chain = self._chats[key] = _chain(sequence, computed)
        chain.own = self._cache.entry_of(own_block)
        self._tokens += computed
        while len(self._chats) > MOST_CHATS or (self._tokens > MOST_TOKENS and len(self._chats) > 1):
            self._forget(next(iter(self._chats)))

    def forget_tenant(self, tenant: str) -> None:
        for key in [key for key in self._chats if key[0] == tenant]:
            self._forget(key)

    def _forget(self, key: tuple[str, str]) -> None:
        chain = self._chats.pop(key, None)
        if chain is not None:
            self._tokens -= len(chain.tokens)

    # --- looking --------------------------------------------------------------------------------------------------

    def look(self, tenant: str, conversation: str, prompt: str) -> dict[str, Any]:
        """The fields of `protocol.Memory`, but for the worker's name and the time; `request_id` in place of `response`.

        `prompt`: the name of the published prompt that stands before the chat's next turn. A chat that is not known
        here has what that prompt has.
        """
        sequence = self._running(tenant, conversation)
        if sequence is not None:
            return self._answering(sequence)
        published = self._published(tenant, prompt)
        chain = self._chats.get((tenant, conversation))
        if chain is None:
            return self._resting(conversation, published, "new")
        told = self._resting(conversation, chain, "idle")
        # A newer version of the prompt was published since: the next turn begins with that, and finds none of this.
        told["outdated"] = published is not None and not _begins(chain, published)
        return told

    def _running(self, tenant: str, conversation: str) -> Sequence | None:
        if not conversation:
            return None
        running = self._scheduler.running_of(tenant)
        return next((s for s in running if s.conversation == conversation and not s.index), None)

    def _published(self, tenant: str, prompt: str) -> _Chain | None:
        pinned = self._cache.pins.sequence(prompt)
        if pinned is None or pinned.tenant != tenant:
            return None
        return _chain(pinned, pinned.num_tokens)

    def _answering(self, sequence: Sequence) -> dict[str, Any]:
        size = self._cache.block_size
        sharing = self._sharing(sequence.tenant, sequence.conversation)
        before = sequence.num_cached // size
        kinds = _kinds(sequence.region_ends, sequence.region_salts, size)
        cells = []
        for place, block in enumerate(sequence.block_table):
            kind = next(kinds)
            cells.append(self._cell(block, kind or (KEPT if place < before else OWN), sharing))
        return self._told(
            state="answering",
            cells=cells,
            tokens=sequence.num_computed,
            length=sequence.num_tokens,
            cached=sequence.num_cached,
            request_id=sequence.request_id,
        )

    def _resting(self, conversation: str, chain: _Chain | None, state: str) -> dict[str, Any]:
        if chain is None:
            return self._told(state=state, cells=[], tokens=0, length=0)
        before = len(chain.entries)
        self._find(chain)
        size = self._cache.block_size
        sharing = self._sharing(chain.tenant, conversation)
        kinds = _kinds(chain.ends, chain.salts, size)
        rest = TEAM if state == "new" else KEPT
        cells = [self._cell(entry.block, next(kinds) or rest, sharing) for entry in chain.entries]
        total = -(-len(chain.tokens) // size)
        cells += [(LOST, 0, False, False, 0)] * (total - len(cells))
        if len(chain.entries) == total:
            chain.lost_at = 0.0
        elif len(chain.entries) < before:
            chain.lost_at = self._pool.now
        told = self._told(state=state, cells=cells, tokens=chain.found, length=len(chain.tokens))
        told["lost_at"] = int(chain.lost_at + self._epoch_s) if chain.lost_at else 0
        return told

    def _find(self, chain: _Chain) -> None:
        """Ask the cache, unless all of it was there and is there still."""
        if chain.found == len(chain.tokens) and chain.entries and self._is_there(chain.entries[-1]):
            return
        match = self._cache.match_first(chain.sequence(), len(chain.tokens))
        chain.entries, chain.found = match.entries, match.tokens
        source = match.source
        # What can be copied out of another chat's block is found, but is no block of this one.
        if source is not None and (match.tokens > chain.private_from or match.tokens == len(chain.tokens)):
            chain.entries = [*match.entries, source]

    def _is_there(self, entry: CachedBlock) -> bool:
        return self._cache.entry_of(entry.block) is entry

    # --- what is said of a block ----------------------------------------------------------------------------------

    def _cell(self, block: int, kind: str, sharing: Counter[int]) -> tuple[str, int, bool, bool, int]:
        """(kind, other chats that hold it, pinned, on the host, since when)."""
        if block == GONE:
            return LOST, 0, False, False, 0
        if block >= self._pool.num_blocks:
            return kind, sharing[block], False, True, 0
        since = int(self._pool.born(block) + self._epoch_s) // SINCE_S * SINCE_S
        return kind, sharing[block], self._pool.is_pinned(block), False, since

    def _told(self, *, cells: list[tuple[str, int, bool, bool, int]], **fields: Any) -> dict[str, Any]:
        runs = [(*cell, len(list(same))) for cell, same in groupby(cells)]
        return {"block_size": self._cache.block_size, "block_bytes": self._block_bytes, "runs": runs, **fields}

    def _sharing(self, tenant: str, conversation: str) -> Counter[int]:
        """For each block how many other chats of the tenant hold it now.

        Blocks that can be shared form a tree, and who holds one holds all before it: so it is enough to know the last
        one that each chat shares, and to walk from there once for all that have it in common.
        """
        last: Counter[CachedBlock] = Counter()
        seen = {conversation}
        for sequence in self._scheduler.running_of(tenant):
            if sequence.conversation and sequence.conversation not in seen:
                seen.add(sequence.conversation)
                shared = min(sequence.private_from // self._cache.block_size, sequence.num_hashed)
                if shared and (entry := self._cache.entry_of(sequence.block_table[shared - 1])) is not None:
                    last[entry] += 1
        for (owner, name), chain in self._chats.items():
            if owner == tenant and name not in seen and (own := chain.own) is not None and own.parent is not None:
                if self._is_there(own):
                    last[own.parent] += 1
                else:
                    chain.own = None
        sharing = Counter[int]()
        for entry, chats in last.items():
            at: CachedBlock | None = entry
            while at is not None:
                sharing[at.block] += chats
                at = at.parent
        return sharing


def _chain(sequence: Sequence, upto: int) -> _Chain:
    """A sequence's first `upto` tokens, some of its last region's among them."""
    ends = [*sequence.region_ends[:-1], upto]
    return _Chain(sequence.tenant, array("i", sequence.token_ids[:upto]), ends, sequence.region_salts)


def _kinds(ends: list[int], salts: list[str], size: int) -> Iterator[str | None]:
    """What each block of a prompt is, in order: the platform's, the team's; None: the chat's own, to the last."""
    private_from = ends[-2] if len(ends) > 1 else 0
    public = next((0 if place == 0 else ends[place - 1] for place, salt in enumerate(salts) if salt != PUBLIC_SALT), 0)
    for place in range(private_from // size):
        yield PLATFORM if (place + 1) * size <= public else TEAM
    while True:
        yield None


def _begins(chain: _Chain, published: _Chain) -> bool:
    """Whether a chat's tokens begin with a published prompt, under the same salts."""
    upto = len(published.tokens)
    same = chain.tokens[:upto] == published.tokens and chain.private_from == upto
    return same and chain.salts[:-1] == published.salts[: len(chain.salts) - 1]
