"""Titles that the model writes, where a team has asked for them: after the first answer, behind the team's chats.

What is asked stands beside the conversation, with its own salt: the engine has all but the last words of it in its
cache. A message of Celery's carries the conversation's id and nothing of what was said. The title comes with the
record of its generation, in that transaction: written once, never over one that a person gave, never into a
conversation that has been deleted meanwhile. Whatever fails leaves the first words, which are a title already.
"""

from __future__ import annotations

import uuid
from datetime import timedelta

import redis.exceptions
import structlog
from django.db import transaction
from django.utils import timezone

from chatapp.chat.models import Conversation, Generation, Message, MessageRole, MessageStatus, State, TitledBy
from chatapp.chat.recorder import Answer
from chatapp.chat.requests import history_of
from chatapp.chat.stateless import complete_in
from chatapp.chat.text import lines_of, plain_line, title
from chatapp.errors import Refusal, TooMany, Unavailable
from chatapp.ids import parse_id
from chatapp.limits.selectors import limits_of, under_way
from chatapp.limits.values import least
from chatapp.scope import tenant_scope, unscoped
from chatapp.streaming import workers
from chatapp.tenants.access import Access, NoAccess, access_for_user
from chatapp.tenants.permissions import Permission
from engine.protocol import ChatMessage

log = structlog.get_logger(__name__)

# The key of a title's generation names its conversation, and lets one title be written for each.
KEY = "octavo title "
ASKS = (
    "Write a title for this conversation: two to six words, in the language of the conversation, without quotation "
    "marks. Answer with the title and nothing else."
)
PARAMS = {"temperature": 0, "max_tokens": 24}
DEADLINE = timedelta(minutes=10)
# Where the team's chats leave no room, somebody looks again a while later, and then lets it be.
AGAIN_S = (2, 5, 10, 20, 40, 60, 120)
SHORTEST, LONGEST = 2, 80
QUOTES = "\"'“”„\u2018\u2019«»\u2039\u203a「」『』 "
BEFORE = ("title:", "titel:", "título:", "标题:", "标题\uff1a")


# --- after an answer ------------------------------------------------------------------------------------------------


def on_ended(sender: object, *, generation: Generation, answer: Answer, **more: object) -> None:
    """A receiver of chatapp.chat.recorder.ended, in its transaction."""
    if generation.state != State.FINISHED or not generation.principal.startswith("user:"):
        return
    if generation.conversation_id is not None:
        _wish(generation)
    elif generation.idempotency_key and generation.idempotency_key.startswith(KEY):
        _take(generation, answer)


def _wish(generation: Generation) -> None:
    if (
        not generation.tenant.model_titles
        or Message.objects.filter(conversation=generation.conversation_id).count() > 2
    ):
        return
    conversation = str(generation.conversation_id)
    transaction.on_commit(lambda: start(conversation), robust=True)


def start(conversation_id: str, turn: int = 0) -> None:
    from chatapp.chat import tasks

    wait = AGAIN_S[turn - 1] if turn else None
    try:
        tasks.write_title.apply_async(args=[conversation_id, turn], countdown=wait, retry=False)
    except Exception as error:  # no broker: its first words stay
        log.warning("title.not_started", conversation=conversation_id, error=type(error).__name__)


# --- in Celery ------------------------------------------------------------------------------------------------------


def write(conversation_id: str, turn: int = 0) -> bool:
    """Ask for the title; whether it has been asked for."""
    with unscoped("titles"):
        rows = Conversation.objects.filter(pk=parse_id(conversation_id)).select_related("tenant", "user", "assistant")
        conversation = rows.first()
    if conversation is None or not _wanted(conversation) or conversation.user is None:
        return False
    try:
        access = access_for_user(conversation.user, conversation.tenant.slug)
    except (NoAccess, Refusal):
        return False
    if not access.may(Permission.CHAT):
        return False
    with tenant_scope(conversation.tenant):
        try:
            if _asked(access, conversation):
                return True
            if _has_room(access):
                return _ask(access, conversation)
        except (TooMany, Unavailable) as refusal:
            if not refusal.retryable:
                return False
        except Refusal as refusal:
            log.info("title.refused", conversation=conversation_id, code=refusal.code)
            return False
        except redis.exceptions.RedisError as error:
            log.warning("title.waits", conversation=conversation_id, error=type(error).__name__)
    if turn < len(AGAIN_S):
        start(conversation_id, turn + 1)
    return False


def _wanted(conversation: Conversation) -> bool:
    return (
        conversation.tenant.model_titles
        and conversation.titled_by == TitledBy.WORDS
        and conversation.deleted_at is None
        and conversation.tenant.suspended_at is None
    )


def _asked(access: Access, conversation: Conversation) -> bool:
    """Somebody was here before; the title itself may be what waits now."""
    key = f"{KEY}{conversation.pk}"
    return Generation.objects.filter(tenant=access.tenant, principal=access.principal, idempotency_key=key).exists()


def _has_room(access: Access) -> bool:
    """Chats first: nobody of the team waits, and half of what may run at once is free. Raises RedisError."""
    limits = limits_of(access)
    most = least(limits.team.concurrent_answers, limits.own.concurrent_answers)
    if most is not None and 2 * max(under_way(access.tenant, access.principal)) >= most:
        return False
    return not workers.waits(str(access.tenant.pk), access.tenant.models)


def _ask(access: Access, conversation: Conversation) -> bool:
    answers = conversation.messages.filter(role=MessageRole.ASSISTANT, status=MessageStatus.DONE).exclude(text="")
    answer = answers.order_by("created_at", "id").first()
    if answer is None:
        return False
    complete_in(
        access=access,
        conversation=conversation,
        history=[*history_of(answer), ChatMessage("user", ASKS)],
        params=PARAMS,
        idempotency_key=f"{KEY}{conversation.pk}",
        deadline=timezone.now() + DEADLINE,
    )
    return True


# --- with its record ------------------------------------------------------------------------------------------------


def _take(generation: Generation, answer: Answer) -> None:
    assert generation.idempotency_key is not None
    said = cleaned(answer.text)
    key = parse_id(generation.idempotency_key.removeprefix(KEY))
    owner = parse_id(generation.principal.removeprefix("user:"))
    conversation = _locked(key, owner)
    if said is None or conversation is None or not _wanted(conversation):
        return
    conversation.title, conversation.titled_by = said, TitledBy.MODEL
    conversation.save(update_fields=["title", "titled_by"])


def _locked(key: uuid.UUID, owner: uuid.UUID) -> Conversation | None:
    """Somebody may be giving it a title, or deleting it, at this moment: one of the two comes first."""
    rows = Conversation.objects.select_for_update(of=("self",)).select_related("tenant")
    return rows.filter(pk=key, user=owner).first()


def cleaned(said: str) -> str | None:
    """The title in what the model has said; None where there is none."""
    line = next((found for part in lines_of(said) if (found := plain_line(part))), "")
    for word in BEFORE:
        if line.casefold().startswith(word):
            line = line[len(word) :]
    line = line.strip(QUOTES).rstrip(".。 ").strip(QUOTES)
    line = title(line) if line else ""
    if "<" in line or not SHORTEST <= len(line) <= LONGEST or not any(c.isalnum() for c in line):
        return None
    return line
