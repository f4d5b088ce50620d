"""P11 over the wire: every address and every frame, with another tenant's ids.

Two tables say for each address and each frame what a stranger gets. An address or a frame that is not in its table
fails here until somebody has thought about it.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any, get_args

import httpx
import msgspec
import pytest
from django.urls import URLPattern, URLResolver, get_resolver
from django.urls.resolvers import RoutePattern

from chatapp.api import frames
from tests.api.conftest import Browser, hexed, rows, text_of
from tests.api.test_websocket_ways_in import manage
from tests.stack import Stack, wait_for

SHORT = {"temperature": 0, "max_tokens": 8}
SECRET = "The vault opens at nine."

NO_ID = "carries no id of a tenant's"
BY_KEY = "the tenant is the key's own; the body names no stored thing"
OWN_ACCOUNT = "about the session's own account, or about nobody's"
OPERATORS = "for operators only"
# What a stranger gets where the address does carry an id of someone else's.
FOREIGN = "404, as for what never was"
# The same; and of the team's own people only those whose role includes it get in. tests/tenants/test_every_address.py
# walks these, each as everybody.
MANAGED = "404 for strangers, 403 for the wrong role"
# Addresses of keys' own things. tests/files/test_openai_files.py walks the files', as other teams' keys, and
# tests/responses/test_client.py the responses', as other keys of the team too.
OF_KEYS = "404 for the keys of other teams"
TO_READ_METRICS = "for whoever knows the operators' token for metrics, which no session and no key stands for"
BY_TOKEN = "what a signed, single-use link names; nothing else opens it"

# Without the converters of ids: what django-ninja calls its own depends on what was imported before.
ADDRESSES: dict[str, str] = {
    "healthz": NO_ID,
    "readyz": NO_ID,
    "metrics": TO_READ_METRICS,
    "metrics/targets": TO_READ_METRICS,
    "favicon.ico": NO_ID,
    "setup": NO_ID,
    "": NO_ID,
    "v1": BY_KEY,
    "v1/": BY_KEY,
    "v1/openapi.json": NO_ID,
    "client/octavo.js": NO_ID,
    "v1/chat/completions": BY_KEY,
    "v1/completions": BY_KEY,
    "v1/models": BY_KEY,
    "v1/models/<name>": BY_KEY,
    "v1/files": BY_KEY,
    "v1/files/<file_id>": OF_KEYS,
    "v1/files/<file_id>/content": OF_KEYS,
    "v1/batches": OF_KEYS,
    "v1/batches/<batch_id>": OF_KEYS,
    "v1/batches/<batch_id>/cancel": OF_KEYS,
    "v1/responses": OF_KEYS,
    "v1/responses/<response_id>": OF_KEYS,
    "v1/responses/<response_id>/cancel": OF_KEYS,
    "v1/responses/<response_id>/input_items": OF_KEYS,
    "v1/tickets": BY_KEY,
    "ws/v1/asyncapi.json": NO_ID,
    "docs/": NO_ID,
    "docs/websocket": NO_ID,
    "docs/<name>": NO_ID,
    "words/<language>/<digest>.js": NO_ID,
    "v1/<rest>": BY_KEY,
    "api/t/<slug>/conversations": MANAGED,
    "api/t/<slug>/conversations/search": MANAGED,
    "api/t/<slug>/conversations/changes": MANAGED,
    "api/t/<slug>/conversations/<conversation_id>": MANAGED,
    "api/t/<slug>/conversations/<conversation_id>/memory": MANAGED,
    "api/t/<slug>/conversations/<conversation_id>/messages": MANAGED,
    "api/t/<slug>/conversations/<conversation_id>/messages/<message_id>/answers": MANAGED,
    "api/t/<slug>/conversations/<conversation_id>/messages/<message_id>/continuations": MANAGED,
    "api/t/<slug>/conversations/<conversation_id>/restore": MANAGED,
    "api/t/<slug>/tags": MANAGED,
    "api/t/<slug>/conversations/<conversation_id>/export": MANAGED,
    "api/t/<slug>/conversations/<conversation_id>/notes": MANAGED,
    "api/t/<slug>/conversations/<conversation_id>/shares": MANAGED,
    "api/t/<slug>/conversations/export": MANAGED,
    "api/t/<slug>/imports": MANAGED,
    "api/t/<slug>/imports/<import_id>": MANAGED,
    "api/t/<slug>/shares": MANAGED,
    "api/t/<slug>/shares/<share_id>": MANAGED,
    "api/t/<slug>/shares/<share_id>/continue": MANAGED,
    "api/t/<slug>/messages/<message_id>/rating": MANAGED,
    "api/t/<slug>/feedback": MANAGED,
    "api/t/<slug>/responses/<response_id>": MANAGED,
    "api/t/<slug>/responses/<response_id>/cancel": MANAGED,
    "api/": NO_ID,
    "api/openapi.json": NO_ID,
    "api/t/<slug>/audit": MANAGED,
    "api/t/<slug>/files": MANAGED,
    "api/t/<slug>/files/<file_id>": MANAGED,
    "api/t/<slug>/files/<file_id>/text": MANAGED,
    "api/t/<slug>/files/<file_id>/content": MANAGED,
    "api/t/<slug>/settings": MANAGED,
    "api/t/<slug>/roles": MANAGED,
    "api/t/<slug>/members": MANAGED,
    "api/t/<slug>/members/<member_id>": MANAGED,
    "api/t/<slug>/members/<member_id>/suspend": MANAGED,
    "api/t/<slug>/members/<member_id>/resume": MANAGED,
    "api/t/<slug>/ownership": MANAGED,
    "api/t/<slug>/leave": MANAGED,
    "api/t/<slug>/invitations": MANAGED,
    "api/t/<slug>/invitations/<invitation_id>": MANAGED,
    "api/t/<slug>/invitations/<invitation_id>/resend": MANAGED,
    "api/t/<slug>/audit/export": MANAGED,
    "api/t/<slug>/keys": MANAGED,
    "api/t/<slug>/keys/<key_id>": MANAGED,
    "api/t/<slug>/keys/<key_id>/rotate": MANAGED,
    "api/t/<slug>/dashboard": MANAGED,
    "api/t/<slug>/dashboard/export": MANAGED,
    "api/t/<slug>/running": MANAGED,
    "api/t/<slug>/running/<answer_id>/stop": MANAGED,
    "api/t/<slug>/usage": MANAGED,
    "api/t/<slug>/usage/export": MANAGED,
    "api/t/<slug>/retention": MANAGED,
    "api/t/<slug>/retention/preview": MANAGED,
    "api/t/<slug>/exports": MANAGED,
    "api/t/<slug>/exports/<export_id>": MANAGED,
    "api/t/<slug>/deletion": MANAGED,
    "api/t/<slug>/prompts": MANAGED,
    "api/t/<slug>/prompts/measure": MANAGED,
    "api/t/<slug>/prompts/<assistant_id>": MANAGED,
    "api/t/<slug>/prompts/<assistant_id>/move": MANAGED,
    "api/t/<slug>/prompts/<assistant_id>/default": MANAGED,
    "api/t/<slug>/prompts/<assistant_id>/archive": MANAGED,
    "api/t/<slug>/prompts/<assistant_id>/restore": MANAGED,
    "api/t/<slug>/prompts/<assistant_id>/unpublish": MANAGED,
    "api/t/<slug>/prompts/<assistant_id>/draft": MANAGED,
    "api/t/<slug>/prompts/<assistant_id>/publish": MANAGED,
    "api/t/<slug>/prompts/<assistant_id>/versions": MANAGED,
    "api/t/<slug>/prompts/versions/<version_id>": MANAGED,
    "api/t/<slug>/prompts/versions/<version_id>/roll-back": MANAGED,
    "api/t/<slug>/prompts/versions/<version_id>/diff/<other_id>": MANAGED,
    "api/t/<slug>/sign-in": MANAGED,
    "api/t/<slug>/sign-in/domains": MANAGED,
    "api/t/<slug>/sign-in/domains/<claim_id>": MANAGED,
    "api/t/<slug>/sign-in/mfa": MANAGED,
    "api/t/<slug>/sign-in/service": MANAGED,
    "api/t/<slug>/memory": MANAGED,
    "api/t/<slug>/limits": MANAGED,
    "api/t/<slug>/limits/lower": MANAGED,
    "api/t/<slug>/limits/lower/<lower_id>": MANAGED,
    "api/t/<slug>/batches": MANAGED,
    "api/t/<slug>/batches/<batch_id>": MANAGED,
    "api/t/<slug>/batches/<batch_id>/cancel": MANAGED,
    "api/t/<slug>/webhooks": MANAGED,
    "api/t/<slug>/webhooks/<webhook_id>": MANAGED,
    "api/t/<slug>/webhooks/<webhook_id>/rotate": MANAGED,
    "api/t/<slug>/webhooks/<webhook_id>/test": MANAGED,
    "api/t/<slug>/webhooks/<webhook_id>/deliveries": MANAGED,
    "api/t/<slug>/webhooks/<webhook_id>/deliveries/<delivery_id>": MANAGED,
    "api/t/<slug>/webhooks/<webhook_id>/deliveries/<delivery_id>/again": MANAGED,
    "t/<slug>/": FOREIGN,
    "t/<slug>/admin/": MANAGED,
    "t/<slug>/admin/members": MANAGED,
    "t/<slug>/admin/members/<member_id>": MANAGED,
    "t/<slug>/admin/members/<member_id>/<action>": MANAGED,
    "t/<slug>/admin/invitations": MANAGED,
    "t/<slug>/admin/invitations/new": MANAGED,
    "t/<slug>/admin/invitations/<invitation_id>/<action>": MANAGED,
    "t/<slug>/admin/audit": MANAGED,
    "t/<slug>/admin/settings": MANAGED,
    "t/<slug>/leave": FOREIGN,
    "invitations/<token>": BY_TOKEN,
    "t/<slug>/admin/audit/export": MANAGED,
    "t/<slug>/admin/keys": MANAGED,
    "t/<slug>/admin/keys/new": MANAGED,
    "t/<slug>/admin/keys/<key_id>": MANAGED,
    "t/<slug>/admin/keys/<key_id>/rotate": MANAGED,
    "t/<slug>/admin/keys/<key_id>/revoke": MANAGED,
    "t/<slug>/admin/memory": MANAGED,
    "t/<slug>/admin/overview/export": MANAGED,
    "t/<slug>/admin/running": MANAGED,
    "t/<slug>/admin/running/<answer_id>/stop": MANAGED,
    "t/<slug>/admin/usage": MANAGED,
    "t/<slug>/admin/usage/export": MANAGED,
    "t/<slug>/usage": FOREIGN,
    "t/<slug>/admin/feedback": MANAGED,
    "t/<slug>/admin/feedback/export": MANAGED,
    "t/<slug>/admin/data": MANAGED,
    "t/<slug>/admin/data/exports/<export_id>": MANAGED,
    "t/<slug>/admin/prompts": MANAGED,
    "t/<slug>/admin/prompts/<assistant_id>": MANAGED,
    "t/<slug>/admin/prompts/<assistant_id>/versions": MANAGED,
    "t/<slug>/admin/prompts/<assistant_id>/settings": MANAGED,
    "t/<slug>/admin/prompts/versions/<version_id>": MANAGED,
    "t/<slug>/admin/prompts/versions/<version_id>/diff/<other_id>": MANAGED,
    "t/<slug>/admin/sign-in": MANAGED,
    "t/<slug>/admin/sign-in/domains": MANAGED,
    "t/<slug>/admin/sign-in/domains/<claim_id>": MANAGED,
    "t/<slug>/admin/sign-in/mfa": MANAGED,
    "t/<slug>/admin/sign-in/service": MANAGED,
    "t/<slug>/admin/sign-in/service/remove": MANAGED,
    "t/<slug>/admin/limits": MANAGED,
    "t/<slug>/admin/limits/lower": MANAGED,
    "t/<slug>/admin/limits/lower/<lower_id>/remove": MANAGED,
    "t/<slug>/admin/batches": MANAGED,
    "t/<slug>/admin/batches/<batch_id>/cancel": MANAGED,
    "t/<slug>/admin/batches/<batch_id>/<action>": MANAGED,
    "t/<slug>/admin/webhooks": MANAGED,
    "t/<slug>/admin/webhooks/new": MANAGED,
    "t/<slug>/admin/webhooks/<webhook_id>": MANAGED,
    "t/<slug>/admin/webhooks/<webhook_id>/switch": MANAGED,
    "t/<slug>/admin/webhooks/<webhook_id>/rotate": MANAGED,
    "t/<slug>/admin/webhooks/<webhook_id>/test": MANAGED,
    "t/<slug>/admin/webhooks/<webhook_id>/delete": MANAGED,
    "t/<slug>/admin/webhooks/<webhook_id>/deliveries/<delivery_id>": MANAGED,
    "t/<slug>/admin/webhooks/<webhook_id>/deliveries/<delivery_id>/again": MANAGED,
    "t/<slug>/c/<conversation_id>": FOREIGN,
    "t/<slug>/shared/<share_id>": MANAGED,
}
# Whole packages, by the beginning of their addresses.
BEGINNINGS = {"accounts/": OWN_ACCOUNT, "admin/": OPERATORS}

FRAMES: dict[str, str] = {
    "response.create": FOREIGN,
    "response.cancel": FOREIGN,
    "response.resume": FOREIGN,
    # To what changes of one's own alone: tests/api/test_topics.py. To memory with an id: tests/api/test_memory.py too.
    "subscribe": FOREIGN,
    "unsubscribe": NO_ID,
    "ping": NO_ID,
}


def plain(address: str) -> str:
    return re.sub(r"<\w+:", "<", address)


def addresses(patterns: list[Any], before: str = "") -> Iterator[str]:
    for entry in patterns:
        here = before + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from addresses(entry.url_patterns, here)
        else:
            assert isinstance(entry, URLPattern)
            assert isinstance(entry.pattern, RoutePattern) or here.startswith(tuple(BEGINNINGS)), here
            yield plain(here)


ALL_ADDRESSES = sorted(set(addresses(get_resolver("chatapp.urls").url_patterns)))


def test_every_address_has_been_thought_about() -> None:
    unknown = [
        address for address in ALL_ADDRESSES if address not in ADDRESSES and not address.startswith(tuple(BEGINNINGS))
    ]
    assert unknown == [], "say in ADDRESSES what another tenant's user gets there"
    assert set(ADDRESSES) <= set(ALL_ADDRESSES), "the table names addresses that are gone"


def test_every_client_frame_has_been_thought_about() -> None:
    known = {str(msgspec.inspect.type_info(kind).tag) for kind in get_args(frames.AnyClientFrame)}  # type: ignore[attr-defined]
    assert known == set(FRAMES), "say in FRAMES what another tenant's client gets"
    assert known == set(frames.CLIENT_TYPES)


class Theirs:
    """What a member and a key of the first tenant have."""

    def __init__(self, stack: Stack, member: Browser, open_socket: Any) -> None:
        self.slug = stack.demo["tenants"][0]["slug"]
        self.member = member
        with member.open(self.slug) as socket:
            self.by_session = socket.answer(input=SECRET, params=SHORT)
        with open_socket() as socket:
            self.by_key = socket.answer(input=SECRET, params=SHORT)
        assert text_of(self.by_session)
        for told in (self.by_session, self.by_key):
            key = hexed(told[0]["response_id"])
            wait_for(lambda key=key: rows(stack, "SELECT 1 FROM chat_generation WHERE id = ? AND ended_at", key))

        (self.key,) = rows(stack, "SELECT id FROM tenants_apikey WHERE prefix = ?", stack.key()[:9])[0]

    @property
    def ids(self) -> dict[str, str]:
        """What stands in addresses, by its name there."""
        return {"conversation_id": self.conversation, "key_id": str(uuid.UUID(self.key))}

    @property
    def conversation(self) -> str:
        return str(self.by_session[0]["conversation_id"])


@pytest.fixture
def theirs(stack: Stack, browser: Any, open_socket: Any) -> Theirs:
    return Theirs(stack, browser(0, "member"), open_socket)


def test_at_every_address_a_stranger_gets_404(stack: Stack, browser: Any, theirs: Theirs) -> None:
    """P11. The owner gets 200 from the very same address, so that this can fail."""
    stranger: Browser = browser(1, "admin")
    own = stack.demo["tenants"][1]["slug"]
    colleague: Browser = browser(0, "admin")
    foreign = [address for address, what in ADDRESSES.items() if what is FOREIGN]
    assert foreign
    for address in foreign:
        path = "/" + address.replace("<conversation_id>", theirs.conversation)
        there = path.replace("<slug>", theirs.slug)
        assert theirs.member.http.get(there).status_code == 200, there
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            reply = stranger.http.request(method, there)
            assert reply.status_code in (404, 403, 405), (method, there, reply.status_code)
            assert method != "GET" or reply.status_code == 404, there
            assert SECRET not in reply.text
        for anyone in (httpx.get(stack.url + there), httpx.get(stack.url + there, headers={"X-Tenant": theirs.slug})):
            assert anyone.status_code in (401, 302), there
        if "_id>" in address:
            # Through one's own tenant.
            assert stranger.http.get(path.replace("<slug>", own)).status_code == 404
        if "conversation_id" in address:
            # As a colleague.
            assert colleague.http.get(there).status_code == 404
            assert theirs.member.http.get(path.replace("<slug>", own)).status_code == 404
    listed = colleague.http.get(f"/api/t/{theirs.slug}/conversations").json()
    assert theirs.conversation not in str(listed)


def test_the_operators_addresses_let_no_member_in(stack: Stack, browser: Any) -> None:
    """P11: by session of a tenant's admin; every address of the admin without an object, and some with one."""
    admin: Browser = browser(1, "admin")
    (tenant_id,) = rows(stack, "SELECT id FROM tenants_tenant LIMIT 1")[0]
    for address in ALL_ADDRESSES:
        if not address.startswith("admin/") or "^" in address or "(?P" in address:
            continue
        if address in ("admin/login/", "admin/logout/"):
            continue  # they are the way in and out
        path = "/" + re.sub(r"<[^>]*>", str(tenant_id), address)
        reply = admin.http.get(path)
        assert reply.status_code in (302, 403, 404), (path, reply.status_code)
        if reply.status_code == 302:
            assert "login" in reply.headers["location"], path


