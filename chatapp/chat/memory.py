"""Whose memory may be looked at: one's own conversations', and what waits for a new one. Raises NotFound, Forbidden."""

from __future__ import annotations

from chatapp.chat import selectors
from chatapp.chat.instructions import of_conversation, of_team
from chatapp.chat.requests import model_of
from chatapp.streaming.memory import Look
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission
from engine.protocol import Watch


def look(access: Access, *, conversation_id: object = None, assistant_id: object = None) -> Look:
    """At a conversation of the asker's, or at a new one that `assistant_id` would answer, else the default one."""
    access.require(Permission.CHAT)
    tenant = str(access.tenant.pk)
    if conversation_id is None:
        given = of_team(access, assistant_id=assistant_id)
        return Look(model_of(access, None), Watch(tenant, "", given.name))
    found = selectors.conversation(access, conversation_id)
    model = found.model if found.model in access.tenant.models else None
    return Look(model_of(access, model), Watch(tenant, str(found.pk), of_conversation(access, found).name))
