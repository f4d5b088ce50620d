"""allauth's hooks: who may make an account, what people are told, and how secrets of second factors are kept."""

from __future__ import annotations

import base64
import secrets
from typing import Any

import structlog
from allauth.account.adapter import DefaultAccountAdapter
from allauth.core import context
from allauth.mfa.adapter import DefaultMFAAdapter
from django.conf import settings
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils import timezone, translation
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _l

from chatapp.accounts.selectors import language_of
from chatapp.accounts.throttle import in_words, wait_s
from chatapp.sealing import Unreadable, seal, unseal
from chatapp.site.selectors import mail_is_set_up

log = structlog.get_logger(__name__)

SECOND_FACTOR = "second factor"


class AccountAdapter(DefaultAccountAdapter):
    error_messages = {
        **DefaultAccountAdapter.error_messages,
        "account_inactive": _l("This account is closed."),
        "duplicate_email": _l("That is your address already."),
        "email_password_mismatch": _l("No account has this address and this password."),
        "email_taken": _l("Another account has this address."),
        "enter_current_password": _l("This is not your current password."),
        "incorrect_code": _l("This code is not right."),
        "incorrect_password": _l("This is not your password."),
        "invalid_or_expired_key": _l("This link is too old, or was used already."),
        "invalid_password_reset": _l("This link is too old, or was used already."),
        "rate_limited": _l("That was too often. Try again in a few minutes."),
        "unverified_primary_email": _l("Confirm this address first."),
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def validation_error(self, code: str, *args: Any) -> ValidationError:
        """As allauth's, but who is locked out is told for how long."""
        if code not in ("too_many_login_attempts", "rate_limited"):
            return super().validation_error(code, *args)
        request = context.request
        keys = [self._tried] if self._tried else []
        stage = getattr(request, "_login_stage", None)
        user = stage.login.user if stage is not None else request.user
        if user is not None and user.is_authenticated:
            keys.append(f"mfa-auth-user-{user.pk}")
        wait = wait_s(request, "login_failed", keys=keys) or 60
        request.retry_after_s = wait  # for the answer's status and header (chatapp.hygiene)
        return ValidationError(_("That was tried too often. Try again %(wait)s.") % {"wait": in_words(wait)}, code=code)

    # What a login was tried with, as allauth counts it.
    _tried = ""

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        self._tried = self._get_login_attempts_cache_key(request, **credentials)
        super().pre_authenticate(request, **credentials)

    def is_reauthentication_required(self, *, app: str, **kwargs: Any) -> bool:
        """Who signs in through a team's service may have nothing here that could be asked for once more."""
        if not self.get_reauthentication_methods(context.request.user):
            return False
        return bool(super().is_reauthentication_required(app=app, **kwargs))

    def get_reauthentication_methods(self, user: Any) -> list[dict[str, Any]]:
        words = {
            "reauthenticate": _("Use your password"),
            "reauthenticate_by_code": _("Get a code by mail"),
            "mfa_reauthenticate": _("Use a code of your app"),
            "mfa_reauthenticate:webauthn": _("Use a passkey"),
        }
        without = set() if mail_is_set_up() else {"reauthenticate_by_code"}
        offered = super().get_reauthentication_methods(user)
        return [{**way, "description": words[way["id"]]} for way in offered if way["id"] not in without]

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        """Nothing goes out where no mail is set up, and the pages say so. A mail server that is down fails no page."""
        if not mail_is_set_up():
            return
        # Who asked is mostly who gets it; an account's own choice comes before that.
        try:
            with translation.override(language_of(email) or translation.get_language()):
                super().send_mail(template_prefix, email, {**context, "octavo_url": settings.OCTAVO_URL})
        except OSError as error:  # SMTPException is one
            log.error("mail.failed", mail=template_prefix, error=type(error).__name__)

    def get_from_email(self) -> str:
        return str(settings.DEFAULT_FROM_EMAIL)


class SecondFactorAdapter(DefaultMFAAdapter):
    error_messages = {
        **DefaultMFAAdapter.error_messages,
        "incorrect_code": _l("This code is not right. Codes change every half minute; try the newest one."),
        "cannot_generate_recovery_codes": _l("Set up an app or a passkey first."),
    }

    def encrypt(self, text: str) -> str:
        return seal(text, purpose=SECOND_FACTOR)

    def decrypt(self, encrypted_text: str) -> str:
        try:
            return unseal(encrypted_text, purpose=SECOND_FACTOR)
        except Unreadable:
            # SECRET_KEY was replaced. A secret that nobody knows lets no code match; the factor has to be set up anew.
            return base64.b32encode(secrets.token_bytes(20)).decode()

    def _get_site_name(self) -> str:
        return "Octavo"

    def generate_authenticator_name(self, user: Any, type: str) -> str:
        return _("Passkey of %(day)s") % {"day": f"{timezone.localdate():%Y-%m-%d}"}
