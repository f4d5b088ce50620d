"""What a model looks like: its shape, rotary embedding and special tokens, read from a Hugging Face config.json.

Owns the translation from the file's many spellings to one frozen ModelConfig, and says what the native decoder cannot
compute exactly: an option that it does not know how to honour is a NotNative error, never ignored. Loads no torch and
no transformers, so a tool may ask about a model cheaply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.models.errors import ModelError, NotNative
from engine.models.refusals import refuse
from engine.models.rope import Llama3Scaling, Rope, YarnScaling, yarn_attention_factor

__all__ = ["SUPPORTED", "ModelConfig", "ModelError", "ModelShape", "NotNative", "parse_config", "read_config"]

# What each family's config.json means where it says nothing, as far as the families differ.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {},
    "qwen3": {"head_dim": 128},
    "smollm3": {"num_key_value_heads": 4, "rope_theta": 2e6, "tie_word_embeddings": True},
}
SUPPORTED = tuple(_DEFAULTS)


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What the engine around a model must know of it.

    max_position: the longest context in tokens, prompt and answer. windows: for each layer, how many tokens back one
    sees, itself included; None: all.
    """

    model_type: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    eos_token_ids: tuple[int, ...]
    windows: tuple[int | None, ...]

    def kv_bytes_per_token(self, bytes_per_value: int, scale_bytes: int = 0) -> int:
        """Bytes that one token takes in the KV cache, all layers, K and V, each of them and of a head with a scale."""
        return 2 * self.num_layers * self.num_kv_heads * (self.head_dim * bytes_per_value + scale_bytes)

    @property
    def window(self) -> int | None:
        """The tokens beyond which no layer looks back; None when some layer sees all."""
        seen = [window for window in self.windows if window is not None]
        return max(seen) if len(seen) == self.num_layers else None


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ModelShape):
    """A Llama-like decoder. `rotated`: for each layer, whether it has a rotary embedding (SmolLM3 leaves some without).

    `qk_norm`: each head of q and k is normalised before it is rotated.
    """

    hidden_size: int
    num_heads: int
    intermediate_size: int
    rope: Rope
    rotated: tuple[bool, ...]
    rms_eps: float
    tie_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool


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
    """The ModelConfig of a folder with config.json (and generation_config.json, whose end tokens count as well).

    NotNative where the native decoder does not cover the model, ModelError where nothing does.
    """
    return parse_config(*read_files(folder), str(folder))


def read_files(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The contents of config.json and of generation_config.json, which may be missing."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder} is not a model folder: it has no config.json.")
    generation = folder / "generation_config.json"
    return read_json(path), read_json(generation) if generation.is_file() else {}


