"""API keys: made, rotated, changed, revoked; what they refuse, and to whom they say why."""

from __future__ import annotations

import hmac
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import time_machine
from django.utils import timezone

from chatapp.audit.models import AuditEntry
from chatapp.audit.source import set_source
from chatapp.errors import BadInput, Conflict, Forbidden, NotFound
from chatapp.ids import new_id
from chatapp.scope import tenant_scope
from chatapp.tenants import access as access_module
from chatapp.tenants import key_selectors, keys
from chatapp.tenants.access import Access, BadKey, NotFromHere, access_for_key, revoked
from chatapp.tenants.key_limits import network_admitted, origin_admitted, parse_networks, parse_origins
from chatapp.tenants.models import ApiKey, KeyScope, KeyState, Membership, Tenant
from chatapp.tenants.permissions import Permission
from chatapp.tenants.services import create_api_key
from tests.chat.conftest import Team


@pytest.fixture(autouse=True)
def _from_anywhere() -> Any:
    set_source(None, "")
    yield
    set_source(None, "")


def make(team: Team, name: str = "Website", **fields: Any) -> tuple[ApiKey, str]:
    return keys.create_key(access=team.owner, name=name, **{"scopes": ["chat"], **fields})


def refused(secret: str, **place: Any) -> BadKey:
    set_source(place.get("address"), "", place.get("origin"))
    with pytest.raises(BadKey) as found:
        access_for_key(secret)
    return found.value


# --- making -------------------------------------------------------------------------------------------------------


def test_a_key_has_256_random_bits_and_only_its_hash_is_kept(team: Team) -> None:
    secrets = {make(team, f"Key {n}")[1] for n in range(20)}
    assert len({secret[9:] for secret in secrets}) == 20
    assert {len(secret) for secret in secrets} == {len("octv_") + 43}
    for secret in secrets:
        assert not ApiKey.objects.filter(hash=secret).exists()
        row = str(ApiKey.objects.filter(prefix=secret[:9]).values().get())
        assert secret[9:] not in row


