"""What creates, stops and deletes responses.

A response is one generation. One that is kept has a row, written in the transaction that accepts the generation and
finished in the one that records its end; so it outlives its caller, and every process can tell it from any point.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import redis.exceptions
import structlog

from chatapp.chat import recorder
from chatapp.chat import services as chat
from chatapp.chat.choices import CHAT_DEFAULTS
from chatapp.chat.models import Generation, State
from chatapp.chat.queueing import LONGEST_KEY, without_answer
from chatapp.chat.recorder import Answer
from chatapp.chat.text import plain
from chatapp.errors import BadInput, Conflict, Forbidden, IdempotencyMismatch, Refusal
from chatapp.responses import selectors
from chatapp.responses.items import PREVIOUS, Places, Reference, numbered
from chatapp.responses.models import StoredResponse
from chatapp.responses.narrator import Narrator, pieces_of
from chatapp.responses.shapes import Item
from chatapp.streaming import traces
from chatapp.streaming.assembly import Choice
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission
from engine import protocol

log = structlog.get_logger(__name__)

# How many answers a conversation may have behind it; a context is full long before.
MOST_TURNS = 500
GOES_ON = (State.FINISHED, State.CANCELLED)


@dataclass(frozen=True)
class Wanted:
    """A response as it is asked for. `told`: what the response says of itself in the caller's own words."""

    items: list[Item | Reference]
    instructions: str | None = None
    previous_response_id: str | None = None
    model: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    tools: Mapping[str, Any] = field(default_factory=dict)
    cache_salt: str | None = None
    store: bool = True
    background: bool = False
    told: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""


def create(*, access: Access, wanted: Wanted, idempotency_key: str | None = None) -> StoredResponse:
    """The response, with its generation; a row in the database only where it is to be kept.

    A stateless one holds a lease (chatapp.chat.services.complete). Raises as that does; BadInput for a previous
    response that is not there, failed, or is deleted in part; Conflict for one that is still being answered.
    """
    access.require(Permission.CHAT)
    repeated = _repeated(access, wanted, idempotency_key)
    if repeated is not None:
        return repeated
    row = StoredResponse(tenant=access.tenant, background=wanted.background, digest=wanted.digest)
    places = Places()
    if wanted.instructions is not None:
        places.add_system(wanted.instructions, "instructions")
    if wanted.previous_response_id is not None:
        for before in _line(access, wanted.previous_response_id):
            places.add([*selectors.input_of(before), *selectors.output_of(before)], PREVIOUS)
            row.previous_id = before.pk
            row.ancestors.append(before.pk.hex)
    items = [_resolved(access, item) for item in wanted.items]
    places.add(items, "input", each=True)

    def accept(generation: Generation) -> None:
        row.generation = generation
        row.created_at = generation.created_at
        row.settings = _settings(generation, wanted)
        row.input = msgspec.to_builtins(numbered(items, generation.pk.hex))
        row.size = len(msgspec.json.encode(row.input))
        if wanted.store:
            row.save(force_insert=True)

    try:
        generation = chat.complete(
            access=access,
            messages=places.messages,
            params=wanted.params,
            model=wanted.model,
            cache_salt=wanted.cache_salt,
            idempotency_key=idempotency_key,
            leased=not wanted.store,
            restart=True,
            within=accept,
            **wanted.tools,
        )
    except Refusal as refusal:
        of_instructions = isinstance(refusal, Forbidden) and wanted.instructions is not None
        refusal.param = "instructions" if of_instructions else places.param(refusal.param)
        raise
    if row.generation_id != generation.pk:  # a twin of this request was a moment faster
        return _same(access, generation, wanted)
    row.generation = generation
    return row


def _line(access: Access, previous_response_id: str) -> list[StoredResponse]:
    """The conversation so far, which ends in a response that somebody can go on from."""
    row = _previous(access, previous_response_id)
    if row.generation.unfinished:
        # It may have ended, and wait for being written.
        try:
            recorder.record(str(row.pk))
        except redis.exceptions.RedisError as error:
            log.warning("response.not_settled", generation=str(row.pk), error=type(error).__name__)
        row = _previous(access, previous_response_id)
    if row.generation.unfinished:
        raise Conflict(
            f"{row.public_id} is still being answered; wait for its end.", code="response_in_progress", param=PREVIOUS
        )
    if row.generation.state not in GOES_ON:
        raise BadInput(
            f"{row.public_id} failed, so nothing can follow it. Ask again from where it began"
            + (f": previous_response_id {selectors.public(row.previous_id)}." if row.previous_id else "."),
            code="previous_response_failed",
            param=PREVIOUS,
        )
    if len(row.ancestors) >= MOST_TURNS:
        raise BadInput(
            f"A conversation may have {MOST_TURNS} responses, and this one has. Begin a new one.",
            code="context_length_exceeded",
            param=PREVIOUS,
        )
    return selectors.line(access, row)


