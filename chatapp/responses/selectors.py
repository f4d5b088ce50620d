"""What can be read of responses, by an Access; what is not the asker's is NotFound, like what never was."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
from django.conf import settings
from django.db.models import Sum

from chatapp.chat.models import Generation, State
from chatapp.errors import BadInput, NotFound
from chatapp.ids import NO_ID, parse_id
from chatapp.responses import shapes
from chatapp.responses.models import PREFIX, StoredResponse
from chatapp.responses.narrator import Narrator, choice_of, retold
from chatapp.streaming import finished
from chatapp.streaming.assembly import Choice
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission
from engine import protocol

MOST_PAGE = 100
PAGE = 20

_ENDS: dict[str, type[protocol.AnyTerminal]] = {
    State.FINISHED: protocol.Finished,
    State.REFUSED: protocol.Refused,
    State.CANCELLED: protocol.Cancelled,
    State.TIMEOUT: protocol.TimedOut,
    State.INTERRUPTED: protocol.Interrupted,
    State.FAILED: protocol.Failed,
}


def parse_public(value: object, prefix: str = PREFIX) -> uuid.UUID:
    """The id in "resp_…"; NO_ID for what is none."""
    text = str(value)
    return parse_id(text.removeprefix(prefix)) if text.startswith(prefix) else NO_ID


def public(key: uuid.UUID | None) -> str | None:
    return None if key is None else f"{PREFIX}{key.hex}"


def _own(access: Access) -> Any:
    access.require(Permission.CHAT)
    return StoredResponse.objects.select_related("generation").filter(
        tenant=access.tenant, generation__principal=access.principal
    )


def response(access: Access, response_id: object) -> StoredResponse:
    """One that the asker created and that has not been deleted."""
    found: StoredResponse | None = _own(access).filter(pk=parse_public(response_id)).first()
    if found is None:
        raise NotFound("There is no such response.", param="response_id")
    return found


def of_generation(access: Access, generation: Generation) -> StoredResponse | None:
    found: StoredResponse | None = _own(access).filter(pk=generation.pk).first()
    return found


def line(access: Access, row: StoredResponse) -> list[StoredResponse]:
    """The conversation that ends in `row`, oldest first.

    Raises BadInput where a part of it has been deleted, or where it is longer than any model's context.
    """
    keys = [parse_id(key) for key in row.ancestors]
    size = _own(access).filter(pk__in=[*keys, row.pk]).aggregate(total=Sum("size"))["total"] or 0
    if size > 4 * settings.OCTAVO_MAX_BODY:
        raise BadInput(
            f"The conversation that ends in {row.public_id} is too long to go on. Begin a new one.",
            code="context_length_exceeded",
            param="previous_response_id",
        )
    found = _own(access).in_bulk([*keys, row.pk])
    for key in keys:
        if key not in found:
            raise BadInput(
                f"The response {public(key)}, which {row.public_id} goes on from, has been deleted. Begin a new "
                "conversation, or send what was said as input.",
                code="previous_response_not_found",
                param="previous_response_id",
            )
    return [found[key] for key in [*keys, row.pk]]


def item(access: Access, item_id: str) -> shapes.Item | None:
    """An item of a response of the asker's, by its id."""
    key = item_id.split("_")[1] if item_id.count("_") == 2 else ""
    row: StoredResponse | None = _own(access).filter(pk=parse_id(key)).first()
    if row is None:
        return None
    return next((found for found in [*input_of(row), *output_of(row)] if found.id == item_id), None)


def input_of(row: StoredResponse) -> list[shapes.Item]:
    return msgspec.convert(row.input, list[shapes.Item])


def output_of(row: StoredResponse) -> list[shapes.OutputItem]:
    return msgspec.convert(row.output, list[shapes.OutputItem])


def input_page(row: StoredResponse, *, after: str | None, limit: int, newest_first: bool) -> shapes.ItemList:
    """Raises BadInput for an `after` that is none of its items."""
    items = input_of(row)
    if newest_first:
        items.reverse()
    if after is not None:
        place = next((index for index, found in enumerate(items) if found.id == after), None)
        if place is None:
            raise BadInput("after is the id of an item of this response.", param="after")
        items = items[place + 1 :]
    page = items[:limit]
    return shapes.ItemList(
        data=page,
        first_id=page[0].id if page else None,
        last_id=page[-1].id if page else None,
        has_more=len(items) > len(page),
    )


# --- as it is told ------------------------------------------------------------------------------------------------


def base_of(row: StoredResponse, *, store: bool = True) -> shapes.Response:
    """The response as it was when it was accepted."""
    generation = row.generation
    settings = {name: row.settings[name] for name in shapes.Response.__struct_fields__ if name in row.settings}
    return shapes.Response(
        id=row.public_id,
        created_at=int(generation.created_at.timestamp()),
        status="queued" if row.background else "in_progress",
        background=row.background,
        store=store,
        model=generation.model,
        previous_response_id=public(row.previous_id),
        **settings,
    )


def terminal_of(generation: Generation) -> protocol.AnyTerminal:
    """The event that a recorded generation ended with."""
    return _ENDS[generation.state](
        usage=protocol.Usage(
            prompt_tokens=generation.prompt_tokens,
            cached_tokens=generation.cached_tokens,
            completion_tokens=generation.completion_tokens,
        ),
        timing=protocol.Timing(**generation.timing) if generation.timing else None,
        finish_reason=generation.finish_reason or None,
        code=generation.error_code or None,
        param=generation.error_param or None,
        message=generation.error_message or None,
    )


def told_of(generation: Generation, choice: Choice) -> Iterator[protocol.AnyEvent]:
    """The engine's events of a generation that has ended so, as its row says."""
    started = protocol.Started(prompt_tokens=generation.prompt_tokens, cached_tokens=generation.cached_tokens)
    return retold(choice, started, terminal_of(generation))


def told_by_row(row: StoredResponse) -> Iterator[protocol.AnyEvent]:
    return told_of(row.generation, choice_of(output_of(row), row.pieces))


def shown(row: StoredResponse) -> shapes.Response:
    """As it is now: with the output so far, while it runs. Raises redis.exceptions.RedisError then."""
    narrator = Narrator(base_of(row))
    narrator.tell_all(finished.read_log(str(row.pk)) if row.generation.unfinished else told_by_row(row))
    return narrator.response
