"""The deletion of a team, step by step. Each step can be done again, so it goes on wherever it was killed.

    answers   what is being answered is stopped, and recorded
    engines   every worker drops the team's KV: pool, host memory, pins, files on disk
    redis     requests, logs, queues, counters
    files     exports, its members' own exports, prompt files that the workers left here, what people have put here
    rows      all tables, in batches; then the team itself
    audit     the team's own log
    leftovers what wrote late: engines' files and Redis once more
    compact   Redis writes its append-only file anew; the database gives back what it still keeps on its pages
    verify    all of that is looked for; what is found sends the deletion back to its beginning

The report says what was deleted, what was looked at and found empty, and what this cannot reach.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import redis
import redis.exceptions
import structlog
from django.conf import settings
from django.core.cache import cache
from django.db import connection, models, transaction
from django.db.models import Q
from django.utils import timezone

from chatapp.audit.models import AuditEntry, AuditPurge
from chatapp.audit.services import record
from chatapp.chat import recorder
from chatapp.chat.models import UNFINISHED, Conversation, Generation, State
from chatapp.data import exports
from chatapp.data.models import Deletion, DeletionState, Export
from chatapp.data.rows import BATCH, batches, erase, owned_models
from chatapp.files import contents as stored_files
from chatapp.ids import parse_id
from chatapp.logs import cause
from chatapp.prompts.models import PromptVersion, SystemPrompt
from chatapp.scope import tenant_scope, unscoped
from chatapp.streaming import cancel, finished, forgetting, traces
from chatapp.tenants.models import ApiKey, Membership, Tenant
from engine import protocol

log = structlog.get_logger(__name__)

LEASE = timedelta(seconds=60)
SLICE_S = 5.0  # of work in one go: others wait for the same worker
AGAIN_S = 1.0
ANSWERS_S = 15.0
ENGINES_S = 120.0
MOST_ROUNDS = 3
BEYOND = [
    "backups of the database and of Redis, and a database's own write-ahead archive, until they age out",
    "workers' disks on machines where no worker ran meanwhile",
    "memory and free disk blocks until they are written over",
]


class NotYet(Exception):
    """Come back later: somebody else has to do something first, or enough was done for one go."""


def run(deletion_id: str) -> float | None:
    """Go on with a deletion for a while. Seconds until it is to be called again; None: there is nothing more to do."""
    deletion = _lease(deletion_id)
    if deletion is None:
        return None
    deadline = time.monotonic() + SLICE_S
    try:
        while deletion.state == DeletionState.RUNNING:
            STEPS[deletion.step](deletion)
            _next(deletion)
            if time.monotonic() > deadline:
                raise NotYet
    except NotYet:
        return _give_back(deletion)
    except Exception as error:
        log.error("deletion.failed", deletion=deletion_id, step=deletion.step, cause=cause(error))
        Deletion.objects.filter(pk=deletion.pk).update(error=f"{deletion.step}: {type(error).__name__}")
        _give_back(deletion)
        return 30.0
    Deletion.objects.filter(pk=deletion.pk).update(lease_until=None)
    return None


def _lease(deletion_id: str) -> Deletion | None:
    now = timezone.now()
    rows = Deletion.objects.filter(pk=parse_id(deletion_id))
    due = Q(state=DeletionState.WAITING, due_at__lte=now)
    going = Q(state=DeletionState.RUNNING) & ~Q(lease_until__gt=now)
    if not rows.filter(due | going).update(state=DeletionState.RUNNING, lease_until=now + LEASE):
        return None
    deletion = rows.get()
    if not deletion.step:
        # Locked again, should somebody have opened it meanwhile.
        with tenant_scope(deletion.tenant_id):
            Tenant.objects.filter(pk=deletion.tenant_id, suspended_at=None).update(suspended_at=now)
        _enter(deletion, FIRST)
    return deletion


def _give_back(deletion: Deletion) -> float:
    Deletion.objects.filter(pk=deletion.pk).update(lease_until=None)
    return AGAIN_S


def _enter(deletion: Deletion, step: str) -> None:
    deletion.step, deletion.step_started_at = step, timezone.now()
    deletion.lease_until = timezone.now() + LEASE
    deletion.save(update_fields=["step", "step_started_at", "lease_until", "report"])


def _next(deletion: Deletion) -> None:
    if deletion.state != DeletionState.RUNNING:
        return
    names = list(STEPS)
    place = names.index(deletion.step) + 1
    if deletion.step == LAST:
        return
    _enter(deletion, names[place])


def _note(deletion: Deletion, name: str, value: Any) -> None:
    deletion.report[name] = value
    deletion.save(update_fields=["report"])


def _waited(deletion: Deletion) -> float:
    assert deletion.step_started_at is not None
    return (timezone.now() - deletion.step_started_at).total_seconds()


# --- the steps ----------------------------------------------------------------------------------------------------


def _answers(deletion: Deletion) -> None:
    """The recorder has a while to write how they ended; what hangs is ended here."""
    late = _waited(deletion) > ANSWERS_S
    with tenant_scope(deletion.tenant_id):
        unfinished = list(Generation.objects.filter(state__in=UNFINISHED).defer("request")[:BATCH])
        for generation in unfinished:
            key = str(generation.pk)
            cancel.cancel(key)
            if late:
                finished.end(key, protocol.Cancelled())
                recorder.write(generation, recorder.rebuild(finished.read_log(key)), State.CANCELLED)
            else:
                recorder.record(key)
        if Generation.objects.filter(state__in=UNFINISHED).exists():
            raise NotYet


def _engines(deletion: Deletion) -> None:
    tenant = str(deletion.tenant_id)
    asked = forgetting.ask(tenant)
    deadline = time.monotonic() + 2.0
    while asked - forgetting.heard(tenant):
        if time.monotonic() < deadline:
            time.sleep(0.05)
        elif _waited(deletion) < ENGINES_S:
            raise NotYet
        else:
            break
    heard = forgetting.heard(tenant)
    silent = asked - heard
    _note(deletion, "engines", {"forgot": len(heard), "did_not_answer": sorted(silent)})


def _redis(deletion: Deletion) -> None:
    with tenant_scope(deletion.tenant_id):
        named = [ApiKey, SystemPrompt, PromptVersion, Conversation]
        ids = [str(key) for model in named for key in model._default_manager.values_list("pk", flat=True)]
        if ids:  # none are left in a second round
            _note(deletion, "ids", ids)
        removed = traces.remove(str(deletion.tenant_id), deletion.report.get("ids", []), _generations, _caches())
    _note(deletion, "redis_removed", deletion.report.get("redis_removed", 0) + removed)


def _files(deletion: Deletion) -> None:
    with tenant_scope(deletion.tenant_id):
        members = list(Membership.objects.values_list("user_id", flat=True))
    with unscoped("own data"):
        exports.remove_own_exports(members)  # this team's chats are in them
    removed = 0
    for path in _team_files(deletion):
        removed += 1
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    removed += stored_files.remove_all(deletion.tenant_id)
    _note(deletion, "files_removed", deletion.report.get("files_removed", 0) + removed)


def _rows(deletion: Deletion) -> None:
    """Until none are left, or it has taken long enough for one go."""
    deadline = time.monotonic() + SLICE_S
    with tenant_scope(deletion.tenant_id):
        for model in owned_models():
            for keys in batches(model._default_manager.all()):
                with transaction.atomic():
                    _count(deletion, erase(model, keys))
                if time.monotonic() > deadline:
                    raise NotYet
        with transaction.atomic():
            team = Tenant.objects.filter(pk=deletion.tenant_id)
            _count(deletion, erase(Tenant, [row.pk for row in team]))


def _count(deletion: Deletion, erased: Counter[str]) -> None:
    rows = Counter(deletion.report.get("rows_deleted", {}))
    rows.update(erased)
    deletion.report["rows_deleted"] = dict(sorted(rows.items()))
    deletion.lease_until = timezone.now() + LEASE
    deletion.save(update_fields=["report", "lease_until"])


def _audit(deletion: Deletion) -> None:
    """The database lets entries go only while the tenant is listed for it."""
    with tenant_scope(deletion.tenant_id):
        AuditPurge.objects.get_or_create(tenant_id=deletion.tenant_id)
        for keys in batches(AuditEntry.objects.all()):
            with transaction.atomic():
                count, _ = AuditEntry.objects.filter(pk__in=keys).delete()
                _count(deletion, Counter({AuditEntry._meta.db_table: count}))
        AuditPurge.objects.filter(tenant_id=deletion.tenant_id).delete()


def _leftovers(deletion: Deletion) -> None:
    _engines(deletion)
    _files(deletion)
    with tenant_scope(deletion.tenant_id):
        traces.remove(str(deletion.tenant_id), deletion.report.get("ids", []), _generations, _caches())


def _compact(deletion: Deletion) -> None:
    _note(deletion, "redis_files", traces.compact())
    _note(deletion, "database_files", _compact_database())


def _compact_database() -> str:
    """Deleted rows leave their bytes on free pages. SQLite can be made to write itself anew; PostgreSQL cleans up."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("VACUUM")
            # Until the checkpoint has emptied it, the write-ahead log has them as well.
            busy = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            if busy:
                raise NotYet
        return "written anew (VACUUM), write-ahead log emptied"
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            for model in _tables():
                cursor.execute(f'VACUUM "{model._meta.db_table}"')
        return "dead rows released (VACUUM); their bytes stay on the pages until they are used again"
    return "left to the database"


