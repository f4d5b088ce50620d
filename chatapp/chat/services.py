"""What starts and stops answers.

An answer begins in one transaction: question, empty answer and Generation (accepted). Then it is queued in Redis, which
is idempotent, and the row is marked. Whatever dies in between, the reaper finishes. The tenant, the salts and the
limits come from the Access, never from the caller's data.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import redis.exceptions
import structlog
from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from chatapp.chat import recorder, selectors
from chatapp.chat.instructions import Instructions, of_conversation, of_draft, of_model, of_team
from chatapp.chat.models import (
    UNFINISHED,
    Conversation,
    Generation,
    Message,
    MessageRole,
    MessageStatus,
    State,
)
from chatapp.chat.params import sampling_params
from chatapp.chat.text import clean, plain, title
from chatapp.errors import BadInput, Conflict, Forbidden, IdempotencyMismatch, NotFound, TooMany, Unavailable
from chatapp.ids import new_id, parse_id
from chatapp.limits import budget
from chatapp.limits.admission import Admission
from chatapp.limits.budget import QuotaUsedUp, RateLimited
from chatapp.limits.selectors import limits_of
from chatapp.limits.values import Limits
from chatapp.limits.warning import note_refused
from chatapp.prompts import selectors as prompts
from chatapp.streaming import cancel as streaming_cancel
from chatapp.streaming import finished
from chatapp.streaming.submit import QueueFull, enqueue
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission
from engine import protocol
from engine.protocol import ChatMessage, Request, SamplingParams, SystemText

log = structlog.get_logger(__name__)

# Calm and to the point: small models wander at higher temperatures, and some of them never find an end.
CHAT_DEFAULTS = {"temperature": 0.3, "top_p": 0.9}
CHAT_LENGTH = 1024
MOST_MESSAGES = 2000
LONGEST_KEY = 200
LONGEST_SALT = 1000
MOST_CAUGHT_UP = 32


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
    sampling = _sampling(limits, params, {**CHAT_DEFAULTS, "max_tokens": min(CHAT_LENGTH, limits.output_tokens)})
    name = None if model is None else _model(access, model)
    chosen = [str(choice) for choice in (assistant_id, name) if choice is not None]
    digest = _digest(text, str(conversation_id), str(parent_id), params, *chosen)
    known = _known(access, idempotency_key, digest)
    if known is not None:
        return known
    if conversation_id is None and parent_id is not None:
        raise BadInput("parent_id needs the conversation_id that it belongs to.", param="parent_id")
    if conversation_id is not None and assistant_id is not None:
        raise BadInput("A conversation keeps its assistant; begin a new one for another.", param="assistant_id")
    if conversation_id is not None:
        _settle(selectors.conversation(access, conversation_id))
    admission = Admission(access, limits)
    admission.enter()
    said = _says_length(params)

    def accept() -> Generation:
        return _ask(
            admission, text, conversation_id, parent_id, assistant_id, sampling, said, name, idempotency_key, digest
        )

    try:
        generation = _accepted(access, accept)
    except IntegrityError:
        again = _known(access, idempotency_key, digest)  # a twin of this request was a moment faster
        admission.leave()
        if again is not None:
            return again
        raise _busy() from None
    _queue(generation, admission)
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
) -> Generation:
    """A stateless answer to a list of {role, content}: nothing of it is kept but what it used.

    The team's default assistant answers, or the one that `assistant_id` or the model name assistant:<slug> names.
    `draft_id`: a prompt's draft or version is tried out instead, by who may edit prompts; it shares no KV with anybody.

    It holds a lease: the caller's process renews it (chatapp.streaming.lease), or it is cancelled. `cache_salt` narrows
    the sharing of KV blocks further; it never widens it. Raises as `ask`, and Forbidden.
    """
    access.require(Permission.CHAT)
    given = of_team(access, assistant_id=assistant_id) if draft_id is None else of_draft(access, draft_id)
    if draft_id is None and model is not None and (of := of_model(access, model)) is not None:
        given, model = of, None
    name = _model(access, model)
    history, own = _messages(messages)
    if own and not access.may(Permission.OWN_SYSTEM_MESSAGE):
        raise Forbidden(
            "This key may not send system messages; your team's prompt is always there. "
            "Ask an admin for a key that may.",
            param="messages",
        )
    limits = limits_of(access)
    sampling = _sampling(limits, params, {**CHAT_DEFAULTS, "max_tokens": limits.unsaid_output})
    digest = _digest(messages, name, cache_salt, params, *given.digest)
    known = _known(access, idempotency_key, digest)
    if known is not None:
        return known
    owner = access.key if access.key is not None else access.user
    assert owner is not None
    salt = _derived(access.tenant.salt, getattr(owner, "salt", str(owner.pk)))
    if given.salt:
        salt = _derived(salt, given.salt)
    if cache_salt not in ("", None):
        salt = _derived(salt, plain(cache_salt, param="cache_salt", longest=LONGEST_SALT))
    generation = _generation(access, name, idempotency_key, digest)
    generation.prompt_version = given.version
    request = _request(generation, access, limits, history, sampling, given, salt=salt, own=own, leased=True)
    admission = Admission(access, limits)
    admission.enter()
    said = _says_length(params)

    @transaction.atomic
    def accept() -> Generation:
        generation.request = protocol.encode(_reserved(admission, generation, request, said))
        generation.save(force_insert=True)
        return generation

    try:
        _accepted(access, accept)
    except IntegrityError:
        again = _known(access, idempotency_key, digest)
        if again is None:
            raise
        admission.leave()
        return again
    _queue(generation, admission)
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


def _sampling(limits: Limits, params: Mapping[str, Any] | None, defaults: Mapping[str, Any]) -> SamplingParams:
    whose = "your" if limits.own.output_tokens is not None else "your team's"
    return sampling_params(params or {}, most_tokens=limits.output_tokens, defaults=defaults, whose=whose)


def _says_length(params: Mapping[str, Any] | None) -> bool:
    return bool(params) and params.get("max_tokens") is not None  # type: ignore[union-attr]


def _accepted(access: Access, accept: Callable[[], Generation]) -> Generation:
    """Run the transaction that accepts a generation. Answers under way that have ended meanwhile are written first."""
    try:
        try:
            return accept()
        except RateLimited as refusal:
            if not (refusal.under_way and _catch_up(access)):
                raise
            return accept()
    except QuotaUsedUp as refusal:
        if refusal.team:
            note_refused(access.tenant)
        raise


def _catch_up(access: Access) -> int:
    """Write those of the team's answers that have ended in Redis and not in the database yet; returns how many."""
    unfinished = Generation.objects.filter(tenant=access.tenant, state__in=UNFINISHED).order_by("created_at")
    written = 0
    try:
        for generation_id in unfinished.values_list("pk", flat=True)[:MOST_CAUGHT_UP]:
            state = finished.state(str(generation_id))
            if state is not None and state not in protocol.LIVE_STATES:
                written += recorder.record(str(generation_id))
    except redis.exceptions.RedisError:
        return 0
    return written


