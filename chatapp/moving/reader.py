"""A file that somebody brings -> the conversations in it, one after the other. Which format it is, its content says.

Taken are JSON files, and zip files with such in them, as ChatGPT's export comes. Nothing of a file lies in memory but
the one conversation that is looked at, which is bounded in depth, in values and in characters; one that is beyond that
is passed over and said to be.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import ijson
from django.utils.translation import gettext as _

from chatapp.errors import BadInput
from chatapp.moving import chatgpt, open_webui, own_format
from chatapp.moving.found import Found, Unreadable
from chatapp.moving.models import Source

MOST_DEPTH = 40
MOST_VALUES = 400_000
MOST_CHARACTERS = 32 * 1024 * 1024
# What a zip file may hold unpacked, in bytes and in files that are looked at.
MOST_UNPACKED = 1024 * 1024 * 1024
MOST_MEMBERS = 200
# No format has so many fields beside its conversations.
MOST_NAMES = 1000
BLOCK = 64 * 1024
BOM = b"\xef\xbb\xbf"
ZIP = b"PK\x03\x04"
TOO_MUCH = object()


def unknown() -> BadInput:
    return BadInput(
        _(
            "This is no export of chats that Octavo can read. It reads its own JSON, ChatGPT's conversations.json or "
            "the zip file around it, and Open WebUI's export."
        ),
        code="unknown_format",
        param="file",
    )


@dataclass(frozen=True)
class Refused:
    """One that cannot be imported, and why."""

    title: str
    why: str


def read(file: IO[bytes]) -> Iterator[tuple[Source, Found | Refused]]:
    """Raises BadInput for a file that holds no conversation in any of the formats."""
    file.seek(0)
    is_zip = file.read(len(ZIP)) == ZIP
    file.seek(0)
    seen = False
    for stream in _members(file) if is_zip else [file]:
        try:
            for raw, head in _elements(stream):
                known = _kind(raw, head)
                if known is None:
                    continue
                seen = True
                yield known, _found(known, raw)
        except (ijson.JSONError, UnicodeDecodeError):  # the latter for a half of a character that stands alone
            if seen:
                raise BadInput(
                    _("The file ends in the middle, or is damaged. Export it again."), code="damaged", param="file"
                ) from None
            raise unknown() from None
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError):
            raise _damaged_zip() from None
        except Unreadable as refused:
            raise BadInput(str(refused), code="unknown_format", param="file") from None
    if not seen:
        raise unknown()


def _damaged_zip() -> BadInput:
    return BadInput(_("The zip file is damaged, or has a password."), code="damaged", param="file")


def _kind(raw: Any, head: dict[str, Any]) -> Source | None:
    if own_format.check(head):
        return Source.OCTAVO
    if raw is TOO_MUCH:
        return Source.CHATGPT  # of what is that large nothing more is known, and it is said to be too large
    if not isinstance(raw, dict):
        return None
    if chatgpt.looks_like(raw):
        return Source.CHATGPT
    return Source.OPEN_WEBUI if open_webui.looks_like(raw) else None


def _found(source: Source, raw: Any) -> Found | Refused:
    if raw is TOO_MUCH:
        return Refused("", _("It is too large."))
    reads = {Source.OCTAVO: own_format.read, Source.CHATGPT: chatgpt.read, Source.OPEN_WEBUI: open_webui.read}
    if not isinstance(raw, dict):
        return Refused("", _("It is no conversation."))
    title = raw.get("title")
    try:
        return reads[source](raw)
    except Unreadable as refused:
        return Refused(title[:120] if isinstance(title, str) else "", str(refused))


def _members(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """The conversations of a zip file: those called so where there are any, since exports hold much else."""
    try:
        with zipfile.ZipFile(file) as archive:
            files = [info for info in archive.infolist() if info.filename.lower().endswith(".json")]
            named = [info for info in files if info.filename.rpartition("/")[2].lower().startswith("conversations")]
            chosen = sorted(named or files, key=lambda info: info.filename)[:MOST_MEMBERS]
            if sum(info.file_size for info in chosen) > MOST_UNPACKED:
                raise BadInput(_("Unpacked, the zip file is too large."), code="too_large", param="file")
            for info in chosen:
                with archive.open(info) as member:
                    yield member
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError):
        raise _damaged_zip() from None


# --- JSON ---------------------------------------------------------------------------------------------------------


def _elements(stream: IO[bytes]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The values of a list, or of the list called conversations in an object, with what stood before it there; an
    object without one is itself such a value."""
    events = ijson.basic_parse(_Unmarked(stream), use_float=True, buf_size=BLOCK)
    event, _value = next(events, ("", None))
    if event == "start_array":
        for event, value in events:
            if event == "end_array":
                break
            yield _value_of(event, value, events), {}
    elif event == "start_map":
        head: dict[str, Any] = {}
        listed = False
        for event, key in events:
            if event == "end_map":
                break
            event, value = next(events)
            if key == "conversations" and event == "start_array":
                listed = True
                for event, value in events:
                    if event == "end_array":
                        break
                    yield _value_of(event, value, events), head
            else:
                head[key] = _value_of(event, value, events)
                if len(head) > MOST_NAMES:
                    raise unknown()
        if not listed:
            yield head, {}
    for _rest in events:  # what follows the end is an error of the file
        pass


class _Unmarked:
    """A file without the mark that some editors put before UTF-8."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._begun = False

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        if not self._begun and data:
            self._begun = True
            if data.startswith(BOM):
                return data[len(BOM) :] or self._file.read(size)
        return data


def _value_of(event: str, value: Any, events: Iterator[tuple[str, Any]]) -> Any:
    """The value that begins with this event; TOO_MUCH, read to its end, where it is beyond what may lie in memory."""
    if event not in ("start_map", "start_array"):
        return value
    root: Any = {} if event == "start_map" else []
    stack: list[Any] = [root]
    keys: list[str] = [""]
    depth, values, characters = 1, 0, 0
    whole = True
    while depth:
        event, value = next(events)
        if event == "map_key":
            keys[-1] = value
            characters += len(value)
            continue
        if event in ("end_map", "end_array"):
            depth -= 1
            if whole:
                stack.pop()
                keys.pop()
            continue
        values += 1
        opens = event in ("start_map", "start_array")
        if isinstance(value, str):
            characters += len(value)
        if whole and (values > MOST_VALUES or characters > MOST_CHARACTERS or depth + opens > MOST_DEPTH):
            whole = False
            root = TOO_MUCH
            stack, keys = [], [""]
        if whole:
            made: Any = ({} if event == "start_map" else []) if opens else value
            holder = stack[-1]
            if isinstance(holder, dict):
                holder[keys[-1]] = made
            else:
                holder.append(made)
            if opens:
                stack.append(made)
                keys.append("")
        depth += opens
    return root
