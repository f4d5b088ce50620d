"""What stops a backup or a restore, in words that say what to do."""

from __future__ import annotations


class BackupError(Exception):
    """Nothing was made, and nothing was changed unless the message says so."""
