"""How a team's people sign in, by HTTP. The client secret goes in and never comes out."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.urls import reverse
from ninja import Field, Router, Schema, Status

from chatapp.api.product.base import AccessRequest, ErrorAnswer, needs
from chatapp.tenants import sign_in_services as services
from chatapp.tenants.models import Tenant
from chatapp.tenants.permissions import Permission
from chatapp.tenants.selectors import sign_in_of
from chatapp.tenants.sign_in import DomainClaim

router = Router(tags=["sign-in"])
MANAGER = needs(Permission.MANAGE_SETTINGS)
REFUSED: dict[int, Any] = {400: ErrorAnswer, 401: ErrorAnswer, 403: ErrorAnswer, 404: ErrorAnswer, 409: ErrorAnswer}


class Claim(Schema):
    id: UUID
    domain: str
    created_at: datetime
    confirmed_at: datetime | None


class Service(Schema):
    issuer: str
    client_id: str
    has_secret: bool
    role: str
    enabled: bool
    callback_url: str


class SignInAnswer(Schema):
    mfa: str
    service: Service
    domains: list[Claim]


class MfaBody(Schema):
    mfa: str = Field(max_length=10)


class ServiceBody(Schema):
    issuer: str = Field(max_length=500)
    client_id: str = Field(max_length=255)
    secret: str | None = Field(default=None, max_length=1000)
    role: str = Field(default="member", max_length=10)
    enabled: bool = True


class DomainBody(Schema):
    domain: str = Field(max_length=260)


def _answer(tenant: Tenant) -> dict[str, Any]:
    row = sign_in_of(tenant)
    return {
        "mfa": row.mfa,
        "service": {
            "issuer": row.issuer,
            "client_id": row.client_id,
            "has_secret": bool(row.sealed_secret),
            "role": row.role,
            "enabled": row.enabled,
            "callback_url": settings.OCTAVO_URL.rstrip("/") + reverse("oidc-callback", args=[row.pk]),
        },
        "domains": list(DomainClaim.objects.filter(tenant=tenant)),
    }


@router.get("/t/{slug}/sign-in", response={200: SignInAnswer, **REFUSED}, auth=MANAGER)
def read(request: AccessRequest, slug: str) -> Any:
    return _answer(request.auth.tenant)


@router.put("/t/{slug}/sign-in/mfa", response={200: SignInAnswer, **REFUSED}, auth=MANAGER)
def set_mfa(request: AccessRequest, slug: str, body: MfaBody) -> Any:
    access = request.auth
    services.require_second_factor(access=access, rule=body.mfa)
    return _answer(access.tenant)


@router.put("/t/{slug}/sign-in/service", response={200: SignInAnswer, **REFUSED}, auth=MANAGER)
def set_service(request: AccessRequest, slug: str, body: ServiceBody) -> Any:
    access = request.auth
    services.set_service(access=access, **body.dict())
    return _answer(access.tenant)


@router.delete("/t/{slug}/sign-in/service", response={200: SignInAnswer, **REFUSED}, auth=MANAGER)
def remove_service(request: AccessRequest, slug: str) -> Any:
    access = request.auth
    services.remove_service(access=access)
    return _answer(access.tenant)


@router.post("/t/{slug}/sign-in/domains", response={201: Claim, **REFUSED}, auth=MANAGER)
def claim_domain(request: AccessRequest, slug: str, body: DomainBody) -> Any:
    return Status(201, services.claim_domain(access=request.auth, domain=body.domain))


@router.delete("/t/{slug}/sign-in/domains/{claim_id}", response={204: None, **REFUSED}, auth=MANAGER)
def withdraw_domain(request: AccessRequest, slug: str, claim_id: UUID) -> Any:
    services.withdraw_domain(access=request.auth, claim_id=claim_id)
    return Status(204, None)
