"""Demo data: four teams with people, published prompts and keys, and the file that tells a person and scripts of them.

Idempotent: what is there stays, a password or key of the file that works is kept, one that is lost is replaced. Secrets
are random per data folder and are in the file only. Never made where the settings say that this is no demo.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

from allauth.account.models import EmailAddress
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from chatapp.accounts.models import User
from chatapp.chat.demo_teams import TEAMS, DemoTeam
from chatapp.prompts import selectors as prompts
from chatapp.prompts.services import publish
from chatapp.scope import unscoped
from chatapp.tenants.access import BadKey, access_for_key
from chatapp.tenants.models import KeyScope, Role, Tenant
from chatapp.tenants.services import add_member, create_api_key

KEY_NAME = "Demo"
OPERATOR = "operator@octavo.example"


class NoDemoHere(Exception):
    """These settings are for real data."""


@unscoped("demo")
def make_demo(path: Path) -> dict[str, Any]:
    """Make or complete the demo data and write `path`; returns what the file says. Raises NoDemoHere."""
    if not settings.OCTAVO_DEMO:
        raise NoDemoHere("Demo data is only made in local settings: its passwords lie in a file.")
    known = _known_secrets(path)
    with transaction.atomic():
        file = {
            "url": settings.OCTAVO_URL,
            "operator": _person(OPERATOR, "Operator", known, operator=True),
            "tenants": [_team(team, known) for team in TEAMS],
        }
        # Inside the transaction: a password that no file tells is worse than none.
        _write(path, file)
    return file


def _known_secrets(path: Path) -> dict[str, str]:
    """Passwords by address and keys by slug, from the last run's file; nothing from a file that is lost or broken."""
    try:
        file = json.loads(path.read_text())
        people = [file["operator"]]
        known = {}
        for team in file["tenants"]:
            known[team["slug"]] = str(team["api_key"])
            people += [team["admin"], team["member"]]
        return known | {person["email"]: str(person["password"]) for person in people}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _person(email: str, name: str, known: dict[str, str], *, operator: bool = False) -> dict[str, str]:
    user = User.objects.filter(email=email).first()
    if user is None:
        user = User.objects.create_user(email, name=name, is_staff=operator, is_superuser=operator)
    EmailAddress.objects.get_or_create(user=user, email=email, defaults={"verified": True, "primary": True})
    password = known.get(email, "")
    if not password or not user.check_password(password):
        password = secrets.token_urlsafe(12)
        user.set_password(password)
        user.save(update_fields=["password"])
    return {"email": email, "password": password}


def _team(team: DemoTeam, known: dict[str, str]) -> dict[str, Any]:
    tenant, _ = Tenant.objects.get_or_create(slug=team.slug, defaults={"name": team.name, "accent": team.accent})
    if prompts.published(tenant) is None:
        publish(tenant=tenant, text=team.prompt, note="The demo's prompt")
    people = {}
    # A team without an owner could not be handed on; data folders of earlier versions have such.
    owned = tenant.memberships.filter(role=Role.OWNER).exists()
    for part, first_name, role in (("admin", team.admin, Role.OWNER), ("member", team.member, Role.MEMBER)):
        email = f"{first_name}@{team.slug}.example"
        people[part] = _person(email, first_name.capitalize(), known)
        user = User.objects.get(email=email)
        if not tenant.memberships.filter(user=user).exists() or (role is Role.OWNER and not owned):
            add_member(tenant=tenant, user=user, role=role)
    key = _key(tenant, known.get(team.slug, ""))
    return {"slug": tenant.slug, "name": tenant.name, "api_key": key, **people}


def _key(tenant: Tenant, secret: str) -> str:
    with contextlib.suppress(BadKey):
        if access_for_key(secret).tenant == tenant:
            return secret
    # Nobody knows the secrets of the former ones any more.
    tenant.api_keys.filter(name=KEY_NAME, revoked_at=None).update(revoked_at=timezone.now())
    return create_api_key(tenant=tenant, name=KEY_NAME, scopes=(KeyScope.CHAT, KeyScope.SYSTEM))[1]


def _write(path: Path, file: dict[str, Any]) -> None:
    """Whole or not at all, readable by its owner only from its first byte."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(handle, "w") as part:
            json.dump(file, part, indent=2, ensure_ascii=False)
            part.write("\n")
            part.flush()
            os.fsync(part.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
