"""The page of a shared conversation: to be read by everyone of the team who has its link, with or without scripts."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.templatetags.static import static
from django.utils.translation import gettext as _

from chatapp.errors import Refusal
from chatapp.shares import services
from chatapp.tenants.access import Access
from chatapp.tenants.pages import is_repeat, page, tenant_page
from chatapp.tenants.permissions import Permission


@tenant_page(None, methods=("GET", "HEAD", "POST"))
def shared(request: HttpRequest, access: Access, share_id: UUID) -> HttpResponse:
    if request.method == "POST":
        return _act(request, access, share_id)
    found = services.read(access, share_id)
    context: dict[str, Any] = {
        "share": found,
        "said": found.said,
        "is_own": found.user_id == getattr(access.user, "pk", None),
        "may_revoke": services.may_revoke(access, found),
        "may_go_on": access.may(Permission.CHAT),
        "icons": {"icons": static("vendor/icons.svg")},
    }
    response = page(request, access, "chat/shared.html", context)
    # Revoked, it is not to be read again out of a browser's memory.
    response["Cache-Control"] = "no-store"
    return response


def _act(request: HttpRequest, access: Access, share_id: UUID) -> HttpResponse:
    if request.POST.get("action") == "revoke":
        services.revoke(access=access, share_id=share_id)
        messages.success(request, _("The link is revoked. Nobody can read it any more."))
        return redirect("workspace", slug=access.tenant.slug)
    if request.POST.get("action") == "continue":
        services.read(access, share_id)
        if is_repeat(request):
            return redirect("workspace", slug=access.tenant.slug)
        try:
            made = services.go_on(access=access, share_id=share_id)
        except Refusal as refusal:
            if refusal.status in (403, 404):
                raise
            messages.warning(request, refusal.message)
            return redirect("shared", slug=access.tenant.slug, share_id=share_id)
        return redirect("conversation", slug=access.tenant.slug, conversation_id=made.pk)
    services.read(access, share_id)
    return redirect("shared", slug=access.tenant.slug, share_id=share_id)
