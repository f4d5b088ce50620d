"""Whose instructions an answer is given under: an assistant's published ones, or a draft that is being tried out.

Decided when the answer is asked for; what the engine gets is the text itself.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, replace

from chatapp.chat.models import Conversation
from chatapp.errors import Forbidden, NotFound
from chatapp.prompts import selectors
from chatapp.prompts.models import PromptVersion, SystemPrompt
from chatapp.tenants.access import Access
from chatapp.tenants.models import Tenant
from chatapp.tenants.permissions import Permission
from engine.protocol import SystemText

ASSISTANT_MODEL = "assistant:"


@dataclass(frozen=True)
class Instructions:
    """`system` stands before the conversation. `name`, `version`: what the engine pins, and usage is counted for; none
    for a draft. `salt` sets the whole request apart from all others, where it is given."""

    system: tuple[SystemText, ...]
    name: str = ""
    version: PromptVersion | None = None
    salt: str = ""
    digest: tuple[str, ...] = ()


def of_assistant(tenant: Tenant, assistant: SystemPrompt | None) -> Instructions:
    version = selectors.in_force(assistant) if assistant is not None else None
    name = str(assistant.pk) if assistant is not None else ""
    return Instructions(tuple(selectors.system_texts(tenant, version)), name, version)


def of_conversation(access: Access, conversation: Conversation) -> Instructions:
    """Those of its assistant as they are now; of the default one where it has none, or one that was archived since."""
    return of_assistant(access.tenant, selectors.answering(access.tenant, conversation.assistant))


def of_team(access: Access, *, assistant_id: object = None) -> Instructions:
    """Raises NotFound."""
    if assistant_id is None:
        return of_assistant(access.tenant, selectors.default_assistant(access.tenant))
    found = of_assistant(access.tenant, selectors.chosen(access.tenant, assistant_id=assistant_id))
    return replace(found, digest=(str(assistant_id),))


def of_model(access: Access, model: str) -> Instructions | None:
    """Those of the assistant that a model name means; None for the name of a model. Raises NotFound."""
    if not model.startswith(ASSISTANT_MODEL):
        return None
    try:
        assistant = selectors.chosen(access.tenant, slug=model.removeprefix(ASSISTANT_MODEL))
    except NotFound:
        raise NotFound(
            f"There is no assistant {model[:100]!r} in your team.", code="model_not_found", param="model"
        ) from None
    return replace(of_assistant(access.tenant, assistant), digest=(model,))


def of_draft(access: Access, draft_id: object) -> Instructions:
    """A draft, or an older version, to be tried out. Raises Forbidden, NotFound."""
    if not access.may(Permission.EDIT_PROMPTS):
        raise Forbidden("Only who may edit prompts can try out a draft.", param="draft_id")
    version = selectors.version(access.tenant, draft_id)
    # Nobody else's request, and no published one, can find its blocks, and the text's digest keeps edits apart.
    tried = f"draft {version.pk} {access.principal} {hashlib.sha256(version.text.encode()).hexdigest()}"
    salt = hmac.new(access.tenant.salt.encode(), tried.encode(), hashlib.sha256).hexdigest()[:32]
    public = selectors.system_texts(access.tenant, None)
    return Instructions((*public, SystemText(version.text, salt)), salt=salt, digest=(tried,))
