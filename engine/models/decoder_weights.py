"""A model folder's weights for the C++ decoder, in the form that is asked for.

Owns the way from Hugging Face names to the decoder's layers, and which matrix gets which form:

- auto: what the file itself has in 4 or 8 bits (engine.models.low_bit) as it is, all else in bf16;
- bf16: all in bf16;
- int8: all in 8 bits, or as the file has it where that is in 8 or fewer;
- int4: the same with 4 bits, but for q, k, v, the head and a tied embedding, which are the smaller part of a model and
  the greater part of what 4 bits cost (docs/LOG.md): they get 8.

Knows no KV cache and no batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.models.config import ModelConfig
from kernels.cpu.decoder import DecoderWeights, LayerWeights
from kernels.cpu.packing import F32, U16, Tiles, pack, pack_bf16, stack
from kernels.cpu.quantising import quantise_4, quantise_8

REPORT_EVERY_S = 5.0


def decoder_weights(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    tiles: Mapping[str, Tiles],
    form: str = "auto",
    report: Callable[[str], None] = lambda done: None,
) -> DecoderWeights:
    """Everything the C++ decoder needs. tensors: by Hugging Face name; tiles: what the file has in low bits.

    form: one of engine.config.WEIGHTS. Layers are made one by one as they are taken, so that a model is not held twice;
    `report` hears how far that is ("40 %") every few seconds. The caller has checked that the model is one the decoder
    can run: `kernels.cpu.decoder.supports`, no bias but that of q, k and v, no window.
    """
    body = Matrices(tensors, tiles, form)
    sensitive = Matrices(tensors, tiles, "int8" if form == "int4" else form)

    def layer(index: int) -> LayerWeights:
        prefix = f"model.layers.{index}."
        parts = [f"{prefix}self_attn.{part}_proj" for part in ("q", "k", "v")]
        norm_mlp = _vector(tensors[f"{prefix}post_attention_layernorm.weight"])
        # What a norm gives is about as large as its weights, so that is how much an error in gate and up costs.
        gate, up = body.alike([f"{prefix}mlp.gate_proj.weight", f"{prefix}mlp.up_proj.weight"], norm_mlp**2)
        return LayerWeights(
            qkv=stack(sensitive.alike([f"{part}.weight" for part in parts])),
            out=body.one(f"{prefix}self_attn.o_proj.weight"),
            gate=gate,
            up=up,
            down=body.one(f"{prefix}mlp.down_proj.weight"),
            norm_attention=_vector(tensors[f"{prefix}input_layernorm.weight"]),
            norm_mlp=norm_mlp,
            qkv_bias=np.concatenate([_vector(tensors[f"{part}.bias"]) for part in parts]) if config.qkv_bias else None,
            norm_query=_vector(tensors[f"{prefix}self_attn.q_norm.weight"]) if config.qk_norm else None,
            norm_key=_vector(tensors[f"{prefix}self_attn.k_norm.weight"]) if config.qk_norm else None,
            rotated=config.rotated[index],
        )

    def layers() -> Iterator[LayerWeights]:
        told = time.monotonic()
        for index in range(config.num_layers):
            if time.monotonic() - told > REPORT_EVERY_S:
                told = time.monotonic()
                report(f"{100 * index // config.num_layers} %")
            yield layer(index)

    embedding = "model.embed_tokens.weight"
    frequencies = config.rope.inverse_frequencies(config.head_dim)
    angles = np.outer(np.arange(config.max_position), frequencies).astype(np.float32)
    return DecoderWeights(
        layers=layers(),
        head=sensitive.one(embedding if config.tie_embeddings else "lm_head.weight"),
        norm_final=_vector(tensors["model.norm.weight"]),
        embedding=None if config.tie_embeddings else _bf16(tensors[embedding]),
        cosine=np.cos(angles) * np.float32(config.rope.attention_factor),
        sine=np.sin(angles) * np.float32(config.rope.attention_factor),
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        eps=config.rms_eps,
        scale=config.head_dim**-0.5,
    )


class Matrices:
    """A model's matrices as tiles of one form."""

    def __init__(self, tensors: Mapping[str, Tensor], tiles: Mapping[str, Tiles], form: str) -> None:
        self._tensors, self._tiles, self._form = tensors, tiles, form

    def one(self, name: str) -> Tiles:
        return self.alike([name])[0]

    def alike(self, names: Sequence[str], importance: F32 | None = None) -> list[Tiles]:
        """Matrices that become parts of one: all of them low-bit, or all bf16. importance: see quantise_4."""
        if self._form == "auto" and all(name in self._tiles for name in names):
            return [self._tiles[name] for name in names]
        if self._form in ("auto", "bf16"):
            return [pack_bf16(_bf16(self._tensors[name])) for name in names]
        return [self._low_bit(name, importance) for name in names]

    def _low_bit(self, name: str, importance: F32 | None) -> Tiles:
        bits = 4 if self._form == "int4" else 8
        own = self._tiles.get(name)
        if own is not None and own.bits <= bits:
            return own
        weight = self._tensors[name].float().numpy()
        return pack(quantise_4(weight, importance) if bits == 4 else quantise_8(weight))


def _vector(tensor: Tensor) -> F32:
    return np.ascontiguousarray(tensor.float().numpy())


def _bf16(tensor: Tensor) -> U16:
    return np.ascontiguousarray(tensor.bfloat16().view(torch.int16).numpy().view(np.uint16))
