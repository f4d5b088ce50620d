"""The operators' sockets, for chatapp.asgi."""

from __future__ import annotations

from django.urls import path

from chatapp.dashboard.consumers import OccupancyConsumer

websocket_urlpatterns = [path("ws/ops/occupancy", OccupancyConsumer.as_asgi())]
