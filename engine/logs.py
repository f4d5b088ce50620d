"""How every process of the product logs: one JSON object a line, with time, level, logger and what happened.

Owns the form of a line; which lines there are, those say who write them. Promises: no line has the text of a chat in it
that some library's error quotes, and none an API key. What belongs together is found by `request_id` and `generation`.

Knows neither Django nor Redis: the product's own formatter (chatapp.logs) and the worker's `configure` are made of it.
"""

from __future__ import annotations

import atexit
import logging
import logging.handlers
import queue
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import structlog
from structlog.typing import EventDict, Processor

from engine import tracing

MOST_LINES = 200


def _quotes(error: BaseException) -> bool:
    """A database's error may quote the row that failed, and with it a chat: of those only the kind is logged."""
    module = type(error).__module__
    return module.split(".")[0] in ("sqlite3", "psycopg") or module == "django.db.utils"


def _own_words(error: BaseException) -> str:
    kind = type(error).__name__
    return kind if _quotes(error) else f"{kind}: {error}"


def _without_words(said: Any, error: BaseException) -> Any:
    """A library's line about an error may have its words too: Celery's of a task that failed does."""
    if isinstance(said, str) and _quotes(error):
        for words in (repr(error), str(error)):
            said = said.replace(words, type(error).__name__) if words else said
    return said


def _exception(logger: Any, method: str, event: EventDict) -> EventDict:
    """`exc_info` as text: the frames of the error and of what it came from, each with its kind."""
    given = event.pop("exc_info", None)
    if not given:
        return event
    error = given if isinstance(given, BaseException) else (given if isinstance(given, tuple) else sys.exc_info())[1]
    lines: list[str] = []
    while error is not None and len(lines) < MOST_LINES:
        lines += [*traceback.format_tb(error.__traceback__), f"{_own_words(error)}\n"]
        event["event"] = _without_words(event.get("event"), error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    event["exception"] = "".join(lines)
    return event


def _trace(logger: Any, method: str, event: EventDict) -> EventDict:
    """The trace that the code works for, where traces are kept: a line leads to its picture."""
    found = tracing.trace_id()
    if found:
        event.setdefault("trace_id", found)
    return event


# A key's first characters tell which it is (chatapp.tenants.models); the rest opens doors.
_KEY = re.compile(r"(octv_[A-Za-z0-9_-]{4})[A-Za-z0-9_%-]{8,}")


def no_keys(logger: Any, method: str, event: EventDict) -> EventDict:
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


FIRST = ("timestamp", "level", "event")


def _in_order(logger: Any, method: str, event: EventDict) -> EventDict:
    """What a reader looks for first comes first."""
    return {name: event[name] for name in FIRST if name in event} | dict(event)


def cause(error: BaseException) -> str:
    """What failed and where, without the error's own words: a database's may quote the row, and with it a chat."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{at}"


def processors(*first: Processor) -> list[Processor]:
    """What makes a line of an event: `first` is the process's own."""
    return [
        structlog.contextvars.merge_contextvars,
        *first,
        _trace,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _exception,
    ]


def formatter(shared: Sequence[Processor]) -> logging.Formatter:
    """The standard library's records and structlog's come out the same; readable where a person looks on."""
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=False) if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=list(shared),
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, no_keys, _in_order, renderer],
    )


class _Hand(logging.handlers.QueueHandler):
    """Hands records on as they are: they stay in this process, and are written out where nobody waits."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record


def configure() -> None:
    """For a worker: to standard error, in a thread of its own, as whoever reads that may be slow and the engine loop
    waits for nobody. All of it is written when the process ends in order."""
    written = logging.StreamHandler(sys.stderr)
    written.setFormatter(formatter(processors()))
    records: queue.SimpleQueue[Any] = queue.SimpleQueue()
    writer = logging.handlers.QueueListener(records, written)
    root = logging.getLogger()
    root.handlers[:] = [_Hand(records)]
    root.setLevel(logging.INFO)
    for noisy in ("httpx", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    writer.start()
    atexit.register(writer.stop)
