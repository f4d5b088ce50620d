"""What can be read of limits: those that hold for someone, how a month stands, and who has lower ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from django.db.models import Count, F, FilteredRelation, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.limits import rates
from chatapp.limits.models import ALL, LOWER, TEAM, LowerLimits, Meter, Plan, Reservation, TenantLimits
from chatapp.limits.rates import Rate, Standing
from chatapp.limits.values import KINDS, STANDARD, Limits, Values, least
from chatapp.tenants.access import Access
from chatapp.tenants.models import Tenant

WARN_AT = (80, 100)
# What apps above this one count of a team, by the limit that it stands against: they enter themselves.
KEPT_MB: dict[str, Callable[[Tenant], int]] = {}


# How long a process may go on by limits that another one has changed; its own changes hold at once.
REMEMBERED_S = 2.0
MOST_REMEMBERED = 10_000
_remembered: dict[tuple[Any, str], tuple[float, Limits]] = {}


def forget(**_: Any) -> None:
    """Limits have changed: look again."""
    _remembered.clear()


def limits_of(access: Access) -> Limits:
    """What holds for the one who asks: one query, or none within REMEMBERED_S of it."""
    return _known(access.tenant, access.principal if access.user or access.key else TEAM, lambda: _look_up(access))


def limits_of_team(tenant: Tenant) -> Limits:
    return _known(tenant, TEAM, lambda: _resolved(tenant, None))


def _known(tenant: Tenant, subject: str, look_up: Callable[[], Limits]) -> Limits:
    key, now = (tenant.pk, subject), time.monotonic()
    found = _remembered.get(key)
    if found is not None and now - found[0] < REMEMBERED_S:
        return found[1]
    if len(_remembered) >= MOST_REMEMBERED:
        _remembered.clear()
    limits = look_up()
    _remembered[key] = now, limits
    return limits


def _look_up(access: Access) -> Limits:
    if access.user is not None:
        mine = Q(lower_limits__key=None) & (Q(lower_limits__user=access.user.pk) | Q(lower_limits__user=None))
        return _resolved(access.tenant, mine)
    return _resolved(access.tenant, Q(lower_limits__key=access.key.pk) if access.key is not None else None)


def _resolved(tenant: Tenant, mine: Q | None) -> Limits:
    columns = [f"limits__plan__{name}" for name in ALL] + [f"limits__{name}" for name in ALL]
    rows = Tenant.objects.filter(pk=tenant.pk)
    if mine is not None:
        rows = rows.annotate(lower=FilteredRelation("lower_limits", condition=mine))
        columns += [f"lower__{name}" for name in LOWER] + ["lower__user"]
    found = list(rows.values("limits__plan", *columns))
    if found and found[0]["limits__plan"] is None:
        ensure(tenant)
        found = list(rows.values("limits__plan", *columns))
    if not found:
        return Limits(Values())  # deleted meanwhile: there is nothing to spend either
    first = found[0]
    team = Values(
        **{
            name: first[f"limits__{name}"] if first[f"limits__{name}"] is not None else first[f"limits__plan__{name}"]
            for name in ALL
        }
    )
    if mine is None:
        return Limits(team)
    # A person's own row goes before the one for everybody, column by column.
    found.sort(key=lambda row: row["lower__user"] is None)
    own: dict[str, Any] = {}
    for name in LOWER:
        said = next((row[f"lower__{name}"] for row in found if row[f"lower__{name}"] is not None), None)
        own[name] = least(said, getattr(team, name)) if said is not None else None
    return Limits(team, Values(**own))


def weights(tenants: Iterable[Any]) -> dict[Any, float]:
    """The weights of these teams, by their ids, in one query; it writes nothing for those that have no row yet."""
    rows = Tenant.objects.filter(pk__in=list(tenants)).values_list("pk", "limits__weight", "limits__plan__weight")
    return {pk: own if own is not None else planned or 1.0 for pk, own, planned in rows}


def ensure(tenant: Tenant) -> TenantLimits:
    """The tenant's row; a tenant that has none yet gets the default plan."""
    found = TenantLimits.objects.select_related("plan").filter(tenant=tenant).first()
    if found is None:
        plan = Plan.objects.order_by("-is_default", "created_at").first()
        if plan is None:
            plan, _ = Plan.objects.get_or_create(is_default=True, defaults={"name": "Standard", **STANDARD})
        found, _ = TenantLimits.objects.get_or_create(tenant=tenant, defaults={"plan": plan})
    return found


# --- rates --------------------------------------------------------------------------------------------------------


