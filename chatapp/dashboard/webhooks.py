"""A team's webhooks: the list, one with what was sent to it, and one delivery with its payload.

A secret is in the answer to the form that made it, and on no other page: a reload that sends the form again is known as
a repeat, and leads to the list.
"""

from __future__ import annotations

import json
import time
import uuid

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _l
from django.utils.translation import gettext_noop as _n

from chatapp.dashboard.webhooks_forms import DeleteForm, WebhookForm
from chatapp.errors import BadInput, Conflict, Refusal
from chatapp.tenants.access import Access
from chatapp.tenants.pages import is_repeat, page, refuse, tenant_page
from chatapp.tenants.permissions import Permission
from chatapp.webhooks import selectors, services
from chatapp.webhooks.kinds import EVENTS
from chatapp.webhooks.models import DeliveryState, WebhookDelivery, WebhookEndpoint

P = Permission.MANAGE_WEBHOOKS
TABS = ((selectors.ALL, _l("All")), *((state.value, state.label) for state in DeliveryState))
ALREADY = _n("This form was sent before, and did its work then. A secret is shown once: rotate it if you have no copy.")
# A receiver that works answers sooner; for others the page says later what came of it.
PATIENCE_S = 2.0
LOOK_EVERY_S = 0.1
EXAMPLE = json.dumps(
    {
        "type": "member.joined",
        "timestamp": "2026-11-30T09:41:07.318Z",
        "data": {"id": "01938f5e…", "email": "ada@example.com", "role": "member", "by": "invitation"},
    },
    indent=2,
    ensure_ascii=False,
)


@tenant_page(P)
def index(request: HttpRequest, access: Access) -> HttpResponse:
    context = {
        "webhooks": list(selectors.endpoints(access)),
        "most": services.MOST_ENDPOINTS,
        "kinds": EVENTS.items(),
        "example": EXAMPLE,
    }
    return page(request, access, "tenant/webhooks.html", context)


@tenant_page(P, methods=("GET", "HEAD", "POST"))
def create(request: HttpRequest, access: Access) -> HttpResponse:
    form = WebhookForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        if is_repeat(request):
            messages.warning(request, _(ALREADY))
            return redirect("tenant-webhooks", access.tenant.slug)
        try:
            webhook, secret = services.create(access=access, **form.cleaned_data)
            return _show_once(request, access, webhook, secret)
        except (BadInput, Conflict) as refusal:
            refuse(form, refusal)
    context = {"form": form, "section": "tenant-webhooks"}
    return page(request, access, "tenant/webhook_new.html", context, status=400 if form.errors else 200)


@tenant_page(P, methods=("GET", "HEAD", "POST"))
def detail(request: HttpRequest, access: Access, webhook_id: uuid.UUID) -> HttpResponse:
    webhook = selectors.endpoint(access, webhook_id)
    if request.method != "POST":
        return _detail(request, access, webhook)
    form = WebhookForm(request.POST, webhook=webhook)
    if form.is_valid():
        try:
            services.change(access=access, webhook_id=webhook_id, changes=form.cleaned_data)
            messages.success(request, _("Saved."))
            return redirect("tenant-webhook", access.tenant.slug, webhook_id)
        except BadInput as refusal:
            refuse(form, refusal)
    return _detail(request, access, webhook, form=form)


@tenant_page(P, methods=("POST",))
def switch(request: HttpRequest, access: Access, webhook_id: uuid.UUID) -> HttpResponse:
    on = request.POST.get("enabled") == "yes"
    services.change(access=access, webhook_id=webhook_id, changes={"enabled": on})
    messages.success(
        request, _("The webhook is on.") if on else _("The webhook is off. What happens now is not kept for it.")
    )
    return redirect("tenant-webhook", access.tenant.slug, webhook_id)


@tenant_page(P, methods=("POST",))
def rotate(request: HttpRequest, access: Access, webhook_id: uuid.UUID) -> HttpResponse:
    if is_repeat(request):
        messages.warning(request, _(ALREADY))
        return redirect("tenant-webhook", access.tenant.slug, webhook_id)
    return _show_once(request, access, *services.rotate(access=access, webhook_id=webhook_id))


