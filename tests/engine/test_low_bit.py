"""Low-bit weights keep what the model file says, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize

from engine.models.loader import load, open_folder
from engine.models.low_bit import TILES, decoder_weights, from_blocks, load_tiles, save_tiles
from kernels.cpu.decoder import Batch, Decoder
from tests.engine.test_models import LLAMA3, YARN, Paged
from tests.engine.tiny import make_tiny


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


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "llama", "rope_scaling": LLAMA3},
        {"model_type": "qwen2", "rope_scaling": YARN},
        {"model_type": "qwen3"},
        {"model_type": "mistral", "sliding_window": None, "tie_word_embeddings": False},
    ],
    ids=["llama, llama3 scaling", "qwen2, yarn", "qwen3", "mistral"],
)
def test_the_decoder_computes_a_family_as_float32_does(changes: dict[str, Any], tmp_path: Path) -> None:
    """Within what 8-bit weights cost; a norm, a bias or a scaling that is left out costs five times as much or more."""
    folder = make_tiny(tmp_path / "m", hidden_size=128, head_dim=32, intermediate_size=192, **changes)
    ids = np.random.default_rng(0).integers(3, 384, 150)
    expected = Paged(load(folder, "float32")).step({0: ids.tolist()})[0]
    config, tensors, _ = open_folder(folder)
    decoder = Decoder(decoder_weights(config, tensors, {}), num_blocks=10, max_tokens=150, max_rows=150, threads=1)
    places = np.arange(len(ids), dtype=np.int32)
    logits = decoder.step(
        Batch(
            ids=ids.astype(np.int32),
            positions=places,
            slots=places.astype(np.int64),
            query_starts=np.array([0, len(ids)], np.int32),
            lengths=np.array([len(ids)], np.int32),
            tables=np.arange(10, dtype=np.int32)[None],
            row_tokens=places,
        )
    )
    decoder.close()
    error = (torch.from_numpy(logits) - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error.mean() < 0.06
