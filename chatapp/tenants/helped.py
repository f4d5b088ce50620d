"""What operators do to a person's account, told to the person's teams.

Whoever gets into an account reads its chats: a new password, a link to choose one, or a second factor that is gone must
show where a team looks for who could read (chatapp.audit.break_glass is the way that is meant for it).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chatapp.accounts.models import User
from chatapp.accounts.sessions import account_helped
from chatapp.audit.services import operator, record
from chatapp.scope import unscoped
from chatapp.tenants.models import Membership


@unscoped("admin")
def _tell_teams(
    sender: Any, by: User, user: User, action: str, details: Mapping[str, Any] | None = None, **kwargs: Any
) -> None:
    for member in Membership.objects.select_related("tenant").filter(user=user):
        record(action, actor=operator(by), tenant=member.tenant, on=user, name=user.email, details=details)


def connect() -> None:
    account_helped.connect(_tell_teams, dispatch_uid="chatapp.tenants.helped")
