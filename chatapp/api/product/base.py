"""The django-ninja API, who may call it, and how refusals look.

An operation says `auth=needs(Permission.X)` and finds the Access in `request.auth`, already allowed that; it runs in
the tenant's scope. A browser's session and an API key are the two ways in. The tenant comes from them: the slug in the
address only picks among the person's own teams, and must be the key's.
"""

from __future__ import annotations

from typing import Any

import redis.exceptions
import structlog
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI, Query, Schema
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.parser import Parser
from ninja.security import APIKeyCookie, HttpBearer

from chatapp import scope
from chatapp.api.etags import tagged
from chatapp.api.keys import key_of_request, sends_key
from chatapp.away import away
from chatapp.errors import NotFound, Refusal
from chatapp.tenants.access import Access, NoAccess, access_for_key, access_for_user
from chatapp.tenants.permissions import Permission

log = structlog.get_logger(__name__)

NO_TEAM = "There is no such team."
LIMIT: int = Query(50, ge=1, le=100, description="How many rows a page has at most.")


class AccessRequest(HttpRequest):
    """What an operation behind `auth=needs(…)` is given."""

    auth: Access


class Error(Schema):
    code: str
    message: str
    param: str | None = None


class ErrorAnswer(Schema):
    error: Error


def _allowed(request: HttpRequest, access: Access, permission: Permission | None) -> Access:
    if permission is not None:
        access.require(permission)
    scope.enter(access.tenant)
    return access


def _slug(request: HttpRequest) -> str:
    assert request.resolver_match is not None
    return str(request.resolver_match.kwargs["slug"])


class BySession(APIKeyCookie):
    """The browser's session; changes need the CSRF token (header X-CSRFToken)."""

    def __init__(self, permission: Permission | None) -> None:
        from django.conf import settings

        self.param_name = settings.SESSION_COOKIE_NAME
        self.permission = permission
        super().__init__(csrf=True)

    def authenticate(self, request: HttpRequest, key: str | None) -> Access | None:
        if not request.user.is_authenticated:
            return None
        try:
            access = access_for_user(request.user, _slug(request))
        except NoAccess:
            raise NotFound(NO_TEAM) from None
        return _allowed(request, access, self.permission)


class ByKey(HttpBearer):
    """`Authorization: Bearer octv_…`, with the scope that the operation needs."""

    def __init__(self, permission: Permission | None) -> None:
        self.permission = permission
        super().__init__()

    def __call__(self, request: HttpRequest) -> Access | None:
        return self.authenticate(request, key_of_request(request)) if sends_key(request) else None

    def authenticate(self, request: HttpRequest, token: str) -> Access:
        access = access_for_key(token)
        if access.tenant.slug != _slug(request):
            raise NotFound(NO_TEAM)
        return _allowed(request, access, self.permission)


def needs(permission: Permission | None) -> list[Any]:
    """For `auth=`: who asks needs this; None: any role or scope will do. A key counts before a session."""
    return [ByKey(permission), BySession(permission)]


class NoObject(ValueError):
    """A body that is JSON, and no object."""


class Objects(Parser):
    """Bodies are JSON objects. Of anything else a schema would read the attributes: a text has a `title`, and a list
    none of the fields that may be left out."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        body = super().parse_body(request)
        if not isinstance(body, dict):
            raise NoObject("The body must be a JSON object.")
        return body


api = NinjaAPI(
    title="Octavo",
    version="1",
    description="Chat, and manage a team: its people, prompts, keys, limits, usage, audit log and data.",
    urls_namespace="product",
    docs_url=None,
    openapi_url="/openapi.json",
    parser=Objects(),
)
api.add_decorator(tagged, mode="view")


def _answer(request: HttpRequest, status: int, code: str, message: str, param: str | None = None) -> HttpResponse:
    body = {"error": {"code": code, "message": message, "param": param}}
    return api.create_response(request, body, status=status)


@api.exception_handler(Refusal)
def _refused(request: HttpRequest, refusal: Refusal) -> HttpResponse:
    response = _answer(request, refusal.status, refusal.code, refusal.message, refusal.param)
    if refusal.status == 401:
        response["WWW-Authenticate"] = "Bearer"
    if refusal.retry_after_s is not None:
        response["Retry-After"] = str(refusal.retry_after_s)
    return response


@api.exception_handler(AuthenticationError)
def _unauthenticated(request: HttpRequest, error: Any) -> HttpResponse:
    response = _answer(request, 401, "unauthenticated", "Log in, or send an API key as 'Authorization: Bearer octv_…'.")
    response["WWW-Authenticate"] = "Bearer"
    return response


@api.exception_handler(ValidationError)
def _invalid(request: HttpRequest, error: Any) -> HttpResponse:
    """The first field at fault by its own name: `param` is what the caller has to look at."""
    first = error.errors[0]
    # The first part says where the field is.
    where = [str(part) for part in first.get("loc", ())[1:] if part not in ("body", "query", "path", "data", "form")]
    return _answer(request, 400, "invalid_request", str(first.get("msg", "Invalid.")), ".".join(where[-3:]) or None)


@api.exception_handler(HttpError)
def _http_error(request: HttpRequest, error: Any) -> HttpResponse:
    # django-ninja hides what its parser says.
    said = error.__cause__ if isinstance(error.__cause__, NoObject) else error
    return _answer(request, error.status_code, "invalid_request", str(said))


@api.exception_handler(OperationalError)
@api.exception_handler(InterfaceError)
@api.exception_handler(redis.exceptions.ConnectionError)
@api.exception_handler(redis.exceptions.TimeoutError)
def _away(request: HttpRequest, error: Any) -> HttpResponse:
    gone = away(error)
    assert gone is not None
    return _refused(request, gone)
