"""Writes ended generations to the database, each exactly once.

The log in Redis is the truth until then: the text is rebuilt from its deltas. Message, usage and end of the generation
are one transaction, guarded by the generation's own row; only after it is committed may the log expire and the entry
be acknowledged. A replay finds the row ended and does only the latter two again.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
import redis.exceptions
import structlog
from django.db import InterfaceError, OperationalError, close_old_connections, connection, transaction
from django.dispatch import Signal
from django.utils import timezone

from chatapp.audit.source import on_behalf_of
from chatapp.chat import used
from chatapp.chat.models import Conversation, Generation, Message, MessageStatus, State
from chatapp.ids import parse_id
from chatapp.limits import budget
from chatapp.limits.models import Reservation
from chatapp.logs import cause
from chatapp.metrics import figures
from chatapp.scope import unscoped
from chatapp.streaming import finished
from chatapp.streaming.assembly import Choice, assembled
from chatapp.streaming.finished import Entry
from chatapp.usage.models import Kind
from chatapp.usage.services import Ended
from chatapp.usage.services import record as record_usage
from engine import protocol, tracing
from engine.protocol import AnyEvent, Terminal, TokenLogprob

log = structlog.get_logger(__name__)

MOST_ATTEMPTS = 5
TAKEOVER_IDLE_S = 10.0
TAKEOVER_EVERY_S = 5.0
BACKOFF_S = (0.5, 1.0, 2.0, 5.0)
PASSING = (
    OperationalError,
    InterfaceError,
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.ReadOnlyError,
)


def _passes(error: Exception) -> bool:
    """Whether the database or Redis is at fault, and no entry."""
    refused = isinstance(error, redis.exceptions.ResponseError) and protocol.unwritable(str(error))
    return refused or isinstance(error, PASSING)


ended = Signal()
"""generation: its row, as it is written; answer: the Answer. Sent inside the transaction, for what keeps answers."""


@dataclass
class Answer:
    """What a log says: text of the first choice, counts, and the terminal event, None while it runs."""

    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    shared_tokens: int = 0
    completion_tokens: int = 0
    last_seq: int = 0
    terminal: Terminal | None = None
    timing: dict[str, float] = field(default_factory=dict)
    choices: dict[int, Choice] = field(default_factory=dict)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)


def rebuild(events: list[AnyEvent]) -> Answer:
    found = assembled(events)
    end = found.terminal
    return Answer(
        text=found.choice().text.replace("\0", ""),  # PostgreSQL refuses U+0000
        prompt_tokens=found.prompt_tokens,
        cached_tokens=found.cached_tokens,
        shared_tokens=found.shared_tokens,
        completion_tokens=found.completion_tokens,
        last_seq=found.last_seq,
        terminal=end,
        timing=msgspec.to_builtins(end.timing) if end is not None and end.timing is not None else {},
        choices=found.choices,
        prompt_logprobs=found.prompt_logprobs,
    )


def record(generation_id: str) -> bool:
    """Write what the log holds, if it has ended. True when the database has it now, by us or by someone before us."""
    key = parse_id(generation_id)
    generation = Generation.objects.filter(pk=key).first()
    if generation is None:
        _write_deleted(key, rebuild(finished.read_log(generation_id)))
        return True
    if not generation.unfinished:
        return True
    answer = rebuild(finished.read_log(generation_id))
    if answer.terminal is None:
        return False
    state = State(str(type(answer.terminal).__struct_config__.tag))
    with _on_behalf_of(generation):
        write(generation, answer, state)
        log.info("generation.recorded", generation=generation_id, state=str(state), tokens=answer.completion_tokens)
        return True


@contextmanager
def _on_behalf_of(generation: Generation) -> Iterator[None]:
    """What is said and begun meanwhile belongs to the request that asked for the answer, and to its trace."""
    try:
        came = protocol.decode_origin(bytes(generation.request or b"{}"))
    except msgspec.DecodeError:
        came = protocol.Origin()
    said = {"octavo__generation": str(generation.pk), "octavo__request_id": came.request_id}
    with (
        tracing.span("record", kind="consumer", parent=came.traceparent, **said),
        on_behalf_of(came.request_id, tracing.current() or came.traceparent),
    ):
        yield


def write(generation: Generation, answer: Answer, state: State) -> None:
    """Whoever finds it unfinished writes, and counts it: it may have ended where no worker could."""
    if _write(generation, answer, state):
        figures.recorded.labels(state, generation.model).inc()


@transaction.atomic
def _write(generation: Generation, answer: Answer, state: State) -> bool:
    """The one transaction. False where the row says that it has been written."""
    row = Generation.objects.select_for_update().filter(pk=generation.pk).first()
    if row is None or not row.unfinished:
        return False
    end = answer.terminal
    row.state = state
    row.ended_at = timezone.now()
    row.prompt_tokens, row.cached_tokens = answer.prompt_tokens, answer.cached_tokens
    row.shared_tokens = answer.shared_tokens
    row.completion_tokens, row.last_seq, row.timing = answer.completion_tokens, answer.last_seq, answer.timing
    row.request = None
    if end is not None:
        row.finish_reason = end.finish_reason or ""
        row.error_code, row.error_param = end.code or "", end.param or ""
        row.error_message = end.message or ""
    row.save()
    record_usage(ended=used.ended(row))
    budget.settle(row.pk, tokens=answer.prompt_tokens + answer.completion_tokens)
    if row.message_id:
        status = {State.FINISHED: MessageStatus.DONE, State.CANCELLED: MessageStatus.STOPPED}.get(
            state, MessageStatus.FAILED
        )
        Message.objects.filter(pk=row.message_id).update(text=answer.text, status=status)
        Conversation.objects.filter(generations=row).update(updated_at=row.ended_at)
    ended.send(sender=Generation, generation=row, answer=answer)
    return True


@transaction.atomic
def _write_deleted(key: uuid.UUID, answer: Answer) -> None:
    """Deleted while it ran: there is nothing to keep, but what it used has been used. Its reservation says whose."""
    held = Reservation.objects.select_for_update().filter(pk=key).first()
    if held is None:
        return
    tokens = answer.prompt_tokens + answer.completion_tokens
    if tokens:
        state = str(type(answer.terminal).__struct_config__.tag) if answer.terminal else State.INTERRUPTED
        record_usage(
            ended=Ended(
                tenant_id=held.tenant_id,
                generation_id=key,
                at=held.created_at,
                ended_at=timezone.now(),
                kind=Kind.API if held.subject.startswith("key:") else Kind.CHAT,
                principal=held.subject,
                principal_name=used.name(held.subject),
                model="",
                state=state,
                prompt_tokens=answer.prompt_tokens,
                cached_tokens=answer.cached_tokens,
                output_tokens=answer.completion_tokens,
                timing=answer.timing,
            )
        )
    budget.settle(key, tokens=tokens)


class Recorder:
    """The loop of the recorder process. `stopping` is asked between entries."""

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self.stopping = stopping
        self.consumer = f"{socket.gethostname()}-{os.getpid()}"
        self._takeover_at = 0.0
        self._left: list[Entry] = []  # handed to us, and not done when the database or Redis went

    @unscoped("recorder")
    def run(self) -> None:
        failures = 0
        while not self.stopping():
            try:
                close_old_connections()
                # Asked first: an entry that is handed out to no use counts as an attempt.
                connection.ensure_connection()
                self.once()
                failures = 0
            except Exception as error:
                if not _passes(error):
                    raise
                # The database or Redis is away: the entries wait in their stream.
                log.warning("recorder.waiting", error=type(error).__name__)
                connection.close()
                time.sleep(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
                failures += 1

    def once(self, block_s: float = 2.0) -> int:
        """Record what we or a dead recorder left, and what is new. Returns how many entries were looked at."""
        entries, self._left = self._left, []
        if not entries and time.monotonic() >= self._takeover_at:
            entries = finished.takeover(self.consumer, TAKEOVER_IDLE_S)
            self._takeover_at = time.monotonic() + TAKEOVER_EVERY_S
        if not entries:
            entries = finished.read(self.consumer, block_s=block_s)
        self._left = list(entries)
        for entry in entries:
            self.handle(entry)
            self._left.remove(entry)
        return len(entries)

    def handle(self, entry: Entry) -> None:
        began = time.monotonic()
        try:
            if not record(entry.generation_id):
                self._lost(entry)
        except Exception as error:
            if _passes(error):
                raise
            figures.record_failures.inc()
            log.error("recorder.failed", generation=entry.generation_id, cause=cause(error))
            if finished.deliveries(entry) >= MOST_ATTEMPTS:
                log.error("recorder.set_aside", generation=entry.generation_id)
                finished.set_aside(entry, type(error).__name__)
                figures.set_aside.inc()
            return
        finished.ack(entry)
        figures.record_seconds.observe(time.monotonic() - began)
        # By two clocks, Redis's and ours: they may be a little apart.
        figures.recorder_lag.observe(max(0.0, time.time() - entry.ended_at))

    def _lost(self, entry: Entry) -> None:
        """Redis says that it ended, but its log is gone or cut: the end is kept, the rest cannot be."""
        generation = Generation.objects.filter(pk=parse_id(entry.generation_id)).first()
        if generation is not None:
            answer = rebuild(finished.read_log(entry.generation_id))
            write(generation, answer, State.INTERRUPTED)
