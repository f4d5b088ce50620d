"""The pages about API keys, as an owner, an auditor and a member meet them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client

from chatapp.audit.models import AuditEntry
from chatapp.tenants.access import BadKey, access_for_key
from chatapp.tenants.models import ApiKey, KeyState, Membership
from tests.chat.conftest import Team

BASE = "/t/acme/admin/keys"


@pytest.fixture(autouse=True)
def _fresh_cache() -> None:
    cache.clear()


def log_in(team: Team, who: str = "owner") -> Client:
    client = Client()
    client.force_login(getattr(team, who).user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def create(client: Client, **fields: Any) -> Any:
    return client.post(f"{BASE}/new", {"name": "Website", "scopes": ["chat"], **fields})


def secret_in(response: Any) -> str:
    found = re.search(r'id="secret">(octv_[\w-]{43})<', response.content.decode())
    assert found, response.content.decode()
    return found[1]


def test_a_key_is_made_shown_once_and_works(team: Team) -> None:
    owner = log_in(team)
    answer = create(owner, allowed_networks="127.0.0.1, ::1\n\n10.0.0.0/8", expires_on="")
    assert answer.status_code == 201
    assert "no-store" in answer["Cache-Control"]
    secret = secret_in(answer)
    key = ApiKey.objects.get(name="Website")
    assert key.allowed_networks == ["127.0.0.1/32", "::1/128", "10.0.0.0/8"]
    for path in (BASE, f"{BASE}/{key.pk}", "/t/acme/admin/audit"):
        page = owner.get(path).content.decode()
        assert key.prefix in page
        assert secret[9:] not in page


def test_an_empty_list_says_what_a_key_is_for(team: Team) -> None:
    ApiKey.objects.all().delete()
    page = log_in(team).get(BASE).content.decode()
    assert "There are no keys yet" in page
    assert "OpenAI-compatible" in page


def test_bad_fields_are_told_beside_them_and_what_was_typed_is_kept(team: Team) -> None:
    owner = log_in(team)
    for fields, words in (
        ({"name": ""}, "required"),
        ({"scopes": []}, "required"),
        ({"scopes": ["root"]}, "root is not one of"),
        ({"scopes": ["system"]}, "needs the scope chat"),
        ({"expires_on": "yesterday"}, "valid date"),
        ({"expires_on": "2020-01-01"}, "This time is over"),
        ({"allowed_networks": "10.0.0.0/99"}, "is no network"),
        ({"allowed_origins": "app.example"}, "is no origin"),
        ({"name": "TESTS"}, "called TESTS already"),
    ):
        answer = create(owner, **{"name": "My <b>site</b>", **fields})
        page = answer.content.decode()
        assert answer.status_code == 400, fields
        assert words in page, fields
        assert "<b>site" not in page
        if "name" not in fields:
            assert "My &lt;b&gt;site&lt;/b&gt;" in page
    assert ApiKey.objects.count() == 1


def test_a_day_is_a_day_where_the_reader_is(team: Team) -> None:
    owner = log_in(team)
    owner.cookies["zone"] = "Pacific/Auckland"
    assert "Pacific/Auckland" in owner.get(f"{BASE}/new").content.decode()
    create(owner, expires_on="2030-06-30")
    key = ApiKey.objects.get(name="Website")
    assert key.expires_at == datetime(2030, 6, 30, 12, tzinfo=UTC)
    assert 'value="2030-06-30"' in owner.get(f"{BASE}/{key.pk}").content.decode()
    # Saved from another zone without touching the day: the very moment stays.
    owner.cookies["zone"] = "../../etc/passwd"
    page = owner.get(f"{BASE}/{key.pk}").content.decode()
    assert "in UTC" in page
    day = re.search(r'name="expires_on" value="([^"]+)"', page)
    assert day
    fields = {"name": "Site", "scopes": ["chat"], "expires_on": day[1]}
    assert owner.post(f"{BASE}/{key.pk}", fields).status_code == 302
    key.refresh_from_db()
    assert (key.name, key.expires_at) == ("Site", datetime(2030, 6, 30, 12, tzinfo=UTC))


def test_a_form_that_is_sent_twice_makes_one_key(team: Team) -> None:
    owner = log_in(team)
    once = re.search(r'name="once" value="([^"]+)"', owner.get(f"{BASE}/new").content.decode())
    assert once
    secret = secret_in(create(owner, once=once[1]))
    again = owner.post(f"{BASE}/new", {"name": "Website", "scopes": ["chat"], "once": once[1]}, follow=True)
    assert "was sent before" in again.content.decode()
    assert secret not in again.content.decode()
    assert ApiKey.objects.filter(name="Website").count() == 1


def test_rotation_shows_the_successor_and_when_the_old_one_ends(team: Team) -> None:
    owner = log_in(team)
    old_secret = secret_in(create(owner))
    old = ApiKey.objects.get(name="Website")
    answer = owner.post(f"{BASE}/{old.pk}/rotate", {"overlap": "24h"})
    new_secret = secret_in(answer)
    assert "stops working" in answer.content.decode()
    assert access_for_key(old_secret).key != access_for_key(new_secret).key
    listed = owner.get(BASE).content.decode()
    assert listed.count("Website") == 2
    assert "Replaced" in listed
    assert "ends <time" in listed
    page = owner.get(f"{BASE}/{old.pk}").content.decode()
    assert "Rotate the key" not in page
    assert "Revoke the key" in page
    again = owner.post(f"{BASE}/{old.pk}/rotate", {"overlap": "24h"}, follow=True)
    assert "has been rotated" in again.content.decode()
    assert owner.post(f"{BASE}/{old.pk}/rotate", {"overlap": "x"}).status_code == 400


def test_revoking_asks_for_the_name_and_is_for_good(team: Team) -> None:
    owner = log_in(team)
    secret = secret_in(create(owner))
    key = ApiKey.objects.get(name="Website")
    refused = owner.post(f"{BASE}/{key.pk}/revoke", {"confirm": "website?"})
    assert refused.status_code == 400
    assert "not the key&#x27;s name" in refused.content.decode()
    assert access_for_key(secret)
    done = owner.post(f"{BASE}/{key.pk}/revoke", {"confirm": " Website "}, follow=True)
    assert "Website is revoked" in done.content.decode()
    with pytest.raises(BadKey):
        access_for_key(secret)
    assert owner.post(f"{BASE}/{key.pk}/revoke", {"confirm": "Website"}).status_code == 302
    assert AuditEntry.objects.filter(action="key.revoked").count() == 1
    page = owner.get(f"{BASE}/{key.pk}").content.decode()
    assert "Save" not in page
    assert "Website" in owner.get(f"{BASE}?state=revoked").content.decode()
    assert owner.post(f"{BASE}/{key.pk}", {"name": "Back", "scopes": ["chat"]}).status_code == 400


def test_an_auditor_reads_and_a_member_does_not(team: Team) -> None:
    key = ApiKey.objects.get(tenant=team.tenant)
    Membership.objects.filter(user=team.member.user).update(role="auditor")
    auditor = log_in(team, "member")
    page = auditor.get(BASE).content.decode()
    assert "tests" in page
    assert "Create a key" not in page
    detail = auditor.get(f"{BASE}/{key.pk}").content.decode()
    assert "Rotate" not in detail
    assert "Revoke" not in detail
    for path, fields in (
        (f"{BASE}/new", {"name": "x", "scopes": ["chat"]}),
        (f"{BASE}/{key.pk}", {"name": "x", "scopes": ["chat"]}),
        (f"{BASE}/{key.pk}/rotate", {"overlap": "0"}),
        (f"{BASE}/{key.pk}/revoke", {"confirm": "tests"}),
    ):
        assert auditor.post(path, fields).status_code == 403, path
    Membership.objects.filter(user=team.member.user).update(role="member")
    for path in (BASE, f"{BASE}/new", f"{BASE}/{key.pk}"):
        assert auditor.get(path).status_code == 403
    key.refresh_from_db()
    assert key.state == KeyState.ACTIVE


def test_a_foreign_key_has_no_page(team: Team, strangers: Team) -> None:
    """P11."""
    key = ApiKey.objects.get(tenant=strangers.tenant)
    owner = log_in(team)
    for base in (BASE, "/t/other/admin/keys"):
        for path in (f"{base}/{key.pk}", f"{base}/{key.pk}/rotate", f"{base}/{key.pk}/revoke"):
            assert owner.get(path).status_code == 404
            assert owner.post(path, {"overlap": "0", "confirm": "tests", "name": "x"}).status_code == 404
    key.refresh_from_db()
    assert key.active


def test_edited_addresses_lead_back_to_the_list(team: Team) -> None:
    owner = log_in(team)
    for query in ("state=x", "cursor=x", "cursor=2026-01-01T00:00:00_1", "state=%00"):
        assert owner.get(f"{BASE}?{query}", follow=True).status_code == 200
    assert "No key here" in owner.get(f"{BASE}?q=%F0%9F%94%91zz").content.decode()
