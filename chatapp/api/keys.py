"""Where an API key can be sent: the one parser for HTTP and for sockets.

`Authorization: Bearer octv_…`, which every OpenAI-compatible client sends, and for sockets, where browsers cannot set
headers, a subprotocol. Never an address: those are kept in histories and in the logs of proxies. Errors say where a
key was expected, and never quote what was sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from django.http import HttpRequest

from chatapp.tenants.access import BadKey
from chatapp.tenants.models import KEY_PREFIX

KEY_SUBPROTOCOL = "octavo.key."
TICKET_SUBPROTOCOL = "octavo.ticket."
LONGEST = 256
# Where clients of other services put theirs: not taken here, but whoever does so is told.
ELSEWHERE = ("x-api-key", "api-key")

NONE = "No API key was sent. Send it as 'Authorization: Bearer octv_…'."
NONE_ON_SOCKET = (
    "Send your API key as 'Authorization: Bearer …' or as the subprotocol octavo.key.…, or a ticket as octavo.ticket.…."
)
NOT_BEARER = "The Authorization header holds no API key. It looks like 'Authorization: Bearer octv_…'."
NOT_THERE = "API keys are not taken from the header {name}. Send yours as 'Authorization: Bearer octv_…'."
IN_ADDRESS = (
    "An API key was sent in the address, where proxies and browsers keep it. Revoke that key, and send its successor as"
    " 'Authorization: Bearer octv_…'."
)
_KEY = re.compile(re.escape(KEY_PREFIX) + r"[A-Za-z0-9_-]{16,}")


def from_authorization(value: str) -> str | None:
    """The key in `Bearer <key>`, None when there is none."""
    scheme, _, key = value.strip().partition(" ")
    key = key.strip()
    return key if scheme.lower() == "bearer" and 0 < len(key) <= LONGEST else None


def in_query(query: str) -> bool:
    """A key stands in an address's query, however often it has been quoted."""
    for _ in range(3):
        if _KEY.search(query):
            return True
        query = unquote(query)
    return False


def sends_key(request: HttpRequest) -> bool:
    """The request means to be let in by a key; a session does not count then."""
    return from_authorization(request.headers.get("Authorization", "")) is not None or in_query(
        request.META.get("QUERY_STRING", "")
    )


def key_of_request(request: HttpRequest) -> str:
    """Raises BadKey with what to do."""
    if in_query(request.META.get("QUERY_STRING", "")):
        raise BadKey(IN_ADDRESS, code="key_in_address")
    sent = request.headers.get("Authorization", "")
    key = from_authorization(sent)
    if key is not None:
        return key
    if sent.strip():
        raise BadKey(NOT_BEARER)
    for name in ELSEWHERE:
        if request.headers.get(name):
            raise BadKey(NOT_THERE.format(name=name))
    raise BadKey(NONE)


def ticket_of_socket(scope: Mapping[str, Any]) -> str | None:
    """The ticket among a websocket's subprotocols (chatapp.api.tickets), where no key is sent as a header. Raises
    BadKey for a key in the address, which has leaked, whatever else is sent."""
    if in_query(scope.get("query_string", b"").decode("latin-1")):
        raise BadKey(IN_ADDRESS, code="key_in_address")
    if any(name == b"authorization" for name, _ in scope.get("headers", ())):
        return None
    for offered in scope.get("subprotocols") or ():
        ticket = offered.removeprefix(TICKET_SUBPROTOCOL)
        if offered.startswith(TICKET_SUBPROTOCOL) and len(ticket) <= LONGEST:
            return str(ticket)
    return None


def key_of_socket(scope: Mapping[str, Any]) -> str:
    """A websocket's key: its Authorization header, or, as browsers cannot set one, a subprotocol. Raises BadKey."""
    if in_query(scope.get("query_string", b"").decode("latin-1")):
        raise BadKey(IN_ADDRESS, code="key_in_address")
    headers = dict(scope.get("headers", ()))
    if b"authorization" in headers:
        key = from_authorization(headers[b"authorization"].decode("latin-1"))
        if key is None:
            raise BadKey(NOT_BEARER)
        return key
    for offered in scope.get("subprotocols") or ():
        key = offered.removeprefix(KEY_SUBPROTOCOL)
        if offered.startswith(KEY_SUBPROTOCOL) and 0 < len(key) <= LONGEST:
            return str(key)
    for name in ELSEWHERE:
        if headers.get(name.encode()):
            raise BadKey(NOT_THERE.format(name=name))
    raise BadKey(NONE_ON_SOCKET, code="unauthenticated")
