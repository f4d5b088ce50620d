#!/usr/bin/env python
"""Django's command line."""

import os
import sys

# They reach neither Redis nor a model. Where `make run` brings both, nobody could say what they are called.
ALONE = ("backup", "restore")
BROUGHT = {"REDIS_URL": "unix:///nowhere", "OCTAVO_MODEL": "none"}


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatapp.settings.local")
    if sys.argv[1:2] and sys.argv[1] in ALONE:
        for name, value in BROUGHT.items():
            if not os.environ.get(name) and not os.environ.get(f"{name}_FILE"):
                os.environ[name] = value
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    from chatapp.scope import unscoped

    # Commands are an operator's own hands. What serves requests has no scope until it knows who asks (ScopeMiddleware).
    with unscoped("commands"):
        try:
            execute_from_command_line(sys.argv)
        except ImproperlyConfigured as error:
            sys.exit(str(error))  # one line that names the setting


if __name__ == "__main__":
    main()
