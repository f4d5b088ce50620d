"""Chats by HTTP: a person's own conversations, or those that a key has begun; what is asked in them, and the answers.

What the websocket tells while it comes can be asked for here: a program without a socket asks, and looks again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from django.db import transaction
from ninja import Field, Query, Router, Schema, Status
from ninja.decorators import decorate_view

from chatapp.api.etags import compressible
from chatapp.api.product.base import LIMIT, AccessRequest, ErrorAnswer, needs
from chatapp.chat import conversations, memory, present, selectors, services, tags
from chatapp.chat.models import LONGEST_TAG, LONGEST_TITLE, Generation
from chatapp.chat.tags import MOST_TAGS
from chatapp.errors import Refusal
from chatapp.streaming import finished
from chatapp.streaming.assembly import assembled
from chatapp.streaming.memory import once
from chatapp.tenants.permissions import Permission

router = Router(tags=["chat"])
CHAT = needs(Permission.CHAT)
REFUSALS = {400: ErrorAnswer, 401: ErrorAnswer, 403: ErrorAnswer, 404: ErrorAnswer}
ASKING = {**REFUSALS, 409: ErrorAnswer, 422: ErrorAnswer, 429: ErrorAnswer}


class Item(Schema):
    """`running`: it is being answered now. `archived_at`: out of the list. `deleted_at`: it can be asked back."""

    id: UUID
    title: str
    created_at: datetime
    updated_at: datetime
    running: bool
    starred_at: datetime | None
    archived_at: datetime | None
    deleted_at: datetime | None
    tags: list[str]


class Items(Schema):
    """`next`: the cursor of what comes behind, null at the end."""

    items: list[Item]
    next: str | None


class Used(Schema):
    prompt_tokens: int
    cached_tokens: int
    shared_tokens: int
    completion_tokens: int


class Problem(Schema):
    code: str
    message: str
    param: str | None
    retryable: bool


class Answer(Schema):
    """`status`: accepted or queued while it waits or runs; then finished, cancelled, refused, timeout, interrupted or
    failed. `last_seq`: what a socket resumes behind; -1 while it runs."""

    response_id: UUID | None = None
    model: str | None = None
    status: str | None = None
    last_seq: int | None = None
    finish_reason: str | None = None
    usage: Used | None = None
    timing: dict[str, float] | None = None
    error: Problem | None = None


class AttachedFile(Schema):
    """Of …/files/{id}. `tokens`: what it takes in a prompt."""

    id: str
    name: str
    bytes: int
    created_at: datetime
    state: Literal["queued", "running", "ready", "failed"]
    kind: str | None
    pages: int | None
    tokens: int | None


class Message(Answer):
    """A question has none of the fields of an answer but null. `text` of an answer that runs is empty here."""

    id: UUID
    parent_id: UUID | None
    role: Literal["user", "assistant"]
    text: str
    created_at: datetime
    files: list[AttachedFile] = []


class Answerer(Schema):
    name: str
    instead_of: str | None


class Conversation(Item):
    model: str
    params: dict[str, Any]
    assistant: Answerer | None
    messages: list[Message]


class Messages(Schema):
    items: list[Message]
    next: str | None


class Filters(Schema):
    """`q`: words that are all in the title (…/conversations/search looks into messages too). `since` counts, `until`
    does not any more, of the last activity. `archived`: those that were put away, instead of the others. `deleted`:
    those that can be asked back, instead of all others."""

    q: str = Field("", max_length=200)
    starred: bool | None = None
    running: bool | None = None
    assistant_id: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None
    deleted: bool = False
    archived: bool = False
    tag: str = Field("", max_length=LONGEST_TAG)


class Question(Schema):
    """`parent_id`: the message that it follows; the newest without one; `root`: none, it stands beside the first.
    `params`: temperature and the like. `file_ids`: files whose texts come first."""

    text: str
    parent_id: UUID | Literal["root"] | None = None
    model: str | None = None
    params: dict[str, Any] = {}
    file_ids: list[str] = []


class FirstQuestion(Schema):
    """`assistant_id`: who is to answer; the team's default one without."""

    text: str
    assistant_id: UUID | None = None
    model: str | None = None
    params: dict[str, Any] = {}
    file_ids: list[str] = []


class Manner(Schema):
    """How to answer. `model`: from here on in this conversation; without one the one that did before."""

    model: str | None = None
    params: dict[str, Any] = {}


class Asked(Schema):
    """Look for the answer at …/responses/{response_id}, or follow it over a websocket (response.resume)."""

    response_id: UUID
    conversation_id: UUID
    message_id: UUID
    parent_id: UUID
    model: str
    status: str


