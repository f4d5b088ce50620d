"""The Celery application: `celery -A chatapp.celery worker --beat`."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatapp.settings.local")

app = Celery("octavo")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
