"""A person's own account: what deleting it means, what keeps it from being deleted, and the job.

The person is out at once: sessions end, memberships go. Chats go in the background. What they used stays as figures
under nobody's name. The audit logs of their teams keep the name that acted: a log from which names can be taken out
proves nothing, and the law lets it be kept for that.
"""

from __future__ import annotations

from datetime import timedelta

import redis.exceptions
import structlog
from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.accounts.models import User
from chatapp.audit.models import ActorKind
from chatapp.audit.services import Actor, record
from chatapp.chat.models import UNFINISHED, Conversation, Generation
from chatapp.data import exports
from chatapp.data.models import UNFINISHED_DELETION, Deletion, Leaving, OwnExport
from chatapp.data.retention import purge_conversations
from chatapp.data.rows import batches, erase
from chatapp.errors import BadInput, Conflict
from chatapp.files.models import StoredFile
from chatapp.ids import parse_id
from chatapp.logs import cause
from chatapp.scope import unscoped
from chatapp.streaming import cancel, traces
from chatapp.tenants.models import Membership, Tenant
from chatapp.tenants.permissions import Role
from chatapp.usage import services as usage
from engine import protocol

log = structlog.get_logger(__name__)

LEASE = timedelta(minutes=2)
NOBODY = "user:deleted"
BATCH = 100


@unscoped("own data")
def last_owner_of(user: User) -> list[Tenant]:
    """The teams that would be left without an owner. Those that are being deleted need none."""
    owners = Membership.objects.filter(role=Role.OWNER, suspended_at=None, user__is_active=True)
    mine = owners.filter(user=user).values_list("tenant_id", flat=True)
    others = owners.exclude(user=user).values_list("tenant_id", flat=True)
    going = Deletion.objects.filter(state__in=UNFINISHED_DELETION).values("tenant_id")
    teams = Tenant.objects.filter(pk__in=set(mine) - set(others)).exclude(pk__in=going)
    return list(teams.order_by("name"))


@unscoped("own data")
def delete_account(*, user: User, confirm: str) -> Leaving:
    """`confirm`: the account's address, typed. Raises BadInput, and Conflict for the last owner of a team."""
    if confirm.strip().lower() != user.email.lower():
        raise BadInput(_("Type %(email)s to confirm.") % {"email": user.email}, param="confirm")
    with transaction.atomic():
        list(Tenant.objects.select_for_update().filter(memberships__user=user).order_by("pk"))
        alone = last_owner_of(user)
        if alone:
            names = ", ".join(team.name for team in alone)
            raise Conflict(
                _("You are the last owner of %(names)s. Make somebody else an owner, or delete the team first.")
                % {"names": names},
                code="last_owner",
            )
        leaving, _made = Leaving.objects.get_or_create(user_id=user.pk)
        actor = Actor(ActorKind.USER, str(user.pk), user.email)
        memberships = list(Membership.objects.filter(user=user).select_related("tenant"))
        for membership in memberships:
            details = {"role": membership.role}
            record(
                "member.account_deleted", actor=actor, tenant=membership.tenant, on=user, name=user.email,
                details=details,
            )  # fmt: skip
        record("account.deleted", actor=actor, tenant=None, on=user, name=user.email)
        erase(Membership, [membership.pk for membership in memberships])
        User.objects.filter(pk=user.pk).update(is_active=False)
    transaction.on_commit(lambda: _start(leaving))
    return leaving


def run(leaving_id: str) -> None:
    """Delete what a person has left. Can be done again from any point."""
    now = timezone.now()
    rows = Leaving.objects.filter(pk=parse_id(leaving_id), finished_at=None).exclude(lease_until__gt=now)
    if not rows.update(lease_until=now + LEASE):
        return
    leaving = Leaving.objects.get(pk=parse_id(leaving_id))
    try:
        with unscoped("own data"):
            _erase_person(leaving)
    except Exception as error:
        log.error("leaving.failed", leaving=leaving_id, cause=cause(error))
        return
    Leaving.objects.filter(pk=leaving.pk).update(finished_at=timezone.now())


def _erase_person(leaving: Leaving) -> None:
    user = User.objects.filter(pk=leaving.user_id).first()
    if user is None:
        return
    principal = f"user:{user.pk}"
    own = Generation.objects.filter(Q(principal=principal) | Q(conversation__user=user))
    for generation in own.filter(state__in=UNFINISHED):
        cancel.cancel(str(generation.pk))
    recent = own.filter(created_at__gt=timezone.now() - timedelta(seconds=2 * protocol.LOG_TTL_S))
    ids = [str(key) for key in recent.values_list("pk", flat=True)]
    exports.remove_own_exports([user.pk])
    exports.remove_folder(OwnExport(user=user))
    for keys in batches(Conversation.objects.filter(user=user), BATCH):
        with transaction.atomic():
            purge_conversations(keys)
        Leaving.objects.filter(pk=leaving.pk).update(lease_until=timezone.now() + LEASE)
    # Not left to the end, which would let go of them: what belongs to nobody belongs to the team's keys.
    for keys in batches(StoredFile.objects.filter(user=user), BATCH):
        with transaction.atomic():
            erase(StoredFile, keys)
    for keys in batches(Generation.objects.filter(principal=principal)):
        Generation.objects.filter(pk__in=keys).update(
            principal=NOBODY, idempotency_key=None, digest="", error_message="", request=None
        )
    with transaction.atomic():
        usage.forget(principal=principal)
        erase(User, [user.pk])
    try:
        traces.forget_generations(ids)
    except redis.exceptions.RedisError as error:  # they expire within the hour
        log.warning("leaving.logs_left", error=type(error).__name__)
    _end_sessions(str(leaving.user_id))


def _end_sessions(user_id: str) -> None:
    for session in Session.objects.filter(expire_date__gt=timezone.now()).iterator():
        if session.get_decoded().get("_auth_user_id") == user_id:
            session.delete()


def _start(leaving: Leaving) -> None:
    from chatapp.data import tasks

    try:
        tasks.leave.delay(str(leaving.pk))
    except Exception as error:
        log.warning("leaving.not_started", leaving=str(leaving.pk), error=type(error).__name__)


def tend() -> None:
    now = timezone.now()
    for leaving in Leaving.objects.filter(finished_at=None).exclude(lease_until__gt=now):
        _start(leaving)
