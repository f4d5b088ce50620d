"""What people do with a conversation as a whole: name it, star it, choose how it is answered, delete
it, and change their mind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis.exceptions
import structlog
from django.db import transaction
from django.utils import timezone

from chatapp.chat import choices, selectors
from chatapp.chat.models import LONGEST_TITLE, UNFINISHED, Conversation
from chatapp.chat.requests import model_of
from chatapp.chat.text import DIRECTIONS, clean
from chatapp.errors import BadInput
from chatapp.streaming.cancel import cancel
from chatapp.tenants.access import Access

log = structlog.get_logger(__name__)


def rename(*, access: Access, conversation_id: object, name: str) -> Conversation:
    """One line of text, without what would turn its direction. Raises NotFound, BadInput."""
    conversation = selectors.conversation(access, conversation_id)
    words = " ".join(clean(name, param="title").translate(DIRECTIONS).split())
    if len(words) > LONGEST_TITLE:
        raise BadInput(f"A title has at most {LONGEST_TITLE} characters; this one has {len(words)}.", param="title")
    conversation.title = words
    conversation.save(update_fields=["title"])
    return conversation


def set_starred(*, access: Access, conversation_id: object, starred: bool) -> Conversation:
    """Star a conversation of one's own, or take the star off; the first time is kept. Raises NotFound, Forbidden."""
    conversation = selectors.conversation(access, conversation_id)
    if starred != (conversation.starred_at is not None):
        conversation.starred_at = timezone.now() if starred else None
        conversation.save(update_fields=["starred_at"])
    return conversation


def choose(
    *, access: Access, conversation_id: object, params: Mapping[str, Any] | None = None, model: str | None = None
) -> Conversation:
    """How it is answered from now on; what is None stays. `params` replaces all that were chosen before.

    Raises NotFound (the model too), BadInput with the field."""
    conversation = selectors.conversation(access, conversation_id)
    if params is not None:
        conversation.params = choices.chosen(access, params)
    if model is not None:
        conversation.model = model_of(access, model)
    conversation.save(update_fields=["params", "model"])
    return conversation


def delete(*, access: Access, conversation_id: object) -> Conversation:
    """Nobody sees it from now on; it can be asked back (`restore`) until the nightly deletion. An answer under way is
    stopped. Raises NotFound."""
    with transaction.atomic():
        conversation = selectors.conversation(access, conversation_id)
        conversation.deleted_at = timezone.now()
        conversation.save(update_fields=["deleted_at"])
    for generation in conversation.generations.filter(state__in=UNFINISHED):
        try:
            cancel(str(generation.pk))
        except redis.exceptions.RedisError as error:  # it ends by itself, unseen
            log.warning("generation.not_stopped", generation=str(generation.pk), error=type(error).__name__)
    return conversation


def restore(*, access: Access, conversation_id: object) -> Conversation:
    """Undo `delete`. Raises NotFound once it is gone for good."""
    conversation = selectors.conversation(access, conversation_id, deleted=True)
    if conversation.deleted_at is not None:
        conversation.deleted_at = None
        conversation.save(update_fields=["deleted_at"])
    return conversation
