"""What the engines were used for: teams by their share of the work, requests that took long, and what went wrong.

Figures and names of teams only; no text, no person. Rows of the last hours are found by their ids, which are in the
order of time: there is no index over all teams, and none is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from django.db.models import Count, F, Max, OuterRef, Subquery, Sum
from django.db.models.functions import Coalesce
from django.urls import reverse
from django.utils import timezone

from chatapp.chat.models import UNFINISHED, Generation, State
from chatapp.ids import first_id
from chatapp.limits.selectors import weights as weights_of
from chatapp.operators.machines import team_names
from chatapp.streaming import dead, fleet, server
from chatapp.streaming.connection import AWAY
from chatapp.tenants.models import Tenant
from chatapp.usage.models import UsageRow, UsageTotal
from chatapp.webhooks.models import DeliveryState, WebhookDelivery

USE_SINCE = timedelta(hours=24)
SLOW_SINCE = timedelta(hours=1)
FAULTS_SINCE = timedelta(hours=24)
MOST_TEAMS = 12
MOST_SLOW = 10
MOST_FAULTS = 12
# What ended without being at fault: refused (nothing can be done here), cancelled (somebody wanted it so).
FAULTY = (State.FAILED, State.INTERRUPTED, State.TIMEOUT)

# Codes of the engine, of the wire and of the reaper, in words. Others are shown as they are.
MEANINGS = {
    "engine_died": "The worker went while it answered",
    "engine_fault": "A step of the engine failed",
    "engine_error": "The engine could not go on with it",
    "engine_stopped": "The worker was stopped and its grace was over",
    "engine_changed": "The worker that came after reads it another way",
    "redis_restarted": "Redis restarted, and a part may be lost",
    "request_lost": "Redis lost the request",
    "redis_lost_it": "Redis lost it in a restart",
    "deadline": "It was not done by its deadline",
    "unreadable": "Its log cannot be read",
    "poison": "It crashed the engine again and again, at last all alone",
}


@dataclass(frozen=True)
class TeamLine:
    """The last day. `computed`: prompt tokens that were not in the cache, and output. `share`: of all that was
    computed; `due`: what its weight entitles it to while all of these teams want something at once."""

    name: str
    slug: str
    link: str
    weight: float
    due: float
    share: float
    requests: int
    prompt: int
    cached: int
    output: int
    computed: int
    unfinished: int


@dataclass(frozen=True)
class SlowLine:
    """Seconds. `rest_s`: what is none of the three: on the way between database, Redis and the engine."""

    id: str
    link: str
    team: str
    model: str
    kind: str
    state: str
    at: str
    queue_s: float
    prefill_s: float
    decode_s: float
    rest_s: float
    total_s: float
    prompt: int
    cached: int
    output: int


@dataclass(frozen=True)
class FaultLine:
    """`kind`: dead, answers, workers, tasks, records or webhooks; `count` of the last day, the newest `ago_s` ago."""

    kind: str
    code: str
    says: str
    count: int
    ago_s: float
    link: str = ""


def team_lines() -> tuple[list[TeamLine], int]:
    """Those that had most computed in the last day, and how many more there are that used something."""
    since = timezone.now() - USE_SINCE
    # A look-up in the index of each team: there is none over the hours of all.
    used = UsageTotal.objects.filter(tenant=OuterRef("pk"), at__gte=since).order_by().values("tenant")
    computed = used.annotate(n=Sum(F("prompt_tokens") - F("cached_tokens") + F("output_tokens"))).values("n")
    unfinished = dict(
        Generation.objects.filter(state__in=UNFINISHED)
        .values_list("tenant")
        .annotate(n=Count("pk"))
        .values_list("tenant", "n")
    )
    rows = list(Tenant.objects.annotate(computed=Coalesce(Subquery(computed), 0)).values_list("pk", "computed"))
    active = sorted(
        ((pk, n) for pk, n in rows if n > 0 or pk in unfinished), key=lambda row: (-row[1], -unfinished.get(row[0], 0))
    )
    all_computed = sum(n for _, n in active) or 1
    shown = [pk for pk, _ in active[:MOST_TEAMS]]
    sums = {
        row["tenant"]: row
        for row in UsageTotal.objects.filter(tenant__in=shown, at__gte=since)
        .values("tenant")
        .annotate(
            asked=Sum("requests"), prompt=Sum("prompt_tokens"), cached=Sum("cached_tokens"), output=Sum("output_tokens")
        )
    }
    teams = {tenant.pk: tenant for tenant in Tenant.objects.filter(pk__in=shown)}
    weights = weights_of(shown)
    all_weights = sum(weights.values()) or 1.0
    lines = []
    for pk, n in active[:MOST_TEAMS]:
        said = sums.get(pk, {})
        lines.append(
            TeamLine(
                name=teams[pk].name,
                slug=teams[pk].slug,
                link=reverse("admin:tenants_tenant_change", args=[pk]),
                weight=weights[pk],
                due=weights[pk] / all_weights,
                share=n / all_computed,
                requests=said.get("asked", 0),
                prompt=said.get("prompt", 0),
                cached=said.get("cached", 0),
                output=said.get("output", 0),
                computed=n,
                unfinished=unfinished.get(pk, 0),
            )
        )
    return lines, len(active) - len(lines)


def slow_lines() -> list[SlowLine]:
    """The slowest requests that were asked for in the last hour and have ended."""
    recent = UsageRow.objects.filter(pk__gte=first_id(timezone.now() - SLOW_SINCE))
    rows = list(recent.order_by("-total_us")[:MOST_SLOW])
    names = team_names([row.tenant_id for row in rows])
    kept = set(Generation.objects.filter(pk__in=[row.pk for row in rows]).values_list("pk", flat=True))
    lines = []
    for row in rows:
        known = row.queue_us + row.prefill_us + row.decode_us
        lines.append(
            SlowLine(
                id=str(row.pk),
                link=reverse("admin:chat_generation_change", args=[row.pk]) if row.pk in kept else "",
                team=names.get(row.tenant_id, ("A team that is gone", ""))[0],
                model=row.model,
                kind=row.kind,
                state=row.state,
                at=row.at.isoformat(),
                queue_s=row.queue_us / 1e6,
                prefill_s=row.prefill_us / 1e6,
                decode_s=row.decode_us / 1e6,
                rest_s=max(0, row.total_us - known) / 1e6,
                total_s=max(row.total_us, known) / 1e6,
                prompt=row.prompt_tokens,
                cached=row.cached_tokens,
                output=row.output_tokens,
            )
        )
    return lines


def fault_lines(*, redis_up: bool = True) -> list[FaultLine]:
    """What went wrong in the last day, the newest first, and what needs somebody."""
    found = [*_answers(), *_webhooks()]
    if not redis_up:
        return sorted(found, key=lambda line: line.ago_s)[:MOST_FAULTS]
    with contextlib.suppress(*AWAY):  # that it is down is said elsewhere
        found += [*_dead(), *_workers(), *_tasks(), *_aside()]
    return sorted(found, key=lambda line: line.ago_s)[:MOST_FAULTS]


def _answers() -> Iterable[FaultLine]:
    now = timezone.now()
    rows = (
        UsageRow.objects.filter(pk__gte=first_id(now - FAULTS_SINCE), state__in=FAULTY)
        .values("state", "error_code")
        .annotate(n=Count("pk"), last=Max("ended_at"))
    )
    page = reverse("admin:chat_generation_changelist")
    for row in rows:
        code = row["error_code"] or row["state"]
        query = {"state__exact": row["state"]}
        if row["error_code"]:
            query["error_code__exact"] = row["error_code"]
        link = f"{page}?{urlencode(query)}"
        yield FaultLine("answers", code, MEANINGS.get(code, ""), row["n"], _ago(now, row["last"]), link)


def _dead() -> Iterable[FaultLine]:
    """However long ago: each of them would crash an engine again, so somebody has to look."""
    count = dead.count()
    if count:
        says = "Requests that crashed the engine, given up: see what they have in common, then take them off the list"
        yield FaultLine("dead", "poison", says, count, dead.newest()[0].ago_s, reverse("dead-letters"))


def _workers() -> Iterable[FaultLine]:
    gone = [one for one in fleet.vanished() if one.ago_s <= FAULTS_SINCE.total_seconds()]
    for one in gone:
        says = f"A worker of {one.model} went without a word" + (f", on {one.host}" if one.host else "")
        yield FaultLine("workers", one.worker, says, 1, one.ago_s)


def _tasks() -> Iterable[FaultLine]:
    grouped: dict[tuple[str, str], list[float]] = {}
    for failure in server.background().failures:
        if failure.ago_s <= FAULTS_SINCE.total_seconds():
            grouped.setdefault((failure.task, failure.error), []).append(failure.ago_s)
    for (task, error), ages in grouped.items():
        says = f"Failed with {error}: see celery.log"
        yield FaultLine("tasks", task.removeprefix("chatapp."), says, len(ages), min(ages))


def _aside() -> Iterable[FaultLine]:
    found = fleet.unrecorded()
    reasons: dict[str, list[float]] = {}
    for entry in found.newest_aside:
        reasons.setdefault(entry.get("reason", ""), []).append(float(entry["ago_s"]))
    for reason, ages in reasons.items():
        yield FaultLine("records", reason, "Could not be recorded, and was set aside", len(ages), min(ages))


def _webhooks() -> Iterable[FaultLine]:
    now = timezone.now()
    # An event is tried for a day before it is given up.
    given_up = WebhookDelivery.objects.filter(
        pk__gte=first_id(now - 2 * FAULTS_SINCE), state=DeliveryState.FAILED, attempted_at__gte=now - FAULTS_SINCE
    )
    said: dict[str, Any] = given_up.aggregate(n=Count("pk"), last=Max("attempted_at"))
    if said["n"]:
        says = "Events that their receivers did not take in a day; their teams see them"
        yield FaultLine("webhooks", "given up", says, said["n"], _ago(now, said["last"]))


def _ago(now: Any, then: Any) -> float:
    return max(0.0, (now - then).total_seconds())
