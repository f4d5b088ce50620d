"""What the kernels should give, in float64, by plain tensor operations on the device itself."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bench.gpu.made import Steps
from kernels.api import CacheLayer


def bits(x: Tensor) -> Tensor:
    """Eight or more bits as integers: NaN equals itself there, and fp8 can be indexed on any device."""
    return x.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[x.element_size()])


def values(cache: Tensor, scales: Tensor | None, slots: Tensor) -> Tensor:
    """The tokens at these slots, float64 [n, kv_heads, dim], as the cache's numbers stand for them."""
    found = bits(cache.flatten(0, 1))[slots].view(cache.dtype).double()
    return found if scales is None else found * scales.flatten(0, 1)[slots].double()[..., None]


def attention(
    q: Tensor, layer: CacheLayer, steps: Steps, scale: float, window: int | None = None, softcap: float | None = None
) -> Tensor:
    """As kernels.api.paged_attention, float64."""
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    kv_heads = layer.k.shape[2]
    for seq, length in enumerate(steps.lengths.tolist()):
        first, last = steps.starts[seq : seq + 2].tolist()
        rows = last - first
        low = 0 if window is None else max(0, length - rows - window + 1)
        slots = torch.from_numpy(steps.slots(seq, low, length)).to(q.device)
        k, v = values(layer.k, layer.k_scale, slots), values(layer.v, layer.v_scale, slots)
        heads = q[first:last].double().unflatten(1, (kv_heads, -1))
        scores = torch.einsum("nkgd,lkd->nkgl", heads, k) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        tokens = torch.arange(low, length, device=q.device)
        positions = torch.arange(length - rows, length, device=q.device)[:, None]
        visible = tokens <= positions
        if window is not None:
            visible &= tokens > positions - window
        weights = scores.masked_fill(~visible[:, None, None], float("-inf")).softmax(dim=-1)
        out[first:last] = torch.einsum("nkgl,lkd->nkgd", weights, v).flatten(1, 2)
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight.double()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Component i turns with component i + dim / 2."""
    first, second = x.double().chunk(2, dim=-1)
    c, s = cos.double()[:, None], sin.double()[:, None]
    return torch.cat([first * c - second * s, second * c + first * s], dim=-1)


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate / (1.0 + (-gate).exp()) * up


def may_be_drawn(logits: Tensor, settings: Tensor, token: int) -> bool:
    """Whether one row's token is what kernels.triton.sampling.pick may give for logits [V] and settings [5].

    Where the uniform number falls right between two tokens, or a token right on the edge of top_p, either will do.
    """
    x = logits.double()
    temperature, min_p, top_k, top_p, uniform = settings.tolist()
    if temperature == 0.0:
        return token == int(x.argmax())
    weights = ((x - x.max()) / temperature).exp()
    floor = weights.new_tensor(min_p)
    if 0 < top_k < len(x):
        floor = torch.maximum(floor, weights.sort(descending=True).values[int(top_k) - 1])
    weights = torch.where(weights >= floor * (1 - 1e-6), weights, 0.0)
    edge = 0.0
    if top_p < 1.0:
        ordered = weights.sort(descending=True).values
        mass = ordered.cumsum(0)
        place = int(np.argmax((mass >= top_p * mass[-1]).cpu().numpy()))
        edge = float(ordered[place])
        # With one more beyond the edge, which rounding may let in.
        least = ordered[min(place + 1, len(ordered) - 1)]
        weights = torch.where(weights >= least, weights, 0.0)
    mass = weights.cumsum(0)
    room = 2 * edge + 1e-4 * float(mass[-1])
    target = uniform * float(mass[-1])
    before = float(mass[token] - weights[token])
    return bool(weights[token] > 0) and before - room <= target <= float(mass[token]) + room
