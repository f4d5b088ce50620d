"""The product's HTTP API: who gets in, and how it says no."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from chatapp.audit.services import record
from tests.chat.conftest import Team, server, strangers, team

__all__ = ["server", "strangers", "team"]


def log_in(team: Team, who: str = "owner") -> Client:
    client = Client()
    client.force_login(getattr(team, who).user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def refusal(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_an_owner_reads_the_audit_log_of_the_own_team_alone(team: Team, strangers: Team) -> None:
    record("team.renamed", actor=team.owner.actor, tenant=team.tenant, on=team.tenant)
    record("team.renamed", actor=strangers.owner.actor, tenant=strangers.tenant, on=strangers.tenant)
    answer = log_in(team).get("/api/t/acme/audit").json()
    assert [item["object_name"] for item in answer["items"]] == ["Acme"]


def test_a_foreign_team_does_not_exist_and_a_role_that_lacks_it_is_told(team: Team, strangers: Team) -> None:
    assert refusal(log_in(team).get("/api/t/other/audit")) == (404, "not_found")
    assert refusal(log_in(team).get("/api/t/nowhere/audit")) == (404, "not_found")
    assert refusal(log_in(team, "member").get("/api/t/acme/audit")) == (403, "not_allowed")


def test_a_key_is_held_to_its_team_and_scopes(team: Team, strangers: Team) -> None:
    bearer = {"Authorization": f"Bearer {team.secret}"}
    assert refusal(Client().get("/api/t/acme/audit", headers=bearer)) == (403, "not_allowed")
    assert refusal(Client().get("/api/t/other/audit", headers=bearer)) == (404, "not_found")
    wrong = {"Authorization": "Bearer octv_wrong"}
    assert refusal(Client().get("/api/t/acme/audit", headers=wrong)) == (401, "invalid_api_key")


def test_nobody_is_asked_to_say_who_he_is(db: None) -> None:
    answer = Client().get("/api/t/acme/audit")
    assert refusal(answer) == (401, "unauthenticated")
    assert answer["WWW-Authenticate"] == "Bearer"


def test_whoever_asks_for_small_pages_gets_small_pages(team: Team) -> None:
    owner = log_in(team)
    for number in range(2):
        record("team.renamed", actor=team.owner.actor, tenant=team.tenant, on=team.tenant)
        body = {"name": f"Key {number}", "scopes": ["chat"]}
        assert owner.post("/api/t/acme/keys", body, content_type="application/json").status_code == 201
    for topic in ("audit", "keys"):
        first = owner.get(f"/api/t/acme/{topic}", {"limit": 1}).json()
        rest = owner.get(f"/api/t/acme/{topic}", {"limit": 1, "cursor": first["next"]}).json()
        assert len(first["items"]) == len(rest["items"]) == 1
        assert first["items"] != rest["items"]
    for operations in owner.get("/api/openapi.json").json()["paths"].values():
        names = {parameter["name"] for parameter in operations.get("get", {}).get("parameters", [])}
        assert "cursor" not in names or "limit" in names, operations


@pytest.mark.django_db
def test_the_document_describes_the_operations() -> None:
    document = Client().get("/api/openapi.json").json()
    assert "/api/t/{slug}/audit" in document["paths"]
