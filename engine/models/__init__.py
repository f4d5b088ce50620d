"""Model families, and how their weights are loaded.

`load(path, dtype, device)` is the one entry; everything a caller needs is exported here and resolved on first use,
so that importing this package loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.models.config import ModelConfig, ModelError
    from engine.models.loader import LoadedModel, load

__all__ = ["LoadedModel", "ModelConfig", "ModelError", "load"]

_HOME = {
    "LoadedModel": "engine.models.loader",
    "ModelConfig": "engine.models.config",
    "ModelError": "engine.models.config",
    "load": "engine.models.loader",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'engine.models' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
