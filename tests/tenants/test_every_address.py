"""P11: every address of a team's administration, page or API, as everybody who has no business there.

The table of addresses is tests/api/test_isolation.py's; what each one needs is read from the views themselves, and held
against the table of roles. Strangers get 404, with the team's address and with their own around a foreign id; a role or
a key that lacks the permission gets 403; and nothing of the team has changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone

from chatapp.accounts.models import User
from chatapp.api.product import api
from chatapp.audit.services import record
from chatapp.batches.models import Batch
from chatapp.chat.services import ask
from chatapp.data.exports import request_export
from chatapp.files.services import keep, store
from chatapp.limits.models import LowerLimits
from chatapp.moving.models import Import
from chatapp.owned import TenantOwned
from chatapp.prompts.models import SystemPrompt
from chatapp.shares.models import Share
from chatapp.tenants.access import Access, access_for_user
from chatapp.tenants.addresses import parse
from chatapp.tenants.invitations import invite
from chatapp.tenants.models import Membership, Role
from chatapp.tenants.permissions import OF_ROLE, Permission
from chatapp.tenants.services import add_member, create_api_key
from chatapp.tenants.sign_in import DomainClaim
from chatapp.webhooks import outbox
from chatapp.webhooks.services import create as create_webhook
from chatapp.webhooks.services import send_test
from tests.api.test_isolation import ADDRESSES, MANAGED, plain
from tests.chat.conftest import Team
from tests.data.conftest import Sent, data_folder, sent

__all__ = ["data_folder", "sent"]

SECRET = "The vault"
BACKEND = "django.contrib.auth.backends.ModelBackend"
# Actions that addresses name in words, one for each that is walked.
ACTIONS = {"members": "suspend", "invitations": "withdraw", "batches": "output"}
# What is a person's own is not found by colleagues either, whatever their role.
PERSONAL = {"conversation_id", "file_id", "import_id", "message_id", "response_id"}


@dataclass(frozen=True)
class Operation:
    """`needs` None: any role of the team will do."""

    address: str
    method: str
    needs: Permission | None

    @property
    def is_api(self) -> bool:
        return self.address.startswith("api/")

    @property
    def ids(self) -> list[str]:
        return [name for name in re.findall(r"<(\w+)>", self.address) if name not in ("slug", "action")]

    def path(self, slug: str, ids: dict[str, Any]) -> str:
        action = next((action for topic, action in ACTIONS.items() if f"/{topic}/" in self.address), "")
        values = {**ids, "slug": slug, "action": action}
        return "/" + re.sub(r"<(\w+)>", lambda found: str(values[found[1]]), self.address)


def views(patterns: list[Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for entry in patterns:
        here = before + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from views(entry.url_patterns, here)
        elif isinstance(entry, URLPattern):
            yield here, entry.callback


def operations() -> list[Operation]:
    found = []
    for address, view in views(get_resolver("chatapp.urls").url_patterns):
        if hasattr(view, "needs"):
            found += [Operation(plain(address), method, view.needs) for method in view.methods if method != "HEAD"]
    for _, router in api._routers:
        for path, path_view in router.path_operations.items():
            for operation in path_view.operations:
                needs = {check.permission for check in operation.auth_callbacks}
                assert len(needs) == 1, f"{path}: say auth=needs(…)"
                address = plain("api" + path.replace("{", "<").replace("}", ">"))
                found += [Operation(address, method, next(iter(needs))) for method in operation.methods]
    # Any role may enter the workspace and its own pages: those are walked over the wire (tests/api/test_isolation.py).
    return [found for found in found if found.is_api or found.needs is not None or found.address in managed()]


def managed() -> set[str]:
    return {address for address, what in ADDRESSES.items() if what is MANAGED}


OPERATIONS = operations()


def test_every_address_of_an_administration_says_what_it_needs() -> None:
    assert {operation.address for operation in OPERATIONS} == managed()


def test_every_operation_of_the_api_is_held_to_a_permission_but_leaving_which_anybody_may() -> None:
    free = {operation.address for operation in OPERATIONS if operation.is_api and operation.needs is None}
    assert free == {"api/t/<slug>/leave"}


def client_of(access: Access) -> Client:
    client = Client(raise_request_exception=True)
    client.force_login(access.user, backend=BACKEND)  # type: ignore[arg-type]
    return client


def with_role(team: Team, role: Role) -> Client:
    user = User.objects.create_user(f"{role}-of@{team.tenant.slug}.test", "a password")
    add_member(tenant=team.tenant, user=user, role=role)
    return client_of(access_for_user(user, team.tenant.slug))


def state(team: Team) -> str:
    """All rows of a team, but for the audit log, which may grow, and what only says when somebody came."""
    rows = {}
    for model in apps.get_models():
        if issubclass(model, TenantOwned) and model._meta.model_name != "auditentry":
            values = model.objects.filter(**{model.tenant_path: team.tenant.pk}).order_by("pk").values()
            rows[model.__name__] = [
                {k: v for k, v in row.items() if k not in ("last_used_at", "last_seen_at")} for row in values
            ]
    return json.dumps(rows, default=repr, sort_keys=True)


@pytest.fixture
def ids(team: Team, data_folder: Path, sent: Sent, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """One object of the team for every name that addresses give an id."""
    monkeypatch.setattr(transaction, "on_commit", lambda work, **kw: work())  # a test's transaction never commits
    generation = ask(access=team.member, text=f"{SECRET} opens at nine.")
    record("team.created", actor=team.owner.actor, tenant=team.tenant, on=team.tenant)
    (invited,) = invite(access=team.owner, addresses=parse("new@example.org"), role="member")
    prompt = SystemPrompt.objects.get(tenant=team.tenant)
    export = request_export(access=team.owner)
    sent.run()
    webhook, _ = create_webhook(access=team.owner, url="https://hooks.acme.example.com/", events=["member.joined"])
    monkeypatch.setattr(outbox, "start", lambda endpoint_id: None)
    answers = keep(tenant=team.tenant, name="out.jsonl", content=[b"{}"], purpose="batch_output")
    assert invited.invitation is not None
    assert team.key.key is not None
    found = {
        "conversation_id": generation.conversation_id,
        "message_id": generation.message_id,
        "response_id": generation.pk,
        "answer_id": generation.pk,
        "member_id": Membership.objects.get(user=team.member.user).pk,
        "invitation_id": invited.invitation.pk,
        "assistant_id": prompt.pk,
        "version_id": prompt.published_id,
        "other_id": prompt.published_id,
        "key_id": team.key.key.pk,
        "export_id": export.pk,
        "claim_id": DomainClaim.objects.create(tenant=team.tenant, domain="acme.example").pk,
        "webhook_id": webhook.pk,
        "delivery_id": send_test(access=team.owner, webhook_id=webhook.pk).pk,
        "file_id": store(
            access=team.member, name="plan.txt", content=BytesIO(SECRET.encode()), purpose="user_data"
        ).public_id,
        "batch_id": Batch.objects.create(
            tenant=team.tenant,
            key=team.key.key,
            endpoint="/v1/completions",
            input_file=answers.pk,
            output_file=answers.pk,
        ).pk,
        "import_id": Import.objects.create(tenant=team.tenant, user=team.member.user, finished_at=timezone.now()).pk,
        "share_id": Share.objects.create(
            tenant=team.tenant,
            conversation=generation.conversation,
            user=team.member.user,
            title=SECRET,
            messages=[{"role": "user", "text": SECRET, "created_at": "2026-01-01T00:00:00+00:00"}],
        ).pk,
        "lower_id": LowerLimits.objects.create(tenant=team.tenant, output_tokens=100).pk,
    }
    wanted = {name for operation in OPERATIONS for name in operation.ids}
    assert wanted == set(found), "each id that an address names needs an object here"
    return found


def send(client: Client, operation: Operation, path: str, **headers: str) -> Any:
    if operation.is_api:
        return client.generic(operation.method, path, "{}", content_type="application/json", headers=headers)
    return client.generic(operation.method, path, headers=headers)


def test_a_stranger_finds_nothing_anywhere(team: Team, strangers: Team, ids: dict[str, Any]) -> None:
    """P11."""
    stranger = client_of(strangers.owner)
    foreign_key = create_api_key(tenant=strangers.tenant, name="Foreign")[1]
    before = state(team)
    for operation in OPERATIONS:
        there = operation.path(team.tenant.slug, ids)
        # The other's own team around a foreign id is no way in either.
        for path in [there, *([operation.path(strangers.tenant.slug, ids)] if operation.ids else [])]:
            reply = send(stranger, operation, path)
            # An API may look at the body before it looks for the object; that says nothing of the object.
            allowed = (404, 400) if operation.is_api and path != there and operation.method != "GET" else (404,)
            assert reply.status_code in allowed, (operation, path, reply.status_code)
            assert SECRET.encode() not in reply.getvalue()
        if operation.is_api:
            reply = send(Client(), operation, there, Authorization=f"Bearer {foreign_key}")
            assert reply.status_code == 404, (operation, reply.status_code)
        reply = send(Client(), operation, there)
        assert reply.status_code == (401 if operation.is_api else 302), (operation, reply.status_code)
    assert state(team) == before


@pytest.mark.parametrize("role", list(Role))
def test_a_role_gets_in_where_the_table_says_so_and_nowhere_else(team: Team, ids: dict[str, Any], role: Role) -> None:
    """P11. What is refused has changed nothing; what is allowed is found."""
    client = with_role(team, role)
    before = state(team)
    for operation in OPERATIONS:
        path = operation.path(team.tenant.slug, ids)
        if operation.needs is not None and operation.needs not in OF_ROLE[role]:
            reply = send(client, operation, path)
            assert reply.status_code == 403, (operation, reply.status_code)
            assert operation.method == "GET" or state(team) == before, operation
        elif operation.method == "GET" and operation.needs is not None:
            reply = send(client, operation, path)
            allowed = (404,) if PERSONAL.intersection(operation.ids) else (200, 302)
            assert reply.status_code in allowed, (operation, reply.status_code)


def test_a_key_without_the_scope_is_refused_by_every_operation(team: Team, ids: dict[str, Any]) -> None:
    before = state(team)
    for operation in OPERATIONS:
        if operation.is_api and (operation.needs is None or not team.key.may(operation.needs)):
            path = operation.path(team.tenant.slug, ids)
            reply = send(Client(), operation, path, Authorization=f"Bearer {team.secret}")
            assert reply.status_code == 403, (operation, reply.status_code)
    assert state(team) == before
