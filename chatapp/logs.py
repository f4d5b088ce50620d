"""Structured logs: one JSON object a line, with time, level, logger and what happened. Never the text of a chat.

The form of a line is every process's (engine.logs); this adds what only the product knows: whose rows, whose request.
"""

from __future__ import annotations

import logging
from typing import Any

from structlog.typing import EventDict

from chatapp import scope
from chatapp.audit.source import source
from engine import logs
from engine.logs import cause as cause


def _whose(logger: Any, method: str, event: EventDict) -> EventDict:
    """The tenant whose rows the code works on, and the request: by them an operator finds what belongs together."""
    current = scope.current()
    if current is not None and current.tenant is not None:
        event.setdefault("tenant", str(current.tenant))
    if source().request_id:
        event.setdefault("request_id", source().request_id)
    return event


def _no_path(logger: Any, method: str, event: EventDict) -> EventDict:
    """Django ends what it says of a request with its path, where an invitation or the reset of a password has its
    secret. The route stands for it, as in `request.done`."""
    record = event.get("_record")
    request = getattr(record, "request", None)
    path = getattr(request, "path", "").encode("unicode_escape").decode("ascii")  # as Django writes it
    said = event.get("event")
    if path and isinstance(said, str) and said.endswith(path):
        match = getattr(request, "resolver_match", None)
        event["event"] = said.removesuffix(path) + (f"/{match.route}" if match is not None else "…")
    return event


def formatter() -> logging.Formatter:
    """For Django's LOGGING."""
    return logs.formatter(logs.processors(_whose, _no_path))
