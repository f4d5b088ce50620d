"""A person rates an answer of the own conversation, says why, and changes their mind."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.chat.models import Generation, Message, MessageRole, MessageStatus
from chatapp.chat.text import joined, settled
from chatapp.errors import BadInput, Forbidden, NotFound
from chatapp.feedback.models import LONGEST_COMMENT, OF_RATING, Feedback, Rating
from chatapp.ids import parse_id
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission


def rate(
    *,
    access: Access,
    message_id: object,
    rating: str,
    reasons: Sequence[str] = (),
    comment: str = "",
    include: bool = False,
) -> Feedback:
    """Rate an answer, or change what was said of it: what is not said again is taken back. `include`: the admins may
    read the question and the answer. Raises NotFound, BadInput, Forbidden for a key."""
    answer = _answer(access, message_id)
    if rating not in Rating.values:
        raise BadInput(_("rating must be up or down."), param="rating")
    unknown = [reason for reason in reasons if reason not in OF_RATING[rating]]
    if unknown:
        raise BadInput(_("There is no such reason: %(name)s.") % {"name": unknown[0][:40]}, param="reasons")
    comment = settled(comment).strip()
    if len(comment) > LONGEST_COMMENT:
        raise BadInput(
            _("The text has %(n)d characters; at most %(most)d can be sent.")
            % {"n": len(comment), "most": LONGEST_COMMENT},
            param="comment",
        )
    generation: Generation = answer.generation
    version = generation.prompt_version
    text, question = answer.text, answer.parent
    while question is not None and question.role == MessageRole.ASSISTANT:  # it goes on with an answer
        text, question = joined(question.text, text), question.parent
    said: dict[str, Any] = {
        "rating": rating,
        "reasons": list(dict.fromkeys(reasons)),
        "comment": comment,
        "included": include,
        "question": question.text if include and question is not None else "",
        "answer": text if include else "",
        "model": generation.model,
        "assistant": version.prompt if version is not None else None,
        "version": version,
        "updated_at": timezone.now(),
    }
    for _attempt in range(2):  # a second click may be making the row at this moment
        try:
            with transaction.atomic():
                return Feedback.objects.update_or_create(
                    message=answer, user=access.user, defaults=said, create_defaults={**said, "tenant": access.tenant}
                )[0]
        except IntegrityError:
            continue
    raise NotFound(_("This answer is not there any more."), param="message_id")


def take_back(*, access: Access, message_id: object) -> None:
    """Raises NotFound for an answer that is not one's own; where nothing was said of it there is nothing to do."""
    Feedback.objects.filter(message=_answer(access, message_id), user=access.user).delete()


def own_ratings(access: Access, conversation_id: uuid.UUID) -> list[Feedback]:
    """What the asker has said of the answers of a conversation. The caller has found the conversation."""
    return list(Feedback.objects.filter(message__conversation=conversation_id, user=access.user)) if access.user else []


def without_text(conversations: Sequence[uuid.UUID]) -> None:
    """Ratings of these conversations stay, without a trace of what they were about. Inside a transaction."""
    rows = Feedback.objects.filter(message__conversation__in=conversations)
    rows.update(message=None, user=None, comment="", included=False, question="", answer="")


def _answer(access: Access, message_id: object) -> Message:
    access.require(Permission.CHAT)
    if access.user is None:
        raise Forbidden(_("Answers are rated by people; a key is none."))
    found = (
        Message.objects.select_related("parent", "generation__prompt_version__prompt")
        .filter(
            pk=parse_id(message_id),
            role=MessageRole.ASSISTANT,
            conversation__tenant=access.tenant,
            conversation__user=access.user,
            conversation__deleted_at=None,
            generation__isnull=False,
        )
        .exclude(status=MessageStatus.RUNNING)
        .first()
    )
    if found is None:
        raise NotFound(_("There is no such answer."), param="message_id")
    return found
