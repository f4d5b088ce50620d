"""Tells engines that have just come what is published: they have only heard of what was published since.

Every few seconds the live engines are looked over; one that nobody has greeted yet is told of the published prompts of
the tenants that it serves, the most used first, and computes them before somebody asks.
"""

from __future__ import annotations

from uuid import UUID

import redis.exceptions
import structlog

from chatapp.chat.prompt_use import most_used
from chatapp.prompts.models import SystemPrompt
from chatapp.prompts.selectors import models_of
from chatapp.prompts.tasks import tell_engines
from chatapp.scope import unscoped
from chatapp.streaming import prompts, workers
from engine.protocol import WorkerDetails

log = structlog.get_logger(__name__)

MOST_PROMPTS = 32
"""What one engine is told of. The rest is computed when it is first asked for."""


@unscoped("greeting")
def greet_workers() -> int:
    """One round; how many engines were greeted. Does nothing without Redis."""
    try:
        new = [worker for worker in prompts.ungreeted(workers.live()) if not worker.draining]
        for worker in new:
            told = _greet(worker)
            prompts.greeted(worker.id)
            log.info("worker.greeted", worker=worker.id, model=worker.model, prompts=told)
    except redis.exceptions.RedisError as error:
        log.info("worker.not_greeted", error=type(error).__name__)
        return 0
    return len(new)


def _greet(worker: WorkerDetails) -> int:
    rank: dict[UUID, int] = {version: place for place, version in enumerate(most_used(4 * MOST_PROMPTS))}
    assistants = SystemPrompt.objects.filter(
        archived_at=None, published__isnull=False, tenant__suspended_at=None
    ).select_related("tenant", "published", "published__prompt", "published__prompt__tenant")
    serving = [one for one in assistants if worker.model in models_of(one.tenant)]
    # Those that nobody has used yet come last, the default ones before the others.
    serving.sort(key=lambda one: (rank.get(one.published_id, len(rank)), not one.is_default, one.created_at))
    for one in serving[:MOST_PROMPTS]:
        assert one.published is not None
        tell_engines(one.published, worker=worker.id)
    return len(serving[:MOST_PROMPTS])