@tenant_page(P, methods=("POST",))
def test(request: HttpRequest, access: Access, webhook_id: uuid.UUID) -> HttpResponse:
    try:
        sent = services.send_test(access=access, webhook_id=webhook_id)
    except Conflict as refusal:
        messages.error(request, refusal.message)
        return redirect("tenant-webhook", access.tenant.slug, webhook_id)
    return _sent(request, access, sent)


@tenant_page(P, methods=("POST",))
def delete(request: HttpRequest, access: Access, webhook_id: uuid.UUID) -> HttpResponse:
    webhook = selectors.endpoint(access, webhook_id)
    form = DeleteForm(request.POST, webhook=webhook)
    if not form.is_valid():
        return _detail(request, access, webhook, deletion=form)
    services.delete(access=access, webhook_id=webhook_id)
    messages.success(request, _("The webhook to %(host)s is deleted.") % {"host": form.host})
    return redirect("tenant-webhooks", access.tenant.slug)


@tenant_page(P)
def delivery(request: HttpRequest, access: Access, webhook_id: uuid.UUID, delivery_id: uuid.UUID) -> HttpResponse:
    found = selectors.delivery(access, webhook_id, delivery_id)
    context = {
        "delivery": found,
        "webhook": found.endpoint,
        "payload": json.dumps(found.payload, indent=2, ensure_ascii=False),
        "section": "tenant-webhooks",
    }
    return page(request, access, "tenant/webhook_delivery.html", context)


@tenant_page(P, methods=("POST",))
def again(request: HttpRequest, access: Access, webhook_id: uuid.UUID, delivery_id: uuid.UUID) -> HttpResponse:
    try:
        sent = services.send_again(access=access, webhook_id=webhook_id, delivery_id=delivery_id)
    except Conflict as refusal:
        messages.error(request, refusal.message)
        return redirect("tenant-webhook-delivery", access.tenant.slug, webhook_id, delivery_id)
    return _sent(request, access, sent)


# --- parts --------------------------------------------------------------------------------------------------------


def _detail(
    request: HttpRequest,
    access: Access,
    webhook: WebhookEndpoint,
    *,
    form: WebhookForm | None = None,
    deletion: DeleteForm | None = None,
) -> HttpResponse:
    state = request.GET.get("state") or selectors.ALL
    cursor = request.GET.get("cursor", "")
    try:
        found = selectors.deliveries(access, webhook.pk, state=state, cursor=cursor)
    except BadInput:  # an address that someone has edited
        return redirect("tenant-webhook", access.tenant.slug, webhook.pk)
    context = {
        "webhook": webhook,
        "form": form or WebhookForm(webhook=webhook),
        "deletion": deletion or DeleteForm(webhook=webhook),
        "refused": deletion is not None,
        "deliveries": found.items,
        "next": found.next,
        "first": not cursor,
        "state": state,
        "tabs": TABS,
        "any": bool(found.items) or webhook.deliveries.exists(),
        "section": "tenant-webhooks",
    }
    bad = any(given is not None and given.errors for given in (form, deletion))
    return page(request, access, "tenant/webhook.html", context, status=400 if bad else 200)


def _show_once(request: HttpRequest, access: Access, webhook: WebhookEndpoint, secret: str) -> HttpResponse:
    context = {
        "webhook": webhook,
        "secret": secret,
        "rotated": webhook.former_until is not None,
        "section": "tenant-webhooks",
    }
    return page(request, access, "tenant/webhook_secret.html", context, status=201)


def _sent(request: HttpRequest, access: Access, sent: WebhookDelivery) -> HttpResponse:
    """To the page of the delivery, with what came of it where that was quick."""
    end = time.monotonic() + PATIENCE_S
    before = sent.attempts
    while sent.attempts == before and time.monotonic() < end:
        time.sleep(LOOK_EVERY_S)
        try:
            sent = selectors.delivery(access, sent.endpoint_id, sent.pk)
        except Refusal:  # deleted meanwhile
            return redirect("tenant-webhooks", access.tenant.slug)
    if sent.state == DeliveryState.DELIVERED:
        messages.success(
            request,
            _("It was taken: %(status)s within %(n)s ms.") % {"status": sent.response_status, "n": sent.took_ms},
        )
    elif sent.attempts > before:
        messages.error(request, _("It was not taken. %(error)s") % {"error": sent.error})
    else:
        messages.warning(request, _("It is on its way. Load this page again to see what came of it."))
    return redirect("tenant-webhook-delivery", access.tenant.slug, sent.endpoint_id, sent.pk)
