"""The text of files: whatever encoding they have, whatever somebody put into them, and whoever dies meanwhile."""

from __future__ import annotations

import io
import time
from datetime import timedelta
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.utils import timezone

from chatapp.files import jobs, pdf, reading, services, tasks
from chatapp.files.kinds import Unreadable
from chatapp.files.models import Reading, ReadingState, StoredFile
from chatapp.files.prompt import block
from chatapp.streaming import prompts
from tests.chat.conftest import Team
from tests.files import pdfs

GERMAN = "Größe: 12 µm, Übermaß, „gut“.\r\nZweite Zeile.\n"
TIDY = "Größe: 12 µm, Übermaß, „gut“.\nZweite Zeile."
LATIN = ("Le café est près de la mairie, où l'été fut très beau. Çà et là, des élèves gênés rêvaient. " * 4).strip()


def text_of(content: bytes) -> str:
    return reading.read(ContentFile(content)).text


def refusal_of(content: bytes) -> Unreadable:
    with pytest.raises(Unreadable) as refused:
        reading.read(ContentFile(content))
    return refused.value


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"])
def test_a_text_is_read_in_whatever_encoding_it_has(encoding: str) -> None:
    assert text_of((GERMAN * 3).encode(encoding)) == "\n".join([TIDY] * 3)


def test_latin_1_without_any_mark_is_read_as_what_it_is() -> None:
    assert text_of(LATIN.encode("latin-1")) == LATIN


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", "Name;Größe;Straße\nMüller;12;Hauptstraße 3"),
        ("cp1250", "Příliš žluťoučký kůň úpěl ďábelské ódy. " * 3),
        ("cp1251", "Съешь же ещё этих мягких французских булок, да выпей чаю. " * 2),
        ("shift_jis", "日本語のテキストです。これは文字コードの試験です。" * 3),
        ("gb18030", "这是一个中文文本。用于测试编码检测的结果。" * 3),
    ],
)
def test_what_other_alphabets_are_written_in_is_told_by_how_it_looks(encoding: str, text: str) -> None:
    assert text_of(text.encode(encoding)) == text.rstrip()


@pytest.mark.parametrize(
    "text",
    [
        "עברית: שלום",
        "日本語のテキスト",
        "👩‍🚀 and e\u0301",
        "a,b\n1,2",
        "BMW makes cars",
        "MZ is a name",
        "ID3 is a tag",
    ],
)
def test_a_text_stays_as_it_is(text: str) -> None:
    assert text_of(text.encode()) == text


@pytest.mark.parametrize(
    "text",
    [
        "# PDFs\n\nThey begin with `%PDF-1.7`; say so, and nothing follows.",
        'MAGIC = b"%PDF-"\n\n\ndef is_pdf(head: bytes) -> bool:\n    return MAGIC in head',
    ],
)
def test_a_text_about_pdfs_is_a_text(text: str) -> None:
    found = reading.read(ContentFile(text.encode()))
    assert (found.text, found.kind) == (text, "text")


def test_what_cannot_be_seen_is_left_out_and_lines_end_alike() -> None:
    """PostgreSQL refuses U+0000."""
    assert text_of(b"a\0b" + b"x" * 500 + b"\r\n\x0cc\rd  \n\n") == "ab" + "x" * 500 + "\n\nc\nd"
    assert text_of(b"\xff\xfe" + "a\0\ud800b".encode("utf-16-le", "surrogatepass")) in ("a\ufffdb", "ab")


