"""Figures over time as static/js/usage-charts.js draws them, and as a table for who has no scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from django.utils.formats import date_format

from chatapp.usage.periods import Period, begin_of
from chatapp.usage.selectors import Figures, GroupBy, slots_of

# Percentiles are no more exact than that.
DIGITS = 6


@dataclass(frozen=True)
class Chart:
    """`drawn` goes into the page as JSON; `rows` are (label, figures) of the same slots. `step`: "day" or "hour"."""

    step: str
    drawn: dict[str, Any]
    rows: Sequence[tuple[str, Figures]]


def chart(groups: Sequence[Figures], period: Period) -> Chart | None:
    """Of what selectors.grouped gives by day or hour. None where there is nothing to show."""
    if not any(group.requests for group in groups):
        return None
    by_hour = slots_of(period) is GroupBy.HOUR

    def begin(group: Figures) -> int:
        start = datetime.fromisoformat(group.id) if by_hour else begin_of(date.fromisoformat(group.id), period.zone)
        return int(start.timestamp())

    drawn = {
        "zone": period.zone.key,
        "step": 3600 if by_hour else 86_400,
        "times": [begin(group) for group in groups],
        # What a span of the chart leads to; hours lead nowhere.
        "days": [] if by_hour else [group.id for group in groups],
        **{name: [getattr(group, name) for group in groups] for name in ("finished", "cancelled", "refused", "failed")},
        "uncached": [group.prompt_tokens - group.cached_tokens for group in groups],
        "cached": [group.cached_tokens for group in groups],
        "output": [group.output_tokens for group in groups],
        **{
            f"{what}_p{round(100 * share)}": [_rounded(getattr(group, f"{what}_s")(share)) for group in groups]
            for what in ("first_token", "between_tokens")
            for share in (0.5, 0.95)
        },
    }
    label = hour_label if by_hour else day_label
    return Chart("hour" if by_hour else "day", drawn, [(label(group.id), group) for group in groups])


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, DIGITS)


def day_label(text: str) -> str:
    day = date.fromisoformat(text)
    return f"{date_format(day, 'D')} {date_format(day, 'SHORT_DATE_FORMAT')}"


def hour_label(text: str) -> str:
    return f"{datetime.fromisoformat(text):%H:%M}"
