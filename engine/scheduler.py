"""What runs in the next step: `{sequence: number of tokens}` under one token budget.

Owns the queues and every change of a sequence's state, its row and its blocks. In each step sequences that decode come
first, one token each; what is left of the budget goes to prompts, always to those of the tenant that has received the
least service: its half-computed prompt, else the head of its queue. Promises:

- a sequence is admitted only when its whole prompt fits, with a block to spare for everyone who runs; the blocks are
  its own from then on. A head that does not fit is skipped, not waited on, until `patience` others have passed it;
- of several sequences of a tenant that need the same uncached block, one computes it; the others wait that moment;
- no tenant runs more than `max_seqs_per_tenant` sequences, nor uses more than `max_blocks_per_tenant` blocks (or
  its own share, where that is less) with more than one;
- when blocks run out, the newest sequence of the most over-served tenant is preempted: it gives back everything and
  is recomputed later, first in its queue. The same makes room for a tenant that runs nothing, is not ahead, and finds
  the rows or the pool full: but never the last running sequence of a tenant;
- a step can be scheduled behind one that is in flight, on the assumption that every sequence gets its token there;
- a sequence alone always fits (the engine refuses those that never could), so every step that has work makes progress;
- where every layer has a sliding window, a sequence is admitted with the blocks that it needs at once, and goes on with
  those that it leaves behind (engine.windows); before anybody is preempted or kept waiting, these are given back;
- while `only` names a request, nothing else is scheduled: what runs keeps its blocks, unless it needs them;
- `release` is the only way out, from any state, once or many times.

It knows no tensors, no text and no clock.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from enum import Enum
from typing import TypeAlias

from engine.block_pool import BlockPool
from engine.fairness import OUTPUT_COST, PROMPT_COST, Fairness
from engine.prefix_cache import Match, PrefixCache, common_tokens
from engine.sequence import Sequence, SequenceState
from engine.windows import Windows

Batch: TypeAlias = dict[Sequence, int]
_ByTenant: TypeAlias = dict[str, OrderedDict[Sequence, None]]
"""Ordered sets of sequences; a tenant without any has no entry."""

MAX_SKIPS_PER_STEP = 8
"""Heads looked at in vain in one step: a look walks a prompt's blocks, so this bounds a step's cost."""


class _Admission(Enum):
    ADMITTED = "admitted"
    NO_ROOM = "no room"  # the head of a queue that others may pass, but not for ever
    NOT_YET = "not yet"  # it waits for its own tenant's sake, and nobody else waits for it


class Scheduler:
    """`spare_tokens`: how many tokens behind its cached ones a conversation's next turn can compute anew and still be
    quick (engine.config says more). `max_seqs_per_tenant`, `max_blocks_per_tenant`: None for no limit. `window`: the
    tokens beyond which no layer of the model looks back; None where one sees all.
    """

    def __init__(
        self,
        pool: BlockPool,
        cache: PrefixCache,
        *,
        block_size: int,
        max_num_seqs: int,
        token_budget: int,
        patience: int = 64,
        spare_tokens: int = 0,
        max_seqs_per_tenant: int | None = None,
        max_blocks_per_tenant: int | None = None,
        window: int | None = None,
    ) -> None:
        assert token_budget >= max_num_seqs, "every running sequence must be able to decode in every step"
        self.pool = pool
        self.cache = cache
        self.fairness = Fairness()
        self.block_size = block_size
        self.token_budget = token_budget
        self.patience = patience
        self.spare_blocks = spare_tokens // block_size
        self.max_seqs_per_tenant = max_seqs_per_tenant or max_num_seqs
        self.max_blocks_per_tenant = max_blocks_per_tenant or pool.num_blocks
        self.windows: Windows | None = None
        """None also where the pool is too small for a window, and a sequence must fit with all its tokens."""
        if window is not None and Windows.span_of(window, token_budget, block_size) <= self.max_blocks_per_tenant:
            self.windows = Windows(pool, cache, block_size=block_size, window=window, budget=token_budget)
        self.running: dict[Sequence, None] = {}  # in the order of admission
        self.num_decodes = 0
        """Sequences of the last schedule that decode, before any prompt was looked at."""
        self.only: str | None = None
        """The request that nothing else is scheduled beside; None: there is none such."""
        self.preemptions = 0
        self._blocks_of: dict[str, int] = {}
        """The most blocks of a tenant, where it has been said, for as long as the tenant has sequences."""
        self._running_of: _ByTenant = {}
        self._waiting_of: _ByTenant = {}
        self._prefilling: dict[str, dict[Sequence, None]] = {}
        """Running sequences that have more than one token to compute, by tenant."""
        self._behind: Batch = {}
        """The step in flight while the next one is scheduled: its tokens come first, though they are not there yet."""
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))

    # --- queues ---------------------------------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._waiting_of.values()))

    def has_work(self) -> bool:
        return bool(self.running or self._waiting_of)

    def counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Running and waiting sequences by tenant; tenants without any are left out."""
        running = {tenant: len(sequences) for tenant, sequences in self._running_of.items()}
        return running, {tenant: len(sequences) for tenant, sequences in self._waiting_of.items()}

    def running_of(self, tenant: str) -> Iterable[Sequence]:
        return self._running_of.get(tenant, ())

    def add(self, sequence: Sequence, weight: float = 1.0, max_blocks: int | None = None) -> None:
        """Queue a new sequence behind the others of its tenant. `weight`, `max_blocks`: the tenant's from now on.

        None: it may have as many blocks as before.
        """
        self.fairness.enter(sequence.tenant, weight)
        self.pool.set_weight(sequence.tenant, weight)
        if max_blocks is not None:
            self._blocks_of[sequence.tenant] = min(max_blocks, self.max_blocks_per_tenant)
        self._waiting_of.setdefault(sequence.tenant, OrderedDict())[sequence] = None

    def release(self, sequence: Sequence, *, trusted: bool = True) -> None:
        """End a sequence in whatever state it is: its blocks and its row are free on return. Idempotent.

        `trusted`: its next turn may find what it computed.
        """
        if sequence.finished:
            return
        self._leave(sequence, self.spare_blocks, trusted=trusted)
        sequence.state = SequenceState.FINISHED
        tenant = sequence.tenant
        if tenant not in self._running_of and tenant not in self._waiting_of:
            self.fairness.leave(tenant)
            self.pool.forget_weight(tenant)
            self._blocks_of.pop(tenant, None)

    # --- one step -------------------------------------------------------------------------------------------------

    def schedule(self, prefill_cap: Callable[[int], int] | None = None, behind: Batch | None = None) -> Batch:
        """The next step. The scheduled tokens have their slots; the caller computes them and then calls `computed`.

        Beside D decodes at most `prefill_cap(D)` prompt tokens are scheduled; None: as many as the budget has left.
        `behind`: the step in flight, if there is one. A sequence of it may be preempted, and keeps its coming token.
        """
        batch: Batch = {}
        half_computed: dict[str, list[Sequence]] = {}
        self._behind = behind or {}
        if behind:
            self._schedule_behind(batch, half_computed)
        else:
            size = self.block_size
            for sequence in list(self.running):
                if sequence.state is not SequenceState.RUNNING or self._is_held(sequence):
                    continue  # preempted for one before it, just now
                if len(sequence.token_ids) - sequence.num_computed > 1:
                    half_computed.setdefault(sequence.tenant, []).append(sequence)
                elif sequence.num_computed < len(sequence.block_table) * size or self._has_slots(sequence, batch):
                    batch[sequence] = 1  # it has the slot, as in most steps, or gets it
        self.num_decodes = len(batch)
        if half_computed or self._waiting_of:
            budget = self.token_budget
            if prefill_cap is not None and batch:
                budget = min(budget, len(batch) + prefill_cap(len(batch)))
            self._schedule_prompts(batch, half_computed, budget)
        return batch

    def _schedule_behind(self, batch: Batch, half_computed: dict[str, list[Sequence]]) -> None:
        """What runs, as in `schedule`, behind a step in flight."""
        size, behind = self.block_size, self._behind
        for sequence in list(self.running):
            if sequence.state is not SequenceState.RUNNING or self._is_held(sequence):
                continue
            known, start = len(sequence.token_ids), sequence.num_computed + behind.get(sequence, 0)
            if known - start > 1:
                half_computed.setdefault(sequence.tenant, []).append(sequence)
            elif known == start and known + 1 >= sequence.max_total:
                pass  # the token that it is getting is its last one, whichever it is
            elif start < len(sequence.block_table) * size or self._has_slots(sequence, batch):
                batch[sequence] = 1

    def _is_held(self, sequence: Sequence) -> bool:
        return self.only is not None and sequence.request_id != self.only

    def _start(self, sequence: Sequence) -> int:
        """The tokens of a running sequence that come before what is being scheduled."""
        return sequence.num_computed + self._behind.get(sequence, 0)

    def computed(self, sequence: Sequence, count: int) -> None:
        """`count` more tokens of a running sequence have their K and V in the pool."""
        sequence.num_computed += count
        if sequence.num_computed // self.block_size > sequence.num_hashed:
            self.cache.register(sequence)
        if sequence.prefilling and sequence.num_computed == sequence.num_tokens:
            self._end_prefill(sequence)
            self.cache.register_tail(sequence)
            self.cache.pins.restore(sequence.tenant)

    def take_in(self, sequence: Sequence, write: Callable[[list[int], int], None]) -> bool:
        """Make a prompt findable whose KV was computed elsewhere, if there is room beside all that runs.

        `write(blocks, first)` fills fresh blocks with those of the prompt from number `first` on. Pinned blocks make no
        room. False when there is none: nothing has changed then, nor when `write` raises. The sequence holds nothing
        afterwards.
        """
        found = self.cache.prefix(sequence)
        table = [entry.block for entry in found]
        missing = -(-sequence.num_tokens // self.block_size) - len(table)
        self.pool.acquire(table)  # what follows must not evict what was just found
        idle_pins = sum(not self.pool.refs[block] for block in self.pool.pinned())
        if self._fits(missing + idle_pins, rows=0):
            fresh = self.pool.allocate(missing, sequence.tenant)
            table += fresh
            try:
                write(fresh, len(found))
                sequence.block_table = table
                sequence.num_computed = sequence.num_tokens
                sequence.num_hashed = len(found)
                sequence.last_cached = found[-1] if found else None
                self.cache.register(sequence)
                self.cache.register_tail(sequence)
            finally:
                self.pool.release(table)
                sequence.block_table = []
                sequence.last_cached = None
                sequence.num_computed = sequence.num_hashed = 0
            return True
        self.pool.release(table)
        return False

    def charge_output(self, tenants: SequenceOf[str]) -> int:
        """Charge these tenants of live sequences an output token each; how many that were."""
        for tenant, count in Counter(tenants).items():
            self.fairness.charge(tenant, OUTPUT_COST * count)
        return len(tenants)

    def _has_slots(self, sequence: Sequence, batch: Batch, count: int = 1) -> bool:
        """Give a running sequence the slots for its next tokens; False when it was preempted itself to get them."""
        end = self._start(sequence) + count
        if end <= len(sequence.block_table) * self.block_size:
            return True
        tenant = sequence.tenant
        missing = -(-end // self.block_size) - len(sequence.block_table)
        while len(self._running_of[tenant]) > 1 and self._uses_too_much(tenant, missing):
            if self._slide(self._running_of[tenant], self.pool.num_available + 1, sequence):
                continue
            victim = self._newest(tenant)
            self._preempt(victim, batch)
            if victim is sequence:
                return False
        while self.pool.num_available < missing:
            if self._slide(self.running, missing, sequence):
                continue
            victim = self._newest(max(self._running_of, key=self.fairness.service))
            self._preempt(victim, batch)
            if victim is sequence:
                return False
        sequence.block_table += self.pool.allocate(missing, tenant)
        return True

    def make_room_for_draft(self, sequence: Sequence, count: int) -> int:
        """Slots for `count` draft tokens behind a scheduled decode, as many as can be had without taking from anybody.

        Returns for how many there are slots now.
        """
        wanted = sequence.num_computed + 1 + count
        missing = -(-wanted // self.block_size) - len(sequence.block_table)
        if missing > 0 and self._fits(missing, rows=0) and not self._uses_too_much(sequence.tenant, missing):
            sequence.block_table += self.pool.allocate(missing, sequence.tenant)
        return min(count, len(sequence.block_table) * self.block_size - sequence.num_computed - 1)

    def _slide(self, sequences: Iterable[Sequence], wanted: int, growing: Sequence | None = None) -> bool:
        """Give back what lies behind the windows of running sequences until `wanted` blocks are available.

        A prompt that is being computed keeps what it will go on with, unless it is the `growing` one. Whether there
        was anything to give back.
        """
        if self.windows is None:
            return False
        own = [s for s in sequences if s is growing or not s.prefilling]
        return self.windows.give_back(own, wanted, self._behind)

    def _schedule_prompts(self, batch: Batch, half_computed: dict[str, list[Sequence]], budget: int) -> None:
        """Fill the batch up to `budget` tokens with those of prompts, always of the tenant with the least service."""
        turns = [self._turn(tenant) for tenant in half_computed.keys() | self._waiting_of.keys()]
        heapq.heapify(turns)
        passed_over: set[Sequence] = set()
        not_yet: set[Sequence] = set()
        admitting = True
        left = budget - sum(batch.values())
        while turns and left > 0:
            tenant = heapq.heappop(turns)[-1]
            sequence = self._next_prompt(tenant, half_computed, passed_over, not_yet, admitting)
            if sequence is None:
                continue
            waited = sequence.state is not SequenceState.RUNNING
            preemptions = self.preemptions
            admission = self._admit(sequence, batch) if waited else _Admission.ADMITTED
            if self.preemptions > preemptions:
                left = budget - sum(batch.values())
            if admission is _Admission.ADMITTED:
                count = min(sequence.num_tokens - self._start(sequence), left)
                if self._has_slots(sequence, batch, count):
                    batch[sequence] = count
                    self._charge_prompt(sequence, count)
                left = left - count if self.preemptions == preemptions else budget - sum(batch.values())
                if waited:
                    for other in passed_over:
                        other.skips += 1
                    for other in not_yet:
                        other.skips += other.tenant == tenant
            elif admission is _Admission.NO_ROOM:
                passed_over.add(sequence)
                # Whom too many have passed stops all admissions, until those that run have made room.
                admitting = len(passed_over) < MAX_SKIPS_PER_STEP and sequence.skips < self.patience
            else:
                not_yet.add(sequence)
                looks = sum(other.tenant == tenant for other in not_yet)
                if looks == MAX_SKIPS_PER_STEP or sequence.skips >= self.patience:
                    continue  # its tenant's turn is over, the others' are not
            heapq.heappush(turns, self._turn(tenant))

    def _turn(self, tenant: str) -> tuple[float, int, str]:
        return self.fairness.service(tenant), len(self._running_of.get(tenant, ())), tenant

    def _next_prompt(
        self,
        tenant: str,
        half_computed: dict[str, list[Sequence]],
        passed_over: set[Sequence],
        not_yet: set[Sequence],
        admitting: bool,
    ) -> Sequence | None:
        mine = half_computed.get(tenant, [])
        while mine:
            sequence = mine.pop(0)
            if sequence.state is SequenceState.RUNNING:
                return sequence
        if admitting:
            for sequence in self._waiting_of.get(tenant, ()):
                if self._is_held(sequence):
                    continue
                if sequence not in passed_over and sequence not in not_yet and sequence not in self._behind:
                    return sequence  # one that was preempted in flight has a token coming
        return None

    def _charge_prompt(self, sequence: Sequence, count: int) -> None:
        start = self._start(sequence)
        end = min(start + count, sequence.prompt_len)  # what was said has been charged as it was drawn
        fresh = end - max(sequence.num_charged, start)
        if fresh > 0:
            self.fairness.charge(sequence.tenant, PROMPT_COST * fresh)
            sequence.num_charged = end

    # --- admission and preemption ---------------------------------------------------------------------------------

    def _admit(self, sequence: Sequence, batch: Batch) -> _Admission:
        """Give a waiting sequence a row and the blocks of all its tokens, or leave everything as it was."""
        tenant = sequence.tenant
        may_preempt = tenant not in self._running_of
        if not may_preempt:
            if len(self._running_of[tenant]) >= self.max_seqs_per_tenant:
                return _Admission.NOT_YET
            if not self._fits_by_sliding(1):
                return _Admission.NO_ROOM  # the usual case of a full engine, without walking the prompt
        match = self.cache.match(sequence)
        if self._a_twin_computes(sequence, match):
            return _Admission.NOT_YET
        blocks = -(-sequence.num_tokens // self.block_size)
        if self.windows is not None:
            # However much is cached, alone it must fit.
            match.shorten(self.max_blocks_per_tenant - self.windows.span, self.block_size)
            blocks = min(blocks, len(match.entries) + self.windows.span)
        found = [entry.block for entry in match.entries if not self.cache.on_host(entry)]
        missing = blocks - len(found)
        idle = sum(self.pool.refs[block] == 0 for block in found)
        if not may_preempt and self._uses_too_much(tenant, missing + idle):
            return _Admission.NOT_YET
        self.pool.acquire(found)  # first of all: what follows must not evict what was just found
        self.cache.hold(match)
        if not self._fits_by_sliding(missing):
            victims = self._victims(sequence, missing) if may_preempt else []
            if not victims:
                self.pool.release(found)
                self.cache.let_go(match)
                return _Admission.NO_ROOM
            for victim in victims:
                self._preempt(victim, batch)
        self._leave(sequence)
        sequence.state = SequenceState.RUNNING
        sequence.row = self._free_rows.pop()
        fresh = self.pool.allocate(missing, tenant)
        self.cache.load(match, fresh)
        sequence.block_table = found + fresh
        sequence.num_computed = match.tokens
        sequence.num_hashed = len(match.entries)
        sequence.last_cached = match.last
        sequence.skips = 0
        if not sequence.started:
            sequence.num_cached = sequence.num_computed
        self.running[sequence] = None
        self._running_of.setdefault(tenant, OrderedDict())[sequence] = None
        sequence.prefilling = True
        self._prefilling.setdefault(tenant, {})[sequence] = None
        return _Admission.ADMITTED

    def _a_twin_computes(self, sequence: Sequence, match: Match) -> bool:
        """Whether another sequence of the tenant is about to compute what this one needs next.

        That is a whole block, or all that it lacks of its last one. Only within the tenant: a tenant's prompts are
        computed in order, so the one that runs does get on.
        """
        if not self.cache.enabled or sequence.needs_all_rows:
            return False
        start = len(match.entries) * self.block_size
        end = min(start + self.block_size, sequence.num_tokens - 1)
        if match.tokens >= end:
            return False
        wanted = None
        for twin in self._prefilling.get(sequence.tenant, ()):
            if self._is_held(twin):
                continue
            if twin.last_cached is match.last and twin.num_computed < min(end, twin.num_tokens):
                wanted = wanted or sequence.content(start, end)
                if common_tokens(twin.content(start, min(end, twin.num_tokens)), wanted) == end - start:
                    return True
        return False

    def _uses_too_much(self, tenant: str, missing: int) -> bool:
        limit = self._blocks_of.get(tenant, self.max_blocks_per_tenant)
        return limit < self.pool.num_blocks and self.pool.used_of.get(tenant, 0) + missing > limit

    def _fits(self, missing: int, rows: int = 1) -> bool:
        """Whether one more sequence may run that needs `missing` blocks.

        Each of those that run may soon need one more block (the watermark). Without it they would preempt the newcomer
        right away, and each other.
        """
        return len(self._free_rows) >= rows and self.pool.num_available >= missing + len(self.running)

    def _fits_by_sliding(self, missing: int) -> bool:
        """As `_fits`, once what lies behind windows has been given back where that is what it takes."""
        if self._fits(missing):
            return True
        return bool(self._free_rows) and self._slide(self.running, missing + len(self.running)) and self._fits(missing)

    def _victims(self, sequence: Sequence, missing: int) -> list[Sequence]:
        """Whom to preempt so that a sequence of a tenant that runs nothing fits; nobody if that would not be enough.

        Only tenants that have received at least as much service pay, and each keeps its oldest running sequence: so the
        preempted cannot turn round and preempt in their turn.
        """
        service = self.fairness.service(sequence.tenant)
        payers = [tenant for tenant in self._running_of if self.fairness.service(tenant) >= service]
        victims: list[Sequence] = []
        rows, running, available = len(self._free_rows), len(self.running), self.pool.num_available
        for tenant in sorted(payers, key=self.fairness.service, reverse=True):
            for victim in sorted(self._running_of[tenant], key=_arrival, reverse=True)[:-1]:
                victims.append(victim)
                rows += 1
                running -= 1
                available += sum(self.pool.refs[block] == 1 for block in victim.blocks)
                if rows and available >= missing + running:
                    return victims
        return []

    def _newest(self, tenant: str) -> Sequence:
        return max(self._running_of[tenant], key=_arrival)

    def _preempt(self, sequence: Sequence, batch: Batch) -> None:
        """Take a running sequence's row and blocks away. It keeps its tokens and goes first in its tenant's queue."""
        batch.pop(sequence, None)
        self._leave(sequence)
        sequence.state = SequenceState.PREEMPTED
        queue = self._waiting_of.setdefault(sequence.tenant, OrderedDict())
        queue[sequence] = None
        queue.move_to_end(sequence, last=False)
        self.preemptions += 1

    def _leave(self, sequence: Sequence, spare: int = 0, *, trusted: bool = True) -> None:
        """Take a live sequence out of wherever it is. The one place where blocks and rows come back."""
        if sequence.state is not SequenceState.RUNNING:
            _discard(self._waiting_of, sequence)
            return
        del self.running[sequence]
        _discard(self._running_of, sequence)
        self._end_prefill(sequence)
        self._free_rows.append(sequence.row)
        sequence.row = -1
        if trusted:
            self.cache.register_tail(sequence)
        table = sequence.block_table
        # A conversation's own blocks only, and of those the ones that hold something.
        held = -(-sequence.num_computed // self.block_size)
        own = held - -(-sequence.private_from // self.block_size)
        self.pool.release(sequence.blocks, min(spare, max(own, 0)) + len(table) - held)
        sequence.block_table = []
        sequence.last_cached = None
        sequence.num_computed = sequence.num_hashed = sequence.num_synced = sequence.num_behind = 0
        sequence.num_told = 0

    def _end_prefill(self, sequence: Sequence) -> None:
        if sequence.prefilling:
            sequence.prefilling = False
            mine = self._prefilling[sequence.tenant]
            del mine[sequence]
            if not mine:
                del self._prefilling[sequence.tenant]


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival


def _discard(by_tenant: _ByTenant, sequence: Sequence) -> None:
    sequences = by_tenant[sequence.tenant]
    del sequences[sequence]
    if not sequences:
        del by_tenant[sequence.tenant]
