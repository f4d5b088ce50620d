"""What every answer has, whoever asks and whatever it says: the headers, and errors in the form of the address."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.http import HttpResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import URLPattern, URLResolver, get_resolver

from chatapp.accounts.models import User
from chatapp.chat import services
from chatapp.hygiene import bad_request, finished, limited
from chatapp.origins import allowed
from tests.chat.conftest import Team

pytestmark = pytest.mark.django_db

NEVER = "01890000-0000-7000-8000-000000000000"


def paths(slug: str, conversation: str) -> Iterator[str]:
    """An address for every pattern: the team's own, and of every other object one that never was."""

    def walk(patterns: list[Any], before: str = "") -> Iterator[str]:
        for entry in patterns:
            here = before + str(entry.pattern)
            if isinstance(entry, URLResolver):
                yield from walk(entry.url_patterns, here)
            else:
                assert isinstance(entry, URLPattern)
                yield here

    for pattern in sorted(set(walk(get_resolver("chatapp.urls").url_patterns))):
        if "(?P" in pattern or "^" in pattern or "\\" in pattern:
            continue  # the libraries' old style; their pages are walked by name below
        path = re.sub(r"<(\w+:)?slug>", slug, pattern)
        path = re.sub(r"<\w+:conversation_id>", conversation, path)
        yield "/" + re.sub(r"<[^>]*>", NEVER, path)
    yield from ("/accounts/password/reset/key/1-abc/", "/accounts/confirm-email/nothing/", "/nothing-is-here")


# What pages of other sites may load, and caches may keep: it says nothing of anybody.
FOR_OTHERS = frozenset({"/client/octavo.js", "/ws/v1/asyncapi.json"})


def check(path: str, reply: Any) -> None:
    policy = {part.split()[0]: part.split()[1:] for part in reply["Content-Security-Policy"].split("; ")}
    assert policy["default-src"] == ["'none'"], path
    assert policy["frame-ancestors"] == ["'none'"], path
    scripts, styles = policy["script-src"], policy["style-src"]
    assert "'unsafe-inline'" not in scripts, path
    if not path.startswith("/admin/"):
        assert not {"'unsafe-eval'", "'unsafe-inline'"} & {*scripts, *styles}, path
    assert not any(source in ("*", "https:", "http:") for source in scripts), path
    assert reply["X-Content-Type-Options"] == "nosniff", path
    assert reply["X-Frame-Options"] == "DENY", path
    assert reply["Referrer-Policy"] == "same-origin", path
    assert reply["Cross-Origin-Opener-Policy"] == "same-origin", path
    assert reply["Cross-Origin-Resource-Policy"] == ("cross-origin" if path in FOR_OTHERS else "same-origin"), path
    assert "camera=()" in reply["Permissions-Policy"], path
    assert ("max-age" if path in FOR_OTHERS else "no-store") in reply["Cache-Control"], path
    if reply["Content-Type"].startswith("text/html") and not reply.streaming:
        text = reply.content.decode()
        nonces = set(re.findall(r'nonce="([^"]*)"', text))
        assert all(f"'nonce-{nonce}'" in scripts for nonce in nonces if nonce), path
        for tag in re.findall(r"<script[^>]*>", text):
            assert "src=" in tag or "nonce=" in tag or "application/json" in tag, (path, tag)
        if not path.startswith("/admin/"):
            assert not re.findall(r"<[^>]+\s(?:style|on\w+)=", text), path


@pytest.mark.parametrize("who", ["nobody", "member", "owner", "operator"])
def test_every_address_answers_with_the_headers(client: Client, team: Team, who: str) -> None:
    generation = services.ask(access=team.member, text="A question")
    user = {
        "member": team.member.user,
        "owner": team.owner.user,
        "operator": User.objects.create_superuser("op@example.org", "a password") if who == "operator" else None,
    }.get(who)
    if user is not None:
        client.force_login(user)
    seen = 0
    for path in paths("acme", str(generation.conversation_id)):
        reply = client.get(path)
        assert reply.status_code < 500 or path == "/readyz", (path, reply.status_code)
        check(path, reply)
        seen += 1
        if user is not None and "logout" in path:
            client.force_login(user)
    assert seen > 60


