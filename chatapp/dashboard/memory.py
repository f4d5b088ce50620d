"""A team's memory page: a frame for what its socket tells (chatapp.api.team_memory)."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from chatapp.tenants import nav
from chatapp.tenants.access import Access
from chatapp.tenants.pages import page, tenant_page
from chatapp.tenants.permissions import Permission


@tenant_page(Permission.READ_DASHBOARD)
def memory(request: HttpRequest, access: Access) -> HttpResponse:
    links = {link.view.replace("-", "_"): link.url for link in nav.links(access)}
    socket = f"/ws/t/{access.tenant.slug}/memory"
    return page(request, access, "tenant/memory.html", {"links": links, "socket": socket})
