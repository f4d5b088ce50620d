"""Catalogues of the pages' words: collect what the sources say, merge it into locale/, check it, compile it.

    python -m ops.messages            collect and merge (make messages); translations that stand are kept
    python -m ops.messages check      fail where a word is missing, untranslated, fuzzy, or breaks its placeholders
    python -m ops.messages compile    write the .mo files that Django reads (set-up does it)

Two catalogues a language: django.po for templates and Python, djangojs.po for scripts. Nothing in them changes unless
the words do: sorted, without line numbers and dates. Needs Babel alone, no gettext tools.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

from babel.messages import Catalog, Message
from babel.messages.extract import extract
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from django.utils.translation.template import templatize

ROOT = Path(__file__).resolve().parent.parent
LOCALE = ROOT / "locale"
LANGUAGES = ("de", "es", "zh_Hans")
DOMAINS = ("django", "djangojs")
COMPILED = LOCALE / ".compiled"

PYTHON_WORDS: dict[str, object] = {
    "_": None,
    "_l": None,  # gettext_lazy
    "_n": None,  # gettext_noop
    "gettext": None,
    "gettext_lazy": None,
    "gettext_noop": None,
    "ngettext": (1, 2),
    "ngettext_lazy": (1, 2),
    "pgettext": ((1, "c"), 2),
    "pgettext_lazy": ((1, "c"), 2),
    "npgettext": ((1, "c"), 2, 3),
}
SCRIPT_WORDS: dict[str, object] = {"gettext": None, "ngettext": (1, 2), "pgettext": ((1, "c"), 2)}
TRANSLATORS = ("Translators:",)
# `%(name)s`, and Python's `{name}`; `%%` is a percent sign.
PLACEHOLDER = re.compile(r"%\((\w+)\)[sd]|\{(\w*)\}")
# Tags that texts have; what else is in angle brackets is words.
MARKUP = frozenset({"a", "br", "code", "em", "kbd", "span", "strong"})
# What changes with every run, or says nothing.
NOISE = re.compile(
    r'^"(?:Project-Id-Version|Report-Msgid-Bugs-To|POT-Creation-Date|PO-Revision-Date|Last-Translator|Language-Team'
    r'|Generated-By): .*\n',
    re.MULTILINE,
)  # fmt: skip


# --- collecting -----------------------------------------------------------------------------------------------------


def sources(domain: str) -> Iterator[Path]:
    if domain == "djangojs":
        yield from sorted((ROOT / "static" / "js").glob("*.js"))
        return
    yield from sorted(path for path in (ROOT / "chatapp").rglob("*.py") if "migrations" not in path.parts)
    yield from sorted(path for path in (ROOT / "templates").rglob("*") if path.suffix in (".html", ".txt"))


@cache
def collected(domain: str) -> Catalog:
    catalog = Catalog(domain=domain, fuzzy=False)
    for path in sources(domain):
        for _, said, comments, context in _extract(path):
            catalog.add(said, auto_comments=comments, context=context)
    return catalog


def _extract(path: Path) -> Iterator[tuple[int, str | tuple[str, ...], list[str], str | None]]:
    if path.suffix == ".js":
        method, words, text = "javascript", SCRIPT_WORDS, path.read_text()
    elif path.suffix == ".py":
        method, words, text = "python", PYTHON_WORDS, path.read_text()
    else:
        # Django turns a template into something like Python; indentation means nothing in it.
        method, words = "python", PYTHON_WORDS
        text = "\n".join(line.strip() for line in templatize(path.read_text()).splitlines())
    options = {"parse_template_string": True} if method == "javascript" else {}
    yield from extract(method, io.BytesIO(text.encode()), words, TRANSLATORS, options, strip_comment_tags=False)  # type: ignore[arg-type]


# --- files ----------------------------------------------------------------------------------------------------------


def po(language: str, domain: str) -> Path:
    return LOCALE / language / "LC_MESSAGES" / f"{domain}.po"


def read(language: str, domain: str) -> Catalog:
    path = po(language, domain)
    if not path.exists():
        return Catalog(locale=language, domain=domain, fuzzy=False)
    with path.open("rb") as file:
        return read_po(file, locale=language, domain=domain)


def written(catalog: Catalog) -> str:
    buffer = io.BytesIO()
    catalog.header_comment = "# See locale/README.md for the words of each language."
    write_po(buffer, catalog, width=110, no_location=True, sort_output=True, ignore_obsolete=True)
    return NOISE.sub("", buffer.getvalue().decode())


def merged(language: str, domain: str) -> Catalog:
    catalog = read(language, domain)
    catalog.update(collected(domain), no_fuzzy_matching=True)
    catalog.fuzzy = False
    for message in catalog:
        if message.fuzzy:  # it has become a plural, or is none any more: what stood there is of no use
            message.flags.discard("fuzzy")
            message.string = ("",) * catalog.num_plurals if message.pluralizable else ""
    return catalog


def update() -> None:
    for language in LANGUAGES:
        for domain in DOMAINS:
            catalog = merged(language, domain)
            path = po(language, domain)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(written(catalog))
            missing = sum(not _is_translated(message) for message in catalog if message.id)
            print(f"{language} {domain}: {len(catalog)} texts, {missing} to translate")


def compile_catalogues() -> None:
    """Writes the .mo files unless they are those of the present .po files. Safe when several do it at once."""
    paths = [path for language in LANGUAGES for domain in DOMAINS if (path := po(language, domain)).exists()]
    key = hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()
    targets = [path.with_suffix(".mo") for path in paths]
    if COMPILED.exists() and COMPILED.read_text() == key and all(target.exists() for target in targets):
        return
    for path, target in zip(paths, targets, strict=True):
        with path.open("rb") as file:
            catalog = read_po(file, locale=path.parents[1].name, domain=path.stem)
        part = target.with_suffix(f".{os.getpid()}.part")
        with part.open("wb") as file:
            write_mo(file, catalog)
        part.replace(target)
    COMPILED.write_text(key)


# --- checking -------------------------------------------------------------------------------------------------------


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in MARKUP:
            self.found["<" + tag + "".join(f" {name}={value}" for name, value in sorted(attrs)) + ">"] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag in MARKUP:
            self.found[f"</{tag}>"] += 1


def _texts(message: Message) -> tuple[str, ...]:
    """The translation, one text for each plural form; none of a message that nobody has touched."""
    return (message.string,) if isinstance(message.string, str) else tuple(message.string or ())


def _is_translated(message: Message) -> bool:
    return bool(_texts(message)) and all(_texts(message))


def _names(text: str) -> set[str]:
    return {found.group(1) or found.group(2) for found in PLACEHOLDER.finditer(text)}


def faults(catalog: Catalog) -> Iterator[str]:
    """What is wrong with a language's catalogue, a line each."""
    for message in catalog:
        if not message.id:
            continue
        said = (message.id,) if isinstance(message.id, str) else tuple(message.id)
        what = repr(said[0])
        if message.fuzzy:
            yield f"{what} is fuzzy"
        if not _is_translated(message):
            yield f"{what} is not translated"
            continue
        texts = _texts(message)
        if len(said) > 1 and len(texts) != catalog.num_plurals:
            yield f"{what} has {len(texts)} plural forms and not {catalog.num_plurals}"
        # The singular may leave the number out, as "1" or "one".
        wanted, allowed = _names(said[-1]), set().union(*map(_names, said))
        least = wanted & _names(said[0])
        for number, text in enumerate(texts):
            names = _names(text)
            needed = least if len(texts) > 1 and number == 0 else wanted
            if not needed <= names <= allowed:
                yield f"{what} has the placeholders {sorted(names)} in {text!r} and not {sorted(wanted)}"
            if re.sub(r"%%|%\(\w+\)[sd]", "", text).count("%") != re.sub(r"%%|%\(\w+\)[sd]", "", said[-1]).count("%"):
                yield f"{what} has another number of percent signs in {text!r}"
            if '"' in re.sub(r"<[^>]*>", "", text) and '"' not in re.sub(r"<[^>]*>", "", said[-1]):
                yield f"{what} has a straight quotation mark in {text!r}, which would end an attribute"
            if _Tags(text).found != _Tags(said[-1]).found:
                yield f"{what} has other tags in {text!r}"
            edges = any(character.isalpha() for character in said[-1])
            if edges and (text[:1].isspace(), text[-1:].isspace()) != (said[-1][:1].isspace(), said[-1][-1:].isspace()):
                yield f"{what} begins or ends with other space in {text!r}"


def _keys(catalog: Catalog) -> set[tuple[object, str | None]]:
    return {(message.id, message.context) for message in catalog if message.id}


def drift(language: str, domain: str) -> Iterator[str]:
    """What the sources say and the catalogue has not, and the other way round."""
    ours, theirs = _keys(read(language, domain)), _keys(collected(domain))
    for key in sorted(map(repr, theirs - ours)):
        yield f"{key} is in the sources and not in the catalogue; run make messages"
    for key in sorted(map(repr, ours - theirs)):
        yield f"{key} is in the catalogue and no longer in the sources; run make messages"


def check() -> Iterator[str]:
    for language in LANGUAGES:
        for domain in DOMAINS:
            for fault in (*drift(language, domain), *faults(read(language, domain))):
                yield f"locale/{language}/LC_MESSAGES/{domain}.po: {fault}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.messages", description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="?", default="update", choices=["update", "check", "compile"])
    what = parser.parse_args().what
    if what == "update":
        update()
        compile_catalogues()
    elif what == "compile":
        compile_catalogues()
    else:
        found = list(check())
        print("\n".join(found) or "The catalogues are complete.")
        return 1 if found else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
