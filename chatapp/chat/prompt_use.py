"""What the generations say of a prompt's versions: how often they answered, and what prefill their shared copy saved.

Saved is what was cached of the prompts: the published part once it is in memory, and a conversation's own last turns.
Seconds are an estimate: tokens by what a token of prefill took lately in the same team's answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Count, Max, QuerySet, Sum
from django.utils import timezone

from chatapp.chat.models import Generation
from chatapp.tenants.models import Tenant

# Enough to fit a line through, few enough to read on every page.
SAMPLE = 500
# Below this spread of prompt lengths a slope says nothing, and the mean is taken.
LEAST_SPREAD = 16.0
RECENT = timedelta(days=7)


@dataclass(frozen=True)
class Use:
    """Of one version. `saved_s` is None while nothing has been measured."""

    answers: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    saved_s: float | None = None

    @property
    def hit_rate(self) -> float | None:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


def use_of(tenant: Tenant, versions: Collection[UUID]) -> dict[UUID, Use]:
    """One query for all of them, and one for the time that prefill takes. Versions without an answer are left out."""
    return _use(tenant, Generation.objects.filter(tenant=tenant, prompt_version__in=versions))


def use_between(tenant: Tenant, start: datetime, end: datetime) -> dict[UUID, Use]:
    """Of all versions that answered what was asked for from `start` to before `end`."""
    found = Generation.objects.filter(tenant=tenant, created_at__gte=start, created_at__lt=end)
    return _use(tenant, found.filter(prompt_version__isnull=False))


def _use(tenant: Tenant, found: QuerySet[Generation]) -> dict[UUID, Use]:
    counted = (
        found.filter(prompt_tokens__gt=0)
        .order_by()
        .values_list("prompt_version")
        .annotate(Count("pk"), Sum("prompt_tokens"), Sum("cached_tokens"))
    )
    rows = list(counted)
    a_token = seconds_a_token(_measured(tenant)) if rows else None
    return {
        version: Use(answers, prompt, cached, None if a_token is None else cached * a_token)
        for version, answers, prompt, cached in rows
    }


def seconds_a_token(measured: Iterable[tuple[int, float]]) -> float | None:
    """The time of one more token to prefill, from (uncached tokens, seconds): the slope of the line of least squares,
    so that what a first token costs in any case does not count; the mean where lengths hardly differ. None without."""
    points = [(tokens, seconds) for tokens, seconds in measured if tokens > 0 and seconds > 0]
    if not points:
        return None
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    if slope > 0 and (spread / len(points)) ** 0.5 >= LEAST_SPREAD:
        return slope
    return mean_y / mean_x


def _measured(tenant: Tenant) -> list[tuple[int, float]]:
    rows = Generation.objects.filter(tenant=tenant, prompt_tokens__gt=0).order_by("-created_at")
    found = rows.values_list("prompt_tokens", "cached_tokens", "timing")[:SAMPLE]
    return [(prompt - cached, float((timing or {}).get("prefill_s") or 0.0)) for prompt, cached, timing in found]


def most_used(limit: int) -> list[UUID]:
    """Versions by their answers of the last days, most first; for the greeting of a new engine (every tenant's)."""
    since = timezone.now() - RECENT
    counted = Generation.objects.filter(created_at__gt=since, prompt_version__isnull=False).order_by()
    rows = counted.values_list("prompt_version").annotate(answers=Count("pk"), last=Max("created_at"))
    return [version for version, _, _ in rows.order_by("-answers", "-last")[:limit]]
