"""What can be read of people."""

from __future__ import annotations

from chatapp.accounts.models import User


def has_operator() -> bool:
    """Whether somebody runs this site. Only while nobody does may a person become an operator by himself."""
    return User.objects.filter(is_staff=True, is_superuser=True, is_active=True).exists()
