"""Weights for the C++ kernels as tiles of 16 outputs x 32 inputs (tiles.hpp), in the order in which they are read.

A tile holds bf16, or low-bit weights: `scale * q + minimum` with unsigned q of 4 or 8 bits, scale and minimum by groups
of 32 inputs. GGUF's Q4_0, Q4_1 and Q8_0 are of this form and are packed without any loss; `kernels.cpu.quantising`
brings floats into it. Matrices with the same inputs are stacked and interleaved as tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

OUT = 16
GROUP = 32
TAIL = 2 * OUT * 2  # bytes of scales and minima in a low-bit tile
BITS = {OUT * GROUP * bits // 8 + (TAIL if bits < 16 else 0): bits for bits in (4, 8, 16)}  # by the bytes of a tile

U8 = npt.NDArray[np.uint8]
F16 = npt.NDArray[np.float16]
U16 = npt.NDArray[np.uint16]
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
        """4 or 8, or 16: bf16."""
        return BITS[self.data.shape[2]]

    @property
    def inputs(self) -> int:
        return self.data.shape[1] * GROUP

    def widened(self) -> Tiles:
        """The same low-bit weights with 8 bits each."""
        if self.bits == 8:
            return self
        body, tail = self.data[:, :, :-TAIL], self.data[:, :, -TAIL:]
        return Tiles(np.concatenate([body & 15, body >> 4, tail], axis=2), self.outputs)


def pack(matrix: Quantised) -> Tiles:
    outputs, inputs = matrix.q.shape
    _check(inputs)
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


def pack_bf16(weight: U16) -> Tiles:
    """weight: the bits of bf16, [outputs, inputs], inputs % 32 == 0."""
    outputs, inputs = weight.shape
    _check(inputs)
    pairs = np.ascontiguousarray(np.pad(weight, ((0, -outputs % OUT), (0, 0)))).view(np.uint32)
    body = pairs.reshape(-1, OUT, inputs // GROUP, GROUP // 2).transpose(0, 2, 3, 1)
    return Tiles(np.ascontiguousarray(body).view(np.uint8).reshape(*body.shape[:2], -1), outputs)


def _check(inputs: int) -> None:
    if inputs % GROUP:
        raise ValueError(f"a matrix with {inputs} inputs cannot be packed: it needs a multiple of {GROUP}")


def _same_bits(parts: list[Tiles]) -> list[Tiles]:
    bits = {part.bits for part in parts}
    if len(bits) == 1:
        return parts
    if 16 in bits:
        raise ValueError("bf16 and low-bit weights cannot be parts of one matrix")
    return [part.widened() for part in parts]


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
