"""The addresses of the HTTP APIs."""

from __future__ import annotations

from django.urls import path

from chatapp.api import openai
from chatapp.api.product import api

urlpatterns = [
    path("v1/chat/completions", openai.chat_completions),
    path("v1/models", openai.models),
    path("v1/models/<path:name>", openai.model),
    path("v1/<path:rest>", openai.unknown),
    path("api/", api.urls),
]
