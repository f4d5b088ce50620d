"""A person's own data: an export of all they wrote, undoing a team's deletion, and leaving for good."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.auth import logout
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from chatapp.accounts.models import User
from chatapp.dashboard.data_forms import LeaveForm
from chatapp.dashboard.downloads import download
from chatapp.data import exports
from chatapp.data.deletion import deletions_of, undo_own_deletion
from chatapp.data.own import delete_account, last_owner_of
from chatapp.errors import NotFound, Refusal
from chatapp.tenants.pages import is_repeat, refuse
from chatapp.tenants.selectors import chat_teams_of

# Without a password to ask for, the login itself must be this fresh.
FRESH = timedelta(minutes=10)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def own_data(request: HttpRequest) -> HttpResponse:
    user = _user(request)
    if request.method != "POST":
        return _page(request, user)
    action = request.POST.get("action", "")
    try:
        if action == "export":
            if not is_repeat(request):
                exports.request_own_export(user=user)
        elif action == "remove":
            exports.cancel_own_export(user=user, export_id=request.POST.get("export", ""))
        elif action == "undo":
            deletion = undo_own_deletion(user=user, deletion_id=request.POST.get("deletion", ""))
            messages.success(
                request,
                _("%(team)s is open again. Nothing was deleted.") % {"team": deletion.tenant_name},
            )
        elif action == "delete":
            return _delete(request, user)
        else:
            return _page(request, user, status=400)
    except NotFound:
        raise Http404 from None
    except Refusal as refusal:
        messages.warning(request, refusal.message)
    return redirect("account-data")


@require_safe
@never_cache
@login_required
def own_export_file(request: HttpRequest, export_id: UUID) -> HttpResponseBase:
    try:
        export = exports.own_download_of(_user(request), export_id)
        return download(request, export.path, f"octavo-{export.created_at:%Y-%m-%d}.zip", export.size)
    except (NotFound, FileNotFoundError):
        raise Http404 from None


@require_safe
@never_cache
@login_required
def own_export_progress(request: HttpRequest, export_id: UUID) -> HttpResponse:
    try:
        export = exports.own_export_of(_user(request), export_id)
    except NotFound:
        raise Http404 from None
    return JsonResponse({"state": export.state, "percent": export.percent})


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user


def _page(request: HttpRequest, user: User, form: LeaveForm | None = None, *, status: int = 200) -> HttpResponse:
    shown = exports.own_exports_of(user)
    context = {
        "exports": shown,
        "running": next((export for export in shown if export.unfinished), None),
        "deletions": deletions_of(user),
        "teams": chat_teams_of(user),
        "last_owner_of": last_owner_of(user),
        "form": form or _form(user),
        "is_fresh": user.has_usable_password() or _is_fresh(user),
    }
    return render(request, "account/data.html", context, status=status)


def _form(user: User, data: Any = None) -> LeaveForm:
    label = _("Type %(what)s to confirm") % {"what": user.email}
    return LeaveForm(data, must_equal=user.email, label=label, has_password=user.has_usable_password())


def _is_fresh(user: User) -> bool:
    return user.last_login is not None and timezone.now() - user.last_login < FRESH


def _delete(request: HttpRequest, user: User) -> HttpResponse:
    form = _form(user, request.POST)
    if form.is_valid():
        if "password" in form.fields and not user.check_password(form.cleaned_data["password"]):
            form.add_error("password", _("This is not your password."))
        elif "password" not in form.fields and not _is_fresh(user):
            form.add_error(None, _("Log out and in again first: your login is too old for this."))
        else:
            try:
                delete_account(user=user, confirm=form.cleaned_data["confirm"])
            except Refusal as refusal:
                refuse(form, refusal)
            else:
                logout(request)
                messages.success(request, _("Your account is deleted. Your chats are being removed now."))
                return redirect("account_login")
    return _page(request, user, form, status=400)
