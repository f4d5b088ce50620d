"""Files are kept with all their bytes, seen by whose they are, and gone when they are gone."""

from __future__ import annotations

import hashlib
import io
import stat
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from chatapp.errors import BadInput, NotFound
from chatapp.files import contents, selectors, services
from chatapp.files.models import StoredFile
from chatapp.files.names import shown
from chatapp.limits.selectors import ensure, use_of_team
from chatapp.tenants.access import Access, access_for_key
from chatapp.tenants.models import KeyScope
from chatapp.tenants.services import create_api_key
from tests.chat.conftest import Team

MB = 1024 * 1024


def on_disk(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def put(access: Access, content: bytes = b"hello", name: str = "notes.txt", purpose: str = "user_data") -> StoredFile:
    return services.store(access=access, name=name, content=io.BytesIO(content), purpose=purpose)


def test_a_file_comes_back_as_it_came(team: Team, folder: Path) -> None:
    content = bytes(range(256)) * 4000
    file = put(team.key, content, purpose="batch")
    with services.open_file(file) as opened:
        assert opened.read() == content
    assert (file.bytes, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert file.public_id == f"file-{file.pk.hex}"
    assert selectors.file(team.key, file.public_id) == file == selectors.file(team.key, str(file.pk))


def test_it_is_written_as_it_comes_and_an_empty_one_is_a_file_too(team: Team) -> None:
    def parts() -> Iterator[bytes]:
        yield b"one\n"
        yield b"two\n"

    file = services.store(access=team.key, name="out.jsonl", content=parts(), purpose="batch_output")
    assert file.bytes == 8
    empty = put(team.key, b"")
    with services.open_file(empty) as opened:
        assert opened.read() == b""


def test_on_disk_it_has_a_random_name_that_only_the_server_may_read(team: Team, folder: Path) -> None:
    put(team.member, name="../../../etc/passwd")
    (path,) = on_disk(folder)
    assert path.parent == folder / team.tenant.pk.hex
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert "passwd" not in str(path)
    with pytest.raises(ValueError, match="no address"):
        contents.storage().url(path.name)


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\me\\report.pdf", "report.pdf"),
        ("", "file"),
        ("..", "file"),
        ("/", "file"),
        ("a\0b\r\nSet-Cookie: x.txt", "ab Set-Cookie: x.txt"),
        ("\u202etxt.exe", "txt.exe"),
        ("תיק.txt", "תיק.txt"),
        ("e\u0301te\u0301.md", "été.md"),
        ("\ud800bad.txt", "bad.txt"),
        ("x" * 400 + ".tar.gz", "x" * 251 + "….gz"),
        ("👩‍🚀.txt", "👩‍🚀.txt"),
    ],
)
def test_a_name_is_for_showing_and_shows_what_it_is(given: str, seen: str) -> None:
    assert shown(given) == seen
    assert len(shown(given)) <= 255


def test_a_file_that_is_too_large_leaves_nothing(team: Team, folder: Path, settings: object) -> None:
    settings.OCTAVO_MAX_FILE = 1000  # type: ignore[attr-defined]
    with pytest.raises(services.FileTooLarge) as refused:
        put(team.key, b"x" * 1001)
    assert "1000 bytes" in refused.value.message
    assert not on_disk(folder)
    assert not StoredFile.objects.exists()
    assert put(team.key, b"x" * 1000).bytes == 1000


def test_a_team_keeps_no_more_than_its_plan_lets_it(team: Team, folder: Path) -> None:
    row = ensure(team.tenant)
    row.files_mb = 1
    row.save()
    first = put(team.key, b"x" * (MB - 10))
    with pytest.raises(services.StorageFull) as refused:
        put(team.member, b"x" * 11)
    assert "1 MB" in refused.value.message
    assert "10 bytes left" in refused.value.message
    put(team.member, b"x" * 10)
    with pytest.raises(services.StorageFull):
        put(team.member, b"")
    assert len(on_disk(folder)) == 2
    assert {use.name: use.used for use in use_of_team(team.tenant)}["files_mb"] == 1
    services.delete(access=team.key, file_id=first.pk)
    put(team.member, b"x" * 11)


def test_a_file_is_its_persons_alone_and_a_keys_is_the_teams_keys(team: Team, strangers: Team) -> None:
    """P11."""
    mine, keys = put(team.member), put(team.key)
    other = access_for_key(create_api_key(tenant=team.tenant, name="other", scopes=(KeyScope.CHAT,))[1])
    assert selectors.file(other, keys.public_id) == keys
    for access in (team.owner, team.key, other, strangers.member, strangers.key):
        with pytest.raises(NotFound):
            selectors.file(access, mine.pk)
        with pytest.raises(NotFound):
            services.delete(access=access, file_id=mine.public_id)
    for access in (team.owner, team.member, strangers.owner, strangers.key):
        with pytest.raises(NotFound):
            selectors.file(access, keys.pk)
    for odd in ("", "file-", "file-zz", None, 7, "file-" + "0" * 32, "x" * 10_000):
        with pytest.raises(NotFound):
            selectors.file(team.member, odd)


def test_a_deleted_file_is_gone_from_the_disk_as_well(
    team: Team, folder: Path, django_capture_on_commit_callbacks: object
) -> None:
    file = put(team.member)
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[operator]
        services.delete(access=team.member, file_id=file.public_id)
    assert not on_disk(folder)
    with pytest.raises(NotFound):
        services.delete(access=team.member, file_id=file.public_id)


def test_what_has_expired_is_not_there(team: Team) -> None:
    file = services.store(
        access=team.key, name="a", content=io.BytesIO(b"a"), purpose="batch", expires_at=timezone.now()
    )
    with pytest.raises(NotFound):
        selectors.file(team.key, file.pk)
    assert not selectors.files(team.key).items


def test_pages_are_whole_in_both_directions(team: Team) -> None:
    made = [put(team.key, name=str(number)) for number in range(5)]
    StoredFile.objects.filter(pk__in=[made[1].pk, made[2].pk]).update(created_at=timezone.now() - timedelta(days=1))
    for newest_first in (True, False):
        seen, after = [], None
        while True:
            page = selectors.files(team.key, after=after, limit=2, newest_first=newest_first)
            seen += list(page.items)
            if not page.more:
                break
            after = seen[-1].public_id
        expected = sorted(StoredFile.objects.all(), key=lambda file: (file.created_at, file.pk), reverse=newest_first)
        assert seen == expected
    with pytest.raises(NotFound):
        selectors.files(team.key, after="file-" + "0" * 32)


def test_an_unknown_purpose_is_refused_before_a_byte_is_read(team: Team) -> None:
    def parts() -> Iterator[bytes]:
        raise AssertionError("read")
        yield b""

    with pytest.raises(BadInput):
        services.store(access=team.key, name="a", content=parts(), purpose="fine-tune")
