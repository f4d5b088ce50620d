"""Demo data: complete, private, the same at every start, and never in production."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from chatapp.accounts.models import User
from chatapp.chat.demo import make_demo
from chatapp.limits.selectors import limits_of
from chatapp.prompts.models import PromptVersion
from chatapp.prompts.selectors import published
from chatapp.prompts.services import publish
from chatapp.tenants.access import BadKey, access_for_key, access_for_user
from chatapp.tenants.models import ApiKey, Membership, Role, Tenant
from chatapp.tenants.permissions import Permission

pytestmark = pytest.mark.django_db


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "var" / "demo.json"


def people(file: dict[str, Any]) -> list[dict[str, str]]:
    return [file["operator"], *(team[part] for team in file["tenants"] for part in ("admin", "member"))]


def test_the_file_tells_of_teams_whose_people_and_keys_work(path: Path, settings: Any) -> None:
    settings.OCTAVO_URL = "http://127.0.0.1:8123"
    file = make_demo(path)
    assert json.loads(path.read_text()) == file
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert file["url"] == "http://127.0.0.1:8123"
    assert len(file["tenants"]) >= 4
    prompts = set()
    for team in file["tenants"]:
        assert set(team) == {"slug", "name", "api_key", "admin", "member"}
        access = access_for_key(team["api_key"])
        assert (access.tenant.slug, access.tenant.name) == (team["slug"], team["name"])
        assert access.may(Permission.OWN_SYSTEM_MESSAGE)
        limits = limits_of(access)
        assert limits.queue_length >= 16
        assert limits.team.concurrent_answers is None
        version = published(access.tenant)
        assert version is not None
        prompts.add(version.text)
        for part, role in (("admin", Role.OWNER), ("member", Role.MEMBER)):
            user = User.objects.get(email=team[part]["email"])
            assert access_for_user(user, team["slug"]).role == role
            assert not user.is_staff
    assert len(prompts) == len(file["tenants"])
    operator = User.objects.get(email=file["operator"]["email"])
    assert operator.is_staff
    assert operator.is_superuser
    assert not operator.memberships.exists()


def test_everyone_can_log_in_with_the_password_of_the_file(path: Path) -> None:
    for person in people(make_demo(path)):
        client = Client()
        reply = client.post("/accounts/login/", {"login": person["email"], "password": person["password"]})
        assert (reply.status_code, reply["Location"]) == (302, "/"), person["email"]
    assert Client().get("/accounts/signup/").status_code == 200
    made = {"email": "me@example.org", "password1": "a long password", "password2": "a long password"}
    Client().post("/accounts/signup/", made)
    assert not User.objects.filter(email="me@example.org").exists(), "nobody makes an account by themselves"


def test_a_second_run_finds_all_of_it_again(path: Path) -> None:
    first = make_demo(path)
    counts = [model.objects.count() for model in (User, Tenant, ApiKey, PromptVersion)]
    assert make_demo(path) == first
    assert [model.objects.count() for model in (User, Tenant, ApiKey, PromptVersion)] == counts


def test_what_the_user_has_published_since_stays(path: Path) -> None:
    file = make_demo(path)
    tenant = Tenant.objects.get(slug=file["tenants"][0]["slug"])
    publish(tenant=tenant, text="My own.")
    make_demo(path)
    version = published(tenant)
    assert version is not None
    assert version.text == "My own."


@pytest.mark.parametrize("damage", [lambda p: p.unlink(), lambda p: p.write_text("{"), lambda p: p.write_text("[]")])
def test_a_lost_file_gives_new_secrets_and_ends_the_old_ones(path: Path, damage: Any) -> None:
    first = make_demo(path)
    damage(path)
    second = make_demo(path)
    assert not {p["password"] for p in people(first)} & {p["password"] for p in people(second)}
    for old, new in zip(first["tenants"], second["tenants"], strict=True):
        with pytest.raises(BadKey):
            access_for_key(old["api_key"])
        assert access_for_key(new["api_key"]).tenant.slug == new["slug"]


def test_two_data_folders_have_no_secret_in_common(path: Path, tmp_path: Path) -> None:
    first = make_demo(path)
    User.objects.all().delete()
    Tenant.objects.all().delete()
    second = make_demo(tmp_path / "other.json")
    secrets = [{p["password"] for p in people(f)} | {t["api_key"] for t in f["tenants"]} for f in (first, second)]
    assert not secrets[0] & secrets[1]
    assert len(secrets[0]) == 9 + 4


def test_no_demo_where_the_settings_are_for_real_data(settings: Any, tmp_path: Path) -> None:
    settings.OCTAVO_DEMO = False
    settings.DATA = tmp_path
    with pytest.raises(CommandError, match="only made in local settings"):
        call_command("demo")
    assert not User.objects.exists()
    assert not (tmp_path / "demo.json").exists()


def test_a_file_that_cannot_be_written_leaves_no_accounts(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    with pytest.raises(OSError, match="taken"):
        make_demo(tmp_path / "taken" / "demo.json")
    assert not User.objects.exists()


def test_a_demo_team_of_an_earlier_version_gets_an_owner(tmp_path: Path) -> None:
    file = make_demo(tmp_path / "demo.json")
    Membership.objects.filter(role=Role.OWNER).update(role=Role.ADMIN)
    again = make_demo(tmp_path / "demo.json")
    assert again == file
    owners = Membership.objects.filter(role=Role.OWNER).values_list("user__email", flat=True)
    assert sorted(owners) == sorted(team["admin"]["email"] for team in file["tenants"])
