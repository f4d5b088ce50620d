"""Where a person is logged in, and ending that. A session takes its open sockets along (chatapp.api.guard)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from allauth.usersessions.models import UserSession
from django.dispatch import Signal
from django.http import HttpRequest
from django.utils.translation import gettext as _

from chatapp.accounts.models import User
from chatapp.errors import NotFound

# Sent with user= and count= when somebody has ended sessions on purpose.
sessions_revoked = Signal()
# Sent with by=, user=, action= and perhaps details= when an operator has changed an account, or who gets into it.
account_helped = Signal()

BROWSERS = (("Edg", "Edge"), ("OPR", "Opera"), ("Firefox", "Firefox"), ("Chrom", "Chrome"), ("Safari", "Safari"))
SYSTEMS = (
    ("iPhone", "iPhone"), ("iPad", "iPad"), ("Android", "Android"), ("Windows", "Windows"), ("CrOS", "ChromeOS"),
    ("Mac OS X", "macOS"), ("Linux", "Linux"),
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """One session as a page shows it."""

    id: int
    device: str
    address: str
    since: datetime
    current: bool


def device(user_agent: str) -> str:
    """A browser's own words about itself, in two of ours. Anything may stand there, so it only names what it knows."""
    browser = next((name for mark, name in BROWSERS if mark in user_agent), "")
    system = next((name for mark, name in SYSTEMS if mark in user_agent), "")
    if browser or system:
        if not (browser and system):
            return browser or system
        return _("%(browser)s on %(system)s") % {"browser": browser, "system": system}
    return re.split(r"[/ ]", user_agent, maxsplit=1)[0][:40] or _("Unknown device")


def places(request: HttpRequest) -> list[Place]:
    """The person's own sessions, the current one first, then the newest."""
    assert isinstance(request.user, User)
    here = request.session.session_key
    known = UserSession.objects.purge_and_list(request.user)
    if not any(row.session_key == here for row in known):
        # Begun before sessions were listed.
        UserSession.objects.create_from_request(request)
        known = UserSession.objects.purge_and_list(request.user)
    listed = [Place(row.pk, device(row.user_agent), row.ip, row.created_at, row.session_key == here) for row in known]
    listed.sort(key=lambda place: (place.current, place.since), reverse=True)
    return listed


def revoke(*, user: User, session_id: int, request: HttpRequest | None = None) -> None:
    """Ends one of the person's own sessions. Raises NotFound for any other; again is harmless to the rest."""
    row = UserSession.objects.filter(user=user, pk=session_id).first()
    if row is None:
        raise NotFound(_("This session has ended already."))
    row.end()
    sessions_revoked.send(sender=User, request=request, user=user, count=1)


def end_others(*, user: User, keep: str | None) -> int:
    """Ends all of the person's sessions but the one with the key `keep`; says how many. Tells nobody."""
    rows = list(UserSession.objects.filter(user=user).exclude(session_key=keep or ""))
    for row in rows:
        row.end()
    return len(rows)


def revoke_others(*, user: User, keep: str | None, request: HttpRequest | None = None) -> int:
    count = end_others(user=user, keep=keep)
    if count:
        sessions_revoked.send(sender=User, request=request, user=user, count=count)
    return count
