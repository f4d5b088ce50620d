"""What kernels share to read and write KV, whatever its type; kernels.quantised says what eight bits mean.

The type of the cache's pointer says how a value is stored: int8, float8_e4m3fn, or bytes that hold float8_e4m3fn, for
GPUs that have no instructions for it (before compute capability 8.9) and for the interpreter, which rounds it wrong.
`cached` gives the tensors to pass. Kernels are compiled for the one type, so nothing of the others remains in them.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import quantised
from kernels.api import CacheLayer

LEAST: tl.constexpr = tl.constexpr(quantised.LEAST)
ROUND: tl.constexpr = tl.constexpr(1.5 * 2.0**23)  # added to a float32 and taken away again, it leaves a whole number


def cached(layer: CacheLayer) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, tuple[int, ...]]:
    """k, v, their scales, and the strides of block, slot and head, of the values and of the scales (0 without them)."""
    k, v, strides = layer.k, layer.v, layer.k.stride()
    if layer.v.stride() != strides or strides[3] != 1:
        raise ValueError(f"K and V of a layer lie alike, heads in one piece: {strides} and {layer.v.stride()} do not.")
    if k.dtype == torch.float8_e4m3fn and not _knows_e4m3(k.device):
        k, v = k.view(torch.uint8), v.view(torch.uint8)
    scales = (0, 0, 0) if layer.k_scale is None else layer.k_scale.stride()
    return k, v, layer.k_scale, layer.v_scale, (*strides[:3], *scales)


@cache
def _knows_e4m3(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


@triton.jit
def magnitude(x: tl.tensor) -> tl.tensor:
    """|x| of float32 as whole numbers of the same order, NaN the greatest: so that a maximum does not lose it."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def scale_of(largest: tl.tensor, cache_ptr: tl.tensor) -> tl.tensor:
    """The scale, float32, for heads whose largest `magnitude` is given; NaN stays NaN."""
    limit: tl.constexpr = 127.0 if cache_ptr.dtype.element_ty == tl.int8 else 448.0
    size = largest.to(tl.float32, bitcast=True)
    return tl.div_rn(tl.where(size < LEAST, LEAST, size), limit)


@triton.jit
def encode(x: tl.tensor, scale: tl.tensor, cache_ptr: tl.tensor) -> tl.tensor:
    """x, float32, as the cache holds it; scale, of x's shape or broadcast to it, is not used where it has none."""
    kind: tl.constexpr = cache_ptr.dtype.element_ty
    if kind == tl.int8:
        return ((tl.div_rn(x, scale) + ROUND) - ROUND).to(tl.int8)
    elif kind == tl.uint8:
        return _e4m3_bits(tl.div_rn(x, scale))
    elif kind == tl.float8e4nv:
        return tl.div_rn(x, scale).to(kind)
    else:
        return x.to(kind)


@triton.jit
def decode(values: tl.tensor) -> tl.tensor:
    """Loaded values as float32, without their scale."""
    if values.dtype == tl.uint8:
        # Exponent and fraction as those of a float16, whose bias is 8 more; subnormals are right as well.
        bits = values.to(tl.int16)
        half = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)
        return tl.where((bits & 0x7F) == 0x7F, float("nan"), half.to(tl.float32) * 256.0)
    else:
        return values.to(tl.float32)


@triton.jit
def _e4m3_bits(x: tl.tensor) -> tl.tensor:
    """float32 of at most 448 in magnitude as float8_e4m3fn's bits, rounded to the nearest, ties to even."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    # A float32's bits from the fourth of the fraction on are cut; exponents are 127 - 7 less.
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    # Below 2 ** -6 steps are 2 ** -9: adding ROUND leaves the number of them in the last bits.
    small = (size.to(tl.float32, bitcast=True) * 512.0 + ROUND).to(tl.int32, bitcast=True) & 0xF
    code = tl.where(size < ((127 - 6) << 23), small, tl.minimum(normal, 0x7E))
    code = tl.where(x != x, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)
