"""What our templates need beyond Django's own tags: icons from the sprite, and the import map of our modules."""

from __future__ import annotations

import json

from django import forms, template
from django.forms import BoundField
from django.templatetags.static import static
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from chatapp.chat import modules
from chatapp.tenants.pages import ONCE, once_token

register = template.Library()


@register.simple_tag
def icon(name: str) -> SafeString:
    return format_html(
        '<svg class="icon" aria-hidden="true"><use href="{}#{}"/></svg>', static("vendor/icons.svg"), name
    )


@register.simple_tag
def once() -> SafeString:
    """A hidden field by which a form that is sent twice is known (chatapp.tenants.pages.is_repeat)."""
    return format_html('<input type="hidden" name="{}" value="{}">', ONCE, once_token())


@register.filter
def widget_kind(field: BoundField) -> str:
    """How templates/parts/field.html lays a field out: check, choices, or line."""
    widget = field.field.widget
    if isinstance(widget, forms.CheckboxSelectMultiple | forms.RadioSelect):
        return "choices"
    return "check" if isinstance(widget, forms.CheckboxInput) else "line"


@register.simple_tag
def import_map() -> SafeString:
    """JSON for a script of type importmap."""
    text = json.dumps({"imports": modules.addresses()}, separators=(",", ":"))
    return mark_safe(text.replace("<", "\\u003c"))  # noqa: S308  JSON of our own file names


@register.simple_tag
def preload_modules(module: str) -> SafeString:
    """Links that fetch at once what a module of ours will import."""
    known = modules.addresses()
    return format_html_join(
        "", '<link rel="modulepreload" href="{}">', ((known[n],) for n in modules.needed_by(module))
    )