def test_the_row_is_found_by_prefix_and_the_secret_compared_in_constant_time(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, secret = make(team)
    compared: list[tuple[Any, Any]] = []

    def compare(one: Any, other: Any) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(access_module, "hmac", SimpleNamespace(compare_digest=compare))
    access_for_key(secret)
    assert len(compared) == 1
    compared.clear()
    # An unknown prefix takes a comparison as well: how long it takes does not tell whether some key begins so.
    refused("octv_" + "_" * 43)
    assert len(compared) == 1


def test_scopes_are_given_by_name_and_give_the_permissions_of_the_table(team: Team) -> None:
    key, secret = make(team, scopes=["admin", "usage"])
    access = access_for_key(secret)
    assert key.scopes == ["usage", "admin"]
    assert access.may(Permission.MANAGE_KEYS)
    assert not access.may(Permission.CHAT)
    ApiKey.objects.filter(pk=key.pk).update(scopes=["from-the-future"])
    assert access_for_key(secret).permissions == frozenset()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"name": ""}, "name"),
        ({"name": " \u200b\n "}, "name"),
        ({"name": "x" * 121}, "name"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes"),
        ({"scopes": ["system"]}, "scopes"),
        ({"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}, "expires_at"),
        ({"expires_at": datetime(2999, 1, 1, tzinfo=UTC)}, "expires_at"),
        ({"expires_at": datetime(2027, 1, 1)}, "expires_at"),
        ({"allowed_origins": ["https://a.example/path"]}, "allowed_origins"),
        ({"allowed_origins": ["*"]}, "allowed_origins"),
        ({"allowed_origins": ["ftp://a.example"]}, "allowed_origins"),
        ({"allowed_origins": ["https://user@a.example"]}, "allowed_origins"),
        ({"allowed_origins": ["https://a.example:port"]}, "allowed_origins"),
        ({"allowed_origins": [f"https://{n}.example" for n in range(51)]}, "allowed_origins"),
        ({"allowed_networks": ["10.0.0.0/33"]}, "allowed_networks"),
        ({"allowed_networks": ["localhost"]}, "allowed_networks"),
        ({"allowed_networks": ["10.0.0.1-10.0.0.9"]}, "allowed_networks"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field_and_nothing_is_made(
    team: Team, fields: dict[str, Any], param: str
) -> None:
    before = ApiKey.objects.count()
    with pytest.raises(BadInput) as found:
        make(team, **fields)
    assert found.value.param == param
    assert ApiKey.objects.count() == before
    assert not AuditEntry.objects.exists()


def test_two_keys_in_use_have_two_names_and_a_revoked_ones_name_is_free_again(team: Team, strangers: Team) -> None:
    key, _ = make(team, "  Website   one ")
    assert key.name == "Website one"
    with pytest.raises(Conflict) as found:
        make(team, "website ONE")
    assert found.value.param == "name"
    make(strangers, "Website one")
    keys.revoke_key(access=team.owner, key_id=key.pk)
    make(team, "Website one")


def test_names_keep_every_script(team: Team) -> None:
    assert make(team, "Größe 网站 👩‍💻".replace("\u200d", ""))[0].name.startswith("Größe 网站")


def test_every_change_leaves_an_entry_without_the_secret(team: Team) -> None:
    key, secret = make(team, allowed_networks=["10.0.0.0/8"])
    keys.change_key(access=team.owner, key_id=key.pk, changes={"scopes": ["chat", "usage"], "name": "Site"})
    keys.change_key(access=team.owner, key_id=key.pk, changes={"name": "Site"})  # nothing new
    new, other = keys.rotate_key(access=team.owner, key_id=key.pk, overlap="1h")
    keys.revoke_key(access=team.owner, key_id=new.pk)
    keys.revoke_key(access=team.owner, key_id=new.pk)  # once is enough
    entries = list(AuditEntry.objects.order_by("at", "id"))
    assert [entry.action for entry in entries] == ["key.created", "key.changed", "key.rotated", "key.revoked"]
    assert entries[1].details == {"name": ["Website", "Site"], "scopes": ["chat", "chat, usage"]}
    assert {entry.actor_name for entry in entries} == {"owner@acme.test"}
    for entry in entries:
        assert secret[9:] not in str(vars(entry))
        assert other[9:] not in str(vars(entry))


# --- who may ------------------------------------------------------------------------------------------------------


def test_only_who_may_manage_keys_makes_and_changes_them(team: Team) -> None:
    key, _ = make(team)
    for asker in (team.member, team.key):
        for act in (
            lambda a: keys.create_key(access=a, name="x", scopes=["chat"]),
            lambda a: keys.rotate_key(access=a, key_id=key.pk, overlap="0"),
            lambda a: keys.change_key(access=a, key_id=key.pk, changes={"name": "y"}),
            lambda a: keys.revoke_key(access=a, key_id=key.pk),
            lambda a: key_selectors.keys(a),
        ):
            with pytest.raises(Forbidden):
                act(asker)
    key.refresh_from_db()
    assert key.active


def test_a_foreign_key_does_not_exist(team: Team, strangers: Team) -> None:
    """P11."""
    key, secret = make(team)
    with tenant_scope(strangers.tenant):
        for key_id in (key.pk, new_id(), "nonsense"):
            for act in (
                lambda i: keys.rotate_key(access=strangers.owner, key_id=i, overlap="0"),
                lambda i: keys.change_key(access=strangers.owner, key_id=i, changes={"name": "y"}),
                lambda i: keys.revoke_key(access=strangers.owner, key_id=i),
                lambda i: key_selectors.key(strangers.owner, i),
            ):
                with pytest.raises(NotFound):
                    act(key_id)
    assert access_for_key(secret).tenant == team.tenant


@pytest.fixture
def minter(team: Team) -> Access:
    """A key that manages keys, for a month, from one network and one origin."""
    _, secret = make(
        team,
        "Minter",
        scopes=["usage", "admin"],
        expires_at=timezone.now() + timedelta(days=30),
        allowed_networks=["10.0.0.0/8"],
        allowed_origins=["https://a.example"],
    )
    set_source("10.1.2.3", "", "https://a.example")
    return access_for_key(secret)


WITHIN: dict[str, Any] = {
    "scopes": ["usage"],
    "allowed_networks": ["10.9.0.0/16"],
    "allowed_origins": ["https://a.example"],
}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"scopes": ["chat"]}, "scopes"),
        ({"scopes": ["chat", "system", "admin"]}, "scopes"),
        ({"expires_at": None}, "expires_at"),
        ({"expires_at": datetime(2030, 1, 1, tzinfo=UTC)}, "expires_at"),
        ({"allowed_networks": []}, "allowed_networks"),
        ({"allowed_networks": ["10.0.0.0/7"]}, "allowed_networks"),
        ({"allowed_networks": ["10.0.0.0/8", "::/0"]}, "allowed_networks"),
        ({"allowed_origins": []}, "allowed_origins"),
        ({"allowed_origins": ["https://a.example", "https://b.example"]}, "allowed_origins"),
    ],
)
def test_a_key_gives_no_key_more_than_it_has(minter: Access, more: dict[str, Any], param: str) -> None:
    soon = timezone.now() + timedelta(days=3)
    made, _ = keys.create_key(access=minter, name="Less", expires_at=soon, **WITHIN)
    assert (made.created_by, made.created_with) == (None, minter.key)
    for act in (
        lambda: keys.create_key(access=minter, name="More", **{**WITHIN, "expires_at": soon, **more}),
        lambda: keys.change_key(access=minter, key_id=made.pk, changes=more),
    ):
        with pytest.raises(Forbidden) as found:
            act()
        assert found.value.param == param


