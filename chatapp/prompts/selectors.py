"""What can be read of assistants and their prompts. Who reads a team's pages has asked for the permission already."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

import redis.exceptions
from django.conf import settings
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.errors import NotFound
from chatapp.ids import parse_id
from chatapp.limits.selectors import limits_of_team
from chatapp.prompts.models import PromptVersion, SystemPrompt
from chatapp.streaming import workers
from chatapp.streaming.prompts import warm_workers
from chatapp.tenants.models import Tenant
from engine.protocol import PUBLIC_SALT, SystemText

SWITCH_AFTER = timedelta(seconds=10)
"""New answers get a published version once an engine has it in memory, and after so long in any case."""


# --- for answers --------------------------------------------------------------------------------------------------


def in_force(assistant: SystemPrompt) -> PromptVersion | None:
    """The version that an answer which begins now gets; None: no instructions.

    That is decided anew for every answer: a conversation that goes on gets the newest version too, as instructions are
    mended for everybody; an answer that runs keeps the one it began with.
    """
    newest = assistant.published
    if newest is None or assistant.former_id is None or newest.published_at is None:
        return newest
    if timezone.now() - newest.published_at >= SWITCH_AFTER:
        return newest
    try:
        return newest if warm_workers(str(newest.pk)) else assistant.former
    except redis.exceptions.RedisError:
        return assistant.former  # until its time has come


def default_assistant(tenant: Tenant) -> SystemPrompt | None:
    found = SystemPrompt.objects.filter(tenant=tenant, is_default=True)
    return found.select_related("published", "former").first()


def published(tenant: Tenant) -> PromptVersion | None:
    """The version that answers get where nobody chose an assistant, None when there is none."""
    assistant = default_assistant(tenant)
    return in_force(assistant) if assistant is not None else None


def answering(tenant: Tenant, assistant: SystemPrompt | None) -> SystemPrompt | None:
    """Who answers in a conversation with this assistant: the default one, when it was archived since."""
    if assistant is None or assistant.archived_at is not None:
        return default_assistant(tenant)
    return assistant


def choosable(tenant: Tenant) -> list[SystemPrompt]:
    """The assistants that a new chat may choose: those with instructions, and the default one."""
    found = SystemPrompt.objects.filter(tenant=tenant, archived_at=None).select_related("published", "former")
    return [assistant for assistant in found if assistant.published_id or assistant.is_default]


def chosen(tenant: Tenant, *, assistant_id: object = None, slug: str | None = None) -> SystemPrompt:
    """The one that a caller names. Raises NotFound for another team's, an archived one, and one not yet published."""
    for assistant in choosable(tenant):
        if (slug is not None and assistant.slug == slug) or (slug is None and assistant.pk == parse_id(assistant_id)):
            return assistant
    raise NotFound(_("There is no such assistant."), param="assistant_id" if slug is None else "model")


def system_texts(tenant: Tenant, version: PromptVersion | None) -> list[SystemText]:
    """What stands before every conversation of a tenant, each part with the salt of those who share it."""
    texts = [SystemText(settings.OCTAVO_PREAMBLE, PUBLIC_SALT)] if settings.OCTAVO_PREAMBLE else []
    if version is not None:
        texts.append(SystemText(version.text, tenant.salt))
    return texts


# --- for the engines ----------------------------------------------------------------------------------------------


def models_of(tenant: Tenant) -> Collection[str]:
    """The models that the tenant's answers may come from."""
    return frozenset(tenant.models)


def kv_quota_blocks(tenant: Tenant) -> int | None:
    """How many blocks of an engine's pool the tenant may use by its plan and the engine's own setting: the least of its
    live engines; None: there is none."""
    share = limits_of_team(tenant).kv_share
    sizes = [
        min(worker.tenant_blocks or worker.num_blocks, max(1, int(worker.num_blocks * share)))
        for worker in workers.live()
        if worker.model in models_of(tenant)
    ]
    return min(sizes) if sizes else None


def ready_workers(version: PromptVersion, tenant: Tenant) -> tuple[int, int]:
    """How many of the tenant's live engines have the version in memory, and how many there are."""
    live = {worker.id for worker in workers.live() if worker.model in models_of(tenant)}
    return len(live & warm_workers(str(version.pk))), len(live)


# --- for the pages ------------------------------------------------------------------------------------------------


def assistants(tenant: Tenant) -> list[SystemPrompt]:
    """All of them, in order, the archived ones last; each with `drafted`: whether it has a draft."""
    drafts = PromptVersion.objects.filter(prompt=OuterRef("pk"), published_at=None)
    found = SystemPrompt.objects.filter(tenant=tenant).select_related("published", "published__published_by", "former")
    return sorted(found.annotate(drafted=Exists(drafts)), key=lambda one: one.archived_at is not None)


def assistant(tenant: Tenant, assistant_id: object) -> SystemPrompt:
    """Archived ones too. Raises NotFound."""
    found = SystemPrompt.objects.filter(tenant=tenant, pk=parse_id(assistant_id))
    one = found.select_related("tenant", "published", "published__published_by", "former").first()
    if one is None:
        raise NotFound(_("There is no such assistant."), param="assistant_id")
    return one


def draft(of: SystemPrompt) -> PromptVersion | None:
    found = PromptVersion.objects.filter(prompt=of, published_at=None)
    return found.select_related("changed_by", "prompt").first()


def versions(of: SystemPrompt) -> QuerySet[PromptVersion]:
    """The published ones, the newest first."""
    found = PromptVersion.objects.filter(prompt=of, published_at__isnull=False)
    return found.select_related("published_by", "restores").order_by("-number")


def version(tenant: Tenant, version_id: object) -> PromptVersion:
    """A version or a draft of one of the tenant's assistants. Raises NotFound."""
    found = PromptVersion.objects.filter(prompt__tenant=tenant, pk=parse_id(version_id))
    one = found.select_related("prompt", "prompt__tenant", "published_by", "changed_by", "restores").first()
    if one is None:
        raise NotFound(_("There is no such version."), param="version_id")
    return one
