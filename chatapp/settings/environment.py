"""Settings from the environment, secrets among them from files: NAME, or what the file that NAME_FILE names holds.

A value that cannot be used is an ImproperlyConfigured that names the variable and never repeats the value.
"""

from __future__ import annotations

import os
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured


def setting(name: str) -> str:
    """The file wins: a mounted secret is meant, whatever else is left in the environment. Empty: it is not set."""
    file = os.environ.get(f"{name}_FILE")
    if not file:
        return os.environ.get(name, "")
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ImproperlyConfigured(f"{name}_FILE={file} cannot be read: {reason}.") from None


def on(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes")


def whole(name: str, usual: int) -> int:
    """A whole number from 0 on."""
    text = os.environ.get(name) or str(usual)
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ImproperlyConfigured(f"{name} must be a whole number such as {usual}.")
    return int(text)
