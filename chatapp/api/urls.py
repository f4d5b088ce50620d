"""The addresses of the HTTP APIs."""

from __future__ import annotations

from django.urls import path

from chatapp.api import openai, openai_files
from chatapp.api.product import api

urlpatterns = [
    path("v1/chat/completions", openai.chat_completions),
    path("v1/models", openai.models),
    path("v1/models/<path:name>", openai.model),
    path("v1/files", openai_files.files),
    path("v1/files/<str:file_id>", openai_files.file),
    path("v1/files/<str:file_id>/content", openai_files.content),
    path("v1/<path:rest>", openai.unknown),
    path("api/", api.urls),
]
