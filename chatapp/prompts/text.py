"""A prompt's text as people write it: kept byte for byte, but for line ends, which become \\n.

Browsers send CRLF for every line end of a form, whatever was typed, so nothing else can be kept. No Unicode
normalisation: what looks the same may be different tokens to a model, and was meant so.
"""

from __future__ import annotations

import unicodedata

from django.utils.translation import gettext as _

from chatapp.accounts.text import one_line
from chatapp.errors import BadInput
from chatapp.languages import number

LONGEST_TEXT = 100_000
UNSEEN = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})


def clean_text(text: object) -> str:
    """Raises BadInput for what is no text, too long, or holds a character that cannot be stored."""
    if not isinstance(text, str):
        raise BadInput(_("The instructions must be a text."), param="text")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if len(text) > LONGEST_TEXT:
        raise BadInput(
            _("The instructions have %(n)s characters; at most %(most)s can be kept.")
            % {"n": number(len(text)), "most": number(LONGEST_TEXT)},
            code="too_long",
            param="text",
        )
    for place, character in enumerate(text):
        if character == "\0" or "\ud800" <= character <= "\udfff":
            line = text.count("\n", 0, place) + 1
            raise BadInput(
                _("Line %(line)s holds a character that is none (U+%(character)s); remove it.")
                % {"line": line, "character": f"{ord(character):04X}"},
                param="text",
            )
    return text


def is_blank(text: str) -> bool:
    """Whether there is nothing in it that a reader would see."""
    return all(unicodedata.category(character) in UNSEEN for character in text)


def clean_line(value: object, *, param: str, longest: int, needed: str = "") -> str:
    """A name, a description, a note: one line. `needed`: what to say where it is empty; "" allows that."""
    if not isinstance(value, str):
        raise BadInput(_("%(param)s must be a text.") % {"param": param}, param=param)
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise BadInput(_("This holds a character that is none; remove it."), param=param)
    line = one_line(value)
    if len(line) > longest:
        raise BadInput(
            _("This has %(n)s characters; at most %(longest)s fit.") % {"n": len(line), "longest": longest}, param=param
        )
    if needed and is_blank(line):
        raise BadInput(needed, param=param)
    return line
