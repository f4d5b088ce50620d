"""What of a model decides its KV cache, read from config.json or from a GGUF file's header.

Four numbers are enough, so this works for every decoder, whether the engine runs it or not. Loads no torch, reads no
weights, converts nothing and asks no network.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.models.config import ModelError, read_config, read_json
from engine.models.refusals import refuse

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class KvShape:
    """`context`: the longest prompt and answer, in tokens."""

    layers: int
    kv_heads: int
    head_dim: int
    context: int

    def bytes_per_token(self, bytes_per_value: int, scale_bytes: int = 0) -> int:
        """Keys and values of all layers, each of them and of a head with a scale of so many bytes."""
        return 2 * self.layers * self.kv_heads * (self.head_dim * bytes_per_value + scale_bytes)


def read_shape(model: str) -> KvShape:
    """Of a model folder, a GGUF file, or a hub id that was downloaded before. ModelError, one line, otherwise."""
    path = Path(model).expanduser()
    if path.is_file():
        return _gguf_shape(path)
    if not path.exists() and HUB_ID.fullmatch(model) and not model.endswith(".gguf"):
        from huggingface_hub import try_to_load_from_cache

        downloaded = try_to_load_from_cache(model, "config.json")
        if not isinstance(downloaded, str):
            raise ModelError(f"{model} does not exist and was not downloaded before; name a folder or a .gguf file.")
        path = Path(downloaded).parent
    if not (path / "config.json").is_file():
        why = "it has no config.json" if path.is_dir() else "there is nothing of that name"
        raise ModelError(f"{model} is no model: {why}; name a model folder or a .gguf file.")
    data = read_json(path / "config.json")
    try:
        known = read_config(path)
    except ModelError:  # not for our own decoder; the numbers may be there all the same
        if data.get("model_type"):
            refuse(data, model)
        return _config_shape(data, model)
    return KvShape(known.num_layers, known.num_kv_heads, known.head_dim, known.max_position)


def _config_shape(data: Mapping[str, Any], name: str) -> KvShape:
    inner = data.get("text_config")  # models of several kinds of input keep the decoder's numbers there
    data = inner if isinstance(inner, dict) else data

    def number(*keys: str, default: int | None = None) -> int:
        value = next((data[key] for key in keys if data.get(key) is not None), default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelError(f"{name}: config.json has {keys[0]}={value!r}, where a positive whole number belongs.")
        return value

    heads = number("num_attention_heads", "n_head")
    return KvShape(
        layers=number("num_hidden_layers", "n_layer"),
        kv_heads=number("num_key_value_heads", default=heads),
        head_dim=number("head_dim") if data.get("head_dim") else number("hidden_size", "n_embd") // heads,
        context=number("max_position_embeddings", "n_positions"),
    )


def _gguf_shape(path: Path) -> KvShape:
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{path} is no model: it is neither a folder with config.json nor a GGUF file.")
    import gguf

    try:
        fields = gguf.GGUFReader(str(path)).fields
        architecture = fields["general.architecture"].contents()

        def number(name: str, default: int = 0) -> int:
            field = fields.get(f"{architecture}.{name}")
            value = default if field is None else field.contents()
            return int(max(value) if isinstance(value, list) else value)

        heads = number("attention.head_count")
        shape = KvShape(
            layers=number("block_count"),
            kv_heads=number("attention.head_count_kv", heads),
            head_dim=number("attention.key_length") or number("embedding_length") // heads,
            context=number("context_length"),
        )
    except Exception as error:  # the reader raises whatever a damaged header leads it to
        raise ModelError(f"{path} is a damaged GGUF file ({type(error).__name__}: {error}).") from None
    if min(shape.layers, shape.kv_heads, shape.head_dim, shape.context) < 1:
        raise ModelError(f"{path} does not say how many layers, heads and positions its model has ({shape}).")
    return shape
