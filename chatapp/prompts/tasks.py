"""Celery's part in publishing: tell the engines. Messages carry ids, never text."""

from __future__ import annotations

import redis.exceptions
import structlog
from celery import shared_task

from chatapp.limits.selectors import limits_of_team
from chatapp.prompts.models import PromptVersion
from chatapp.prompts.selectors import models_of, system_texts
from chatapp.scope import tenant_scope
from chatapp.streaming.prompts import announce, release
from engine.protocol import PublishedPrompt

log = structlog.get_logger(__name__)


def tell_engines(version: PromptVersion, *, worker: str = "") -> int:
    """Have the engines of the tenant's models (or one `worker`) compute a version before somebody asks; how many."""
    assistant = version.prompt
    tenant = assistant.tenant
    prompt = PublishedPrompt(
        tenant=str(tenant.pk),
        prompt=str(assistant.pk),
        version=str(version.pk),
        system=system_texts(tenant, version),
        weight=limits_of_team(tenant).weight,
    )
    return announce(prompt, models=models_of(tenant), worker=worker)


@shared_task
def warm(tenant_id: str, version_id: str) -> None:
    """That fails only where it is not needed: without Redis nobody answers, and new chats switch by themselves."""
    with tenant_scope(tenant_id):
        found = PromptVersion.objects.select_related("prompt", "prompt__tenant").filter(pk=version_id).first()
        if found is None or found.prompt.published_id != found.pk or found.prompt.archived_at is not None:
            return  # something newer was published meanwhile
        try:
            engines = tell_engines(found)
        except redis.exceptions.RedisError as error:
            log.info("prompt.not_announced", version=version_id, error=type(error).__name__)
            return
    log.info("prompt.announced", tenant=tenant_id, version=version_id, engines=engines)


@shared_task
def let_go(tenant_id: str, assistant_id: str, version_id: str) -> None:
    try:
        release(assistant_id, version_id)
    except redis.exceptions.RedisError as error:
        log.info("prompt.not_released", version=version_id, error=type(error).__name__)
        return
    log.info("prompt.released", tenant=tenant_id, version=version_id)
