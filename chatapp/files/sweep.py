"""What is left over: files whose time is over, and bytes in the storage that no row knows.

Bytes without a row are what a crash leaves, on the way in (the row is written last) or out (it goes first). They are
taken for that once they are so old that no upload can still be on its way.
"""

from __future__ import annotations

import uuid
from datetime import timedelta

import structlog
from django.db import transaction
from django.utils import timezone

from chatapp.files import contents
from chatapp.files.models import StoredFile
from chatapp.ids import NO_ID, parse_id
from chatapp.scope import tenant_scope, unscoped

log = structlog.get_logger(__name__)

BATCH = 500
# An upload takes minutes at most: its bytes are all there before they are written here.
STRAY_AFTER = timedelta(hours=1)


def expired() -> int:
    """Delete the files whose time is over; how many."""
    gone = 0
    with unscoped("data jobs"):
        while True:
            over = StoredFile.objects.filter(expires_at__lte=timezone.now())
            keys = list(over.values_list("pk", flat=True)[:BATCH])
            if not keys:
                return gone
            with transaction.atomic():
                # Looked at again: one that was attached meanwhile stays.
                gone += over.filter(pk__in=keys).delete()[1].get(StoredFile._meta.label, 0)


def strays() -> int:
    """Remove bytes that no row knows; how many files that were."""
    removed = 0
    for team in contents.teams():
        tenant_id = parse_id(team)
        if tenant_id != NO_ID:
            removed += _strays_of(tenant_id)
    if removed:
        log.info("files.swept", removed=removed)
    return removed


def _strays_of(tenant_id: uuid.UUID) -> int:
    names = contents.names_of(tenant_id)
    removed = 0
    for start in range(0, len(names), BATCH):
        batch = names[start : start + BATCH]
        with tenant_scope(tenant_id):
            known = set(StoredFile.objects.filter(content__in=batch).values_list("content", flat=True))
        for name in batch:
            if name not in known and contents.age(name) > STRAY_AFTER:
                contents.remove(name)
                removed += 1
    return removed
