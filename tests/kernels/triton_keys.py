"""How many kernels would be compiled for a model's steps of many sizes; JSON: {kernel: keys}.

Run by test_triton_aot in a process where kernels are not interpreted.
"""

from __future__ import annotations

import json
from collections import defaultdict

import torch

from kernels import triton as gpu
from kernels.api import KVCache
from kernels.triton.record import launches

HEADS, KV_HEADS, DIM, HIDDEN, VOCABULARY = 8, 2, 64, 512, 1000


def step(cache: KVCache, rows: int, norms: bool) -> None:
    """What one layer and the sampler do with so many rows, on tensors made the way the decoder makes them."""
    layer = cache.layer(1)
    x = torch.zeros(rows, HIDDEN, dtype=torch.bfloat16)
    weight = torch.zeros(HIDDEN, dtype=torch.bfloat16)
    gpu.add_rms_norm(x, None, weight, 1e-5)
    gpu.add_rms_norm(x, torch.zeros_like(x), weight, 1e-5)
    fused = torch.nn.functional.linear(x, torch.zeros((HEADS + 2 * KV_HEADS) * DIM, HIDDEN, dtype=torch.bfloat16))
    qkv = fused.view(rows, HEADS + 2 * KV_HEADS, DIM)
    # Persistent buffers, of which a step uses the first rows.
    slots = torch.zeros(4096, dtype=torch.int64)[:rows]
    angles = torch.zeros(8192, DIM // 2)[torch.zeros(rows, dtype=torch.int64)]
    gpu.rope_write_kv(
        qkv, (angles, angles), layer, slots, HEADS, norms=(weight[:DIM], weight[:DIM]) if norms else None, eps=1e-6
    )
    gpu.write_kv(qkv[:, HEADS : HEADS + KV_HEADS], qkv[:, HEADS + KV_HEADS :], layer, slots)
    gpu.silu_mul(torch.zeros(rows, 2 * HIDDEN, dtype=torch.bfloat16))
    gpu.copy_blocks(cache, slots[:7], slots[:7])
    gpu.pick(torch.zeros(rows, VOCABULARY), torch.zeros(rows, 5, dtype=torch.float64))


def main() -> None:
    keys: dict[str, set[str]] = defaultdict(set)
    cache = KVCache(2, 8, 16, KV_HEADS, DIM, dtype=torch.int8)
    for rows in [*range(1, 130), 255, 256, 257, 511, 1000, 1024, 4095, 4096]:
        with launches() as noted:
            step(cache, rows, norms=True)
        for launch in noted:
            keys[launch.variant.kernel.__name__].add(launch.key)
    print(json.dumps({name: len(found) for name, found in keys.items()}))


if __name__ == "__main__":
    main()
