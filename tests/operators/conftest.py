"""The same team and server as in the tests of the chat; a mail server; a logged-in operator."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from chatapp.accounts.models import User
from chatapp.audit.models import AuditEntry
from tests.chat.conftest import record, server, strangers, team, worker
from tests.operators.smtp_server import Server, running

__all__ = ["record", "server", "strangers", "team", "worker"]


@pytest.fixture(autouse=True)
def own_mail(settings: Any) -> None:
    """The product's own way to send mail: tests' usual outbox would count as a server that is set up."""
    settings.EMAIL_BACKEND = "chatapp.site.mail.EmailBackend"


@pytest.fixture
def smtp() -> Iterator[Server]:
    with running() as found:
        yield found


@pytest.fixture
def emptied(transactional_db: None) -> Iterator[None]:
    """The audit log refuses to be flushed with the rest."""
    yield
    triggers = import_module("chatapp.audit.migrations.0002_append_only")
    with connection.schema_editor() as editor:
        triggers.unguard(None, editor)
    AuditEntry.objects.all().delete()
    with connection.schema_editor() as editor:
        triggers.guard(None, editor)


@pytest.fixture
def operator(db: None) -> User:
    return User.objects.create_superuser("operator@example.org", "a password")


@pytest.fixture
def admin(client: Client, operator: User) -> Client:
    """The operator's browser."""
    client.force_login(operator)
    return client
