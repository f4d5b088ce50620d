"""P11 in the services: what belongs to another tenant, or to a colleague, does not exist for the asker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from chatapp.accounts.models import User
from chatapp.chat import selectors, services
from chatapp.chat.models import Generation
from chatapp.errors import NotFound
from chatapp.ids import new_id
from chatapp.tenants.access import Access, BadKey, NoAccess, access_for_key, access_for_user, revoked
from chatapp.tenants.models import ApiKey, Membership, Role
from chatapp.tenants.selectors import tenants_of
from chatapp.tenants.services import add_member, revoke_api_key
from tests.chat.conftest import Team

ACTIONS: dict[str, Callable[[Access, Generation, Any], Any]] = {
    "read the conversation": lambda a, g, u: selectors.conversation(a, u or g.conversation_id),
    "read its messages": lambda a, g, u: selectors.messages(a, u or g.conversation_id),
    "read the generation": lambda a, g, u: selectors.generation(a, u or g.pk),
    "stop it": lambda a, g, u: services.cancel(access=a, generation_id=u or g.pk),
    "ask in it": lambda a, g, u: services.ask(access=a, text="Hi", conversation_id=u or g.conversation_id),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("who", ["a colleague", "a stranger", "the team's key", "a stranger's key"])
def test_foreign_ids_are_not_found_and_say_what_unknown_ones_say(
    team: Team, strangers: Team, action: str, who: str
) -> None:
    """P11."""
    asker = {
        "a colleague": team.owner,
        "a stranger": strangers.member,
        "the team's key": team.key,
        "a stranger's key": strangers.key,
    }[who]
    generation = services.ask(access=team.member, text="A secret")
    with pytest.raises(NotFound) as foreign:
        ACTIONS[action](asker, generation, None)
    with pytest.raises(NotFound) as unknown:
        ACTIONS[action](asker, generation, new_id())
    assert foreign.value.status == 404
    assert (foreign.value.message, foreign.value.param) == (unknown.value.message, unknown.value.param)
    generation.refresh_from_db()
    assert generation.unfinished


@pytest.mark.parametrize("action", ACTIONS)
def test_ones_own_chat_of_one_team_does_not_exist_in_another(team: Team, strangers: Team, action: str) -> None:
    """P11."""
    assert team.member.user is not None
    add_member(tenant=strangers.tenant, user=team.member.user, role=Role.MEMBER)
    there = access_for_user(team.member.user, "other")
    generation = services.ask(access=team.member, text="Of acme")
    with pytest.raises(NotFound):
        ACTIONS[action](there, generation, None)
    assert selectors.conversations(there).items == []


@pytest.mark.parametrize("nonsense", ["", "x", "\0", "\ud800", 5, [], {}, "9" * 10_000])
@pytest.mark.parametrize("action", list(ACTIONS))
def test_what_is_no_id_is_not_found(team: Team, action: str, nonsense: Any) -> None:
    generation = services.ask(access=team.member, text="Mine")

    class Given:
        conversation_id = pk = nonsense

    with pytest.raises(NotFound):
        ACTIONS[action](team.member, Given(), None)  # type: ignore[arg-type]
    assert generation.unfinished


def test_a_message_of_another_conversation_is_no_parent(team: Team, strangers: Team) -> None:
    """P11."""
    own, mine, foreign = (
        services.ask(access=access, text="Hi") for access in (team.member, team.member, strangers.member)
    )
    services.cancel(access=team.member, generation_id=own.pk)
    for parent in (mine.message_id, foreign.message_id):
        with pytest.raises(NotFound) as refused:
            services.ask(access=team.member, text="Hi", conversation_id=own.conversation_id, parent_id=parent)
        assert refused.value.param == "parent_id"


def test_lists_hold_ones_own_only(team: Team, strangers: Team) -> None:
    for access in (team.member, team.owner, strangers.member):
        services.ask(access=access, text="Hi")
    for access in (team.member, team.owner, strangers.member):
        items = selectors.conversations(access).items
        assert [item.user_id for item in items] == [access.user.pk]  # type: ignore[union-attr]
    assert selectors.conversations(strangers.key).items == []


def test_a_tenant_is_found_by_its_members_only(team: Team, strangers: Team) -> None:
    assert team.member.user is not None
    for slug in ("other", "nowhere", "", "ACME"):
        with pytest.raises(NoAccess):
            access_for_user(team.member.user, slug)
    assert [t.slug for t in tenants_of(team.member.user)] == ["acme"]
    User.objects.filter(pk=team.member.user.pk).update(is_active=False)
    with pytest.raises(NoAccess):
        access_for_user(User.objects.get(pk=team.member.user.pk), "acme")


def test_an_operator_is_no_member(team: Team) -> None:
    operator = User.objects.create_superuser("op@example.org", "a password")
    with pytest.raises(NoAccess):
        access_for_user(operator, "acme")
    assert tenants_of(operator) == []


def test_an_access_cannot_be_changed(team: Team, strangers: Team) -> None:
    with pytest.raises(FrozenInstanceError):
        team.member.tenant = strangers.tenant  # type: ignore[misc]


def test_a_key_is_known_by_its_secret_only(team: Team) -> None:
    key = ApiKey.objects.get(tenant=team.tenant)
    assert access_for_key(team.secret).tenant == team.tenant
    assert team.secret.startswith("octv_")
    assert len(team.secret) >= len("octv_") + 43, "256 bits"
    for wrong in ("", "octv_", team.secret[:-1], team.secret + "x", key.hash, key.prefix, "Bearer " + team.secret):
        with pytest.raises(BadKey):
            access_for_key(wrong)
    with pytest.raises(BadKey):
        access_for_key("octv_\ud800" + "x" * 40)
    stored = {str(value) for value in ApiKey.objects.values().get(pk=key.pk).values()}
    assert not any(team.secret in value for value in stored)


def test_a_revoked_key_and_a_lost_membership_end_what_they_carried(team: Team) -> None:
    assert revoked({team.key, team.member}) == set()
    assert team.key.key is not None
    assert team.member.user is not None
    revoke_api_key(key=team.key.key)
    Membership.objects.filter(user=team.member.user).update(role="admin")
    assert revoked({team.key, team.member}) == {team.key, team.member}
    with pytest.raises(BadKey):
        access_for_key(team.secret)


def test_the_last_use_of_a_key_is_written_once_a_minute(team: Team) -> None:
    first = ApiKey.objects.get(tenant=team.tenant).last_used_at
    assert first is not None
    access_for_key(team.secret)
    assert ApiKey.objects.get(tenant=team.tenant).last_used_at == first
