"""KV in eight bits: what the numbers mean, and the way there and back in plain torch.

Each token's K and V of each KV head is stored as int8 or float8_e4m3fn values and one float32 scale: the values times
the scale. The scale is the head's largest magnitude over the largest value that the type holds, so nothing is clipped,
and what one token holds does not touch another's precision. A head with a NaN or an infinity comes back with NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
LEAST = 1e-30
"""Heads with nothing larger are stored as if they had this: zeros need no case of their own."""


def quantise(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x [..., head_dim] as values of `dtype`, rounded to the nearest (ties to even), and scales float32 [...]."""
    x = x.float()
    scale = x.abs().amax(dim=-1).clamp(min=LEAST) / LARGEST[dtype]
    scaled = x / scale.unsqueeze(-1)
    if dtype == torch.int8:
        scaled = scaled.round()
    return scaled.to(dtype), scale


def dequantise(values: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., head_dim] in `dtype`, computed in float32."""
    return (values.float() * scale.unsqueeze(-1)).to(dtype)
