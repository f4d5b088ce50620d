from __future__ import annotations

from django.urls import path

from chatapp.shares import views

urlpatterns = [path("t/<slug:slug>/shared/<uuid:share_id>", views.shared, name="shared")]
