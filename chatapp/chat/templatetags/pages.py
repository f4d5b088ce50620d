"""What our templates need beyond Django's own tags: icons from the sprite, and the import map of our modules."""

from __future__ import annotations

import json
from pathlib import Path

from django import forms, template
from django.forms import BoundField
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from chatapp.tenants.pages import ONCE, once_token

register = template.Library()

LIBRARIES = {
    "markdown-it": "vendor/markdown-it.mjs",
    "dompurify": "vendor/purify.mjs",
    "highlight.js": "vendor/highlight.mjs",
}
MODULES = sorted(path.name for path in (Path(__file__).parents[3] / "static" / "js").glob("*.js"))


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


def _imports() -> dict[str, str]:
    own = {f"#octavo/{name}": static(f"js/{name}") for name in MODULES}
    return {**own, **{name: static(path) for name, path in LIBRARIES.items()}}


@register.simple_tag
def import_map() -> SafeString:
    """JSON for a script of type importmap. Names stand for hashed files, so that every one may be cached for ever."""
    text = json.dumps({"imports": _imports()}, separators=(",", ":"))
    return mark_safe(text.replace("<", "\\u003c"))  # noqa: S308  JSON of our own file names
