"""Secrets that we have to read again (a client secret, a TOTP seed), sealed by a key that is derived from SECRET_KEY.

What stands in the database is worth nothing without the setting. Each purpose has its own key, so that a text sealed
for one is not read as another's. Former keys (SECRET_KEY_FALLBACKS) still open, and new texts take the newest.
"""

from __future__ import annotations

import base64

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.utils.encoding import force_bytes


class Unreadable(Exception):
    """Sealed under another SECRET_KEY, or damaged."""


def _box(purpose: str) -> MultiFernet:
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]

    def derived(key: str | bytes) -> bytes:
        kdf = HKDF(algorithm=SHA256(), length=32, salt=None, info=f"octavo sealing: {purpose}".encode())
        return base64.urlsafe_b64encode(kdf.derive(force_bytes(key)))

    return MultiFernet([Fernet(derived(key)) for key in keys])


def seal(text: str, *, purpose: str) -> str:
    return _box(purpose).encrypt(text.encode()).decode()


def unseal(sealed: str, *, purpose: str) -> str:
    try:
        return _box(purpose).decrypt(sealed.encode()).decode()
    except InvalidToken:
        raise Unreadable from None
