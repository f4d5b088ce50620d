"""What starts and stops answers.

An answer begins in one transaction: question, empty answer and Generation (accepted). Then it is queued in Redis, which
is idempotent, and the row is marked. Whatever dies in between, the reaper finishes. The tenant, the salts and the
limits come from the Access, never from the caller's data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import redis.exceptions
import structlog
from django.db import IntegrityError, transaction
from django.utils import timezone

from chatapp.chat import attachments, recorder, selectors
from chatapp.chat.instructions import of_conversation
from chatapp.chat.models import (
    UNFINISHED,
    Conversation,
    Generation,
    Message,
    MessageRole,
    MessageStatus,
)
from chatapp.chat.queueing import accepted, known, new_generation, queue_all, reserved, says_length
from chatapp.chat.requests import derived_salt, digest_of, hides_prompt, history_of, model_of, sampling_of, wire_request
from chatapp.chat.stateless import CHAT_DEFAULTS, complete, complete_all
from chatapp.chat.text import clean, title
from chatapp.errors import BadInput, Conflict, NotFound, Unavailable
from chatapp.files.models import StoredFile, parse_file_id
from chatapp.ids import parse_id
from chatapp.limits.admission import Admission
from chatapp.limits.selectors import limits_of
from chatapp.prompts import selectors as prompts
from chatapp.streaming import cancel as streaming_cancel
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission
from engine import protocol
from engine.protocol import SamplingParams

log = structlog.get_logger(__name__)

__all__ = ["ask", "cancel", "complete", "complete_all"]

CHAT_LENGTH = 1024


def ask(
    *,
    access: Access,
    text: str,
    conversation_id: object = None,
    parent_id: object = None,
    assistant_id: object = None,
    params: Mapping[str, Any] | None = None,
    model: str | None = None,
    idempotency_key: str | None = None,
    file_ids: Sequence[Any] = (),
) -> Generation:
    """A new message in a conversation (a new one when None) and its answer. `parent_id`: the message that it follows;
    `assistant_id`: who is to answer in a new one (None: the team's default).

    `model` is what answers from here on in this conversation; None: the one that did before. `file_ids`: files of the
    asker, whose texts stand in front of the message's.

    Raises BadInput, NotFound, Conflict (this conversation is being answered, a file is being read), TooMany (the queue
    is full; nothing has been kept), IdempotencyMismatch.
    """
    access.require(Permission.CHAT)
    text = clean(text, param="input")
    limits = limits_of(access)
    sampling = sampling_of(limits, params, {**CHAT_DEFAULTS, "max_tokens": min(CHAT_LENGTH, limits.output_tokens)})
    if sampling.n != 1:
        raise BadInput("A conversation goes on with one answer; n must be 1.", param="n")
    hides_prompt(sampling)
    name = None if model is None else model_of(access, model)
    chosen = [str(choice) for choice in (assistant_id, name) if choice is not None]
    chosen += [str(parse_file_id(file_id)) for file_id in file_ids]
    digest = digest_of(text, str(conversation_id), str(parent_id), params, *chosen)
    found = known(access, idempotency_key, digest)
    if found is not None:
        return found
    if conversation_id is None and parent_id is not None:
        raise BadInput("parent_id needs the conversation_id that it belongs to.", param="parent_id")
    if conversation_id is not None and assistant_id is not None:
        raise BadInput("A conversation keeps its assistant; begin a new one for another.", param="assistant_id")
    if conversation_id is not None:
        _settle(selectors.conversation(access, conversation_id))
    files = attachments.chosen(access, file_ids)
    attachments.check_room(
        access, limits, files, text, model=name, conversation_id=conversation_id, parent_id=parent_id
    )  # fmt: skip
    question = Question(
        text, conversation_id, parent_id, assistant_id, name, sampling, says_length(params), idempotency_key, digest,
        files,
    )  # fmt: skip
    admission = Admission(access, limits)
    admission.enter()
    try:
        generation = accepted(access, lambda: _ask(admission, question))
    except IntegrityError:
        again = known(access, idempotency_key, digest)  # a twin of this request was a moment faster
        admission.leave()
        if again is not None:
            return again
        raise _busy() from None
    queue_all([generation], admission)
    return generation


def cancel(*, access: Access, generation_id: object) -> str:
    """Stop an answer of one's own. The state after it: cancelled, cancelling, or the one it had ended in.

    Raises NotFound, and Unavailable without Redis.
    """
    generation = selectors.generation(access, generation_id)
    if not generation.unfinished:
        return str(generation.state)
    try:
        return streaming_cancel.cancel(str(generation.pk))
    except redis.exceptions.RedisError:
        raise Unavailable("This answer cannot be stopped at the moment. Try again.", retry_after_s=1) from None


# --- parts --------------------------------------------------------------------------------------------------------


def _busy() -> Conflict:
    return Conflict(
        "This conversation is being answered; wait for the end or stop it.",
        code="conversation_busy",
        param="conversation_id",
    )


def _settle(conversation: Conversation) -> None:
    """An answer that has ended but is not in the database yet is written now; one that runs is a Conflict."""
    for generation in conversation.generations.filter(state__in=UNFINISHED):
        try:
            done = recorder.record(str(generation.pk))
        except redis.exceptions.RedisError:
            done = False
        if not done:
            raise _busy()


@dataclass(frozen=True)
class Question:
    """A new message on its way into a conversation. `says_length`: the caller chose how long the answer may be."""

    text: str
    conversation_id: object
    parent_id: object
    assistant_id: object
    model: str | None
    sampling: SamplingParams
    says_length: bool
    idempotency_key: str | None
    digest: str
    files: Sequence[StoredFile] = ()


@transaction.atomic
def _ask(admission: Admission, asked: Question) -> Generation:
    access, now = admission.access, timezone.now()
    conversation, parent = _place(access, asked, now)
    question = Message.objects.create(conversation=conversation, parent=parent, role=MessageRole.USER, text=asked.text)
    attachments.attach(question, asked.files)
    answer = Message.objects.create(
        conversation=conversation,
        parent=question,
        role=MessageRole.ASSISTANT,
        status=MessageStatus.RUNNING,
        created_at=question.created_at + timedelta(microseconds=1),
    )
    if asked.model is not None:
        conversation.model = asked.model
    model = conversation.model if conversation.model in access.tenant.models else model_of(access, None)
    generation = new_generation(access, model, asked.idempotency_key, asked.digest)
    given = of_conversation(access, conversation)
    generation.conversation, generation.message, generation.prompt_version = conversation, answer, given.version
    salt = derived_salt(access.tenant.salt, conversation.salt)
    request = wire_request(generation, access, admission.limits, history_of(question), asked.sampling, given, salt=salt)
    generation.request = protocol.encode(reserved(admission, generation, request, asked.says_length))
    generation.save(force_insert=True)
    conversation.updated_at = now
    conversation.save(update_fields=["updated_at", "model"])
    return generation


def _place(access: Access, asked: Question, now: datetime) -> tuple[Conversation, Message | None]:
    """The conversation, locked where it is there already, and the message that the new one follows."""
    if asked.conversation_id is not None:
        found = selectors.conversation(access, asked.conversation_id)
        conversation = Conversation.objects.select_for_update().get(pk=found.pk)
        if conversation.generations.filter(state__in=UNFINISHED).exists():
            raise _busy()
        return conversation, _parent(conversation, asked.parent_id)
    chosen = asked.assistant_id
    conversation = Conversation.objects.create(
        tenant=access.tenant,
        user=access.user,
        key=access.key,
        title=title(asked.text),
        updated_at=now,
        model=asked.model or "",
        assistant=prompts.chosen(access.tenant, assistant_id=chosen) if chosen is not None else None,
    )
    return conversation, None


def _parent(conversation: Conversation, parent_id: object) -> Message | None:
    """The message that a new one follows: the one named, else the newest."""
    if parent_id is None:
        return conversation.messages.order_by("created_at", "id").last()
    parent = conversation.messages.filter(pk=parse_id(parent_id)).first()
    if parent is None:
        raise NotFound("There is no such message in this conversation.", param="parent_id")
    return parent
