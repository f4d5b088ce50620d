"""Chats from elsewhere become the importer's own: looked at first, then written, and taken back as a whole.

One transaction a conversation: whatever happens, each is there whole or not at all, and the same file again brings
what is still missing, since what is there already is passed over.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import IO

import structlog
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.chat import selectors, tags
from chatapp.chat.changes import changed
from chatapp.chat.models import Conversation, Message
from chatapp.chat.trees import Said, clean_title, plant
from chatapp.errors import BadInput, Conflict, Forbidden, NotFound
from chatapp.ids import NO_ID, parse_id
from chatapp.moving.found import Found, digest
from chatapp.moving.models import Import, Imported, Source
from chatapp.moving.reader import Refused, read
from chatapp.prompts import selectors as prompts
from chatapp.prompts.models import SystemPrompt
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission

log = structlog.get_logger(__name__)

MOST_CONVERSATIONS = 10_000
MOST_MESSAGES = 500_000
# An import that has not ended by then was cut short.
STALE = timedelta(minutes=15)
SHOWN = 20


@dataclass
class Report:
    """What is in a file, or what has become of it. `conversations` and `messages`: those that can be imported, or were;
    `already`: those passed over since they are here; `refused`: some of those that cannot be had; `titles`: some of
    those that can; `times`: of the last activity of each."""

    source: str = ""
    conversations: int = 0
    messages: int = 0
    already: int = 0
    refused_count: int = 0
    refused: list[Refused] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    times: list[tuple[datetime, bool]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    batch: Import | None = None


def look(*, access: Access, file: IO[bytes], again: bool = False) -> Report:
    """What `bring` would do. Nothing is changed. Raises BadInput, Forbidden."""
    _person(access)
    return _go_through(access, file, None, again)


def bring(*, access: Access, file: IO[bytes], again: bool = False) -> Report:
    """Import a file. `again`: also what is here already. Raises BadInput, Conflict while another one is imported."""
    user = _person(access)
    now = timezone.now()
    Import.objects.filter(user=user, finished_at=None, created_at__lt=now - STALE).update(finished_at=now)
    try:
        with transaction.atomic():
            batch = Import.objects.create(tenant=access.tenant, user=user)
    except IntegrityError:
        raise Conflict(
            _("A file of yours is being imported. Wait for its end, then try again."), code="import_running"
        ) from None
    report = Report()
    try:
        report = _go_through(access, file, batch, again)
    finally:
        batch.source = report.source
        batch.conversations = Imported.objects.filter(batch=batch).count()
        batch.messages = Message.objects.filter(conversation__imported__batch=batch).count()
        batch.finished_at = timezone.now()
        batch.save()
        if batch.conversations:
            _tell(batch)
        else:
            batch.delete()
    report.batch = batch if batch.conversations else None
    log.info("import.ended", conversations=report.conversations, messages=report.messages, source=report.source)
    return report


def undo(*, access: Access, import_id: object) -> tuple[Import, list[str], int]:
    """Take an import back: the ids of the conversations that are gone now, as `delete` makes them go, and how many stay
    since they have been gone on with. Raises NotFound."""
    batch = one(access, import_id)
    with transaction.atomic():
        brought = Conversation.objects.select_for_update().filter(imported__batch=batch, deleted_at=None)
        rows = list(brought.values_list("pk", flat=True))
        used = set(Conversation.objects.filter(pk__in=rows, generations__isnull=False).values_list("pk", flat=True))
        gone = [pk for pk in rows if pk not in used]
        now = timezone.now()
        for begin in range(0, len(gone), 500):
            Conversation.objects.filter(pk__in=gone[begin : begin + 500]).update(deleted_at=now)
        Import.objects.filter(pk=batch.pk).update(undone_at=now)
        batch.undone_at = now
    if gone:
        changed(Conversation.objects.get(pk=gone[0]))  # open pages look again
    return batch, [str(pk) for pk in gone], len(used)


def imports_of(access: Access, limit: int = 5) -> list[Import]:
    """Those that can be undone, newest first."""
    user = _person(access)
    return list(Import.objects.filter(user=user, undone_at=None).exclude(finished_at=None)[:limit])


def one(access: Access, import_id: object) -> Import:
    user = _person(access)
    found = Import.objects.filter(pk=parse_id(import_id), user=user, undone_at=None).first()
    if found is None:
        raise NotFound(_("There is no such import."), param="import_id")
    return found


def mark(conversation: Conversation, source: Source, told: dict[str, object] | None = None) -> Imported:
    """Say of a conversation that it was said elsewhere."""
    return Imported.objects.create(conversation=conversation, source=source, told=told or {})


def imported(conversation: Conversation) -> Imported | None:
    return Imported.objects.filter(conversation=conversation).first()


# --- parts --------------------------------------------------------------------------------------------------------


def _person(access: Access) -> object:
    access.require(Permission.CHAT)
    if access.user is None:
        raise Forbidden(_("Chats are imported by the person whose they become; a key is none."))
    return access.user


def _go_through(access: Access, file: IO[bytes], batch: Import | None, again: bool) -> Report:
    report = Report()
    assistants = {one.slug: one for one in prompts.choosable(access.tenant)}
    seen: set[str] = set()
    spelled = {name.casefold(): name for name, _count in selectors.tags(access)}
    for source, found in read(file):
        report.source = report.source or source.value
        if isinstance(found, Refused):
            report.refused_count += 1
            if len(report.refused) < SHOWN:
                report.refused.append(Refused(clean_title(found.title) if found.title else "", found.why))
            continue
        known = found.digest
        if known in seen or (not again and _is_here(access, source, found, known)):
            report.already += 1
            continue
        seen.add(known)
        report.conversations += 1
        report.messages += len(found.tree.messages)
        _bounded(report)
        report.left_out += found.left_out
        report.times.append((found.tree.updated_at or timezone.now(), found.tree.starred_at is not None))
        if len(report.titles) < SHOWN:
            report.titles.append(clean_title(found.tree.title, found.tree.messages))
        if batch is not None:
            report.ids.append(str(_write(access, source, found, known, batch, assistants, spelled).pk))
    return report


def _bounded(report: Report) -> None:
    if report.conversations > MOST_CONVERSATIONS or report.messages > MOST_MESSAGES:
        raise BadInput(
            _("The file holds more than %(chats)d chats or %(messages)d messages. Export and import it in parts.")
            % {"chats": MOST_CONVERSATIONS, "messages": MOST_MESSAGES},
            code="too_large",
            param="file",
        )


@transaction.atomic
def _write(
    access: Access,
    source: Source,
    found: Found,
    known: str,
    batch: Import,
    assistants: dict[str, SystemPrompt],
    spelled: dict[str, str],
) -> Conversation:
    tree = replace(found.tree, assistant=assistants.get(found.assistant), tags=tags.fitting(found.tree.tags, spelled))
    conversation, ids = plant(access, tree)
    told = {str(ids[key]): said for key, said in found.told.items()}
    Imported.objects.create(conversation=conversation, batch=batch, source=source, digest=known, told=told)
    return conversation


def _is_here(access: Access, source: Source, found: Found, known: str) -> bool:
    """It was imported before, or it is an export of what stands here still."""
    mine = Conversation.objects.filter(tenant=access.tenant, user=access.user, deleted_at=None)
    if mine.filter(imported__digest=known).exists():
        return True
    if source != Source.OCTAVO or parse_id(found.id) == NO_ID:
        return False
    same = mine.filter(pk=parse_id(found.id)).first()
    if same is None or same.messages.count() != len(found.tree.messages):
        return False
    return digest(_said(message) for message in same.messages.all()) == known


def _said(message: Message) -> Said:
    parent = str(message.parent_id) if message.parent_id else None
    return Said(str(message.pk), parent, message.role, message.text, message.created_at)


def _tell(batch: Import) -> None:
    """Open pages look at their lists again: one change says it for all of them."""
    newest = Conversation.objects.filter(imported__batch=batch).order_by("-updated_at").first()
    if newest is not None:
        changed(newest)
