"""A GGUF file's own low-bit weights, as tiles for the C++ decoder.

A folder converted from a GGUF file keeps them in `tiles.safetensors`, packed without loss and read in a fraction of a
second. Owns that file's format, and what GGUF's blocks mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from kernels.cpu.packing import GROUP, Quantised, Tiles, pack

TILES = "tiles.safetensors"


def from_blocks(data: np.ndarray, kind: str) -> Quantised | None:
    """The weights in a GGUF tensor's blocks of 32, exactly; None for a type that is not scale * q + minimum.

    data: uint8 [outputs, bytes of a row]. Q4_0 and Q4_1: fp16 scale (and fp16 minimum), then 16 bytes whose low
    nibbles are inputs 0..15 and whose high ones are 16..31. Q8_0: fp16 scale, then 32 int8.
    """
    size = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}.get(kind)
    if size is None:
        return None
    blocks = np.ascontiguousarray(data).reshape(data.shape[0], -1, size)
    scale = blocks[:, :, :2].copy().view(np.float16)[:, :, 0]
    if kind == "Q8_0":
        q = (blocks[:, :, 2:].view(np.int8).astype(np.int16) + 128).astype(np.uint8)
        return Quantised(q.reshape(len(data), -1), scale, scale * np.float16(-128), 8)
    minimum = scale * np.float16(-8) if kind == "Q4_0" else blocks[:, :, 2:4].copy().view(np.float16)[:, :, 0]
    nibbles = blocks[:, :, size - 16 :]
    q = np.concatenate([nibbles & 15, nibbles >> 4], axis=2)
    return Quantised(q.reshape(len(data), -1), scale, minimum, 4)


def save_tiles(matrices: Iterator[tuple[str, Quantised]], folder: Path) -> None:
    packed = {name: pack(matrix) for name, matrix in matrices}
    outputs = json.dumps({name: tiles.outputs for name, tiles in packed.items()})
    save_file({name: tiles.data for name, tiles in packed.items()}, folder / TILES, metadata={"outputs": outputs})
    (folder / TILES).chmod(0o644)


def load_tiles(folder: Path) -> dict[str, Tiles]:
    """What save_tiles wrote, by Hugging Face name; empty where the folder has no such file."""
    if not (folder / TILES).is_file():
        return {}
    with safe_open(str(folder / TILES), framework="numpy") as file:
        outputs = json.loads(file.metadata()["outputs"])
        return {name: Tiles(file.get_tensor(name), outputs[name]) for name in file.keys()}  # noqa: SIM118


assert GROUP == 32, "from_blocks reads GGUF's groups of 32 as the decoder's"
