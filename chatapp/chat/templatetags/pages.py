"""What our templates need beyond Django's own tags: icons from the sprite, and the import map of our modules."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime

from django import forms, template
from django.forms import BoundField
from django.templatetags.static import static
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from chatapp.chat import modules
from chatapp.languages import NAMES, SOURCE, inside, words_url
from chatapp.tenants.models import Tenant
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


@register.simple_tag
def words_script() -> SafeString:
    """The scripts' words in the page's language, run before the modules, which come later; English needs none."""
    language = get_language() or SOURCE
    if language == SOURCE:
        return mark_safe("")
    return format_html('<script defer src="{}"></script>', words_url(language))


@register.simple_tag
def languages() -> list[tuple[str, str]]:
    """The shipped languages, each under its own name."""
    return list(NAMES.items())


@register.simple_tag
def moment(value: datetime | None) -> SafeString:
    """A time as the pages' scripts make it relative, for the middle of a sentence; without scripts, to the minute."""
    if value is None:
        return mark_safe("")
    local = timezone.localtime(value)
    return format_html(
        '<time datetime="{}" data-relative>{}</time>', local.isoformat(timespec="seconds"), f"{local:%Y-%m-%d %H:%M}"
    )


@register.simple_tag
def enumeration(names: Iterable[object]) -> SafeString:
    """Names in bold: "A, B and C"."""
    bold = [format_html('<strong dir="auto">{}</strong>', name) for name in names]
    if len(bold) < 2:
        return bold[0] if bold else mark_safe("")
    # Translators: between the names of a list, as in "A, B and C"
    first = format_html_join(_(", "), "{}", ((name,) for name in bold[:-1]))
    # Translators: the last two of a list, as in "A, B and C"
    return format_html(_("{first} and {last}"), first=first, last=bold[-1])


@register.simple_tag
def teams(found: Iterable[Tenant]) -> SafeString:
    """Links to the administration of teams, for the middle of a sentence."""
    # Translators: between the names of a list, as in "A, B and C"
    links = ((reverse("tenant-admin", args=[team.slug]), team.name) for team in found)
    return format_html_join(_(", "), '<a class="link" dir="auto" href="{}">{}</a>', links)


@register.filter(name="inside")
def inside_sentence(text: str) -> str:
    """A title in the middle of a sentence."""
    return inside(str(text))