def _verify(deletion: Deletion) -> None:
    """Look everywhere again. Something that is still there sends it back; after MOST_ROUNDS an operator has to look."""
    found: dict[str, int] = {}
    with tenant_scope(deletion.tenant_id):
        for model in _tables():
            found[f"table {model._meta.db_table}"] = model._default_manager.count()
        found["table tenants_tenant"] = Tenant.objects.filter(pk=deletion.tenant_id).count()
        found["redis"] = traces.remaining(
            str(deletion.tenant_id), deletion.report.get("ids", []), _generations, _caches()
        )
    found["files"] = len(_team_files(deletion)) + len(stored_files.names_of(deletion.tenant_id))
    found["Redis's files as they were"] = int(deletion.report.get("redis_files", {}).get("aof") == "rewrite failed")
    found["workers that did not answer"] = len(deletion.report.get("engines", {}).get("did_not_answer", []))
    deletion.report["found_afterwards"] = found
    deletion.report["beyond_reach"] = BEYOND
    left = {name: count for name, count in found.items() if count}
    deletion.rounds += 1
    if left and deletion.rounds < MOST_ROUNDS:
        deletion.save(update_fields=["report", "rounds"])
        log.warning("deletion.again", deletion=str(deletion.pk), left=left)
        _enter(deletion, FIRST)
        raise NotYet
    if not left:
        deletion.report.pop("ids", None)  # else it may be begun again
    deletion.state = DeletionState.FAILED if left else DeletionState.DONE
    deletion.finished_at = timezone.now()
    deletion.error = f"still there: {', '.join(left)}"[:200] if left else ""
    with unscoped("data jobs"), transaction.atomic():
        deletion.save()
        record(
            "tenant.deletion_failed" if left else "tenant.deleted",
            actor=deletion.actor,
            tenant=None,
            on=deletion,
            name=deletion.tenant_slug,
            details={"tenant": str(deletion.tenant_id), **deletion.report},
        )
    log.info("deletion.ended", deletion=str(deletion.pk), state=deletion.state)


