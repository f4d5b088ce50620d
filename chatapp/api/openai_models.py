"""/v1/models: what a key's requests may name as their model."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec
from django.http import HttpRequest, HttpResponse

from chatapp.api.answering import in_thread
from chatapp.api.http import answer, error, with_key
from chatapp.api.operations import Operation
from chatapp.chat.instructions import ASSISTANT_MODEL
from chatapp.prompts.selectors import choosable
from chatapp.streaming import workers
from chatapp.tenants.access import Access


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """`available`: whether a worker serves it at this moment; asked for without one, it waits for the next."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "octavo"
    available: bool = True
    max_model_len: int | msgspec.UnsetType = msgspec.UNSET


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Model]


OPERATIONS = (
    Operation("GET", "/v1/models", "The models and assistants that the key may use", answer=ModelList),
    Operation("GET", "/v1/models/{model}", "One of them", answer=Model),
)


@with_key("GET")
async def models(request: HttpRequest, access: Access) -> HttpResponse:
    return answer(ModelList(data=await in_thread(_models, access)))


@with_key("GET")
async def model(request: HttpRequest, access: Access, name: str) -> HttpResponse:
    wanted = access.tenant.model if name == "default" else name
    for found in await in_thread(_models, access):
        if found.id == wanted:
            return answer(found)
    return error(404, f"There is no model {name[:100]!r} for your team.", code="model_not_found", param="model")


def _models(access: Access) -> list[Model]:
    """The team's models, its default first, and its assistants as models of their own.

    All of them, alive or not: a list that changes whenever a worker starts anew would have clients forget what they
    use. How long a context may be, a live worker says.
    """
    tenant = access.tenant
    contexts: dict[str, list[int]] = {}
    for worker in workers.live():
        contexts.setdefault(worker.model, []).append(worker.context)

    def shown(name: str, served_by: str, since: datetime) -> Model:
        return Model(
            id=name,
            created=int(since.timestamp()),
            available=served_by in contexts,
            max_model_len=max(contexts[served_by]) if served_by in contexts else msgspec.UNSET,
        )

    names = sorted(tenant.models, key=lambda name: name != tenant.model)
    return [
        *(shown(name, name, tenant.created_at) for name in names),
        *(
            shown(f"{ASSISTANT_MODEL}{assistant.slug}", tenant.model, assistant.created_at)
            for assistant in choosable(tenant)
        ),
    ]
