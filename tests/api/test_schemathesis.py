"""The APIs under schemathesis: what their own documents allow, and forbid, is answered without a 500.

The calls go straight into Django, so an exception shows its own traceback. Addresses carry the caller's team, and ids
that exist as often as ids that do not: else everything would end at "no such team".
"""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any
from urllib.parse import quote

import pytest
import requests
import schemathesis
from django.apps import apps
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from chatapp.api import documents
from chatapp.api.product import api
from chatapp.chat import services
from chatapp.owned import TenantOwned
from engine import protocol
from tests.api.inprocess import Engine, http_client
from tests.chat.conftest import ScriptedWorker, Team, server, strangers, team, worker

__all__ = ["server", "strangers", "team", "worker"]

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

EXAMPLES = 12


def document() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(api.get_openapi_schema(), default=str))
    return loaded


def operations() -> list[Any]:
    found = schemathesis.openapi.from_dict(document()).get_all_operations()
    return [pytest.param(result.ok(), id=result.ok().label) for result in found]


def known_ids() -> list[str]:
    """Of every row that a team owns, its own and the strangers'."""
    models = [model for model in apps.get_models() if issubclass(model, TenantOwned)]
    return sorted(str(pk) for model in models for pk in model.objects.values_list("pk", flat=True)[:20])


def caller(team: Team, who: str) -> tuple[Client, dict[str, str]]:
    """By session of the owner, or by a key whose scopes include all that keys may do."""
    client = Client()
    if who == "owner":
        client.force_login(team.owner.user, backend="django.contrib.auth.backends.ModelBackend")  # type: ignore[arg-type]
        return client, {}
    key = team.key.key
    assert key is not None
    if hasattr(type(key), "_meta") and any(field.name == "scopes" for field in key._meta.fields):
        type(key).objects.filter(pk=key.pk).update(scopes=["chat", "system", "usage", "admin"])
    return client, {"Authorization": f"Bearer {team.secret}"}


def call(client: Client, case: Any, headers: dict[str, str], path: str) -> Any:
    prepared = requests.Request(**{**case.as_transport_kwargs(base_url="http://testserver")}).prepare()
    assert prepared.url is not None
    query = prepared.url.partition("?")[2]
    body = prepared.body or b""
    kept = {
        name: value.decode("latin-1") if isinstance(value, bytes) else value
        for name, value in prepared.headers.items()
        if name.lower() not in ("authorization", "cookie", "content-length", "content-type", "host")
    }
    return client.generic(
        prepared.method or "GET",
        path + (f"?{query}" if query else ""),
        data=body if isinstance(body, bytes) else str(body).encode("utf-8", "surrogatepass"),
        content_type=str(prepared.headers.get("Content-Type", "application/json")),
        headers={**kept, **headers},
    )


@pytest.mark.django_db
@pytest.mark.parametrize("who", ["owner", "key"])
@pytest.mark.parametrize("operation", operations())
def test_no_call_of_the_api_ends_in_a_500(team: Team, strangers: Team, operation: Any, who: str) -> None:
    services.ask(access=team.member, text="A question")
    services.ask(access=strangers.member, text="A question")
    client, headers = caller(team, who)
    ids = [*known_ids(), str(uuid.uuid4())]
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode))

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, chosen=st.sampled_from(ids), real=st.booleans())
    def run(case: Any, chosen: str, real: bool) -> None:
        path = case.path
        for name, value in (case.path_parameters or {}).items():
            given_value = "acme" if name == "slug" else chosen if real else str(value)
            path = path.replace(f"{{{name}}}", quote(given_value, safe="%"))
        reply = call(client, case, headers, path)
        assert reply.status_code < 500, (case.method, path)
        if reply.status_code >= 400:
            error = reply.json()["error"]
            assert error["code"], path
            assert error["message"], path
            assert set(error) <= {"code", "message", "param"}, path

    run()


@pytest.mark.django_db
def test_every_operation_of_the_document_asks_who_calls() -> None:
    described = Client().get("/api/openapi.json").json()
    assert set(described["paths"]) == set(document()["paths"])
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            assert operation.get("security"), f"{method} {path} is open to everybody"


# --- /v1 ----------------------------------------------------------------------------------------------------------

V1_EXAMPLES = 40


def v1_operations() -> list[Any]:
    found = schemathesis.openapi.from_dict(json.loads(json.dumps(documents.document()))).get_all_operations()
    return [pytest.param(result.ok(), id=result.ok().label) for result in found]


async def _serve(engine: Engine) -> None:
    """A word to whatever reaches the engine."""
    while True:
        taken = await engine.take()
        wanted = protocol.decode_request(taken.payload).params.n
        parts = [protocol.Part(index=index, text="a", token_ids=[1], finish_reason="stop") for index in range(wanted)]
        started = protocol.Started(seq=0, prompt_tokens=1, cached_tokens=0)
        engine.tell(taken, started, protocol.Delta(seq=1, parts=parts))
        engine.worker.end(taken, protocol.Finished(seq=2, finish_reason="stop"))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("operation", v1_operations())
def test_no_call_of_v1_ends_in_a_500_and_answers_are_what_its_document_says(
    transactional_db: None, team: Team, worker: ScriptedWorker, operation: Any
) -> None:
    """Through the whole ASGI application, streams included, with an engine that answers in a word."""
    engine = Engine(worker)
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode))

    async def ask(prepared: Any, secret: str) -> Any:
        headers = {
            name: value if isinstance(value, str) else value.decode("latin-1")
            for name, value in prepared.headers.items()
            if name.lower() not in ("authorization", "content-length", "host", "cookie")
        }
        body = prepared.body or b""
        content = body if isinstance(body, bytes) else str(body).encode("utf-8", "surrogatepass")
        serving = asyncio.create_task(_serve(engine))
        async with http_client(secret) as client:
            url = prepared.url.removeprefix("http://testserver")
            reply = await asyncio.wait_for(client.request(prepared.method, url, content=content, headers=headers), 20)
        serving.cancel()
        return reply

    @settings(
        max_examples=V1_EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def run(case: Any) -> None:
        prepared = requests.Request(**case.as_transport_kwargs(base_url="http://testserver")).prepare()
        with asyncio.Runner() as runner:
            reply = runner.run(ask(prepared, team.secret))
        assert reply.status_code < 500, (prepared.method, prepared.url, prepared.body)
        described = operation.definition.raw["responses"]
        assert str(reply.status_code) in described or reply.status_code == 405, (prepared.url, reply.text)
        if reply.status_code >= 400:
            assert set(reply.json()["error"]) == {"message", "type", "param", "code"}, reply.text

    run()
