"""The project's pages in Markdown: their blocks of code, links and anchors, as those who read them get them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "clients").glob("*/README.md"),
        ROOT / "locale/README.md",
    ]
)


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str


def tokens(page: Path) -> Iterator[Token]:
    for token in MarkdownIt("commonmark", {"html": True}).enable("table").parse(page.read_text(encoding="utf-8")):
        yield token
        yield from token.children or ()


def blocks(page: Path) -> list[Block]:
    return [
        Block(page.name, (token.map or [0])[0] + 1, token.info.strip(), token.content)
        for token in tokens(page)
        if token.type == "fence"
    ]


def links(page: Path) -> list[str]:
    """Addresses of links and pictures."""
    return [
        str(token.attrs.get("href") or token.attrs.get("src"))
        for token in tokens(page)
        if token.type in ("link_open", "image")
    ]


def anchors(page: Path) -> set[str]:
    """As code hosts make them of headings."""
    found, heading = set(), False
    for token in tokens(page):
        if token.type == "heading_open":
            heading = True
        elif heading and token.type == "inline":
            words = "".join(child.content for child in token.children or () if child.type in ("text", "code_inline"))
            found.add(re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-"))
            heading = False
    return found
