"""JSON for the browser's pages, by session: the list of conversations and one conversation with its messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from chatapp.chat import present
from chatapp.errors import Refusal
from chatapp.scope import tenant_scope
from chatapp.tenants.access import Access, NoAccess, access_for_user


def _problem(status: int, code: str, message: str) -> JsonResponse:
    return JsonResponse({"error": {"code": code, "message": message}}, status=status)


def by_session(view: Callable[..., dict[str, Any]]) -> Callable[..., JsonResponse]:
    """A view that reads as the session's user in one of their tenants; others do not exist for it."""

    @require_safe
    @never_cache
    @wraps(view)
    def wrapped(request: HttpRequest, slug: str, **kwargs: Any) -> JsonResponse:
        if not request.user.is_authenticated:
            return _problem(401, "unauthenticated", "Log in first.")
        try:
            access = access_for_user(request.user, slug)
            with tenant_scope(access.tenant):
                return JsonResponse(view(request, access, **kwargs))
        except NoAccess:
            return _problem(404, "not_found", "There is no such team.")
        except Refusal as error:
            return _problem(error.status, error.code, error.message)

    return wrapped


@by_session
def conversations(request: HttpRequest, access: Access) -> dict[str, Any]:
    return present.conversations(access, before=request.GET.get("before") or None)


@by_session
def conversation(request: HttpRequest, access: Access, conversation_id: str) -> dict[str, Any]:
    return present.conversation(access, conversation_id)
