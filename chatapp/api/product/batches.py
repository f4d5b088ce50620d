"""The batches of a team's keys by HTTP, for who looks after them; programs begin theirs at /v1/batches."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from ninja import Router, Schema

from chatapp.api.product.base import LIMIT, AccessRequest, ErrorAnswer, needs
from chatapp.batches import selectors, services
from chatapp.batches.models import Batch
from chatapp.tenants.permissions import Permission

router = Router(tags=["batches"])
REFUSED: dict[int, Any] = {
    400: ErrorAnswer, 401: ErrorAnswer, 403: ErrorAnswer, 404: ErrorAnswer, 409: ErrorAnswer,
}  # fmt: skip


class BatchOut(Schema):
    """`public_id`: as /v1/batches has it. `paused_because`: why it does not go on at the moment."""

    id: UUID
    public_id: str
    key: str | None
    endpoint: str
    status: str
    metadata: dict[str, str] | None
    total: int
    completed: int
    failed: int
    paused_because: str
    created_at: datetime
    expires_at: datetime

    @staticmethod
    def resolve_key(row: Batch) -> str | None:
        return str(row.key) if row.key is not None else None

    @staticmethod
    def resolve_completed(row: Batch) -> int:
        return selectors.counts(row)[1]

    @staticmethod
    def resolve_failed(row: Batch) -> int:
        return selectors.counts(row)[2]


class Batches(Schema):
    items: list[BatchOut]
    next: str | None


@router.get(
    "/t/{slug}/batches", response={200: Batches, **REFUSED}, auth=needs(Permission.READ_KEYS), summary="List batches"
)
def list_batches(request: AccessRequest, slug: str, cursor: str = "", limit: int = LIMIT) -> Any:
    """Newest first; those that have ended are kept for 90 days."""
    found = selectors.of_team(request.auth, cursor=cursor, limit=limit)
    return {"items": list(found.items), "next": found.next}


@router.get(
    "/t/{slug}/batches/{uuid:batch_id}",
    response={200: BatchOut, **REFUSED},
    auth=needs(Permission.READ_KEYS),
    summary="How a batch stands",
)
def read_batch(request: AccessRequest, slug: str, batch_id: UUID) -> Any:
    return selectors.one_of_team(request.auth, batch_id)


@router.post(
    "/t/{slug}/batches/{uuid:batch_id}/cancel",
    response={200: BatchOut, **REFUSED},
    auth=needs(Permission.MANAGE_KEYS),
    summary="Cancel a batch and keep what is done",
)
def cancel_batch(request: AccessRequest, slug: str, batch_id: UUID) -> Any:
    return services.cancel_for_team(access=request.auth, batch_id=batch_id)
