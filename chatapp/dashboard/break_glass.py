"""The operators' pages for reading a team's chats: ask with a reason, read, close. Read-only, in that team's scope."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import wraps
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.views.decorators.cache import never_cache

from chatapp.accounts.operators import is_operator
from chatapp.audit import break_glass as leave
from chatapp.chat import break_glass as chats
from chatapp.errors import BadInput, Forbidden, NotFound
from chatapp.tenants.models import Tenant
from chatapp.tenants.pages import is_repeat


def operators(*methods: str) -> Callable[[Callable[..., HttpResponse]], Callable[..., HttpResponse]]:
    """A page of the administration for operators alone; what they may not read any more leads back to the first."""

    def decorate(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        @wraps(view)
        @never_cache
        @admin.site.admin_view
        def wrapped(request: HttpRequest, **kwargs: Any) -> HttpResponse:
            if not is_operator(request.user):
                raise PermissionDenied
            if request.method not in methods:
                return HttpResponseNotAllowed(methods)
            try:
                return view(request, **kwargs)
            except NotFound:
                raise Http404 from None
            except Forbidden as refusal:
                messages.error(request, refusal.message)
                return redirect("break-glass")

        return wrapped

    return decorate


class OpenForm(forms.Form):
    team = forms.SlugField(
        label="Team", max_length=40, help_text="As it stands in its address: larkspur in /t/larkspur/."
    )
    conversation = forms.UUIDField(
        label="Conversation", required=False, help_text="Its id, where one is enough. Empty: all of the team's."
    )
    reason = forms.CharField(
        label="Reason",
        min_length=leave.SHORTEST_REASON,
        max_length=leave.LONGEST_REASON,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="The team reads it in its audit log: who asked for it, and what you look for.",
    )
    minutes = forms.TypedChoiceField(
        label="For", coerce=int, choices=[(minutes, f"{minutes} minutes") for minutes in leave.MINUTES]
    )

    def clean_team(self) -> Tenant:
        found = Tenant.objects.filter(slug=self.cleaned_data["team"]).first()
        if found is None:
            raise forms.ValidationError("There is no such team.")
        return found


def _page(request: HttpRequest, template: str, title: str, status: int = 200, **context: Any) -> HttpResponse:
    return TemplateResponse(
        request, template, {**admin.site.each_context(request), "title": title, **context}, status=status
    )


@operators("GET", "HEAD", "POST")
def index(request: HttpRequest) -> HttpResponse:
    posted = request.method == "POST"
    form = OpenForm(request.POST if posted else None, initial={"team": request.GET.get("team", "")[:40]})
    if posted and form.is_valid():
        if is_repeat(request):
            return redirect("break-glass")
        data = form.cleaned_data
        try:
            made = leave.open_reading(
                user=request.user,
                tenant=data["team"],
                reason=data["reason"],
                minutes=data["minutes"],
                conversation_id=data["conversation"],
            )
            return redirect("break-glass-reading", made.pk)
        except BadInput as refusal:
            form.add_error(refusal.param if refusal.param in form.fields else None, refusal.message)
    return _page(
        request,
        "dashboard/break_glass.html",
        "Break glass",
        400 if form.errors else 200,
        form=form,
        readings=leave.recent(user=request.user),
    )


@operators("GET", "HEAD")
def reading(request: HttpRequest, reading_id: uuid.UUID) -> HttpResponse:
    try:
        found, page = chats.conversations(
            user=request.user, reading_id=reading_id, cursor=request.GET.get("cursor", "")
        )
    except BadInput:  # an address that someone has edited
        return redirect("break-glass-reading", reading_id)
    title = f"Conversations of {found.tenant.name}"
    return _page(request, "dashboard/break_glass_list.html", title, reading=found, conversations=page)


@operators("GET", "HEAD")
def conversation(request: HttpRequest, reading_id: uuid.UUID, conversation_id: uuid.UUID) -> HttpResponse:
    found, chat, said = chats.conversation(user=request.user, reading_id=reading_id, conversation_id=conversation_id)
    title = f"A conversation of {found.tenant.name}"
    return _page(request, "dashboard/break_glass_chat.html", title, reading=found, conversation=chat, said=said)


@operators("POST")
def close(request: HttpRequest, reading_id: uuid.UUID) -> HttpResponse:
    leave.close_reading(user=request.user, reading_id=reading_id)
    messages.success(request, "Closed. The team sees when you did.")
    return redirect("break-glass")