def test_a_key_reaches_no_more_rights_by_rotating_or_changing_another(team: Team, minter: Access) -> None:
    strong, _ = make(team, "Strong", scopes=["chat", "system"])
    with pytest.raises(Forbidden):
        keys.rotate_key(access=minter, key_id=strong.pk, overlap="24h")
    with pytest.raises(Forbidden):
        keys.change_key(access=minter, key_id=strong.pk, changes={"name": "Mine"})
    keys.revoke_key(access=minter, key_id=strong.pk)  # to end a leak takes no rights over what it gave
    own = minter.key
    assert own is not None
    with pytest.raises(Forbidden):
        keys.change_key(access=minter, key_id=own.pk, changes={"expires_at": None})
    rotated, _ = keys.rotate_key(access=minter, key_id=own.pk, overlap="1h")
    assert rotated.expires_at == own.expires_at


def test_keys_of_someone_who_left_stay_and_are_listed_with_their_maker(team: Team) -> None:
    key, secret = make(team)
    Membership.objects.filter(user=team.owner.user).delete()
    other = Access(tenant=team.tenant, user=team.member.user, role="admin")
    with tenant_scope(team.tenant):
        found = key_selectors.key(other, key.pk)
    assert found.created_by == team.owner.user
    assert not found.maker_is_here  # type: ignore[attr-defined]
    assert access_for_key(secret).key == key


# --- rotation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("overlap", "hours"), [("1h", 1), ("24h", 24), ("7d", 168)])
def test_a_rotated_key_works_beside_its_successor_until_the_overlap_ends(team: Team, overlap: str, hours: int) -> None:
    with time_machine.travel(datetime(2026, 6, 1, 12, tzinfo=UTC), tick=False) as clock:
        old, old_secret = make(team, scopes=["chat", "system"], allowed_networks=["10.0.0.0/8"])
        new, new_secret = keys.rotate_key(access=team.owner, key_id=old.pk, overlap=overlap)
        set_source("10.0.0.1", "")
        assert (new.name, new.scopes, new.allowed_networks) == (old.name, old.scopes, old.allowed_networks)
        assert access_for_key(old_secret).actor.id == str(old.pk), "each stays attributable"
        assert access_for_key(new_secret).actor.id == str(new.pk)
        assert key_selectors.key(team.owner, old.pk).state == KeyState.REPLACED
        open_socket = access_for_key(old_secret)
        clock.shift(timedelta(hours=hours) - timedelta(seconds=1))
        assert access_for_key(old_secret)
        assert revoked({open_socket}) == set()
        clock.shift(timedelta(seconds=1))
        assert "expired on" in refused(old_secret, address="10.0.0.1").message
        assert revoked({open_socket}) == {open_socket}
        set_source("10.0.0.1", "")
        assert access_for_key(new_secret)


def test_without_an_overlap_the_old_key_stops_at_once(team: Team) -> None:
    old, secret = make(team)
    _, new_secret = keys.rotate_key(access=team.owner, key_id=old.pk, overlap="0")
    assert "revoked" in refused(secret).message
    assert access_for_key(new_secret)