@pytest.mark.parametrize(
    ("content", "code", "word"),
    [
        (b"", "empty_file", "empty"),
        (b" \n\t\r\n", "no_text", "no text"),
        (b"\xef\xbb\xbf", "no_text", "no text"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "unreadable_type", "PNG"),
        (b"\xff\xd8\xff\xe0" + bytes(range(256)), "unreadable_type", "JPEG"),
        (b"PK\x03\x04" + bytes(range(256)), "unreadable_type", "Word"),
        (b"\x7fELF\x02\x01\x01" + bytes(100), "unreadable_type", "program"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 " + bytes(90), "unreadable_type", "WebP"),
        (bytes(range(256)) * 20, "unreadable_type", "binary"),
        (b"x" * (reading.MOST_TEXT + 1), "text_too_long", "1.0 MB"),
        (b"x" * (reading.MOST_BYTES_OF_TEXT + 1), "text_too_long", "4.0 MB"),
    ],
)
def test_what_is_no_text_is_refused_in_words(content: bytes, code: str, word: str) -> None:
    refused = refusal_of(content)
    assert refused.code == code
    assert word in refused.message


def test_the_longest_text_is_read() -> None:
    assert len(text_of(b"x" * reading.MOST_TEXT)) == reading.MOST_TEXT
    assert len(text_of(("é" * (reading.MOST_TEXT // 2)).encode("utf-16"))) == reading.MOST_TEXT // 2


def test_a_pdf_is_read_page_by_page() -> None:
    found = reading.read(ContentFile(pdfs.pdf("Hello (world)\nÜber \\alles", "Second page")))
    assert (found.text, found.pages, found.kind) == ("Hello (world)\nÜber \\alles\n\nSecond page", 2, "pdf")
    assert text_of(b"\n\n junk before " + pdfs.pdf("Hello")) == "Hello", "as many programs write them"
    assert text_of(b" \r\n" + pdfs.pdf("Hello")) == "Hello"
    assert text_of(pdfs.encrypted("")) == "A secret", "protected against changes only"


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (pdfs.pictures, "no_text"),
        (lambda: pdfs.encrypted("sesame"), "encrypted_file"),
        (pdfs.circular, "broken_file"),
        (pdfs.nested, "broken_file"),
        (lambda: b"%PDF-1.7 and nothing that follows", "broken_file"),
        (lambda: pdfs.pdf("Hello")[:400], "broken_file"),
        (lambda: pdfs.bomb(100), "takes_too_much"),
        (lambda: pdfs.pdf(*["x"] * (pdf.MOST_PAGES + 1)), "too_many_pages"),
        (lambda: pdfs.pdf(*["\n".join(["long " * 200] * 60)] * 20), "text_too_long"),
    ],
)
def test_a_pdf_that_cannot_be_read_says_why(make: Any, code: str) -> None:
    content = make()
    started = time.monotonic()
    assert refusal_of(content).code == code
    assert time.monotonic() - started < 20


def test_a_pdf_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """The child is killed, whatever it does; so is one that says more than there can be."""
    child = tmp_path / "child.py"
    monkeypatch.setattr(pdf, "CHILD", child)
    for code, expected in (
        ("while True: pass", "takes_too_long"),
        ("import os; os.kill(os.getpid(), 11)", "broken_file"),
        ("print('not')", "broken_file"),
        ("import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass", "takes_too_long"),
    ):
        child.write_text(code)
        wall_s = 30.0 if "RLIMIT" in code else 0.5
        with pytest.raises(Unreadable) as refused, io.BytesIO() as _, open(child, "rb") as source:
            pdf.read(source, most_bytes=1000, wall_s=wall_s)
        assert refused.value.code == expected, code
    child.write_text("while True: print('{\"text\": \"' + 'x' * 1000 + '\"}')")
    with pytest.raises(pdf.TooMuchText), open(child, "rb") as source:
        pdf.read(source, most_bytes=10_000, wall_s=20)
    child.write_text("while True: print('x' * 100_000, end='')")
    with pytest.raises(pdf.TooMuchText), open(child, "rb") as source:
        pdf.read(source, most_bytes=10_000, wall_s=20)


def test_the_child_sees_nothing_of_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    child = tmp_path / "child.py"
    child.write_text(
        "import json, os, sys\n"
        "said = json.dumps(sorted(os.environ)) + str(any('/chatapp' in path for path in sys.path))\n"
        "print(json.dumps({'text': said})); print(json.dumps({'end': 'done'}))\n"
    )
    monkeypatch.setattr(pdf, "CHILD", child)
    monkeypatch.setenv("SECRET", "x")
    with open(child, "rb") as source:
        (said,) = pdf.read(source, most_bytes=1000).texts
    assert said == '["LC_ALL", "PATH"]False'


# --- the job ------------------------------------------------------------------------------------------------------


def put(team: Team, content: bytes, name: str = "notes.txt") -> StoredFile:
    return services.store(access=team.member, name=name, content=io.BytesIO(content), purpose="user_data")


def test_a_file_is_read_once_and_its_tokens_counted(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def count(texts: list[str], **_: Any) -> Any:
        asked.append(texts)
        return prompts.protocol.Counted(own_tokens=17, block_size=16, context=99, tenant_blocks=9)

    monkeypatch.setattr(prompts, "count", count)
    file = put(team, b"Some words.")
    jobs.request(file)
    for _ in range(3):
        assert jobs.run(str(file.pk)) is None
    found = Reading.objects.get(file=file)
    assert (found.state, found.text, found.attempt) == (ReadingState.READY, "Some words.", 1)
    assert found.tokens == {team.tenant.model: 17}
    assert asked == [["The file notes.txt:\n```\nSome words.\n```"]]
    assert jobs.tokens_of(found, team.tenant.model) == 17
    assert jobs.tokens_of(found, "another") == 17
    assert len(asked) == 2, "another model counts for itself, and once"
    assert jobs.tokens_of(Reading.objects.get(file=file), "another") == 17
    assert len(asked) == 2


def test_without_an_engine_it_is_read_and_counted_later(team: Team) -> None:
    file = put(team, b"Some words.")
    jobs.request(file)
    jobs.run(str(file.pk))
    found = Reading.objects.get(file=file)
    assert (found.state, found.tokens) == (ReadingState.READY, {})


def test_why_a_file_cannot_be_read_is_kept(team: Team) -> None:
    file = put(team, bytes(range(256)) * 9)
    jobs.request(file)
    jobs.run(str(file.pk))
    found = Reading.objects.get(file=file)
    assert (found.state, found.error_code) == (ReadingState.FAILED, "unreadable_type")
    assert found.error


def test_a_reader_that_died_is_followed_by_another_and_not_for_ever(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(team, b"Some words.")
    jobs.request(file)
    started: list[str] = []
    monkeypatch.setattr(tasks.read, "delay", started.append)
    jobs.tend()
    assert not started, "it was only just asked for"
    first = jobs._take(str(file.pk))  # and dies here
    assert first is not None
    jobs.tend()
    assert not started, "it may be at it still"
    for attempt in (1, 2):
        Reading.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
        jobs.tend()
        assert started == [str(file.pk)] * attempt
        jobs._take(str(file.pk))
    jobs._read(first)
    assert Reading.objects.get().state == ReadingState.RUNNING, "who was given up changes nothing any more"
    Reading.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    jobs.tend()
    assert (Reading.objects.get().state, Reading.objects.get().error_code) == (ReadingState.FAILED, "failed")


def test_one_that_nobody_heard_of_is_started_again(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    file = put(team, b"Some words.")
    jobs.request(file)
    started: list[str] = []
    monkeypatch.setattr(tasks.read, "delay", started.append)
    Reading.objects.update(queued_at=timezone.now() - timedelta(minutes=1))
    jobs.tend()
    assert started == [str(file.pk)]


def test_a_worker_with_enough_to_do_comes_back_later(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    file = put(team, b"Some words.")
    jobs.request(file)
    for _ in range(jobs.AT_ONCE):
        assert jobs._places.acquire(blocking=False)
    try:
        again: list[Any] = []
        monkeypatch.setattr(tasks.read, "apply_async", lambda args, countdown: again.append((args, countdown)))
        tasks.read.run(str(file.pk))
        assert again == [([str(file.pk)], jobs.BUSY_S)]
    finally:
        for _ in range(jobs.AT_ONCE):
            jobs._places.release()
    tasks.read.run(str(file.pk))
    assert Reading.objects.get().state == ReadingState.READY


def test_a_block_ends_where_the_text_ends_whatever_is_in_it() -> None:
    assert block("a.md", "x") == "The file a.md:\n```\nx\n```"
    fenced = block("a`b.md", "````\ncode\n````\nend", 3)
    assert fenced == "The file a'b.md (3 pages):\n`````\n````\ncode\n````\nend\n`````"
    assert block("a.pdf", "x", 1).startswith("The file a.pdf (1 page):")
