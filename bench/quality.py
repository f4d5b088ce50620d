"""What each numeric path costs in quality: perplexity and agreement with float32 transformers on a text of our own.

    python -m bench.quality [--model PATH] [--weights int4 --weights auto/int8] [--dtype bfloat16 --dtype float32]

auto/int8 has its keys and values in int8 too.
Every token of bench/quality.txt is predicted from all before it. `agree`: how often the likeliest token is the one of
the float32 reference; `KL`: mean divergence from it in nats; `perplexity`: of the text, and its rise. A row for each of
the C++ decoder's forms of weights, and for each of torch's dtypes.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine import EngineConfig
from engine.config import WEIGHTS
from engine.cpu_runner import CpuRunner
from engine.models.loader import load
from engine.runners import load_runner
from engine.tokenizer import Tokenizer
from kernels.api import AttentionMetadata, KVCache
from kernels.cpu.decoder import Batch
from ops.setup import MODEL_DIR

TEXT = Path(__file__).with_name("quality.txt")


def reference(model: str, ids: list[int]) -> Tensor:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModelForCausalLM

    with torch.inference_mode():
        logits: Tensor = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)(torch.tensor([ids])).logits[0]
    return logits.float()


def through_decoder(model: str, ids: list[int], form: str) -> Tensor:
    count = len(ids)
    weights, _, kv_dtype = form.partition("/")
    config = EngineConfig(
        model=model,
        weights=weights,
        kv_dtype=kv_dtype or EngineConfig.kv_dtype,
        device="cpu",
        num_blocks=-(-count // 16),
        token_budget=count,
        max_num_seqs=count,
    )
    runner = load_runner(config)
    assert isinstance(runner, CpuRunner)
    rows = np.arange(count, dtype=np.int32)
    logits = torch.from_numpy(
        runner._decoder.step(
            Batch(
                ids=np.array(ids, np.int32),
                positions=rows,
                slots=rows.astype(np.int64),
                query_starts=np.array([0, count], np.int32),
                lengths=np.array([count], np.int32),
                tables=np.arange(runner.num_blocks, dtype=np.int32)[None],
                row_tokens=rows,
            )
        )
    )
    runner.close()
    return logits


def through_torch(model: str, ids: list[int], dtype: str) -> Tensor:
    loaded = load(model, dtype)
    shape, count = loaded.config, len(ids)
    blocks = -(-count // 16)
    cache = KVCache(shape.num_layers, blocks, 16, shape.num_kv_heads, shape.head_dim, dtype=loaded.dtype)
    positions = torch.arange(count)
    meta = AttentionMetadata(
        slot_mapping=positions,
        block_tables=torch.arange(blocks, dtype=torch.int32)[None],
        query_starts=torch.tensor([0, count], dtype=torch.int32),
        seq_lens=torch.tensor([count], dtype=torch.int32),
        max_query_len=count,
        max_seq_len=count,
    )
    return loaded.model.logits(loaded.model(torch.tensor(ids), positions, cache, meta))


def perplexity(logits: Tensor, ids: list[int]) -> float:
    return math.exp(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])).item())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(MODEL_DIR))
    parser.add_argument("--weights", action="append", help="default: auto, int4, int8, bf16 and auto/int8")
    parser.add_argument("--dtype", action="append", help="default: bfloat16 and float32")
    args = parser.parse_args(argv or [])
    for form in args.weights or []:
        weights, _, kv_dtype = form.partition("/")
        if weights not in WEIGHTS or kv_dtype not in ("", "bfloat16", "int8"):
            parser.error(f"--weights {form}: say one of {', '.join(WEIGHTS)}, and perhaps /int8 for the KV behind it")
    if unknown := set(args.dtype or []) - {"float32", "bfloat16", "float16"}:
        parser.error(f"--dtype {unknown.pop()}: say float32, bfloat16 or float16")
    if not Path(args.model).exists():
        parser.error(f"--model {args.model} is not there")
    if args.weights is None and args.dtype is None:
        args.weights, args.dtype = [*WEIGHTS, "auto/int8"], ["bfloat16", "float32"]
    ids = Tokenizer.load(args.model).encode(TEXT.read_text())
    exact = reference(args.model, ids)
    base = perplexity(exact, ids)
    print(f"{len(ids)} tokens, float32 transformers: perplexity {base:.3f}")
    print(f"{'':20}{'perplexity':>12}{'rise':>10}{'agree':>10}{'KL':>12}")
    rows: list[tuple[str, Callable[[str, list[int], str], Tensor], str]]
    rows = [(f"weights {weights}", through_decoder, weights) for weights in args.weights or []]
    rows += [(f"dtype {dtype}", through_torch, dtype) for dtype in args.dtype or []]
    for name, path, form in rows:
        got = path(args.model, ids, form)
        here = perplexity(got, ids)
        agree = (got.argmax(-1) == exact.argmax(-1)).float().mean().item()
        divergence = torch.nn.functional.kl_div(
            got.log_softmax(-1), exact.log_softmax(-1), log_target=True, reduction="none"
        )
        kl = divergence.sum(-1).mean().item()
        print(f"{name:20}{here:>12.3f}{here / base - 1:>10.2%}{agree:>10.1%}{kl:>12.5f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
