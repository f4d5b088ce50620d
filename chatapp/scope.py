"""Whose rows the running code may touch: one tenant's, or every tenant's under a name that says who needs that.

Code that serves a request works in the scope of its Access. Rows of a tenant are read through managers that filter by
it (chatapp.owned), and raise NoScope where nobody said whose rows are meant: forgetting a filter cannot show a foreign
row. On PostgreSQL row-level security follows the same scope (chatapp.postgresql), so that even SQL is held to it.

The scope belongs to the context: threads that asgiref or asyncio.to_thread start, and tasks, inherit it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

# Who may see the rows of every tenant, and why. A test holds the code to this list.
UNSCOPED = {
    "access": "finds out whose request it is: keys, memberships and sessions of anyone",
    "invitations": "finds the invitation that a signed link names, for somebody who is no member yet",
    "own teams": "lists the teams of the person who asks",
    "own account": "notes what a person does to the own account in the platform's log, which is no team's",
    "sign-in": "finds the team whose sign-in service somebody comes from",
    "recorder": "writes ended generations of all tenants",
    "reaper": "finishes what a crash left of all tenants",
    "greeting": "tells a new engine of the published prompts of the tenants that it serves",
    "admin": "the operators' administration; it shows no chats",
    "commands": "management commands, which an operator runs",
    "data jobs": "finds exports, retention and deletions that are due; each then works in its tenant's scope",
    "own data": "gathers or deletes what one person has, in all their teams",
    "batches": "finds batches that have something to do; each is then worked on in its team's scope",
    "titles": "finds the conversation that a title is to be written for; that is then done in its team's scope",
    "webhooks": "finds endpoints that something is due at; each is then sent to in its team's scope",
    "set-up": "makes the first team before anybody belongs to one",
    "demo": "makes the demo's teams",
    "break-glass": "finds an operator's own readings of chats, and ends those whose time is over",
    "tests": "tests look at the rows of all",
}


class NoScope(Exception):
    """Rows of a tenant were asked for, and nobody had said of which."""


@dataclass(frozen=True)
class Scope:
    """`tenant` None: every tenant's rows, under a name out of UNSCOPED."""

    tenant: uuid.UUID | None
    name: str


_current: ContextVar[Scope | None] = ContextVar("scope", default=None)


def current() -> Scope | None:
    return _current.get()


def enter(tenant: Any) -> None:
    """From here to the end of this task or request: this tenant's rows. For code that is given its context."""
    _current.set(Scope(tenant.pk, "tenant"))


@contextmanager
def tenant_scope(tenant: Any) -> Iterator[None]:
    """`tenant`: a Tenant, or its id."""
    token = _current.set(Scope(getattr(tenant, "pk", tenant), "tenant"))
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def unscoped(name: str) -> Iterator[None]:
    """Every tenant's rows, for one of the purposes in UNSCOPED. Works as a decorator too."""
    assert name in UNSCOPED, f"{name!r} is no purpose that chatapp.scope knows"
    token = _current.set(Scope(None, name))
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def no_scope() -> Iterator[None]:
    """As a request begins: nobody has said yet whose rows are meant."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)
