"""Files are kept and let go here.

The bytes are written before their row and removed after it, so a row always has its bytes; what a crash leaves in the
storage without a row, the sweep finds (chatapp.files.sweep). The size of a file and what a team may keep are checked
before and after: what a caller says of a size is not believed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.files import File
from django.db import transaction
from django.db.models.signals import post_delete
from django.dispatch import receiver

from chatapp.accounts.models import User
from chatapp.errors import BadInput, Refusal
from chatapp.files import contents, selectors
from chatapp.files.contents import Content
from chatapp.files.models import Attachment, Purpose, StoredFile
from chatapp.files.names import shown
from chatapp.limits.selectors import limits_of_team
from chatapp.tenants.access import Access
from chatapp.tenants.models import ApiKey, Tenant
from chatapp.tenants.permissions import Permission

MB = 1024 * 1024


class FileTooLarge(Refusal):
    status = 413
    code = "file_too_large"


class StorageFull(Refusal):
    """The team keeps as much as its plan lets it."""

    status = 413
    code = "storage_full"


def store(
    *,
    access: Access,
    name: str,
    content: Content,
    purpose: str,
    expires_at: datetime | None = None,
    most: int | None = None,
) -> StoredFile:
    """Keep a file of the one who asks. `name` is shown to people and to nothing else; `most`: bytes, where fewer than
    OCTAVO_MAX_FILE are to be taken. Raises BadInput, FileTooLarge, StorageFull; nothing is left of a refused file.
    """
    access.require(Permission.CHAT)
    return keep(
        tenant=access.tenant, user=access.user, key=access.key, name=name, content=content, purpose=purpose,
        expires_at=expires_at, most=min(most or settings.OCTAVO_MAX_FILE, settings.OCTAVO_MAX_FILE),
    )  # fmt: skip


def keep(
    *,
    tenant: Tenant,
    user: User | None = None,
    key: ApiKey | None = None,
    name: str,
    content: Content,
    purpose: str,
    expires_at: datetime | None = None,
    most: int | None = None,
) -> StoredFile:
    """`store` for jobs that nobody asks for at this moment; their files may have more than what people upload: `most`
    bytes. With neither a person nor a key it is the team's keys'."""
    if purpose not in Purpose.values:
        raise BadInput(f"purpose must be one of {', '.join(Purpose.values)}.", param="purpose")
    largest = most or settings.OCTAVO_MAX_FILE
    quota = quota_of(tenant)
    left = None if quota is None else max(0, quota - selectors.used(tenant))
    if left == 0:
        raise _full(quota, 0)
    try:
        written = contents.write(tenant.pk, content, most=largest if left is None else min(largest, left))
    except contents.TooLarge:
        if left is not None and left < largest:
            raise _full(quota, left) from None
        raise FileTooLarge(
            f"The file has more than {in_words(largest)}, the most that is taken.", param="file"
        ) from None
    try:
        with transaction.atomic():
            # Of two at once the second counts the first one's bytes.
            Tenant.objects.select_for_update().filter(pk=tenant.pk).first()
            if quota is not None and selectors.used(tenant) + written.bytes > quota:
                raise _full(quota, max(0, quota - selectors.used(tenant)))
            return StoredFile.objects.create(
                tenant=tenant,
                user=user,
                key=key,
                name=shown(name),
                purpose=purpose,
                content=written.name,
                bytes=written.bytes,
                sha256=written.sha256,
                expires_at=expires_at,
            )
    except BaseException:
        contents.remove(written.name)
        raise


def open_file(file: StoredFile) -> File:
    """Its bytes, open for reading; close it. FileNotFoundError where they are gone."""
    return contents.read(file.content)


def delete(*, access: Access, file_id: object) -> StoredFile:
    """Raises NotFound."""
    found = selectors.file(access, file_id)
    with transaction.atomic():
        StoredFile.objects.filter(pk=found.pk).delete()
    return found


@receiver(post_delete, sender=StoredFile)
def _forget_content(sender: Any, instance: StoredFile, **_: Any) -> None:
    """However a row goes (its person, its team, its time), its bytes go once that is certain."""
    name = instance.content
    transaction.on_commit(lambda: contents.remove(name))


@receiver(post_delete, sender=Attachment)
def _forget_unattached(sender: Any, instance: Attachment, **_: Any) -> None:
    """A person's file lives with the messages that it is attached to. A key's stays until the key deletes it."""
    StoredFile.objects.filter(pk=instance.file_id, user__isnull=False, attachments=None).delete()


def quota_of(tenant: Tenant) -> int | None:
    """Bytes that a team may keep; None: as many as there is room for."""
    most = limits_of_team(tenant).team.files_mb
    return None if most is None else most * MB


def _full(quota: int | None, left: int) -> StorageFull:
    assert quota is not None
    return StorageFull(
        f"Your team may keep {in_words(quota)} of files and has {in_words(left)} left. Delete files, or ask an admin.",
        param="file",
    )


def in_words(count: int) -> str:
    """A number of bytes for people: 812 bytes, 4.2 KB, 100 MB."""
    if count < 1024:
        return f"{count} bytes"
    value, unit = (count / 1024, "KB") if count < MB else (count / MB, "MB")
    return f"{value:,.0f} {unit}" if value >= 100 or value == int(value) else f"{value:,.1f} {unit}"
