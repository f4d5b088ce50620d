"""The block table at one moment, as plain lists: a look for whoever runs an engine without a worker.

Reads the engine between two steps and changes nothing. Arrays are indexed by physical block. `state`: 0 free, 1 cached
(reference 0, hashed), 2 used. `tenant`: index into `tenants`, -1 for none. `pinned` lists block ids. `running`,
`waiting` count sequences by tenant. `lengths`: tokens of each running sequence. What a worker publishes is
engine.occupancy's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.block_pool import BlockPool, BlockState
from engine.scheduler import Scheduler

if TYPE_CHECKING:
    from engine.llm_engine import LLMEngine
from engine.sequence import GONE


def take(pool: BlockPool, scheduler: Scheduler, block_size: int, counters: dict[str, float]) -> dict[str, Any]:
    """State, references, owner and filled slots of every block, then counts. O(num_blocks + blocks in use)."""
    used, cached, free = int(BlockState.USED), int(BlockState.CACHED), int(BlockState.FREE)
    state = [used if refs else cached if kept else free for refs, kept in zip(pool.refs, pool.kept, strict=True)]
    tenants = sorted(pool.blocks_of)
    number: dict[str | None, int] = {tenant: n for n, tenant in enumerate(tenants)}
    number[None] = -1
    filled = list(pool.filled)
    for sequence in scheduler.running:
        # Those behind the full findable ones are the sequence's own, and it may have gone on since one was registered.
        left = sequence.num_computed - sequence.num_hashed * block_size
        for block in sequence.block_table[sequence.num_hashed :]:
            if block != GONE:
                filled[block] = min(max(left, 0), block_size)
            left -= block_size
    running, waiting = scheduler.counts()
    return {
        "block_size": block_size,
        "state": state,
        "refs": list(pool.refs),
        "tenant": [number[owner] for owner in pool.owner],
        "filled": filled,
        "tenants": tenants,
        "pinned": pool.pinned(),
        "running": running,
        "waiting": waiting,
        "lengths": [sequence.num_tokens for sequence in scheduler.running],
        "counters": counters,
    }


def counters(engine: LLMEngine) -> dict[str, float]:
    """Totals since the start, and how the memory is used now; `cached_tokens` of `prompt_tokens` were found."""
    totals, pool, host, speculation = engine.totals, engine.pool, engine.cache.host, engine.speculation
    size = engine.block_size
    return {
        "steps": engine.steps,
        "prompt_tokens": totals["prompt_tokens"],
        "cached_tokens": totals["cached_tokens"],
        "output_tokens": totals["output_tokens"],
        "aborted": totals["aborted"],
        "preemptions": engine.scheduler.preemptions,
        "evictions": pool.evictions,
        "block_lifetime_s": pool.lifetime_s,
        # Slots of running sequences behind their last token: what the block size costs now.
        "wasted_slots": sum(max(0, len(s.block_table) * size - s.num_tokens) for s in engine.scheduler.running),
        "host_blocks": len(host) if host is not None else 0,
        "host_loaded_blocks": host.loaded if host is not None else 0,
        "drafted_tokens": speculation.proposed if speculation is not None else 0,
        "accepted_tokens": speculation.accepted if speculation is not None else 0,
    }
