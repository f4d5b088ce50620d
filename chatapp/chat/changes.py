"""Tells people's open pages and programs what has changed about their conversations, and what their answers used.

Said once the transaction that changed it has been committed, and to nobody else than whose it is. Any `save` of a
conversation is told; an update of many rows at once (retention) is not: nobody looks at what is that old.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models.signals import post_save
from django.dispatch import receiver

from chatapp.chat import recorder
from chatapp.chat.models import UNFINISHED, Conversation, Generation, Tag
from chatapp.chat.recorder import Answer
from chatapp.streaming import topics

WAITING = "_told_when_committed"


@receiver(post_save, sender=Conversation)
def saved(instance: Conversation, **_: Any) -> None:
    changed(instance)


def changed(instance: Conversation) -> None:
    """What is told of it has changed, by itself or with its tags."""
    if instance.__dict__.get(WAITING):
        return  # saved before in this transaction: it is told once, as it is at the end
    instance.__dict__[WAITING] = True

    def tell() -> None:
        instance.__dict__.pop(WAITING, None)
        _tell(instance)

    transaction.on_commit(tell, robust=True)


@receiver(recorder.ended)
def ended(generation: Generation, answer: Answer, **_: Any) -> None:
    def tell() -> None:
        used = {
            "prompt_tokens": answer.prompt_tokens,
            "cached_tokens": answer.cached_tokens,
            "shared_tokens": answer.shared_tokens,
            "completion_tokens": answer.completion_tokens,
        }
        told = {"topic": "usage", "response_id": str(generation.pk), "model": generation.model, "usage": used}
        topics.tell(generation.tenant_id, generation.principal, told)
        if generation.conversation_id is not None:
            found = Conversation.objects.filter(pk=generation.conversation_id).first()
            if found is not None:
                _tell(found)

    transaction.on_commit(tell, robust=True)


def _tell(conversation: Conversation) -> None:
    told: dict[str, Any] = {"topic": "conversations"}
    if conversation.deleted_at is not None:
        told["deleted"] = str(conversation.pk)
    else:
        told["conversation"] = {
            "id": str(conversation.pk),
            "title": conversation.title,
            "updated_at": conversation.updated_at.isoformat(),
            "starred_at": conversation.starred_at.isoformat() if conversation.starred_at else None,
            "archived_at": conversation.archived_at.isoformat() if conversation.archived_at else None,
            "tags": list(Tag.objects.filter(conversation=conversation.pk).values_list("name", flat=True)),
            "running": Generation.objects.filter(conversation=conversation.pk, state__in=UNFINISHED).exists(),
        }
    owner = f"user:{conversation.user_id}" if conversation.user_id is not None else f"key:{conversation.key_id}"
    topics.tell(conversation.tenant_id, owner, told)
