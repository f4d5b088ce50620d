"""What a model looks like: its shape, rotary embedding and special tokens, read from a Hugging Face config.json.

Owns the translation from the file's many spellings to one frozen ModelConfig, and the refusal of what the native
decoder cannot compute exactly: an option that it does not know how to honour is an error, never ignored. Loads no
torch and no transformers, so a tool may ask about a model cheaply.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUPPORTED = ("llama", "qwen2")


class ModelError(Exception):
    """A model that cannot be used. The message is one line that says which, why, and what to do about it."""


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's frequency scaling: long wavelengths are divided by `factor`, a band in between is blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a Llama-like decoder. `max_position` is the longest context in tokens, prompt and answer.

    `rope_factors` is `rope_scaling` as finished numbers, one a frequency, where the source (GGUF) has only those.
    """

    model_type: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    rope_theta: float
    rope_scaling: RopeScaling | None
    rope_factors: tuple[float, ...] | None
    rms_eps: float
    tie_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    eos_token_ids: tuple[int, ...]

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Bytes that one token takes in the KV cache, all layers, K and V."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_value


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; ModelError when it is no JSON object."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error}); the model folder is damaged.") from None
    if not isinstance(data, dict):
        raise ModelError(f"{path} is not a JSON object; the model folder is damaged.")
    return data


def read_config(folder: Path) -> ModelConfig:
    """The ModelConfig of a folder with config.json (and generation_config.json, whose end tokens count as well)."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder} is not a model folder: it has no config.json.")
    generation = folder / "generation_config.json"
    return parse_config(read_json(path), read_json(generation) if generation.is_file() else {}, str(folder))


def parse_config(data: dict[str, Any], generation: dict[str, Any], name: str) -> ModelConfig:
    """Translate the contents of config.json; `name` says in errors which model is meant."""
    model_type = data.get("model_type")
    if model_type not in SUPPORTED:
        raise ModelError(
            f"{name} has model_type {model_type!r}, which this engine does not run; it runs {', '.join(SUPPORTED)}."
        )

    def number(key: str, default: int | None = None) -> int:
        value = data.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelError(f"{name}: config.json has {key}={value!r}, where a positive whole number belongs.")
        return value

    hidden_size, num_heads = number("hidden_size"), number("num_attention_heads")
    num_kv_heads = number("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ModelError(f"{name}: {num_heads} query heads do not divide among {num_kv_heads} KV heads.")
    if data.get("hidden_act", "silu") != "silu":
        raise ModelError(f"{name} uses the activation {data['hidden_act']!r}; this engine knows only silu.")
    if data.get("use_sliding_window") or "sliding_attention" in (data.get("layer_types") or ()):
        raise ModelError(f"{name} uses sliding-window attention, which this engine does not run yet.")
    theta, scaling = _rope(data, name)
    attention_bias = bool(data.get("attention_bias", False))
    is_qwen = model_type == "qwen2"
    return ModelConfig(
        model_type=model_type,
        num_layers=number("num_hidden_layers"),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=number("head_dim", hidden_size // num_heads),
        intermediate_size=number("intermediate_size"),
        vocab_size=number("vocab_size"),
        max_position=number("max_position_embeddings"),
        rope_theta=theta,
        rope_scaling=scaling,
        rope_factors=_factors(data, name),
        rms_eps=float(data.get("rms_norm_eps", 1e-6)),
        tie_embeddings=bool(data.get("tie_word_embeddings", False)),
        qkv_bias=is_qwen or attention_bias,
        output_bias=attention_bias and not is_qwen,
        mlp_bias=bool(data.get("mlp_bias", False)) and not is_qwen,
        eos_token_ids=_eos(data, generation),
    )


def _eos(data: dict[str, Any], generation: dict[str, Any]) -> tuple[int, ...]:
    found: list[int] = []
    for source in (generation, data):
        value = source.get("eos_token_id")
        found += value if isinstance(value, list) else [] if value is None else [value]
    return tuple(dict.fromkeys(int(token) for token in found))


def _rope(data: dict[str, Any], name: str) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before it)."""
    parameters = data.get("rope_parameters") or data.get("rope_scaling") or {}
    theta = parameters.get("rope_theta", data.get("rope_theta", 10000.0))
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    partial = parameters.get("partial_rotary_factor", data.get("partial_rotary_factor", 1.0))
    if partial not in (None, 1, 1.0):
        raise ModelError(f"{name} rotates only {partial} of each head, which this engine does not run yet.")
    if kind == "default":
        return float(theta), None
    if kind != "llama3":
        raise ModelError(f"{name} uses the rope scaling {kind!r}; this engine runs default and llama3.")
    try:
        return float(theta), RopeScaling(
            factor=float(parameters["factor"]),
            low_freq_factor=float(parameters["low_freq_factor"]),
            high_freq_factor=float(parameters["high_freq_factor"]),
            original_max_position=int(parameters["original_max_position_embeddings"]),
        )
    except KeyError as missing:
        raise ModelError(f"{name}: its llama3 rope scaling lacks {missing}; config.json is damaged.") from None


def _factors(data: dict[str, Any], name: str) -> tuple[float, ...] | None:
    values = data.get("octavo_rope_factors")
    if values is None:
        return None
    if not isinstance(values, list) or not all(isinstance(v, int | float) and v > 0 for v in values):
        raise ModelError(f"{name}: octavo_rope_factors in config.json is damaged; convert the model again.")
    return tuple(float(v) for v in values)


def inverse_frequencies(config: ModelConfig) -> list[float]:
    """The head_dim / 2 angular steps of the rotary embedding, in radians a position, scaled as the config says.

    Llama 3's scaling (as published with Llama 3.1): a frequency whose wavelength is beyond the low limit is divided
    by `factor`, one below the high limit stays, and between them the two are blended linearly.
    """
    base = [config.rope_theta ** (-2.0 * i / config.head_dim) for i in range(config.head_dim // 2)]
    if config.rope_factors is not None:
        return [frequency / factor for frequency, factor in zip(base, config.rope_factors, strict=True)]
    scaling = config.rope_scaling
    if scaling is None:
        return base
    scaled = []
    for frequency in base:
        turns = scaling.original_max_position * frequency / (2.0 * math.pi)
        blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        blend = min(1.0, max(0.0, blend))
        scaled.append(blend * frequency + (1.0 - blend) * frequency / scaling.factor)
    return scaled
