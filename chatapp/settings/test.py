"""Settings of the tests: their own data folder; the Redis is the one that the fixture starts (tests/conftest.py)."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

if not os.environ.get("OCTAVO_DATA"):
    os.environ["OCTAVO_DATA"] = tempfile.mkdtemp(prefix="octavo-test-")
    atexit.register(shutil.rmtree, os.environ["OCTAVO_DATA"], ignore_errors=True)

from chatapp.settings.base import *  # noqa: F403
from chatapp.settings.base import DATA, FILES, sqlite

(DATA / "staticfiles").mkdir(parents=True, exist_ok=True)  # else every client warns that it is not there

SECRET_KEY = "only for tests: " + "0123456789abcdef" * 4
ALLOWED_HOSTS = ["testserver", "localhost", "127.0.0.1"]
OCTAVO_DEMO = True
OCTAVO_ANNOUNCE_SETUP = False
OCTAVO_UNSERVED_S = 0  # most tests answer without a worker that beats
OCTAVO_MAIL_URL = OCTAVO_MAIL_FROM = ""
if not os.environ.get("DATABASE_URL"):
    DATABASES = {"default": {**sqlite(Path(DATA) / "db.sqlite3"), "TEST": {"NAME": str(Path(DATA) / "test.sqlite3")}}}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    "files": FILES,
}
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
# No broker and no worker in most tests: a task runs where it is sent.
CELERY_TASK_ALWAYS_EAGER = True
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = True
OCTAVO_OIDC_PLAIN = True