def rates_of(access: Access, limits: Limits, what: str) -> list[Rate]:
    """The rates that a request of this one counts for, the narrowest first."""
    column = f"{what}_per_minute"
    tenant = str(access.tenant.pk)
    pairs = ((access.principal, getattr(limits.own, column)), (TEAM, getattr(limits.team, column)))
    return [Rate(what, tenant, subject, amount) for subject, amount in pairs if amount is not None]


def standings(access: Access, limits: Limits | None = None) -> tuple[Standing, ...]:
    """How the rates of the one who asks stand now."""
    limits = limits or limits_of(access)
    return rates.standings(rates_of(access, limits, "requests") + rates_of(access, limits, "tokens"))


# --- months -------------------------------------------------------------------------------------------------------


def month_of(moment: datetime) -> date:
    """Months are UTC's, for everyone: a budget must not begin anew by changing a time zone."""
    return moment.astimezone(UTC).date().replace(day=1)


def next_month(month: date) -> date:
    return date(month.year + month.month // 12, month.month % 12 + 1, 1)


@dataclass(frozen=True)
class Use:
    """One limit of a team as it stands now. `resets_at` None: it does not reset, it frees itself."""

    name: str
    title: str
    unit: str
    help: str
    limit: Any
    used: int | None
    reserved: int
    percent: int | None
    resets_at: datetime | None
    by_plan: Any
    override: Any


def use_of_team(tenant: Tenant) -> list[Use]:
    """All limits of a team: what holds, what is used of it, and whether an operator set it for this team."""
    row = ensure(tenant)
    team = limits_of_team(tenant).team
    now = timezone.now()
    month = month_of(now)
    meter = Meter.objects.filter(tenant=tenant, month=month, subject=TEAM).first() or Meter(month=month)
    under_way = Reservation.objects.filter(tenant=tenant).count()
    counted: dict[str, tuple[int, int, datetime | None]] = {
        "tokens_per_month": (meter.used, meter.reserved, _midnight(next_month(month))),
        "concurrent_answers": (under_way, 0, None),
    }
    counted |= {name: (count(tenant), 0, None) for name, count in KEPT_MB.items()}
    key = str(tenant.pk)
    wanted = [
        Rate(what, key, TEAM, amount)
        for what in ("requests", "tokens")
        if (amount := getattr(team, f"{what}_per_minute")) is not None
    ]
    for standing in rates.standings(wanted):
        resets = datetime.fromtimestamp(now.timestamp() + standing.reset_s, UTC) if standing.reset_s else None
        counted[f"{standing.what}_per_minute"] = (standing.limit - standing.remaining, 0, resets)
    found = []
    for kind in KINDS:
        limit = getattr(team, kind.name)
        used, reserved, resets_at = counted.get(kind.name, (None, 0, None))
        percent = None
        if used is not None and limit:
            percent = min(100, int(100 * used / limit))
        found.append(
            Use(
                kind.name, _(kind.title), _(kind.unit) if kind.unit else "", _(kind.help),
                limit, used, reserved, percent, resets_at,
                getattr(row.plan, kind.name), getattr(row, kind.name),
            )
        )  # fmt: skip
    return found


def used_by_subject(tenant: Tenant, month: date) -> dict[str, int]:
    """Tokens of a month by subject; "" is the team."""
    return dict(Meter.objects.filter(tenant=tenant, month=month).values_list("subject", "used"))


def warning(tenant: Tenant) -> tuple[int, int, int] | None:
    """(percent of the month's tokens, used, limit) once 80 % are used: for a banner."""
    limit = limits_of_team(tenant).team.tokens_per_month
    if not limit:
        return None
    meter = Meter.objects.filter(tenant=tenant, month=month_of(timezone.now()), subject=TEAM).first()
    if meter is None:
        return None
    # Where nothing fitted any more, people were told that all are used, though a few may be left.
    percent = 100 if meter.warned == 100 else min(100, int(100 * meter.used / limit))
    return (percent, meter.used, limit) if percent >= WARN_AT[0] else None


def default_lower(tenant: Tenant) -> LowerLimits | None:
    """What holds for every person who has nothing of their own."""
    return LowerLimits.objects.filter(tenant=tenant, user=None, key=None).first()


def lower_limits(tenant: Tenant) -> QuerySet[LowerLimits]:
    """Those of single people, then of keys; by name. Evaluate it in the tenant's scope."""
    rows = LowerLimits.objects.filter(tenant=tenant).exclude(user=None, key=None).select_related("user", "key")
    return rows.order_by(F("user__email").asc(nulls_last=True), "key__name", "pk")


def under_way(tenant: Tenant, subject: str) -> tuple[int, int]:
    """Generations that have not ended: of the tenant, of the subject."""
    counted = Reservation.objects.filter(tenant=tenant).aggregate(
        team=Count("pk"), own=Count("pk", filter=Q(subject=subject))
    )
    return counted["team"], counted["own"]


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
