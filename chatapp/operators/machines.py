"""The engines as the operators' dashboard shows them: models, workers and queues, each with what it means in words.

Redis only, but for the names of teams. Raises redis.exceptions.RedisError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.conf import settings

from chatapp.ids import parse_id
from chatapp.streaming import fleet
from chatapp.streaming.fleet import Backlog, Seen
from chatapp.tenants.models import Tenant

GOOD, WARN, BAD = "good", "warn", "bad"
# A head that has waited so long is worth a look: the scheduler gives every team its turn within seconds.
LONG_WAIT_S = 30.0
MOST_SHOWN = 20


@dataclass(frozen=True)
class WorkerLine:
    """`state`: good, warn or bad, and why in `says`. Memory in blocks; None where the worker has not said."""

    id: str
    model: str
    state: str
    says: str
    host: str
    device: str
    dtype: str
    version: str
    beat_s: float
    started_ms: int
    steps: int
    step_ms: float
    preemptions: int
    threads: int
    running: int
    waiting: int
    held: int
    blocks: int
    used: int | None
    cached: int | None
    tokens_a_block: int
    can: str
    """What its button does: drain, take, or nothing."""


@dataclass(frozen=True)
class ModelLine:
    name: str
    state: str
    says: str
    workers: int
    taking: int
    running: int
    queued: int
    teams: int
    oldest_s: float


@dataclass(frozen=True)
class QueueLine:
    model: str
    team: str
    slug: str
    tenant: str
    queued: int
    oldest_s: float
    bytes: int


@dataclass(frozen=True)
class Machines:
    models: list[ModelLine]
    workers: list[WorkerLine]
    queues: list[QueueLine]
    more_queues: int


def look() -> Machines:
    seen = fleet.workers()
    served = list(settings.OCTAVO_MODEL_NAMES)
    # What a worker serves and the settings do not name is still work that is done, or waits.
    served += sorted({one.details.model for one in seen} - set(served))
    backlogs = fleet.backlogs(served)
    queues = sorted((queue for backlog in backlogs for queue in backlog.queues), key=lambda queue: -queue.oldest_s)
    names = _names([queue.tenant for queue in queues[:MOST_SHOWN]])
    return Machines(
        models=[_model(backlog, [one for one in seen if one.details.model == backlog.model]) for backlog in backlogs],
        workers=[_worker(one) for one in seen],
        queues=[
            QueueLine(
                model=queue.model,
                team=names.get(queue.tenant, ("A team that is gone", ""))[0],
                slug=names.get(queue.tenant, ("", ""))[1],
                tenant=queue.tenant,
                queued=queue.waiting,
                oldest_s=queue.oldest_s,
                bytes=queue.bytes,
            )
            for queue in queues[:MOST_SHOWN]
        ],
        more_queues=sum(backlog.teams for backlog in backlogs) - len(queues[:MOST_SHOWN]),
    )


def _names(tenants: Sequence[str]) -> dict[str, tuple[str, str]]:
    rows = Tenant.objects.filter(pk__in=[parse_id(tenant) for tenant in tenants]).values_list("pk", "name", "slug")
    return {str(pk): (name, slug) for pk, name, slug in rows}


def team_names(tenants: Sequence[UUID]) -> dict[UUID, tuple[str, str]]:
    """Name and slug of each of these teams that is still there."""
    rows = Tenant.objects.filter(pk__in=tenants).values_list("pk", "name", "slug")
    return {pk: (name, slug) for pk, name, slug in rows}


def _worker(one: Seen) -> WorkerLine:
    details, figures = one.details, one.figures
    state, says = _condition(one)
    return WorkerLine(
        id=details.id,
        model=details.model,
        state=state,
        says=says,
        host=details.host,
        device=details.device,
        dtype=details.dtype,
        version=details.version,
        beat_s=round(one.beat_s, 1),
        started_ms=details.started_ms,
        steps=details.steps,
        step_ms=round(details.step_ms, 2),
        preemptions=details.preemptions,
        threads=details.threads,
        running=details.running,
        waiting=details.waiting,
        held=one.held,
        blocks=details.num_blocks,
        used=figures.used if figures is not None else None,
        cached=figures.cached if figures is not None else None,
        tokens_a_block=details.block_size,
        can="" if not one.alive or details.stopping else "take" if one.drains else "drain",
    )


def _condition(one: Seen) -> tuple[str, str]:
    details = one.details
    if one.leaves:
        return WARN, "Has ended; what it held is taken over by the others"
    if not one.alive:
        held = f", and it held {one.held}" if one.held else ""
        return BAD, f"No heartbeat for {_time(one.beat_s)}{held}"
    if not details.healthy:
        return BAD, "A step of its engine failed; its process ends"
    if one.stalled:
        return BAD, f"Holds {one.held} and has made no step for {_time(one.step_s)}"
    if details.stopping:
        return WARN, "Ends once what runs is done"
    if one.drains:
        left = one.held or details.running
        return WARN, f"Drains: {left} to finish, takes nothing new" if left else "Drained: idle, takes nothing new"
    return GOOD, "Takes requests" if details.running or one.held else "Takes requests, idle"


def _model(backlog: Backlog, seen: Sequence[Seen]) -> ModelLine:
    name = backlog.model
    alive = [one for one in seen if one.alive]
    taking = sum(one.takes for one in alive)
    queued = sum(queue.waiting for queue in backlog.queues)
    oldest = max((queue.oldest_s for queue in backlog.queues), default=0.0)
    if not alive:
        state, says = BAD, "No worker serves it: what is asked waits"
    elif not taking:
        drained = any(one.drains for one in alive)
        state, says = BAD, f"No worker takes requests{', as all drain' if drained else ''}: what is asked waits"
    elif oldest > LONG_WAIT_S:
        state, says = WARN, f"Somebody has waited {_time(oldest)} for it"
    elif name not in settings.OCTAVO_MODEL_NAMES:
        state, says = WARN, "Served, but not named in OCTAVO_MODELS: nobody can choose it"
    else:
        state, says = GOOD, "Served"
    return ModelLine(
        name=name,
        state=state,
        says=says,
        workers=len(alive),
        taking=taking,
        running=sum(one.details.running for one in alive),
        queued=queued,
        teams=backlog.teams,
        oldest_s=round(oldest, 1),
    )


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"
