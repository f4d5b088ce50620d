"""Rows of a tenant are in sight in that tenant's scope only, and in nobody's when nobody said whose are meant."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import pytest
from django.apps import apps
from django.db import models

from chatapp import scope
from chatapp.chat.models import Generation, Message
from chatapp.chat.services import ask
from chatapp.owned import TenantOwned
from chatapp.prompts.models import PromptVersion
from chatapp.scope import NoScope, no_scope, tenant_scope, unscoped
from chatapp.tenants.models import ApiKey, Membership
from tests.chat.conftest import Team

ROOT = Path(__file__).resolve().parents[2]
# Rows that belong to no tenant: people and sessions, the tenants themselves, and what is the platform's own.
# Deletions outlive what they delete.
NOBODYS = {"User", "Tenant", "Plan", "AuditPurge", "OwnExport", "Deletion", "Leaving", "SiteSettings"}


def owned() -> list[type[models.Model]]:
    return [model for model in apps.get_models() if issubclass(model, TenantOwned)]


def test_every_model_of_ours_is_a_tenants_or_named_as_nobodys() -> None:
    ours = {model.__name__ for model in apps.get_models() if model.__module__.startswith("chatapp.")}
    assert ours - {model.__name__ for model in owned()} == NOBODYS


@pytest.mark.django_db
@pytest.mark.parametrize("model", owned(), ids=lambda model: model.__name__)
def test_without_a_scope_rows_cannot_even_be_asked_for(model: type[models.Model]) -> None:
    with no_scope(), pytest.raises(NoScope):
        model._default_manager.count()


def test_a_scope_shows_the_rows_of_its_tenant(team: Team, strangers: Team) -> None:
    for access in (team.member, strangers.member):
        ask(access=access, text="Hi")
    for mine, theirs in ((team, strangers), (strangers, team)):
        with tenant_scope(mine.tenant):
            for model in (Membership, ApiKey, PromptVersion, Generation, Message):
                assert model.objects.exists()
            assert not Membership.objects.filter(tenant=theirs.tenant).exists()
            assert not Message.objects.filter(conversation__tenant=theirs.tenant).exists()
            assert not theirs.tenant.generations.exists(), "nor through the foreign tenant's own row"


def test_scopes_nest_and_end() -> None:
    with unscoped("tests"):
        with tenant_scope("x"):
            assert scope.current() == scope.Scope("x", "tenant")  # type: ignore[arg-type]
        assert scope.current() == scope.Scope(None, "tests")


async def test_a_task_and_its_threads_inherit_the_scope_and_change_nobody_elses() -> None:
    async def work() -> tuple[object, object]:
        before = await asyncio.to_thread(scope.current)
        scope.enter(Named("inner"))
        return before, await asyncio.to_thread(scope.current)

    class Named:
        def __init__(self, pk: str) -> None:
            self.pk = pk

    with tenant_scope("outer"):
        before, after = await asyncio.create_task(work())
        assert scope.current() == before == scope.Scope("outer", "tenant")  # type: ignore[arg-type]
        assert after == scope.Scope("inner", "tenant")  # type: ignore[arg-type]


def test_unscoped_access_is_asked_for_by_names_that_are_listed_and_all_of_them_are_used() -> None:
    used = set()
    for path in [*(ROOT / "chatapp").rglob("*.py"), ROOT / "manage.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "unscoped":
                (name,) = node.args
                assert isinstance(name, ast.Constant), f"{path}: the purpose must stand there to be read"
                used.add(name.value)
            if isinstance(node, ast.Attribute) and node.attr == "_base_manager":
                raise AssertionError(f"{path} goes around the scope by _base_manager")
    assert used | {"tests"} == set(scope.UNSCOPED)
