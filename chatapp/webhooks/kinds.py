"""What a webhook can be told of. Whoever tells something new (chatapp.events) adds it here."""

from __future__ import annotations

from django.utils.translation import gettext_noop as _n

EVENTS: dict[str, str] = {
    "batch.completed": _n("A batch has ended, with its results as a file"),
    "batch.failed": _n("A batch was refused: its file has mistakes"),
    "batch.expired": _n("A batch did not end within its time; what was done is there"),
    "batch.cancelled": _n("A batch was cancelled; what was done is there"),
    "budget.threshold": _n("80 % or 100 % of the month's tokens are used"),
    "member.joined": _n("Somebody has become a member of the team"),
}
# Sent when somebody asks for it, whatever an endpoint is for.
TEST = "webhook.test"
