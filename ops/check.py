"""`make check`, Django's part: the deploy checks under production settings, no migration that nobody wrote, and none
that the release before could not live with.

Production settings refuse unsafe values, so this gives them safe ones made for this run alone.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile

from ops.setup import ROOT


def main() -> int:
    with tempfile.TemporaryDirectory() as data:
        env = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "chatapp.settings.production",
            "SECRET_KEY": secrets.token_urlsafe(64),
            "OCTAVO_DATA": data,
            "OCTAVO_HOSTS": "chat.example.org",
            "OCTAVO_MODEL": "model",
            "REDIS_URL": "redis://127.0.0.1:6379/0",
            "DATABASE_URL": "sqlite:////" + data.lstrip("/") + "/db.sqlite3",
        }
        for arguments in (
            ["manage.py", "check", "--deploy", "--fail-level", "WARNING"],
            ["manage.py", "makemigrations", "--check", "--dry-run"],
            ["-m", "ops.migrations"],
        ):
            status = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=env).returncode
            if status:
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
