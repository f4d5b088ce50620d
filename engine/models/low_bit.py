"""Weights for the C++ decoder: a model folder as tiles of 4 and 8 bits.

A folder converted from a GGUF file keeps that file's own low-bit weights in `tiles.safetensors`, packed without loss
and read in a fraction of a second; any other folder is quantised to 8 bits when it is loaded. Owns that file's format
and the way from Hugging Face names to the decoder's layers; knows no KV cache and no batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from engine.models.config import ModelConfig
from kernels.cpu.decoder import DecoderWeights, LayerWeights
from kernels.cpu.packing import GROUP, Quantised, Tiles, pack, stack
from kernels.cpu.quantising import quantise_8

TILES = "tiles.safetensors"
F32 = np.ndarray


def from_blocks(data: np.ndarray, kind: str) -> Quantised | None:
    """The weights in a GGUF tensor's blocks of 32, exactly; None for a type that is not scale * q + minimum.

    data: uint8 [outputs, bytes of a row]. Q4_0 and Q4_1: fp16 scale (and fp16 minimum), then 16 bytes whose low
    nibbles are inputs 0..15 and whose high ones are 16..31. Q8_0: fp16 scale, then 32 int8.
    """
    size = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}.get(kind)
    if size is None:
        return None
    blocks = np.ascontiguousarray(data).reshape(data.shape[0], -1, size)
    scale = blocks[:, :, :2].copy().view(np.float16)[:, :, 0]
    if kind == "Q8_0":
        q = (blocks[:, :, 2:].view(np.int8).astype(np.int16) + 128).astype(np.uint8)
        return Quantised(q.reshape(len(data), -1), scale, scale * np.float16(-128), 8)
    minimum = scale * np.float16(-8) if kind == "Q4_0" else blocks[:, :, 2:4].copy().view(np.float16)[:, :, 0]
    nibbles = blocks[:, :, size - 16 :]
    q = np.concatenate([nibbles & 15, nibbles >> 4], axis=2)
    return Quantised(q.reshape(len(data), -1), scale, minimum, 4)


def save_tiles(matrices: Iterator[tuple[str, Quantised]], folder: Path) -> None:
    packed = {name: pack(matrix) for name, matrix in matrices}
    outputs = json.dumps({name: tiles.outputs for name, tiles in packed.items()})
    save_file({name: tiles.data for name, tiles in packed.items()}, folder / TILES, metadata={"outputs": outputs})
    (folder / TILES).chmod(0o644)


def load_tiles(folder: Path) -> dict[str, Tiles]:
    """What save_tiles wrote, by Hugging Face name; empty where the folder has no such file."""
    if not (folder / TILES).is_file():
        return {}
    with safe_open(str(folder / TILES), framework="numpy") as file:
        outputs = json.loads(file.metadata()["outputs"])
        return {name: Tiles(file.get_tensor(name), outputs[name]) for name in file.keys()}  # noqa: SIM118


def decoder_weights(config: ModelConfig, tensors: Mapping[str, Any], tiles: Mapping[str, Tiles]) -> DecoderWeights:
    """Everything the C++ decoder needs. tensors: Hugging Face name -> torch tensor; tiles: what need not be quantised.

    The caller has checked that the model is one the decoder can run: `kernels.cpu.decoder.supports`, no bias but
    that of q, k and v, every layer rotated, no window.
    """

    def vector(name: str) -> F32:
        return np.ascontiguousarray(tensors[name].float().numpy())

    def matrix(name: str) -> Tiles:
        return tiles[name] if name in tiles else pack(quantise_8(tensors[name].float().numpy()))

    def layer(index: int) -> LayerWeights:
        prefix = f"model.layers.{index}."
        parts = [f"{prefix}self_attn.{part}_proj" for part in ("q", "k", "v")]
        return LayerWeights(
            qkv=stack([matrix(f"{part}.weight") for part in parts]),
            out=matrix(f"{prefix}self_attn.o_proj.weight"),
            gate=matrix(f"{prefix}mlp.gate_proj.weight"),
            up=matrix(f"{prefix}mlp.up_proj.weight"),
            down=matrix(f"{prefix}mlp.down_proj.weight"),
            norm_attention=vector(f"{prefix}input_layernorm.weight"),
            norm_mlp=vector(f"{prefix}post_attention_layernorm.weight"),
            qkv_bias=np.concatenate([vector(f"{part}.bias") for part in parts]) if config.qkv_bias else None,
            norm_query=vector(f"{prefix}self_attn.q_norm.weight") if config.qk_norm else None,
            norm_key=vector(f"{prefix}self_attn.k_norm.weight") if config.qk_norm else None,
        )

    embedding = tensors["model.embed_tokens.weight"]
    head = "model.embed_tokens.weight" if config.tie_embeddings else "lm_head.weight"
    frequencies = config.rope.inverse_frequencies(config.head_dim)
    angles = np.outer(np.arange(config.max_position), frequencies).astype(np.float32)
    return DecoderWeights(
        layers=[layer(index) for index in range(config.num_layers)],
        head=matrix(head),
        norm_final=vector("model.norm.weight"),
        embedding=np.ascontiguousarray(embedding.bfloat16().view(_int16()).numpy().view(np.uint16)),
        cosine=np.cos(angles) * np.float32(config.rope.attention_factor),
        sine=np.sin(angles) * np.float32(config.rope.attention_factor),
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        eps=config.rms_eps,
        scale=config.head_dim**-0.5,
    )


def _int16() -> Any:
    import torch

    return torch.int16


assert GROUP == 32, "from_blocks reads GGUF's groups of 32 as the decoder's"
