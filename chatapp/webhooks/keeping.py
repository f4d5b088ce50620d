"""The secrets of an endpoint, as they are kept: sealed, the newest first, a former one for a day."""

from __future__ import annotations

from datetime import datetime, timedelta

from chatapp.sealing import seal, unseal
from chatapp.webhooks import signing
from chatapp.webhooks.models import WebhookEndpoint

PURPOSE = "webhook secret"
# How long a secret signs on, beside the one that has replaced it.
OVERLAP = timedelta(hours=24)


def give_secret(endpoint: WebhookEndpoint) -> str:
    """A first secret, to be shown once. The caller saves the row."""
    secret = signing.new_secret()
    endpoint.sealed_secret = seal(secret, purpose=PURPOSE)
    return secret


def replace_secret(endpoint: WebhookEndpoint, now: datetime) -> str:
    endpoint.former_sealed_secret, endpoint.former_until = endpoint.sealed_secret, now + OVERLAP
    return give_secret(endpoint)


def secrets_of(endpoint: WebhookEndpoint, now: datetime) -> list[str]:
    """Those that sign now. Raises Unreadable."""
    found = [unseal(endpoint.sealed_secret, purpose=PURPOSE)]
    if endpoint.former_sealed_secret and endpoint.former_until is not None and endpoint.former_until > now:
        found.append(unseal(endpoint.former_sealed_secret, purpose=PURPOSE))
    return found
