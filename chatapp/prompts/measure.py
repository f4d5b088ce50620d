"""How long a prompt is for the engine: tokens, blocks of its memory, and its share of what the tenant may use.

The figures are the engine's own: it renders the text as it would for an answer and counts. Without an engine there are
none, and that is said.
"""

from __future__ import annotations

from dataclasses import dataclass

import redis.exceptions
from django.conf import settings

from chatapp.errors import TooMany
from chatapp.limits import rates
from chatapp.limits.rates import Rate
from chatapp.limits.selectors import limits_of_team
from chatapp.prompts.selectors import kv_quota_blocks
from chatapp.streaming.prompts import NoAnswer, NoWorker, count
from chatapp.tenants.access import Access
from chatapp.tenants.models import Tenant

EXACT, NO_WORKER, NO_ANSWER = "exact", "no_worker", "no_answer"
MESSAGES = {
    NO_WORKER: "No engine runs for {model} right now, so nothing can be measured. Figures appear once one does.",
    NO_ANSWER: "The engine did not answer within a second. It is busy; the next change asks again.",
}
# What a conversation needs besides: a question and an answer of a few lines.
ROOM_TOKENS = 64
# Of one who asks: a page asks when typing pauses, four times a second at most and hardly ever so for long.
MOST_A_MINUTE = 120


@dataclass(frozen=True)
class Measure:
    """`tokens`: what is shared by all conversations: the model's opening, the platform's preamble and the text, of
    which `own_tokens` are the text's. They fill `blocks` of `block_size` slots; `unused_slots` of the last one stay
    empty. `quota_blocks`: the tenant's share of the memory; `context`: of the model, or the tenant's limit."""

    state: str = EXACT
    message: str = ""
    tokens: int = 0
    own_tokens: int = 0
    blocks: int = 0
    block_size: int = 0
    unused_slots: int = 0
    quota_blocks: int = 0
    context: int = 0

    @property
    def share(self) -> float:
        """Of the quota, from 0 (also where it is not known)."""
        return self.blocks / self.quota_blocks if self.quota_blocks else 0.0

    @property
    def most_tokens(self) -> int:
        """The longest that a prompt may be."""
        return max(0, min(self.context, self.quota_blocks * self.block_size) - ROOM_TOKENS)

    @property
    def too_long(self) -> str:
        """Why it cannot be published, with the figures; empty when it can."""
        if self.state != EXACT or self.tokens <= self.most_tokens:
            return ""
        limit = f"an answer may build on {self.context:,} tokens at most, by the model's context and your team's limits"
        if self.quota_blocks * self.block_size < self.context:
            limit = f"your team's memory holds {self.quota_blocks * self.block_size:,} tokens"
        return (
            f"These instructions take {self.tokens:,} tokens; {limit}, and a question and its answer need"
            f" {ROOM_TOKENS} of them. Shorten the text by about {self.tokens - self.most_tokens:,} tokens."
        )


def check_pace(access: Access) -> None:
    """Raises TooMany for one who asks faster than a page does: a long text costs an engine's bus some of its time."""
    refused = rates.take([Rate("measures", str(access.tenant.pk), access.principal, MOST_A_MINUTE)], 1)
    if refused is not None:
        seconds = int(refused[1]) + 1
        raise TooMany(
            f"You may have {MOST_A_MINUTE} texts measured a minute. Try again in {seconds} s.",
            code="rate_limit_exceeded",
            retry_after_s=seconds,
        )


def measure(tenant: Tenant, text: str) -> Measure:
    """Never raises for an engine or a Redis that is away: then the state says so."""
    preamble = [settings.OCTAVO_PREAMBLE] if settings.OCTAVO_PREAMBLE else []
    try:
        counted = count([*preamble, text], model=tenant.model)
        quota = kv_quota_blocks(tenant) or counted.tenant_blocks
        most = limits_of_team(tenant).context_tokens or counted.context
    except NoWorker:
        return Measure(NO_WORKER, MESSAGES[NO_WORKER].format(model=tenant.model or "any of your team's models"))
    except (NoAnswer, redis.exceptions.RedisError):
        return Measure(NO_ANSWER, MESSAGES[NO_ANSWER])
    blocks = -(-counted.tokens // counted.block_size)
    return Measure(
        tokens=counted.tokens,
        own_tokens=counted.own_tokens if text.strip() else 0,
        blocks=blocks,
        block_size=counted.block_size,
        unused_slots=blocks * counted.block_size - counted.tokens,
        quota_blocks=quota,
        context=min(counted.context, most),
    )
