"""Pages inside the administration for those who run this Octavo."""

from __future__ import annotations

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from chatapp.dashboard.operators import is_operator


def occupancy(request: HttpRequest) -> HttpResponse:
    """The live block table of every worker. Its figures come over /ws/ops/occupancy."""
    if not is_operator(request.user):
        raise PermissionDenied
    context = {**admin.site.each_context(request), "title": "Block table"}
    return TemplateResponse(request, "dashboard/occupancy.html", context)
