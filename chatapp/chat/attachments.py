"""Files that come with a question: which ones may, whether they fit, and how they are tied to its message.

They are looked at before a question is admitted, and locked and looked at again in the transaction that accepts it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import redis.exceptions

from chatapp.chat import selectors
from chatapp.chat.models import Conversation, Generation, Message
from chatapp.errors import BadInput, Conflict, NotFound
from chatapp.files import jobs
from chatapp.files import selectors as files
from chatapp.files.models import UNREAD, Attachment, Reading, ReadingState, StoredFile
from chatapp.ids import parse_id
from chatapp.limits.values import Limits, least
from chatapp.streaming import workers
from chatapp.tenants.access import Access

MOST_FILES = 10
# A thousand pages with their pictures; more than MOST_TEXT of text is never read (chatapp.files.reading).
LARGEST_FILE = 25 * 1024 * 1024
# Of a question's text, where only its length is known; and what the chat template puts around it.
CHARACTERS_A_TOKEN = 4
AROUND_TOKENS = 8


def chosen(access: Access, file_ids: Sequence[Any]) -> list[StoredFile]:
    """The asker's files, in this order, each once, all of them read. Raises BadInput, NotFound, Conflict."""
    if not isinstance(file_ids, list | tuple) or len(file_ids) > 10 * MOST_FILES:
        raise BadInput("file_ids must be a list of the ids of files.", param="file_ids")
    found: dict[uuid.UUID, StoredFile] = {}
    for file_id in file_ids:
        file = files.file(access, file_id, param="file_ids")
        found.setdefault(file.pk, file)
    if len(found) > MOST_FILES:
        raise BadInput(
            f"A message may have {MOST_FILES} files; these are {len(found)}.", code="too_many_files", param="file_ids"
        )
    for file in found.values():
        _readable(file)
    return list(found.values())


def _readable(file: StoredFile) -> None:
    reading = Reading.objects.filter(file=file).first() or jobs.request(file)
    if reading.state in UNREAD:
        raise Conflict(
            f"{file.name} is still being read. Try again in a moment.", code="file_not_ready", param="file_ids"
        )
    if reading.state != ReadingState.READY:
        raise BadInput(f"{file.name} cannot be read. {reading.error}", code="file_unreadable", param="file_ids")
    file.reading = reading


def check_room(
    access: Access,
    limits: Limits,
    found: Sequence[StoredFile],
    text: str,
    *,
    model: str | None,
    conversation_id: object,
    parent_id: object,
) -> None:
    """Raises BadInput where what is known already does not fit: the engine, which knows all of it, says so too late to
    take a file off again. Where no engine runs, nothing is known."""
    conversation = selectors.conversation(access, conversation_id) if conversation_id is not None else None
    name = model or (conversation.model if conversation is not None else "") or access.tenant.model
    context = context_of(limits, name)
    if context is None or not found:
        return
    counts = [jobs.tokens_of(file.reading, name) for file in found]
    taken = sum(count or 0 for count in counts)
    before = _before(conversation, parent_id) if conversation is not None else 0
    asked = len(text) // CHARACTERS_A_TOKEN + AROUND_TOKENS
    over = taken + before + asked - context
    if over >= 0:
        what = "The file takes" if len(found) == 1 else f"The {len(found)} files take"
        rest = f", and the conversation before it {before:,}" if before else ""
        raise BadInput(
            f"{what} {taken:,} tokens{rest}: {over + 1:,} more than fit into the {context:,} that can be read at once. "
            "Take off a file, or attach a part of it.",
            code="context_too_long",
            param="file_ids",
        )


def context_of(limits: Limits, model: str) -> int | None:
    """How many tokens a prompt may have, question and answer included; None: no engine of the model runs now."""
    try:
        contexts = [worker.context for worker in workers.live(model)]
    except redis.exceptions.RedisError:
        return None
    return least(max(contexts), limits.context_tokens) if contexts else None


def _before(conversation: Conversation, parent_id: object) -> int:
    """What the branch takes that the question goes on with, as the engine has counted it for its last answer."""
    answers = Generation.objects.filter(conversation=conversation, prompt_tokens__gt=0)
    if parent_id == selectors.ROOT:
        return 0
    if parent_id is not None:
        answers = answers.filter(message=parse_id(parent_id))
    last = answers.order_by("created_at").last()
    return last.prompt_tokens + last.completion_tokens if last is not None else 0


def attach(message: Message, found: Sequence[StoredFile]) -> None:
    """Inside the transaction that writes the message. Raises NotFound for a file that is gone by now."""
    keys = [file.pk for file in found]
    if not keys:
        return
    rows = StoredFile.objects.select_for_update().filter(pk__in=keys)
    if len(rows) != len(keys):
        raise NotFound("One of the files is not there any more. Attach it again.", param="file_ids")
    Attachment.objects.bulk_create(
        Attachment(message=message, file=file, position=place) for place, file in enumerate(found)
    )
    # What a person attaches stays with the message; until then it is as good as thrown away.
    rows.filter(user__isnull=False).update(expires_at=None)