def _previous(access: Access, previous_response_id: str) -> StoredResponse:
    try:
        return selectors.response(access, previous_response_id)
    except Refusal as refusal:
        if refusal.status != 404:
            raise
        raise BadInput(
            f"Previous response with id {previous_response_id[:100]!r} not found.",
            code="previous_response_not_found",
            param=PREVIOUS,
        ) from None


def _resolved(access: Access, item: Item | Reference) -> Item:
    if not isinstance(item, Reference):
        return item
    found = selectors.item(access, item.id)
    if found is None:
        raise BadInput(f"There is no item {item.id[:100]!r}.", code="item_not_found", param=f"{item.place}.id")
    return found


def _settings(generation: Generation, wanted: Wanted) -> dict[str, Any]:
    """With the settings that were left to us."""
    assert generation.request is not None, "it is being accepted"
    params = protocol.decode_request(bytes(generation.request)).params
    return {**wanted.told, "temperature": params.temperature, "top_p": params.top_p}


# --- repeated requests --------------------------------------------------------------------------------------------


def _repeated(access: Access, wanted: Wanted, idempotency_key: str | None) -> StoredResponse | None:
    """What an idempotency key stands for already, whatever has become of the responses before it since."""
    if idempotency_key is None:
        return None
    plain(idempotency_key, param="idempotency_key", longest=LONGEST_KEY)
    generation = Generation.objects.filter(
        tenant=access.tenant, principal=access.principal, idempotency_key=idempotency_key
    ).first()
    if generation is None or selectors.of_generation(access, generation) is None:
        return None  # chat.complete looks whether it is of the same request
    row = _same(access, generation, wanted)
    return None if without_answer(generation) else row


def _same(access: Access, generation: Generation, wanted: Wanted) -> StoredResponse:
    row = selectors.of_generation(access, generation)
    if row is not None and (not wanted.store or row.digest != wanted.digest):
        raise IdempotencyMismatch("This idempotency key was used for another request; use a new one.")
    if row is not None:
        return row
    if wanted.store:
        raise IdempotencyMismatch("This idempotency key was used for another request; use a new one.")
    # The request of one that has ended is not kept, but what it left to us is the same for everybody.
    left = {name: CHAT_DEFAULTS[name] for name in ("temperature", "top_p") if wanted.told.get(name) is None}
    return StoredResponse(
        tenant=access.tenant, generation=generation, settings={**wanted.told, **left}, digest=wanted.digest
    )


# --- stopping and deleting ----------------------------------------------------------------------------------------


def cancel(*, access: Access, response_id: str) -> StoredResponse:
    """Stop one in the background; one that has ended stays as it is. Raises NotFound, BadInput, Unavailable."""
    row = selectors.response(access, response_id)
    if not row.background:
        raise BadInput("Cannot cancel a synchronous response.", param="response_id")
    if row.generation.unfinished:
        chat.cancel(access=access, generation_id=row.pk)
    return row


def delete(*, access: Access, response_id: str) -> str:
    """Its id. One that is being answered is stopped. What it used stays as figures; those who went on from it are told.

    Raises NotFound, Unavailable.
    """
    row = selectors.response(access, response_id)
    if row.generation.unfinished:
        chat.cancel(access=access, generation_id=row.pk)
    name = row.public_id
    key: uuid.UUID = row.pk
    StoredResponse.objects.filter(pk=key).delete()
    # The digest is one of the text; whoever guesses that could check the guess.
    Generation.objects.filter(pk=key).update(idempotency_key=None, digest="", error_message="")
    if not row.generation.unfinished:
        try:
            traces.forget_generations([str(key)])
        except redis.exceptions.RedisError as error:  # it expires within the hour
            log.warning("response.log_left", generation=str(key), error=type(error).__name__)
    return name


# --- the end ------------------------------------------------------------------------------------------------------


def keep(*, generation: Generation, answer: Answer, **_: Any) -> None:
    """For the recorder's signal: write what came of a generation; nothing where no response is kept of it."""
    if generation.conversation_id is not None:
        return  # a chat's
    row = StoredResponse.objects.filter(pk=generation.pk).first()
    if row is None:
        return
    row.generation = generation
    choice = answer.choices.get(0) or Choice()
    narrator = Narrator(selectors.base_of(row))
    narrator.tell_all(selectors.told_of(generation, choice))
    output = msgspec.to_builtins(narrator.response.output)
    # Not by save: it may be deleted in this very moment, which is no reason to fail.
    StoredResponse.objects.filter(pk=row.pk).update(
        output=output, pieces=pieces_of(choice), size=row.size + len(msgspec.json.encode(output))
    )
