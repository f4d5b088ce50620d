"""Pages inside the administration for those who run this Octavo."""

from __future__ import annotations

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.views.decorators.http import require_http_methods

from chatapp.accounts.operators import is_operator
from chatapp.audit.services import operator
from chatapp.operators import selectors
from chatapp.operators.site import note_backups


def occupancy(request: HttpRequest) -> HttpResponse:
    """The live block table of every worker. Its figures come over /ws/ops/occupancy."""
    if not is_operator(request.user):
        raise PermissionDenied
    context = {**admin.site.each_context(request), "title": "Block table"}
    return TemplateResponse(request, "dashboard/occupancy.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def checklist(request: HttpRequest) -> HttpResponse:
    """What this site still needs before people use it."""
    if not is_operator(request.user):
        raise PermissionDenied
    if request.method == "POST":
        if request.POST.get("action") == "backups":
            note_backups(actor=operator(request.user))
        return redirect("checklist")
    checks = selectors.checklist()
    context = {
        **admin.site.each_context(request),
        "title": "Checklist",
        "checks": checks,
        "open": sum(check.state != "good" for check in checks),
    }
    return TemplateResponse(request, "dashboard/checklist.html", context)
