"""The addresses of the pages that people read."""

from __future__ import annotations

from django.urls import path

from chatapp.chat import views

urlpatterns = [
    # Browsers ask for it where a page names no icon.
    path("favicon.ico", views.favicon),
    path("", views.home, name="home"),
    path("t/<slug:slug>/", views.workspace, name="workspace"),
    path("t/<slug:slug>/c/<uuid:conversation_id>", views.workspace, name="conversation"),
]
