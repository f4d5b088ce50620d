"""An entry's details as lines for people: {"role": ["member", "admin"]} reads "role: member → admin".

A list of two is a change, from the first to the second; whoever records lists of things joins them into text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

LONGEST = 400
# A moment as services write it.
_MOMENT = re.compile(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d(?:\.\d+)?(?:\+00:00|Z)$")


def lines(details: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) each."""
    return [(str(name).replace("_", " "), _value(value)) for name, value in details.items()]


def text(details: Mapping[str, Any]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in lines(details))


def _value(value: Any) -> str:
    if isinstance(value, list | tuple) and len(value) == 2:
        return f"{_plain(value[0])} → {_plain(value[1])}"
    return _plain(value)


def _plain(value: Any) -> str:
    if value is None or value in ("", [], {}):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        found = ", ".join(_plain(part) for part in value)
    elif isinstance(value, Mapping):
        found = ", ".join(f"{name} {_plain(part)}" for name, part in value.items())
    else:
        found = _MOMENT.sub(r"\1 \2 UTC", str(value))
    return found if len(found) <= LONGEST else f"{found[: LONGEST - 1]}…"
