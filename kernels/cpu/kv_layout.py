"""How keys and values lie in the C++ decoder's cache: how large a block is, and which bytes are whose slot's.

The arrangement itself is in kv_cache.hpp. Loads nothing but numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BLOCK_SIZE = 16

U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class KvLayout:
    """One layer's keys and values of a block of 16 tokens; `dtype` is "bfloat16" or "int8"."""

    kv_heads: int
    head_dim: int
    dtype: str

    @property
    def is_int8(self) -> bool:
        return self.dtype == "int8"

    @property
    def block_bytes(self) -> int:
        """int8 keys and values have a scale of two bytes each, a token and head."""
        row = self.head_dim + 2 if self.is_int8 else 2 * self.head_dim
        return 2 * BLOCK_SIZE * self.kv_heads * row

    def clear(self, blocks: U8, filled: int) -> None:
        """Zero the slots from `filled` on of blocks [..., block_bytes], in place."""
        heads, dim = self.kv_heads, self.head_dim
        parts = blocks.reshape(*blocks.shape[:-1], heads, -1)
        if self.is_int8:
            half = BLOCK_SIZE * dim
            keys, values, scales = np.split(parts, [half, 2 * half], axis=-1)
            keys.reshape(*keys.shape[:-1], dim // 4, BLOCK_SIZE, 4)[..., filled:, :] = 0
            _clear_values(values.reshape(*values.shape[:-1], BLOCK_SIZE // 4, dim, 4), filled)
            scales.reshape(*scales.shape[:-1], 2, BLOCK_SIZE, 2)[..., filled:, :] = 0
        else:
            keys, values = np.split(parts, 2, axis=-1)
            keys.reshape(*keys.shape[:-1], dim // 2, BLOCK_SIZE, 4)[..., filled:, :] = 0
            _clear_values(values.view(np.uint16).reshape(*values.shape[:-1], BLOCK_SIZE // 2, dim, 2), filled)


def _clear_values(values: np.ndarray, filled: int) -> None:
    """Of values [..., groups of tokens, head_dim, tokens of a group]."""
    together = values.shape[-1]
    values[..., -(-filled // together) :, :, :] = 0
    if filled % together:
        values[..., filled // together, :, filled % together :] = 0
