"""What the addresses below /v1 take and give, said once: for the OpenAPI document, and for the tests that try all of
them. Each module of views lists its own as OPERATIONS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Operation:
    """`path` as in OpenAPI ("/v1/files/{file_id}"); `body`, `answer`, `event`: msgspec structs (`event`: of a stream
    that `stream: true` asks for); `query`: names and types; `form`: fields of a multipart body, str or bytes."""

    method: str
    path: str
    summary: str
    body: Any = None
    answer: Any = None
    event: Any = None
    query: Mapping[str, Any] = field(default_factory=dict)
    form: Mapping[str, type] = field(default_factory=dict)
    status: int = 200