@pytest.mark.parametrize("asker", ["another tenant's key", "another tenant's user", "a colleague", "the team's key"])
def test_to_every_frame_a_stranger_gets_not_found(
    stack: Stack, browser: Any, open_socket: Any, theirs: Theirs, asker: str
) -> None:
    """P11. What is said of a foreign id is what is said of one that never was, word for word."""
    told = theirs.by_session
    if asker == "another tenant's key":
        opened = open_socket(stack.key(1))
    elif asker == "the team's key":
        opened = open_socket()
    else:
        tenant = 1 if asker == "another tenant's user" else 0
        opened = browser(tenant, "admin").open(stack.demo["tenants"][tenant]["slug"])
    response, conversation = told[0]["response_id"], told[0]["conversation_id"]
    message = told[0]["message_id"]
    never = "01890000-0000-7000-8000-000000000000"
    with opened as socket:
        mine = socket.answer(input="Say hello.", params=SHORT)[0]["conversation_id"]

        def asked(**frame: Any) -> dict[str, Any]:
            socket.send(**frame)
            reply = socket.read()
            assert (reply["type"], reply["code"]) == ("error", "not_found"), reply
            assert SECRET not in str(reply)
            return {name: value for name, value in reply.items() if name != "response_id"}

        trials: dict[str, list[dict[str, Any]]] = {
            "response.create": [
                {"input": "What did I say?", "conversation_id": "ID"},
                {"input": "What did I say?", "conversation_id": mine, "parent_id": "ID"},
                {"input": "What is in it?", "file_ids": ["ID"]},
                {"question_id": "ID", "conversation_id": mine},
                {"question_id": told[0]["parent_id"], "conversation_id": "ID"},
                {"continue_id": "ID", "conversation_id": mine},
                {"continue_id": message, "conversation_id": "ID"},
            ],
            "response.cancel": [{"response_id": "ID"}],
            "response.resume": [{"response_id": "ID", "after": -1}, {"response_id": "ID", "after": 1}],
            "subscribe": [
                {"topic": "memory", "conversation_id": "ID"},
                {"topic": "memory", "assistant_id": "ID"},
            ],
        }
        assert set(trials) == {kind for kind, what in FRAMES.items() if what is FOREIGN}
        for kind, fields in trials.items():
            for field in fields:
                for foreign in (response, conversation, message, told[0]["parent_id"]):
                    for shape in (foreign, foreign.upper(), foreign.replace("-", "")):
                        ids = [
                            json.loads(json.dumps(field).replace('"ID"', json.dumps(chosen)))
                            for chosen in (shape, never)
                        ]
                        assert asked(type=kind, **ids[0]) == asked(type=kind, **ids[1]), (kind, field)
    with theirs.member.open(theirs.slug) as socket:
        assert text_of(socket.resume(response)) == text_of(told), "its owner still has it"


