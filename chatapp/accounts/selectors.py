"""What can be read of people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.utils import translation

from chatapp import languages
from chatapp.accounts.models import User


def has_operator() -> bool:
    """Whether somebody runs this site. Only while nobody does may a person become an operator by himself."""
    return User.objects.filter(is_staff=True, is_superuser=True, is_active=True).exists()


def language_of(email: str) -> str:
    """The language that the account of this address has chosen; "" where it leaves that to the browser, or is none."""
    chosen = User.objects.filter(email__iexact=email).values_list("language", flat=True).first() or ""
    return languages.known(chosen)


@contextmanager
def in_language_of(email: str, otherwise: str = "") -> Iterator[None]:
    """For what is written to somebody: in the language that they have chosen, else in `otherwise` or English."""
    with translation.override(language_of(email) or otherwise or languages.SOURCE):
        yield
