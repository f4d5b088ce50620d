"""A file as JSON for the browser and the product's API: what people may know of one that is theirs."""

from __future__ import annotations

from typing import Any

from chatapp.files.models import Reading, StoredFile


def file(found: StoredFile, reading: Reading | None = None, tokens: int | None = None) -> dict[str, Any]:
    """`state`: queued, running, ready or failed; then `error` says why. `tokens`: what it takes in a prompt, where that
    is known."""
    if reading is None:
        reading = getattr(found, "reading", None)
    if tokens is None and reading is not None:
        tokens = next(iter(reading.tokens.values()), None)
    return {
        "id": found.public_id,
        "name": found.name,
        "bytes": found.bytes,
        "created_at": found.created_at.isoformat(),
        "state": reading.state if reading is not None else "queued",
        "kind": (reading.kind or None) if reading is not None else None,
        "pages": reading.pages if reading is not None else None,
        "tokens": tokens,
        "error": {"code": reading.error_code, "message": reading.error} if reading and reading.error else None,
    }
