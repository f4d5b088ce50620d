"""How many bytes a request's body may have, by its address: files come to a few, and everything else stays small.

Whoever looks at bodies asks here: the server while one arrives (chatapp.bodies), and what counts and answers
(chatapp.hygiene).
"""

from __future__ import annotations

import re

from django.conf import settings

# The addresses that take a file: of OpenAI's API, of the pages and the product's own, and of chats that are imported.
ADDRESS = re.compile(r"/v1/files|/api/t/[A-Za-z0-9_-]+/(files|imports)")
# What a form has around the file: its boundaries, its other fields.
AROUND = 64 * 1024


def takes_files(path: str) -> bool:
    return ADDRESS.fullmatch(path) is not None


def most_of(path: str) -> int:
    """What the largest body at this address may have. A view may take less than that."""
    if takes_files(path):
        return int(settings.OCTAVO_MAX_FILE) + AROUND
    return int(settings.DATA_UPLOAD_MAX_MEMORY_SIZE)
