"""The operators' first page: how the engines, their queues and the machinery around them are, and who used them.

The figures come with the page, and again as JSON every few seconds. Workers are told to drain by a POST; for the last
one of a model a page asks first.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from chatapp.accounts.models import User
from chatapp.accounts.operators import is_operator
from chatapp.errors import Conflict, NotFound, Refusal
from chatapp.operators import dead, draining, overview

SURE = "sure"


def index(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """What the administration's first page gets to know. Staff who are no operators have their lists there alone."""
    if is_operator(request.user):
        context["operations"] = overview.look()
        context["title"] = "Operations"
    return context


def _operator(request: HttpRequest) -> User:
    if not is_operator(request.user):
        raise PermissionDenied
    assert isinstance(request.user, User)
    return request.user


@require_safe
@never_cache
def figures(request: HttpRequest) -> JsonResponse:
    _operator(request)
    return JsonResponse(overview.look())


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def drain(request: HttpRequest, worker: str) -> HttpResponse:
    """POST does it; of a model's last worker only with ?sure, which a page asks for."""
    user, sure = _operator(request), SURE in request.GET
    try:
        if request.method != "POST":
            return _ask(request, worker)
        draining.drain(by=user, worker=worker, even_the_last=sure)
    except Conflict:  # it is the last one
        return redirect(f"{reverse('worker-drain', args=[worker])}?{SURE}")
    except Refusal as refusal:
        return _refused(request, refusal)
    text = f"{worker} takes nothing new. It finishes what it has, and stays until it is told otherwise or restarted."
    messages.success(request, text)
    return redirect("admin:index")


@require_POST
@never_cache
def take_again(request: HttpRequest, worker: str) -> HttpResponse:
    try:
        draining.take_again(by=_operator(request), worker=worker)
    except Refusal as refusal:
        return _refused(request, refusal)
    messages.success(request, f"{worker} takes requests again.")
    return redirect("admin:index")


@require_safe
@never_cache
def dead_letters(request: HttpRequest) -> HttpResponse:
    _operator(request)
    try:
        letters = dead.letters()
    except Refusal as refusal:
        return _refused(request, refusal)
    context = {**admin.site.each_context(request), "title": "Dead letters", "letters": letters}
    return TemplateResponse(request, "operators/dead.html", context)


@require_POST
@never_cache
def drop(request: HttpRequest, entry: str) -> HttpResponse:
    try:
        dead.drop(by=_operator(request), entry=entry)
    except Refusal as refusal:
        return _refused(request, refusal, "dead-letters")
    messages.success(request, "It is off the list. Whoever asked may ask again.")
    return redirect("dead-letters")


def _refused(request: HttpRequest, refusal: Refusal, behind: str = "admin:index") -> HttpResponse:
    """The page behind it shows how things are now; a worker that has just gone is no error of the operator's."""
    messages.error(request, refusal.message)
    return redirect(behind if refusal.status != 503 else "admin:index")


def _ask(request: HttpRequest, worker: str) -> HttpResponse:
    try:
        found = draining.find(worker)
    except NotFound as refusal:
        raise Http404(refusal.message) from None
    lost, model = draining.loss(found), found.details.model
    text = f"It finishes what it has, {found.held or 'nothing'} now, and takes nothing new until it is told to."
    if lost.model:
        minutes = max(1, settings.OCTAVO_ANSWER_TIMEOUT_S // 60)
        text = (
            f"It is the last worker that takes requests for {model}. While it drains, what people ask of {model} waits "
            f"for another worker, and ends as timed out after {minutes} min."
        )
    if lost.everything:
        text += " No other model is served either: /readyz says unavailable, and a proxy may take the whole site away."
    context = {
        **admin.site.each_context(request),
        "title": f"Drain {worker}?",
        "text": text,
        "verb": "Drain the last worker" if lost.model else "Drain",
        "back": reverse("admin:index"),
    }
    return TemplateResponse(request, "operators/ask.html", context)
