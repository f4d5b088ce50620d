"""Two models served at once by two real workers, as OCTAVO_MODELS has `make run` start them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.stack import Stack, started, wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, model_path: str) -> Iterator[Stack]:
    names = f"small={model_path},large={model_path}"
    yield from started(tmp_path_factory.mktemp("two models"), model_path, OCTAVO_MODELS=names)


def ask(stack: Stack, model: str | None) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "model": model}
    headers = {"Authorization": f"Bearer {stack.key()}"}
    return httpx.post(f"{stack.url}/v1/chat/completions", json=body, headers=headers, timeout=60)


def test_each_model_is_answered_by_its_own_worker(stack: Stack) -> None:
    assert {worker.model for worker in wait_for(stack.workers)} == {"small", "large"}
    assert len({worker.pid for worker in stack.workers()}) == 2
    assert "Models: small, large" in stack.said()
    assert httpx.get(f"{stack.url}/readyz").json() == {"status": "ok", "missing": []}
    for wanted, got in ((None, "small"), ("large", "large"), ("small", "small"), ("default", "small")):
        reply = ask(stack, wanted)
        assert (reply.status_code, reply.json()["model"]) == (200, got), reply.text
        assert reply.json()["choices"][0]["message"]["content"]
    assert ask(stack, "gpt-9").json()["error"]["code"] == "model_not_found"
    listed = httpx.get(f"{stack.url}/v1/models", headers={"Authorization": f"Bearer {stack.key()}"}).json()["data"]
    assert [(model["id"], model["available"]) for model in listed[:2]] == [("small", True), ("large", True)]
    assert [model["id"] for model in listed[2:]] == ["assistant:assistant"]
    for name in ("small", "large"):
        assert stack.log(f"engine-{name}")


def test_without_one_of_its_workers_the_site_stays_up_and_the_other_model_answers(stack: Stack) -> None:
    import psutil

    def engine(name: str) -> psutil.Process:
        for process in psutil.Process(stack.process.pid).children(recursive=True):
            line = process.cmdline()
            if "engine.worker" in line and name in line and "ops.child" not in line:
                return process
        raise AssertionError(f"no engine of {name}")

    victim = engine("large")
    victim.suspend()
    try:
        wait_for(lambda: httpx.get(f"{stack.url}/readyz").json()["missing"] == ["worker:large"], 30)
        assert httpx.get(f"{stack.url}/readyz").status_code == 200
        assert ask(stack, "small").status_code == 200
    finally:
        victim.kill()
    wait_for(lambda: httpx.get(f"{stack.url}/readyz").json()["missing"] == [], 90)
    assert ask(stack, "large").status_code == 200
