"""The batches of a team's keys, as a page of its administration: how they stand, stopping one, and the results.

Results are what the keys' programs got, so they are for who may make keys: whoever may could read them with a key.
"""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from chatapp.batches import selectors, services
from chatapp.batches.endpoints import ENDPOINTS
from chatapp.batches.models import Batch, Status
from chatapp.dashboard.downloads import download_open
from chatapp.errors import BadInput, Conflict
from chatapp.files import services as files
from chatapp.tenants.access import Access
from chatapp.tenants.pages import page, tenant_page
from chatapp.tenants.permissions import Permission

KIND = "application/jsonl"


@tenant_page(Permission.READ_KEYS)
def index(request: HttpRequest, access: Access) -> HttpResponse:
    cursor = request.GET.get("cursor", "")
    try:
        found = selectors.of_team(access, cursor=cursor)
    except BadInput:  # an address that someone has edited
        return redirect("tenant-batches", access.tenant.slug)
    context = {
        "batches": [_shown(batch) for batch in found.items],
        "next": found.next,
        "first": not cursor,
        "endpoints": sorted(ENDPOINTS),
        "url": request.build_absolute_uri("/v1"),
    }
    return page(request, access, "tenant/batches.html", context)


@tenant_page(Permission.MANAGE_KEYS, methods=("POST",))
def cancel(request: HttpRequest, access: Access, batch_id: uuid.UUID) -> HttpResponse:
    try:
        services.cancel_for_team(access=access, batch_id=batch_id)
        messages.success(request, _("The batch is being cancelled. What is done is kept."))
    except Conflict as refusal:
        messages.error(request, refusal.message)
    return redirect("tenant-batches", access.tenant.slug)


@tenant_page(Permission.MANAGE_KEYS)
def results(request: HttpRequest, access: Access, batch_id: uuid.UUID, action: str) -> HttpResponseBase:
    """`action`: output or errors."""
    file = services.results_for_team(access=access, batch_id=batch_id, what=action)
    try:
        return download_open(request, files.open_file(file), file.name, file.bytes, KIND)
    except FileNotFoundError:
        raise Http404 from None


def _shown(batch: Batch) -> dict[str, object]:
    total, completed, failed = selectors.counts(batch)
    return {
        "row": batch,
        "total": total,
        "completed": completed,
        "failed": failed,
        "ended": completed + failed,
        "open": batch.status in (Status.VALIDATING, Status.IN_PROGRESS),
        "name": (batch.metadata or {}).get("name") or (batch.metadata or {}).get("job") or "",
    }
