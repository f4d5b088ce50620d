"""What follows from a change of password: whoever was logged in with the old one is logged out, sockets included."""

from __future__ import annotations

from typing import Any

from allauth.account.signals import password_changed, password_reset, password_set
from django.http import HttpRequest

from chatapp.accounts.models import User
from chatapp.accounts.sessions import end_others


def _log_out_elsewhere(sender: Any, request: HttpRequest, user: User, **kwargs: Any) -> None:
    # Here and now only if it is this user's own session: a reset is done by somebody who is logged out.
    own = request.user.is_authenticated and request.user.pk == user.pk
    end_others(user=user, keep=request.session.session_key if own else None)


def connect() -> None:
    for signal in (password_changed, password_set, password_reset):
        signal.connect(_log_out_elsewhere, dispatch_uid="chatapp.accounts.log_out_elsewhere")
