"""Where an API key can be sent: the one parser for HTTP and for sockets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEY_SUBPROTOCOL = "octavo.key."
LONGEST = 256


def from_authorization(value: str) -> str | None:
    """The key in `Bearer <key>`, None when there is none."""
    scheme, _, key = value.strip().partition(" ")
    key = key.strip()
    return key if scheme.lower() == "bearer" and 0 < len(key) <= LONGEST else None


def key_of_socket(scope: Mapping[str, Any]) -> str | None:
    """A websocket's key: its Authorization header, or, as browsers cannot set one, a subprotocol."""
    for name, value in scope.get("headers", ()):
        if name == b"authorization":
            return from_authorization(value.decode("latin-1"))
    for offered in scope.get("subprotocols") or ():
        if offered.startswith(KEY_SUBPROTOCOL):
            return offered.removeprefix(KEY_SUBPROTOCOL) or None
    return None