class Change(Schema):
    """What is left out stays. `tags`: these and no others. `params`: how it is answered where a question does not say
    otherwise, all of it at once: temperature, top_p, max_tokens, presence_penalty, frequency_penalty, seed, stop."""

    title: str | None = Field(None, max_length=10 * LONGEST_TITLE)
    starred: bool | None = None
    archived: bool | None = None
    tags: list[str] | None = Field(None, max_length=5 * MOST_TAGS)
    params: dict[str, Any] | None = None
    model: str | None = None


class Response(Answer):
    """`text`: as far as it has come."""

    conversation_id: UUID | None
    message_id: UUID | None
    text: str


class Blocks(Schema):
    """Neighbouring blocks of which the same can be said. `kind`: platform and team (prompts, shared), kept (the
    conversation's own, from earlier turns), own (what this answer adds), lost (of an idle one's, evicted since).
    `chats`: how many other conversations of the team hold them too. `since`: seconds of the Unix epoch, roughly."""

    kind: Literal["platform", "team", "kept", "own", "lost"]
    blocks: int
    chats: int
    pinned: bool
    host: bool
    since: int


class Memory(Schema):
    """`state`: answering, idle (what the next turn would find), new (what any new conversation would find). `tokens`
    fill the blocks from the first on; the conversation has `length`. `cached`: found as the answer began. `outdated`:
    the team's instructions have changed, so the next turn finds nothing of this."""

    worker: str
    state: Literal["answering", "idle", "new"]
    block_size: int
    block_bytes: int
    tokens: int
    length: int
    cached: int
    lost_at: int
    outdated: bool
    runs: list[Blocks]


class MemoryAnswer(Schema):
    """null while no engine answers."""

    memory: Memory | None


class Stopped(Schema):
    status: str


@router.get("/t/{slug}/conversations", response={200: Items, **REFUSALS}, auth=CHAT, summary="List conversations")
def listed(request: AccessRequest, slug: str, filters: Query[Filters], cursor: str = "", limit: int = LIMIT) -> Any:
    """One's own, the last used first."""
    values = filters.dict()
    wanted = selectors.Filters(text=values.pop("q"), **values)
    return present.conversations(request.auth, before=cursor or None, limit=limit, filters=wanted)


@router.post("/t/{slug}/conversations", response={202: Asked, **ASKING}, auth=CHAT, summary="Begin a conversation")
def begin(request: AccessRequest, slug: str, body: FirstQuestion) -> Any:
    """With its first message. With the header Idempotency-Key, saying it again begins no other."""
    return _ask(request, **body.dict())


@router.get("/t/{slug}/conversations/{uuid:conversation_id}", response={200: Conversation, **REFUSALS}, auth=CHAT)
@decorate_view(compressible)
def one(request: AccessRequest, slug: str, conversation_id: UUID) -> Any:
    """With all its messages, oldest first."""
    return present.conversation(request.auth, conversation_id)


@router.patch("/t/{slug}/conversations/{uuid:conversation_id}", response={200: Item, **REFUSALS}, auth=CHAT)
def change(request: AccessRequest, slug: str, conversation_id: UUID, body: Change) -> Any:
    """Rename it, star it (the team's retention keeps starred ones, where it says so), archive it, tag it, choose how
    it is answered."""
    named: dict[str, Any] = {"access": request.auth, "conversation_id": conversation_id}
    with transaction.atomic():
        found = selectors.conversation(request.auth, conversation_id)
        if body.title is not None:
            found = conversations.rename(**named, name=body.title)
        if body.starred is not None:
            found = conversations.set_starred(**named, starred=body.starred)
        if body.archived is not None:
            found = conversations.set_archived(**named, archived=body.archived)
        if body.tags is not None:
            tags.set_tags(access=request.auth, conversation=found, names=body.tags)
        if body.params is not None or body.model is not None:
            found = conversations.choose(**named, params=body.params, model=body.model)
        return present.conversation_item(found)


@router.delete("/t/{slug}/conversations/{uuid:conversation_id}", response={200: Item, **REFUSALS}, auth=CHAT)
def delete(request: AccessRequest, slug: str, conversation_id: UUID) -> Any:
    """It can be asked back for thirty days (…/restore). An answer under way is stopped."""
    return present.conversation_item(conversations.delete(access=request.auth, conversation_id=conversation_id))


@router.post("/t/{slug}/conversations/{uuid:conversation_id}/restore", response={200: Item, **REFUSALS}, auth=CHAT)
def restore(request: AccessRequest, slug: str, conversation_id: UUID) -> Any:
    return present.conversation_item(conversations.restore(access=request.auth, conversation_id=conversation_id))


