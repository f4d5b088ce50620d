"""The Celery application: `celery -A chatapp.celery worker --beat`."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatapp.settings.local")

app = Celery("octavo")
# Tasks are sent from many threads of the web processes, and Celery's current app is a thread's own.
app.set_default()
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
