"""Whether database, Redis, recorder and background work are well: a line for each question, with its answer in words.

Nothing here raises because something is down: that is what it is there to say.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from chatapp.operators.machines import BAD, GOOD, WARN
from chatapp.streaming import fleet, server
from chatapp.streaming.connection import AWAY
from engine.protocol import MAX_MEMORY

log = structlog.get_logger(__name__)

# Beat sends something every two seconds.
LATE_TICK_S = 15.0
LONG_QUEUE = 200
# A recorder asks again at the latest after two seconds.
LATE_RECORDER_S = 15.0
LATE_RECORD_S = 10.0
# SQLite empties it with every checkpoint, at 4 MB as it is set; a reader that never ends keeps it from that.
LARGE_WAL = 256 * 1024 * 1024
LONG_TRANSACTION_S = 300.0


@dataclass(frozen=True)
class Sign:
    """`value` answers `name`; `says`: what to make of it, where there is something."""

    name: str
    value: str
    state: str = GOOD
    says: str = ""


NO_REDIS = Sign("Redis", "does not answer", BAD, "No message gets to a worker, and nobody is answered.")


def _of_memory(found: server.Server, full: float) -> str:
    if not found.most_memory:
        return "It has no bound, so nothing is refused before the machine is full: set maxmemory."
    return f"From {MAX_MEMORY:.0%} on, new questions are refused." if full > 0.75 else ""


def redis_signs() -> list[Sign]:
    try:
        found = server.look()
    except AWAY:
        return [NO_REDIS]
    limit = found.most_memory or found.total_memory
    full = found.memory / limit if limit else 0.0
    signs = [
        Sign("Redis", f"{found.name}, up {duration(found.uptime_s)}"),
        answers(found.answers_ms),
        Sign(
            "Memory",
            f"{size(found.memory)} of {size(limit)}" if limit else size(found.memory),
            BAD if full > MAX_MEMORY else WARN if full > 0.75 or not found.most_memory else GOOD,
            _of_memory(found, full),
        ),
        Sign(
            "Eviction",
            found.policy,
            GOOD if found.policy == "noeviction" else BAD,
            "" if found.policy == "noeviction" else "Queues and answers may be thrown away: set noeviction.",
        ),
        _append_only(found),
        Sign(
            "Clients",
            f"{found.clients:,} of {found.most_clients:,}" if found.most_clients else f"{found.clients:,}",
            WARN if found.most_clients and found.clients > 0.8 * found.most_clients else GOOD,
        ),
        Sign("Calls", f"{found.calls_per_s:,} a second"),
    ]
    if found.evicted:
        signs.append(Sign("Evicted", f"{found.evicted:,} keys", BAD, "Something of a queue or an answer was lost."))
    if found.rejected:
        signs.append(Sign("Turned away", f"{found.rejected:,} connections", WARN, "Raise maxclients."))
    return signs


def _append_only(found: server.Server) -> Sign:
    if not found.append_only:
        return Sign("Append-only file", "off", WARN, "A restart of Redis forgets what waits and what runs.")
    if not found.saved:
        return Sign("Append-only file", "cannot be written", BAD, "Look for a full disk beside Redis.")
    return Sign("Append-only file", "on, written")


def recorder_signs() -> list[Sign]:
    try:
        found = fleet.unrecorded()
    except AWAY:
        return []
    late = found.idle_s is not None and found.idle_s > LATE_RECORDER_S
    if found.idle_s is None:
        state, says = (BAD, "Start manage.py recorder.") if found.waiting else (GOOD, "")
        who = Sign("Recorder", "has never asked" if found.waiting else "nothing to record yet", state, says)
    else:
        who = Sign(
            "Recorder",
            f"asked {duration(found.idle_s)} ago",
            BAD if late else GOOD,
            "Answers are shown, and not yet kept: see recorder.log." if late else "",
        )
    behind = found.oldest_s > LATE_RECORD_S and found.waiting > 0
    signs = [
        who,
        Sign(
            "Yet to record",
            f"{found.waiting:,}, the oldest {duration(found.oldest_s)} old" if found.waiting else "nothing",
            WARN if behind else GOOD,
            "The recorder is behind." if behind else "",
        ),
    ]
    if found.aside:
        text = "Their logs are kept in Redis. See recorder.log for why."
        signs.append(Sign("Set aside", f"{found.aside:,} that could not be recorded", BAD, text))
    return signs


def background_signs() -> list[Sign]:
    try:
        found = server.background()
    except AWAY:
        return []
    return [
        _tick("Beat", "sent a task", found.beat_s, "Roll-ups, retention and the reaper stand still: see beat.log."),
        _tick("Celery worker", "ended a task", found.worker_s, "What beat sends is not done: see celery.log."),
        Sign(
            "Tasks that wait",
            f"{found.queued:,}",
            WARN if found.queued > LONG_QUEUE else GOOD,
            "The worker is behind: give it more threads." if found.queued > LONG_QUEUE else "",
        ),
    ]


def _tick(name: str, what: str, ago_s: float | None, says: str) -> Sign:
    if ago_s is None:
        return Sign(name, "no sign of it yet", WARN, says)
    late = ago_s > LATE_TICK_S
    return Sign(name, f"{what} {duration(ago_s)} ago", BAD if late else GOOD, says if late else "")


def database_signs() -> list[Sign]:
    try:
        connection.ensure_connection()
        started = time.perf_counter()
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        answers_ms = (time.perf_counter() - started) * 1000
        own = _sqlite() if connection.vendor == "sqlite" else _postgresql()
        return [own[0], answers(answers_ms), *own[1:], _migrations(), _disk()]
    except DatabaseError as error:
        log.warning("dashboard.database", error=type(error).__name__)
        return [Sign("Database", "does not answer as it should", BAD, type(error).__name__)]


def answers(ms: float) -> Sign:
    state = BAD if ms > 500 else WARN if ms > 50 else GOOD
    value = "less than 0.1 ms" if ms < 0.1 else f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"
    return Sign("Answers in", value, state, "That is slow." if ms > 50 else "")


def _sqlite() -> list[Sign]:
    import sqlite3

    with connection.cursor() as cursor:
        cursor.execute("SELECT page_count * page_size, freelist_count * page_size FROM pragma_page_count, "
                       "pragma_page_size, pragma_freelist_count")  # fmt: skip
        total, free = cursor.fetchone()
        cursor.execute("PRAGMA journal_mode")
        (mode,) = cursor.fetchone()
    signs = [Sign("Database", f"SQLite {sqlite3.sqlite_version}")]
    spare = f", {size(free)} of it free for reuse" if free > total / 4 else ""
    signs.append(Sign("Size", f"{size(total)}{spare}"))
    wal = Path(f"{connection.settings_dict['NAME']}-wal")
    if mode != "wal":
        text = "Readers and the writer wait for each other."
        return [*signs, Sign("Write-ahead log", f"off ({mode})", GOOD if mode == "memory" else WARN, text)]
    bytes_ = wal.stat().st_size if wal.exists() else 0
    large = bytes_ > LARGE_WAL
    text = "A reader that never ends keeps it from being emptied: restart the web processes." if large else ""
    return [*signs, Sign("Write-ahead log", size(bytes_), WARN if large else GOOD, text)]


def _postgresql() -> list[Sign]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('server_version'), pg_database_size(current_database()),"
            " (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()),"
            " current_setting('max_connections')::int,"
            " (SELECT extract(epoch FROM max(now() - xact_start)) FROM pg_stat_activity"
            "  WHERE datname = current_database() AND pid <> pg_backend_pid()),"
            " (SELECT wal_bytes FROM pg_stat_wal)"
        )
        version, total, connections, most, longest, wal = cursor.fetchone()
    crowded, stuck = connections > 0.8 * most, float(longest or 0) > LONG_TRANSACTION_S
    return [
        Sign("Database", f"PostgreSQL {version.split()[0]}"),
        Sign("Size", size(total)),
        Sign("Write-ahead log", f"{size(int(wal))} since its statistics began"),
        Sign("Connections", f"{connections:,} of {most:,}", WARN if crowded else GOOD,
             "Put a pooler in front, or raise max_connections." if crowded else ""),
        Sign("Longest transaction", duration(float(longest or 0)), WARN if stuck else GOOD,
             "It keeps rows from being cleaned up." if stuck else ""),
    ]  # fmt: skip


def _migrations() -> Sign:
    executor: Any = MigrationExecutor(connection)
    waiting = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
    if waiting:
        return Sign("Migrations", f"{waiting} not applied", BAD, "Run manage.py migrate.")
    return Sign("Migrations", "all applied")


def _disk() -> Sign:
    try:
        found = shutil.disk_usage(settings.DATA)
    except OSError as error:
        return Sign("Disk", "cannot be read", WARN, error.strerror or "")
    share = found.free / found.total
    state = BAD if share < 0.03 else WARN if share < 0.1 else GOOD
    text = "Make room: a full disk stops everything." if state != GOOD else ""
    return Sign("Disk of the data folder", f"{size(found.free)} of {size(found.total)} free", state, text)


def size(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    for most, unit, of in ((90, "s", 1), (5400, "min", 60), (172_800, "h", 3600)):
        if seconds < most:
            return f"{seconds / of:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"
