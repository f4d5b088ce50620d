"""The running product's /metrics: all that alerts and charts ask for is there, well-formed, and says what happened."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.conftest import ROOT
from tests.metrics.conftest import Promtool, program, samples
from tests.metrics.test_deploy import PROMETHEUS, charts, names
from tests.stack import Stack, free_port, wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
TYPE = re.compile(r"^# TYPE (octavo_\w+) ", re.MULTILINE)
WORDS = "Tell me of the quokka in one line."


def read(url: str, token: str) -> str:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        return str(reply.read().decode())


def ask(stack: Stack, text: str) -> str:
    body = {"model": "default", "max_tokens": 12, "ignore_eos": True, "messages": [{"role": "user", "content": text}]}
    request = urllib.request.Request(
        f"{stack.url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {stack.key()}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return str(json.load(reply)["choices"][0]["message"]["content"])


@pytest.fixture
def prometheus(stack: Stack, tmp_path: Path) -> Iterator[str]:
    """Prometheus itself, with the configuration in deploy/ and the addresses of this product; where it is."""
    for file in PROMETHEUS.iterdir():
        text = (
            file.read_text()
            .replace("127.0.0.1:8000", f"127.0.0.1:{stack.port}")
            .replace("interval: 15s", "interval: 1s")
        )
        (tmp_path / file.name).write_text(text)
    (tmp_path / "metrics_token").write_text((stack.data / "metrics_token").read_text())
    port = free_port()
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={tmp_path / 'prometheus.yml'}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    yield f"http://127.0.0.1:{port}/api/v1"
    process.kill()
    process.wait()


def told(api: str, path: str) -> Any:
    try:
        with urllib.request.urlopen(f"{api}/{path}", timeout=10) as reply:
            return json.load(reply)["data"]
    except urllib.error.URLError:  # it is still starting
        return {}


def test_prometheus_finds_web_and_worker_and_every_chart_shows_something(stack: Stack, prometheus: str) -> None:
    """Nothing else shows that tokens and addresses of the configuration are what Prometheus takes them for."""

    def both() -> bool:
        """Prometheus reads the web and the worker."""
        targets = told(prometheus, "targets").get("activeTargets", [])
        return {(target["labels"]["job"], target["health"]) for target in targets} == {
            ("octavo-web", "up"),
            ("octavo-worker", "up"),
        }

    wait_for(both, 60)

    def empty() -> list[str]:
        found = []
        for chart in charts():
            exprs = [target["expr"].replace("$__rate_interval", "1m") for target in chart["targets"]]
            asked = [urllib.parse.urlencode({"query": expr.replace("$model", ".*")}) for expr in exprs]
            if not any(told(prometheus, f"query?{query}")["result"] for query in asked):
                found.append(chart["title"])
        return found

    ask(stack, WORDS)
    # What speaks of faults, or of sockets that end, has nothing to show where there were none.
    wait_for(lambda: set(empty()) <= {"Alerts", "Sockets that end"}, 30)
    spoken = [alert["labels"] for alert in told(prometheus, "alerts")["alerts"] if alert["state"] == "firing"]
    assert [labels["alertname"] for labels in spoken if labels["severity"] == "page"] == []
    rules = told(prometheus, "rules")["groups"][0]["rules"]
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []


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
        name = next((one for one in now if one.startswith("octavo_recorded_total{") and "status=finished" in one), "")
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
