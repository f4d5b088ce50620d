"""The published prompts that a worker keeps: told of, computed ahead, acknowledged, let go.

Owns which version is pinned under which prompt's name, and how many tokens a text takes. A prompt is named by the
product (an assistant's id); without a name it is the tenant's only one. Promises: a version is acknowledged once its
blocks are there; one that was replaced or released is not pinned again by a request that was queued before that; what
cannot be prepared harms nobody, since who asks computes it. No prompt text is logged. Knows no Redis.

`render_published` and `count` run in the worker's tokenizer thread, all else in the engine loop.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import structlog

from engine.outputs import RequestRefused
from engine.protocol import ChatMessage, Counted, CountRequest, PublishedPrompt, Request, SystemText

if TYPE_CHECKING:
    from engine.bus import Bus
    from engine.llm_engine import LLMEngine

log = structlog.get_logger(__name__)

LOOKS = 64
"""Prompts that are looked for in the pool at a time: a look takes up to 30 microseconds, four times a second."""
LET_GO = 4096
"""Replaced and released versions that are remembered: far more than the requests that can wait with one of them."""


class WorkerPrompts:
    def __init__(self, engine: LLMEngine, bus: Bus) -> None:
        self.pinned: dict[str, str] = {}
        """name -> version"""
        self._tenants: dict[str, str] = {}
        self._held: set[str] = set()  # names whose prompt was in the pool when we looked
        self._let_go: dict[str, None] = {}
        self._looked_up: set[tuple[str, str]] = set()  # tenants' versions that were looked for on disk
        self._engine = engine
        self._bus = bus

    # --- the tokenizer's thread -----------------------------------------------------------------------------------

    def render_published(self, prompt: PublishedPrompt) -> tuple[PublishedPrompt, list[int], list[Any], Any] | None:
        """Tokenize a published prompt, with a question behind it that nobody asks: only what comes before is kept."""
        try:
            token_ids, regions = self._render(prompt.system, secrets.token_hex(16))
            stored = self.stored(prompt.tenant, prompt.version, token_ids, regions)
        except Exception as error:  # nobody waits for it; who asks for it later is told
            log.warning("prompt.not_warmed", version=prompt.version, error=type(error).__name__)
            return None
        return prompt, token_ids, regions, stored

    def count(self, request: CountRequest) -> Counted:
        """How many tokens the system texts take where they are shared: with the template's opening, up to their end."""
        engine = self._engine
        sizes: dict[str, Any] = {
            "block_size": engine.block_size,
            "context": engine.context,
            "tenant_blocks": engine.max_blocks_per_tenant,
        }
        try:
            # Salts of their own, so that the last region is the question's whatever the texts are.
            texts = [SystemText(text, f"text {number}") for number, text in enumerate(request.texts)]
            _, regions = self._render(texts, "question")
        except Exception as error:
            log.warning("count.failed", error=type(error).__name__)
            return Counted(error=type(error).__name__, **sizes)
        shared = regions[-2].end if len(regions) > 1 else 0
        own = len(engine.tokenizer.encode(request.texts[-1])) if request.texts else 0
        return Counted(tokens=shared, own_tokens=min(own, shared), **sizes)

    def _render(self, system: list[SystemText], salt: str) -> tuple[list[int], list[Any]]:
        return self._engine.tokenizer.render_chat(system, [ChatMessage("user", "-")], salt)

    def stored(self, tenant: str, version: str, token_ids: list[int], regions: list[Any]) -> Any:
        """A published prompt's KV, when it is first asked for. The engine loop must not wait for a disk."""
        if not version or (tenant, version) in self._looked_up:
            return None
        self._looked_up.add((tenant, version))
        return self._engine.prompts.stored(token_ids, regions, tenant=tenant)

    # --- the engine loop ------------------------------------------------------------------------------------------

    def warm(self, prompt: PublishedPrompt, token_ids: list[int], regions: list[Any], stored: Any) -> None:
        """Have a prompt that was just published in the pool before anybody asks; the one before it goes for it."""
        name, version = prompt.name, prompt.version
        tokens = regions[-2].end if len(regions) > 1 else 0
        if self.pinned.get(name) == version:
            if name not in self._engine.prompts.warming:
                self._bus.acknowledge(version, tokens)
            return
        if stored is not None and self.restore(name, prompt.tenant, version, token_ids, regions, stored):
            return
        try:
            self._engine.prompts.warm(name, token_ids, regions, tenant=prompt.tenant, weight=prompt.weight)
        except RequestRefused as refused:
            log.warning("prompt.not_warmed", version=version, error=refused.code)
            return
        log.info("prompt.warming", version=version, tokens=tokens)
        self._keep(name, prompt.tenant, version)
        if name not in self._engine.prompts.warming:  # the model's template has no place for it
            self._bus.acknowledge(version, 0)

    def restore(
        self, name: str, tenant: str, version: str, token_ids: list[int], regions: list[Any], stored: Any
    ) -> bool:
        """Have a published prompt in the pool before the request that needs it; failing that it is computed."""
        try:
            restored = self._engine.prompts.restore(name, token_ids, regions, tenant=tenant, stored=stored)
        except Exception as error:
            log.error("prompt.not_restored", version=version, error=type(error).__name__)
            return False
        if restored:
            log.info("prompt.restored", version=version, tokens=restored)
            self._keep(name, tenant, version)
            self._bus.acknowledge(version, restored)
        return bool(restored)

    def wants(self, request: Request) -> bool:
        """Whether this request's prompt is to be pinned once it is computed."""
        version = request.prompt_version
        return bool(version) and self.pinned.get(request.prompt_name) != version and version not in self._let_go

    def pin(self, request: Request, token_ids: list[int], regions: list[Any]) -> None:
        """The request's prompt is computed: keep the published part of it in the cache."""
        if not self.wants(request):
            return  # a newer one was published while it ran
        name, version = request.prompt_name, request.prompt_version
        tokens = self._engine.prompts.pin(name, token_ids, regions, tenant=request.tenant)
        self._keep(name, request.tenant, version)
        self._bus.acknowledge(version, tokens)

    def release(self, name: str, version: str) -> None:
        """It is published no longer: its blocks may be evicted like any others."""
        self._engine.prompts.release(name)
        for old in {self.pinned.pop(name, ""), version} - {""}:
            self._forget(old)
        if self._tenants.pop(name, None) is not None:
            log.info("prompt.released", version=version)
        self._say_whose()

    def forget_tenant(self, tenant: str) -> None:
        """The tenant is being deleted, and the engine has dropped its prompts: know none of them either."""
        for name in [name for name, owner in self._tenants.items() if owner == tenant]:
            del self._tenants[name]
            self._forget(self.pinned.pop(name))
        self._looked_up = {looked_up for looked_up in self._looked_up if looked_up[0] != tenant}
        self._say_whose()

    def acknowledge(self) -> None:
        """Say which prompts have been computed since the last step."""
        computed = self._engine.prompts.computed
        while computed:
            name, tokens = computed.popleft()
            if name in self.pinned:
                log.info("prompt.warm", version=self.pinned[name], pinned=tokens)
                self._bus.acknowledge(self.pinned[name], tokens)

    def _keep(self, name: str, tenant: str, version: str) -> None:
        former = self.pinned.get(name)
        if former is not None and former != version:
            self._forget(former)
        self._let_go.pop(version, None)  # an archived assistant came back
        self.pinned[name], self._tenants[name] = version, tenant
        self._look_for(name)
        self._say_whose()

    def look(self) -> None:
        """Find out whose prompts are here now: pins share half of the pool, and what is not pinned is evicted, or
        computed again. With many prompts some of them, the others the next time."""
        for _ in range(min(LOOKS, len(self._tenants))):
            name = next(iter(self._tenants))
            self._tenants[name] = self._tenants.pop(name)
            self._look_for(name)
        self._say_whose()

    def _look_for(self, name: str) -> None:
        if self._engine.prompts.holds(name):
            self._held.add(name)
        else:
            self._held.discard(name)

    def _say_whose(self) -> None:
        self._held &= self._tenants.keys()
        self._bus.warm({self._tenants[name] for name in self._held})

    def _forget(self, version: str) -> None:
        self._let_go[version] = None
        if len(self._let_go) > LET_GO:
            del self._let_go[next(iter(self._let_go))]
