"""What starts and stops answers.

An answer begins in one transaction: question, empty answer and Generation (accepted). Then it is queued in Redis, which
is idempotent, and the row is marked. Whatever dies in between, the reaper finishes. The tenant, the salts and the
limits come from the Access, never from the caller's data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import redis.exceptions
import structlog
from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from chatapp.chat import recorder, selectors
from chatapp.chat.instructions import of_conversation, of_draft, of_model, of_team
from chatapp.chat.models import (
    UNFINISHED,
    Conversation,
    Generation,
    Message,
    MessageRole,
    MessageStatus,
)
from chatapp.chat.queueing import accepted, queue, reserved, says_length
from chatapp.chat.requests import (
    derived_salt,
    digest_of,
    history_of,
    model_of,
    parse_messages,
    sampling_of,
    wire_request,
)
from chatapp.chat.text import clean, plain, title
from chatapp.errors import BadInput, Conflict, Forbidden, IdempotencyMismatch, NotFound, Unavailable
from chatapp.ids import new_id, parse_id
from chatapp.limits.admission import Admission
from chatapp.limits.selectors import limits_of
from chatapp.prompts import selectors as prompts
from chatapp.streaming import cancel as streaming_cancel
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission
from engine import protocol
from engine.protocol import SamplingParams

log = structlog.get_logger(__name__)

# Calm and to the point: small models wander at higher temperatures, and some of them never find an end.
CHAT_DEFAULTS = {"temperature": 0.3, "top_p": 0.9}
CHAT_LENGTH = 1024
LONGEST_KEY = 200
LONGEST_SALT = 1000


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
) -> Generation:
    """A new message in a conversation (a new one when None) and its answer. `parent_id`: the message that it follows;
    `assistant_id`: who is to answer in a new one (None: the team's default).

    `model` is what answers from here on in this conversation; None: the one that did before.

    Raises BadInput, NotFound, Conflict (this conversation is being answered), TooMany (the queue is full; nothing has
    been kept), IdempotencyMismatch.
    """
    access.require(Permission.CHAT)
    text = clean(text, param="input")
    limits = limits_of(access)
    sampling = sampling_of(limits, params, {**CHAT_DEFAULTS, "max_tokens": min(CHAT_LENGTH, limits.output_tokens)})
    name = None if model is None else model_of(access, model)
    chosen = [str(choice) for choice in (assistant_id, name) if choice is not None]
    digest = digest_of(text, str(conversation_id), str(parent_id), params, *chosen)
    known = _known(access, idempotency_key, digest)
    if known is not None:
        return known
    if conversation_id is None and parent_id is not None:
        raise BadInput("parent_id needs the conversation_id that it belongs to.", param="parent_id")
    if conversation_id is not None and assistant_id is not None:
        raise BadInput("A conversation keeps its assistant; begin a new one for another.", param="assistant_id")
    if conversation_id is not None:
        _settle(selectors.conversation(access, conversation_id))
    question = Question(
        text, conversation_id, parent_id, assistant_id, name, sampling, says_length(params), idempotency_key, digest
    )
    admission = Admission(access, limits)
    admission.enter()
    try:
        generation = accepted(access, lambda: _ask(admission, question))
    except IntegrityError:
        again = _known(access, idempotency_key, digest)  # a twin of this request was a moment faster
        admission.leave()
        if again is not None:
            return again
        raise _busy() from None
    queue(generation, admission)
    return generation


def complete(
    *,
    access: Access,
    messages: Sequence[Mapping[str, Any]],
    params: Mapping[str, Any] | None = None,
    model: str | None = None,
    assistant_id: object = None,
    draft_id: object = None,
    cache_salt: str | None = None,
    idempotency_key: str | None = None,
    leased: bool = True,
    within: Callable[[Generation], None] | None = None,
) -> Generation:
    """A stateless answer to a list of {role, content}: nothing of it is kept but what it used.

    The team's default assistant answers, or the one that `assistant_id` or the model name assistant:<slug> names.
    `draft_id`: a prompt's draft or version is tried out instead, by who may edit prompts; it shares no KV with anybody.

    It holds a lease: the caller's process renews it (chatapp.streaming.lease), or it is cancelled; unless `leased` is
    false. `cache_salt` narrows the sharing of KV blocks further; it never widens it. `within` runs in the transaction
    that accepts it, after its row is written: for rows of those who keep the answer. Raises as `ask`, and Forbidden.
    """
    access.require(Permission.CHAT)
    given = of_team(access, assistant_id=assistant_id) if draft_id is None else of_draft(access, draft_id)
    if draft_id is None and model is not None and (of := of_model(access, model)) is not None:
        given, model = of, None
    name = model_of(access, model)
    history, own = parse_messages(messages)
    if own and not access.may(Permission.OWN_SYSTEM_MESSAGE):
        raise Forbidden(
            "This key may not send system messages; your team's prompt is always there. "
            "Ask an admin for a key that may.",
            param="messages",
        )
    limits = limits_of(access)
    sampling = sampling_of(limits, params, {**CHAT_DEFAULTS, "max_tokens": limits.unsaid_output})
    digest = digest_of(messages, name, cache_salt, params, *given.digest)
    known = _known(access, idempotency_key, digest)
    if known is not None:
        return known
    owner = access.key if access.key is not None else access.user
    assert owner is not None
    salt = derived_salt(access.tenant.salt, getattr(owner, "salt", str(owner.pk)))
    if given.salt:
        salt = derived_salt(salt, given.salt)
    if cache_salt not in ("", None):
        salt = derived_salt(salt, plain(cache_salt, param="cache_salt", longest=LONGEST_SALT))
    generation = _generation(access, name, idempotency_key, digest)
    generation.prompt_version = given.version
    request = wire_request(generation, access, limits, history, sampling, given, salt=salt, own=own, leased=leased)
    admission = Admission(access, limits)
    admission.enter()
    said = says_length(params)

    @transaction.atomic
    def accept() -> Generation:
        generation.request = protocol.encode(reserved(admission, generation, request, said))
        generation.save(force_insert=True)
        if within is not None:
            within(generation)
        return generation

    try:
        accepted(access, accept)
    except IntegrityError:
        again = _known(access, idempotency_key, digest)
        if again is None:
            raise
        admission.leave()
        return again
    queue(generation, admission)
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


def _known(access: Access, idempotency_key: str | None, digest: str) -> Generation | None:
    """The generation that this key has already started."""
    if idempotency_key is None:
        return None
    plain(idempotency_key, param="idempotency_key", longest=LONGEST_KEY)
    found = Generation.objects.filter(
        tenant=access.tenant, principal=access.principal, idempotency_key=idempotency_key
    ).first()
    if found is not None and found.digest != digest:
        raise IdempotencyMismatch(
            "This idempotency key was used for another request; use a new one.", param="idempotency_key"
        )
    return found


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


@transaction.atomic
def _ask(admission: Admission, asked: Question) -> Generation:
    access, now = admission.access, timezone.now()
    conversation, parent = _place(access, asked, now)
    question = Message.objects.create(conversation=conversation, parent=parent, role=MessageRole.USER, text=asked.text)
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
    generation = _generation(access, model, asked.idempotency_key, asked.digest)
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


def _generation(access: Access, model: str, idempotency_key: str | None, digest: str) -> Generation:
    return Generation(
        id=new_id(),
        tenant=access.tenant,
        principal=access.principal,
        model=model,
        idempotency_key=idempotency_key,
        digest=digest,
        deadline=timezone.now() + timedelta(seconds=settings.OCTAVO_ANSWER_TIMEOUT_S),
    )
