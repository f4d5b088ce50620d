"""Which blocks hold the KV of which tokens: a salted hash chain, verified token by token.

A block's KV depends on all tokens before it, so a block is named by its parent block and by its own content: its
tokens, each with the salt of its region. Promises:

- a block is found only for the same model revision, parent, salts and tokens: the hash narrows the search, then these
  are compared. The result would be right with a hash of four bits;
- a match counts in tokens. Full blocks are shared; behind them the block with the longest equal beginning, full or
  part-filled, is a source to copy that beginning from (copy-on-write). It ends where a salt differs;
- only blocks whose KV has been computed can be found, and the parent of a findable block is findable;
- there is one findable block for one content: a sequence that computes what is already there goes over to that block;
- with a host pool an evicted block goes there and stays findable. What builds on it is there too, so a match is blocks
  of the pool and then blocks of the host, which come back by being copied into fresh ones.

It knows neither tenants nor time; what is evicted when is the pool's business.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.block_pool import NO_PARENT, BlockPool
from engine.host_pool import HostPool
from engine.occupancy_wire import UNKNOWN
from engine.pins import Pins
from engine.sequence import Content, Sequence


@dataclass(slots=True, eq=False)
class CachedBlock:
    """What a findable block holds. `parent` is None for a prompt's first block; `children` are in order of content.

    `block`: of the pool, or a slot of the host pool, which are numbered on from there. `kind`: as Sequence.kind.
    """

    block: int
    parent: CachedBlock | None
    content: Content
    size: int
    key: int
    kind: int = UNKNOWN
    children: list[CachedBlock] = field(default_factory=list)


@dataclass(slots=True)
class Match:
    """What is found of a sequence: full blocks from its start, then `source` to copy the next tokens from.

    `tokens`: in all, those to copy among them.
    """

    entries: list[CachedBlock]
    source: CachedBlock | None = None
    tokens: int = 0
    source_block: int = -1
    """Where the source lies at the time of the match."""

    @property
    def last(self) -> CachedBlock | None:
        return self.entries[-1] if self.entries else None

    def shorten(self, blocks: int, block_size: int) -> None:
        """Let nothing be found behind the first `blocks` blocks."""
        if len(self.entries) > blocks:
            del self.entries[blocks:]
            self.source, self.tokens = None, blocks * block_size


class PrefixCache:
    """The index over `pool`'s findable blocks for one `revision` of one model.

    Keys are Python's own hashes, which are keyed per process (SipHash) and never leave it. `hash_bits` cuts them, to
    let tests see collisions. `host_blocks`: the size of the host pool, 0 for none.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        *,
        revision: str = "",
        enabled: bool = True,
        hash_bits: int = 64,
        host_blocks: int = 0,
    ) -> None:
        self.pool = pool
        self.host = HostPool(host_blocks, pool.num_blocks, pool.weight, pool.touched) if host_blocks else None
        self.copies: list[tuple[int, int]] = []
        """Blocks to copy, (source, destination), in this order, before the step is computed. The engine empties it."""
        self.block_size = block_size
        self.enabled = enabled
        self._mask = (1 << hash_bits) - 1
        self._root_key = hash(revision) & self._mask
        self._roots: list[CachedBlock] = []
        self._by_key: dict[int, list[CachedBlock]] = {}  # full blocks
        self._by_block: dict[int, CachedBlock] = {}
        self.pins = Pins(self)
        pool.on_evict = self._on_evict

    def __len__(self) -> int:
        return len(self._by_block)

    def entry_of(self, block: int) -> CachedBlock | None:
        """What can be found in a block of the pool or on the host, if anything."""
        return self._by_block.get(block)

    # --- looking up -----------------------------------------------------------------------------------------------

    def match(self, sequence: Sequence) -> Match:
        """What is cached of a sequence that computes nothing yet.

        That stops short of its last token, which must be computed to get logits; nothing is found for a prompt whose
        tokens all need theirs. Takes no reference: acquire the blocks before anything else is allocated.
        """
        return self.match_first(sequence, 0 if sequence.needs_all_rows else sequence.num_tokens - 1)

    def match_first(self, sequence: Sequence, limit: int) -> Match:
        """What is cached of the first `limit` tokens."""
        match = Match([])
        if not self.enabled:
            return match
        size = self.block_size
        parent: CachedBlock | None = None
        start = 0
        while start + size <= limit:
            content = sequence.content(start, start + size)
            entry = self._find(self._key(parent, content), parent, content)
            if entry is None:
                break
            match.entries.append(entry)
            parent = entry
            start += size
        match.tokens = start
        if start < limit:
            wanted = sequence.content(start, min(start + size, limit))
            match.source, common = self._nearest(parent, wanted)
            match.tokens += common
            if match.source is not None:
                match.source_block = match.source.block
        return match

    def whole(self, sequence: Sequence) -> list[int] | None:
        """The pool's blocks that hold all tokens of a prompt, and perhaps others behind these; None if some lack."""
        match = self.match_first(sequence, sequence.num_tokens)
        if match.tokens < sequence.num_tokens or self._on_host(match):
            return None
        return [entry.block for entry in [*match.entries, *([match.source] if match.source is not None else [])]]

    def prefix(self, sequence: Sequence) -> list[CachedBlock]:
        """The full blocks of the pool that are cached of a prompt, its last token included."""
        return [entry for entry in self.match_first(sequence, sequence.num_tokens).entries if not self.on_host(entry)]

    def _nearest(self, parent: CachedBlock | None, wanted: Content) -> tuple[CachedBlock | None, int]:
        """The child of `parent` with the longest beginning in common with `wanted`, and how many tokens that is.

        In an ordered list it is one of the two neighbours of the place where `wanted` would stand.
        """
        siblings = self._roots if parent is None else parent.children
        at = bisect_left(siblings, wanted, key=_content_of)
        best, longest = None, 0
        for entry in siblings[max(at - 1, 0) : at + 1]:
            common = common_tokens(entry.content, wanted)
            if common > longest:
                best, longest = entry, common
        return best, longest

    # --- what was computed ----------------------------------------------------------------------------------------

    def register(self, sequence: Sequence) -> None:
        """Make the full, computed blocks of a running sequence findable.

        Where another sequence has come first with the same content, the table goes over to that block and the own one
        is given back: the memory is saved, and parents stay findable.
        """
        if not self.enabled or sequence.num_behind:
            return
        table, size = sequence.block_table, self.block_size
        for index in range(sequence.num_hashed, sequence.num_computed // size):
            parent = sequence.last_cached
            content = sequence.content(index * size, (index + 1) * size)
            key = self._key(parent, content)
            entry = self._find(key, parent, content)
            block = table[index]
            known = self._by_block.get(block)
            if known is not None and known is not entry:  # its beginning was findable until now
                self._remove(block)
            if entry is None:
                entry = self._insert(CachedBlock(block, parent, content, size, key, sequence.kind(index, size)))
            elif self.on_host(entry):
                self._move_to_pool(entry, block)
            elif known is not entry:
                self.pool.acquire([entry.block])
                self.pool.release([block])
                table[index] = entry.block
                sequence.num_synced = min(sequence.num_synced, index)
                sequence.num_told = min(sequence.num_told, index)
            sequence.last_cached = entry
            sequence.num_hashed = index + 1

    def register_tail(self, sequence: Sequence) -> None:
        """Make the computed beginning of a running sequence's part-filled block findable, to copy from."""
        start = sequence.num_hashed * self.block_size
        size = sequence.num_computed - start
        if not self.enabled or sequence.num_behind or not 0 < size < self.block_size:
            return
        parent = sequence.last_cached
        block = sequence.block_table[sequence.num_hashed]
        known = self._by_block.get(block)
        if known is not None and known.size == size:
            return
        content = sequence.content(start, sequence.num_computed)
        entry, common = self._nearest(parent, content)
        if common == size and entry is not known:
            return  # another block holds as much
        if known is not None:
            self._remove(block)
        kind = sequence.kind(sequence.num_hashed, self.block_size)
        self._insert(CachedBlock(block, parent, content, size, 0, kind))

    def forget(self, sequence: Sequence, running: Iterable[Sequence]) -> None:
        """Make the blocks of a sequence, and all that builds on them, unfindable: something in them may be wrong.

        `running` sequences that share such blocks keep them; what they make findable later is their own judgement.
        """
        distrusted = set()
        entry = sequence.last_cached
        while entry is not None:
            distrusted.add(entry)
            entry = entry.parent
        own_tail = sequence.block_table[sequence.num_hashed : sequence.num_hashed + 1]
        self.distrust([*(entry.block for entry in distrusted), *own_tail], running)

    def distrust(self, blocks: Iterable[int], running: Iterable[Sequence]) -> None:
        """Make blocks and all that builds on them unfindable; those that are not findable anyway are fine."""
        reached = [entry for block in blocks if (entry := self._by_block.get(block)) is not None]
        distrusted = dict.fromkeys(reached)
        for entry in reached:  # grows
            fresh = [child for child in entry.children if child not in distrusted]
            distrusted.update(dict.fromkeys(fresh))
            reached += fresh
        for other in running:
            while other.last_cached in distrusted:
                other.last_cached = other.last_cached.parent
                other.num_hashed -= 1
                other.num_told = min(other.num_told, other.num_hashed)
        for entry in sorted(distrusted, key=_depth, reverse=True):
            self._remove(entry.block)

    def forget_tenant(self, tenant: str, running: Iterable[Sequence]) -> int:
        """Drop what is found for a tenant, in the pool and on the host; how many blocks that were.

        Salts are shared by nobody else, so what another tenant uses or builds on is public: that stays, and is the
        other one's from now on. `running`: all that run; those of this tenant have ended.
        """
        heirs: dict[CachedBlock, str] = {}

        def inherit(entry: CachedBlock | None, heir: str) -> None:
            while entry is not None and entry not in heirs:
                heirs[entry] = heir
                entry = entry.parent

        running = list(running)
        for sequence in running:
            if sequence.tenant != tenant:
                inherit(sequence.last_cached, sequence.tenant)
        for holder, entry in self.pins.holders():
            if holder != tenant:
                inherit(entry, holder)
        for entry in self._by_block.values():
            if (owner := self._owner(entry)) != tenant:
                inherit(entry, owner)
        own = [entry for entry in self._by_block.values() if self._owner(entry) == tenant]
        for entry in own:
            if entry in heirs:
                (self.host if self.host is not None and self.on_host(entry) else self.pool).hand_over(
                    entry.block, heirs[entry]
                )
        dropped = [entry.block for entry in own if entry not in heirs]
        self.distrust(dropped, running)
        return len(dropped)

    def blocks_of(self, tenant: str) -> int:
        """How many findable blocks are a tenant's, in the pool and on the host."""
        return sum(self._owner(entry) == tenant for entry in self._by_block.values())

    def _owner(self, entry: CachedBlock) -> str:
        if self.on_host(entry):
            assert self.host is not None
            return self.host.owner(entry.block)
        owner = self.pool.owner[entry.block]
        assert owner is not None
        return owner

    # --- the index ------------------------------------------------------------------------------------------------

    def _key(self, parent: CachedBlock | None, content: Content) -> int:
        return hash((self._root_key if parent is None else parent.key, content)) & self._mask

    def _find(self, key: int, parent: CachedBlock | None, content: Content) -> CachedBlock | None:
        for entry in self._by_key.get(key, ()):
            if entry.parent is parent and entry.content == content:
                return entry
        return None

    def _insert(self, entry: CachedBlock) -> CachedBlock:
        parent = entry.parent
        self.pool.keep(entry.block, NO_PARENT if parent is None else parent.block, entry.size)
        self._by_block[entry.block] = entry
        if entry.size == self.block_size:
            self._by_key.setdefault(entry.key, []).append(entry)
        siblings = self._roots if parent is None else parent.children
        at = bisect_left(siblings, entry.content, key=_content_of)
        siblings.insert(at, entry)
        # What it begins with stands before it, and serves no more if nobody writes to it any longer.
        while at and self._superseded(siblings[at - 1], entry):
            at -= 1
            self._remove(siblings[at].block)
        return entry

    def _superseded(self, old: CachedBlock, new: CachedBlock) -> bool:
        if old.size == self.block_size or common_tokens(old.content, new.content) < old.size:
            return False
        if self.on_host(old):
            return self.host is not None and not self.host.is_on_hold(old.block)
        return not (self.pool.refs[old.block] or self.pool.is_pinned(old.block))

    def _remove(self, block: int) -> None:
        """Make a block unfindable that has no children."""
        entry = self._by_block[block]
        self._unlink(entry)
        if self.on_host(entry):
            assert self.host is not None
            self.host.clear(block)
        else:
            self.pins.leave(entry)
            self.pool.drop(block)

    def _on_evict(self, block: int) -> None:
        """The pool gives the block to somebody else, for what comes behind all copies asked for so far."""
        entry = self._by_block[block]
        self.pins.leave(entry)
        if self.host is not None and self._make_room_on_host():
            tenant = self.pool.owner[block]
            assert tenant is not None
            slot = self.host.take(tenant, self.pool.used_at[block])
            self.copies.append((block, slot))
            self._move(entry, slot)
        else:
            self._unlink(entry)

    def _unlink(self, entry: CachedBlock) -> None:
        del self._by_block[entry.block]
        siblings = self._roots if entry.parent is None else entry.parent.children
        at = bisect_left(siblings, entry.content, key=_content_of)
        assert siblings[at] is entry, f"block {entry.block} is not among its parent's children"
        del siblings[at]
        if entry.size == self.block_size:
            entries = self._by_key[entry.key]
            entries.remove(entry)
            if not entries:
                del self._by_key[entry.key]

    # --- the host pool --------------------------------------------------------------------------------------------

    def on_host(self, entry: CachedBlock) -> bool:
        return entry.block >= self.pool.num_blocks

    def hold(self, match: Match) -> None:
        """Keep what the match has found on the host there, until `load` or `let_go`."""
        for entry in self._on_host(match):
            assert self.host is not None
            self.host.hold(entry.block)

    def let_go(self, match: Match) -> None:
        for entry in reversed(self._on_host(match)):
            assert self.host is not None
            self.host.let_go(entry.block)

    def load(self, match: Match, fresh: list[int]) -> None:
        """Copy what a held match has found on the host into fresh blocks, and then the beginning of the next one."""
        source = match.source
        blocks = iter(fresh)
        for entry in self._on_host(match):
            assert self.host is not None
            if entry is source:
                self.host.let_go(entry.block)
                continue
            self.host.loaded += 1
            block = next(blocks)
            self.copies.append((entry.block, block))
            self._move_to_pool(entry, block)
        if source is not None:
            # Whatever becomes of the source before the step is computed, its content is there until then.
            self.copies.append((match.source_block, next(blocks)))

    def _on_host(self, match: Match) -> list[CachedBlock]:
        if self.host is None:
            return []
        found = match.entries if match.source is None else [*match.entries, match.source]
        return [entry for entry in found if self.on_host(entry)]

    def _move_to_pool(self, entry: CachedBlock, block: int) -> None:
        assert self.host is not None
        self.host.clear(entry.block)
        self._move(entry, block)
        self.pool.keep(block, NO_PARENT if entry.parent is None else entry.parent.block, entry.size)

    def _move(self, entry: CachedBlock, to: int) -> None:
        del self._by_block[entry.block]
        entry.block = to
        self._by_block[to] = entry
        self.pool.touched.update(child.block for child in entry.children)  # they build on another block now

    def _make_room_on_host(self) -> bool:
        assert self.host is not None
        while self.host.is_full:
            slot = self.host.next_to_go()
            if slot is None:
                return False
            self.distrust([slot], ())
        return True

    def check_integrity(self) -> None:
        """Raise AssertionError where the index contradicts the promises above or the pool."""
        full = sum(entry.size == self.block_size for entry in self._by_block.values())
        assert sum(map(len, self._by_key.values())) == full, "a full block is in one index only"
        children = len(self._roots) + sum(len(entry.children) for entry in self._by_block.values())
        assert children == len(self._by_block), "a block is nobody's child, or two's"
        in_pool = 0
        for block, entry in self._by_block.items():
            assert entry.block == block, f"block {block} is indexed as {entry.block}"
            parent = entry.parent
            assert parent is None or self._by_block.get(parent.block) is parent, f"the parent of block {block} is gone"
            assert parent is None or parent.size == self.block_size, f"block {block} builds on a part-filled one"
            contents = [child.content for child in entry.children]
            assert contents == sorted(contents), f"the children of block {block} are out of order"
            if self.on_host(entry):
                continue
            in_pool += 1
            assert parent is None or not self.on_host(parent), f"block {block} is in the pool, its parent is not"
            assert self.pool.kept[block], f"findable block {block} is free to the pool"
            assert self.pool.filled[block] == entry.size, f"block {block} holds {entry.size} tokens"
        assert self.pool.kept.count(1) == in_pool, "the pool keeps a block that cannot be found"
        if self.host is not None:
            self.host.check_integrity()
            assert len(self.host) == len(self._by_block) - in_pool, "the host holds a block that cannot be found"


def common_tokens(one: Content, two: Content) -> int:
    """How many tokens two contents have in common from their start, each with the same salt."""
    total = 0
    for (salt, tokens), (other_salt, other_tokens) in zip(one, two, strict=False):
        if salt != other_salt:
            break
        if tokens == other_tokens:
            total += len(tokens) // 4
            continue
        size = min(len(tokens), len(other_tokens))
        differing = int.from_bytes(tokens[:size], "little") ^ int.from_bytes(other_tokens[:size], "little")
        same = size if not differing else ((differing & -differing).bit_length() - 1) // 8
        return total + same // 4
    return total


def _content_of(entry: CachedBlock) -> Content:
    return entry.content


def _depth(entry: CachedBlock) -> int:
    depth = 0
    while entry.parent is not None:
        entry, depth = entry.parent, depth + 1
    return depth
