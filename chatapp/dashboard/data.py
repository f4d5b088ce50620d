"""The data page of a team's administration: how long chats are kept, exports, deleting the team."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from chatapp.dashboard.data_forms import RetentionForm, TypedForm
from chatapp.dashboard.downloads import download
from chatapp.data import exports
from chatapp.data.deletion import GRACE, request_own_deletion
from chatapp.data.models import Sweep
from chatapp.data.retention import DELETED_DAYS, preview, retention_of, set_retention
from chatapp.errors import Conflict, Refusal
from chatapp.tenants.access import Access
from chatapp.tenants.pages import is_repeat, page, refuse, tenant_page
from chatapp.tenants.permissions import Permission


@tenant_page(Permission.MANAGE_DATA, methods=("GET", "HEAD", "POST"))
def data(request: HttpRequest, access: Access) -> HttpResponse:
    if request.method == "POST":
        act = ACTIONS.get(request.POST.get("action", ""))
        if act is None:
            return _page(request, access, status=400)
        return act(request, access)
    return _page(request, access)


@tenant_page(Permission.MANAGE_DATA)
def export_file(request: HttpRequest, access: Access, export_id: UUID) -> HttpResponseBase:
    export = exports.download_of(access, export_id)
    name = f"{access.tenant.slug}-{export.created_at:%Y-%m-%d}.zip"
    try:
        return download(request, export.path, name, export.size)
    except FileNotFoundError:
        raise Http404 from None


def _page(request: HttpRequest, access: Access, *, status: int = 200, **forms: Any) -> HttpResponse:
    rule = retention_of(access.tenant)
    initial = {"days": rule.days, "keep_starred": rule.keep_starred, "usage_days": rule.usage_days}
    shown = exports.exports_of(access)
    context = {
        "rule": rule,
        "retention_form": RetentionForm(initial=initial),
        "sweeps": list(Sweep.objects.filter(tenant=access.tenant).exclude(finished_at=None)[:3]),
        "deleted_days": DELETED_DAYS,
        "exports": shown,
        "running": next((export for export in shown if export.unfinished), None),
        "deletion_form": _deletion_form(access),
        "grace_days": GRACE.days,
        "due": timezone.now() + GRACE,
        **forms,
    }
    return page(request, access, "tenant/data.html", context, status=status)


def _deletion_form(access: Access, data: Any = None) -> TypedForm:
    slug = access.tenant.slug
    return TypedForm(data, must_equal=slug, label=_("Type %(what)s to confirm") % {"what": slug}, auto_id="deletion_%s")


def _retention(request: HttpRequest, access: Access) -> HttpResponse:
    """The dry run first, where more would go than goes now; then it is turned on."""
    form = RetentionForm(request.POST)
    if not form.is_valid():
        return _page(request, access, status=400, retention_form=form)
    rule, former = form.rule(), retention_of(access.tenant)
    fewer_chats = rule["days"] is not None and (
        former.days is None or rule["days"] < former.days or (former.keep_starred and not rule["keep_starred"])
    )
    fewer_figures = rule["usage_days"] < former.usage_days
    if (fewer_chats or fewer_figures) and "confirmed" not in request.POST:
        context = {"preview": preview(access=access, **rule), "rule": rule, "fewer_figures": fewer_figures}
        return page(request, access, "tenant/data_preview.html", context)
    if not is_repeat(request):
        set_retention(access=access, **rule)
        if rule["days"]:
            chats = ngettext(
                "Chats are deleted %(n)s day after their last message.",
                "Chats are deleted %(n)s days after their last message.",
                rule["days"],
            ) % {"n": rule["days"]}
        else:
            chats = _("Chats are kept.")
        usage = ngettext(
            "Usage figures are kept for %(n)s day.", "Usage figures are kept for %(n)s days.", rule["usage_days"]
        ) % {"n": rule["usage_days"]}
        messages.success(request, f"{chats} {usage}")
    return redirect("tenant-data", slug=access.tenant.slug)


def _export(request: HttpRequest, access: Access) -> HttpResponse:
    if not is_repeat(request):
        try:
            exports.request_export(access=access)
        except Conflict as refusal:
            messages.warning(request, refusal.message)
    return redirect("tenant-data", slug=access.tenant.slug)


def _remove(request: HttpRequest, access: Access) -> HttpResponse:
    """Stop it, or delete its file. Raises NotFound (404)."""
    was = exports.export_of(access, request.POST.get("export", "")).unfinished
    exports.cancel_export(access=access, export_id=request.POST.get("export", ""))
    messages.success(request, _("The export is stopped.") if was else _("The file is deleted."))
    return redirect("tenant-data", slug=access.tenant.slug)


def _delete(request: HttpRequest, access: Access) -> HttpResponse:
    form = _deletion_form(access, request.POST)
    if form.is_valid():
        try:
            deletion = request_own_deletion(access=access, confirm=form.cleaned_data["confirm"])
        except Refusal as refusal:
            refuse(form, refusal)
        else:
            name = access.tenant.name
            messages.success(
                request,
                _("%(team)s is closed, and will be deleted on %(day)s.")
                % {"team": name, "day": date_format(deletion.due_at, "MONTH_DAY_FORMAT")},
            )
            return redirect("account-data")
    return _page(request, access, status=400, deletion_form=form)


ACTIONS: dict[str, Callable[[HttpRequest, Access], HttpResponse]] = {
    "retention": _retention,
    "export": _export,
    "remove": _remove,
    "delete": _delete,
}
