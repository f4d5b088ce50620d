"""The workspace's pages: thin, since selectors do the reading, and all that happens later goes over the socket."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import wraps
from itertools import groupby
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.templatetags.static import static
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_safe

from chatapp.accounts.selectors import has_operator
from chatapp.chat import choices, present
from chatapp.chat.attachments import LARGEST_FILE, MOST_FILES, context_of
from chatapp.chat.selectors import LONGEST_PAGE, Filters
from chatapp.limits.selectors import limits_of
from chatapp.tenants.access import Access
from chatapp.tenants.pages import frame, tenant_page
from chatapp.tenants.permissions import Permission
from chatapp.tenants.selectors import closed_teams_of, tenants_of
from chatapp.zones import reader_zone

# The websocket's limit of a frame (DESIGN: 64 KiB), which a message has to fit in.
MAX_FRAME_BYTES = 64 * 1024
View = Callable[..., HttpResponseBase]
# Messages in the page itself, for its first look and for who has no scripts; these have all of them in the page's data.
FIRST_LOOK = 12


@require_safe
def favicon(request: HttpRequest) -> HttpResponse:
    return redirect(static("img/favicon.svg"))


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """To the tenant that the reader used last, else the first one; on a site that nobody runs yet, to its set-up."""
    if not request.user.is_authenticated:
        return redirect_to_login(request.get_full_path()) if has_operator() else redirect("setup")
    tenants = tenants_of(request.user)
    if not tenants and request.user.is_staff:
        return redirect("admin:index")
    if not tenants:
        return render(request, "chat/no_team.html", {"closed": closed_teams_of(request.user)})
    last = request.session.get("tenant")
    slug = next((tenant.slug for tenant in tenants if tenant.slug == last), tenants[0].slug)
    return redirect("workspace", slug=slug)


def compressed(view: View) -> View:
    """Long conversations go out compressed; as JSON too. A compressed page's length tells whether two things in it are
    alike (BREACH): so none that shows a secret such as a key is, nor this one where the address has something in it
    that somebody else may have put there. The form's token is masked anew each time, and Django pads by chance."""

    @wraps(view)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        if request.META.get("QUERY_STRING", "") not in ("", "all"):
            return response
        return gzip_page(lambda request: response)(request)

    return wrapped


@compressed
@tenant_page(None)
def workspace(request: HttpRequest, access: Access, conversation_id: str | None = None) -> HttpResponse:
    """The whole chat of a tenant, with one conversation open or a new one. Who may not chat sees what he may see."""
    tenant = access.tenant
    if request.session.get("tenant") != tenant.slug:
        request.session["tenant"] = tenant.slug
    if not access.may(Permission.CHAT):
        return redirect("tenant-admin", slug=tenant.slug)
    opened = present.conversation(access, conversation_id) if conversation_id else None
    conversations = present.conversations(access)
    # They stand on top, however long ago they were used.
    starred = present.conversations(access, limit=LONGEST_PAGE, filters=Filters(starred=True))["items"]
    assistants = present.assistants(access)
    page = {
        "tenant": {"slug": tenant.slug, "name": tenant.name},
        # Whose drafts a browser shows that several people use.
        "reader": str(request.user.pk),
        "assistant": tenant.name,
        "icons": static("vendor/icons.svg"),
        "conversation": opened,
        "conversations": conversations,
        "starred": starred,
        "assistants": assistants if len(assistants) > 1 else [],
        "choices": choices.offered(access),
        "max_frame_bytes": MAX_FRAME_BYTES,
        "context_tokens": context_of(limits_of(access), tenant.model),
        "files": {"most": MOST_FILES, "most_bytes": LARGEST_FILE},
    }
    context = {
        **frame(request, access),
        "assistant": tenant.name,
        "model": tenant.model,
        "conversation": opened,
        **first_look(opened, whole="all" in request.GET),
        "assistants": assistants,
        "groups": groups_by_day(conversations["items"], starred, reader_zone(request)),
        "page": page,
    }
    response = render(request, "chat/workspace.html", context)
    # Its data is of this moment, and another user's browser history is none of ours.
    response["Cache-Control"] = "no-store"
    return response


def first_look(conversation: dict[str, Any] | None, *, whole: bool = False) -> dict[str, Any]:
    """`messages` of the newest branch for the template, the last of them unless the whole is asked for; `earlier`: how
    many are left out."""
    path = present.as_read(conversation["messages"]) if conversation else []
    shown = path if whole else path[-FIRST_LOOK:]
    return {"messages": shown, "earlier": len(path) - len(shown)}


def groups_by_day(
    items: list[dict[str, Any]], starred: list[dict[str, Any]], zone: ZoneInfo, now: datetime | None = None
) -> list[dict[str, Any]]:
    """As static/js/days.js groups them, which soon does it again: starred ones, then by day in the reader's zone."""
    today = (now or timezone.now()).astimezone(zone).date()

    def name(item: dict[str, Any]) -> str:
        day = datetime.fromisoformat(item["updated_at"]).astimezone(zone).date()
        days = (today - day).days
        if days <= 0:
            return _("Today")
        if days == 1:
            return _("Yesterday")
        if days < 7:
            return _("Last 7 days")
        if days < 30:
            return _("Last 30 days")
        return date_format(day, "F" if day.year == today.year else "YEAR_MONTH_FORMAT")

    others = [item for item in items if not item["starred_at"]]
    groups = [{"name": group, "conversations": list(members)} for group, members in groupby(others, key=name)]
    return [{"name": _("Starred"), "conversations": starred}, *groups] if starred else groups
