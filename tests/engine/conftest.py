"""C8: every engine that a test made is audited when the test ends, whatever the test was about."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import torch

from engine import EngineConfig, LLMEngine
from tests.engine.tiny import make_tiny

torch.set_num_threads(1)


def audit(engine: LLMEngine) -> None:
    """End what still lives; then nothing may be referenced and every block must be accounted for."""
    engine.check_integrity()
    for request_id in list(engine._live):
        assert engine.abort(request_id)
    for name in list(engine.prompts.warming):
        engine.prompts.release(name)
    engine.check_integrity()
    assert not any(engine.pool.refs), "blocks are referenced although nothing lives"
    assert engine.pool.num_free + engine.pool.num_cached == engine.num_blocks
    engine._ended.clear()
    assert not engine.has_work()


@pytest.fixture(autouse=True)
def audited_engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[LLMEngine] = []
    start = LLMEngine.__init__

    def start_and_remember(self: LLMEngine, *arguments: Any, **keywords: Any) -> None:
        start(self, *arguments, **keywords)
        made.append(self)

    monkeypatch.setattr(LLMEngine, "__init__", start_and_remember)
    yield
    for engine in made:
        audit(engine)


@pytest.fixture(autouse=True)
def log_settings() -> Iterator[None]:
    """A command that sets up its own log does so for its process: here other tests share it."""
    settings, root = structlog.get_config(), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.configure(**settings)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def tiny_engine(tiny_path: Path) -> Callable[..., LLMEngine]:
    """Makes an engine over the tiny random model in float32; keywords are EngineConfig's."""

    def make(**settings: Any) -> LLMEngine:
        defaults = {"model": str(tiny_path), "dtype": "float32", "device": "cpu", "num_blocks": 256}
        return LLMEngine(EngineConfig(**{**defaults, **settings}))

    return make
