"""A backup of the running product, taken in the middle of answers, restored elsewhere and started: all is there again.

On SQLite and on PostgreSQL: real engine, recorder, Celery, Redis, and a receiver of webhooks.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import psycopg
import pytest
from standardwebhooks import Webhook

from chatapp.backups import manifest
from tests.accounts.conftest import activate_app, code_of
from tests.backups.conftest import manage
from tests.postgresql.server import binaries, running
from tests.stack import Stack, wait_for
from tests.webhooks.conftest import Receiver, listening

pytestmark = [pytest.mark.long, pytest.mark.timeout(420)]
LOCAL = {"OCTAVO_WEBHOOK_PLAIN": "1", "OCTAVO_WEBHOOK_ALLOW": "127.0.0.0/8"}
TEXT = "Octavo, folio, quarto. ☂\n".encode() * 4000
STORY = "Tell me a very long story about a lighthouse, its keeper, the sea and all of its ships."


@dataclass
class Place:
    """Where an installation keeps its rows: `env` names it to the product and to the commands."""

    data: Path
    env: dict[str, str] = field(default_factory=dict)


@pytest.fixture(params=["sqlite", "postgresql"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Place, Place]]:
    """One to be backed up, and an empty one."""
    first, second = tmp_path / "first", tmp_path / "second"
    if request.param == "sqlite":
        yield Place(first), Place(second)
        return
    programs = binaries()
    if programs is None:
        pytest.skip("there is no PostgreSQL on this machine")
    with running(programs) as url:
        with psycopg.connect(url, autocommit=True) as database:
            database.execute("CREATE DATABASE another")
        other = url.removesuffix("octavo") + "another"
        yield Place(first, {"DATABASE_URL": url}), Place(second, {"DATABASE_URL": other})


@contextmanager
def logged_in(stack: Stack, who: dict[str, str], code: str = "") -> Iterator[httpx.Client]:
    """By the pages, with the code of an app where there is one."""
    with httpx.Client(base_url=stack.url, timeout=30, headers={"Referer": stack.url}) as http:
        http.get("/accounts/login/")
        form = {"login": who["email"], "password": who["password"], "csrfmiddlewaretoken": http.cookies["csrftoken"]}
        answer = http.post("/accounts/login/", data=form)
        assert answer.status_code == 302, answer.text
        if code:
            assert answer.headers["location"].startswith("/accounts/2fa/authenticate/"), (
                "the password alone is not enough"
            )
            http.get("/accounts/2fa/authenticate/")
            form = {"code": code, "csrfmiddlewaretoken": http.cookies["csrftoken"]}
            answer = http.post("/accounts/2fa/authenticate/", data=form)
            assert answer.status_code == 302, answer.text
        http.headers["X-CSRFToken"] = http.cookies["csrftoken"]
        yield http


class Pages:
    """What `activate_app` asks of Django's test client, over the network."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def get(self, path: str) -> httpx.Response:
        return self.http.get(path)

    def post(self, path: str, data: dict[str, str]) -> httpx.Response:
        return self.http.post(path, data={**data, "csrfmiddlewaretoken": self.http.cookies["csrftoken"]})


def ask(http: httpx.Client, slug: str, text: str, **params: Any) -> str:
    asked = http.post(f"/api/t/{slug}/conversations", json={"text": text, "params": params})
    assert asked.status_code == 202, asked.text
    return str(asked.json()["conversation_id"])


def chat(http: httpx.Client, slug: str, conversation: str) -> dict[str, Any]:
    found = http.get(f"/api/t/{slug}/conversations/{conversation}")
    assert found.status_code == 200, found.text
    return dict(found.json())


def figures(owner: httpx.Client, slug: str) -> dict[str, Any]:
    """What an owner sees of limits and use, without what goes on with time."""
    total = owner.get(f"/api/t/{slug}/usage").json()["total"]
    limits = owner.get(f"/api/t/{slug}/limits").json()["limits"]
    return {
        "tokens": (total["prompt_tokens"], total["output_tokens"]),
        "month": [(use["used"], use["reserved"]) for use in limits if use["name"] == "tokens_per_month"],
        "files": [use["used"] for use in limits if "file" in use["name"]],
        "lower": owner.get(f"/api/t/{slug}/limits/lower").json()["items"],
        "keys": [key["id"] for key in owner.get(f"/api/t/{slug}/keys").json()["items"]],
    }


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with listening() as kept:
        yield kept


