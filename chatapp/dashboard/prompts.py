"""Assistants and their prompts as pages of a team's administration: list, editor with a side chat, versions, diffs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import redis.exceptions
from django.contrib import messages
from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.templatetags.static import static
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as _n

from chatapp.chat.prompt_use import Use, use_of
from chatapp.dashboard.prompts_forms import AssistantForm, DraftForm, NoteForm, SettingsForm
from chatapp.errors import BadInput, Conflict, Forbidden, NotFound, Refusal
from chatapp.prompts import selectors, services
from chatapp.prompts.diff import diff
from chatapp.prompts.models import PromptVersion, SystemPrompt
from chatapp.prompts.text import clean_text
from chatapp.tenants.access import Access
from chatapp.tenants.pages import is_repeat, page, refuse, tenant_page
from chatapp.tenants.permissions import Permission

PAGE = 50
SECTION = {"section": "tenant-prompts"}
PUBLISHED = _n(
    "Version %(number)s is published. New answers get it as soon as an engine has it in memory, in ten seconds at the"
    " latest; answers that run keep theirs."
)
BOTH = ("GET", "HEAD", "POST")


def _to(access: Access, name: str, **ids: Any) -> HttpResponse:
    return redirect(name, slug=access.tenant.slug, **ids)


# --- the list -----------------------------------------------------------------------------------------------------


@tenant_page(Permission.READ_PROMPTS, methods=BOTH)
def listing(request: HttpRequest, access: Access) -> HttpResponse:
    form = AssistantForm(request.POST if request.POST.get("action") == "create" else None)
    if request.method == "POST":
        try:
            answer = _list_action(request, access, form)
        except (BadInput, Conflict) as refusal:
            if form.is_bound:
                refuse(form, refusal)
            else:
                messages.error(request, refusal.message)
            answer = None
        if answer is not None:
            return answer
    found = selectors.assistants(access.tenant)
    uses = use_of(access.tenant, [one.published_id for one in found if one.published_id])
    rows: list[dict[str, Any]] = [
        {"one": one, "use": _use(uses.get(one.published_id)) if one.published_id else None} for one in found
    ]
    live = [row for row in rows if row["one"].archived_at is None]
    context = {
        "live": live,
        "archived": [row for row in rows if row["one"].archived_at is not None],
        "form": form,
        **SECTION,
    }
    return page(request, access, "tenant/prompts.html", context, status=400 if form.errors else 200)


def _list_action(request: HttpRequest, access: Access, form: AssistantForm) -> HttpResponse | None:
    action = request.POST.get("action", "")
    if action == "create":
        if not form.is_valid():
            return None
        if is_repeat(request):
            return _to(access, "tenant-prompts")
        made = services.create_assistant(access=access, **form.cleaned_data)
        return _to(access, "tenant-prompt", assistant_id=made.pk)
    if action in ("up", "down"):
        services.move_assistant(access=access, assistant_id=request.POST.get("assistant"), up=action == "up")
    elif action == "restore":
        services.restore_assistant(access=access, assistant_id=request.POST.get("assistant"))
        messages.success(request, _("The assistant can be chosen again."))
    else:
        raise BadInput(_("This page does not know that action."))
    return _to(access, "tenant-prompts")


def _use(use: Use | None) -> dict[str, Any]:
    use = use or Use()
    rate = use.hit_rate
    return {
        "answers": use.answers,
        "percent": round(100 * rate) if rate is not None else None,
        "saved_tokens": use.cached_tokens,
        "saved_s": use.saved_s,
    }


# --- the editor ---------------------------------------------------------------------------------------------------


@tenant_page(Permission.READ_PROMPTS, methods=BOTH)
def editor(request: HttpRequest, access: Access, assistant_id: UUID) -> HttpResponse:
    assistant = selectors.assistant(access.tenant, assistant_id)
    theirs: PromptVersion | None = None
    if request.method == "POST":
        access.require(Permission.EDIT_PROMPTS)
        form = DraftForm(request.POST)
        try:
            if form.is_valid():
                answer = _draft_action(request, access, assistant, form)
                if answer is not None:
                    return answer
        except Conflict as refusal:
            form.add_error(None, refusal.message)
            theirs = selectors.draft(assistant)
        except BadInput as refusal:
            refuse(form, refusal)
    else:
        form = _draft_form(assistant)
    return _editor_page(request, access, assistant, form, theirs)


def _draft_form(assistant: SystemPrompt) -> DraftForm:
    draft = selectors.draft(assistant)
    shown = draft or assistant.published
    return DraftForm(initial={"text": shown.text if shown else "", "revision": draft.revision if draft else 0})


def _set_revision(form: Form, revision: int) -> None:
    """What the page that is shown again says to have seen."""
    form.data = {**{name: form.data.get(name) for name in form.data}, "revision": str(revision)}


def _draft_action(
    request: HttpRequest, access: Access, assistant: SystemPrompt, form: DraftForm
) -> HttpResponse | None:
    here = _to(access, "tenant-prompt", assistant_id=assistant.pk)
    text, revision = form.cleaned_data["text"], form.cleaned_data["revision"]
    action = request.POST.get("action", "save")
    if is_repeat(request):
        return here
    if action == "discard":
        services.discard_draft(access=access, assistant_id=assistant.pk, revision=revision)
        messages.success(request, _("The draft is gone. What is published has not changed."))
        return here
    draft = services.save_draft(access=access, assistant_id=assistant.pk, text=text, revision=revision)
    # Whatever comes next is shown with the draft as it is now.
    _set_revision(form, draft.revision)
    if action == "publish":
        version = services.publish_draft(
            access=access, assistant_id=assistant.pk, note=form.cleaned_data["note"], revision=draft.revision
        )
        messages.success(request, _(PUBLISHED) % {"number": version.number})
        return here
    messages.success(request, _("The draft is saved. Nobody gets it before it is published."))
    return here


def _editor_page(
    request: HttpRequest, access: Access, assistant: SystemPrompt, form: Form, theirs: PromptVersion | None
) -> HttpResponse:
    tenant = access.tenant
    draft = selectors.draft(assistant)
    text = str(form["text"].value() or "")
    changes = None
    if theirs is not None:
        try:
            # What is written is about to go over what they have: show what that would change.
            changes = diff(theirs.text, clean_text(text))
            _set_revision(form, theirs.revision)
        except BadInput:
            changes = None
    ready = None
    if assistant.published is not None:
        try:
            ready = selectors.ready_workers(assistant.published, tenant)
        except redis.exceptions.RedisError:
            ready = None
    published_use = use_of(tenant, [assistant.published_id]) if assistant.published_id else {}
    newest = selectors.versions(assistant).first()
    data = {
        "api": f"/api/t/{tenant.slug}/prompts",
        "assistant": str(assistant.pk),
        "name": assistant.name,
        "socket": f"/ws/ui?tenant={tenant.slug}",
        "icons": static("vendor/icons.svg"),
        "draft": str(draft.pk) if draft else None,
        "published": str(assistant.published_id) if assistant.published_id else None,
        "unsaved": bool(form.is_bound),
    }
    context = {
        "assistant": assistant,
        "draft": draft,
        "form": form,
        "theirs": theirs,
        "changes": changes,
        "ready": ready,
        "use": _use(next(iter(published_use.values()), None)) if assistant.published_id else None,
        "next_number": ((newest.number or 0) if newest else 0) + 1,
        "editor": data,
        "may_try": access.may(Permission.CHAT) and access.may(Permission.EDIT_PROMPTS),
        "tab": "editor",
        **SECTION,
    }
    status = 409 if theirs is not None else 400 if form.errors else 200
    return page(request, access, "tenant/prompt.html", context, status=status)


# --- versions -----------------------------------------------------------------------------------------------------


@tenant_page(Permission.READ_PROMPTS)
def versions(request: HttpRequest, access: Access, assistant_id: UUID) -> HttpResponse:
    assistant = selectors.assistant(access.tenant, assistant_id)
    found = selectors.versions(assistant)
    before = request.GET.get("before", "")
    if before.isdecimal() and len(before) < 10:
        found = found.filter(number__lt=int(before))
    items = list(found[: PAGE + 1])
    older = items[PAGE - 1].number if len(items) > PAGE else None
    uses = use_of(access.tenant, [one.pk for one in items[:PAGE]])
    context = {
        "assistant": assistant,
        "draft": selectors.draft(assistant),
        "rows": [{"one": one, "use": _use(uses.get(one.pk))} for one in items[:PAGE]],
        "older": older,
        "before": before,
        "tab": "versions",
        **SECTION,
    }
    return page(request, access, "tenant/prompt_versions.html", context)


@tenant_page(Permission.READ_PROMPTS, methods=BOTH)
def version(request: HttpRequest, access: Access, version_id: UUID) -> HttpResponse:
    found = selectors.version(access.tenant, version_id)
    if found.is_draft:
        return _to(access, "tenant-prompt", assistant_id=found.prompt_id)
    form = NoteForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            if not is_repeat(request):
                made = services.roll_back(access=access, version_id=version_id, note=form.cleaned_data["note"])
                messages.success(
                    request,
                    " ".join(
                        [
                            _("The text of version %(number)s is back.") % {"number": found.number},
                            _(PUBLISHED) % {"number": made.number},
                        ]
                    ),
                )
            return _to(access, "tenant-prompt-versions", assistant_id=found.prompt_id)
        except (BadInput, Conflict) as refusal:
            refuse(form, refusal)
    context = {
        "assistant": selectors.assistant(access.tenant, found.prompt_id),
        "version": found,
        "use": _use(use_of(access.tenant, [found.pk]).get(found.pk)),
        "form": form,
        "tab": "versions",
        **SECTION,
    }
    return page(request, access, "tenant/prompt_version.html", context, status=400 if form.errors else 200)


@tenant_page(Permission.READ_PROMPTS)
def compare(request: HttpRequest, access: Access, version_id: UUID, other_id: UUID) -> HttpResponse:
    old, new = (selectors.version(access.tenant, pk) for pk in (version_id, other_id))
    if old.prompt_id != new.prompt_id:
        raise NotFound(_("These are versions of two assistants."))
    all_versions = list(selectors.versions(new.prompt)[:200])
    draft = selectors.draft(new.prompt)
    context = {
        "assistant": selectors.assistant(access.tenant, new.prompt_id),
        "old": old,
        "new": new,
        "changes": diff(old.text, new.text),
        "split": request.GET.get("view") != "unified",
        "choices": [*([draft] if draft else []), *all_versions],
        "tab": "versions",
        **SECTION,
    }
    return page(request, access, "tenant/prompt_diff.html", context)


# --- settings -----------------------------------------------------------------------------------------------------


@tenant_page(Permission.EDIT_PROMPTS, methods=BOTH)
def settings(request: HttpRequest, access: Access, assistant_id: UUID) -> HttpResponse:
    assistant = selectors.assistant(access.tenant, assistant_id)
    known = {"name": assistant.name, "description": assistant.description, "slug": assistant.slug}
    changing = request.method == "POST" and request.POST.get("action", "change") == "change"
    form = SettingsForm(request.POST if changing else None, initial=known)
    if request.method == "POST":
        try:
            if not changing:
                return _settings_action(request, access, assistant)
            if form.is_valid():
                services.change_assistant(access=access, assistant_id=assistant_id, **form.cleaned_data)
                messages.success(request, _("Saved."))
                return _to(access, "tenant-prompt-settings", assistant_id=assistant_id)
        except Forbidden:
            raise
        except Refusal as refusal:
            if changing:
                refuse(form, refusal)
            else:
                messages.error(request, refusal.message)
                return _to(access, "tenant-prompt-settings", assistant_id=assistant_id)
    context = {"assistant": assistant, "form": form, "tab": "settings", **SECTION}
    return page(request, access, "tenant/prompt_settings.html", context, status=400 if form.errors else 200)


def _settings_action(request: HttpRequest, access: Access, assistant: SystemPrompt) -> HttpResponse:
    action = request.POST.get("action")
    if action == "default":
        services.make_default(access=access, assistant_id=assistant.pk)
        messages.success(
            request, _("%(name)s answers now wherever nobody chooses another one.") % {"name": assistant.name}
        )
    elif action == "unpublish":
        services.unpublish(access=access, assistant_id=assistant.pk)
        messages.success(request, _("No instructions are in force any more. Every version can be rolled back to."))
    elif action == "archive":
        if request.POST.get("name", "").strip() != assistant.name:
            raise BadInput(_("Type the assistant's name to archive it."))
        services.archive_assistant(access=access, assistant_id=assistant.pk)
        messages.success(request, _("%(name)s is archived. It can be restored from here.") % {"name": assistant.name})
        return _to(access, "tenant-prompts")
    elif action == "restore":
        services.restore_assistant(access=access, assistant_id=assistant.pk)
        messages.success(request, _("%(name)s can be chosen again.") % {"name": assistant.name})
    else:
        raise BadInput(_("This page does not know that action."))
    return redirect(reverse("tenant-prompt-settings", args=[access.tenant.slug, assistant.pk]))
