"""Email addresses and names as people type and paste them, brought to the one form that is stored and compared."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.utils.translation import gettext as _

LONGEST = 254
SEPARATORS = re.compile(r"[,;\n\r\t]+")
# Marks that turn the direction of what stands beside a name, and what cannot be seen at all.
UNWANTED = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
JOINERS = frozenset("\u200c\u200d")  # inside words of some scripts, and in emoji


@dataclass(frozen=True)
class Address:
    """`problem` says in words why it is none; empty for one that can be invited."""

    email: str
    problem: str = ""


def normalised(email: str) -> str:
    """Upper and lower case are one address, as are composed and decomposed letters. Plus-addresses stay their own."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", email.strip()).lower())


def parse(text: str) -> list[Address]:
    """Every address in a pasted list, each once, in its order: by commas, semicolons, lines, blanks; with names too."""
    found: dict[str, Address] = {}
    # Programs can send lone surrogates, which nothing behind this can write down.
    for part in SEPARATORS.split(text.replace("\0", "").encode("utf-8", "ignore").decode()):
        for piece in _pieces(part):
            address = _address(piece)
            found.setdefault(address.email, address)
    return list(found.values())


def _pieces(part: str) -> list[str]:
    """The words of a part; beside an address in angle brackets the words that are none are somebody's name."""
    bracketed = [inner.strip() for inner in re.findall(r"<([^<>]*)>", part) if inner.strip()]
    words = re.sub(r"<[^<>]*>", " ", part).split()
    return bracketed + [word for word in words if "@" in word] if bracketed else words


def _address(piece: str) -> Address:
    email = normalised(piece.removeprefix("mailto:"))
    if len(email) > LONGEST:
        return Address(email[:60] + "…", _("Is longer than %(most)s characters.") % {"most": LONGEST})
    if "@" not in email:
        return Address(email, _("Is no email address."))
    if not email.rpartition("@")[0].isascii():
        return Address(email, _("Has letters before the @ that mail servers here cannot deliver to."))
    try:
        validate_email(email)
    except ValidationError:
        return Address(email, _("Is no email address."))
    return Address(email)


def clean_name(text: str) -> str:
    """One line without characters that nobody can see; blanks in a row become one."""
    line = " ".join(unicodedata.normalize("NFC", text).split())
    return "".join(c for c in line if c in JOINERS or unicodedata.category(c) not in UNWANTED).strip()