STEPS: dict[str, Callable[[Deletion], None]] = {
    "answers": _answers,
    "engines": _engines,
    "redis": _redis,
    "files": _files,
    "rows": _rows,
    "audit": _audit,
    "leftovers": _leftovers,
    "compact": _compact,
    "verify": _verify,
}
FIRST, LAST = "answers", "verify"


def _generations(ids: list[str]) -> set[str]:
    """Which of these are the scope's tenant's."""
    keys = [parse_id(value) for value in ids]
    return {str(key) for key in Generation.objects.filter(pk__in=keys).values_list("pk", flat=True)}


def _tables() -> list[type[models.Model]]:
    return [*owned_models(), AuditEntry]


def _caches() -> list[Any]:
    """The cache's own connection, where the cache is in Redis."""
    backend = getattr(cache, "_cache", None)
    if backend is None or not hasattr(backend, "get_client"):
        return []
    client = backend.get_client(write=True)
    return [client] if isinstance(client, redis.Redis) else []


def _team_files(deletion: Deletion) -> list[Path]:
    tag = protocol.owner_tag(str(deletion.tenant_id))
    store = Path(settings.OCTAVO_PROMPT_STORE)
    folder = Export(tenant_id=deletion.tenant_id).directory
    return [path for path in (folder, *store.glob(f"{tag}*")) if path.exists()]
