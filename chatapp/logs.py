"""Structured logs: one JSON object a line, with time, level, logger and what happened. Never the text of a chat."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from typing import Any

import structlog
from structlog.typing import EventDict, Processor

from chatapp import scope
from chatapp.audit.source import source

MOST_LINES = 200


def _own_words(error: BaseException) -> str:
    """A database's error may quote the row that failed, and with it a chat: of those only the kind is logged."""
    kind = type(error)
    quotes = kind.__module__.split(".")[0] in ("sqlite3", "psycopg") or kind.__module__ == "django.db.utils"
    return kind.__name__ if quotes else f"{kind.__name__}: {error}"


def _exception(logger: Any, method: str, event: EventDict) -> EventDict:
    """`exc_info` as text: the frames of the error and of what it came from, each with its kind."""
    given = event.pop("exc_info", None)
    if not given:
        return event
    error = given if isinstance(given, BaseException) else (given if isinstance(given, tuple) else sys.exc_info())[1]
    lines: list[str] = []
    while error is not None and len(lines) < MOST_LINES:
        lines += [*traceback.format_tb(error.__traceback__), f"{_own_words(error)}\n"]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    event["exception"] = "".join(lines)
    return event


def _whose(logger: Any, method: str, event: EventDict) -> EventDict:
    """The tenant whose rows the code works on, and the request: by them an operator finds what belongs together."""
    current = scope.current()
    if current is not None and current.tenant is not None:
        event.setdefault("tenant", str(current.tenant))
    if source().request_id:
        event.setdefault("request_id", source().request_id)
    return event


# A key's first characters tell which it is (chatapp.tenants.models); the rest opens doors.
_KEY = re.compile(r"(octv_[A-Za-z0-9_-]{4})[A-Za-z0-9_%-]{8,}")


def _no_keys(logger: Any, method: str, event: EventDict) -> EventDict:
    """No API key gets into a log, wherever somebody has put one: a path, a header that is quoted, an error's words."""
    return {name: _without_keys(value) for name, value in event.items()}


def _without_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {_without_keys(name): _without_keys(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_without_keys, value)) if type(value) in (list, tuple) else value
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    return _KEY.sub(r"\1…", value) if isinstance(value, str) else value


SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    _whose,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    _exception,
]


def cause(error: BaseException) -> str:
    """What failed and where, without the error's own words: a database's may quote the row, and with it a chat."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{at}"


def formatter() -> logging.Formatter:
    """For Django's LOGGING: the standard library's records and structlog's come out the same."""
    structlog.configure(
        processors=[*SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=False) if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=SHARED,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _no_keys, renderer],
    )
