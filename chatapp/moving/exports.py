"""One's own conversations as files: one of them, or all at once, a conversation at a time in memory.

Whoever wants everything of all teams, files included, has "Your data" (chatapp.data), which makes it as a job.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from typing import IO, Any, cast

from django.db.models import QuerySet
from django.utils import timezone

from chatapp.chat import selectors
from chatapp.chat.models import Conversation
from chatapp.chat.trees import branch
from chatapp.errors import BadInput
from chatapp.moving import own_format
from chatapp.moving.markdown import markdown
from chatapp.moving.names import file_name
from chatapp.scope import tenant_scope
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission

FORMATS = ("md", "json")
PAGE = 50
ALL = "octavo-chats"


def check(form: str) -> str:
    if form not in FORMATS:
        raise BadInput("format must be md or json.", param="format")
    return form


def one(access: Access, conversation_id: object, form: str, leaf_id: object = None) -> tuple[str, Iterator[str]]:
    """The name of the file and its parts. `leaf_id`: the last message of the branch that is shown, of which Markdown
    is made; the newest one's without. Raises NotFound, BadInput."""
    check(form)
    found = selectors.conversation(access, conversation_id)
    conversation = own_format.with_all(Conversation.objects.filter(pk=found.pk)).get()
    name = file_name(conversation.title, form)
    if form == "json":
        return name, iter(list(own_format.written(access.tenant.slug, iter([own_format.document(conversation)]))))
    return name, iter([_markdown(access, conversation, leaf_id)])


def everything(access: Access, form: str) -> tuple[str, Iterator[bytes]]:
    """All that are not deleted: one JSON file, or a zip file of Markdown ones."""
    check(form)
    access.require(Permission.CHAT)
    day = timezone.now().strftime("%Y-%m-%d")
    if form == "json":
        return f"{ALL}-{day}.json", (
            part.encode() for part in own_format.written(access.tenant.slug, _documents(access))
        )
    return f"{ALL}-{day}.zip", _zipped(access)


def _markdown(access: Access, conversation: Conversation, leaf_id: object = None) -> str:
    person = access.user.get_short_name() if access.user is not None else str(access.key)
    path = branch(own_format.said_in(conversation), leaf_id)
    return markdown(conversation, path, person=person, team=access.tenant.name)


def _pages(access: Access) -> Iterator[list[Conversation]]:
    """Oldest first. Each page is read in the team's scope anew: the answer outlives the request's."""
    last: Any = None
    while True:
        with tenant_scope(access.tenant):
            rows = _own(access) if last is None else _own(access).filter(pk__gt=last)
            page = list(rows[:PAGE])
        if not page:
            return
        yield page
        last = page[-1].pk


def _own(access: Access) -> QuerySet[Conversation]:
    owner: dict[str, Any] = {"user": access.user} if access.user is not None else {"key": access.key}
    rows = Conversation.objects.filter(tenant=access.tenant, deleted_at=None, **owner)
    return own_format.with_all(rows).order_by("pk")


def _documents(access: Access) -> Iterator[dict[str, Any]]:
    for page in _pages(access):
        for conversation in page:
            with tenant_scope(access.tenant):
                made = own_format.document(conversation)
            yield made


def _zipped(access: Access) -> Iterator[bytes]:
    taken: set[str] = set()
    out = _Parts()
    with zipfile.ZipFile(cast("IO[bytes]", out), "w", zipfile.ZIP_DEFLATED) as archive:
        for page in _pages(access):
            for conversation in page:
                with tenant_scope(access.tenant):
                    text = _markdown(access, conversation)
                archive.writestr(_free(conversation, taken), text)
                yield out.taken()
    yield out.taken()


def _free(conversation: Conversation, taken: set[str]) -> str:
    """A name that no other one has, on systems too that do not tell a from A."""
    stem = f"{conversation.updated_at:%Y-%m-%d} {file_name(conversation.title, 'md').removesuffix('.md')}"
    name, number = f"{stem}.md", 2
    while name.casefold() in taken:
        name, number = f"{stem} ({number}).md", number + 1
    taken.add(name.casefold())
    return name


class _Parts:
    """Where a zip file is written to: it cannot go back, and is taken away a part at a time."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        pass

    def taken(self) -> bytes:
        data, self._parts = b"".join(self._parts), []
        return data
