"""Who may open a socket, which frames it takes, and how its right ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.api.conftest import ENDS, Browser, Socket, rows, text_of
from tests.stack import ROOT, Stack, wait_for

SHORT = {"temperature": 0, "max_tokens": 4}
LONG = {"temperature": 0, "max_tokens": 2048, "ignore_eos": True}
NOBODY = "01890000-0000-7000-8000-000000000000"


# --- frames -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "close"),
    [
        ("", 4400),
        ("hello", 4400),
        ('{"type":"ping"', 4400),
        ('{"type":"ping"} {"type":"ping"}', 4400),
        ('{"type":"ping","x":NaN}', 4400),
        ("[" * 60_000, 4400),
        (b'{"type":"ping"}', 4400),
        ('{"type":"ping","x":"' + "x" * (65536 - 21) + '"}', 4413),
        ('{"type":"ping","x":"' + "é" * 32768 + '"}', 4413),
        ("x" * 65537, 4413),
    ],
    ids=lambda value: str(value)[:24] if isinstance(value, str | bytes) else str(value),
)
def test_a_frame_that_cannot_be_read_closes_the_socket_with_the_reason(
    open_socket: Any, frame: str | bytes, close: int
) -> None:
    with open_socket() as socket:
        socket.connection.send(frame)
        error = socket.read()
        assert error["type"] == "error"
        assert error["code"] == {4400: "bad_frame", 4413: "frame_too_large"}[close]
        assert socket.closed() == close


def test_a_frame_of_exactly_64_kib_is_taken(open_socket: Any) -> None:
    with open_socket() as socket:
        frame = '{"type":"ping","x":"' + "x" * (65536 - 22) + '"}'
        assert len(frame) == 65536
        socket.connection.send(frame)
        assert socket.read()["type"] == "pong"


BAD_FRAMES: list[tuple[dict[str, Any], str, str | None]] = [
    ({"type": "respond"}, "invalid_frame", "type"),
    ({"type": 7}, "invalid_frame", "type"),
    ({}, "invalid_frame", "type"),
    ({"type": "response.create"}, "invalid_frame", "input"),
    ({"type": "response.create", "input": 7}, "invalid_frame", "input"),
    ({"type": "response.create", "input": [{"role": "user"}]}, "invalid_frame", "input[0].content"),
    ({"type": "response.create", "input": [{"content": "x"}]}, "invalid_frame", "input[0].role"),
    ({"type": "response.create", "input": "x", "conversation_id": 5}, "invalid_frame", "conversation_id"),
    ({"type": "response.create", "input": "x", "params": []}, "invalid_frame", "params"),
    ({"type": "response.create", "input": "x", "params": {"temperature": "hot"}}, "invalid_request", "temperature"),
    ({"type": "response.create", "input": "x", "params": {"max_tokens": 0}}, "invalid_request", "max_tokens"),
    ({"type": "response.create", "input": "x", "params": {"frobnicate": 2}}, "unknown_parameter", "frobnicate"),
    ({"type": "response.create", "input": "x", "params": {"n": 2}}, "invalid_request", "n"),
    ({"type": "response.create", "input": ""}, "empty", "input"),
    ({"type": "response.create", "input": " \n\t\u200b "}, "empty", "input"),
    ({"type": "response.create", "input": []}, "empty", "messages"),
    ({"type": "response.create", "input": [{"role": "user", "content": " "}]}, "empty", "messages[0].content"),
    ({"type": "response.create", "input": [{"role": "x", "content": "x"}]}, "invalid_request", "messages[0].role"),
    ({"type": "response.create", "input": "x", "parent_id": NOBODY}, "invalid_request", "parent_id"),
    ({"type": "response.create", "input": "x", "conversation_id": NOBODY}, "not_found", "conversation_id"),
    ({"type": "response.create", "input": "x", "conversation_id": "x'--"}, "not_found", "conversation_id"),
    (
        {"type": "response.create", "input": [{"role": "user", "content": "x"}], "model": "m"},
        "model_not_found",
        "model",
    ),
    (
        {"type": "response.create", "input": [{"role": "user", "content": "x"}], "conversation_id": NOBODY},
        "invalid_request",
        "conversation_id",
    ),
    ({"type": "response.create", "input": "x", "idempotency_key": ""}, "invalid_request", "idempotency_key"),
    ({"type": "response.cancel"}, "invalid_frame", "response_id"),
    ({"type": "response.cancel", "response_id": None}, "invalid_frame", "response_id"),
    ({"type": "response.cancel", "response_id": NOBODY}, "not_found", "response_id"),
    ({"type": "response.cancel", "response_id": ""}, "not_found", "response_id"),
    ({"type": "response.resume", "response_id": NOBODY, "after": "1"}, "invalid_frame", "after"),
    ({"type": "response.resume", "response_id": NOBODY, "after": -2}, "invalid_frame", "after"),
    ({"type": "response.resume", "response_id": NOBODY, "after": 1.5}, "invalid_frame", "after"),
    ({"type": "response.resume", "response_id": NOBODY, "after": 10**30}, "invalid_frame", "after"),
    ({"type": "response.resume", "response_id": NOBODY}, "not_found", "response_id"),
    ({"type": "ping", "event_id": 5}, "invalid_frame", "event_id"),
    ({"type": "ping", "event_id": "x" * 129}, "invalid_frame", "event_id"),
]


def test_a_frame_that_asks_for_nonsense_gets_an_error_with_its_event_id_and_the_socket_stays(open_socket: Any) -> None:
    """C22 and its kind, for sockets."""
    with open_socket() as socket:
        for number, (frame, code, param) in enumerate(BAD_FRAMES):
            event_id = f"e{number}"
            socket.send(**{"event_id": event_id, **frame})
            error = socket.read()
            assert error["type"] == "error", (frame, error)
            assert (error["code"], error.get("param")) == (code, param), (frame, error)
            assert error["message"]
            assert error["retryable"] is False
            if "event_id" not in frame:
                assert error["event_id"] == event_id, (frame, error)
        socket.connection.send("[1]")
        assert socket.read()["code"] == "invalid_frame"
        for depth in (1, 50, 200, 400, 600, 800, 950):  # what some part of the way in cannot print or parse
            nested = "[" * depth + "]" * depth
            socket.connection.send('{"type":"response.create","input":"x","params":{"temperature":' + nested + "}}")
            assert socket.read()["code"] in ("invalid_request", "invalid_frame", "bad_frame"), depth
        assert text_of(socket.answer(input="Say hello.", params=SHORT))


# --- keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer octv_wrong", "Basic abc", "Bearer é"])
def test_a_missing_or_wrong_key_closes_with_4401(stack: Stack, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    with connect(f"{stack.ws_url}/ws/v1", additional_headers=headers) as connection:
        socket = Socket(connection)
        assert socket.hello["type"] == "error"
        assert socket.hello["code"] in ("unauthenticated", "invalid_api_key")
        assert socket.closed() == 4401


def test_a_key_comes_as_a_subprotocol_too(stack: Stack) -> None:
    offered: Any = ["octavo.v1", f"octavo.key.{stack.key()}"]
    with connect(f"{stack.ws_url}/ws/v1", subprotocols=offered) as connection:
        assert connection.subprotocol == "octavo.v1", "the key is never sent back"
        socket = Socket(connection)
        assert socket.hello["type"] == "session.created"
        assert text_of(socket.answer(input="Say hello.", params=SHORT))
    wrong: Any = ["octavo.v1", "octavo.key.octv_wrong"]
    with connect(f"{stack.ws_url}/ws/v1", subprotocols=wrong) as connection:
        assert Socket(connection).closed() == 4401


def test_cookies_do_not_count_where_keys_do(stack: Stack, browser: Any) -> None:
    member = browser()
    cookie = "; ".join(f"{name}={value}" for name, value in member.http.cookies.items())
    with connect(f"{stack.ws_url}/ws/v1", additional_headers={"Cookie": cookie}, origin=stack.url) as connection:  # type: ignore[arg-type]
        assert Socket(connection).closed() == 4401


def test_a_socket_at_an_unknown_address_is_refused(stack: Stack) -> None:
    for path in ("/ws/v2", "/ws/v1/x", "/"):
        with pytest.raises(InvalidStatus) as refusal, connect(stack.ws_url + path, origin=stack.url):  # type: ignore[arg-type]
            pass
        assert refusal.value.response.status_code == 403


# --- sessions -----------------------------------------------------------------------------------------------------


def test_a_session_opens_the_sockets_of_its_own_teams_only(stack: Stack, browser: Any) -> None:
    slugs = [tenant["slug"] for tenant in stack.demo["tenants"]]
    member: Browser = browser(0)
    with member.open(slugs[0]) as socket:
        assert socket.hello["type"] == "session.created"
        frames = socket.answer(input="Say hello.", params=SHORT)
        assert text_of(frames)
        stateless = socket.answer(input=[{"role": "user", "content": "x"}])[-1]
        assert (stateless["code"], stateless["param"]) == ("invalid_request", "input")
    for slug in (slugs[1], "no-such-team", "", "%00", slugs[0].upper()):
        with member.open(slug) as socket:
            assert socket.hello["type"] == "error"
            assert socket.closed() == 4403
    with connect(f"{stack.ws_url}/ws/ui?tenant={slugs[0]}", origin=stack.url) as connection:  # type: ignore[arg-type]
        socket = Socket(connection)
        assert socket.hello["code"] == "unauthenticated"
        assert socket.closed() == 4401
    # A page of another site cannot use the session.
    for origin in ("https://evil.example", f"https://evil.example:{stack.port}", "null", "http://127.0.0.1:1"):
        with member.open(slugs[0], origin=origin) as socket:
            assert socket.hello["code"] == "wrong_origin"
            assert socket.closed() == 4403


def test_logging_out_closes_the_sockets_of_that_session_only(stack: Stack, browser: Any) -> None:
    """P12."""
    slug = stack.demo["tenants"][0]["slug"]
    here, there = browser(), browser()
    with here.open(slug) as first, here.open(slug) as second, there.open(slug) as other:
        first.create(input="Tell me a story.", params={**LONG, "max_tokens": 150})
        here.post("/accounts/logout/")
        left = time.monotonic()
        assert first.closed() == 4440
        assert second.closed() == 4440
        assert time.monotonic() - left < 2.5
        other.send(type="ping")
        assert other.read()["type"] == "pong"


def manage(stack: Stack, code: str) -> str:
    """What an operator's shell prints that runs beside the product."""
    env = {
        **os.environ,
        "OCTAVO_DATA": str(stack.data),
        "OCTAVO_MODEL": stack.model,
        "REDIS_URL": f"unix://{stack.redis.connection_pool.connection_kwargs['path']}",
        "DJANGO_SETTINGS_MODULE": "chatapp.settings.local",
    }
    done = subprocess.run(
        [sys.executable, "manage.py", "shell", "-v", "0", "-c", code],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_revoked_key_or_membership_ends_its_sockets_within_two_seconds(
    stack: Stack, open_socket: Any, browser: Any
) -> None:
    """P12."""
    slug = stack.demo["tenants"][1]["slug"]
    secret = manage(
        stack,
        "from chatapp.tenants.models import Tenant; from chatapp.tenants.services import create_api_key;"
        f"print(create_api_key(tenant=Tenant.objects.get(slug='{slug}'), name='Short-lived')[1])",
    ).splitlines()[-1]
    with open_socket(secret) as socket, open_socket(stack.key(1)) as other:
        assert text_of(socket.answer(input="Say hello.", params=SHORT))
        running = socket.create(input=[{"role": "user", "content": "A long story!"}], params=LONG)
        assert running["response_id"]
        rows(stack, "UPDATE tenants_apikey SET revoked_at = CURRENT_TIMESTAMP WHERE name = 'Short-lived'")
        left = time.monotonic()
        assert socket.closed() == 4440
        assert time.monotonic() - left < 2.5
        other.send(type="ping")
        assert other.read()["type"] == "pong"
    with open_socket(secret) as socket:
        assert socket.closed() == 4401
    stack.wait_idle()
    member = browser(1, "member")
    with member.open(slug) as socket:
        assert socket.hello["type"] == "session.created"
        email = stack.demo["tenants"][1]["member"]["email"]
        where = "WHERE user_id = (SELECT id FROM accounts_user WHERE email = ?)"
        rows(stack, f"UPDATE tenants_membership SET role = 'admin' {where}", email)
        assert socket.closed() == 4440
    rows(stack, f"UPDATE tenants_membership SET role = 'member' {where}", email)


def test_suspension_ends_the_sockets_and_the_session_in_that_team_and_in_no_other(stack: Stack, browser: Any) -> None:
    """P12: by the service that the pages and the API call, within a second and what the network takes."""
    here, there = (stack.demo["tenants"][number]["slug"] for number in (1, 2))
    email = stack.demo["tenants"][1]["member"]["email"]
    manage(
        stack,
        "from chatapp.accounts.models import User; from chatapp.tenants.models import Tenant;"
        "from chatapp.tenants.services import add_member;"
        f"add_member(tenant=Tenant.objects.get(slug='{there}'), user=User.objects.get(email='{email}'), role='member')",
    )
    member, admin = browser(1, "member"), browser(1, "admin")
    people = admin.http.get(f"/api/t/{here}/members", params={"q": email}).json()["items"]
    headers = {"X-CSRFToken": str(admin.http.cookies["csrftoken"]), "Origin": stack.url}

    def change(what: str) -> float:
        reply = admin.http.post(f"/api/t/{here}/members/{people[0]['id']}/{what}", headers=headers)
        assert reply.status_code == 200, reply.text
        return time.monotonic()

    with member.open(here) as closing, member.open(there) as staying:
        closing.create(input="Tell me a story.", params={**LONG, "max_tokens": 150})
        since = change("suspend")
        assert closing.closed() == 4440
        assert time.monotonic() - since < 1.5
        assert member.http.get(f"/t/{here}/").status_code == 404
        with member.open(here) as again:
            assert again.closed() == 4403
        staying.send(type="ping")
        assert staying.read()["type"] == "pong"
        assert member.http.get(f"/t/{there}/").status_code == 200
    change("resume")
    with member.open(here) as socket:
        assert socket.hello["type"] == "session.created"
    rows(
        stack,
        "DELETE FROM tenants_membership WHERE user_id = (SELECT id FROM accounts_user WHERE email = ?)"
        " AND tenant_id = (SELECT id FROM tenants_tenant WHERE slug = ?)",
        email,
        there,
    )
    stack.wait_idle()


def test_a_suspended_team_is_out_within_two_seconds_and_stops_being_answered(
    stack: Stack, open_socket: Any, browser: Any
) -> None:
    """P12, for all of a team at once."""
    slug = stack.demo["tenants"][1]["slug"]
    change = "from chatapp.operators import services; from chatapp.tenants.models import Tenant; "
    change += "from chatapp.accounts.models import User; by = User.objects.get(is_superuser=True); "
    change += f"services.{{verb}}_tenant(by=by, tenant=Tenant.objects.get(slug='{slug}'))"
    member = browser(1, "member")
    try:
        with member.open(slug) as session, open_socket(stack.key(1)) as keyed, open_socket(stack.key(0)) as other:
            assert session.create(input="Tell me a long story.", params={"temperature": 0, "max_tokens": 1500})
            assert keyed.create(input=[{"role": "user", "content": "A long story!"}], params=LONG)
            manage(stack, change.format(verb="suspend"))
            left = time.monotonic()
            assert session.closed() == keyed.closed() == 4440
            assert time.monotonic() - left < 2.5
            wait_for(lambda: stack.running() == 0, 15)
            other.send(type="ping")
            assert other.read()["type"] == "pong"
        assert member.http.get(f"/t/{slug}/").status_code == 404
        with open_socket(stack.key(1)) as keyed:
            assert keyed.closed() == 4403, "who has the whole key is told that it is not the key"
        with member.open(slug) as session:
            assert session.closed() == 4403
    finally:
        manage(stack, change.format(verb="resume"))
    with open_socket(stack.key(1)) as keyed:
        assert text_of(keyed.answer(input="Say hello.", params=SHORT))


def test_a_key_that_may_not_send_system_messages_is_told_so(stack: Stack, open_socket: Any) -> None:
    slug = stack.demo["tenants"][1]["slug"]
    secret = manage(
        stack,
        "from chatapp.tenants.models import Tenant; from chatapp.tenants.services import create_api_key;"
        f"print(create_api_key(tenant=Tenant.objects.get(slug='{slug}'), name='Plain')[1])",
    ).splitlines()[-1]
    messages = [{"role": "system", "content": "You are a pirate."}, {"role": "user", "content": "Hello."}]
    with open_socket(secret) as socket:
        refused = socket.answer(input=messages, event_id="1")[-1]
        assert (refused["code"], refused["param"], refused["event_id"]) == ("not_allowed", "messages", "1")
        assert socket.answer(input=messages[1:], params=SHORT)[-1]["type"] in ENDS


def test_no_prompt_text_is_in_the_logs(stack: Stack, open_socket: Any) -> None:
    with open_socket() as socket:
        word = "xylotomous"
        socket.answer(input=f"Say {word}.", params=SHORT)
        socket.connection.send(json.dumps({"type": "response.create", "input": {"word": word}}))
        socket.read()
    for log in (stack.data / "logs").glob("*.log"):
        assert word not in log.read_text(errors="replace"), log.name
