#!/usr/bin/env python
"""Django's command line."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatapp.settings.local")
    from django.core.management import execute_from_command_line

    from chatapp.scope import unscoped

    # Commands are an operator's own hands. What serves requests has no scope until it knows who asks (ScopeMiddleware).
    with unscoped("commands"):
        execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