def test_to_every_frame_the_wrong_role_gets_not_allowed(stack: Stack, theirs: Theirs) -> None:
    """An auditor reads what there is to audit, and no chats: not even one that began under another role."""
    person = {"email": "auditor@audit.example", "password": "a-long-password-1"}
    manage(
        stack,
        "from chatapp.accounts.models import User; from chatapp.tenants.models import Tenant;"
        "from chatapp.tenants.services import add_member;"
        f"user = User.objects.create_user({person['email']!r}, {person['password']!r});"
        f"add_member(tenant=Tenant.objects.get(slug={theirs.slug!r}), user=user, role='auditor')",
    )
    told = theirs.by_session
    trials: dict[str, list[dict[str, Any]]] = {
        "response.create": [
            {"input": "Hello."},
            {"input": "Hello.", "conversation_id": told[0]["conversation_id"]},
            {"question_id": told[0]["parent_id"], "conversation_id": told[0]["conversation_id"]},
            {"continue_id": told[0]["message_id"], "conversation_id": told[0]["conversation_id"]},
        ],
        "response.cancel": [{"response_id": told[0]["response_id"]}],
        "response.resume": [{"response_id": told[0]["response_id"], "after": -1}],
        "subscribe": [{"topic": "memory", "conversation_id": told[0]["conversation_id"]}, {"topic": "memory"}],
    }
    assert set(trials) == {kind for kind, what in FRAMES.items() if what is FOREIGN}
    with Browser(stack, person).open(theirs.slug) as socket:
        for kind, fields in trials.items():
            for field in fields:
                socket.send(type=kind, **field)
                reply = socket.read()
                assert (reply["type"], reply["code"]) == ("error", "not_allowed"), (kind, reply)
                assert SECRET not in str(reply)


