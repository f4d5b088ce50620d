"""A team's API keys: the list, and one key with what can be done to it.

A new secret is in the answer to the form that made it, and is kept nowhere: a reload that sends the form again is
known as a repeat, and leads to the list.
"""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _l
from django.utils.translation import gettext_noop as _n

from chatapp.dashboard.keys_forms import FIELDS, KeyForm, RevokeForm, RotateForm
from chatapp.errors import Refusal
from chatapp.tenants import key_selectors, keys
from chatapp.tenants.access import Access
from chatapp.tenants.models import ApiKey, KeyScope, KeyState
from chatapp.tenants.pages import is_repeat, page, refuse, tenant_page
from chatapp.tenants.permissions import Permission
from chatapp.zones import reader_zone

TABS = (
    (key_selectors.WORKING, _l("Working")),
    (KeyState.EXPIRED.value, _l("Expired")),
    (KeyState.REVOKED.value, _l("Revoked")),
    (key_selectors.ALL, _l("All")),
)
ALREADY = _n(
    "This form was sent before, and did its work then. A key is shown once: if you have not copied it, rotate it."
)


@tenant_page(Permission.READ_KEYS)
def index(request: HttpRequest, access: Access) -> HttpResponse:
    state = request.GET.get("state") or key_selectors.WORKING
    text = request.GET.get("q", "")[:200]
    try:
        found = key_selectors.keys(access, state=state, text=text, cursor=request.GET.get("cursor", ""))
    except Refusal:  # an address that someone has edited
        return redirect("tenant-keys", access.tenant.slug)
    context = {
        "keys": found.items,
        "next": found.next,
        "first": not request.GET.get("cursor"),
        "state": state,
        "q": text,
        "tabs": TABS,
        "any": bool(found.items) or key_selectors.count(access) > 0,
    }
    return page(request, access, "tenant/keys.html", context)


@tenant_page(Permission.MANAGE_KEYS, methods=("GET", "HEAD", "POST"))
def create(request: HttpRequest, access: Access) -> HttpResponse:
    form = KeyForm(request.POST or None, zone=reader_zone(request))
    if request.method == "POST" and form.is_valid():
        if is_repeat(request):
            messages.warning(request, _(ALREADY))
            return redirect("tenant-keys", access.tenant.slug)
        try:
            key, secret = keys.create_key(access=access, **form.wanted)
            return _show_once(request, access, key, secret)
        except Refusal as refusal:
            _refuse(form, refusal)
    return page(request, access, "tenant/key_new.html", {"form": form, "section": "tenant-keys"}, status=_status(form))


@tenant_page(Permission.READ_KEYS, methods=("GET", "HEAD", "POST"))
def detail(request: HttpRequest, access: Access, key_id: uuid.UUID) -> HttpResponse:
    key = key_selectors.key(access, key_id)
    if request.method != "POST":
        return _detail(request, access, key)
    access.require(Permission.MANAGE_KEYS)
    form = KeyForm(request.POST, zone=reader_zone(request), key=key)
    if form.is_valid():
        try:
            keys.change_key(access=access, key_id=key_id, changes=form.wanted)
            messages.success(request, _("Saved. It holds from now on, for open connections too."))
            return redirect("tenant-key", access.tenant.slug, key_id)
        except Refusal as refusal:
            _refuse(form, refusal)
    return _detail(request, access, key, form=form)


@tenant_page(Permission.MANAGE_KEYS, methods=("GET", "HEAD", "POST"))
def rotate(request: HttpRequest, access: Access, key_id: uuid.UUID) -> HttpResponse:
    key = key_selectors.key(access, key_id)
    form = RotateForm(request.POST)
    if request.method != "POST":
        return redirect("tenant-key", access.tenant.slug, key_id)
    if not form.is_valid():
        return _detail(request, access, key, rotation=form)
    if is_repeat(request):
        messages.warning(request, _(ALREADY))
        return redirect("tenant-keys", access.tenant.slug)
    try:
        new, secret = keys.rotate_key(access=access, key_id=key_id, overlap=form.cleaned_data["overlap"])
    except Refusal as refusal:
        messages.error(request, refusal.message)
        return redirect("tenant-key", access.tenant.slug, key_id)
    return _show_once(request, access, new, secret)


@tenant_page(Permission.MANAGE_KEYS, methods=("GET", "HEAD", "POST"))
def revoke(request: HttpRequest, access: Access, key_id: uuid.UUID) -> HttpResponse:
    key = key_selectors.key(access, key_id)
    form = RevokeForm(request.POST, key=key)
    if request.method != "POST":
        return redirect("tenant-key", access.tenant.slug, key_id)
    if not form.is_valid():
        return _detail(request, access, key, revocation=form)
    keys.revoke_key(access=access, key_id=key_id)
    messages.success(request, _("%(name)s is revoked. Its open connections end within a second.") % {"name": key.name})
    return redirect("tenant-keys", access.tenant.slug)


def _detail(
    request: HttpRequest,
    access: Access,
    key: ApiKey,
    *,
    form: KeyForm | None = None,
    rotation: RotateForm | None = None,
    revocation: RevokeForm | None = None,
) -> HttpResponse:
    context: dict[str, Any] = {
        "key": key,
        "section": "tenant-keys",
        "successor": getattr(key, "successor", None),
        "scopes": [KeyScope(scope).label for scope in key.scopes if scope in KeyScope.values],
        "form": form or KeyForm(zone=reader_zone(request), key=key),
        "rotation": rotation or RotateForm(),
        "revocation": revocation or RevokeForm(key=key),
    }
    context["refused"] = revocation is not None and bool(revocation.errors)
    bad = any(given is not None and given.errors for given in (form, rotation, revocation))
    return page(request, access, "tenant/key.html", context, status=400 if bad else 200)


def _show_once(request: HttpRequest, access: Access, key: ApiKey, secret: str) -> HttpResponse:
    context = {"key": key, "secret": secret, "section": "tenant-keys", "url": request.build_absolute_uri("/v1")}
    return page(request, access, "tenant/key_secret.html", context, status=201)


def _refuse(form: KeyForm, refusal: Refusal) -> None:
    refusal.param = FIELDS.get(refusal.param or "", refusal.param)
    refuse(form, refusal)


def _status(form: KeyForm) -> int:
    return 400 if form.errors else 200
