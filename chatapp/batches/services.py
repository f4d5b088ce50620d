"""Batches are begun and cancelled here."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import transaction
from django.utils import timezone

from chatapp.audit.services import record
from chatapp.batches import selectors
from chatapp.batches.endpoints import ENDPOINTS
from chatapp.batches.models import UNFINISHED, WINDOW, Batch, Status
from chatapp.batches.starting import start
from chatapp.errors import BadInput, Conflict, NotFound, TooMany
from chatapp.files import selectors as files
from chatapp.files.models import Purpose, StoredFile
from chatapp.tenants.access import Access
from chatapp.tenants.models import Tenant
from chatapp.tenants.permissions import Permission

MOST_UNFINISHED = 50
MOST_METADATA = 16
LONGEST_NAME, LONGEST_VALUE = 64, 512


@transaction.atomic
def create(
    *,
    access: Access,
    input_file_id: str,
    endpoint: str,
    completion_window: str,
    metadata: Mapping[str, str] | None = None,
) -> Batch:
    """Its file is read later. Raises BadInput, NotFound, Forbidden, TooMany."""
    selectors.own(access)  # only keys have batches
    if endpoint not in ENDPOINTS:
        raise BadInput(f"endpoint must be one of {', '.join(sorted(ENDPOINTS))}.", param="endpoint")
    if completion_window != WINDOW:
        raise BadInput(f"completion_window must be {WINDOW!r}.", param="completion_window")
    _check(metadata)
    file = files.file(access, input_file_id, param="input_file_id")
    if file.purpose != Purpose.BATCH:
        raise BadInput(
            f"The file's purpose is {file.purpose}; upload it with the purpose {Purpose.BATCH}.", param="input_file_id"
        )
    Tenant.objects.select_for_update(no_key=True).get(pk=access.tenant.pk)  # those who count see each other
    if Batch.objects.filter(tenant=access.tenant, status__in=UNFINISHED).count() >= MOST_UNFINISHED:
        refusal = TooMany(
            f"Your team has {MOST_UNFINISHED} unfinished batches, the most there can be. Wait for one, or cancel one.",
            code="too_many_batches",
        )
        refusal.retryable = False
        raise refusal
    batch = Batch.objects.create(
        tenant=access.tenant,
        key=access.key,
        endpoint=endpoint,
        input_file=file.pk,
        metadata=dict(metadata) if metadata else None,
    )
    transaction.on_commit(lambda: start(batch.pk), robust=True)
    return batch


def cancel(*, access: Access, batch_id: object) -> Batch:
    """What is done is kept, and written to files. Raises NotFound, and Conflict for one that has ended."""
    return stop(selectors.batch(access, batch_id))


@transaction.atomic
def cancel_for_team(*, access: Access, batch_id: object) -> Batch:
    """By who looks after the team's keys. Raises Forbidden, NotFound, Conflict."""
    access.require(Permission.MANAGE_KEYS)
    found = stop(selectors.one_of_team(access, batch_id))
    record("batch.cancelled", actor=access.actor, tenant=access.tenant, on=found)
    return selectors.one_of_team(access, found.pk)


@transaction.atomic
def results_for_team(*, access: Access, batch_id: object, what: str) -> StoredFile:
    """`what`: output or errors. It is noted who took them. Raises Forbidden, NotFound."""
    access.require(Permission.MANAGE_KEYS)
    found = selectors.one_of_team(access, batch_id)
    key = {"output": found.output_file, "errors": found.error_file}.get(what)
    file = StoredFile.objects.filter(tenant=access.tenant, pk=key).first() if key is not None else None
    if file is None:
        raise NotFound("This file is not there any more.", param="what")
    record("batch.downloaded", actor=access.actor, tenant=access.tenant, on=found, details={"file": what})
    return file


@transaction.atomic
def stop(found: Batch) -> Batch:
    row = Batch.objects.select_for_update().get(pk=found.pk)
    if row.status in (Status.VALIDATING, Status.IN_PROGRESS):
        now = timezone.now()
        row.status, row.ending, row.cancelling_at, row.next_at = Status.CANCELLING, Status.CANCELLED, now, None
        row.save(update_fields=["status", "ending", "cancelling_at", "next_at"])
        transaction.on_commit(lambda: start(row.pk), robust=True)
    elif row.status != Status.CANCELLING:
        raise Conflict(f"This batch cannot be cancelled: it is {row.status}.", code="batch_not_cancellable")
    return selectors.counted(Batch.objects.filter(pk=row.pk)).get()


def _check(metadata: Mapping[str, str] | None) -> None:
    if not metadata:
        return
    if len(metadata) > MOST_METADATA:
        raise BadInput(f"metadata may have {MOST_METADATA} entries, not {len(metadata)}.", param="metadata")
    for name, value in metadata.items():
        if not 0 < len(name) <= LONGEST_NAME or len(value) > LONGEST_VALUE:
            raise BadInput(
                f"Names in metadata have 1 to {LONGEST_NAME} characters, values {LONGEST_VALUE} at most.",
                param="metadata",
            )
        if "\0" in name + value or any("\ud800" <= c <= "\udfff" for c in name + value):
            raise BadInput("metadata holds a character that is none.", param="metadata")
