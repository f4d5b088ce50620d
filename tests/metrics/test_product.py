"""The running product's /metrics: all that alerts and charts ask for is there, well-formed, and says what happened."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest
from websockets.sync.client import connect

from tests.conftest import ROOT
from tests.metrics.conftest import Promtool, samples
from tests.metrics.test_deploy import names
from tests.stack import Stack, wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
TYPE = re.compile(r"^# TYPE (octavo_\w+) ", re.MULTILINE)
WORDS = "Tell me of the quokka in one line."


def read(url: str, token: str) -> str:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        return str(reply.read().decode())


def ask(stack: Stack, text: str) -> str:
    body = {"model": "default", "max_tokens": 12, "messages": [{"role": "user", "content": text}]}
    request = urllib.request.Request(
        f"{stack.url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {stack.key()}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return str(json.load(reply)["choices"][0]["message"]["content"])


def test_all_that_alerts_and_charts_ask_for_is_said_by_the_running_product(stack: Stack, promtool: Promtool) -> None:
    token = (stack.data / "metrics_token").read_text().strip()
    targets = json.loads(read(f"{stack.url}/metrics/targets", token))
    assert len(targets) == 1
    worker_url = f"http://{targets[0]['targets'][0]}/metrics"
    before, before_worker = samples(read(f"{stack.url}/metrics", token)), samples(read(worker_url, token))
    answer = ask(stack, WORDS)
    with connect(f"{stack.ws_url}/ws/v1", additional_headers={"Authorization": f"Bearer {stack.key()}"}) as socket:
        socket.recv(timeout=10)
        assert samples(read(f"{stack.url}/metrics", token))["octavo_websocket_connections{socket=api}"] >= 1

    def recorded() -> bool:
        now = samples(read(f"{stack.url}/metrics", token))
        name = "octavo_recorded_total{status=finished}"
        told = str([*now])
        ended = "octavo_websocket_connections_closed_total{" in told
        return now.get(name, 0) > before.get(name, 0) and "octavo_celery_tasks_total{" in told and ended

    wait_for(recorded)
    web, worker = read(f"{stack.url}/metrics", token), read(worker_url, token)
    for text in (web, worker):
        promtool.run("check", "metrics", given=text)
        hidden = [WORDS, "quokka", answer, stack.key(), *(tenant["slug"] for tenant in stack.demo["tenants"])]
        assert not [word for word in hidden if word in text]
    said = {name.partition("{")[0] for name in (*samples(web), *samples(worker))}
    assert not names() - said, "asked for, and never said"
    families = set(TYPE.findall(web + worker))
    described = set(re.findall(r"`(octavo_[a-z0-9_]+)`", (ROOT / "docs" / "metrics.md").read_text()))
    assert described - {"octavo_tenant_service"} == families, "docs/metrics.md says what there is"

    model = targets[0]["labels"]["__meta_octavo_model"]
    after = samples(worker)
    for name in (
        "octavo_time_to_first_token_seconds_count",
        "octavo_request_queue_time_seconds_count",
        "octavo_e2e_request_latency_seconds_count",
    ):
        assert after[f"{name}{{model_name={model}}}"] > before_worker[f"{name}{{model_name={model}}}"], name
    tokens = f"octavo_generation_tokens_total{{model_name={model}}}"
    assert after[tokens] >= before_worker[tokens] + 12
    assert samples(web)[f"octavo_workers{{model_name={model},state=healthy}}"] == 1
