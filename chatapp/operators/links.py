"""The link by which somebody whose account an operator has made chooses a password: signed, single use, 72 hours.

Made by the libraries that make the one of "forgotten password": choosing a password ends it.
"""

from __future__ import annotations

from allauth.account.forms import default_token_generator
from allauth.account.utils import user_pk_to_url_str
from django.conf import settings
from django.core.mail import EmailMessage
from django.urls import reverse
from django.utils.translation import gettext as _

from chatapp.accounts.models import User
from chatapp.accounts.selectors import in_language_of
from chatapp.site import selectors as site
from chatapp.tenants.models import Tenant


def password_link(user: User) -> str:
    key = f"{user_pk_to_url_str(user)}-{default_token_generator.make_token(user)}"
    uid, _dash, token = key.partition("-")
    return settings.OCTAVO_URL + reverse("account_reset_password_from_key", kwargs={"uidb36": uid, "key": token})


def mail_welcome(user: User, tenant: Tenant, link: str) -> bool:
    """Tell the owner of a new team. False where no mail is set up, or it was not taken: hand on the link then."""
    if not site.mail_is_set_up():
        return False
    name = site.name()
    with in_language_of(user.email):
        names = {"team": tenant.name, "site": name}
        told = _("A team has been made for you at %(site)s: %(team)s.") % names
        todo = _("Choose a password here, within 72 hours:") if link else _("Log in here:")
        message = EmailMessage(
            subject=_("%(team)s at %(site)s is yours") % names,
            body=f"{told}\n\n{todo}\n{link or settings.OCTAVO_URL + f'/t/{tenant.slug}/'}\n",
            to=[user.email],
        )
    return message.send(fail_silently=False) == 1
