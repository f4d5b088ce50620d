"""Whose memory may be looked at: one's own conversations', what waits for a new one, and what a team's answers are that
run now. Raises NotFound, Forbidden."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chatapp.chat import selectors, used
from chatapp.chat.instructions import of_conversation, of_team
from chatapp.chat.models import Generation
from chatapp.chat.requests import model_of
from chatapp.ids import parse_id
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


@dataclass(frozen=True)
class Answer:
    """What a running answer is: of a chat, or of the API, and the assistant's name, empty for none. Not whose it is."""

    kind: str
    assistant: str


def answers(access: Access, ids: Iterable[str]) -> dict[str, Answer]:
    """Those of the team among these generations. Takes the ids as engines say them."""
    access.require(Permission.READ_DASHBOARD)
    rows = Generation.objects.filter(tenant=access.tenant, pk__in=[parse_id(one) for one in ids])
    return {
        str(row.pk): Answer(str(used.kind(row)), row.prompt_version.prompt.name if row.prompt_version else "")
        for row in rows.select_related("prompt_version__prompt").defer("request")
    }
