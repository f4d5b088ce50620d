"""Exports as jobs: asked for, made by a worker, downloaded for a week, gone.

A worker that is killed leaves a row with an old heartbeat and a file that nobody finishes. Both are found by `tend`,
and the job starts again from the beginning: rows go on changing, so half an export is worth nothing.
"""

from __future__ import annotations

import shutil
import time
from datetime import timedelta
from typing import Any

import structlog
from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.accounts.models import User
from chatapp.audit.services import SYSTEM, record
from chatapp.data import contents
from chatapp.data.archive import Archive
from chatapp.data.models import UNFINISHED_JOB, Export, ExportJob, JobState, OwnExport
from chatapp.errors import Conflict, NotFound
from chatapp.ids import parse_id
from chatapp.logs import cause
from chatapp.scope import tenant_scope, unscoped
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission

log = structlog.get_logger(__name__)

KEPT = timedelta(days=7)
STALE = timedelta(seconds=30)
BEAT_S = 0.5
MOST_ATTEMPTS = 3
FAILED = "The export could not be made. Try again; if it fails once more, tell your operator."
KILLED = "The export was cut short three times. Tell your operator."

MODELS: dict[str, type[ExportJob]] = {"team": Export, "own": OwnExport}


class Stopped(Exception):
    """Somebody has stopped it, or another worker has it now."""


# --- a team's -----------------------------------------------------------------------------------------------------


def request_export(*, access: Access) -> Export:
    """Raises Forbidden, and Conflict while one is being made."""
    access.require(Permission.MANAGE_DATA)
    try:
        with transaction.atomic():
            export = Export.objects.create(
                tenant=access.tenant, requested_by=access.user, requested_by_name=access.actor.name
            )
            record("data.export_requested", actor=access.actor, tenant=access.tenant, on=export)
    except IntegrityError:
        raise Conflict(_("An export is being made already; wait for it, or stop it."), code="export_running") from None
    transaction.on_commit(lambda: _start("team", export))
    return export


def cancel_export(*, access: Access, export_id: object) -> Export:
    """Stop it, or delete its file. One that has ended stays as it is. Raises Forbidden, NotFound."""
    export = export_of(access, export_id)
    with transaction.atomic():
        stopped = _stop(export)
        if stopped:
            details = {"was": export.state}
            record("data.export_removed", actor=access.actor, tenant=access.tenant, on=export, details=details)
    if stopped:
        export.path.unlink(missing_ok=True)
    export.refresh_from_db()
    return export


def export_of(access: Access, export_id: object) -> Export:
    access.require(Permission.MANAGE_DATA)
    found = Export.objects.filter(pk=parse_id(export_id), tenant=access.tenant).first()
    if found is None:
        raise NotFound(_("There is no such export."), param="export_id")
    return found


def exports_of(access: Access, limit: int = 20) -> list[Export]:
    access.require(Permission.MANAGE_DATA)
    return list(Export.objects.filter(tenant=access.tenant)[:limit])


def download_of(access: Access, export_id: object) -> Export:
    """One whose file may be read now; the download is noted. Raises NotFound."""
    export = export_of(access, export_id)
    if not _is_there(export):
        raise NotFound(_("This export is not there any more."), param="export_id")
    record("data.export_downloaded", actor=access.actor, tenant=access.tenant, on=export)
    return export


# --- a person's ---------------------------------------------------------------------------------------------------


def request_own_export(*, user: User) -> OwnExport:
    """Raises Conflict while one is being made."""
    try:
        with transaction.atomic():
            export = OwnExport.objects.create(user=user)
    except IntegrityError:
        raise Conflict(_("Your export is being made already."), code="export_running") from None
    transaction.on_commit(lambda: _start("own", export))
    return export


def own_export_of(user: User, export_id: object) -> OwnExport:
    found = OwnExport.objects.filter(pk=parse_id(export_id), user=user).first()
    if found is None:
        raise NotFound(_("There is no such export."), param="export_id")
    return found


def own_exports_of(user: User, limit: int = 5) -> list[OwnExport]:
    return list(OwnExport.objects.filter(user=user)[:limit])


def cancel_own_export(*, user: User, export_id: object) -> OwnExport:
    export = own_export_of(user, export_id)
    if _stop(export):
        export.path.unlink(missing_ok=True)
    export.refresh_from_db()
    return export


def own_download_of(user: User, export_id: object) -> OwnExport:
    export = own_export_of(user, export_id)
    if not _is_there(export):
        raise NotFound(_("This export is not there any more."), param="export_id")
    return export


def remove_own_exports(users: list[Any]) -> None:
    """Stop and delete them: something in them is to be gone. Whoever still needs one makes a new one."""
    for export in OwnExport.objects.filter(user__in=users):
        _stop(export)
        export.path.unlink(missing_ok=True)


# --- the job ------------------------------------------------------------------------------------------------------


