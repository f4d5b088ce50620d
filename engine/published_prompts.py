"""Prompts that stay: tenants' published system prompts, computed before anybody asks, pinned, kept on disk.

A published prompt is the part of a request's prompt before its last, private region. One has a name, under which a
newer one replaces it. Promises: a prompt that is being computed takes its turn as a request of its tenant, and says
nothing; one that was evicted although pinned is pinned again once its tenant has had it computed again; one that comes
from disk takes nothing from what runs. Knows neither requests nor text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from typing import Any

import structlog
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.prefix_cache import PrefixCache
from engine.prompt_store import PromptStore
from engine.regions import Region
from engine.runner import ModelRunner
from engine.sampler import Drawn
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Sequence

log = structlog.get_logger(__name__)

UNREAD = 1024
"""How many that were computed are remembered for an owner that does not look."""


class PublishedPrompts:
    """`check` raises RequestRefused for a prompt that could never run; `copy_blocks` makes the copies asked for so far;
    `arrivals` numbers the engine's sequences; `tick` brings the pool's time up to the present.
    """

    def __init__(
        self,
        cache: PrefixCache,
        scheduler: Scheduler,
        runner: ModelRunner,
        config: EngineConfig,
        *,
        check: Callable[[SequenceOf[int]], None],
        copy_blocks: Callable[[], None],
        arrivals: Iterator[int],
        tick: Callable[[], None],
    ) -> None:
        self.store = _open_store(config, runner)
        self.warming: dict[str, Sequence] = {}
        """Those that are being computed, by name."""
        self.computed: deque[tuple[str, int]] = deque(maxlen=UNREAD)
        """Names of those that have been computed to their end, and how many of their tokens are pinned; the owner takes
        them out."""
        self._cache = cache
        self._scheduler = scheduler
        self._runner = runner
        self._check = check
        self._copy_blocks = copy_blocks
        self._arrivals = arrivals
        self._tick = tick

    def warm(
        self,
        name: str,
        prompt_token_ids: SequenceOf[int],
        regions: SequenceOf[Region],
        *,
        tenant: str = "",
        weight: float = 1.0,
    ) -> None:
        """Compute a published prompt before anybody asks, and pin it as `pin` does; the tenant pays for it.

        What the name had pinned stays until then: it is what is asked for meanwhile. Raises RequestRefused when it can
        never fit.
        """
        if name in self.warming:
            self.end(self.warming[name])
        sequence = _published(prompt_token_ids, regions, tenant, next(self._arrivals))
        if sequence is None:
            return
        self._check(sequence.token_ids)
        sequence.prompt_name = name
        self.warming[name] = sequence
        self._scheduler.add(sequence, weight)

    def pin(
        self, name: str, prompt_token_ids: SequenceOf[int], regions: SequenceOf[Region], *, tenant: str = ""
    ) -> int:
        """Keep what is cached of a published prompt, instead of what `name` had pinned; how many tokens that is."""
        sequence = _published(prompt_token_ids, regions, tenant)
        return 0 if sequence is None else self._pin(name, sequence)

    def holds(self, name: str) -> bool:
        """Whether all of the prompt that was last pinned under `name` is in the pool, pinned or not."""
        sequence = self._cache.pins.sequence(name)
        return sequence is not None and self._cache.whole(sequence) is not None

    def release(self, name: str) -> None:
        """The prompt is published no longer: take off its pins, and stop computing it. An unknown name is fine."""
        if name in self.warming:
            self.end(self.warming[name])
        self._cache.pins.unpin(name)

    def forget(self, tenant: str) -> None:
        """None of a tenant's prompts is computed, pinned or on disk any more. Raises OSError as the store does."""
        for sequence in [sequence for sequence in self.warming.values() if sequence.tenant == tenant]:
            self.end(sequence, trusted=False)
        self._cache.pins.forget(tenant)
        if self.store is not None:
            self.store.forget(tenant)

    def stored(
        self, prompt_token_ids: SequenceOf[int], regions: SequenceOf[Region], *, tenant: str = ""
    ) -> NDArray[Any] | None:
        """A published prompt's KV from the disk, for `restore`; None when there is none. From any thread."""
        sequence = _published(prompt_token_ids, regions, tenant)
        if self.store is None or sequence is None:
            return None
        return self.store.load(self.store.key(sequence.content(0, sequence.num_tokens), sequence.tenant))

    def restore(
        self,
        name: str,
        prompt_token_ids: SequenceOf[int],
        regions: SequenceOf[Region],
        *,
        tenant: str = "",
        stored: NDArray[Any] | None = None,
    ) -> int:
        """Pin a published prompt as `pin` does, its KV not computed but out of the store.

        `stored`: what `self.stored` gave for it; None: it is read now. Returns how many tokens were restored: 0 when
        the store has no such prompt, when all of it is cached, or when there is no room for it beside what runs.
        """
        sequence = _published(prompt_token_ids, regions, tenant)
        if sequence is None or not self._cache.enabled or self._cache.whole(sequence) is not None:
            return 0
        kv = self.stored(prompt_token_ids, regions, tenant=tenant) if stored is None else stored
        if kv is None:
            return 0
        restored = 0

        def write(blocks: list[int], first: int) -> None:
            nonlocal restored
            self._copy_blocks()  # what the fresh blocks held is to go to the host first
            self._runner.write_blocks(blocks, kv[first:])
            restored = sequence.num_tokens - first * self._cache.block_size

        self._tick()  # between two steps, or before the first one
        if self._scheduler.take_in(sequence, write):
            self._cache.pins.pin(name, sequence, sequence.num_tokens)
        return restored

    # --- while one is computed ------------------------------------------------------------------------------------

    def advance(self, sequence: Sequence, computed: int, drawn: Drawn | None) -> None:
        """One has come so far; at its end it is pinned, and what was drawn behind it is dropped."""
        name = sequence.prompt_name
        assert name is not None
        if drawn is not None and drawn.bad:
            self._cache.forget(sequence, self._scheduler.running)
            self.end(sequence, trusted=False)
            return
        self._scheduler.computed(sequence, computed)
        if drawn is not None:
            self.end(sequence)
            self.computed.append((name, self._pin(name, sequence)))

    def end(self, sequence: Sequence, *, trusted: bool = True) -> None:
        """Compute it no further."""
        assert sequence.prompt_name is not None
        del self.warming[sequence.prompt_name]
        self._scheduler.release(sequence, trusted=trusted)

    def _pin(self, name: str, sequence: Sequence) -> int:
        """Pin it, and save it where that is wanted."""
        if self.store is not None and (blocks := self._cache.whole(sequence)) is not None:
            key = self.store.key(sequence.content(0, sequence.num_tokens), sequence.tenant)
            if self.store.wants(key):
                self.store.save(key, self._runner.read_blocks(blocks, sequence.num_tokens))
        return self._cache.pins.pin(name, sequence, sequence.num_tokens)


def _published(prompt: SequenceOf[int], regions: SequenceOf[Region], tenant: str, arrival: int = 0) -> Sequence | None:
    """The published part of a request's prompt: all regions but the last, its private one. None when that is empty."""
    upto = regions[-2].end if len(regions) > 1 else 0
    if not upto:
        return None
    # What is drawn behind it is not wanted, so nothing is computed from it.
    params, most = SamplingParams(), upto + 1
    return Sequence("", prompt[:upto], params, tenant=tenant, regions=regions, arrival=arrival, max_total=most)


def _open_store(config: EngineConfig, runner: ModelRunner) -> PromptStore | None:
    if not config.prompt_store or not config.prefix_caching:
        return None
    try:
        return PromptStore(
            config.prompt_store,
            revision=runner.revision,
            layout=runner.kv_layout,
            block_size=config.block_size,
            block_bytes=runner.block_bytes,
            most_bytes=config.prompt_store_bytes,
        )
    except OSError as error:
        log.warning("prompt_store.off", folder=config.prompt_store, reason=error.strerror or str(error))
        return None
