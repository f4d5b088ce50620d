"""What a restored database must not go on with, since time has passed and Redis knows nothing of it.

- Answers that were under way end as those that Redis has lost: interrupted, to be asked again; what was reserved for
  them is free. Items of batches among them are asked again by their batch.
- Events that were waiting for webhooks may have been told after the backup: they are kept as not sent, and a team can
  send them again by hand.
- Everybody logs in anew: a session that was ended after the backup would be open again. So do operators' readings of
  chats end.
- Exports that were ready are gone with the folder they lay in, and can be made again.
- Files that were deleted while the backup was made are deleted.

API keys, memberships, passwords, links to shared conversations are as they were at the moment of the backup, and what
was deleted or revoked since is there again: nothing here can know of it. Whoever restores is told so.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from allauth.usersessions.models import UserSession
from django.contrib.sessions.models import Session
from django.db import transaction
from django.utils import timezone

from chatapp.audit.models import BreakGlass
from chatapp.audit.services import SYSTEM, record
from chatapp.backups.manifest import Manifest
from chatapp.chat import recorder
from chatapp.chat.models import UNFINISHED, Generation, State
from chatapp.chat.reaper import LOST
from chatapp.data.models import Export, JobState, OwnExport
from chatapp.files.models import StoredFile
from chatapp.limits import budget
from chatapp.limits.models import Reservation
from chatapp.webhooks.models import DeliveryState, WebhookDelivery, WebhookEndpoint
from engine.protocol import Interrupted

BATCH = 200


def settle(manifest: Manifest) -> dict[str, int]:
    """Safe to repeat. What was done, by name; call it with the product stopped."""
    done = {
        "webhook events not sent": _keep_webhooks_quiet(manifest.taken_at),
        "answers interrupted": _interrupt(),
        "reservations released": _release(),
        "sessions ended": _end_sessions(),
        "readings by operators ended": _close_readings(),
        "exports to be made again": _expire_exports(),
        "files deleted": _delete_files(manifest.files.gone),
    }
    details = {"taken_at": manifest.taken_at.isoformat(timespec="seconds"), "version": manifest.version}
    record("site.restored", actor=SYSTEM, tenant=None, details=details)
    return done


def _keep_webhooks_quiet(taken_at: datetime) -> int:
    """Before all else here: what comes of it is new, and is told."""
    because = f"Not sent: restored from a backup of {taken_at:%Y-%m-%d %H:%M} UTC."
    WebhookEndpoint.objects.exclude(lease_until=None).update(lease_until=None)
    waiting = WebhookDelivery.objects.filter(state=DeliveryState.PENDING)
    return waiting.update(state=DeliveryState.FAILED, next_attempt_at=None, error=because)


def _interrupt() -> int:
    unfinished = list(Generation.objects.filter(state__in=UNFINISHED).order_by("created_at").defer("request"))
    for generation in unfinished:
        lost = Interrupted(code="redis_lost_it", message=LOST, retryable=True)
        recorder.write(generation, recorder.Answer(terminal=lost), State.INTERRUPTED)
    return len(unfinished)


def _release() -> int:
    """Of answers whose chat was deleted while they ran."""
    left = list(Reservation.objects.values_list("pk", flat=True))
    for generation in left:
        budget.settle(generation, tokens=0, charged=False)
    return len(left)


def _end_sessions() -> int:
    UserSession.objects.all().delete()
    return Session.objects.all().delete()[0]


def _close_readings() -> int:
    now = timezone.now()
    ended = 0
    for found in list(BreakGlass.objects.select_related("tenant").filter(closed_at=None, expires_at__gt=now)):
        with transaction.atomic():
            BreakGlass.objects.filter(pk=found.pk).update(closed_at=now)
            record("break_glass.expired", actor=SYSTEM, tenant=found.tenant, on=found, details={"reason": found.reason})
            ended += 1
    return ended


def _expire_exports() -> int:
    return sum(jobs.objects.filter(state=JobState.DONE).update(state=JobState.EXPIRED) for jobs in (Export, OwnExport))


def _delete_files(names: Iterable[str]) -> int:
    names = list(names)
    deleted = 0
    for start in range(0, len(names), BATCH):
        found = StoredFile.objects.filter(content__in=names[start : start + BATCH])
        deleted += found.delete()[1].get(StoredFile._meta.label, 0)
    return deleted
