"""What people do with a conversation as a whole: name it, star it, choose how it is answered, put it away, delete it,
and change their mind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import redis.exceptions
import structlog
from django.db import transaction
from django.utils import timezone

from chatapp.chat import choices, selectors, tags
from chatapp.chat.models import LONGEST_TITLE, UNFINISHED, Conversation, TitledBy
from chatapp.chat.requests import model_of
from chatapp.chat.text import clean, one_line
from chatapp.errors import BadInput, NotFound
from chatapp.streaming.cancel import cancel
from chatapp.tenants.access import Access

log = structlog.get_logger(__name__)

MOST_AT_ONCE = 100


def rename(*, access: Access, conversation_id: object, name: str) -> Conversation:
    """One line of text, without what would turn its direction. Raises NotFound, BadInput."""
    conversation = selectors.conversation(access, conversation_id)
    words = one_line(clean(name, param="title"))
    if len(words) > LONGEST_TITLE:
        raise BadInput(f"A title has at most {LONGEST_TITLE} characters; this one has {len(words)}.", param="title")
    conversation.title, conversation.titled_by = words, TitledBy.PERSON
    conversation.save(update_fields=["title", "titled_by"])
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
    wanted: dict[str, Any] = {}
    if params is not None:
        wanted["params"] = choices.chosen(access, params)
    if model is not None:
        wanted["model"] = model_of(access, model)
    for name, value in wanted.items():
        setattr(conversation, name, value)
    # What stays may be changed by a question at this moment.
    conversation.save(update_fields=wanted)
    return conversation


def set_archived(*, access: Access, conversation_id: object, archived: bool) -> Conversation:
    """Out of the list, or back into it; nothing else about it changes. Raises NotFound, Forbidden."""
    conversation = selectors.conversation(access, conversation_id)
    if archived != (conversation.archived_at is not None):
        conversation.archived_at = timezone.now() if archived else None
        conversation.save(update_fields=["archived_at"])
    return conversation


def change_many(
    *,
    access: Access,
    conversation_ids: Sequence[object],
    starred: bool | None = None,
    archived: bool | None = None,
    deleted: bool | None = None,
    add_tags: Sequence[object] = (),
    remove_tags: Sequence[object] = (),
) -> list[Conversation]:
    """The same for several, each by itself: those that are not there, or not any more, are left out. Those that were
    changed. Raises BadInput."""
    if len(conversation_ids) > MOST_AT_ONCE:
        raise BadInput(f"Change at most {MOST_AT_ONCE} conversations at once.", param="ids")
    changed: list[Conversation] = []
    for conversation_id in dict.fromkeys(conversation_ids):
        named: dict[str, Any] = {"access": access, "conversation_id": conversation_id}
        try:
            found = restore(**named) if deleted is False else selectors.conversation(access, conversation_id)
            if starred is not None:
                found = set_starred(**named, starred=starred)
            if archived is not None:
                found = set_archived(**named, archived=archived)
            if add_tags or remove_tags:
                tags.change_tags(access=access, conversation=found, add=add_tags, remove=remove_tags)
            if deleted:
                found = delete(**named)
        except NotFound:
            continue
        changed.append(found)
    return changed


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
