"""The engine: paged KV cache, continuous batching, salted prefix cache.

It knows neither Django nor Redis (only `bus` and `worker` speak Redis). Importing this package, `engine.protocol`
or `engine.plan` loads no torch: the names below are resolved on first use, so that web processes stay small.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.llm_engine import LLMEngine
    from engine.sampling_params import SamplingParams

__version__ = "0.2.0.dev0"
"""That of pyproject.toml."""
__all__ = ["EngineConfig", "LLMEngine", "SamplingParams"]

_HOME = {
    "EngineConfig": "engine.config",
    "LLMEngine": "engine.llm_engine",
    "SamplingParams": "engine.sampling_params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
