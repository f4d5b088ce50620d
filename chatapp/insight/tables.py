"""What a team's dashboard shows of a period, as tables: one kind of row each, for the page, the API and exports.

A reader gets the tables whose permission the Access has. Every row is metadata: names, ids, counts and times, and of a
chat no text but the titles of the reader's own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.utils.translation import gettext_noop as _n

from chatapp.chat.cost import Cost, costliest
from chatapp.chat.prompt_use import use_between
from chatapp.errors import BadInput
from chatapp.limits.selectors import use_of_team
from chatapp.prompts.models import PromptVersion
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission
from chatapp.usage import selectors
from chatapp.usage.periods import Period
from chatapp.usage.selectors import Failure, Figures, GroupBy, slots_of

# A page shows the first few, an export all: of conversations so many at most.
MOST = 10_000


class Table(StrEnum):
    TIMES = "times"
    ASSISTANTS = "assistants"
    MEMBERS = "members"
    KEYS = "keys"
    MODELS = "models"
    ERRORS = "errors"
    CONVERSATIONS = "conversations"
    VERSIONS = "versions"
    LIMITS = "limits"


TITLES: dict[Table, str] = {
    Table.TIMES: _n("Days or hours"),
    Table.ASSISTANTS: _n("Assistants"),
    Table.MEMBERS: _n("Members"),
    Table.KEYS: _n("API keys"),
    Table.MODELS: _n("Models"),
    Table.ERRORS: _n("What failed or was refused"),
    Table.CONVERSATIONS: _n("Conversations by tokens"),
    Table.VERSIONS: _n("Prompt versions"),
    Table.LIMITS: _n("Limits, as they stand now"),
}


@dataclass(frozen=True)
class Used:
    """Sums of a slot of time or of a group. Times are seconds, at most 4.5 % off."""

    id: str
    name: str
    requests: int
    finished: int
    cancelled: int
    refused: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    tokens: int
    first_token_p50_s: float | None
    first_token_p95_s: float | None
    between_tokens_p50_s: float | None
    between_tokens_p95_s: float | None


@dataclass(frozen=True)
class Version:
    """A published version that answered. `saved_s`: prefill that its cached tokens saved, None while unmeasured;
    `in_force`: it is the one that new answers get."""

    version_id: uuid.UUID
    assistant_id: uuid.UUID
    assistant: str
    number: int | None
    in_force: bool
    answers: int
    prompt_tokens: int
    cached_tokens: int
    hit_rate: float | None
    saved_s: float | None


@dataclass(frozen=True)
class Limit:
    """`limit` None: there is none. `used` None: it is a bound, and nothing is used up of it."""

    name: str
    title: str
    unit: str
    limit: float | None
    used: int | None
    reserved: int
    percent: int | None
    resets_at: datetime | None


def used_of(figures: Figures) -> Used:
    plain = {each.name: getattr(figures, each.name) for each in fields(Used) if hasattr(figures, each.name)}
    return Used(
        **plain,
        first_token_p50_s=figures.first_token_s(0.5),
        first_token_p95_s=figures.first_token_s(0.95),
        between_tokens_p50_s=figures.between_tokens_s(0.5),
        between_tokens_p95_s=figures.between_tokens_s(0.95),
    )


def _groups(by: GroupBy) -> Callable[[Access, Period, int], list[Used]]:
    def read(access: Access, period: Period, most: int) -> list[Used]:
        return [used_of(group) for group in selectors.grouped(access.tenant.pk, period, by)[:most]]

    return read


def _times(access: Access, period: Period, most: int) -> list[Used]:
    """All of them: a period has a bounded number of days."""
    return [used_of(slot) for slot in selectors.grouped(access.tenant.pk, period, slots_of(period))]


def _errors(access: Access, period: Period, most: int) -> list[Failure]:
    return selectors.failures(access.tenant.pk, period)[:most]


def _conversations(access: Access, period: Period, most: int) -> list[Cost]:
    return costliest(access, period.start, period.end, most)


def _versions(access: Access, period: Period, most: int) -> list[Version]:
    use = use_between(access.tenant, period.start, period.end)
    found = PromptVersion.objects.filter(prompt__tenant=access.tenant, pk__in=use).select_related("prompt")
    rows = [
        Version(
            version_id=version.pk,
            assistant_id=version.prompt.pk,
            assistant=version.prompt.name,
            number=version.number,
            in_force=version.prompt.published_id == version.pk,
            answers=use[version.pk].answers,
            prompt_tokens=use[version.pk].prompt_tokens,
            cached_tokens=use[version.pk].cached_tokens,
            hit_rate=use[version.pk].hit_rate,
            saved_s=use[version.pk].saved_s,
        )
        for version in found
    ]
    return sorted(rows, key=lambda row: (-row.answers, row.assistant, -(row.number or 0)))[:most]


def _limits(access: Access, period: Period, most: int) -> list[Limit]:
    names = [each.name for each in fields(Limit) if each.name != "limit"]
    return [
        Limit(limit=_number(use.limit), **{name: getattr(use, name) for name in names})
        for use in use_of_team(access.tenant)[:most]
    ]


def _number(value: Any) -> float | None:
    """Shares are decimals in the database, which JSON has none of."""
    return value if value is None or isinstance(value, int) else float(value)


@dataclass(frozen=True)
class _Source:
    needs: Permission
    row: type[Any]
    read: Callable[[Access, Period, int], Sequence[Any]]


SOURCES: dict[Table, _Source] = {
    Table.TIMES: _Source(Permission.READ_DASHBOARD, Used, _times),
    Table.ASSISTANTS: _Source(Permission.READ_USAGE, Used, _groups(GroupBy.ASSISTANT)),
    Table.MEMBERS: _Source(Permission.READ_USAGE, Used, _groups(GroupBy.MEMBER)),
    Table.KEYS: _Source(Permission.READ_USAGE, Used, _groups(GroupBy.KEY)),
    Table.MODELS: _Source(Permission.READ_USAGE, Used, _groups(GroupBy.MODEL)),
    Table.ERRORS: _Source(Permission.READ_DASHBOARD, Failure, _errors),
    Table.CONVERSATIONS: _Source(Permission.READ_USAGE, Cost, _conversations),
    Table.VERSIONS: _Source(Permission.READ_PROMPTS, Version, _versions),
    Table.LIMITS: _Source(Permission.READ_LIMITS, Limit, _limits),
}


def readable(access: Access) -> list[Table]:
    return [table for table, source in SOURCES.items() if access.may(source.needs)]


def read(access: Access, table: Table, period: Period, most: int = MOST) -> Sequence[Any]:
    """Rows of the table's kind, the largest first; times in their order. Raises Forbidden."""
    access.require(Permission.READ_DASHBOARD)
    access.require(SOURCES[table].needs)
    return SOURCES[table].read(access, period, most)


def columns(table: Table) -> list[str]:
    return [each.name for each in fields(SOURCES[table].row)]


def table_of(text: str | None) -> Table:
    try:
        return Table(text or Table.TIMES)
    except ValueError:
        raise BadInput(f"what must be one of {', '.join(Table)}.", param="what") from None
