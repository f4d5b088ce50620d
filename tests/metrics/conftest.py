"""The team, server and worker of the tests of the chat; samples of a scrape; and Prometheus's own checker."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from tests.chat.conftest import record, server, strangers, team, worker
from tests.conftest import ROOT

__all__ = ["record", "server", "strangers", "team", "worker"]

TOKEN = "a token for the tests of 32 characters"


def samples(text: str) -> dict[str, float]:
    """By name and labels, as `name{a=b,c=d}`."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            shown = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{shown}}}" if shown else sample.name] = sample.value
    return found


class Scraper:
    """Reads /metrics, and says by how much a sample has grown since it was made."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._before = self.read()

    def text(self) -> str:
        reply = self._client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        assert reply.status_code == 200
        return reply.content.decode()

    def read(self) -> dict[str, float]:
        return samples(self.text())

    def grown(self, sample: str) -> float:
        return self.read().get(sample, 0.0) - self._before.get(sample, 0.0)


@pytest.fixture
def scraper(settings: Any, server: Any, db: None) -> Scraper:
    settings.OCTAVO_METRICS_TOKEN = TOKEN
    return Scraper(Client())


class Promtool:
    def __init__(self, path: str) -> None:
        self._path = path

    def run(self, *arguments: str | Path, given: str = "") -> str:
        """What it says; an AssertionError with that where it is not content."""
        done = subprocess.run([self._path, *map(str, arguments)], input=given, capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        return said


def program(name: str) -> str:
    path = shutil.which(name) or shutil.which(str(ROOT / ".cache" / name))
    if path is None:
        assert os.environ.get("CI") != "true", f"set-up fetched no {name}"
        pytest.skip(f"{name} is not installed: as root on Debian, make setup-dev fetches it")
    return path


@pytest.fixture(scope="session")
def promtool() -> Promtool:
    return Promtool(program("promtool"))
