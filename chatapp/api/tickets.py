"""Tickets: how a browser opens a socket of a program's key that it never sees.

The program's server asks for one with its key and hands it to the page; the page opens /ws/v1 with it, as a
subprotocol. A ticket is good for one socket, for TTL_S. It names its key and team, and holds none of their rights
itself: what the key may, and from where, is looked at when the ticket is used, and a socket that a ticket has opened
ends with its key.
"""

from __future__ import annotations

import secrets
import time
from typing import Annotated

import msgspec
from django.http import HttpRequest, HttpResponse
from msgspec import Meta

from chatapp.api import openai_types as wire
from chatapp.api.answering import in_thread
from chatapp.api.frames import where
from chatapp.api.http import answer, body_of, with_key
from chatapp.api.keys import TICKET_SUBPROTOCOL
from chatapp.api.operations import Operation
from chatapp.audit.source import source
from chatapp.errors import TooMany
from chatapp.limits import rates
from chatapp.limits.rates import Rate
from chatapp.streaming import tickets
from chatapp.tenants.access import Access, BadKey, NotFromHere, access_for_key_id
from chatapp.tenants.key_limits import origin_admitted, parse_origins
from chatapp.tenants.permissions import Permission

TTL_S = 30
PREFIX = "octt_"
# Each waits TTL_S in Redis's memory. More sockets than these no key can mean to open.
MOST_A_MINUTE = 600

UNKNOWN = "This ticket is not valid: it is unknown, was used before, or is older than 30 seconds. Ask for another one."


class BadTicket(BadKey):
    code = "invalid_ticket"


class TicketRequest(msgspec.Struct, frozen=True):
    """What a ticket is for. An empty body will do."""

    allowed_origins: Annotated[
        list[str], Meta(description="The web pages that may use it, as https://app.example.com. None: any.")
    ] = []


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """Good for one socket, for 30 seconds."""

    object: str = "ticket"
    ticket: str
    subprotocols: Annotated[list[str], Meta(description="What a browser opens the socket with.")]
    path: str = "/ws/v1"
    expires_at: Annotated[int, Meta(description="Seconds of the Unix epoch.")]


class _Content(msgspec.Struct, frozen=True):
    tenant: str
    key: str
    allowed_origins: list[str]


_decoder = msgspec.json.Decoder(TicketRequest)

OPERATIONS = [
    Operation(
        method="POST",
        path="/v1/tickets",
        summary="Make a ticket with which a browser opens one websocket, so that it never sees the key",
        body=TicketRequest,
        answer=Ticket,
    )
]


@with_key("POST")
async def make(request: HttpRequest, access: Access) -> HttpResponse:
    body = body_of(request)
    try:
        wanted = _decoder.decode(body) if body.strip() else TicketRequest()
    except msgspec.ValidationError as error:
        message, param = where(error)
        raise wire.RequestError(f"{param or 'The body'}: {message}.", param=param, code="invalid_type") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise wire.RequestError("The body is not JSON.", code="invalid_json") from None
    return answer(await in_thread(issue, access=access, allowed_origins=wanted.allowed_origins))


def issue(*, access: Access, allowed_origins: list[str]) -> Ticket:
    """A ticket for a key's socket. Raises Forbidden, BadInput, TooMany."""
    access.require(Permission.CHAT)
    assert access.key is not None
    origins = [origin.lower() for origin in parse_origins(allowed_origins)]
    refused = rates.take([Rate("tickets", str(access.tenant.pk), access.principal, MOST_A_MINUTE)], 1)
    if refused is not None:
        seconds = int(refused[1]) + 1
        raise TooMany(
            f"This key may ask for {MOST_A_MINUTE} tickets a minute. Try again in {seconds} s.",
            code="rate_limit_exceeded",
            retry_after_s=seconds,
        )
    secret = PREFIX + secrets.token_urlsafe(24)
    content = _Content(str(access.tenant.pk), str(access.key.pk), origins)
    tickets.put(secret, msgspec.json.encode(content), TTL_S)
    return Ticket(
        ticket=secret,
        subprotocols=["octavo.v1", TICKET_SUBPROTOCOL + secret],
        expires_at=int(time.time()) + TTL_S,
    )


def access_for_ticket(secret: str) -> Access:
    """The key's Access, for a socket from where audit's source() says. The ticket is used up, whatever comes of it.

    Raises BadTicket, and BadKey where its key opens nothing any more, or nothing from here.
    """
    found = tickets.take(secret) if secret.startswith(PREFIX) and secret.isascii() else None
    if found is None:
        raise BadTicket(UNKNOWN)
    content = msgspec.json.decode(found, type=_Content)
    came = source()
    if not origin_admitted(content.allowed_origins, came.origin):
        said = f"from {came.origin[:200]}" if came.origin else "without an Origin header"
        raise NotFromHere(f"This ticket may not be used {said}.", code="origin_not_allowed")
    return access_for_key_id(content.tenant, content.key)
