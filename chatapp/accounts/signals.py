"""What follows from logging in and from a new password: a session is listed from its first moment, whichever page
began it, and whoever was logged in with the old password is logged out, sockets included.
"""

from __future__ import annotations

from typing import Any

from allauth.account.signals import password_changed, password_reset, password_set
from allauth.usersessions.models import UserSession
from django.contrib.auth.signals import user_logged_in
from django.http import HttpRequest

from chatapp.accounts.models import User
from chatapp.accounts.sessions import end_others


def _log_out_elsewhere(sender: Any, request: HttpRequest, user: User, **kwargs: Any) -> None:
    # Here and now only if it is this user's own session: a reset is done by somebody who is logged out.
    own = request.user.is_authenticated and request.user.pk == user.pk
    end_others(user=user, keep=request.session.session_key if own else None)


def _list_session(sender: Any, request: HttpRequest, user: User, **kwargs: Any) -> None:
    if request.META.get("REMOTE_ADDR"):
        UserSession.objects.create_from_request(request, user=user)


def connect() -> None:
    user_logged_in.connect(_list_session, dispatch_uid="chatapp.accounts.list_session")
    for signal in (password_changed, password_set, password_reset):
        signal.connect(_log_out_elsewhere, dispatch_uid="chatapp.accounts.log_out_elsewhere")
