"""What can be limited, how it is called, and the limits that hold for one who asks.

`Limits` is resolved once a request (chatapp.limits.selectors) and never changes. A value of None is no limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_noop as _n

from engine.protocol import MAX_QUEUED

# What an answer may have where nothing says how long it may be, and where the caller does not either.
UNSAID_OUTPUT = 4096
MOST_OUTPUT = 1_000_000
# The plan that there is from the start.
STANDARD: dict[str, Any] = {"weight": 1.0, "output_tokens": 4096, "queue_length": MAX_QUEUED, "files_mb": 1024}


@dataclass(frozen=True)
class Kind:
    """One limit: its column, its name for people, the unit behind the number, and what it means in a sentence."""

    name: str
    title: str
    unit: str
    help: str


KINDS: tuple[Kind, ...] = (
    Kind("tokens_per_month", _n("Tokens a month"), _n("tokens"), _n("Prompts and answers of a calendar month in UTC.")),
    Kind("requests_per_minute", _n("Requests a minute"), _n("requests"), _n("Asked for within any sixty seconds.")),
    Kind(
        "tokens_per_minute",
        _n("Tokens a minute"),
        _n("tokens"),
        _n("Prompt and answer; corrected when the answer has ended."),
    ),
    Kind(
        "concurrent_answers",
        _n("Answers at once"),
        _n("answers"),
        _n("Under way at the same time, those that wait included."),
    ),
    Kind(
        "context_tokens",
        _n("Longest prompt"),
        _n("tokens"),
        _n("Everything that is read before an answer, prompts included."),
    ),
    Kind(
        "output_tokens",
        _n("Longest answer"),
        _n("tokens"),
        _n("An answer is cut there; continuing it is a new request."),
    ),
    Kind("queue_length", _n("Waiting requests"), _n("requests"), _n("Accepted and not begun; more are refused.")),
    Kind("kv_share", _n("Share of the memory"), "", _n("Largest part of an engine's KV blocks, from 0 to 1.")),
    Kind("weight", _n("Weight"), "", _n("Share of a busy engine, relative to other teams.")),
    Kind("files_mb", _n("Files"), _n("MB"), _n("All files that are kept: in chats, and over the APIs.")),
)
OF_PERSON = KINDS[:6]
"""Those that a team may set lower for a key or a person; the others are about the team as a whole."""
BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True)
class Values:
    """One set of limits."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_answers: int | None = None
    context_tokens: int | None = None
    output_tokens: int | None = None
    tokens_per_month: int | None = None
    queue_length: int | None = None
    kv_share: float | None = None
    weight: float | None = None
    files_mb: int | None = None


def least(*values: Any) -> Any:
    """The strictest of them; None where there is none."""
    said = [value for value in values if value is not None]
    return min(said) if said else None


@dataclass(frozen=True)
class Limits:
    """`team` holds for the tenant as a whole; `own` for the person or key that asks, and is never higher."""

    team: Values
    own: Values = Values()

    @property
    def output_tokens(self) -> int:
        """The longest answer that may be asked for."""
        return least(self.team.output_tokens, self.own.output_tokens) or MOST_OUTPUT

    @property
    def unsaid_output(self) -> int:
        """How long an answer may be of whose length its caller says nothing."""
        return least(self.team.output_tokens, self.own.output_tokens) or UNSAID_OUTPUT

    @property
    def context_tokens(self) -> int | None:
        return least(self.team.context_tokens, self.own.context_tokens)

    @property
    def queue_length(self) -> int:
        return self.team.queue_length or MAX_QUEUED

    @property
    def kv_share(self) -> float:
        return self.team.kv_share or 1.0

    @property
    def weight(self) -> float:
        return self.team.weight or 1.0

    def said(self) -> dict[str, Any]:
        """The strictest of each limit that there is: what a client is told."""
        both = {kind.name: least(getattr(self.team, kind.name), getattr(self.own, kind.name)) for kind in KINDS}
        return {name: value for name, value in both.items() if value is not None}
