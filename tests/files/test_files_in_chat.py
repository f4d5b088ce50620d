"""Files in chats: put up, read, attached to a question, and where it stands in what the engine is asked."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from chatapp.chat import attachments, present, services
from chatapp.chat.conversations import delete as delete_conversation
from chatapp.chat.models import Conversation, Message
from chatapp.errors import BadInput, Conflict, NotFound, Refusal
from chatapp.files import jobs, sweep
from chatapp.files import services as files
from chatapp.files.models import Attachment, Reading, StoredFile
from chatapp.tenants.access import Access
from engine import protocol
from tests.chat.conftest import ScriptedWorker, Team
from tests.files import pdfs
from tests.files.test_stored_files import on_disk


def put(access: Access, content: bytes = b"The vault opens at nine.", name: str = "notes.txt") -> StoredFile:
    """Stored, and read."""
    file = files.store(
        access=access,
        name=name,
        content=io.BytesIO(content),
        purpose="user_data",
        expires_at=timezone.now() + timedelta(days=1) if access.user else None,
    )
    jobs.request(file)
    jobs.run(str(file.pk))
    return file


def answered(worker: ScriptedWorker, record: Callable[[], int]) -> protocol.Request:
    request = worker.answer("Yes.")
    record()
    return request


def test_a_file_stands_in_front_of_its_question_now_and_later(
    team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    first, second = put(team.member), put(team.member, b"a,b\n1,2", "table.csv")
    asked = services.ask(
        access=team.member, text="What is in them?", file_ids=[second.public_id, str(first.pk), second.public_id]
    )
    expected = (
        "The file table.csv:\n```\na,b\n1,2\n```\n\nThe file notes.txt:\n```\nThe vault opens at nine.\n```\n\n"
        "What is in them?"
    )
    assert [message.content for message in answered(worker, record).messages] == [expected]
    services.ask(access=team.member, text="And now?", conversation_id=asked.conversation_id)
    later = answered(worker, record)
    assert [message.content for message in later.messages] == [expected, "Yes.", "And now?"]
    assert later.salt == protocol.decode_request(bytes(asked.request)).salt, "the conversation's own"  # type: ignore[arg-type]
    assert Message.objects.filter(conversation=asked.conversation_id).first().text == "What is in them?"  # type: ignore[union-attr]
    assert StoredFile.objects.filter(expires_at=None).count() == 2, "they stay with the message"


def test_the_page_is_told_of_a_messages_files(team: Team, worker: ScriptedWorker, record: Callable[[], int]) -> None:
    file = put(team.member, pdfs.pdf("One", "Two"), "report.pdf")
    asked = services.ask(access=team.member, text="Well?", file_ids=[file.public_id])
    answered(worker, record)
    question, answer = present.conversation(team.member, asked.conversation_id)["messages"]
    (shown,) = question["files"]
    assert (shown["id"], shown["name"], shown["pages"], shown["kind"]) == (file.public_id, "report.pdf", 2, "pdf")
    assert (shown["state"], shown["bytes"]) == ("ready", file.bytes)
    assert "text" not in shown
    assert "files" not in answer


def test_a_question_may_be_sent_twice_and_its_files_once(team: Team) -> None:
    file = put(team.member)
    arguments: dict[str, Any] = {"access": team.member, "text": "Well?", "idempotency_key": "k"}
    first = services.ask(**arguments, file_ids=[file.public_id])
    assert services.ask(**arguments, file_ids=[file.public_id]) == first
    assert Attachment.objects.count() == 1
    with pytest.raises(Refusal) as refused:
        services.ask(**arguments)
    assert refused.value.code == "idempotency_mismatch"


def test_a_file_that_is_not_ones_own_is_not_found(team: Team, strangers: Team) -> None:
    """P11. Nothing is asked, and nothing is kept."""
    mine, keys = put(team.member), put(team.key)
    for access, file in (
        (team.owner, mine), (team.key, mine), (strangers.member, mine), (strangers.key, mine),
        (team.member, keys), (strangers.key, keys),
    ):  # fmt: skip
        with pytest.raises(NotFound) as refused:
            services.ask(access=access, text="What is in it?", file_ids=[file.public_id])
        assert refused.value.param == "file_ids"
    assert not Conversation.objects.exists()
    services.ask(access=team.key, text="What is in it?", file_ids=[keys.public_id])


def test_what_has_not_been_read_or_cannot_be_is_refused(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_start", lambda file_id: None)
    waiting = files.store(access=team.member, name="w.txt", content=io.BytesIO(b"w"), purpose="user_data")
    with pytest.raises(Conflict) as busy:
        services.ask(access=team.member, text="Well?", file_ids=[waiting.public_id])
    assert (busy.value.code, busy.value.param, busy.value.retryable) == ("file_not_ready", "file_ids", True)
    jobs.run(str(waiting.pk))
    services.ask(access=team.member, text="Well?", file_ids=[waiting.public_id])
    broken = put(team.member, bytes(range(256)) * 9, "x.bin")
    with pytest.raises(BadInput) as refused:
        services.ask(access=team.member, text="Well?", file_ids=[broken.public_id])
    assert refused.value.code == "file_unreadable"
    assert "x.bin cannot be read. This is a binary file." in refused.value.message
    many = [put(team.member).public_id for _ in range(attachments.MOST_FILES + 1)]
    with pytest.raises(BadInput) as much:
        services.ask(access=team.member, text="Well?", file_ids=many)
    assert much.value.code == "too_many_files"
    for odd in ("notes.txt", {"a": 1}, [None], [""], [7], ["x" * 10_000]):
        with pytest.raises((BadInput, NotFound)):
            services.ask(access=team.member, text="Well?", file_ids=odd)  # type: ignore[arg-type]


def test_files_that_do_not_fit_are_refused_with_how_much_is_too_much(
    team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    """The scripted worker reads 99 tokens at once; its answers say that a prompt had 7."""
    file = put(team.member)
    Reading.objects.update(tokens={team.tenant.model: 95})
    asked = services.ask(access=team.member, text="No engine runs: nothing is known.", file_ids=[file.public_id])
    answered(worker, record)
    with pytest.raises(BadInput) as refused:
        services.ask(access=team.member, text="x" * 8, file_ids=[file.public_id])
    assert refused.value.code == "context_too_long"
    assert "takes 95 tokens: 7 more than fit into the 99" in refused.value.message
    Reading.objects.update(tokens={team.tenant.model: 84})
    services.ask(access=team.member, text="x" * 8, file_ids=[file.public_id])
    with pytest.raises(BadInput) as later:
        services.ask(
            access=team.member, text="x" * 8, file_ids=[file.public_id], conversation_id=asked.conversation_id
        )  # fmt: skip
    assert "and the conversation before it 8: 4 more than fit" in later.value.message


def test_a_file_that_went_meanwhile_is_not_found_and_nothing_is_asked(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(team.member)
    chosen = attachments.chosen

    def then_gone(*arguments: Any) -> Any:
        found = chosen(*arguments)
        StoredFile.objects.all().delete()
        return found

    monkeypatch.setattr(attachments, "chosen", then_gone)
    with pytest.raises(NotFound):
        services.ask(access=team.member, text="Well?", file_ids=[file.public_id])
    assert not Message.objects.exists()


def test_a_deleted_file_stands_in_no_later_turn(team: Team, worker: ScriptedWorker, record: Callable[[], int]) -> None:
    """A key may delete its files whenever it likes."""
    file = put(team.key)
    asked = services.ask(access=team.key, text="Well?", file_ids=[file.public_id])
    answered(worker, record)
    files.delete(access=team.key, file_id=file.public_id)
    services.ask(access=team.key, text="And now?", conversation_id=asked.conversation_id)
    assert [message.content for message in answered(worker, record).messages] == ["Well?", "Yes.", "And now?"]


# --- what becomes of them -----------------------------------------------------------------------------------------


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import transaction

    monkeypatch.setattr(transaction, "on_commit", lambda work, **_: work())  # a test's transaction never commits


@pytest.mark.usefixtures("commits")
def test_a_persons_file_goes_with_its_last_message_and_a_keys_stays(team: Team, folder: Path) -> None:
    from chatapp.data.retention import purge_conversations

    mine, keys = put(team.member), put(team.key)
    conversations = [
        services.ask(access=access, text="Well?", file_ids=[file.public_id]).conversation
        for access, file in ((team.member, mine), (team.member, mine), (team.key, keys))
    ]
    delete_conversation(access=team.member, conversation_id=conversations[0].pk)  # type: ignore[union-attr]
    assert StoredFile.objects.count() == 2, "it can be asked back"
    purge_conversations([conversations[0].pk])  # type: ignore[union-attr]
    assert StoredFile.objects.count() == 2, "another message has it"
    purge_conversations([conversation.pk for conversation in conversations[1:]])  # type: ignore[union-attr]
    assert list(StoredFile.objects.all()) == [keys]
    assert not Reading.objects.filter(file=mine).exists()
    assert [path.name for path in on_disk(folder)] == [keys.content.rpartition("/")[2]]


@pytest.mark.usefixtures("commits")
def test_what_was_put_up_and_never_sent_is_gone_after_a_day(team: Team, folder: Path) -> None:
    sent, unsent, keys = put(team.member), put(team.member), put(team.key)
    services.ask(access=team.member, text="Well?", file_ids=[sent.public_id])
    assert sweep.expired() == 0
    StoredFile.objects.exclude(expires_at=None).update(expires_at=timezone.now())
    assert sweep.expired() == 1
    assert set(StoredFile.objects.all()) == {sent, keys}
    assert len(on_disk(folder)) == 2
    assert not StoredFile.objects.filter(pk=unsent.pk).exists()


def test_bytes_that_a_crash_left_are_swept_and_those_on_their_way_are_not(
    team: Team, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = put(team.member)
    for name in ("left-over", "on-its-way"):
        (folder / team.tenant.pk.hex / name).write_bytes(b"x")
    (folder / "not-a-team").mkdir()
    (folder / "not-a-team" / "x").write_bytes(b"x")
    old = timezone.now() - timedelta(hours=2)
    for name in ("left-over", kept.content.rpartition("/")[2]):
        os.utime(folder / team.tenant.pk.hex / name, (old.timestamp(), old.timestamp()))
    assert sweep.strays() == 1
    assert {path.name for path in on_disk(folder)} == {"on-its-way", kept.content.rpartition("/")[2], "x"}


# --- over the pages' API ------------------------------------------------------------------------------------------


def browser_of(access: Access) -> Client:
    client = Client(enforce_csrf_checks=True)
    client.force_login(access.user, backend="django.contrib.auth.backends.ModelBackend")  # type: ignore[arg-type]
    client.cookies["csrftoken"] = "t" * 32
    return client


def upload(client: Client, content: bytes, name: str = "notes.txt", **headers: str) -> Any:
    file = io.BytesIO(content)
    file.name = name
    headers = headers or {"X-CSRFToken": "t" * 32}
    return client.post("/api/t/acme/files", {"file": file}, headers=headers)


@pytest.mark.usefixtures("commits")
def test_a_file_goes_up_is_read_shown_saved_and_taken_away(team: Team) -> None:
    client = browser_of(team.member)
    reply = upload(client, "Größe\r\n<script>alert(1)</script>".encode(), "Größe <b>.html")
    assert reply.status_code == 201, reply.content
    made = reply.json()
    assert (made["name"], made["bytes"], made["state"]) == ("Größe <b>.html", 34, "ready")
    path = f"/api/t/acme/files/{made['id']}"
    found = client.get(path).json()
    assert found == {**made, "context_tokens": None}
    text = client.get(f"{path}/text")
    assert text.json()["text"] == "Größe\n<script>alert(1)</script>"
    assert text["Content-Type"].startswith("application/json")
    saved = client.get(f"{path}/content")
    assert saved.getvalue() == "Größe\r\n<script>alert(1)</script>".encode()
    assert saved["Content-Type"] == "application/octet-stream"
    assert saved["Content-Disposition"].startswith("attachment")
    assert saved["X-Content-Type-Options"] == "nosniff"
    assert client.delete(path, headers={"X-CSRFToken": "t" * 32}).status_code == 204
    assert client.get(path).status_code == 404


@pytest.mark.usefixtures("commits")
def test_what_cannot_be_read_is_refused_as_it_comes_or_says_so_afterwards(team: Team, settings: Any) -> None:
    client = browser_of(team.member)
    for content, code in ((b"", "empty_file"), (b"\x89PNG\r\n\x1a\n" + bytes(99), "unreadable_type")):
        reply = upload(client, content)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, code)
        assert reply.json()["error"]["param"] == "file"
    assert not StoredFile.objects.exists()
    made = upload(client, pdfs.pictures(), "scan.pdf").json()
    assert (made["state"], made["error"]["code"]) == ("failed", "no_text")
    assert "pictures" in made["error"]["message"]
    reply = client.get(f"/api/t/acme/files/{made['id']}/text")
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "file_unreadable")
    settings.OCTAVO_MAX_FILE = 100
    reply = upload(client, b"x" * 101)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "file_too_large")
    reply = client.post("/api/t/acme/files", {}, headers={"X-CSRFToken": "t" * 32})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "file")


def test_without_the_pages_token_nothing_goes_up(team: Team) -> None:
    assert upload(browser_of(team.member), b"x", Referer="http://evil.example").status_code == 403
    assert not StoredFile.objects.exists()


@pytest.mark.usefixtures("commits")
def test_a_key_puts_files_up_and_asks_with_them(team: Team) -> None:
    client, headers = Client(), {"Authorization": f"Bearer {team.secret}"}
    made = upload(client, b"The vault opens at nine.", **headers).json()
    assert StoredFile.objects.get().expires_at is None, "a key's files stay"
    reply = client.post(
        "/api/t/acme/conversations",
        {"text": "Well?", "file_ids": [made["id"]]},
        content_type="application/json",
        headers=headers,
    )
    assert reply.status_code == 202, reply.content
    listed = client.get(f"/api/t/acme/conversations/{reply.json()['conversation_id']}", headers=headers).json()
    assert [file["id"] for file in listed["messages"][0]["files"]] == [made["id"]]


@pytest.mark.usefixtures("commits")
def test_a_file_that_was_sent_stays_with_its_message(team: Team) -> None:
    client = browser_of(team.member)
    made = upload(client, b"x").json()
    services.ask(access=team.member, text="Well?", file_ids=[made["id"]])
    reply = client.delete(f"/api/t/acme/files/{made['id']}", headers={"X-CSRFToken": "t" * 32})
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "file_attached")


@pytest.mark.django_db(transaction=True)
def test_nobody_attaches_a_file_between_the_look_and_its_deletion(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both lock the file; a lock holds as long as its transaction."""
    client = browser_of(team.member)
    made = upload(client, b"x").json()
    delete, within = files.delete, []

    def deleted(**values: Any) -> StoredFile:
        within.append(connection.in_atomic_block)
        return delete(**values)

    monkeypatch.setattr(files, "delete", deleted)
    assert client.delete(f"/api/t/acme/files/{made['id']}", headers={"X-CSRFToken": "t" * 32}).status_code == 204
    assert within == [True]


def test_nobody_else_finds_a_persons_file(team: Team, strangers: Team) -> None:
    """P11, at each of the addresses, colleagues included."""
    made = upload(browser_of(team.member), b"The vault opens at nine.").json()
    secret = {"Authorization": f"Bearer {team.secret}"}
    for client, headers, slug in (
        (browser_of(team.owner), {}, "acme"),
        (browser_of(strangers.owner), {}, "acme"),
        (browser_of(strangers.owner), {}, "other"),
        (Client(), secret, "acme"),
    ):
        for end in ("", "/text", "/content"):
            reply = client.get(f"/api/t/{slug}/files/{made['id']}{end}", headers=headers)
            assert reply.status_code == 404, (slug, end)
        headers = headers or {"X-CSRFToken": "t" * 32}
        assert client.delete(f"/api/t/{slug}/files/{made['id']}", headers=headers).status_code == 404
    assert StoredFile.objects.count() == 1
