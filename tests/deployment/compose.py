"""docker-compose.yml as Compose reads it: anchors merged, variables filled in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import ROOT

FILE = ROOT / "docker-compose.yml"
VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>\w+)(?:(?P<kind>:?[-?])(?P<rest>[^}]*))?\})")


def filled(text: str, env: dict[str, str]) -> str:
    """${A}, ${A:-usual}, ${A:?why} and $$, of which the last is a dollar."""

    def value(found: re.Match[str]) -> str:
        name, kind, rest = found["name"], found["kind"] or "", found["rest"] or ""
        if name is None:
            return "$"
        held = env.get(name, "")
        assert held or not kind.endswith("?"), f"{name} is needed: {rest}"
        return held or (rest if kind.endswith("-") else "")

    return VARIABLE.sub(value, text)


def read(env: dict[str, str]) -> dict[str, Any]:
    def walk(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: walk(value) for key, value in node.items()}
        if isinstance(node, list):
            return [walk(value) for value in node]
        return filled(node, env) if isinstance(node, str) else node

    return dict(walk(yaml.safe_load(FILE.read_text())))


def env_file(path: Path) -> dict[str, str]:
    lines = (line.strip() for line in path.read_text().splitlines())
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


NEEDED = {"OCTAVO_HOSTS": "chat.example.org", "OCTAVO_MODEL": "/models/m"}
