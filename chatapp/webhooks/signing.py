"""Signatures in the form of the Standard Webhooks specification: HMAC-SHA256 over id, moment and body.

A secret is "whsec_" and base64 of 24 to 64 random bytes. While a former secret still holds, both have signed, so that a
receiver can change its own at any moment in between.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable

PREFIX = "whsec_"
BYTES = 32


def new_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(BYTES)).decode()


def headers(*, message_id: str, at: int, body: bytes, keys: Iterable[str]) -> dict[str, str]:
    """`at`: seconds of Unix time, of this attempt; `keys`: the secrets that hold, the newest first."""
    signed = b".".join((message_id.encode(), str(at).encode(), body))
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{_signature(key, signed)}" for key in keys),
    }


def _signature(secret: str, signed: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(PREFIX))
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
