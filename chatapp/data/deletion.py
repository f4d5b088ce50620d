"""Deleting a team: asked for, undone within its grace period, or done (chatapp.data.purge).

From the request on nobody gets in: sockets end within a second, keys stop working, answers under way are cancelled.
Nothing is deleted until the grace period is over, so that undoing gives everything back.
"""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.accounts.models import User
from chatapp.audit.models import ActorKind
from chatapp.audit.services import Actor, record
from chatapp.data.models import UNFINISHED_DELETION, Deletion, DeletionState
from chatapp.errors import BadInput, Conflict, NotFound
from chatapp.ids import parse_id
from chatapp.operators.services import cancel_answers
from chatapp.scope import tenant_scope, unscoped
from chatapp.tenants.access import Access
from chatapp.tenants.models import Membership, Tenant
from chatapp.tenants.permissions import Permission, Role

log = structlog.get_logger(__name__)

GRACE = timedelta(days=7)


def request_own_deletion(*, access: Access, confirm: str) -> Deletion:
    """An owner deletes the team. `confirm`: its slug, typed. Raises Forbidden, BadInput, Conflict."""
    access.require(Permission.MANAGE_DATA)
    if confirm.strip() != access.tenant.slug:
        raise BadInput(_("Type %(slug)s to confirm.") % {"slug": access.tenant.slug}, param="confirm")
    return request_deletion(tenant=access.tenant, actor=access.actor)


def request_deletion(*, tenant: Tenant, actor: Actor, grace: timedelta = GRACE) -> Deletion:
    """Lock the team now, and delete it after `grace`. Raises Conflict when it is being deleted already."""
    with tenant_scope(tenant):
        try:
            with transaction.atomic():
                row = Tenant.objects.select_for_update().get(pk=tenant.pk)
                deletion = Deletion.objects.create(
                    tenant_id=row.pk,
                    tenant_slug=row.slug,
                    tenant_name=row.name,
                    actor_kind=actor.kind,
                    actor_id=actor.id,
                    actor_name=actor.name,
                    suspended_before=row.suspended_at,
                    due_at=timezone.now() + grace,
                )
                if row.suspended_at is None:
                    Tenant.objects.filter(pk=row.pk).update(suspended_at=timezone.now())
                details = {"due_at": deletion.due_at.isoformat()}
                record("tenant.deletion_requested", actor=actor, tenant=row, on=row, details=details)
                cancel_answers(row)
        except IntegrityError:
            raise Conflict(_("This team is being deleted already."), code="deletion_running") from None
    tenant.refresh_from_db(fields=["suspended_at"])
    if grace <= timedelta(0):
        transaction.on_commit(lambda: start(deletion))
    return deletion


def undo_deletion(*, deletion: Deletion, actor: Actor) -> Deletion:
    """The team is as it was. Raises Conflict once its rows are being deleted."""
    with tenant_scope(deletion.tenant_id), transaction.atomic():
        Tenant.objects.select_for_update().filter(pk=deletion.tenant_id).first()
        undone = Deletion.objects.filter(pk=deletion.pk, state=DeletionState.WAITING).update(
            state=DeletionState.UNDONE, finished_at=timezone.now()
        )
        if not undone:
            raise Conflict(_("It is too late to undo this."), code="deletion_running")
        deletion.refresh_from_db()  # an operator may have suspended it meanwhile
        Tenant.objects.filter(pk=deletion.tenant_id).update(suspended_at=deletion.suspended_before)
        tenant = Tenant.objects.get(pk=deletion.tenant_id)
        record("tenant.deletion_undone", actor=actor, tenant=tenant, on=tenant)
    return deletion


def begin_now(*, deletion: Deletion, actor: Actor) -> Deletion:
    """An operator does not wait for the end of the grace period, or has one that failed go on from its beginning.

    Raises Conflict for one that does neither.
    """
    again = {"state": DeletionState.WAITING, "step": "", "rounds": 0, "finished_at": None, "error": ""}
    with unscoped("data jobs"), transaction.atomic():
        rows = Deletion.objects.filter(pk=deletion.pk)
        waited = rows.filter(state=DeletionState.WAITING).update(due_at=timezone.now())
        if not waited and not rows.filter(state=DeletionState.FAILED).update(due_at=timezone.now(), **again):
            raise Conflict(_("This deletion does not wait for anything."), code="deletion_running")
        # Of one that failed the team may be gone already: then the platform's log has it.
        tenant = Tenant.objects.filter(pk=deletion.tenant_id).first()
        record("tenant.deletion_begun", actor=actor, tenant=tenant, on=tenant or deletion, name=deletion.tenant_slug)
    transaction.on_commit(lambda: start(deletion))
    deletion.refresh_from_db()
    return deletion


def undo_own_deletion(*, user: User, deletion_id: object) -> Deletion:
    """Any owner of the team may. Raises NotFound, Conflict."""
    for deletion in deletions_of(user):
        if deletion.pk == parse_id(deletion_id):
            return undo_deletion(deletion=deletion, actor=Actor(ActorKind.USER, str(user.pk), user.email))
    raise NotFound(_("There is no such deletion."), param="deletion_id")


def deletions_of(user: User) -> list[Deletion]:
    """Those that wait, of the teams that this person owns: the team's own pages are closed."""
    with unscoped("own teams"):
        owned = Membership.objects.filter(user=user, role=Role.OWNER, suspended_at=None)
        teams = set(owned.values_list("tenant_id", flat=True))
    return list(Deletion.objects.filter(tenant_id__in=teams, state=DeletionState.WAITING).order_by("due_at"))


def deletion_of(tenant: Tenant) -> Deletion | None:
    return Deletion.objects.filter(tenant_id=tenant.pk, state__in=UNFINISHED_DELETION).first()


def stay_suspended(tenant: Tenant) -> bool:
    """Undone, the team is suspended and not open; False where nothing waits or that was so already."""
    waiting = Deletion.objects.filter(tenant_id=tenant.pk, state=DeletionState.WAITING, suspended_before=None)
    return bool(waiting.update(suspended_before=timezone.now()))


def start(deletion: Deletion) -> None:
    from chatapp.data import tasks

    try:
        tasks.delete_tenant.delay(str(deletion.pk))
    except Exception as error:  # no broker: the row waits, and `tend` comes by
        log.warning("deletion.not_started", deletion=str(deletion.pk), error=type(error).__name__)


def tend() -> None:
    """Start what is due and what was cut short. Idempotent."""
    now = timezone.now()
    due = Deletion.objects.filter(state=DeletionState.WAITING, due_at__lte=now)
    running = Deletion.objects.filter(state=DeletionState.RUNNING).exclude(lease_until__gt=now)
    for deletion in [*due, *running]:
        start(deletion)
