"""An account's links with the sign-in services of teams."""

from __future__ import annotations

from typing import Any

from allauth.account.models import EmailAddress
from allauth.socialaccount.models import SocialAccount
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from chatapp.accounts.models import User
from chatapp.audit.models import ActorKind
from chatapp.audit.services import Actor, record
from chatapp.errors import Conflict, NotFound
from chatapp.scope import unscoped
from chatapp.tenants.arrivals import service_names


@transaction.atomic
def disconnect(*, user: User, link_id: Any) -> None:
    """Raises NotFound for a link of anybody else, and Conflict where nothing else would be left to log in with."""
    link = SocialAccount.objects.filter(user=user, pk=link_id).first()
    if link is None:
        raise NotFound(_("Your account has no such link."))
    others = SocialAccount.objects.filter(user=user).exclude(pk=link.pk).exists()
    if not others and not user.has_usable_password():
        raise Conflict(_("Choose a password first; else there would be no way left to log in."))
    link.delete()
    with unscoped("own account"):
        record(
            "account.service_disconnected",
            actor=Actor(ActorKind.USER, str(user.pk), user.email),
            tenant=None,
            on=user,
            name=user.email,
            details={"service": link.provider},
        )


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@login_required
def connections(request: HttpRequest) -> HttpResponse:
    assert isinstance(request.user, User)
    if request.method == "POST":
        chosen = request.POST.get("link", "")
        number = int(chosen) if chosen.isascii() and chosen.isdigit() and len(chosen) < 19 else 0
        try:
            disconnect(user=request.user, link_id=number)
        except (NotFound, Conflict) as refusal:
            messages.error(request, refusal.message)
        else:
            messages.success(request, _("The link is gone. Signing in through the team makes it anew."))
        return redirect("socialaccount_connections")
    links = list(SocialAccount.objects.filter(user=request.user).order_by("date_joined"))
    names = service_names({link.provider for link in links})
    context = {
        "links": [
            {"id": link.pk, "team": names.get(link.provider, "A team that is gone"), "since": link.date_joined}
            for link in links
        ],
        "has_password": request.user.has_usable_password(),
        "verified": EmailAddress.objects.filter(user=request.user, verified=True).exists(),
    }
    return render(request, "socialaccount/connections.html", context)
