"""The pages for members, admins and integrators under /docs/: the very files of docs/, rendered as the site's own.

Public, in English like all of the documentation. A link to a page that is not served becomes plain text. Where a
deployment leaves docs/ out, there are no such pages and nothing leads to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe
from markdown_it import MarkdownIt
from markdown_it.token import Token

# By address: how the page is called where there is little room. Those with a name are in the head of every page.
GUIDES = {"members": "Members", "admins": "Admins", "integrators": "Integrators", "usage": "", "moving": ""}
FOLDER: Path = settings.OCTAVO_DOCS
HERE = "http://127.0.0.1:8000"
"""The address in the files' examples, in whose place the site's own is shown."""

_markdown = MarkdownIt("commonmark", {"html": False}).enable("table")


@dataclass(frozen=True)
class Part:
    """What stands below one heading."""

    anchor: str
    title: str
    body: SafeString


@dataclass(frozen=True)
class Guide:
    title: str
    lead: SafeString
    parts: tuple[Part, ...]


@require_safe
def guide(request: HttpRequest, name: str) -> HttpResponse:
    if name not in served():
        raise Http404
    scheme = "https" if request.is_secure() else "http"
    path = FOLDER / f"{name}.md"
    found = _read(path, path.stat().st_mtime_ns, f"{scheme}://{request.get_host()}")
    return render(request, "docs/guide.html", {"here": name, "guide": found, "guides": links()})


def served() -> list[str]:
    return [name for name in GUIDES if (FOLDER / f"{name}.md").is_file()]


def links() -> list[tuple[str, str, str]]:
    """Name, title and address of those that the head of every page leads to."""
    return [(name, GUIDES[name], reverse("docs-guide", args=[name])) for name in served() if GUIDES[name]]


@lru_cache(maxsize=32)
def _read(path: Path, changed: int, address: str) -> Guide:
    tokens = _markdown.parse(path.read_text(encoding="utf-8").replace(HERE, address))
    for token in tokens:
        if token.children:
            token.children = list(_linked(token.children))
    (title, lead), *parts = ((_words(heading[1]), SafeString(_html(rest))) for heading, rest in _split(tokens))
    return Guide(title, lead, tuple(Part(anchor(words), words, body) for words, body in parts))


def _split(tokens: list[Token]) -> Iterable[tuple[list[Token], list[Token]]]:
    """Each heading of the first two levels, of which the page's own title is the first, with what follows it."""
    starts = [at for at, token in enumerate(tokens) if token.type == "heading_open" and token.tag in ("h1", "h2")]
    for start, stop in zip(starts, [*starts[1:], len(tokens)], strict=True):
        yield tokens[start : start + 3], tokens[start + 3 : stop]


def _html(tokens: list[Token]) -> str:
    text = str(_markdown.renderer.render(tokens, _markdown.options, {}))
    return text.replace("<table>", '<div class="table"><table>').replace("</table>", "</table></div>")


def _words(inline: Token) -> str:
    return "".join(child.content for child in inline.children or ())


def anchor(words: str) -> str:
    """As code hosts make them of headings, so that one link is right in both places."""
    return re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")


def _linked(children: list[Token]) -> Iterable[Token]:
    kept = True
    for child in children:
        if child.type == "link_open":
            address = _address(str(child.attrs["href"]))
            kept = bool(address)
            child.attrs["href"] = address
        if kept or child.type not in ("link_open", "link_close"):
            yield child
        kept = kept or child.type == "link_close"


def _address(link: str) -> str:
    """Where a link of a file leads from a page of ours, "" for nowhere."""
    path, sign, rest = link.partition("#")
    if not path or re.match(r"https?:", link):
        return link
    name = path.removesuffix(".md")
    return reverse("docs-guide", args=[name]) + sign + rest if name in served() else ""


def context(request: HttpRequest) -> dict[str, Any]:
    """For templates: {{ help.members }} and the like are addresses, or nothing where there is no such page here."""
    return {"help": SimpleLazyObject(lambda: {name: reverse("docs-guide", args=[name]) for name in served()})}