def test_an_overlap_makes_no_key_live_longer(team: Team) -> None:
    soon = timezone.now() + timedelta(hours=2)
    old, _ = make(team, expires_at=soon)
    new, _ = keys.rotate_key(access=team.owner, key_id=old.pk, overlap="7d")
    old.refresh_from_db()
    assert old.expires_at == new.expires_at == soon


def test_a_key_is_rotated_once_and_then_left_alone(team: Team) -> None:
    old, _ = make(team)
    keys.rotate_key(access=team.owner, key_id=old.pk, overlap="24h")
    for act in (
        lambda: keys.rotate_key(access=team.owner, key_id=old.pk, overlap="24h"),
        lambda: keys.change_key(access=team.owner, key_id=old.pk, changes={"expires_at": None}),
    ):
        with pytest.raises(Conflict):
            act()
    assert ApiKey.objects.filter(replaces=old).count() == 1
    with pytest.raises(BadInput) as found:
        keys.rotate_key(access=team.owner, key_id=old.pk, overlap="forever")
    assert found.value.param == "overlap"


def test_of_two_who_rotate_at_once_the_second_is_told(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    old, _ = make(team)
    stale = keys._usable(team.owner, old.pk)
    keys.rotate_key(access=team.owner, key_id=old.pk, overlap="24h")
    monkeypatch.setattr(keys, "_usable", lambda access, key_id: stale)  # as it was read before the first had committed
    with pytest.raises(Conflict, match="meanwhile"):
        keys.rotate_key(access=team.owner, key_id=old.pk, overlap="24h")
    assert ApiKey.objects.filter(replaces=old).count() == 1


# --- what a key refuses -------------------------------------------------------------------------------------------


def test_reasons_are_told_to_holders_of_the_secret_alone(team: Team) -> None:
    key, secret = make(team)
    keys.revoke_key(access=team.owner, key_id=key.pk)
    stranger = "octv_" + "z" * 43
    guesses = [key.prefix + "z" * 39, secret[:-1], secret + "x", stranger, "octv_", "sk-x"]
    assert {(refused(guess).message, refused(guess).code, refused(guess).status) for guess in guesses} == {
        ("This API key is not valid: it is unknown.", "invalid_api_key", 401)
    }
    assert refused(secret).message != refused(stranger).message


def test_a_suspended_teams_keys_open_nothing(team: Team) -> None:
    _, secret = make(team)
    Tenant.objects.filter(pk=team.tenant.pk).update(suspended_at=timezone.now())
    assert (refused(secret).status, refused(secret).code) == (403, "team_suspended")


@pytest.mark.parametrize(
    ("networks", "address", "admitted"),
    [
        ([], None, True),
        (["203.0.113.7"], "203.0.113.7", True),
        (["203.0.113.7"], "203.0.113.8", False),
        (["10.1.2.3/8"], "10.255.0.1", True),
        (["10.0.0.0/8"], "::ffff:10.0.0.1", True),
        (["10.0.0.0/8"], None, False),
        (["10.0.0.0/8"], "nonsense", False),
        (["2001:db8::/32"], "2001:db8:1::1", True),
        (["2001:db8::/32"], "2001:db9::1", False),
        (["2001:db8::/32"], "10.0.0.1", False),
        (["0.0.0.0/0"], "::1", False),
        (["192.0.2.0/24", "::1"], "::1", True),
    ],
)
def test_networks_admit_what_they_name(team: Team, networks: list[str], address: str | None, admitted: bool) -> None:
    assert network_admitted(parse_networks(networks), address) is admitted
    _, secret = make(team, allowed_networks=networks)
    set_source(address, "")
    if admitted:
        assert access_for_key(secret).tenant == team.tenant
    else:
        found = refused(secret, address=address)
        assert isinstance(found, NotFromHere)
        assert (found.status, found.code) == (403, "address_not_allowed")


@pytest.mark.parametrize(
    ("listed", "kept", "origin", "admitted"),
    [
        ("https://App.Example", "https://app.example", "https://app.example", True),
        ("https://app.example/", "https://app.example", "https://app.example", True),
        ("https://app.example:443", "https://app.example", "https://app.example", True),
        ("http://localhost:3000", "http://localhost:3000", "http://localhost:3000", True),
        ("http://localhost:3000", "http://localhost:3000", "http://localhost:3001", False),
        ("https://bücher.example", "https://xn--bcher-kva.example", "https://xn--bcher-kva.example", True),
        ("http://[::1]:8000", "http://[::1]:8000", "http://[::1]:8000", True),
        ("https://app.example", "https://app.example", "https://app.example.evil.example", False),
        ("https://app.example", "https://app.example", "http://app.example", False),
        ("https://app.example", "https://app.example", "null", False),
        ("https://app.example", "https://app.example", None, False),
    ],
)
def test_origins_admit_what_they_name(team: Team, listed: str, kept: str, origin: str | None, admitted: bool) -> None:
    assert parse_origins([listed]) == [kept]
    assert origin_admitted([kept], origin) is admitted
    _, secret = make(team, allowed_origins=[listed])
    set_source("192.0.2.1", "", origin)
    if admitted:
        assert access_for_key(secret)
    else:
        assert refused(secret, address="192.0.2.1", origin=origin).code == "origin_not_allowed"


def test_a_change_of_networks_or_scopes_ends_the_sockets_that_it_concerns(team: Team) -> None:
    """P12."""
    key, secret = make(team)
    set_source("10.0.0.1", "")
    inside = access_for_key(secret)
    set_source("192.0.2.1", "")
    outside = access_for_key(secret)
    keys.change_key(access=team.owner, key_id=key.pk, changes={"allowed_networks": ["10.0.0.0/8"]})
    assert revoked({inside, outside}) == {outside}
    keys.change_key(access=team.owner, key_id=key.pk, changes={"scopes": ["chat", "usage"]})
    assert revoked({inside, outside}) == {inside, outside}


def test_the_last_use_has_its_address(team: Team) -> None:
    key, secret = make(team)
    set_source("2001:db8::5", "")
    access_for_key(secret)
    key.refresh_from_db()
    assert key.last_used_address == "2001:db8::5"
    first = key.last_used_at
    set_source("192.0.2.9", "")
    access_for_key(secret)
    key.refresh_from_db()
    assert (key.last_used_at, key.last_used_address) == (first, "2001:db8::5"), "once a minute"


# --- reading ------------------------------------------------------------------------------------------------------


def test_lists_filter_by_state_and_name_and_page_through_thousands(team: Team) -> None:
    made = {name: make(team, name)[0] for name in ("Active", "Old", "Gone", "Dead")}
    keys.rotate_key(access=team.owner, key_id=made["Old"].pk, overlap="7d")
    keys.revoke_key(access=team.owner, key_id=made["Gone"].pk)
    ApiKey.objects.filter(pk=made["Dead"].pk).update(expires_at=timezone.now() - timedelta(days=1))

    def ids(**query: Any) -> list[Any]:
        return [key.pk for key in key_selectors.keys(team.owner, **query).items]

    assert ids(state="expired") == [made["Dead"].pk]
    assert ids(state="revoked") == [made["Gone"].pk]
    assert ids(state="replaced") == [made["Old"].pk]
    assert made["Active"].pk in ids(state="active")
    assert len(ids(state="working")) == 4  # Active, both of Old, and the fixture's
    assert len(ids(state="all")) == 6
    assert ids(text="aCtiv") == [made["Active"].pk]
    assert ids(text=made["Active"].prefix) == [made["Active"].pk]
    moment = timezone.now()
    ApiKey.objects.bulk_create(
        ApiKey(tenant=team.tenant, name=f"Bulk {n}", prefix="octv_bulk", hash=f"{n:064}", created_at=moment)
        for n in range(10_000)
    )
    seen: list[Any] = []
    cursor = ""
    while True:
        found = key_selectors.keys(team.owner, state="all", cursor=cursor, limit=2_000)
        seen += [key.pk for key in found.items]
        if found.next is None:
            break
        cursor = found.next
    assert len(seen) == len(set(seen)) == 10_006
    for query in ({"state": "x"}, {"cursor": "x"}, {"cursor": "2026-01-01_1"}):
        with pytest.raises(BadInput):
            key_selectors.keys(team.owner, **query)


def test_set_up_makes_keys_without_an_access(team: Team) -> None:
    key, secret = create_api_key(tenant=team.tenant, name="Set-up", scopes=(KeyScope.USAGE,))
    assert access_for_key(secret).key == key
