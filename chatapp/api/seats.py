"""How many websockets one process holds: for one person, one key, one team, and in all.

Each costs memory up to its outbox, a file, and a part of what is asked about all of them twice a second, so none of
these may grow with what somebody's program does wrong. Counted in each process: several share a site's sockets, and
a count in Redis would outlive a process that was killed. A seat is free again when its socket ends, or when whatever
took it is forgotten, so one whose handler was ended early does not keep it.
"""

from __future__ import annotations

import random
import resource
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from django.conf import settings

from chatapp.errors import Overloaded, TooMany
from chatapp.tenants.access import Access

# A tab has one; a server that asks for many people has one for hundreds of answers, or one for each.
MOST_OF_A_PERSON = 64
MOST_OF_A_KEY = 1000
MOST_OF_A_TEAM = 2000
# Files that a process needs beside its sockets: Redis, the database, logs, plain HTTP.
OTHER_FILES = 256
RETRY_AFTER_S = 5
SPREAD_S = 10


def most_in_all() -> int:
    """As many as the settings say, and as this process may have files open for."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    allowed = files - OTHER_FILES if files != resource.RLIM_INFINITY else settings.OCTAVO_MAX_SOCKETS
    return max(1, min(settings.OCTAVO_MAX_SOCKETS, allowed))


class Seats:
    def __init__(self) -> None:
        self._all = 0
        self._of: Counter[str] = Counter()

    def check(self) -> None:
        """Raises Overloaded: asked before anything is looked up about who comes."""
        if self._all >= most_in_all():
            wait = RETRY_AFTER_S + random.randrange(SPREAD_S)
            raise Overloaded(
                f"This server has as many sockets open as it can hold. Try again in {wait} s.", retry_after_s=wait
            )

    def take(self, holder: Any, access: Access) -> Callable[[], object]:
        """A seat for as long as `holder` lives, or until the returned function is called. Raises TooMany."""
        team = f"team:{access.tenant.pk}"
        own = access.principal if access.user or access.key else team
        most = MOST_OF_A_PERSON if access.user is not None else MOST_OF_A_KEY
        whose = "You have" if access.user is not None else "This key has"
        for subject, bound, who in ((own, most, whose), (team, MOST_OF_A_TEAM, "Your team has")):
            if self._of[subject] >= bound:
                raise TooMany(
                    f"{who} {bound:,} sockets open already; close some.",
                    code="too_many_sockets", retry_after_s=RETRY_AFTER_S,
                )  # fmt: skip
        self._all += 1
        subjects = {own, team}
        self._of.update(subjects)
        return weakref.finalize(holder, self._leave, subjects)

    def _leave(self, subjects: set[str]) -> None:
        self._all -= 1
        for subject in subjects:
            self._of[subject] -= 1
            if not self._of[subject]:
                del self._of[subject]


seats = Seats()
