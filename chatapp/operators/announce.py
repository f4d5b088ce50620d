"""Says in a web process's log where the first operator is made, as long as there is none."""

from __future__ import annotations

import threading

import structlog
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection

from chatapp.accounts.selectors import has_operator
from chatapp.operators.selectors import setup_link

log = structlog.get_logger(__name__)


def announce_setup() -> None:
    """In a thread of its own: a database that does not answer must not hold up the start."""
    if settings.OCTAVO_ANNOUNCE_SETUP:
        threading.Thread(target=_announce, name="announce-setup", daemon=True).start()


def _announce() -> None:
    try:
        if not has_operator():
            log.warning("setup.needed", open=setup_link())
    except DatabaseError:
        return  # readiness tells of it
    finally:
        connection.close()
