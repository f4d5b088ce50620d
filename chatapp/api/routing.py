"""The sockets of this package, for chatapp.asgi: by session, and by key."""

from __future__ import annotations

from django.urls import path

from chatapp.api.consumers import ApiConsumer, UiConsumer
from chatapp.api.team_memory import TeamMemoryConsumer

session_sockets = [
    path("ws/ui", UiConsumer.as_asgi()),
    path("ws/t/<slug:slug>/memory", TeamMemoryConsumer.as_asgi()),
]
key_sockets = [path("ws/v1", ApiConsumer.as_asgi())]
