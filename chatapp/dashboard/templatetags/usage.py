"""Figures of usage in words: times with their unit, shares in per cent."""

from __future__ import annotations

from django import template

from chatapp.usage.selectors import Figures

register = template.Library()
NONE = "–"  # noqa: RUF001  an en dash: nothing was measured


@register.filter
def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


@register.filter
def first_token(figures: Figures, share: float) -> str:
    return duration(figures.first_token_s(share))


@register.filter
def between_tokens(figures: Figures, share: float) -> str:
    return duration(figures.between_tokens_s(share))


def duration(seconds: float | None) -> str:
    """To two digits: percentiles are no more exact than that."""
    if seconds is None:
        return NONE
    if seconds < 0.1:
        return f"{seconds * 1000:.2g} ms"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
