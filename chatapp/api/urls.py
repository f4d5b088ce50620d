"""The addresses of the HTTP APIs."""

from __future__ import annotations

from django.urls import path

from chatapp.api import (
    browser_client,
    documents,
    guides,
    openai,
    openai_batches,
    openai_chat,
    openai_completions,
    openai_files,
    openai_models,
    openai_responses,
    reference,
    tickets,
)
from chatapp.api.product import api

urlpatterns = [
    path("v1/openapi.json", documents.openapi),
    path("v1/chat/completions", openai_chat.chat_completions),
    path("v1/completions", openai_completions.completions),
    path("v1/models", openai_models.models),
    path("v1/models/<path:name>", openai_models.model),
    path("v1/batches", openai_batches.batches),
    path("v1/batches/<str:batch_id>", openai_batches.batch),
    path("v1/batches/<str:batch_id>/cancel", openai_batches.cancel),
    path("v1/files", openai_files.files),
    path("v1/files/<str:file_id>", openai_files.file),
    path("v1/files/<str:file_id>/content", openai_files.content),
    path("v1/tickets", tickets.make),
    path("v1", openai.unknown),
    path("v1/", openai.unknown),
    path("v1/responses", openai_responses.responses),
    path("v1/responses/<str:response_id>", openai_responses.response),
    path("v1/responses/<str:response_id>/cancel", openai_responses.cancel),
    path("v1/responses/<str:response_id>/input_items", openai_responses.input_items),
    path("v1/<path:rest>", openai.unknown),
    path("ws/v1/asyncapi.json", reference.asyncapi_document, name="asyncapi"),
    path("docs/", reference.index, name="docs"),
    path("docs/websocket", reference.websocket, name="docs-websocket"),
    path("docs/<slug:name>", guides.guide, name="docs-guide"),
    path("client/octavo.js", browser_client.module, name="browser-client"),
    path("api/", api.urls),
]
