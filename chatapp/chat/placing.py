"""Where in a conversation's tree an answer belongs, and what is written with it.

A new question stands beside those that follow the same message (editing one makes a sibling); another answer stands
beside the first, under the same question; what goes on with an answer that was cut hangs under that answer, and the
two are read as one (requests.history_of). Nothing is ever overwritten. Runs inside the transaction that accepts the
answer, with the conversation locked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chatapp.chat import attachments, selectors
from chatapp.chat.choices import kept
from chatapp.chat.models import UNFINISHED, Conversation, Generation, Message, MessageRole, MessageStatus
from chatapp.chat.text import HALF, title
from chatapp.errors import BadInput, Conflict, NotFound
from chatapp.files.models import StoredFile
from chatapp.ids import parse_id
from chatapp.prompts import selectors as prompts
from chatapp.tenants.access import Access


@dataclass(frozen=True)
class Place:
    """The answer follows `before`: a question, or an answer that it goes on with. `added`: what was written for it."""

    conversation: Conversation
    before: Message
    added: tuple[Message, ...] = ()

    @property
    def continues(self) -> bool:
        return self.before.role == MessageRole.ASSISTANT


Placing = Callable[[Access, datetime], Place]


def busy() -> Conflict:
    return Conflict(
        "This conversation is being answered; wait for the end or stop it.",
        code="conversation_busy",
        param="conversation_id",
    )


def in_new_conversation(
    text: str,
    files: Sequence[StoredFile],
    *,
    assistant_id: object = None,
    model: str | None = None,
    params: Mapping[str, Any] | None = None,
) -> Placing:
    """The first question of a new one, which keeps how it is to be answered."""

    def place(access: Access, now: datetime) -> Place:
        conversation = Conversation.objects.create(
            tenant=access.tenant,
            user=access.user,
            key=access.key,
            title=title(text),
            updated_at=now,
            model=model or "",
            params=kept(params or {}),
            assistant=prompts.chosen(access.tenant, assistant_id=assistant_id) if assistant_id is not None else None,
        )
        return _question(conversation, None, text, files)

    return place


def under(text: str, files: Sequence[StoredFile], *, conversation_id: object, parent_id: object) -> Placing:
    """A new question behind the message named; None: behind the newest; ROOT: beside the first."""

    def place(access: Access, now: datetime) -> Place:
        conversation = _locked(access, conversation_id)
        if parent_id is None:
            parent = conversation.messages.order_by("created_at", "id").last()
        elif parent_id == selectors.ROOT:
            parent = None
        else:
            parent = _message(conversation, parent_id, param="parent_id")
        return _question(conversation, parent, text, files)

    return place


def beside(*, conversation_id: object, question_id: object) -> Placing:
    """Another answer to a question that is there."""

    def place(access: Access, now: datetime) -> Place:
        conversation = _locked(access, conversation_id)
        question = _message(conversation, question_id, param="question_id")
        if question.role != MessageRole.USER:
            raise BadInput("Only a question can be answered again; name the one before it.", param="question_id")
        return Place(conversation, question)

    return place


def behind(*, conversation_id: object, continue_id: object) -> Placing:
    """The rest of an answer that was cut at its limit, stopped, or broken off."""

    def place(access: Access, now: datetime) -> Place:
        conversation = _locked(access, conversation_id)
        answer = _message(conversation, continue_id, param="continue_id")
        if answer.role != MessageRole.ASSISTANT:
            raise BadInput("Only an answer can be gone on with, and this is a question.", param="continue_id")
        if not answer.text.rstrip(HALF):
            raise BadInput(
                "This answer has no text to go on with. Have its question answered again.",
                code="nothing_to_continue",
                param="continue_id",
            )
        if answer.status == MessageStatus.DONE and not _cut(answer):
            raise BadInput(
                "This answer came to its own end. Ask for more in a new message.",
                code="answer_complete",
                param="continue_id",
            )
        return Place(conversation, answer)

    return place


def _cut(answer: Message) -> bool:
    return Generation.objects.filter(message=answer, finish_reason="length").exists()


def _locked(access: Access, conversation_id: object) -> Conversation:
    """Raises NotFound, and Conflict while it is being answered."""
    found = selectors.conversation(access, conversation_id)
    conversation = Conversation.objects.select_for_update().get(pk=found.pk)
    if conversation.generations.filter(state__in=UNFINISHED).exists():
        raise busy()
    return conversation


def _message(conversation: Conversation, message_id: object, *, param: str) -> Message:
    found = conversation.messages.filter(pk=parse_id(message_id)).first()
    if found is None:
        raise NotFound("There is no such message in this conversation.", param=param)
    return found


def _question(conversation: Conversation, parent: Message | None, text: str, files: Sequence[StoredFile]) -> Place:
    question = Message.objects.create(conversation=conversation, parent=parent, role=MessageRole.USER, text=text)
    attachments.attach(question, files)
    return Place(conversation, question, (question,))
