"""Catalogues: nothing that the sources say is missing, and what is wrong with a translation is found."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from babel.messages import Catalog
from django.conf import settings

from chatapp.api.asyncapi import ERROR_CODES
from ops import messages

# What the chat's own page cannot run into: it sends no such frames, and has no key.
PROGRAMS_ONLY = {
    *("bad_frame", "invalid_frame", "invalid_request", "unknown_parameter", "idempotency_mismatch"),
    *("invalid_grammar", "invalid_messages", "tools_not_supported", "too_many_frames"),
    *("too_many_responses", "too_many_waiting", "cancelled", "expired"),
    *("invalid_api_key", "invalid_ticket", "key_in_address", "address_not_allowed", "origin_not_allowed"),
    *("team_suspended", "revoked"),
}


def test_every_text_is_in_every_catalogue_translated_whole_and_with_its_placeholders() -> None:
    assert list(messages.check()) == []


def test_the_same_languages_are_offered_and_translated() -> None:
    offered = {code.replace("-h", "_H") for code, _ in settings.LANGUAGES} - {"en"}
    assert offered == set(messages.LANGUAGES)


@pytest.mark.parametrize(
    ("said", "translated", "fault"),
    [
        ("Send", "", "is not translated"),
        ("%(name)s is here", "%(nome)s ist hier", "placeholders"),
        ("%(name)s is here", "ist hier", "placeholders"),
        ("{first} and {last}", "{first} und", "placeholders"),
        ("100 %", "100 ", "percent signs"),
        ("<strong>Bold</strong>", "<em>Fett</em>", "tags"),
        ("<strong>Bold</strong>", "Fett", "tags"),
        ("Type it", 'Tippen Sie "es"', "quotation mark"),
        ("Copy it", "Kopieren ", "space"),
        (("%(n)s chat", "%(n)s chats"), ("%(n)s Chat",), "plural forms"),
        (("%(n)s chat", "%(n)s chats"), ("%(n)s Chat", "Chats"), "placeholders"),
    ],
)
def test_what_is_wrong_with_a_translation_is_found(said: Any, translated: Any, fault: str) -> None:
    catalog = Catalog(locale="de")
    catalog.add(said, translated)
    found = list(messages.faults(catalog))
    assert any(fault in one for one in found), found


@pytest.mark.parametrize(
    ("said", "translated"),
    [
        ("%(name)s is here", "Hier ist %(name)s"),
        ("100 %", "100 %"),
        ("Ask for assistant:<this name>", "Nach assistant:<dieser Name> fragen"),
        (("%(n)s chat", "%(n)s chats"), ("Ein Chat mit %(n)s", "%(n)s Chats")),
        (("One chat of %(name)s", "%(n)s chats of %(name)s"), ("Ein Chat von %(name)s", "%(n)s Chats von %(name)s")),
    ],
)
def test_a_translation_that_is_right_is_let_be(said: Any, translated: Any) -> None:
    catalog = Catalog(locale="de")
    catalog.add(said, translated)
    assert list(messages.faults(catalog)) == []


def test_texts_are_collected_from_templates_python_and_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chatapp").mkdir()
    (tmp_path / "chatapp" / "forms.py").write_text(
        'a = _("Say \\"yes\\"")\nb = ngettext("%(n)s day", "%(n)s days", n)\n'
        'c = _l("one" " whole")\nd = print("none")\n'
    )
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "page.html").write_text(
        '{% load i18n %}\n  <p>{% translate "Open" context "an invitation" %}</p>\n    {% blocktranslate count n=x %}'
        "{{ n }} line{% plural %}{{ n }} lines{% endblocktranslate %}\n  it's (not"
    )
    (tmp_path / "static" / "js").mkdir(parents=True)
    (tmp_path / "static" / "js" / "page.js").write_text(
        'import x from "y";\nconst a = `${gettext("in a template")} text`;\nfill(gettext("%(n)s of it"), { n });\n'
    )
    monkeypatch.setattr(messages, "ROOT", tmp_path)
    keys = {(m.id, m.context) for m in messages.collected.__wrapped__("django") if m.id}
    assert keys == {
        ('Say "yes"', None),
        (("%(n)s day", "%(n)s days"), None),
        ("one whole", None),
        ("Open", "an invitation"),
        (("%(n)s line", "%(n)s lines"), None),
    }
    assert {m.id for m in messages.collected.__wrapped__("djangojs") if m.id} == {"in a template", "%(n)s of it"}


def test_scripts_give_their_texts_where_they_can_be_collected() -> None:
    """A text that reaches gettext in a variable is in no catalogue, and nobody misses it there."""
    call = re.compile(r"\b(?:n|p|np)?gettext\((?!\s*[\"'`)])[^\n]*")
    scripts = sorted((messages.ROOT / "static" / "js").glob("*.js"))
    found = [f"{path.name}: {match[0]}" for path in scripts for match in call.finditer(path.read_text())]
    assert [one for one in found if not one.startswith("i18n.js:")] == []


def test_a_reader_of_any_language_is_told_in_it_what_the_chat_may_be_refused_for() -> None:
    script = (messages.ROOT / "static" / "js" / "refusals.js").read_text()
    told = set(re.findall(r"^  (\w+): \(\) =>", script, re.MULTILINE))
    assert set(ERROR_CODES) - told == PROGRAMS_ONLY


def test_collecting_again_changes_nothing() -> None:
    before = {path: path.read_text() for path in messages.LOCALE.rglob("*.po")}
    written = {
        messages.po(language, domain): messages.written(messages.merged(language, domain))
        for language in messages.LANGUAGES
        for domain in messages.DOMAINS
    }
    assert written == before
    assert not any("POT-Creation-Date" in text or "#:" in text for text in before.values())


@pytest.mark.parametrize("path", sorted((messages.ROOT / "templates").rglob("*.html")), ids=lambda path: path.name)
def test_no_sentence_counts_by_a_name_that_it_has_given_away(path: Path) -> None:
    """`with ready=ready.0 count all=ready.1` reads the new `ready`, and the page breaks where there is one to count."""
    for given, counted in re.findall(r"{% blocktranslate (?:trimmed )?with (.*?) count \w+=(\w+)", path.read_text()):
        assert counted not in re.findall(r"(\w+)=", given), path
