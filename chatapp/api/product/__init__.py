"""The product's own HTTP API under /api/: what its pages can do, for programs.

`api` is a django-ninja API; each module beside this one adds a router with one topic's operations.
"""

from __future__ import annotations

from chatapp.api.product import (
    audit,
    batches,
    conversations,
    dashboard,
    data,
    feedback,
    files,
    invitations,
    keys,
    library,
    limits,
    members,
    memory,
    moving,
    prompts,
    shares,
    sign_in,
    team,
    usage,
    webhooks,
)
from chatapp.api.product.base import api

api.add_router("", team.router)
api.add_router("", conversations.router)
api.add_router("", library.router)
api.add_router("", files.router)
api.add_router("", members.router)
api.add_router("", invitations.router)
api.add_router("", audit.router)
api.add_router("", keys.router)
api.add_router("", usage.router)
api.add_router("", dashboard.router)
api.add_router("", memory.router)
api.add_router("", data.router)
api.add_router("", prompts.router)
api.add_router("", sign_in.router)
api.add_router("", limits.router)
api.add_router("", webhooks.router)
api.add_router("", batches.router)
api.add_router("", moving.router)
api.add_router("", shares.router)
api.add_router("", feedback.router)

__all__ = ["api"]
