"""The addresses whose requests may come in a batch: how each reads, begins and answers one.

The API above this app registers them, so that a line of a batch is read, and its answer shaped, by the very code that
serves the address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from chatapp.chat.models import Generation
from chatapp.errors import Refusal
from chatapp.streaming.assembly import Assembly
from chatapp.tenants.access import Access
from engine.protocol import Terminal


class Endpoint(Protocol):
    def check(self, access: Access, body: bytes) -> None:
        """Raises Refusal for a request that is none, or that nobody could answer; costs no query."""

    def begin(
        self,
        access: Access,
        body: bytes,
        *,
        idempotency_key: str,
        deadline: datetime,
        within: Callable[[Generation], None],
    ) -> None:
        """Accept its generations, one or several, in one transaction; `within` runs there for each, in order. Raises
        Refusal."""

    def answered(self, body: bytes, generations: Sequence[Generation], found: Sequence[Assembly]) -> bytes:
        """The address's JSON answer, of generations that have all finished."""

    def refused(self, refusal: Refusal) -> bytes:
        """The JSON of an error."""

    def ended(self, event: Terminal) -> tuple[int, bytes]:
        """Status and JSON of what ended otherwise than finished."""


ENDPOINTS: dict[str, Endpoint] = {}
