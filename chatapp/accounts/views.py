"""The account's own page, its language, and the list of where one is logged in. The rest of /accounts/ is allauth's."""

from __future__ import annotations

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import translation
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from chatapp import languages
from chatapp.accounts import sessions
from chatapp.accounts.forms import ProfileForm
from chatapp.accounts.models import User
from chatapp.errors import NotFound
from chatapp.site.selectors import mail_is_set_up


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@login_required
def profile(request: HttpRequest) -> HttpResponse:
    """Name, address, password, second factor, sessions, sign-in services: what there is, and the way to change it."""
    user = request.user
    assert isinstance(user, User)
    form = ProfileForm(request.POST or None, instance=User.objects.get(pk=user.pk))
    if request.method == "POST" and form.is_valid():
        form.save()
        code = form.instance.language
        with translation.override(code or languages.of_browser(request)):
            messages.success(request, _("Your changes are saved."))
        response = redirect("account")
        if "language" in form.changed_data:
            languages.remember(response, code)
        return response
    factors = list(Authenticator.objects.filter(user=user))
    context = {
        "form": form,
        "email_verified": EmailAddress.objects.filter(user=user, email__iexact=user.email, verified=True).exists(),
        "has_password": user.has_usable_password(),
        "app": any(factor.type == Authenticator.Type.TOTP for factor in factors),
        "passkeys": sum(factor.type == Authenticator.Type.WEBAUTHN for factor in factors),
        "session_count": len(sessions.places(request)),
        "service_count": SocialAccount.objects.filter(user=user).count(),
        "mail": mail_is_set_up(),
    }
    return render(request, "account/profile.html", context, status=400 if form.errors else 200)


@require_POST
def language(request: HttpRequest) -> HttpResponse:
    """`language`: a code of settings.LANGUAGES, or "" for what the browser asks for. Kept in this browser, and with the
    account of who is logged in. Leads back to the page that it was chosen on."""
    code = languages.known(request.POST.get("language", ""))
    if isinstance(request.user, User) and request.user.language != code:
        User.objects.filter(pk=request.user.pk).update(language=code)
    page = request.headers.get("Referer", "")
    response = redirect(page if url_has_allowed_host_and_scheme(page, {request.get_host()}) else "/")
    languages.remember(response, code)
    return response


@never_cache
@require_http_methods(["GET", "HEAD"])
@login_required
def session_list(request: HttpRequest) -> HttpResponse:
    return render(request, "usersessions/usersession_list.html", {"places": sessions.places(request)})


@require_POST
@login_required
def session_revoke(request: HttpRequest) -> HttpResponse:
    """`session`: the id of one of them, or "others"."""
    assert isinstance(request.user, User)
    here = request.session.session_key
    chosen = request.POST.get("session", "")
    if chosen == "others":
        count = sessions.revoke_others(user=request.user, keep=here, request=request)
        said = ngettext("%(n)s other session ended.", "%(n)s other sessions ended.", count)
        messages.success(request, said % {"n": count})
        return redirect("usersessions_list")
    try:
        # Ids are small numbers; a longer one the database could not even compare.
        sessions.revoke(
            user=request.user,
            session_id=int(chosen) if chosen.isascii() and chosen.isdigit() and len(chosen) < 19 else 0,
            request=request,
        )
    except NotFound as refusal:
        messages.error(request, refusal.message)
    else:
        messages.success(request, _("The session is ended. Whoever used it has to log in again."))
    return redirect("usersessions_list")
