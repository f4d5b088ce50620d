"""What our templates need beyond Django's own tags: icons from the sprite, and the import map of our modules."""

from __future__ import annotations

import json
from pathlib import Path

from django import template
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

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


def _imports() -> dict[str, str]:
    own = {f"#octavo/{name}": static(f"js/{name}") for name in MODULES}
    return {**own, **{name: static(path) for name, path in LIBRARIES.items()}}


@register.simple_tag
def import_map() -> SafeString:
    """JSON for a script of type importmap. Names stand for hashed files, so that every one may be cached for ever."""
    text = json.dumps({"imports": _imports()}, separators=(",", ":"))
    return mark_safe(text.replace("<", "\\u003c"))  # noqa: S308  JSON of our own file names
