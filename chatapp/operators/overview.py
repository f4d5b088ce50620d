"""All that the operators' dashboard shows, as plain values: what the engines are now, and what the work was.

The engines are looked at whenever somebody asks. What costs the database more is kept for SLOWLY_S, so that ten
operators who leave the page open cost as much as one. Whatever is down is said in the answer; nothing is raised for it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from django.utils import timezone

from chatapp.operators import health, machines, work
from chatapp.operators.health import Sign
from chatapp.operators.machines import BAD, GOOD, Machines
from chatapp.streaming import server
from chatapp.streaming.connection import AWAY

SLOWLY_S = 10.0

_lock = threading.Lock()
_kept: dict[str, tuple[float, Any]] = {}


def forget() -> None:
    _kept.clear()


def _slowly(name: str, look: Callable[[], Any]) -> Any:
    """One look at a time in a process; who comes meanwhile waits for it and gets the same."""
    with _lock:
        found = _kept.get(name)
        if found is None or time.monotonic() - found[0] >= SLOWLY_S:
            found = _kept[name] = (time.monotonic(), look())
        return found[1]


def look() -> dict[str, Any]:
    engines: Machines | None = None
    if server.answers():  # who looks is not to wait for what a silent one is asked
        with contextlib.suppress(*AWAY):
            engines = machines.look()
    up = engines is not None  # else each of the others would wait for Redis as well
    signs = {
        "redis": health.redis_signs() if up else [health.NO_REDIS],
        "database": _slowly("database", health.database_signs),
        "background": [*health.recorder_signs(), *health.background_signs()] if up else [],
    }
    teams, more_teams = _slowly("teams", work.team_lines)
    return {
        "at": timezone.now().isoformat(),
        "engines": asdict(engines) if engines is not None else None,
        "health": {name: [asdict(sign) for sign in found] for name, found in signs.items()},
        "teams": [asdict(line) for line in teams],
        "more_teams": more_teams,
        "slow": [asdict(line) for line in _slowly("slow", work.slow_lines)],
        "faults": _faults(redis_up=up),
        "findings": _findings(engines, [sign for found in signs.values() for sign in found]),
    }


def _faults(*, redis_up: bool) -> list[dict[str, Any]]:
    """They are looked up now and then, and grow older meanwhile."""
    looked, lines = _slowly("faults", lambda: (time.monotonic(), work.fault_lines(redis_up=redis_up)))
    return [asdict(replace(line, ago_s=line.ago_s + time.monotonic() - looked)) for line in lines]


def _findings(engines: Machines | None, signs: list[Sign]) -> list[dict[str, str]]:
    """What needs somebody, the worst first: one sentence each, and where on the page it stands."""
    found = []
    if engines is not None:
        found += [
            {"state": line.state, "text": f"{line.name}: {line.says}.", "where": "models"}
            for line in engines.models
            if line.state != GOOD
        ]
        found += [
            {"state": line.state, "text": f"Worker {line.id}: {line.says}.", "where": "workers"}
            for line in engines.workers
            if line.state != GOOD
        ]
    found += [
        {"state": sign.state, "text": f"{sign.name}: {sign.value}. {sign.says}".strip(), "where": "health"}
        for sign in signs
        if sign.state != GOOD
    ]
    return sorted(found, key=lambda one: one["state"] != BAD)