def parse_config(data: dict[str, Any], generation: dict[str, Any], name: str) -> ModelConfig:
    """Translate the contents of config.json; `name` says in errors which model is meant."""
    refuse(data, name)
    model_type = data["model_type"]
    if model_type not in SUPPORTED:
        raise NotNative(f"the native decoder runs {', '.join(SUPPORTED)}, not {model_type}")
    data = {**_DEFAULTS[model_type], **data}

    def number(key: str, default: int | None = None) -> int:
        value = data.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelError(f"{name}: config.json has {key}={value!r}, where a positive whole number belongs.")
        return value

    hidden_size, num_heads = number("hidden_size"), number("num_attention_heads")
    num_layers, num_kv_heads = number("num_hidden_layers"), number("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ModelError(f"{name}: {num_heads} query heads do not divide among {num_kv_heads} KV heads.")
    if data.get("hidden_act", "silu") != "silu":
        raise NotNative(f"the model's activation is {data['hidden_act']}, and the native decoder knows only silu")
    rope, max_position = _rope(data, number("max_position_embeddings"), name)
    rotated = _rotated(data, num_layers)
    attention_bias = bool(data.get("attention_bias", False)) and model_type != "mistral"
    return ModelConfig(
        model_type=model_type,
        num_layers=num_layers,
        num_kv_heads=num_kv_heads,
        head_dim=number("head_dim", hidden_size // num_heads),
        vocab_size=number("vocab_size"),
        max_position=max_position,
        eos_token_ids=eos_token_ids(data, generation),
        windows=_windows(data, rotated, max_position),
        hidden_size=hidden_size,
        num_heads=num_heads,
        intermediate_size=number("intermediate_size"),
        rope=rope,
        rotated=rotated,
        rms_eps=float(data.get("rms_norm_eps", 1e-6)),
        tie_embeddings=bool(data.get("tie_word_embeddings", False)),
        qkv_bias=model_type == "qwen2" or attention_bias,
        output_bias=attention_bias and model_type != "qwen2",
        mlp_bias=bool(data.get("mlp_bias", False)) and model_type in ("llama", "smollm3"),
        qk_norm=model_type == "qwen3",
    )


def eos_token_ids(data: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokens that end an answer, of config.json and generation_config.json together."""
    found: list[int] = []
    for source in (generation, data):
        value = source.get("eos_token_id")
        found += value if isinstance(value, list) else [] if value is None else [value]
    return tuple(dict.fromkeys(int(token) for token in found))


def _rotated(data: dict[str, Any], num_layers: int) -> tuple[bool, ...]:
    if data["model_type"] != "smollm3":
        return (True,) * num_layers
    given = data.get("no_rope_layers")  # despite its name, 1 stands for a layer with the embedding
    if given is None:
        interval = int(data.get("no_rope_layer_interval", 4))
        return tuple((i + 1) % interval != 0 for i in range(num_layers))
    if len(given) != num_layers:
        raise NotNative(f"the model's no_rope_layers has {len(given)} entries for {num_layers} layers")
    return tuple(bool(value) for value in given)


def _windows(data: dict[str, Any], rotated: tuple[bool, ...], max_position: int) -> tuple[int | None, ...]:
    model_type, kinds, layers = data["model_type"], data.get("layer_types"), range(len(rotated))
    switched_on = bool(data.get("use_sliding_window"))
    if model_type == "llama" and switched_on:
        raise NotNative("the model is a llama with use_sliding_window, which that family does not have")
    window = data.get("sliding_window") if switched_on or model_type == "mistral" else None
    if window is None or model_type == "mistral":
        slides = [window is not None for _ in layers]
    elif kinds is not None:
        slides = [kind == "sliding_attention" for kind in kinds]
    elif model_type == "smollm3":
        slides = [not turned for turned in rotated]
    else:
        slides = [i >= data.get("max_window_layers", 28) for i in layers]
    if len(slides) != len(rotated) or (kinds and [kind == "sliding_attention" for kind in kinds] != slides):
        raise NotNative(f"the model's layer_types {kinds} do not fit the rest of its config.json")
    if window is None or window >= max_position:
        return tuple(None for _ in layers)
    return tuple(window if slide else None for slide in slides)


def _rope(data: dict[str, Any], max_position: int, name: str) -> tuple[Rope, int]:
    """The rotary embedding and the longest context, which YaRN may stretch.

    From `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before it).
    """
    parameters = data.get("rope_parameters") or data.get("rope_scaling") or {}
    theta = float(parameters.get("rope_theta", data.get("rope_theta", 10000.0)))
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    partial = parameters.get("partial_rotary_factor", data.get("partial_rotary_factor", 1.0))
    if partial not in (None, 1, 1.0):
        raise NotNative(f"the model rotates only {partial} of each head, the native decoder whole ones")
    if kind == "default":
        return Rope(theta, factors=_factors(data, name)), max_position
    if kind not in ("llama3", "yarn"):
        raise NotNative(f"the model has the rope scaling {kind!r}, and the native decoder knows llama3 and yarn")
    original = data.get("original_max_position_embeddings") or parameters.get("original_max_position_embeddings")
    try:
        if kind == "llama3":
            scaling = Llama3Scaling(
                factor=float(parameters["factor"]),
                low_freq_factor=float(parameters["low_freq_factor"]),
                high_freq_factor=float(parameters["high_freq_factor"]),
                original_max_position=int(original or max_position),
            )
            return Rope(theta, scaling), max_position
        factor, original = float(parameters["factor"]), int(original or max_position)
    except KeyError as missing:
        raise ModelError(f"{name}: its {kind} rope scaling lacks {missing}; config.json is damaged.") from None
    given = parameters.get("attention_factor")
    inferred = yarn_attention_factor(factor, parameters.get("mscale"), parameters.get("mscale_all_dim"))
    yarn = YarnScaling(
        factor=factor,
        beta_fast=float(parameters.get("beta_fast") or 32),
        beta_slow=float(parameters.get("beta_slow") or 1),
        original_max_position=original,
        truncate=bool(parameters.get("truncate", True)),
        attention_factor=inferred if given is None else float(given),
    )
    # Some configs say the stretched context, others the trained one.
    return Rope(theta, yarn), max(max_position, int(factor * original))


def _factors(data: dict[str, Any], name: str) -> tuple[float, ...] | None:
    values = data.get("octavo_rope_factors")
    if values is None:
        return None
    if not isinstance(values, list) or not all(isinstance(v, int | float) and v > 0 for v in values):
        raise ModelError(f"{name}: octavo_rope_factors in config.json is damaged; convert the model again.")
    return tuple(float(v) for v in values)
