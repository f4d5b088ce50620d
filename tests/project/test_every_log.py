"""The logs of a whole product: every process says whose request it works for, and none says what it is about."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.api.conftest import Browser, text_of
from tests.stack import Stack, wait_for

pytestmark = pytest.mark.long

TEAM = 2
QUESTION = "Repeat after me: quixotic zyzzyvas juggle marmalade beneath Kalamazoo."
SYSTEM = "You are the xylophonist of Ouagadougou."
RARE = ("quixotic", "zyzzyva", "marmalade", "Kalamazoo", "xylophonist", "Ouagadougou", "brouhaha")


def lines(stack: Stack, program: str, **fields: Any) -> list[dict[str, Any]]:
    """A program's structured lines that have these fields."""
    found = [json.loads(line) for line in stack.log(program).splitlines() if line.startswith("{")]
    return [line for line in found if all(line.get(name) == value for name, value in fields.items())]


def test_a_request_is_found_by_its_id_in_every_process_and_its_words_in_none(stack: Stack) -> None:
    """Web, engine, recorder, and Celery, which asks for the chat's title; and what is refused by any of them."""
    slug = stack.demo["tenants"][TEAM]["slug"]
    owner = Browser(stack, stack.demo["tenants"][TEAM]["admin"])
    model_titles(owner, slug, True)
    try:
        with owner.open(slug) as socket:
            frames = socket.answer(input=QUESTION, params={"max_tokens": 40, "temperature": 0})
            session = socket.hello["session_id"]
            refused = socket.answer(input=QUESTION, params={"brouhaha": QUESTION})
            assert refused[-1]["type"] == "error"
        answer = text_of(frames)
        assert len(answer.split()) > 4
        said = f"{session}/1"
        wait_for(lambda: lines(stack, "celery", event="task.done", request_id=said), 60)
        # The title's own generation goes through all of them again, on behalf of the same request.
        wait_for(lambda: len(lines(stack, "recorder", event="generation.recorded", request_id=said)) == 2, 60)
    finally:
        model_titles(owner, slug, False)
    for program in ("web", "engine", "recorder", "celery"):
        assert lines(stack, program, request_id=said), f"{program} says nothing of it"
    queued = lines(stack, "web", event="generation.queued", request_id=said)
    ended = lines(stack, "engine", event="generation.ended", request_id=said)
    assert {line["generation"] for line in queued} <= {line["generation"] for line in ended}
    assert {line["tenant"] for line in ended} == {queued[0]["tenant"]}

    ask_what_is_refused(stack)
    everything = {path.name: path.read_text(errors="replace") for path in (stack.data / "logs").iterdir()}
    assert {"web.log", "engine.log", "recorder.log", "celery.log", "beat.log", "redis.log"} <= set(everything)
    words = answer.split()
    runs = [" ".join(words[at : at + 4]) for at in range(len(words) - 3)]
    for name, text in everything.items():
        assert not [word for word in RARE if word.lower() in text.lower()], name
        assert not [run for run in runs if run in text], name
        assert stack.key(TEAM)[9:] not in text, name


def model_titles(owner: Browser, slug: str, wanted: bool) -> None:
    headers = {"X-CSRFToken": owner.http.cookies["csrftoken"], "Referer": owner.stack.url}
    answer = owner.http.patch(f"/api/t/{slug}/settings", json={"model_titles": wanted}, headers=headers)
    assert answer.status_code == 200, answer.text


def ask_what_is_refused(stack: Stack) -> None:
    """What comes with a chat's words in it and is turned away, by the web and by the engine."""
    key = {"Authorization": f"Bearer {stack.key(TEAM)}"}
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    nonsense = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "marmalade"}}}
    with httpx.Client(base_url=f"{stack.url}/v1", headers=key, timeout=60) as http:
        for body, status in (
            ({"messages": messages, "max_tokens": 4}, 200),
            ({"messages": messages, "temperature": "brouhaha"}, 400),
            ({"messages": [{"role": "brouhaha", "content": QUESTION}]}, 400),
            ({"messages": messages, "response_format": nonsense}, 400),
            ({"messages": [{"role": "user", "content": QUESTION * 1500}]}, 400),
            ({"messages": messages, "model": "brouhaha"}, 404),
        ):
            answer = http.post("/chat/completions", json={"model": "default", **body})
            assert answer.status_code == status, answer.text
        assert http.post("/chat/completions", content=QUESTION.encode()).status_code == 400
        assert http.get(f"/files/{QUESTION}").status_code == 404
        assert http.get("/models", headers={"Authorization": f"Bearer octv_{SYSTEM}"}).status_code == 401
