"""What people and programs do to a team's webhooks. Each change is in the audit log; a secret is returned once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.accounts.text import one_line
from chatapp.audit.services import record
from chatapp.errors import BadInput, Conflict
from chatapp.ids import new_id
from chatapp.tenants.access import Access
from chatapp.tenants.models import Tenant
from chatapp.tenants.permissions import Permission
from chatapp.webhooks import outbox, selectors, targets
from chatapp.webhooks.keeping import give_secret, replace_secret
from chatapp.webhooks.kinds import EVENTS, TEST
from chatapp.webhooks.models import LONGEST_DESCRIPTION, WebhookDelivery, WebhookEndpoint
from chatapp.webhooks.sending import switch_off

MOST_ENDPOINTS = 20
CHANGES = ("url", "description", "events", "enabled")


@transaction.atomic
def create(*, access: Access, url: str, events: Iterable[str], description: str = "") -> tuple[WebhookEndpoint, str]:
    """The endpoint and its secret. Raises BadInput, Conflict when there are too many, Forbidden."""
    access.require(Permission.MANAGE_WEBHOOKS)
    url, chosen, description = targets.checked(url), _events(events), _description(description)
    Tenant.objects.select_for_update(no_key=True).get(pk=access.tenant.pk)  # those who count see each other
    if WebhookEndpoint.objects.filter(tenant=access.tenant).count() >= MOST_ENDPOINTS:
        raise Conflict(
            _("A team has %(most)s webhooks at most. Delete one that is not needed any more.")
            % {"most": MOST_ENDPOINTS}
        )
    endpoint = WebhookEndpoint(
        tenant=access.tenant,
        url=url,
        description=description,
        events=chosen,
        created_by=access.user,
        created_by_name=access.actor.name,
    )
    secret = give_secret(endpoint)
    endpoint.save()
    details = {"events": ", ".join(chosen)}
    record("webhook.created", actor=access.actor, tenant=access.tenant, on=endpoint, details=details)
    return endpoint, secret


@transaction.atomic
def change(*, access: Access, webhook_id: object, changes: Mapping[str, Any]) -> WebhookEndpoint:
    """What is not in `changes` (url, description, events, enabled) stays. Raises BadInput, NotFound, Forbidden."""
    endpoint = _locked(access, webhook_id)
    unknown = set(changes) - set(CHANGES)
    assert not unknown, unknown
    before = {name: getattr(endpoint, name) for name in CHANGES}
    if "url" in changes and changes["url"] != endpoint.url:
        endpoint.url = targets.checked(changes["url"])
    if "description" in changes:
        endpoint.description = _description(changes["description"])
    if "events" in changes:
        endpoint.events = _events(changes["events"])
    endpoint.enabled = bool(changes.get("enabled", endpoint.enabled))
    after = {name: getattr(endpoint, name) for name in CHANGES}
    if before == after:
        return endpoint
    if endpoint.enabled and not before["enabled"]:
        endpoint.disabled_because, endpoint.failing_since, endpoint.missed = "", None, 0
    if endpoint.url != before["url"]:
        endpoint.failing_since = None  # of the new one nothing is known yet
    endpoint.save()
    if before["enabled"] and not endpoint.enabled:
        switch_off(endpoint)
    changed = {name: [_told(before[name]), _told(after[name])] for name in CHANGES if before[name] != after[name]}
    record("webhook.changed", actor=access.actor, tenant=access.tenant, on=endpoint, details=changed)
    endpoint.refresh_from_db()
    return endpoint


@transaction.atomic
def rotate(*, access: Access, webhook_id: object) -> tuple[WebhookEndpoint, str]:
    """A new secret; the former one signs beside it for a day. Raises NotFound, Forbidden."""
    endpoint = _locked(access, webhook_id)
    secret = replace_secret(endpoint, timezone.now())
    endpoint.save(update_fields=["sealed_secret", "former_sealed_secret", "former_until"])
    record("webhook.rotated", actor=access.actor, tenant=access.tenant, on=endpoint)
    return endpoint, secret


@transaction.atomic
def delete(*, access: Access, webhook_id: object) -> None:
    """With all that is known of its deliveries. Raises NotFound, Forbidden."""
    endpoint = _locked(access, webhook_id)
    record("webhook.deleted", actor=access.actor, tenant=access.tenant, on=endpoint)
    endpoint.deliveries.all().delete()
    endpoint.delete()


@transaction.atomic
def send_test(*, access: Access, webhook_id: object) -> WebhookDelivery:
    """A test event, on its way at once. Raises Conflict where it is off or too much waits, NotFound, Forbidden."""
    endpoint = _locked(access, webhook_id)
    _refuse_unready(endpoint)
    data = {"message": f"This is a test of the webhook of {access.tenant.name}.", "team": access.tenant.slug}
    delivery = outbox.write(endpoint, new_id(), TEST, outbox.payload_of(TEST, data))
    record("webhook.tested", actor=access.actor, tenant=access.tenant, on=endpoint)
    return delivery


@transaction.atomic
def send_again(*, access: Access, webhook_id: object, delivery_id: object) -> WebhookDelivery:
    """The same event, as a delivery of its own with all its attempts; the former stays as it was. Raises Conflict while
    that is still on its way, NotFound, Forbidden."""
    endpoint = _locked(access, webhook_id)
    former = selectors.delivery(access, webhook_id, delivery_id)
    if former.next_attempt_at is not None:
        # Somebody who does not want to wait for the next attempt.
        WebhookDelivery.objects.filter(pk=former.pk).update(next_attempt_at=timezone.now())
        transaction.on_commit(lambda: outbox.start(endpoint.pk), robust=True)
        former.refresh_from_db()
        delivery = former
    else:
        _refuse_unready(endpoint)
        delivery = outbox.write(endpoint, former.event, former.kind, former.payload)
    details = {"event": former.kind, "id": former.message_id}
    record("webhook.sent_again", actor=access.actor, tenant=access.tenant, on=endpoint, details=details)
    return delivery


# --- parts --------------------------------------------------------------------------------------------------------


def _locked(access: Access, webhook_id: object) -> WebhookEndpoint:
    found = selectors.endpoint(access, webhook_id)
    return WebhookEndpoint.objects.select_for_update().get(pk=found.pk)


def _refuse_unready(endpoint: WebhookEndpoint) -> None:
    if not endpoint.enabled:
        raise Conflict(_("This webhook is off. Switch it on first."))
    if outbox.full(endpoint):
        raise Conflict(
            _("%(most_pending)s deliveries wait for this webhook already. See first why none is taken.")
            % {"most_pending": outbox.MOST_PENDING}
        )


def _events(events: Iterable[str]) -> list[str]:
    wanted = set(events)
    for kind in sorted(wanted - EVENTS.keys()):
        raise BadInput(
            _("%(text)s is no event; there are %(choices)s.")
            % {"text": f"{kind[:60]!r}", "choices": ", ".join(EVENTS)},
            param="events",
        )
    if not wanted:
        raise BadInput(_("Choose at least one event."), param="events")
    return [kind for kind in EVENTS if kind in wanted]


def _description(text: str) -> str:
    line = one_line(text)
    if len(line) > LONGEST_DESCRIPTION:
        raise BadInput(
            _("A description has %(most)s characters at most; this has %(n)s.")
            % {"most": LONGEST_DESCRIPTION, "n": len(line)},
            param="description",
        )
    return line


def _told(value: Any) -> Any:
    return ", ".join(value) if isinstance(value, list) else value
