"""Salt regions: which part of a prompt is shared with whom."""

from __future__ import annotations

from dataclasses import dataclass

PUBLIC_SALT = "public"
"""Of what is shared by everybody: the platform's own preamble."""


@dataclass(frozen=True, slots=True)
class Region:
    """Tokens up to position `end` (exclusive) belong to the sharing circle that knows `salt`."""

    end: int
    salt: str