def run(kind: str, export_id: str) -> None:
    """Make the file. Does nothing for one that is not waiting: a message may come twice, or late."""
    model = MODELS[kind]
    with unscoped("data jobs"):
        rows = model._default_manager.filter(pk=parse_id(export_id), state=JobState.QUEUED)
        now = timezone.now()
        if not rows.update(state=JobState.RUNNING, percent=0, heartbeat_at=now, attempt=F("attempt") + 1):
            return
        export = model._default_manager.get(pk=parse_id(export_id))
    try:
        archive = _make(export)
    except Stopped:
        log.info("export.stopped", export=export_id)
        return
    except Exception as error:
        log.error("export.failed", export=export_id, cause=cause(error))
        with unscoped("data jobs"):
            _mine(export).update(state=JobState.FAILED, error=FAILED, finished_at=timezone.now())
        return
    with unscoped("data jobs"):
        _finish(export, archive)


def _make(export: ExportJob) -> Archive:
    for left in export.directory.glob(f"{export.pk}.*.part"):  # of attempts that were killed
        left.unlink(missing_ok=True)
    part = export.directory / f"{export.pk}.{export.attempt}.part"
    if isinstance(export, Export):
        with tenant_scope(export.tenant_id):
            progress = _Progress(export, contents.count_team())
            with Archive(export.path, part, progress) as archive:
                contents.write_team(archive, export.tenant)
            return archive
    assert isinstance(export, OwnExport)
    with unscoped("own data"):
        progress = _Progress(export, contents.count_person(export.user))
        with Archive(export.path, part, progress) as archive:
            contents.write_person(archive, export.user)
        return archive


class _Progress:
    """Counts rows; now and then it says how far it is, and hears whether it is still wanted."""

    def __init__(self, export: ExportJob, total: int) -> None:
        self._export = export
        self._total = max(total, 1)
        self._done = 0
        self._beat_at = 0.0

    def __call__(self, rows: int) -> None:
        self._done += rows
        if time.monotonic() < self._beat_at:
            return
        self._beat_at = time.monotonic() + BEAT_S
        percent = min(99, 100 * self._done // self._total)
        if not _mine(self._export).update(percent=percent, heartbeat_at=timezone.now()):
            raise Stopped


def _mine(export: ExportJob) -> Any:
    """Its row, as long as this attempt is the one that counts."""
    return type(export)._default_manager.filter(pk=export.pk, state=JobState.RUNNING, attempt=export.attempt)


def _finish(export: ExportJob, archive: Archive) -> None:
    now = timezone.now()
    with transaction.atomic():
        done = _mine(export).update(
            state=JobState.DONE,
            percent=100,
            size=archive.size,
            sha256=archive.sha256,
            finished_at=now,
            heartbeat_at=now,
            expires_at=now + KEPT,
        )
        if done and isinstance(export, Export):
            details = {"size": archive.size, "sha256": archive.sha256}
            record("data.export_made", actor=SYSTEM, tenant=export.tenant, on=export, details=details)
    if not done:
        archive.path.unlink(missing_ok=True)  # stopped in the last moment
    log.info("export.made", export=str(export.pk), size=archive.size)


def tend() -> None:
    """Start again what was cut short, start what was not heard of, delete what is too old. Idempotent."""
    now = timezone.now()
    with unscoped("data jobs"):
        for kind, model in MODELS.items():
            rows = model._default_manager
            cut = rows.filter(state=JobState.RUNNING, heartbeat_at__lt=now - STALE)
            cut.filter(attempt__gte=MOST_ATTEMPTS).update(state=JobState.FAILED, error=KILLED, finished_at=now)
            cut.update(state=JobState.QUEUED, percent=0)
            for export in rows.filter(state=JobState.QUEUED, created_at__lt=now - STALE / 2):
                _start(kind, export)
            for export in rows.filter(state=JobState.DONE, expires_at__lt=now):
                export.path.unlink(missing_ok=True)
                rows.filter(pk=export.pk).update(state=JobState.EXPIRED)


def _start(kind: str, export: ExportJob) -> None:
    from chatapp.data import tasks

    try:
        tasks.export.delay(kind, str(export.pk))
    except Exception as error:  # no broker: the row waits, and `tend` comes by
        log.warning("export.not_started", export=str(export.pk), error=type(error).__name__)


def _stop(export: ExportJob) -> bool:
    """Whether there was anything to stop or to delete."""
    rows = type(export)._default_manager.filter(pk=export.pk)
    now = timezone.now()
    stopped: int = rows.filter(state__in=UNFINISHED_JOB).update(state=JobState.CANCELLED, finished_at=now)
    return bool(stopped or rows.filter(state=JobState.DONE).update(state=JobState.EXPIRED))


def _is_there(export: ExportJob) -> bool:
    fresh = export.expires_at is not None and export.expires_at > timezone.now()
    return export.state == JobState.DONE and fresh and export.path.is_file()


def remove_folder(job: ExportJob) -> None:
    """All files of its owner, finished or not."""
    shutil.rmtree(job.directory, ignore_errors=True)
