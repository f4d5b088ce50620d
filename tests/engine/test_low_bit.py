"""Low-bit weights keep what the model file says, to the last bit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from engine.models.low_bit import TILES, from_blocks, load_tiles, save_tiles


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_a_gguf_tensor_is_taken_over_exactly(kind: str) -> None:
    values = np.random.default_rng(0).normal(0, 0.1, (48, 96)).astype(np.float32)
    blocks = quantize(values, gguf.GGMLQuantizationType[kind])
    taken = from_blocks(blocks, kind)
    assert taken is not None
    np.testing.assert_array_equal(taken.dequantised(), dequantize(blocks, gguf.GGMLQuantizationType[kind]))


def test_a_type_of_another_form_is_left_to_the_caller() -> None:
    assert from_blocks(np.zeros((4, 84), np.uint8), "Q2_K") is None


def test_tiles_survive_the_disk(tmp_path: Path) -> None:
    assert load_tiles(tmp_path) == {}
    values = np.random.default_rng(1).normal(0, 0.1, (40, 64)).astype(np.float32)
    taken = from_blocks(quantize(values, gguf.GGMLQuantizationType.Q4_1), "Q4_1")
    assert taken is not None
    save_tiles(iter([("model.layers.0.mlp.up_proj.weight", taken)]), tmp_path)
    (name, tiles), *rest = load_tiles(tmp_path).items()
    assert not rest
    assert (name, tiles.outputs, tiles.bits) == ("model.layers.0.mlp.up_proj.weight", 40, 4)
    assert (tmp_path / TILES).stat().st_mode & 0o077 == 0o044