def test_an_idempotency_key_of_another_tenant_finds_nothing(stack: Stack, open_socket: Any) -> None:
    """P11: the key is the principal's own."""
    frame = {"input": "Say hello.", "params": SHORT, "idempotency_key": "shared-by-chance"}
    with open_socket(stack.key(0)) as ours, open_socket(stack.key(1)) as other:
        first, second = ours.answer(**frame), other.answer(**frame)
        assert first[0]["response_id"] != second[0]["response_id"]
        assert first[0]["conversation_id"] != second[0]["conversation_id"]


def test_the_operators_socket_lets_no_tenant_in(stack: Stack, browser: Any) -> None:
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    member: Browser = browser(0, "admin")
    cookie = "; ".join(f"{name}={value}" for name, value in member.http.cookies.items())
    url = f"{stack.ws_url}/ws/ops/occupancy"
    with connect(url, additional_headers={"Cookie": cookie}, origin=stack.url) as connection:  # type: ignore[arg-type]
        with pytest.raises(ConnectionClosed):
            connection.recv(timeout=10)
        assert connection.close_code == 4403


def test_a_teams_memory_comes_to_its_own_admins_and_their_pages_alone(stack: Stack, browser: Any) -> None:
    """P11: neither strangers nor members are let in, nor anybody's browser from another site's page; and what does come
    names nobody else."""
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    slug = stack.demo["tenants"][0]["slug"]
    found = rows(stack, "SELECT id FROM tenants_tenant WHERE slug != ?", slug)
    others = [str(uuid.UUID(pk)) for (pk,) in found]
    assert others
    for tenant, who, origin, close in (
        (1, "admin", stack.url, 4403),
        (0, "member", stack.url, 4403),
        (0, "admin", "https://elsewhere.example", 4403),
        (0, "admin", stack.url, None),
    ):
        account: Browser = browser(tenant, who)
        cookie = "; ".join(f"{name}={value}" for name, value in account.http.cookies.items())
        url = f"{stack.ws_url}/ws/t/{slug}/memory"
        with connect(url, additional_headers={"Cookie": cookie}, origin=origin) as connection:  # type: ignore[arg-type]
            told = str(connection.recv(timeout=10))
            if close is None:
                assert json.loads(told)["type"] == "memory"
                assert not [one for one in others if one in told]
                continue
            assert json.loads(told)["type"] == "error"
            with pytest.raises(ConnectionClosed):
                connection.recv(timeout=10)
            assert connection.close_code == close
