"""The native decoder of the Llama family: fused projections, rotary embedding, paged attention, one flat row of tokens.

Knows shapes and weights; not sequences, schedules or sampling. Nothing of transformers is in the forward pass. The
weights of q, k and v are one matrix, those of gate and up another: fewer and larger products, which is what counts
when a step is bound by reading weights.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  torch's own usual name
from torch import Tensor, nn

from engine.models.config import ModelConfig
from engine.models.linear import Linear
from kernels.api import (
    AttentionMetadata,
    CacheLayer,
    KVCache,
    add_rms_norm,
    paged_attention,
    rope_write_kv,
    silu_mul,
    warm_up,
)

Rotation = tuple[Tensor, Tensor]
"""Cosine and sine for the tokens of a step, float32 [T, head_dim / 2] each."""


class Rotary(nn.Module):
    """Cosine and sine of every position up to the model's longest context, float32 [positions, head_dim / 2]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        # On the CPU even where the rest is laid out on "meta": arange there imports torch's compiler, for 1.3 s.
        frequencies = torch.tensor(config.rope.inverse_frequencies(config.head_dim), dtype=torch.float32, device="cpu")
        positions = torch.arange(config.max_position, dtype=torch.float32, device="cpu")
        angles = torch.outer(positions, frequencies)
        self.register_buffer("cos", angles.cos() * config.rope.attention_factor, persistent=False)
        self.register_buffer("sin", angles.sin() * config.rope.attention_factor, persistent=False)

    def forward(self, positions: Tensor) -> Rotation:
        """The rows for positions [T]."""
        return self.get_buffer("cos")[positions], self.get_buffer("sin")[positions]


class Attention(nn.Module):
    def __init__(self, config: ModelConfig, index: int, output_linear: Callable[..., Linear]) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        rows = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        self.qkv_proj = Linear(config.hidden_size, rows, bias=config.qkv_bias)
        self.o_proj = output_linear(config.num_heads * config.head_dim, config.hidden_size, bias=config.output_bias)
        self.scale = config.head_dim**-0.5
        self.rotated, self.window = config.rotated[index], config.windows[index]
        self.q_norm = nn.Parameter(torch.empty(config.head_dim)) if config.qk_norm else None
        self.k_norm = nn.Parameter(torch.empty(config.head_dim)) if config.qk_norm else None
        self.eps = config.rms_eps

    def forward(self, x: Tensor, rotation: Rotation, layer: CacheLayer, meta: AttentionMetadata) -> Tensor:
        heads, kv_heads = self.num_heads, self.num_kv_heads
        qkv = self.qkv_proj(x).view(x.shape[0], heads + 2 * kv_heads, self.head_dim)
        norms = None if self.q_norm is None or self.k_norm is None else (self.q_norm, self.k_norm)
        q = rope_write_kv(
            qkv, rotation if self.rotated else None, layer, meta.slot_mapping, heads, norms=norms, eps=self.eps
        )
        out = paged_attention(q, layer, meta, self.scale, window=self.window)
        return self.o_proj(out.view(x.shape[0], heads * self.head_dim))


class MLP(nn.Module):
    def __init__(self, config: ModelConfig, output_linear: Callable[..., Linear]) -> None:
        super().__init__()
        self.gate_up_proj = Linear(config.hidden_size, 2 * config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = output_linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu_mul(self.gate_up_proj(x)))


class Block(nn.Module):
    def __init__(self, config: ModelConfig, index: int, output_linear: Callable[..., Linear]) -> None:
        super().__init__()
        self.input_layernorm = nn.Parameter(torch.empty(config.hidden_size))
        self.self_attn = Attention(config, index, output_linear)
        self.post_attention_layernorm = nn.Parameter(torch.empty(config.hidden_size))
        self.mlp = MLP(config, output_linear)
        self.eps = config.rms_eps

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        rotation: Rotation,
        layer: CacheLayer,
        meta: AttentionMetadata,
    ) -> tuple[Tensor, Tensor]:
        """What this layer adds, and what it adds it to: their sum is made where the next norm reads it."""
        x, residual = add_rms_norm(x, residual, self.input_layernorm, self.eps)
        x = self.self_attn(x, rotation, layer, meta)
        x, residual = add_rms_norm(x, residual, self.post_attention_layernorm, self.eps)
        return self.mlp(x), residual


class LlamaModel(nn.Module):
    """`model(input_ids, positions, kv, meta)` gives hidden states, `model.logits(rows)` scores of chosen ones.

    `output_linear` makes the product at the end of attention and MLP; `vocab_rows`: rows of embedding and head, where
    these are not the whole vocabulary's. (engine.models.split has other ones.)
    """

    def __init__(
        self, config: ModelConfig, *, output_linear: Callable[..., Linear] = Linear, vocab_rows: int | None = None
    ) -> None:
        super().__init__()
        self.config = config
        rows = config.vocab_size if vocab_rows is None else vocab_rows
        self.embed_tokens = nn.Parameter(torch.empty(rows, config.hidden_size))
        self.layers = nn.ModuleList(Block(config, i, output_linear) for i in range(config.num_layers))
        self.norm = nn.Parameter(torch.empty(config.hidden_size))
        self.lm_head = Linear(config.hidden_size, rows)
        if config.tie_embeddings:
            self.lm_head.weight = self.embed_tokens
        self.rotary = Rotary(config)

    row_wise = True

    @torch.inference_mode()
    def forward(self, input_ids: Tensor, positions: Tensor, kv: KVCache, meta: AttentionMetadata) -> Tensor:
        """Hidden states [T, hidden_size] after the last norm, for input_ids and positions int64 [T].

        Writes the K and V of the tokens to their slots in `kv` first. Padded rows (slot -1) come out meaningless.
        """
        x = self.embed(input_ids)
        rotation = self.rotary(positions)
        residual: Tensor | None = None
        for i, block in enumerate(self.layers):
            x, residual = block(x, residual, rotation, kv.layer(i), meta)
        return add_rms_norm(x, residual, self.norm, self.config.rms_eps)[0]

    @torch.inference_mode()
    def warm_up(self, kv: KVCache) -> None:
        """Have the kernels of attention compiled, which differ with a step's shape, for a cache like this one."""
        config = self.config
        fused = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        windows = dict.fromkeys(config.windows)
        warm_up(config.num_heads, kv.layer(0), self.embed_tokens.dtype, windows=windows, row_stride=fused)

    def embed(self, input_ids: Tensor) -> Tensor:
        """[T, hidden_size] for input_ids [T]."""
        return F.embedding(input_ids, self.embed_tokens)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 [R, vocab_size] for the hidden states of the rows that need a token, [R, hidden_size]."""
        return self.lm_head(hidden).float()

    def pack(self) -> None:
        """Lay all matrices out for this CPU, where that is possible. The model only runs from then on."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.pack(keep_weight=module.weight is self.embed_tokens)
