"""What starts and stops answers.

An answer begins in one transaction: a question where it is a new one, an empty answer and Generation (accepted); where
in the tree they stand is placing's. Then it is queued in Redis, which is idempotent, and the row is marked. Whatever
dies in between, the reaper finishes. The tenant, the salts and the limits come from the Access, never from the caller's
data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import redis.exceptions
import structlog
from django.db import IntegrityError, transaction
from django.utils import timezone

from chatapp.chat import attachments, placing, recorder, selectors
from chatapp.chat.choices import defaults, within
from chatapp.chat.instructions import of_conversation
from chatapp.chat.models import (
    UNFINISHED,
    Conversation,
    Generation,
    Message,
    MessageRole,
    MessageStatus,
)
from chatapp.chat.placing import Placing
from chatapp.chat.queueing import accepted, known, new_generation, queue_all, reserved, says_length, submitting
from chatapp.chat.requests import derived_salt, digest_of, hides_prompt, history_of, model_of, sampling_of, wire_request
from chatapp.chat.stateless import complete, complete_all
from chatapp.chat.text import clean
from chatapp.errors import BadInput, Unavailable
from chatapp.files.models import parse_file_id
from chatapp.limits.admission import Admission
from chatapp.limits.selectors import limits_of
from chatapp.limits.values import Limits
from chatapp.streaming import cancel as streaming_cancel
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission
from engine import protocol
from engine.protocol import SamplingParams

log = structlog.get_logger(__name__)

__all__ = ["answer_again", "ask", "cancel", "complete", "complete_all", "go_on"]


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
    """A new message in a conversation (a new one when None) and its answer. `parent_id`: the message that it follows
    (None: the newest; selectors.ROOT: none, it stands beside the first); `assistant_id`: who is to answer in a new one
    (None: the team's default).

    `model` is what answers from here on in this conversation; None: the one that did before. `params` are for this
    answer, and in a new conversation for those that follow too. `file_ids`: files of the asker, whose texts stand in
    front of the message's.

    Raises BadInput, NotFound, Conflict (this conversation is being answered, a file is being read), TooMany (the queue
    is full; nothing has been kept), IdempotencyMismatch.
    """
    access.require(Permission.CHAT)
    text = clean(text, param="input")
    wanted = _wanted(access, conversation_id, params, model, idempotency_key)
    chosen = [str(choice) for choice in (assistant_id, wanted.model) if choice is not None]
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
        access, wanted.limits, files, text, model=wanted.model, conversation_id=conversation_id, parent_id=parent_id
    )  # fmt: skip
    if conversation_id is None:
        place = placing.in_new_conversation(text, files, assistant_id=assistant_id, model=wanted.model, params=params)
    else:
        place = placing.under(text, files, conversation_id=conversation_id, parent_id=parent_id)
    return _answer(access, wanted, place, digest)


def answer_again(
    *,
    access: Access,
    conversation_id: object,
    question_id: object,
    params: Mapping[str, Any] | None = None,
    model: str | None = None,
    idempotency_key: str | None = None,
) -> Generation:
    """Another answer to a question that is there, with its files; the ones that it has stay. Raises as `ask`."""
    return _answer_in(
        access, "again", conversation_id, question_id,
        _wanted(access, conversation_id, params, model, idempotency_key), params,
        placing.beside(conversation_id=conversation_id, question_id=question_id),
    )  # fmt: skip


def go_on(
    *,
    access: Access,
    conversation_id: object,
    continue_id: object,
    params: Mapping[str, Any] | None = None,
    model: str | None = None,
    idempotency_key: str | None = None,
) -> Generation:
    """The rest of an answer that was cut at its limit, stopped, or broken off: a message of its own behind it, whose
    text goes on right where that one's ends. Raises as `ask`."""
    wanted = _wanted(access, conversation_id, params, model, idempotency_key)
    if wanted.sampling.grammar is not None:
        raise BadInput(
            "An answer that goes on where it was cannot keep to a form; leave the form out.", param="response_format"
        )
    return _answer_in(
        access, "go on", conversation_id, continue_id, wanted, params,
        placing.behind(conversation_id=conversation_id, continue_id=continue_id),
    )  # fmt: skip


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


@dataclass(frozen=True)
class _Wanted:
    """How the answer is to be. `says_length`: the caller chose how long it may be."""

    limits: Limits
    sampling: SamplingParams
    says_length: bool
    model: str | None
    idempotency_key: str | None


def _wanted(
    access: Access,
    conversation_id: object,
    params: Mapping[str, Any] | None,
    model: str | None,
    idempotency_key: str | None,
) -> _Wanted:
    """What a question says, before what holds for its conversation, before what holds for all."""
    access.require(Permission.CHAT)
    limits = limits_of(access)
    kept = selectors.conversation(access, conversation_id).params if conversation_id is not None else {}
    sampling = sampling_of(limits, params, {**defaults(limits), **within(limits, kept)})
    if sampling.n != 1:
        raise BadInput("A conversation goes on with one answer; n must be 1.", param="n")
    hides_prompt(sampling)
    name = None if model is None else model_of(access, model)
    return _Wanted(limits, sampling, says_length({**kept, **(params or {})}), name, idempotency_key)


def _answer_in(
    access: Access, kind: str, conversation_id: object, message_id: object, wanted: _Wanted,
    params: Mapping[str, Any] | None, place: Placing,
) -> Generation:  # fmt: skip
    """An answer that brings no new question."""
    digest = digest_of(kind, str(conversation_id), str(message_id), params, wanted.model)
    found = known(access, wanted.idempotency_key, digest)
    if found is not None:
        return found
    _settle(selectors.conversation(access, conversation_id))
    return _answer(access, wanted, place, digest)


@submitting
def _answer(access: Access, wanted: _Wanted, place: Placing, digest: str) -> Generation:
    admission = Admission(access, wanted.limits)
    admission.enter()
    try:
        generation = accepted(access, lambda: _begin(admission, wanted, place, digest))
    except IntegrityError:
        again = known(access, wanted.idempotency_key, digest)  # a twin of this request was a moment faster
        admission.leave()
        if again is not None:
            return again
        raise placing.busy() from None
    queue_all([generation], admission)
    return generation


def _settle(conversation: Conversation) -> None:
    """An answer that has ended but is not in the database yet is written now; one that runs is a Conflict."""
    for generation in conversation.generations.filter(state__in=UNFINISHED):
        try:
            done = recorder.record(str(generation.pk))
        except redis.exceptions.RedisError:
            done = False
        if not done:
            raise placing.busy()


@transaction.atomic
def _begin(admission: Admission, wanted: _Wanted, place: Placing, digest: str) -> Generation:
    access, now = admission.access, timezone.now()
    placed = place(access, now)
    conversation, before = placed.conversation, placed.before
    answer = Message.objects.create(
        conversation=conversation,
        parent=before,
        role=MessageRole.ASSISTANT,
        status=MessageStatus.RUNNING,
        created_at=max(timezone.now(), before.created_at + timedelta(microseconds=1)),
    )
    if wanted.model is not None:
        conversation.model = wanted.model
    model = conversation.model if conversation.model in access.tenant.models else model_of(access, None)
    generation = new_generation(access, model, wanted.idempotency_key, digest)
    generation.added = (*placed.added, answer)
    given = of_conversation(access, conversation)
    generation.conversation, generation.message, generation.prompt_version = conversation, answer, given.version
    request = wire_request(
        generation,
        access,
        admission.limits,
        history_of(before),
        wanted.sampling,
        given,
        salt=derived_salt(access.tenant.salt, conversation.salt),
        continues=placed.continues,
    )
    generation.request = protocol.encode(reserved(admission, generation, request, wanted.says_length))
    generation.save(force_insert=True)
    conversation.updated_at = now
    conversation.save(update_fields=["updated_at", "model"])
    return generation
