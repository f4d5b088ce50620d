"""A person's own security events, in the platform's log: they concern the account and no team of theirs.

Passwords, addresses, second factors (failed ones too), sessions that were ended, sign-in services. What was typed is
never noted.
"""

from __future__ import annotations

from typing import Any

from allauth.account import signals as account
from allauth.mfa import signals as mfa
from allauth.mfa.models import Authenticator

from chatapp.accounts.sessions import account_helped, sessions_revoked
from chatapp.audit.models import ActorKind
from chatapp.audit.services import Actor, operator, record
from chatapp.scope import unscoped

FACTORS = {
    Authenticator.Type.TOTP: "authenticator app",
    Authenticator.Type.WEBAUTHN: "passkey",
    Authenticator.Type.RECOVERY_CODES: "recovery codes",
}


def _note(action: str, user: Any, **details: Any) -> None:
    actor = Actor(ActorKind.USER, str(user.pk), user.email)
    with unscoped("own account"):
        record(action, actor=actor, tenant=None, on=user, name=user.email, details=details)


def _password(action: str) -> Any:
    def receiver(sender: Any, user: Any, **kwargs: Any) -> None:
        _note(action, user)

    return receiver


def _email_changed(sender: Any, user: Any, from_email_address: Any, to_email_address: Any, **kwargs: Any) -> None:
    former = from_email_address.email if from_email_address else ""
    _note("account.email_changed", user, email=[former, to_email_address.email])


def _email_confirmed(sender: Any, email_address: Any, **kwargs: Any) -> None:
    _note("account.email_confirmed", email_address.user, email=email_address.email)


def _factor(action: str) -> Any:
    def receiver(sender: Any, user: Any, authenticator: Any, **kwargs: Any) -> None:
        _note(action, user, factor=FACTORS.get(authenticator.type, authenticator.type))

    return receiver


def _sessions_revoked(sender: Any, user: Any, count: int, **kwargs: Any) -> None:
    _note("account.session_revoked", user, count=count)


def _account_helped(sender: Any, by: Any, user: Any, action: str, details: Any = None, **kwargs: Any) -> None:
    with unscoped("own account"):
        record(action, actor=operator(by), tenant=None, on=user, name=user.email, details=details)


RECEIVERS = (
    (account.password_changed, _password("account.password_changed")),
    (account.password_set, _password("account.password_set")),
    (account.password_reset, _password("account.password_reset")),
    (account.email_changed, _email_changed),
    (account.email_confirmed, _email_confirmed),
    (mfa.authenticator_added, _factor("account.factor_added")),
    (mfa.authenticator_removed, _factor("account.factor_removed")),
    (mfa.authenticator_reset, _factor("account.factor_reset")),
    (mfa.authentication_failed, _factor("account.factor_failed")),
    (sessions_revoked, _sessions_revoked),
    (account_helped, _account_helped),
)


def connect() -> None:
    for signal, receiver in RECEIVERS:
        signal.connect(receiver, weak=False)