def test_all_that_people_and_programs_had_is_there_again(
    places: tuple[Place, Place], model_path: str, tmp_path: Path, receiver: Receiver
) -> None:
    first, second = places
    stack = Stack(first.data, model_path, **LOCAL, **first.env)
    try:
        team = stack.demo["tenants"][0]
        slug = team["slug"]
        api = openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key(), max_retries=0)
        file = api.files.create(file=("words.txt", TEXT), purpose="user_data")
        kept = api.responses.create(model="default", input="Say hello.", max_output_tokens=16, temperature=0)
        with logged_in(stack, team["member"]) as member, logged_in(stack, team["admin"]) as owner:
            proof = {"password": team["member"]["password"], "csrfmiddlewaretoken": member.cookies["csrftoken"]}
            member.get("/accounts/reauthenticate/")
            member.post("/accounts/reauthenticate/", data=proof)
            secret = activate_app(Pages(member))  # type: ignore[arg-type]
            conversation = ask(member, slug, "What is an octavo? 日本 ☂", max_tokens=24, temperature=0)
            wait_for(lambda: not chat(member, slug, conversation)["running"], 60, 0.2)
            limit = {"tokens_per_month": 5_000_000}
            assert owner.put(f"/api/t/{slug}/limits/lower", json=limit).status_code == 200
            receiver.says(500)
            made = owner.post(f"/api/t/{slug}/webhooks", json={"url": receiver.url, "events": ["member.joined"]}).json()
            hook = made["webhook"]["id"]
            owner.post(f"/api/t/{slug}/webhooks/{hook}/test")
            wait_for(lambda: receiver.got, 30)
            wait_for(lambda: figures(owner, slug)["month"][0][1] == 0, 30, 0.2)  # all that was asked is settled
            before, said = figures(owner, slug), chat(member, slug, conversation)
            stories = [ask(member, slug, STORY, max_tokens=900, seed=n, temperature=1.2) for n in range(6)]
            wait_for(lambda: stack.running() >= 3, 30)
            told = manage(first.data, "backup", tmp_path / "backups", env=first.env)
            assert any(chat(member, slug, story)["running"] for story in stories), "it was taken in the middle"
    finally:
        stack.stop()
    (backup,) = (tmp_path / "backups").glob("octavo-*")
    assert told.startswith(f"{backup}: ")
    assert manifest.read(backup).files.count == 1
    heard = len(receiver.got)
    receiver.says(204)

    told = manage(second.data, "restore", backup, env=second.env)
    interrupted = re.search(r"answers interrupted: (\d)", told)
    assert interrupted, told
    assert "webhook events not sent: 1" in told
    stack = Stack(second.data, model_path, **LOCAL, **second.env)
    try:
        assert stack.demo["tenants"][0] == team
        code = code_of(secret, time.time(), ahead=1)
        with logged_in(stack, team["member"], code) as member, logged_in(stack, team["admin"]) as owner:
            assert chat(member, slug, conversation) == said
            states = [chat(member, slug, story) for story in stories]
            assert not any(state["running"] for state in states)
            lost = [state for state in states if state["messages"][-1]["text"] == ""]
            assert len(lost) == int(interrupted[1])
            found = figures(owner, slug)
            assert found["month"][0][1] == 0, "nothing is reserved for what will never end"
            ended = len(stories) - len(lost)  # before the backup was taken: they had their tokens counted
            assert ended or found == before
            assert {**found, "tokens": 0, "month": 0} == {**before, "tokens": 0, "month": 0}
            assert owner.get(f"/t/{slug}/admin/").status_code == 200
            assert member.get(f"/t/{slug}/c/{conversation}").status_code in (200, 302)
            again = openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key(), max_retries=0)
            assert again.files.content(file.id).content == TEXT
            assert again.responses.retrieve(kept.id).output_text == kept.output_text
            reply = again.responses.create(model="default", input="Say hello.", max_output_tokens=16, temperature=0)
            assert reply.output_text == kept.output_text
            # A lost one can be asked again, and webhooks sign by the secret that their receiver knows.
            asked = member.post(
                f"/api/t/{slug}/conversations/{lost[0]['id']}/messages",
                json={"text": "Go on.", "params": {"max_tokens": 8}},
            )
            assert asked.status_code == 202, asked.text
            owner.post(f"/api/t/{slug}/webhooks/{hook}/test")
            wait_for(lambda: len(receiver.got) > heard, 30)
            Webhook(made["secret"]).verify(receiver.got[-1].body, receiver.got[-1].headers)
            assert len(receiver.got) == heard + 1
            _, waited = owner.get(f"/api/t/{slug}/webhooks/{hook}/deliveries").json()["items"]
            assert (waited["state"], waited["next_attempt_at"]) == ("failed", None)
            assert waited["error"].startswith("Not sent: restored from a backup of ")
    finally:
        stack.stop()
