"""What a webhook can be told of. Whoever tells something new (chatapp.events) adds it here."""

from __future__ import annotations

EVENTS: dict[str, str] = {
    "batch.completed": "A batch has ended, with its results as a file",
    "batch.failed": "A batch was refused: its file has mistakes",
    "batch.expired": "A batch did not end within its time; what was done is there",
    "batch.cancelled": "A batch was cancelled; what was done is there",
    "budget.threshold": "80 % or 100 % of the month's tokens are used",
    "member.joined": "Somebody has become a member of the team",
}
# Sent when somebody asks for it, whatever an endpoint is for.
TEST = "webhook.test"
