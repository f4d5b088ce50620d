"""Floats to low-bit weights: `scale * q + minimum` by groups of 32 inputs (kernels.cpu.packing)."""

from __future__ import annotations

import numpy as np

from kernels.cpu.packing import F32, GROUP, Quantised

LEVELS = 15  # the greatest q of 4 bits
TRIES = (-1.5, -1.0, -0.5, 0.0, 0.5)
"""A group's range is cut into LEVELS + t steps, and the best t kept. Five tries take a tenth off the error of one that
only spans the range; 21 between -3 and 3 take 12 % off, at twice the time."""
CHUNK = 8192  # groups at a time, so that what is computed of them stays in the cache


def _groups(weight: F32) -> F32:
    outputs, inputs = weight.shape
    if inputs % GROUP:
        raise ValueError(f"a matrix with {inputs} inputs cannot be quantised: it needs a multiple of {GROUP}")
    return weight.reshape(outputs, inputs // GROUP, GROUP)


def quantise_8(weight: F32) -> Quantised:
    """8 bits, symmetric: scale = the group's greatest magnitude / 127. weight: [outputs, inputs], inputs % 32 == 0."""
    groups = _groups(weight)
    scale = (np.abs(groups).max(axis=2) / 127).astype(np.float16)
    divisor = np.where(scale == 0, 1, scale).astype(np.float32)
    q = np.clip(np.rint(groups / divisor[..., None]), -127, 127) + 128
    return Quantised(q.reshape(weight.shape).astype(np.uint8), scale, scale * np.float16(-128), 8)


def quantise_4(weight: F32, importance: F32 | None = None) -> Quantised:
    """4 bits with scale and minimum, those of the least squared error that a few tries find. weight: as quantise_8.

    importance: [inputs], how much an input's squared errors count; None: all the same. Each try rounds a group to its
    steps, then fits scale and minimum to that by least squares. Weights that were of this form (a dequantised Q4_1)
    come out as they were, unless a group of them used little of its range.
    """
    groups = _groups(weight)
    outputs, per_row = groups.shape[:2]
    counts = np.ones((per_row, GROUP), np.float32) if importance is None else importance.reshape(per_row, GROUP)
    q = np.empty(groups.shape, np.uint8)
    scale, minimum = (np.empty((outputs, per_row), np.float16) for _ in range(2))
    rows = max(1, CHUNK // per_row)
    for start in range(0, outputs, rows):
        part = slice(start, start + rows)
        values = groups[part].reshape(-1, GROUP)
        s, m = _fit_4(values, np.tile(counts, (len(values) // per_row, 1)))
        scale[part], minimum[part] = s.reshape(-1, per_row), m.reshape(-1, per_row)
        by, low = scale[part].astype(np.float32)[..., None], minimum[part].astype(np.float32)[..., None]
        q[part] = np.clip(np.rint((groups[part] - low) / np.where(by == 0, 1, by)), 0, LEVELS)
    return Quantised(q.reshape(weight.shape), scale, minimum, 4)


def _fit_4(x: F32, counts: F32) -> tuple[F32, F32]:
    """Scale and minimum of each group. x, and how much its errors count: [groups, 32]."""

    def total(a: F32, b: F32) -> F32:
        sums: F32 = np.einsum("gi,gi->g", a, b)
        return sums

    low = x.min(axis=1)
    span = x.max(axis=1) - low
    shifted, weighted = x - low[:, None], counts * x
    total_1, total_x = counts.sum(axis=1), weighted.sum(axis=1)
    scale, minimum, least = np.zeros_like(low), low, np.full_like(low, np.inf)
    for steps in (LEVELS + extra for extra in TRIES):
        q = shifted * (steps / np.where(span == 0, 1, span))[:, None]
        np.clip(np.rint(q, out=q), 0, LEVELS, out=q)
        total_q, total_qx, total_qq = total(q, counts), total(q, weighted), total(q * q, counts)
        spread = total_1 * total_qq - total_q * total_q
        flat = spread <= 0
        s = np.where(flat, 0, (total_1 * total_qx - total_q * total_x) / np.where(flat, 1, spread))
        m = np.where(flat, low, (total_x - s * total_q) / np.where(flat, 1, total_1))
        # The squared error, less the sum of squares, which is the same for all tries.
        error = s * s * total_qq + m * m * total_1 + 2 * (s * m * total_q - s * total_qx - m * total_x)
        better = error < least
        least, scale, minimum = np.where(better, error, least), np.where(better, s, scale), np.where(better, m, minimum)
    return scale, minimum