def _reserved(admission: Admission, generation: Generation, request: Request, said: bool) -> Request:
    """The request with the length of answer that was reserved for it."""
    longest = request.params.max_tokens
    assert longest is not None, "answers have a length"
    length = admission.reserve(
        generation=generation.pk,
        deadline=generation.deadline,
        system=request.system,
        messages=request.messages,
        output_tokens=longest,
        least_output=None if said else max(1, request.params.min_tokens),
    )
    if length == longest:
        return request
    return msgspec.structs.replace(request, params=msgspec.structs.replace(request.params, max_tokens=length))


def _model(access: Access, wanted: str | None) -> str:
    """The name of the model that is meant. Raises NotFound for what the team may not use, as for what is not there."""
    tenant = access.tenant
    names = tenant.models
    if not names:
        raise NotFound(
            "None of your team's models is served any more. Ask those who run this site for another.",
            code="model_not_found",
            param="model",
        )
    if wanted in (None, "", "default"):
        return tenant.model
    if wanted in names:
        return str(wanted)
    raise NotFound(
        f"There is no model {str(wanted)[:100]!r} for your team; use {', '.join(map(repr, names))} or 'default'.",
        code="model_not_found",
        param="model",
    )


def _messages(messages: Sequence[Mapping[str, Any]]) -> tuple[list[ChatMessage], str]:
    """The conversation, and the caller's system texts joined. An empty answer among them is left out."""
    if not isinstance(messages, list | tuple) or not messages:
        raise BadInput("messages must be a list of at least one message.", code="empty", param="messages")
    if len(messages) > MOST_MESSAGES:
        raise BadInput(f"messages has {len(messages)} entries; at most {MOST_MESSAGES} can be sent.", param="messages")
    history: list[ChatMessage] = []
    system: list[str] = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise BadInput("A message is an object with role and content.", param=f"messages[{index}]")
        role, content = message.get("role"), message.get("content")
        param = f"messages[{index}].content"
        if role == "assistant" and (content is None or (isinstance(content, str) and not content.strip())):
            continue
        if role in ("system", "developer"):
            system.append(clean(content, param=param))
        elif role in ("user", "assistant"):
            history.append(ChatMessage(role, clean(content, param=param)))
        else:
            raise BadInput(
                f"The role {str(role)[:40]!r} is unknown; use system, user or assistant.",
                param=f"messages[{index}].role",
            )
    if not any(message.role == "user" for message in history):
        raise BadInput("messages must hold a message of the role user.", code="empty", param="messages")
    return history, "\n\n".join(system)


