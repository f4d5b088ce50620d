"""Reads a batch's file: each line becomes an item, or a complaint that names the line.

The file is read as a stream, however large it is. A line is a JSON object, as OpenAI has it: custom_id, method, url and
body; the body is read as the address itself would read it. Empty lines are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from django.conf import settings
from django.core.files import File

from chatapp.batches.endpoints import Endpoint
from chatapp.batches.models import LONGEST_CUSTOM_ID, BatchItem
from chatapp.errors import Refusal
from chatapp.tenants.access import Access

MOST_LINES = 50_000
# More of them help nobody, and a file of another kind has one in each line.
MOST_ERRORS = 100
METHOD = "POST"


class Line(msgspec.Struct, frozen=True):
    """`body` stays as it was written."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


_decoder = msgspec.json.Decoder(Line)


@dataclass(frozen=True)
class Complaint:
    code: str
    message: str
    line: int | None = None
    param: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "param": self.param, "line": self.line}


class _Bad(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


def read(file: File, *, address: str, endpoint: Endpoint, access: Access) -> Iterator[BatchItem | Complaint]:
    """Items without their batch, and complaints, in the order of lines; after MOST_ERRORS complaints it ends."""
    seen: dict[str, int] = {}
    complaints = 0
    for number, offset, text, size in _lines(file):
        if len(seen) >= MOST_LINES:
            yield Complaint("too_many_requests", f"A batch has {MOST_LINES:,} requests at most.", number)
            return
        try:
            if text is None:
                raise _Bad("too_large", f"A line has {settings.OCTAVO_MAX_BODY:,} bytes at most.")
            line = _parsed(text, address)
            if line.custom_id in seen:
                first = seen[line.custom_id]
                message = f"The custom_id {line.custom_id[:60]!r} stands in line {first} already; each must be its own."
                raise _Bad("duplicate_custom_id", message, "custom_id")
            seen[line.custom_id] = number
            endpoint.check(access, bytes(line.body))
        except (_Bad, Refusal) as bad:
            param = bad.param if isinstance(bad, _Bad) or bad.param is None else f"body.{bad.param}"
            yield Complaint(bad.code, bad.message, number, param)
            complaints += 1
            if complaints >= MOST_ERRORS:
                return
            continue
        yield BatchItem(line=number, custom_id=line.custom_id, offset=offset, length=size)
    if not seen and not complaints:
        yield Complaint("empty_file", "The file has no requests: write one JSON object a line.")


def body_at(file: File, offset: int, length: int) -> bytes:
    """The request of a line that has been read before."""
    file.seek(offset)
    return bytes(_decoder.decode(file.read(length)).body)


def _parsed(text: bytes, address: str) -> Line:
    try:
        line = _decoder.decode(text)
    except msgspec.ValidationError as error:
        message = str(error)
        field = message.partition("`$.")[2].partition("`")[0] or None
        raise _Bad("invalid_request", f"This is no request of a batch: {message}.", field) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise _Bad("invalid_json_line", "This line is not parseable as valid JSON.") from None
    name = line.custom_id
    if not 0 < len(name) <= LONGEST_CUSTOM_ID or "\0" in name or any("\ud800" <= c <= "\udfff" for c in name):
        raise _Bad(
            "invalid_custom_id", f"custom_id must be a text of 1 to {LONGEST_CUSTOM_ID} characters.", "custom_id"
        )
    if line.method != METHOD:
        raise _Bad("invalid_method", f"The method must be {METHOD}, not {line.method[:20]!r}.", "method")
    if line.url != address:
        raise _Bad(
            "invalid_url", f"The url must be {address}, as the batch's endpoint; it is {line.url[:60]!r}.", "url"
        )
    return line


def _lines(file: File) -> Iterator[tuple[int, int, bytes | None, int]]:
    """(number from 1, offset, text, length) of each line that is not blank; a text too long to be one is None."""
    most = settings.OCTAVO_MAX_BODY
    number, offset = 0, 0
    while text := file.readline(most + 2):
        number += 1
        begin, offset = offset, offset + len(text)
        if len(text.rstrip(b"\r\n")) > most:
            while not text.endswith(b"\n") and (text := file.readline(most)):
                offset += len(text)
            yield number, begin, None, 0
            continue
        plain = text.removeprefix(b"\xef\xbb\xbf") if number == 1 else text
        skipped = len(text) - len(plain)
        if plain.strip():
            yield number, begin + skipped, plain, len(plain)
