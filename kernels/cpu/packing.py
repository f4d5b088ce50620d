"""Weights for the C++ kernels: groups of 32 inputs with scale and minimum, in the order in which they are read.

A weight is `scale * q + minimum` with unsigned q of 4 or 8 bits. GGUF's Q4_0, Q4_1 and Q8_0 are of this form and are
packed without any loss; other weights are quantised here to 8 bits, symmetric in each group. A tile (see gemm.hpp) is
16 outputs x 32 inputs, so matrices with the same inputs are stacked and interleaved as tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

OUT = 16
GROUP = 32
TAIL = 2 * OUT * 2  # bytes of scales and minima in a tile

U8 = npt.NDArray[np.uint8]
F16 = npt.NDArray[np.float16]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Quantised:
    """A matrix of low-bit weights. q: uint8 [outputs, inputs]; scale, minimum: float16 [outputs, inputs / 32]."""

    q: U8
    scale: F16
    minimum: F16
    bits: int

    def rows(self, index: npt.NDArray[np.intp]) -> Quantised:
        return Quantised(self.q[index], self.scale[index], self.minimum[index], self.bits)

    def dequantised(self) -> F32:
        groups = self.q.reshape(*self.scale.shape, GROUP).astype(np.float32)
        values = groups * self.scale.astype(np.float32)[..., None] + self.minimum.astype(np.float32)[..., None]
        return values.reshape(self.q.shape)


@dataclass(frozen=True)
class Tiles:
    """A packed matrix. data: uint8 [ceil(outputs / 16), inputs / 32, bytes of a tile]; padding outputs give 0."""

    data: U8
    outputs: int

    @property
    def bits(self) -> int:
        return 8 if self.data.shape[2] > 8 * GROUP + TAIL else 4

    @property
    def inputs(self) -> int:
        return self.data.shape[1] * GROUP

    def widened(self) -> Tiles:
        """The same weights with 8 bits each."""
        if self.bits == 8:
            return self
        body, tail = self.data[:, :, :-TAIL], self.data[:, :, -TAIL:]
        return Tiles(np.concatenate([body & 15, body >> 4, tail], axis=2), self.outputs)


def quantise(weight: F32) -> Quantised:
    """8 bits, symmetric: scale = the group's greatest magnitude / 127. weight: [outputs, inputs], inputs % 32 == 0."""
    outputs, inputs = weight.shape
    if inputs % GROUP:
        raise ValueError(f"a matrix with {inputs} inputs cannot be quantised: it needs a multiple of {GROUP}")
    groups = weight.reshape(outputs, inputs // GROUP, GROUP)
    scale = (np.abs(groups).max(axis=2) / 127).astype(np.float16)
    divisor = np.where(scale == 0, 1, scale).astype(np.float32)
    q = np.clip(np.rint(groups / divisor[..., None]), -127, 127) + 128
    return Quantised(q.reshape(outputs, inputs).astype(np.uint8), scale, scale * np.float16(-128), 8)


def pack(matrix: Quantised) -> Tiles:
    outputs, inputs = matrix.q.shape
    missing = -outputs % OUT
    q = np.pad(matrix.q, ((0, missing), (0, 0)))
    scale = np.pad(matrix.scale, ((0, missing), (0, 0)))
    minimum = np.pad(matrix.minimum, ((0, missing), (0, 0)))
    tiles, groups = (outputs + missing) // OUT, inputs // GROUP
    # [tile, output, group, sub-group, input] -> [tile, group, sub-group, output, input]
    body: U8 = q.reshape(tiles, OUT, groups, 8, 4).transpose(0, 2, 3, 1, 4)
    if matrix.bits == 4:
        body = body[:, :, :4] | np.left_shift(body[:, :, 4:], np.uint8(4))

    def by_group(values: F16) -> U8:
        ordered = np.ascontiguousarray(values.reshape(tiles, OUT, groups).transpose(0, 2, 1))
        return ordered.view(np.uint8).reshape(tiles, groups, 2 * OUT)

    flat = body.reshape(tiles, groups, -1)
    return Tiles(np.concatenate([flat, by_group(scale), by_group(minimum)], axis=2), outputs)


def _same_bits(parts: list[Tiles]) -> list[Tiles]:
    return parts if len({part.bits for part in parts}) == 1 else [part.widened() for part in parts]


def stack(parts: list[Tiles]) -> Tiles:
    """Matrices with the same inputs on top of each other; all but the last need a multiple of 16 outputs."""
    parts = _same_bits(parts)
    return Tiles(np.concatenate([part.data for part in parts]), sum(part.outputs for part in parts))


def interleave(one: Tiles, other: Tiles) -> Tiles:
    """Two matrices of the same shape by turns, 32 outputs of one and the same 32 of the other."""
    one, other = _same_bits([one, other])
    pairs = [part.data.reshape(-1, 2, *part.data.shape[1:]) for part in (one, other)]
    both = np.stack(pairs, axis=1)
    return Tiles(both.reshape(-1, *one.data.shape[1:]), one.outputs + other.outputs)
