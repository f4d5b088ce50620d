"""A team's API keys by HTTP. A secret is in the answer that makes it, and in no other."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from ninja import Router, Schema, Status

from chatapp.api.product.base import LIMIT, AccessRequest, needs
from chatapp.tenants import key_selectors, keys
from chatapp.tenants.models import ApiKey
from chatapp.tenants.permissions import Permission

router = Router(tags=["keys"])


class Key(Schema):
    id: UUID
    name: str
    prefix: str
    state: str
    scopes: list[str]
    allowed_origins: list[str]
    allowed_networks: list[str]
    created_at: datetime
    created_by: str | None
    expires_at: datetime | None
    last_used_at: datetime | None
    last_used_address: str | None
    revoked_at: datetime | None
    replaces: UUID | None
    replaced_by: UUID | None

    @staticmethod
    def resolve_state(key: ApiKey) -> str:
        return key.state.value

    @staticmethod
    def resolve_created_by(key: ApiKey) -> str | None:
        """Who made it: a person's address, or the key that was used."""
        maker = key.created_by or key.created_with
        return str(maker) if maker is not None else None

    @staticmethod
    def resolve_replaces(key: ApiKey) -> UUID | None:
        return key.replaces_id

    @staticmethod
    def resolve_replaced_by(key: ApiKey) -> UUID | None:
        successor = getattr(key, "successor", None)
        return successor.pk if successor is not None else None


class Keys(Schema):
    items: list[Key]
    next: str | None


class NewKey(Schema):
    """`secret` is shown here once."""

    key: Key
    secret: str


class Wanted(Schema):
    name: str
    scopes: list[str] = ["chat"]
    expires_at: datetime | None = None
    allowed_origins: list[str] = []
    allowed_networks: list[str] = []


class Changes(Schema):
    """What is left out stays; null takes an expiry away, an empty list a limit."""

    name: str = ""
    scopes: list[str] = []
    expires_at: datetime | None = None
    allowed_origins: list[str] = []
    allowed_networks: list[str] = []


class Rotation(Schema):
    """`overlap`: how long the old key goes on working: "0", "1h", "24h" or "7d"."""

    overlap: str = keys.Overlap.DAY.value


@router.get("/t/{slug}/keys", response=Keys, auth=needs(Permission.READ_KEYS), summary="List keys")
def list_keys(
    request: Any, slug: str, state: str = key_selectors.WORKING, q: str = "", cursor: str = "", limit: int = LIMIT
) -> Any:
    found = key_selectors.keys(request.auth, state=state, text=q, cursor=cursor, limit=limit)
    return {"items": list(found.items), "next": found.next}


@router.post("/t/{slug}/keys", response={201: NewKey}, auth=needs(Permission.MANAGE_KEYS), summary="Create a key")
def create_key(request: Any, slug: str, data: Wanted) -> Any:
    key, secret = keys.create_key(access=request.auth, **data.dict())
    return Status(201, {"key": key, "secret": secret})


@router.get("/t/{slug}/keys/{uuid:key_id}", response=Key, auth=needs(Permission.READ_KEYS), summary="Read a key")
def read_key(request: Any, slug: str, key_id: UUID) -> Any:
    return key_selectors.key(request.auth, key_id)


@router.patch(
    "/t/{slug}/keys/{uuid:key_id}", response=Key, auth=needs(Permission.MANAGE_KEYS), summary="Change a key's limits"
)
def change_key(request: Any, slug: str, key_id: UUID, data: Changes) -> Any:
    return keys.change_key(access=request.auth, key_id=key_id, changes=data.dict(exclude_unset=True))


@router.post(
    "/t/{slug}/keys/{uuid:key_id}/rotate",
    response={201: NewKey},
    auth=needs(Permission.MANAGE_KEYS),
    summary="Replace a key by a successor with the same rights",
)
def rotate_key(request: Any, slug: str, key_id: UUID, data: Rotation) -> Any:
    key, secret = keys.rotate_key(access=request.auth, key_id=key_id, overlap=data.overlap)
    return Status(201, {"key": key, "secret": secret})


@router.delete(
    "/t/{slug}/keys/{uuid:key_id}", response=Key, auth=needs(Permission.MANAGE_KEYS), summary="Revoke a key for good"
)
def revoke_key(request: AccessRequest, slug: str, key_id: UUID) -> Any:
    return keys.revoke_key(access=request.auth, key_id=key_id)
