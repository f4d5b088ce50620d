"""The audit log as a page of a team's administration."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from chatapp.audit.models import AuditEntry
from chatapp.tenants.access import Access
from chatapp.tenants.pages import page, tenant_page
from chatapp.tenants.permissions import Permission

PAGE = 50


@tenant_page(Permission.READ_AUDIT)
def log(request: HttpRequest, access: Access) -> HttpResponse:
    return page(request, access, "tenant/audit.html", {"entries": AuditEntry.objects.all()[:PAGE]})