def _digest(*parts: Any) -> str:
    """What a repeated idempotency key must come with again."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


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


@transaction.atomic
def _ask(
    admission: Admission,
    text: str,
    conversation_id: object,
    parent_id: object,
    assistant_id: object,
    sampling: SamplingParams,
    said: bool,
    model: str | None,
    idempotency_key: str | None,
    digest: str,
) -> Generation:
    now, access = timezone.now(), admission.access
    if conversation_id is None:
        conversation = Conversation.objects.create(
            tenant=access.tenant, user=access.user, key=access.key, title=title(text), updated_at=now,
            model=model or "",
            assistant=prompts.chosen(access.tenant, assistant_id=assistant_id) if assistant_id is not None else None,
        )  # fmt: skip
        parent = None
    else:
        found = selectors.conversation(access, conversation_id)
        conversation = Conversation.objects.select_for_update().get(pk=found.pk)
        if conversation.generations.filter(state__in=UNFINISHED).exists():
            raise _busy()
        parent = _parent(conversation, parent_id)
    question = Message.objects.create(conversation=conversation, parent=parent, role=MessageRole.USER, text=text)
    answer = Message.objects.create(
        conversation=conversation,
        parent=question,
        role=MessageRole.ASSISTANT,
        status=MessageStatus.RUNNING,
        created_at=question.created_at + timedelta(microseconds=1),
    )
    if model is None:
        known = conversation.model in access.tenant.models
        model = conversation.model if known else _model(access, None)
    else:
        conversation.model = model
    generation = _generation(access, model, idempotency_key, digest)
    given = of_conversation(access, conversation)
    generation.conversation, generation.message, generation.prompt_version = conversation, answer, given.version
    salt = _derived(access.tenant.salt, conversation.salt)
    request = _request(generation, access, admission.limits, _history(question), sampling, given, salt=salt)
    generation.request = protocol.encode(_reserved(admission, generation, request, said))
    generation.save(force_insert=True)
    conversation.updated_at = now
    conversation.save(update_fields=["updated_at", "model"])
    return generation


def _parent(conversation: Conversation, parent_id: object) -> Message | None:
    """The message that a new one follows: the one named, else the newest."""
    if parent_id is None:
        return conversation.messages.order_by("created_at", "id").last()
    parent = conversation.messages.filter(pk=parse_id(parent_id)).first()
    if parent is None:
        raise NotFound("There is no such message in this conversation.", param="parent_id")
    return parent


def _history(question: Message) -> list[ChatMessage]:
    """The branch that ends in `question`, oldest first; answers that failed or have no text are left out."""
    by_id = {message.pk: message for message in question.conversation.messages.all()}
    chain: list[ChatMessage] = []
    message: Message | None = question
    while message is not None:
        if message.text and message.status in (MessageStatus.DONE, MessageStatus.STOPPED):
            role: Any = message.role
            chain.append(ChatMessage(role, message.text))
        message = by_id.get(message.parent_id) if message.parent_id else None
    return chain[::-1]


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


def _derived(secret: str, part: str) -> str:
    """A salt that nobody can make without both: narrower than each, never wider."""
    return hmac.new(secret.encode(), part.encode(), hashlib.sha256).hexdigest()[:32]


def _request(
    generation: Generation,
    access: Access,
    limits: Limits,
    history: list[ChatMessage],
    sampling: SamplingParams,
    given: Instructions,
    *,
    salt: str,
    own: str = "",
    leased: bool = False,
) -> Request:
    system = list(given.system)
    if own:
        system.append(SystemText(own, salt))
    return Request(
        id=str(generation.pk),
        tenant=str(access.tenant.pk),
        model=generation.model,
        messages=history,
        system=system,
        salt=salt,
        prompt=given.name,
        prompt_version=str(given.version.pk) if given.version is not None else "",
        params=sampling,
        deadline_ms=int(generation.deadline.timestamp() * 1000),
        weight=limits.weight,
        kv_share=limits.kv_share,
        max_prompt_tokens=limits.context_tokens or 0,
        leased=leased,
    )


def _queue(generation: Generation, admission: Admission) -> None:
    """Hand it to Redis and mark the row. Without Redis the row waits for the reaper; a full queue or used up tokens of
    this minute undo everything."""
    assert generation.request is not None
    try:
        admission.charge()
    except RateLimited:
        _undo(generation, charged=False)
        raise
    generation.standings = admission.standings
    try:
        enqueue(protocol.decode_request(bytes(generation.request)), admission.limits.queue_length)
    except QueueFull as full:
        _undo(generation)
        raise TooMany(
            f"Your team has {full.queued} requests waiting already. Try again in {full.retry_after_s} s.",
            retry_after_s=full.retry_after_s,
        ) from None
    except redis.exceptions.RedisError as error:
        log.warning("generation.not_queued", generation=str(generation.pk), error=type(error).__name__)
        return
    mark_queued(generation)


def mark_queued(generation: Generation) -> None:
    if Generation.objects.filter(pk=generation.pk, state=State.ACCEPTED).update(state=State.QUEUED):
        generation.state = State.QUEUED


@transaction.atomic
def _undo(generation: Generation, *, charged: bool = True) -> None:
    """As if it had never been asked: the caller still has the text and is told to try again."""
    answer, conversation = generation.message, generation.conversation
    budget.settle(generation.pk, tokens=0, charged=charged)
    generation.delete()
    if answer is not None and conversation is not None:
        question = answer.parent
        answer.delete()
        if question is not None:
            question.delete()
        if not conversation.messages.exists():
            conversation.delete()
