"""The OpenAPI document of /v1, and what every address of it has in common: errors, headers, who may ask."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx2
import msgspec
import openai
import pytest
from django.urls import Resolver404, resolve
from openapi_spec_validator import OpenAPIV31SpecValidator

from chatapp.api import documents, openai_chat_types, openai_completions_types, urls
from chatapp.api import openai as openai_views
from chatapp.api.openai import UNSERVED
from engine.protocol import Part
from tests.api.inprocess import Engine, client, engine, http, http_client, make, team
from tests.chat.conftest import Team, server, worker

__all__ = ["client", "engine", "http", "make", "server", "team", "worker"]


@pytest.fixture
async def document(http: httpx2.AsyncClient) -> dict[str, Any]:
    async with http_client() as anybody:
        reply = await anybody.get("/v1/openapi.json", headers={"Origin": "https://elsewhere.example"})
        assert reply.status_code == 200, "without a key"
        assert reply.headers["access-control-allow-origin"] == "*"
        assert (await anybody.post("/v1/openapi.json")).status_code == 405
    return dict(reply.json())


async def test_the_document_is_openapi_and_every_address_in_it_is_there(document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0"
    OpenAPIV31SpecValidator(document).validate()
    assert document["security"] == [{"key": []}]
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names)) == len(documents.operations())
    for path, methods in document["paths"].items():
        view = resolve(path.replace("{", "").replace("}", "")).func
        assert view.__name__ != "unknown", path
        for method, operation in methods.items():
            assert "security" not in operation, f"{method} {path} would be open to everybody"
            assert {"401", "429", "500"} <= set(operation["responses"])
            assert ("requestBody" in operation) == ("413" in operation["responses"]) or operation["parameters"]
    with pytest.raises(Resolver404):
        resolve("/v2/chat/completions")


def test_every_address_of_v1_and_every_method_of_it_is_in_the_document() -> None:
    described = documents.document()["paths"]
    for pattern in urls.urlpatterns:
        path = "/" + str(pattern.pattern)
        if not path.startswith("/v1/") or pattern.callback is openai_views.unknown or path == "/v1/openapi.json":
            continue
        shape = re.sub(r"<[^>]*>", "*", path)
        found = [methods for name, methods in described.items() if re.sub(r"{[^}]*}", "*", name) == shape]
        assert found, f"{path}: list its operations, and its module in documents.MODULES"
        assert {method.upper() for method in found[0]} == set(pattern.callback.methods), path


async def test_the_document_describes_what_is_parsed_and_how_streams_and_errors_look(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for kind in (openai_chat_types.ChatRequest, openai_completions_types.CompletionRequest):
        described = schemas[kind.__name__]
        fields = {field.encode_name: field.required for field in msgspec.structs.fields(kind)}
        assert set(described["properties"]) == set(fields)
        assert described["required"] == [name for name, required in fields.items() if required]
    for path in ("/v1/chat/completions", "/v1/completions"):
        operation = document["paths"][path]["post"]
        assert set(operation["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
        assert [parameter["name"] for parameter in operation["parameters"]] == ["Idempotency-Key"]
    assert schemas["ErrorBody"]["required"] == ["message", "type"]
    limited = document["components"]["responses"]["Error429"]
    assert "Retry-After" in limited["headers"]


async def test_every_error_of_every_maker_has_openais_shape_and_a_request_id(
    http: httpx2.AsyncClient, team: Team
) -> None:
    tries: list[tuple[str, str, dict[str, Any], int]] = [
        ("GET", "/v1/chat/completions", {}, 405),
        ("PUT", "/v1/models", {}, 405),
        ("TRACE", "/v1/models", {}, 405),
        ("POST", "/v1/chat/completions", {"content": b"x"}, 400),
        ("POST", "/v1/chat/completions", {"headers": {"Content-Length": "many"}, "content": b"x"}, 400),
        ("POST", "/v1/chat/completions", {"content": b"x" * (1 << 20) + b"x"}, 413),
        ("POST", "/v1/completions", {"content": b"x" * (2 << 20) + b"x"}, 413),
        ("GET", "/v1/nothing", {}, 404),
        ("GET", "/v1/", {}, 404),
        ("GET", "/v1", {}, 404),
        ("GET", "/v1/models/gpt-17", {}, 404),
        ("GET", "/v1/models/%00%ff", {}, 404),
        ("GET", "/v1/chat/completions/chatcmpl-1", {}, 404),
        ("POST", "/v1/chat/completions", {"json": {"messages": [{"role": "user", "content": "x"}], "model": "y"}}, 404),
        ("GET", "/v1/models", {"headers": {"Authorization": "Bearer octv_wrong"}}, 401),
        ("GET", "/v1/models", {"headers": {"Authorization": ""}}, 401),
    ]
    for method, path, options, status in tries:
        headers = {"x-request-id": "mine", **options.pop("headers", {})}
        reply = await http.request(method, path, headers=headers, **options)
        assert reply.status_code == status, (method, path, reply.text)
        error = reply.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}, (method, path)
        assert error["message"]
        assert error["type"].endswith("_error")
        assert reply.headers["x-request-id"] == "mine", (method, path)
        if status == 405:
            assert reply.headers["allow"]
        if status == 401:
            assert reply.headers["www-authenticate"] == "Bearer"
    hostile = await http.get("/v1/models", headers={"x-request-id": "x" * 129})
    assert hostile.headers["x-request-id"].startswith("req_")


async def test_what_is_not_served_says_so_and_openais_client_does_not_try_again(
    client: openai.AsyncOpenAI, http: httpx2.AsyncClient
) -> None:
    patient = client.with_options(max_retries=5)
    for call in (
        patient.embeddings.create(model="default", input="x"),
        patient.moderations.create(input="x"),
        patient.images.generate(prompt="x"),
        patient.fine_tuning.jobs.list(),
    ):
        with pytest.raises(openai.NotFoundError, match=r"not served here.*/v1/chat/completions") as refused:
            await call  # type: ignore[misc]
        assert refused.value.code == "unsupported_endpoint"
    for name in UNSERVED:
        for path in (f"/v1/{name}", f"/v1/{name}/x/y"):
            assert (await http.post(path, content=b"{")).json()["error"]["code"] == "unsupported_endpoint"


async def test_models_are_listed_and_found_by_name(client: openai.AsyncOpenAI, engine: Engine, team: Team) -> None:
    engine.worker.beat()
    listed = [model async for model in client.models.list()]
    assert listed[0].id == team.tenant.model
    assert {model.object for model in listed} == {"model"}
    assert listed[0].to_dict()["max_model_len"] == 99
    for name in ("default", listed[0].id, listed[-1].id):
        assert (await client.models.retrieve(name)).id in {model.id for model in listed}


async def test_an_answer_tells_a_page_its_headers_where_the_key_lets_it_read_them(
    http: httpx2.AsyncClient, engine: Engine, team: Team
) -> None:
    preflight = await http.request(
        "OPTIONS",
        "/v1/completions",
        headers={"Origin": "https://app.example", "Access-Control-Request-Method": "POST", "Authorization": ""},
    )
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-methods"] == "POST"
    asked = asyncio.create_task(http.post("/v1/completions", json={"prompt": "x"}))
    await engine.say([Part(text="y", token_ids=[1])])
    reply = await asked
    assert reply.headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in reply.headers
