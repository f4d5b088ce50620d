"""How large everything is that the parts do: in full on a GPU, in miniature where only the code is tried."""

from __future__ import annotations

from dataclasses import dataclass

from bench.gpu.counts import LLAMA_8B, QWEN3_06B, Shape

TARGET_CONTEXT, TARGET_BATCH = 4096, 16
"""From here on decode attention is held to its target."""


@dataclass(frozen=True)
class Sizes:
    """check_lengths: contexts. check_heads: (head_dim, query heads of a KV head). groups: query heads of a KV head.

    heads: query heads, in all parts but the models'. pool_bytes: of one layer's K and V at most; what is longer goes
    through it again and again, so it must be far above any cache. prefix: tokens that all share, suffix: those that
    none does. prefill: (sequences, new tokens of each, cached tokens before them). peer_decodes, peer_prefills:
    (sequences, tokens). step_context: tokens of each prompt. tokens: the shortest and the longest prompt and output.
    """

    check_rows: int
    check_lengths: tuple[int, ...]
    check_heads: tuple[tuple[int, int], ...]
    check_hidden: int
    check_vocabulary: int
    heads: int
    dim: int
    block_size: int
    copy_bytes: int
    pool_bytes: int
    groups: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prefix_seqs: int
    prefixes: tuple[int, ...]
    suffix: int
    prefill: tuple[tuple[int, int, int], ...]
    peer_decodes: tuple[tuple[int, int], ...]
    peer_prefills: tuple[tuple[int, int], ...]
    step_shape: Shape
    step_batches: tuple[int, ...]
    step_context: int
    steps: int
    work_shape: Shape
    requests: int
    tokens: tuple[int, int]
    token_budget: int
    max_num_seqs: int
    max_model_len: int


FULL = Sizes(
    check_rows=67,
    check_lengths=(1, 16, 17, 300, 1500, 4100),
    check_heads=((64, 4), (128, 1), (128, 8), (128, 4)),
    check_hidden=4096,
    check_vocabulary=128_256,
    heads=32,
    dim=128,
    block_size=16,
    copy_bytes=2 << 30,
    pool_bytes=8 << 30,
    groups=(1, 4, 8),
    batches=(1, 4, 16, 64, 256),
    contexts=(1024, 4096, 8192, 32768),
    prefix_seqs=64,
    prefixes=(1024, 8192),
    suffix=128,
    prefill=((1, 1024, 0), (1, 8192, 0), (8, 2048, 0), (1, 32768, 0), (1, 2048, 16384)),
    peer_decodes=((16, 4096), (64, 8192)),
    peer_prefills=((1, 8192), (8, 2048)),
    step_shape=LLAMA_8B,
    step_batches=(1, 64),
    step_context=1024,
    steps=64,
    work_shape=QWEN3_06B,
    requests=256,
    tokens=(100, 1024),
    token_budget=16384,
    max_num_seqs=256,
    max_model_len=4096,
)

MINIATURE = Sizes(
    check_rows=5,
    check_lengths=(1, 17, 70),
    check_heads=((64, 4),),
    check_hidden=48,
    check_vocabulary=300,
    heads=2,
    dim=16,
    block_size=16,
    copy_bytes=1 << 20,
    pool_bytes=1 << 18,
    groups=(1, 2),
    batches=(1, 2),
    contexts=(64,),
    prefix_seqs=3,
    prefixes=(2048,),
    suffix=8,
    prefill=((1, 32, 0), (2, 16, 16)),
    peer_decodes=((2, 32),),
    peer_prefills=((1, 32),),
    step_shape=Shape(2, 64, 4, 2, 16, 96, 300, tied=False),
    step_batches=(1, 3),
    step_context=24,
    steps=4,
    work_shape=Shape(2, 64, 4, 2, 16, 96, 300, tied=True, qk_norm=True),
    requests=5,
    tokens=(4, 12),
    token_budget=32,
    max_num_seqs=4,
    max_model_len=64,
)
