"""Stars: what a person wants to keep, however old it gets."""

from __future__ import annotations

from django.utils import timezone

from chatapp.chat import selectors
from chatapp.chat.models import Conversation
from chatapp.tenants.access import Access


def set_starred(*, access: Access, conversation_id: object, starred: bool) -> Conversation:
    """Star a conversation of one's own, or take the star off; the first time is kept. Raises NotFound, Forbidden."""
    conversation = selectors.conversation(access, conversation_id)
    if starred != (conversation.starred_at is not None):
        conversation.starred_at = timezone.now() if starred else None
        conversation.save(update_fields=["starred_at"])
    return conversation