@router.get(
    "/t/{slug}/conversations/{uuid:conversation_id}/memory", response={200: MemoryAnswer, **REFUSALS}, auth=CHAT
)
def blocks(request: AccessRequest, slug: str, conversation_id: UUID) -> Any:
    """The blocks of the engine's memory that it has now. As they change: the websocket's topic memory."""
    found = once(memory.look(request.auth, conversation_id=conversation_id))
    if found is None:
        return {"memory": None}
    told = {name: getattr(found, name) for name in Memory.model_fields if name != "runs"}
    return {"memory": {**told, "runs": [{n: getattr(run, n) for n in Blocks.model_fields} for run in found.runs]}}


@router.get("/t/{slug}/conversations/{uuid:conversation_id}/messages", response={200: Messages, **REFUSALS}, auth=CHAT)
@decorate_view(compressible)
def messages(request: AccessRequest, slug: str, conversation_id: UUID, cursor: str = "", limit: int = LIMIT) -> Any:
    """Newest first."""
    page = selectors.page_of_messages(request.auth, conversation_id, cursor, limit)
    return {"items": [present.message(item) for item in page.items], "next": page.next}


@router.post("/t/{slug}/conversations/{uuid:conversation_id}/messages", response={202: Asked, **ASKING}, auth=CHAT)
def ask(request: AccessRequest, slug: str, conversation_id: UUID, body: Question) -> Any:
    """One at a time: 409 while it is being answered. With the parent_id of another message it is that one, edited: both
    stay."""
    return _ask(request, conversation_id=conversation_id, **body.dict())


@router.post(
    "/t/{slug}/conversations/{uuid:conversation_id}/messages/{uuid:message_id}/answers",
    response={202: Asked, **ASKING},
    auth=CHAT,
    summary="Answer again",
)
def answer_again(request: AccessRequest, slug: str, conversation_id: UUID, message_id: UUID, body: Manner) -> Any:
    """Another answer to the question `message_id`, beside those that it has."""
    asked = {"conversation_id": conversation_id, "question_id": message_id, **body.dict()}
    return _accepted(request, services.answer_again, asked)


@router.post(
    "/t/{slug}/conversations/{uuid:conversation_id}/messages/{uuid:message_id}/continuations",
    response={202: Asked, **ASKING},
    auth=CHAT,
    summary="Go on with an answer",
)
def go_on(request: AccessRequest, slug: str, conversation_id: UUID, message_id: UUID, body: Manner) -> Any:
    """The answer `message_id` was cut at its limit, stopped or broken off: its rest becomes a message behind it, which
    goes on right where it ends. Read them as one."""
    asked = {"conversation_id": conversation_id, "continue_id": message_id, **body.dict()}
    return _accepted(request, services.go_on, asked)


@router.get("/t/{slug}/responses/{uuid:response_id}", response={200: Response, **REFUSALS}, auth=CHAT)
def response(request: AccessRequest, slug: str, response_id: UUID) -> Any:
    """An answer as far as it has come. Of one that belongs to no conversation nothing is kept but how it ended."""
    found = selectors.generation(request.auth, response_id)
    return {
        **present.answer(found),
        "conversation_id": found.conversation_id,
        "message_id": found.message_id,
        "text": _text(found),
    }


@router.post("/t/{slug}/responses/{uuid:response_id}/cancel", response={200: Stopped, **REFUSALS}, auth=CHAT)
def cancel(request: AccessRequest, slug: str, response_id: UUID) -> Any:
    """`status`: cancelled, cancelling, or how it had ended already."""
    return {"status": services.cancel(access=request.auth, generation_id=response_id)}


def _ask(request: AccessRequest, **asked: Any) -> Status[Any]:
    return _accepted(request, services.ask, asked)


# The websocket's words for what stands in a body, or in the address.
WORDS = {"input": "text", "question_id": "message_id", "continue_id": "message_id"}


def _accepted(request: AccessRequest, service: Callable[..., Generation], asked: dict[str, Any]) -> Status[Any]:
    try:
        found = service(access=request.auth, idempotency_key=request.headers.get("Idempotency-Key"), **asked)
    except Refusal as refused:
        refused.param = WORDS.get(refused.param or "", refused.param)
        raise
    assert found.message is not None
    return Status(
        202,
        {
            "response_id": found.pk,
            "conversation_id": found.conversation_id,
            "message_id": found.message_id,
            "parent_id": found.message.parent_id,
            "model": found.model,
            "status": found.state,
        },
    )


def _text(generation: Generation) -> str:
    if generation.unfinished:
        return assembled(finished.read_log(str(generation.pk))).choice().text
    return generation.message.text if generation.message is not None else ""
