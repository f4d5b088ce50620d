"""Engines whose model has random weights, made on the device: no file, no tokenizer, no download.

Beside torch and triton the engine needs msgspec and structlog.
"""

from __future__ import annotations

import gc
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bench.gpu.counts import Shape
from bench.gpu.made import config_data, random_like

if TYPE_CHECKING:
    from engine import LLMEngine

NEEDED = ("msgspec", "structlog", "numpy")


class Missing(RuntimeError):
    """Something that the engine needs is not installed."""


def require() -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise Missing(f"the engine needs what is not installed here; pip install {' '.join(missing)}")


def make_engine(shape: Shape, device: torch.device, **settings: Any) -> LLMEngine:
    """An engine of a model of this shape in bfloat16; on a CPU in float32, but with recorded, overlapping steps too."""
    require()
    from engine import EngineConfig, LLMEngine
    from engine.models.config import parse_config
    from engine.models.llama import LlamaModel
    from engine.models.loader import LoadedModel
    from engine.runner import Runner

    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    config = parse_config(config_data(shape, settings["max_model_len"]), {}, "random weights")
    with torch.device("meta"):
        model = LlamaModel(config)
    weights = {}
    for name, parameter in model.named_parameters():
        # Products keep their size, so nothing overflows on its way through the layers; norms are one.
        scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.0
        weights[name] = random_like(tuple(parameter.shape), dtype, device, scale)
        if parameter.dim() == 1:
            weights[name].fill_(1.0)
    model.load_state_dict(weights, strict=False, assign=True)
    if shape.tied:
        model.lm_head.weight = model.embed_tokens
    model.rotary.to(device)
    model.eval().requires_grad_(False)
    engine_config = EngineConfig(device=device.type, overlap=True, **settings)
    loaded = LoadedModel(model, config, "0" * 32, Path(), dtype, device)
    record = None if device.type == "cuda" else _replayed
    engine = LLMEngine(engine_config, runner=Runner(loaded, engine_config, record=record))
    gc.collect()
    gc.freeze()  # as the worker does once it has loaded
    return engine


def _replayed(work: Any) -> Any:
    """In place of a CUDA graph: the same work again."""
    work()
    return work
