"""The storage of files unless the settings name another: a folder that only this user of the machine may read."""

from __future__ import annotations

from typing import NoReturn

from django.core.files.storage import FileSystemStorage


class PrivateFiles(FileSystemStorage):
    """Nothing in it has an address: whoever may read a file is given its bytes by a view that has asked."""

    def url(self, name: str | None) -> NoReturn:
        raise ValueError("Kept files have no address of their own.")
