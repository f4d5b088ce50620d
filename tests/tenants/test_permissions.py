"""Who may do what: the table as a page would print it, so that every change of it is seen here."""

from __future__ import annotations

import pytest

from chatapp.errors import Forbidden
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import OF_ROLE, OF_SCOPE, KeyScope, Permission, Role
from tests.chat.conftest import Team

OW, A, E, M, AU = Role.OWNER, Role.ADMIN, Role.EDITOR, Role.MEMBER, Role.AUDITOR

TABLE = {
    "chat": {OW, A, E, M},
    "chat.system": set(),
    "dashboard.read": {OW, A, AU},
    "usage.read": {OW, A, AU},
    "audit.read": {OW, A, AU},
    "members.read": {OW, A, AU},
    "members.manage": {OW, A},
    "ownership.transfer": {OW},
    "prompts.read": {OW, A, E, AU},
    "prompts.edit": {OW, A, E},
    "prompts.publish": {OW, A, E},
    "keys.read": {OW, A, AU},
    "keys.manage": {OW, A},
    "limits.read": {OW, A, AU},
    "limits.manage": {OW, A},
    "data.manage": {OW},
    "settings.manage": {OW, A},
    "webhooks.manage": {OW, A},
    "feedback.read": {OW, A},
    "answers.stop": {OW, A},
}


def test_roles_have_the_permissions_of_the_table() -> None:
    assert {p.value: {role for role in Role if p in OF_ROLE[role]} for p in Permission} == TABLE


def test_no_key_gets_what_is_the_owners_alone() -> None:
    given = frozenset().union(*OF_SCOPE.values())
    assert not given & {Permission.TRANSFER_OWNERSHIP, Permission.MANAGE_DATA}
    assert not OF_SCOPE[KeyScope.ADMIN] & {Permission.CHAT, Permission.READ_FEEDBACK}, "it reads no chats"


def test_what_a_role_does_not_include_is_refused_with_words(team: Team) -> None:
    with pytest.raises(Forbidden, match=r"Your role in this team is member, .* Ask an owner or admin"):
        team.member.require(Permission.READ_AUDIT)
    team.owner.require(Permission.READ_AUDIT)
    with pytest.raises(Forbidden, match=r"scopes do not include audit\.read"):
        team.key.require(Permission.READ_AUDIT)
    assert not Access(tenant=team.tenant, user=team.owner.user).permissions
