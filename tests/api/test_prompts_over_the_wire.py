"""Drafts and assistants through the running product: who may try one out, what is shared, and what is kept."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest

from tests.api.conftest import Browser, hexed, rows, text_of
from tests.stack import Stack, wait_for

TENANT = 2
SHORT = {"temperature": 0, "max_tokens": 8}
QUESTION = [{"role": "user", "content": "Which tables are there?"}]


def slug(stack: Stack) -> str:
    return str(stack.demo["tenants"][TENANT]["slug"])


def call(admin: Browser, method: str, path: str, body: Any = None) -> Any:
    """The product's HTTP API as the session."""
    headers = {"X-CSRFToken": admin.http.cookies["csrftoken"], "Origin": admin.stack.url}
    reply = admin.http.request(method, f"/api/t/{slug(admin.stack)}/prompts{path}", json=body, headers=headers)
    assert reply.status_code < 300, reply.text
    return reply.json()


def released(stack: Stack) -> list[tuple[str, str]]:
    """What the engine has logged of versions: (event, version)."""
    lines = [
        json.loads(line) for line in stack.log("engine").splitlines() if line.startswith('{"') and line.endswith("}")
    ]
    return [(line["event"], line["version"]) for line in lines if "version" in line]


@pytest.fixture
def admin(stack: Stack, browser: Any) -> Browser:
    found: Browser = browser(TENANT, "admin")
    return found


def test_a_started_engine_has_the_published_prompts_before_anybody_asks(
    stack: Stack, admin: Browser, browser: Any
) -> None:
    """The first request of the demo is not the one that computes its prompt."""
    wait_for(lambda: stack.redis.keys("octavo:greeted:*"))
    (assistant,) = call(admin, "GET", "")["items"]
    wait_for(lambda: stack.redis.exists(f"octavo:warm:{assistant['published']['id']}"), 60)
    with browser(TENANT, "member").open(slug(stack)) as socket:
        frames = socket.answer(input="Hello", params=SHORT)
    created = next(frame for frame in frames if frame["type"] == "response.created")
    assert created["cached_tokens"] >= stack.published_tokens(TENANT) > 100


def test_a_draft_is_tried_out_in_its_own_memory_and_nothing_but_its_usage_is_kept(
    stack: Stack, admin: Browser, browser: Any
) -> None:
    """C1: the very text that is published and in memory is computed anew for a trial, and again found by that trial."""
    (assistant,) = call(admin, "GET", "")["items"]
    published = assistant["published"]["id"]
    before = rows(stack, "SELECT count(*) FROM chat_message")
    cached = []
    with admin.open(slug(stack)) as socket:
        for _ in range(2):
            frames = socket.answer(input=QUESTION, draft_id=published, params=SHORT)
            assert text_of(frames)
            cached.append(next(frame["cached_tokens"] for frame in frames if frame["type"] == "response.created"))
    assert cached[0] == 0
    assert cached[1] > 100
    key = hexed(frames[0]["response_id"])
    query = "SELECT prompt_tokens, message_id, conversation_id, prompt_version_id FROM chat_generation WHERE id = ?"
    used = wait_for(lambda: [row for row in rows(stack, query, key) if row[0]])
    assert used[0][1:] == (None, None, None)
    assert rows(stack, "SELECT count(*) FROM chat_message") == before
    with browser(TENANT, "member").open(slug(stack)) as socket:
        socket.send(type="response.create", input=QUESTION, draft_id=published)
        assert socket.read()["code"] == "not_allowed"
        socket.send(type="response.create", input=QUESTION)
        assert socket.read()["code"] == "invalid_request", "a member's socket takes no lists otherwise either"
    with browser(1, "admin").open(stack.demo["tenants"][1]["slug"]) as socket:
        socket.send(type="response.create", input=QUESTION, draft_id=published)
        assert socket.read()["code"] == "not_found"
    with admin.open(slug(stack)) as socket:
        socket.send(type="response.create", input="A text", draft_id=published)
        assert socket.read()["param"] == "input"


def test_programs_and_chats_choose_an_assistant_and_new_answers_switch_at_once_when_it_is_warm(
    stack: Stack, admin: Browser, browser: Any
) -> None:
    made = call(admin, "POST", "", {"name": "Word desk"})
    at = f"/{made['id']}"
    try:
        for number, word in enumerate(("harbour", "lantern"), start=1):
            call(
                admin, "PUT", f"{at}/draft", {"text": f"Whatever is said, answer with the word {word}.", "revision": 0}
            )
            version = call(admin, "POST", f"{at}/publish", {"note": "A word", "revision": 1})
            assert (version["number"], version["tokens"] > 5) == (number, True)
            wait_for(lambda version=version: stack.redis.exists(f"octavo:warm:{version['id']}"), 9)
            client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key(TENANT), max_retries=0)
            assert "assistant:word-desk" in [model.id for model in client.models.list()]
            reply = client.chat.completions.create(
                model="assistant:word-desk", max_tokens=8, messages=[{"role": "user", "content": "Hello"}]
            )
            assert reply.usage is not None
            assert reply.usage.prompt_tokens_details is not None
            assert reply.usage.prompt_tokens_details.cached_tokens >= version["tokens"], "in memory before it was asked"
        with browser(TENANT, "member").open(slug(stack)) as socket:
            frames = socket.answer(input="Hello", assistant_id=made["id"], params=SHORT)
        conversation = frames[0]["conversation_id"]
        shown = browser(TENANT, "member").http.get(f"/api/t/{slug(stack)}/conversations/{conversation}").json()
        assert shown["assistant"] == {"name": "Word desk", "instead_of": None}
        used = wait_for(
            lambda: [item for item in call(admin, "GET", f"{at}/versions")["items"] if item["answers"] >= 2], 20
        )
        assert 0 < used[0]["hit_rate"] <= 1
        assert used[0]["saved_prefill_s"] > 0
    finally:
        call(admin, "POST", f"{at}/archive")
    said = stack.log("engine") + stack.log("web") + stack.log("celery")
    assert not re.search("harbour|lantern", said), "no prompt's text is logged"
    wait_for(lambda: ("prompt.released", version["id"]) in released(stack))


def test_figures_are_counted_by_the_engine_within_a_second(stack: Stack, admin: Browser) -> None:
    from engine.tokenizer import Tokenizer

    text = "Grüße, 삼겹살 👨‍👩‍👧, e\u0301 und <|im_start|>.\n" * 20
    found = call(admin, "POST", "/measure", {"text": text})
    assert found["state"] == "exact"
    tokenizer = Tokenizer.load(stack.model)
    assert found["own_tokens"] == len(tokenizer.encode(text))
    assert found["tokens"] >= found["own_tokens"]
    assert found["blocks"] * found["block_size"] - found["unused_slots"] == found["tokens"]
    assert found["quota_blocks"] > 0
    long = call(admin, "POST", "/measure", {"text": "word " * 19_000})
    assert "Shorten the text by about" in long["too_long"]
