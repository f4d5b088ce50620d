"""/v1/files, by OpenAI's own client where it can ask, and by httpx where it would not."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from chatapp.api import openai_files
from chatapp.api.answering import in_thread
from chatapp.files import services
from tests.api.test_isolation import ADDRESSES, OF_KEYS
from tests.chat.conftest import Team

pytestmark = pytest.mark.django_db(transaction=True)

LINES = b'{"custom_id": "1"}\n' * 20


def transport() -> httpx.ASGITransport:
    from chatapp.asgi import application

    return httpx.ASGITransport(app=application)  # type: ignore[arg-type]


@pytest.fixture
async def client(team: Team) -> AsyncIterator[openai.AsyncOpenAI]:
    http = httpx.AsyncClient(transport=transport())
    async with openai.AsyncOpenAI(
        base_url="http://testserver/v1", api_key=team.secret, max_retries=0, http_client=http
    ) as made:
        yield made


@pytest.fixture
async def http(team: Team) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {team.secret}"}
    async with httpx.AsyncClient(transport=transport(), base_url="http://testserver", headers=headers) as made:
        yield made


async def test_a_file_goes_up_comes_back_and_is_deleted(client: openai.AsyncOpenAI) -> None:
    made = await client.files.create(file=("requests.jsonl", io.BytesIO(LINES)), purpose="batch")
    assert (made.object, made.filename, made.purpose) == ("file", "requests.jsonl", "batch")
    assert (made.bytes, made.status, made.expires_at) == (len(LINES), "processed", None)
    assert made.id.startswith("file-")
    assert await client.files.retrieve(made.id) == made
    assert await client.files.wait_for_processing(made.id) == made
    content = await client.files.content(made.id)
    assert content.content == LINES
    assert content.response.headers["content-type"] == "application/octet-stream"
    assert content.response.headers["content-disposition"] == 'attachment; filename="requests.jsonl"'
    assert content.response.headers["x-content-type-options"] == "nosniff"
    gone = await client.files.delete(made.id)
    assert (gone.id, gone.deleted, gone.object) == (made.id, True, "file")
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError) as refused:
            await call(made.id)
        assert refused.value.body["param"] == "file_id"  # type: ignore[index]


async def test_lists_come_in_pages_of_any_size_and_by_purpose(client: openai.AsyncOpenAI) -> None:
    made = [
        await client.files.create(file=(f"{number}.txt", b"x"), purpose="batch" if number % 2 else "user_data")
        for number in range(5)
    ]
    ids = [file.id for file in made]
    assert [file.id async for file in client.files.list(limit=2)] == ids[::-1]
    assert [file.id async for file in client.files.list(limit=2, order="asc")] == ids
    assert [file.id async for file in client.files.list(limit=1, order="asc", purpose="batch")] == [ids[1], ids[3]]
    assert [file.id async for file in client.files.list(after=ids[1], order="asc")] == ids[2:]
    for nothing in ("nothing", "\0"):
        assert [file.id async for file in client.files.list(purpose=nothing)] == []


async def test_a_file_lives_as_long_as_was_said(client: openai.AsyncOpenAI, http: httpx.AsyncClient) -> None:
    made = await client.files.create(
        file=("a.txt", b"a"), purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert made.expires_at == made.created_at + 3600
    for fields in (
        {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"},
        {"expires_after[anchor]": "created_at", "expires_after[seconds]": "x"},
        {"expires_after[anchor]": "created_at", "expires_after[seconds]": "9" * 400},
        {"expires_after[anchor]": "last_active_at", "expires_after[seconds]": "3600"},
        {"expires_after[seconds]": "3600"},
    ):
        reply = await http.post("/v1/files", data={"purpose": "batch", **fields}, files={"file": b"x"})
        assert reply.status_code == 400, fields
        assert reply.json()["error"]["param"].startswith("expires_after")


async def test_what_is_wrong_with_an_upload_is_said_by_field(http: httpx.AsyncClient) -> None:
    form = "multipart/form-data; boundary=x"
    trials: list[tuple[dict[str, Any], str]] = [
        ({"data": {"purpose": "batch"}, "files": {"other": b"x"}}, "file"),
        ({"data": {"purpose": "fine-tune"}, "files": {"file": b"x"}}, "purpose"),
        ({"data": {"purpose": "batch_output"}, "files": {"file": b"x"}}, "purpose"),
        ({"files": {"file": b"x"}}, "purpose"),
        ({"json": {"file": "x", "purpose": "batch"}}, "file"),
        ({"content": b"", "headers": {"Content-Type": form}}, "file"),
        ({"content": b"--x\r\n", "headers": {"Content-Type": form}}, "file"),
        ({"content": b"\xff" * 100, "headers": {"Content-Type": "multipart/form-data"}}, "file"),
        ({"content": b"x", "headers": {"Content-Type": "multipart/form-data; boundary=" + "y" * 500}}, "file"),
        ({"data": {f"f{n}": "x" for n in range(2500)}, "files": {"file": b"x"}}, "file"),
        ({"files": [("file", b"x")] * 30}, "file"),
    ]
    for arguments, param in trials:
        reply = await http.post("/v1/files", **arguments)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), (arguments, reply.text)
    for query, param in (("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order")):
        reply = await http.get(f"/v1/files?{query}")
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert (await http.get("/v1/files?after=file-never")).status_code == 404
    assert (await http.put("/v1/files", content=b"x")).status_code == 405


async def test_names_are_shown_as_they_are_and_never_followed(client: openai.AsyncOpenAI) -> None:
    for name, seen in (
        ("../../etc/passwd", "passwd"),
        ("Übersicht №1.pdf", "Übersicht №1.pdf"),
        ("a'b;c.txt", "a'b;c.txt"),
    ):
        made = await client.files.create(file=(name, b"x"), purpose="user_data")
        assert made.filename == seen
        header = (await client.files.content(made.id)).response.headers["content-disposition"]
        assert header.startswith("attachment")
        assert "\n" not in header


async def test_a_file_of_more_bytes_than_a_body_may_have_goes_up_and_one_beyond_its_bound_does_not(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient, settings: Any
) -> None:
    settings.OCTAVO_MAX_FILE = 4 * 1024 * 1024
    large = bytes(settings.OCTAVO_MAX_FILE)
    assert len(large) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE > settings.OCTAVO_MAX_BODY
    made = await client.files.create(file=("large.bin", large), purpose="user_data")
    assert made.bytes == len(large)
    assert (await client.files.content(made.id)).content == large
    with pytest.raises(openai.APIStatusError) as refused:
        await client.files.create(file=("large.bin", large + b"x"), purpose="user_data")
    assert (refused.value.status_code, refused.value.code) == (413, "file_too_large")
    reply = await http.post("/v1/files", files={"file": large + bytes(100_000)}, data={"purpose": "user_data"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "too_large")

    async def unsaid() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield bytes(100_000)

    reply = await http.post("/v1/files", content=unsaid(), headers={"Content-Type": "multipart/form-data; boundary=x"})
    assert reply.status_code == 413
    for path in ("/v1/chat/completions", "/v1/files/file-x", "/v1/files/", "/v1/filesx", "/api/t/acme/audit"):
        reply = await http.post(path, content=bytes(3_000_000))
        assert reply.status_code == 413, path


async def test_other_teams_and_people_find_nothing_of_a_keys_files(
    client: openai.AsyncOpenAI, team: Team, strangers: Team
) -> None:
    """P11, at every address that names a file."""
    made = await client.files.create(file=("secret.txt", b"The vault opens at nine."), purpose="user_data")
    persons = await in_thread(
        services.store, access=team.member, name="own.txt", content=io.BytesIO(b"own"), purpose="user_data"
    )
    walked = [address for address, what in ADDRESSES.items() if what is OF_KEYS and address.startswith("v1/files")]
    assert {operation.path for operation in openai_files.OPERATIONS} == {
        "/v1/files", *("/" + address.replace("<", "{").replace(">", "}") for address in walked)
    }  # fmt: skip
    async with httpx.AsyncClient(transport=transport(), base_url="http://testserver") as other:
        for secret, file_id in ((strangers.secret, made.id), (team.secret, persons.public_id)):
            for address in walked:
                path = "/" + address.replace("<file_id>", file_id)
                for method in ("GET", "DELETE", "POST"):
                    reply = await other.request(method, path, headers={"Authorization": f"Bearer {secret}"})
                    assert reply.status_code in (404, 405), (method, path)
                    never = await other.request(
                        method, path.replace(file_id, "file-" + "0" * 32), headers={"Authorization": f"Bearer {secret}"}
                    )
                    assert never.status_code == reply.status_code
                assert (await other.get(path)).status_code == 401
            listed = await other.get("/v1/files", headers={"Authorization": f"Bearer {secret}"})
            assert file_id not in listed.text
            reply = await other.get(f"/v1/files?after={file_id}", headers={"Authorization": f"Bearer {secret}"})
            assert reply.status_code == 404
    assert (await client.files.content(made.id)).content == b"The vault opens at nine."
