"""How long a team keeps chats: what would go is shown first, then it is turned on, then it happens every night.

A conversation goes as a whole, by its last activity. What it used stays as figures until these are too old as well. A
conversation that is being answered is left for the next night.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import transaction
from django.db.models import Count, Exists, F, Max, Min, OuterRef, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.audit.services import SYSTEM, record
from chatapp.chat.models import UNFINISHED, Conversation, Generation, Message
from chatapp.data.models import LEAST_USAGE_DAYS, LONGEST_DAYS, USAGE_DAYS, Retention, Sweep
from chatapp.data.rows import erase
from chatapp.errors import BadInput
from chatapp.feedback import services as feedback
from chatapp.responses.models import StoredResponse
from chatapp.scope import tenant_scope, unscoped
from chatapp.shares.models import Share
from chatapp.tenants.access import Access
from chatapp.tenants.models import Tenant
from chatapp.tenants.permissions import Permission
from chatapp.usage.selectors import rows_before
from chatapp.usage.services import delete_rows_before

log = structlog.get_logger(__name__)

# What somebody deleted can be asked back from an operator for so long.
DELETED_DAYS = 30
# What the Responses API keeps is there to go on from, not for ever; OpenAI's own are kept as long.
RESPONSE_DAYS = 30
BATCH = 200
MOST_MEMBERS = 50


@dataclass(frozen=True)
class MemberShare:
    name: str
    conversations: int
    messages: int


@dataclass(frozen=True)
class Preview:
    """What a rule would delete now. `members`: those with most first, MOST_MEMBERS of them.

    `usage_rows`: answers whose figures would go; of their days the sums stay.
    """

    days: int | None
    keep_starred: bool
    usage_days: int
    conversations: int
    messages: int
    starred_kept: int
    oldest: datetime | None
    newest: datetime | None
    members: list[MemberShare]
    usage_rows: int


def retention_of(tenant: Tenant) -> Retention:
    return Retention.objects.filter(tenant=tenant).first() or Retention(tenant=tenant)


def preview(*, access: Access, days: int | None, keep_starred: bool = True, usage_days: int | None = None) -> Preview:
    """The dry run. `usage_days` None: as it is now. Raises BadInput, Forbidden."""
    access.require(Permission.MANAGE_DATA)
    if days is not None:
        _check("days", days, 1)
    if usage_days is None:
        usage_days = retention_of(access.tenant).usage_days
    _check("usage_days", usage_days, LEAST_USAGE_DAYS)
    now = timezone.now()
    own = Conversation.objects.filter(tenant=access.tenant) if days is not None else Conversation.objects.none()
    cutoff = now - timedelta(days=days or 0)
    old = _old(own, cutoff, keep_starred)
    totals = old.aggregate(count=Count("pk"), oldest=Min("updated_at"), newest=Max("updated_at"))
    shares = (
        old.values("user__email", "key__name")
        .annotate(chats=Count("pk", distinct=True), said=Count("messages"))
        .order_by("-said", "user__email")
    )
    starred = own.filter(updated_at__lt=cutoff, deleted_at=None, starred_at__isnull=False).count()
    return Preview(
        days=days,
        keep_starred=keep_starred,
        usage_days=usage_days,
        conversations=totals["count"],
        messages=Message.objects.filter(conversation__in=old.values("pk")).count(),
        starred_kept=starred if keep_starred else 0,
        oldest=totals["oldest"],
        newest=totals["newest"],
        members=[
            MemberShare(row["user__email"] or f"API key {row['key__name']}", row["chats"], row["said"])
            for row in shares[:MOST_MEMBERS]
        ],
        usage_rows=rows_before(access.tenant.pk, now - timedelta(days=usage_days)),
    )


@transaction.atomic
def set_retention(
    *, access: Access, days: int | None, keep_starred: bool = True, usage_days: int = USAGE_DAYS
) -> Retention:
    """From the next night on. `days` None: chats are kept until somebody deletes them. Raises BadInput, Forbidden."""
    access.require(Permission.MANAGE_DATA)
    if days is not None:
        _check("days", days, 1)
    _check("usage_days", usage_days, LEAST_USAGE_DAYS)
    Retention.objects.get_or_create(tenant=access.tenant)
    rule = Retention.objects.select_for_update().get(tenant=access.tenant)
    before = {"days": rule.days, "keep_starred": rule.keep_starred, "usage_days": rule.usage_days}
    after = {"days": days, "keep_starred": keep_starred, "usage_days": usage_days}
    changed = {name: [before[name], value] for name, value in after.items() if before[name] != value}
    if changed:
        rule.days, rule.keep_starred, rule.usage_days = days, keep_starred, usage_days
        rule.changed_at = timezone.now()
        rule.save()
        record("data.retention_changed", actor=access.actor, tenant=access.tenant, name=str(rule), details=changed)
    return rule


def _check(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LONGEST_DAYS:
        raise BadInput(
            _("Use a number of days from %(least)s to %(most)s.") % {"least": least, "most": LONGEST_DAYS}, param=name
        )


def _old(conversations: QuerySet[Conversation], cutoff: datetime, keep_starred: bool) -> QuerySet[Conversation]:
    kept = Q(starred_at__isnull=True) if keep_starred else Q()
    return _idle(conversations.filter(kept, updated_at__lt=cutoff))


def _idle(conversations: QuerySet[Conversation]) -> QuerySet[Conversation]:
    answered = Generation.objects.filter(conversation=OuterRef("pk"), state__in=UNFINISHED)
    return conversations.filter(~Exists(answered))


# --- every night --------------------------------------------------------------------------------------------------


def sweep_all() -> None:
    """All teams, one after the other; what fails for one does not keep the others from theirs."""
    with unscoped("data jobs"):
        tenants = list(Tenant.objects.order_by("pk"))
    for tenant in tenants:
        try:
            sweep(tenant)
        except Exception as error:
            log.error("retention.failed", tenant=str(tenant.pk), error=type(error).__name__)


def sweep(tenant: Tenant) -> Sweep:
    """Delete what is too old now. One that was cut short is gone on with, and its counts with it."""
    with tenant_scope(tenant):
        rule = retention_of(tenant)
        run = Sweep.objects.filter(finished_at=None).first() or Sweep.objects.create(tenant=tenant)
        now = timezone.now()
        doomed = [_idle(Conversation.objects.filter(deleted_at__lt=now - timedelta(days=DELETED_DAYS)))]
        if rule.days is not None:
            doomed.append(_old(Conversation.objects.all(), now - timedelta(days=rule.days), rule.keep_starred))
        for conversations in doomed:
            while keys := list(conversations.order_by("updated_at").values_list("pk", flat=True)[:BATCH]):
                if not _purge(run, conversations, keys):
                    break  # all of them have come to life since
        ended = Share.objects.filter(expires_at__lt=now)
        with transaction.atomic():
            erase(Share, list(ended.values_list("pk", flat=True)))
        _purge_responses(now - timedelta(days=min(rule.days or RESPONSE_DAYS, RESPONSE_DAYS)))
        stale = Generation.objects.filter(
            conversation=None, created_at__lt=now - timedelta(days=rule.usage_days)
        ).exclude(state__in=UNFINISHED)
        while keys := list(stale.values_list("pk", flat=True)[:BATCH]):
            with transaction.atomic():
                erase(Generation, keys)
                Sweep.objects.filter(pk=run.pk).update(usage_rows=F("usage_rows") + len(keys))
        gone = delete_rows_before(tenant_id=tenant.pk, before=now - timedelta(days=rule.usage_days))
        Sweep.objects.filter(pk=run.pk).update(usage_rows=F("usage_rows") + gone)
        return _finish(run, tenant)


@transaction.atomic
def _purge(run: Sweep, conversations: QuerySet[Conversation], keys: list[uuid.UUID]) -> int:
    # Locked and looked at again: somebody may have asked something meanwhile.
    locked = Conversation.objects.select_for_update().filter(pk__in=keys)
    found = {row.pk for row in locked} & set(conversations.filter(pk__in=keys).values_list("pk", flat=True))
    messages = purge_conversations(list(found))
    Sweep.objects.filter(pk=run.pk).update(
        conversations=F("conversations") + len(found), messages=F("messages") + messages
    )
    return len(found)


def _purge_responses(before: datetime) -> None:
    old = StoredResponse.objects.filter(created_at__lt=before).exclude(generation__state__in=UNFINISHED)
    while keys := list(old.order_by("created_at").values_list("pk", flat=True)[:BATCH]):
        with transaction.atomic():
            _without_traces(Generation.objects.filter(pk__in=keys))
            erase(StoredResponse, keys)


def _without_traces(generations: QuerySet[Generation], **fields: Any) -> None:
    """The digest is one of the text; whoever guesses that could check the guess."""
    generations.update(request=None, idempotency_key=None, digest="", error_message="", **fields)


def purge_conversations(keys: list[uuid.UUID]) -> int:
    """Conversations with all that was said; what they used stays, without a trace of what it was about.

    How many messages that were. Call it inside a transaction.
    """
    _without_traces(Generation.objects.filter(conversation__in=keys), conversation=None, message=None)
    messages = Message.objects.filter(conversation__in=keys).count()
    feedback.without_text(keys)
    erase(Conversation, keys)
    return messages


@transaction.atomic
def _finish(run: Sweep, tenant: Tenant) -> Sweep:
    run.refresh_from_db()
    run.finished_at = timezone.now()
    run.save(update_fields=["finished_at"])
    counts = {"conversations": run.conversations, "messages": run.messages, "usage_rows": run.usage_rows}
    if any(counts.values()):
        record("data.retention_applied", actor=SYSTEM, tenant=tenant, on=run, details=counts)
    else:
        Sweep.objects.filter(tenant=tenant, conversations=0, messages=0, usage_rows=0).exclude(pk=run.pk).delete()
    return run
