"""Settings from the environment, secrets among them from files: NAME, or what the file that NAME_FILE names holds.

A value that cannot be used is an ImproperlyConfigured that names the variable and never repeats the value.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

ON, OFF = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


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


def on(name: str, *more: str) -> bool:
    """Whether it is switched on; `more`: further words for that. What says neither is refused: a wall that somebody
    believes in would not be there."""
    text = os.environ.get(name, "").strip().lower()
    if text not in (*ON, *OFF, *more):
        raise ImproperlyConfigured(f"{name} must be 1 or 0.")
    return text not in OFF


def listed(name: str) -> list[str]:
    """What stands between commas."""
    return [text.strip() for text in os.environ.get(name, "").split(",") if text.strip()]


def seconds(name: str, usual: float) -> float:
    try:
        found = float(os.environ.get(name) or usual)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise ImproperlyConfigured(f"{name} must be a number of seconds such as {usual:g}.")
    return found


def whole(name: str, usual: int) -> int:
    """A whole number from 0 on."""
    text = os.environ.get(name) or str(usual)
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ImproperlyConfigured(f"{name} must be a whole number such as {usual}.")
    return int(text)
