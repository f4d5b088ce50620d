"""API keys by HTTP: the same actions as on the pages, for programs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import AsyncClient, Client

from chatapp.tenants.models import ApiKey, KeyScope
from chatapp.tenants.services import create_api_key
from tests.api.test_product_api import log_in, refusal
from tests.chat.conftest import Team, server, strangers, team

__all__ = ["server", "strangers", "team"]

BASE = "/api/t/acme/keys"


def call(client: Client, method: str, path: str, body: Any = None, **headers: str) -> Any:
    return client.generic(method, path, __import__("json").dumps(body or {}), "application/json", headers=headers)


@pytest.fixture
def owner(team: Team) -> Client:
    return log_in(team)


def made(client: Client, name: str = "Website", **fields: Any) -> dict[str, Any]:
    answer = call(client, "POST", BASE, {"name": name, **fields})
    assert answer.status_code == 201, answer.content
    return dict(answer.json())


def test_a_key_lives_its_life_by_http(owner: Client) -> None:
    new = made(owner, allowed_networks=["127.0.0.1"], expires_at="2030-01-31T12:00:00+01:00")
    key, secret = new["key"], new["secret"]
    assert secret.startswith(key["prefix"])
    assert (key["state"], key["scopes"], key["created_by"]) == ("active", ["chat"], "owner@acme.test")
    assert datetime.fromisoformat(key["expires_at"]) == datetime(2030, 1, 31, 11, tzinfo=UTC)
    path = f"{BASE}/{key['id']}"
    changed = call(owner, "PATCH", path, {"expires_at": None, "scopes": ["chat", "usage"]}).json()
    assert (changed["expires_at"], changed["scopes"]) == (None, ["chat", "usage"])
    assert changed["allowed_networks"] == ["127.0.0.1/32"], "what is not named stays"
    assert call(owner, "PATCH", path).json() == changed
    successor = call(owner, "POST", f"{path}/rotate", {"overlap": "1h"}).json()
    assert successor["key"]["replaces"] == key["id"]
    old = owner.get(path).json()
    assert (old["state"], old["replaced_by"]) == ("replaced", successor["key"]["id"])
    assert call(owner, "DELETE", path).json()["state"] == "revoked"
    assert call(owner, "DELETE", path).status_code == 200, "again is harmless"
    listed = owner.get(f"{BASE}?state=all").json()
    assert {item["id"] for item in listed["items"]} >= {key["id"], successor["key"]["id"]}
    everything = str([listed, old, owner.get("/api/t/acme/audit").json()])
    assert secret[9:] not in everything
    assert successor["secret"][9:] not in everything


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": 5}, "name"),
        ({"name": " "}, "name"),
        ({"name": "x", "scopes": "chat"}, "scopes"),
        ({"name": "x", "scopes": ["root"]}, "scopes"),
        ({"name": "x", "scopes": []}, "scopes"),
        ({"name": "x", "expires_at": "soon"}, "expires_at"),
        ({"name": "x", "expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"name": "x", "expires_at": "2030-01-01T00:00:00"}, "expires_at"),
        ({"name": "x", "allowed_origins": ["nowhere"]}, "allowed_origins"),
        ({"name": "x", "allowed_networks": ["nowhere"]}, "allowed_networks"),
        ({"name": "x", "allowed_networks": [5]}, "allowed_networks.0"),
    ],
)
def test_bad_input_is_told_with_its_field(owner: Client, body: dict[str, Any], param: str) -> None:
    answer = call(owner, "POST", BASE, body)
    assert answer.status_code == 400, answer.content
    assert answer.json()["error"]["param"] == param


def test_a_name_that_is_taken_is_a_conflict_so_sending_twice_is_harmless(owner: Client) -> None:
    made(owner)
    answer = call(owner, "POST", BASE, {"name": "Website"})
    assert refusal(answer) == (409, "conflict")
    assert ApiKey.objects.filter(name="Website").count() == 1


def test_a_foreign_or_unknown_key_is_not_found(owner: Client, strangers: Team) -> None:
    """P11."""
    assert strangers.key.key is not None
    foreign = strangers.key.key.pk
    for key_id in (foreign, "01890000-0000-7000-8000-000000000000"):
        for method, path in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/rotate")):
            assert refusal(call(owner, method, f"{BASE}/{key_id}{path}")) == (404, "not_found")
    assert ApiKey.objects.get(pk=foreign).active


def test_a_member_and_a_chat_key_manage_nothing(team: Team) -> None:
    member = log_in(team, "member")
    bearer = {"Authorization": f"Bearer {team.secret}"}
    for method, path in (("GET", BASE), ("POST", BASE)):
        assert refusal(call(member, method, path, {"name": "x"})) == (403, "not_allowed")
        assert refusal(call(Client(), method, path, {"name": "x"}, **bearer)) == (403, "not_allowed")


def test_a_key_that_administers_gives_no_more_than_it_has(team: Team) -> None:
    _, secret = create_api_key(tenant=team.tenant, name="Admin", scopes=(KeyScope.ADMIN,))
    bearer = {"Authorization": f"Bearer {secret}"}
    refused = call(Client(), "POST", BASE, {"name": "x", "scopes": ["chat"]}, **bearer)
    assert refusal(refused) == (403, "not_allowed")
    assert refused.json()["error"]["param"] == "scopes"
    answer = call(Client(), "POST", BASE, {"name": "x", "scopes": ["admin"]}, **bearer)
    assert answer.json()["key"]["created_by"].endswith("(Admin)")


# --- where a key can be sent ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({}, "No API key was sent"),
        ({"Authorization": "Basic abc"}, "holds no API key"),
        ({"Authorization": "Bearer"}, "holds no API key"),
        ({"x-api-key": "octv_abc"}, "not taken from the header x-api-key"),
        ({"api-key": "octv_abc"}, "not taken from the header api-key"),
        ({"Authorization": "Bearer octv_wrong"}, "not valid: it is unknown"),
    ],
)
async def test_whoever_sends_no_key_is_told_where_it_belongs(headers: dict[str, str], words: str, db: None) -> None:
    answer = await AsyncClient().get("/v1/models", headers=headers)
    assert answer.status_code == 401
    assert words in answer.json()["error"]["message"]
    assert "octv_abc" not in answer.content.decode()
    assert answer["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("quoted", ["{}", "key%3D{}", "a=1&api_key={}&b=2", "%6Fctv_{rest}", "%256Fctv_{rest}"])
def test_a_key_in_an_address_is_refused_with_the_advice_to_revoke_it(team: Team, quoted: str) -> None:
    query = quoted.format(team.secret, rest=team.secret[5:])
    for path in ("/v1/models", "/api/t/acme/keys"):
        for headers in ({}, {"Authorization": f"Bearer {team.secret}"}):
            answer = Client().get(f"{path}?{query}", headers=headers)
            assert answer.status_code == 401
            error = answer.json()["error"]
            assert error["code"] == "key_in_address"
            assert "Revoke that key" in error["message"]
            assert team.secret[9:] not in answer.content.decode()


def test_the_shown_beginning_of_a_key_in_an_address_is_no_key(owner: Client, team: Team) -> None:
    answer = owner.get(f"{BASE}?q={team.secret[:9]}")
    assert [item["name"] for item in answer.json()["items"]] == ["tests"]


# --- pages of other origins -----------------------------------------------------------------------------------------

PAGE = {"Origin": "https://app.example"}


@pytest.mark.django_db(transaction=True)
def test_a_listed_page_may_call_and_read_and_another_may_not(team: Team) -> None:
    _, secret = create_api_key(tenant=team.tenant, name="Web", allowed_origins=["https://app.example"])
    bearer = {"Authorization": f"Bearer {secret}"}
    answer = Client().get("/v1/models", headers={**bearer, **PAGE})
    assert answer.status_code == 200
    assert answer["Access-Control-Allow-Origin"] == "https://app.example"
    exposed = answer["Access-Control-Expose-Headers"].split(", ")
    assert {"retry-after", "x-should-retry", "x-ratelimit-remaining-requests", "x-ratelimit-reset-tokens"} <= {*exposed}
    assert "Origin" in answer["Vary"]
    for headers in (bearer, {**bearer, "Origin": "https://evil.example"}):
        refused = Client().get("/v1/models", headers=headers)
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "origin_not_allowed"
        assert "Access-Control-Allow-Origin" not in refused
    unbound = Client().get("/v1/models", headers={"Authorization": f"Bearer {team.secret}", **PAGE})
    assert unbound.status_code == 200
    assert "Access-Control-Allow-Origin" not in unbound


def test_a_preflight_is_answered_without_a_key_and_lets_no_cookie_in(db: None) -> None:
    asks = {
        **PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,x-stainless-os",
    }
    answer = Client().options("/v1/chat/completions", headers=asks)
    assert answer.status_code == 204
    assert answer["Access-Control-Allow-Methods"] == "POST"
    assert answer["Access-Control-Allow-Headers"] == "authorization,x-stainless-os"
    assert "Access-Control-Allow-Credentials" not in answer
    assert Client().options("/v1/chat/completions").status_code == 405


@pytest.mark.django_db(transaction=True)
def test_networks_bind_http_calls(team: Team) -> None:
    _, secret = create_api_key(tenant=team.tenant, name="Office", allowed_networks=["10.0.0.0/8"])
    bearer = {"Authorization": f"Bearer {secret}"}
    for path in ("/v1/models", "/api/t/acme/keys"):
        answer = Client(REMOTE_ADDR="192.0.2.1").get(path, headers=bearer)
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "address_not_allowed"
        # What a client writes itself does not count without a proxy of ours.
        forged = Client(REMOTE_ADDR="192.0.2.1").get(path, headers={**bearer, "X-Forwarded-For": "10.0.0.1"})
        assert forged.status_code == 403
    assert Client(REMOTE_ADDR="10.0.0.1").get("/v1/models", headers=bearer).status_code == 200


# --- logs -----------------------------------------------------------------------------------------------------------


def test_no_log_line_holds_a_key_wherever_it_was_put(team: Team) -> None:
    import logging
    import sys

    from chatapp.logs import formatter

    secret = team.secret
    style = formatter()

    def line(message: str, *args: Any, **extra: Any) -> str:
        try:
            raise ValueError(f"cannot read {secret}")
        except ValueError:
            info = sys.exc_info()
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, message, args, info)
        return style.format(record)

    text = line("Bad request: /v1/%s?key=%s", secret, secret)
    assert secret[9:] not in text
    assert f"{secret[:9]}…" in text or f"{secret[:9]}\\u2026" in text

    import structlog

    processors = structlog.get_config()["processors"]
    event: Any = {"event": "api.failed", "path": f"/v1/{secret}", "headers": {"x": [secret.encode(), (secret,)]}}
    for processor in processors[:-1]:
        event = processor(structlog.get_logger("x"), "error", event)
    record = logging.makeLogRecord({"msg": event, "name": "x", "levelname": "ERROR"})
    record._logger, record._name, record._from_structlog = None, "error", True  # type: ignore[attr-defined]
    assert secret[9:] not in style.format(record)
