"""Which blocks hold the KV of which tokens: a salted hash chain over full blocks, verified token by token.

A block's KV depends on all tokens before it, so a block is named by its parent block, its own tokens, and the salt of
its last token (regions go from public to private, so that is the salt of its most private token). Promises:

- a block is found only for the same model revision, parent, salt and tokens: the hash narrows the search, then these
  are compared. The result would be right with a hash of four bits;
- only blocks whose KV has been computed can be found;
- the parent of a findable block is findable (the pool evicts tails before heads), so a match is a walk from the root
  that stops at the first miss;
- there is one findable block for one content: a sequence that computes what is already there goes over to that block.

It knows neither tenants nor time; what is evicted when is the pool's business.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from engine.block_pool import BlockPool
from engine.sequence import Sequence


@dataclass(slots=True, eq=False)
class CachedBlock:
    """What a findable block holds. `parent` is None for a prompt's first block; `tokens` are packed 32-bit ids."""

    block: int
    parent: CachedBlock | None
    salt: str
    tokens: bytes
    key: int


class PrefixCache:
    """The index over `pool`'s findable blocks for one `revision` of one model.

    Keys are Python's own hashes, which are keyed per process (SipHash) and never leave it. `hash_bits` cuts them, to
    let tests see collisions.
    """

    def __init__(
        self, pool: BlockPool, block_size: int, *, revision: str = "", enabled: bool = True, hash_bits: int = 64
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self.enabled = enabled
        self._mask = (1 << hash_bits) - 1
        self._root_key = hash(revision) & self._mask
        self._by_key: dict[int, list[CachedBlock]] = {}
        self._by_block: dict[int, CachedBlock] = {}
        self._pins: dict[str, list[CachedBlock]] = {}
        pool.on_evict = self._forget

    def __len__(self) -> int:
        return len(self._by_block)

    def match(self, sequence: Sequence) -> list[CachedBlock]:
        """The longest run of findable blocks that the sequence starts with, head first; at least one token stays out.

        That one token has to be computed to get logits, even when everything is cached. Takes no reference: acquire
        the blocks before anything else is allocated.
        """
        found: list[CachedBlock] = []
        if not self.enabled:
            return found
        parent: CachedBlock | None = None
        for index in range((sequence.num_tokens - 1) // self.block_size):
            salt, tokens = self._content(sequence, index)
            parent = self._find(self._key(parent, salt, tokens), parent, salt, tokens)
            if parent is None:
                break
            found.append(parent)
        return found

    def register(self, sequence: Sequence) -> None:
        """Make the full, computed blocks of a running sequence findable.

        Where another sequence has come first with the same content, the table goes over to that block and the own one
        is given back: the memory is saved, and parents stay findable.
        """
        if not self.enabled:
            return
        table = sequence.block_table
        for index in range(sequence.num_hashed, sequence.num_computed // self.block_size):
            parent = sequence.last_cached
            salt, tokens = self._content(sequence, index)
            key = self._key(parent, salt, tokens)
            entry = self._find(key, parent, salt, tokens)
            if entry is None:
                entry = CachedBlock(table[index], parent, salt, tokens, key)
                self._by_key.setdefault(key, []).append(entry)
                self._by_block[entry.block] = entry
                self.pool.keep(entry.block)
            else:
                self.pool.acquire([entry.block])
                self.pool.release([table[index]])
                table[index] = entry.block
                sequence.num_synced = min(sequence.num_synced, index)
            sequence.last_cached = entry
            sequence.num_hashed = index + 1

    def forget(self, sequence: Sequence, running: Iterable[Sequence]) -> None:
        """Make the blocks of a sequence, and all that builds on them, unfindable: something in them may be wrong.

        `running` sequences that share such blocks keep them; what they make findable later is their own judgement.
        """
        distrusted = set()
        entry = sequence.last_cached
        while entry is not None:
            distrusted.add(entry)
            entry = entry.parent
        for entry in self._by_block.values():  # in the order of registration: parents come before their children
            if entry.parent in distrusted:
                distrusted.add(entry)
        for other in running:
            while other.last_cached in distrusted:
                other.last_cached = other.last_cached.parent
                other.num_hashed -= 1
        for entry in distrusted:
            self._forget(entry.block)
            self.pool.drop(entry.block)

    def pin(self, name: str, sequence: Sequence, upto: int) -> int:
        """Pin the findable blocks of the sequence's first `upto` tokens under `name`, instead of what that name had.

        Returns how many tokens are pinned: fewer than asked for where blocks are missing or half of the pool is pinned.
        """
        self.unpin(name)
        entries = self.match(sequence)[: upto // self.block_size]
        pinned = entries[: self.pool.pin([entry.block for entry in entries])]
        if pinned:
            self._pins[name] = pinned
        return len(pinned) * self.block_size

    def unpin(self, name: str) -> None:
        """Take off the pins of `name`. An unknown name is fine."""
        entries = self._pins.pop(name, [])
        # A pinned block may have been evicted when nothing else was left, and hold something else by now.
        self.pool.unpin([entry.block for entry in entries if self._by_block.get(entry.block) is entry])

    def check_integrity(self) -> None:
        """Raise AssertionError where the index contradicts the promises above or the pool."""
        assert sum(map(len, self._by_key.values())) == len(self._by_block), "an entry is in one index only"
        for block, entry in self._by_block.items():
            assert entry.block == block, f"block {block} is indexed as {entry.block}"
            assert any(other is entry for other in self._by_key.get(entry.key, ())), f"block {block} has no key"
            assert self.pool.kept[block], f"findable block {block} is free to the pool"
            parent = entry.parent
            assert parent is None or self._by_block.get(parent.block) is parent, f"the parent of block {block} is gone"
        assert sum(self.pool.kept) == len(self._by_block), "the pool keeps a block that cannot be found"

    def _content(self, sequence: Sequence, index: int) -> tuple[str, bytes]:
        start = index * self.block_size
        end = start + self.block_size
        return sequence.salt_at(end - 1), array("i", sequence.token_ids[start:end]).tobytes()

    def _key(self, parent: CachedBlock | None, salt: str, tokens: bytes) -> int:
        return hash((self._root_key if parent is None else parent.key, salt, tokens)) & self._mask

    def _find(self, key: int, parent: CachedBlock | None, salt: str, tokens: bytes) -> CachedBlock | None:
        for entry in self._by_key.get(key, ()):
            if entry.parent is parent and entry.tokens == tokens and entry.salt == salt:
                return entry
        return None

    def _forget(self, block: int) -> None:
        entry = self._by_block.pop(block)
        entries = self._by_key[entry.key]
        if len(entries) == 1:
            del self._by_key[entry.key]
        else:
            entries.remove(entry)
