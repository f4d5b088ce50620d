"""Sizes and shares as the planner's command writes them."""

from __future__ import annotations

from django import template

from engine import kv_plan

register = template.Library()
register.filter("size", kv_plan.show_bytes)


@register.filter
def share(part: float) -> str:
    return f"{100 * part:.1f} %"