def test_errors_that_django_makes_have_them_too(client: Client, team: Team) -> None:
    check("/", client.get("/", headers={"Host": "evil.example"}))
    strict = Client(enforce_csrf_checks=True)
    reply = strict.post("/accounts/login/", {"login": "a"})
    assert reply.status_code == 403
    check("/accounts/login/", reply)


@pytest.mark.parametrize(
    ("path", "kind", "has"),
    [
        ("/static/js/chat.js", "text/javascript; charset=utf-8", False),
        ("/static/css/base.css", "text/css", False),
        ("/static/img/favicon.svg", "image/svg+xml", True),
        ("/static/nothing", "text/html; charset=utf-8", True),
        ("/t/acme/", "text/html; charset=utf-8", True),
    ],
)
def test_only_what_may_be_a_document_says_what_documents_may_do(
    rf: RequestFactory, path: str, kind: str, has: bool
) -> None:
    """Half a kilobyte less for each of a page's scripts."""
    reply = finished(rf.get(path), HttpResponse(content_type=kind))
    assert ("Permissions-Policy" in reply) is has
    assert reply["X-Content-Type-Options"] == "nosniff"


def test_an_error_of_our_own_has_them_too(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from chatapp.chat import views

    def broken(user: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(views, "tenants_of", broken)
    client.raise_request_exception = False
    client.force_login(User.objects.create_user("someone@example.org", "a password"))
    reply = client.get("/")
    assert reply.status_code == 500
    check("/", reply)


def test_a_host_that_is_not_ours_or_that_comes_twice_is_a_400(client: Client) -> None:
    for host in ("evil.example", "testserver,testserver", "testserver:80:80", "a b", ""):
        assert client.get("/accounts/login/", headers={"Host": host}).status_code == 400, host


def test_a_method_that_nobody_knows_is_a_405_everywhere(client: Client, team: Team) -> None:
    assert team.owner.user is not None
    client.force_login(team.owner.user)
    for method in ("TRACE", "CONNECT", "PROPFIND", "FOO"):
        for path in ("/", "/accounts/login/", "/t/acme/", "/admin/", "/healthz", "/v1/models", "/api/t/acme/audit"):
            reply = client.generic(method, path)
            assert reply.status_code == 405, (method, path)
            assert "GET" in reply["Allow"]
            check(path, reply)


def test_a_length_that_is_no_number_is_a_400(client: Client) -> None:
    for length in ("-1", "1e3", "٣", "x", "1,1"):
        assert client.post("/accounts/login/", CONTENT_LENGTH=length).status_code == 400, length


@pytest.mark.parametrize("path", ["/accounts/login/", "/api/t/acme/audit", "/v1/chat/completions", "/admin/"])
def test_a_body_that_is_too_large_is_a_413_in_the_form_of_the_address(client: Client, path: str) -> None:
    for length in (str(50 * 1024**2), "9" * 5000):
        reply = client.post(path, b"x", content_type="application/json", CONTENT_LENGTH=length)
        assert reply.status_code == 413, length
        check(path, reply)
        if path.startswith(("/api/", "/v1/")):
            assert reply.json()["error"]["code"] == "too_large"
        else:
            assert b"too large" in reply.content


def test_a_body_that_turns_out_too_large_while_it_is_read_is_a_413(client: Client, rf: RequestFactory) -> None:
    assert bad_request(rf.get("/"), RequestDataTooBig()).status_code == 413
    assert bad_request(rf.get("/"), SuspiciousOperation()).status_code == 400
    with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=1000):
        field = "x" * 600
        form = client.post("/accounts/login/", {"login": field, "password": field}, CONTENT_LENGTH="900")
    assert form.status_code < 500, "it lies about its length"
    assert client.post("/accounts/login/", {f"f{i}": "x" for i in range(2500)}).status_code == 400


@pytest.mark.django_db(transaction=True)
async def test_it_is_the_same_for_async_requests() -> None:
    client = AsyncClient()
    for path in ("/accounts/login/", "/v1/models"):
        assert (await client.generic("PROPFIND", path)).status_code == 405
        assert (await client.generic("POST", path, headers={"Content-Length": "9" * 9})).status_code == 413
    assert (await client.get("/nothing-is-here")).status_code == 404


async def test_a_body_without_a_length_ends_with_413_as_soon_as_it_is_too_much(settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = settings.OCTAVO_MAX_BODY = 1000
    taken = 0

    async def application(scope: Any, receive: Any, send: Any) -> None:
        nonlocal taken
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            taken += len(message["body"])
            if not message.get("more_body"):
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    for parts, status in ((1, 200), (10, 200), (11, 413)):
        taken = 0
        http = ApplicationCommunicator(limited(application), {"type": "http", "headers": []})
        for part in range(parts):
            await http.send_input({"type": "http.request", "body": b"x" * 100, "more_body": part + 1 < parts})
        assert (await http.receive_output())["status"] == status
        assert taken <= 1000


def test_errors_below_the_api_are_json_in_its_shape(client: Client, team: Team) -> None:
    assert team.owner.user is not None
    client.force_login(team.owner.user)
    for method, path, status in (
        ("GET", "/api/nothing/here", 404),
        ("GET", "/api/t/nobody/audit", 404),
        ("DELETE", "/api/t/acme/audit", 405),
        ("PUT", "/api/t/acme/conversations", 405),
        ("GET", "/api/t/acme/conversations/never", 404),
    ):
        reply = client.generic(method, path)
        assert reply.status_code == status, path
        error = reply.json()["error"]
        assert error["code"], path
        assert error["message"], path
    reply = client.get("/api/nothing", headers={"Host": "evil.example"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("origin", "host", "ours"),
    [
        ("http://localhost:8000", "localhost:8000", True),
        ("https://chat.example.org", "chat.example.org", True),
        ("https://other.example.org", "chat.example.org:8443", True),  # named in CSRF_TRUSTED_ORIGINS
        ("http://localhost:3000", "localhost:8000", False),
        ("http://localhost", "localhost:8000", False),
        ("http://127.0.0.1:8000", "localhost:8000", False),
        ("https://evil.example", "evil.example", False),
        ("https://chat.example.org.evil.example", "chat.example.org", False),
        ("file://localhost:8000", "localhost:8000", False),
        ("null", "localhost:8000", False),
        ("http://localhost:x", "localhost:8000", False),
        ("", "localhost:8000", False),
    ],
)
def test_a_sessions_sockets_open_from_our_own_pages_only(settings: Any, origin: str, host: str, ours: bool) -> None:
    settings.ALLOWED_HOSTS = ["localhost", "127.0.0.1", "chat.example.org"]
    settings.CSRF_TRUSTED_ORIGINS = ["https://other.example.org"]
    headers = [(b"host", host.encode()), (b"origin", origin.encode())]
    assert allowed({"headers": headers}) is ours
    assert not allowed({"headers": [*headers, (b"origin", origin.encode())]}), "two origins are none"
    assert not allowed({"headers": headers[:1]})


async def test_a_socket_from_elsewhere_is_told_so_and_closed(settings: Any) -> None:
    from chatapp.asgi import application

    for path in ("/ws/ui", "/ws/ops/occupancy"):
        scope = {
            "type": "websocket", "path": path, "query_string": b"", "subprotocols": [],
            "headers": [(b"host", b"localhost"), (b"origin", b"https://evil.example")],
        }  # fmt: skip
        socket = ApplicationCommunicator(application, scope)
        await socket.send_input({"type": "websocket.connect"})
        assert (await socket.receive_output())["type"] == "websocket.accept"
        assert json.loads((await socket.receive_output())["text"])["code"] == "wrong_origin"
        assert await socket.receive_output() == {"type": "websocket.close", "code": 4403}
