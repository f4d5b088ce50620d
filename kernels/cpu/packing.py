"""Weights for the C++ kernels: groups of 32 inputs with scale and minimum, in the order in which they are read.

A weight is `scale * q + minimum` with unsigned q of 4 or 8 bits. GGUF's Q4_1 and Q8_0 are of this form and are packed
without any loss; other weights are quantised here to 8 bits, symmetric in each group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

OUT = 16
GROUP = 32

U8 = npt.NDArray[np.uint8]
F16 = npt.NDArray[np.float16]


@dataclass(frozen=True)
class Quantised:
    """A matrix of low-bit weights. q: uint8 [outputs, inputs]; scale, minimum: float16 [outputs, inputs / 32]."""

    q: U8
    scale: F16
    minimum: F16
    bits: int

    def rows(self, index: npt.NDArray[np.intp]) -> Quantised:
        return Quantised(self.q[index], self.scale[index], self.minimum[index], self.bits)

    def dequantised(self) -> npt.NDArray[np.float32]:
        groups = self.q.reshape(*self.scale.shape, GROUP).astype(np.float32)
        values = groups * self.scale.astype(np.float32)[..., None] + self.minimum.astype(np.float32)[..., None]
        return values.reshape(self.q.shape)


def concatenate(parts: list[Quantised]) -> Quantised:
    """Stack matrices with the same inputs on top of each other; all with as many bits as the widest."""
    return Quantised(
        np.concatenate([part.q for part in parts]),
        np.concatenate([part.scale for part in parts]),
        np.concatenate([part.minimum for part in parts]),
        max(part.bits for part in parts),
    )


def quantise(weight: npt.NDArray[np.float32]) -> Quantised:
    """8 bits, symmetric: scale = the group's greatest magnitude / 127. weight: [outputs, inputs], inputs % 32 == 0."""
    outputs, inputs = weight.shape
    groups = weight.reshape(outputs, inputs // GROUP, GROUP)
    scale = (np.abs(groups).max(axis=2) / 127).astype(np.float16)
    divisor = np.where(scale == 0, 1, scale).astype(np.float32)
    q = np.clip(np.rint(groups / divisor[..., None]), -127, 127) + 128
    return Quantised(q.reshape(outputs, inputs).astype(np.uint8), scale, scale * np.float16(-128), 8)


def pack(matrix: Quantised) -> U8:
    """Tiles of 16 outputs x 32 inputs, see gemm.hpp. Returns uint8 [ceil(outputs / 16), inputs / 32, tile bytes]."""
    outputs, inputs = matrix.q.shape
    if inputs % GROUP:
        raise ValueError(f"a matrix with {inputs} inputs cannot be packed: it needs a multiple of {GROUP}")
    missing = -outputs % OUT
    q = np.pad(matrix.q, ((0, missing), (0, 0)))
    scale = np.pad(matrix.scale, ((0, missing), (0, 0)))
    minimum = np.pad(matrix.minimum, ((0, missing), (0, 0)))
    tiles, groups = (outputs + missing) // OUT, inputs // GROUP
    # [tile, output, group, sub-group, input] -> [tile, group, sub-group, output, input]
    body = q.reshape(tiles, OUT, groups, 8, 4).transpose(0, 2, 3, 1, 4)
    if matrix.bits == 4:
        body = body[:, :, :4] | (body[:, :, 4:] << 4)
    flat = body.reshape(tiles, groups, -1)

    def by_group(values: F16) -> U8:
        ordered = np.ascontiguousarray(values.reshape(tiles, OUT, groups).transpose(0, 2, 1))
        return ordered.view(np.uint8).reshape(tiles, groups, 2 * OUT)

    return np.concatenate([flat, by_group(scale), by_group(minimum)], axis=2)
