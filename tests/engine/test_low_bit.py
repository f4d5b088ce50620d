"""Low-bit weights keep what the model file says, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize

from engine.models.decoder_weights import REPORT_EVERY_S, decoder_weights
from engine.models.loader import LoadedModel, build, load, open_folder
from engine.models.low_bit import TILES, from_blocks, load_tiles, save_tiles
from kernels.cpu.decoder import Batch, Decoder, DecoderWeights
from kernels.cpu.packing import Tiles, pack
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


@pytest.mark.parametrize(("form", "off"), [("int4", 0.3), ("int8", 0.06), ("bf16", 0.03)])
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
def test_the_decoder_computes_a_family_as_float32_does(
    changes: dict[str, Any], form: str, off: float, tmp_path: Path
) -> None:
    """Within what a form costs; a norm, a bias or a scaling that is left out costs five times 8 bits or more."""
    folder = make_tiny(tmp_path / "m", hidden_size=128, head_dim=32, intermediate_size=192, **changes)
    ids = np.random.default_rng(0).integers(3, 384, 150)
    expected = Paged(load(folder, "float32")).step({0: ids.tolist()})[0]
    config, tensors, _ = open_folder(folder)
    logits = logits_of(decoder_weights(config, tensors, {}, form), ids)
    error = (torch.from_numpy(logits) - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error.mean() < off


def logits_of(weights: DecoderWeights, ids: np.ndarray) -> np.ndarray:
    decoder = Decoder(weights, num_blocks=10, max_tokens=150, max_rows=150, threads=1)
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
    return logits


def own(values: torch.Tensor, kind: str) -> tuple[Tiles, torch.Tensor]:
    """A matrix as a file's tiles and as the floats that lie beside them."""
    taken = from_blocks(quantize(values.float().numpy(), gguf.GGMLQuantizationType[kind]), kind)
    assert taken is not None
    return pack(taken), torch.from_numpy(taken.dequantised())


def test_what_a_file_has_in_low_bits_stays_and_the_rest_becomes_bf16(tmp_path: Path) -> None:
    """The parts of one matrix have one form: where v is missing, q and k go with it."""
    config, plain, _ = open_folder(make_tiny(tmp_path / "m", hidden_size=128, head_dim=32, intermediate_size=192))
    tensors, tiles = dict(plain), {}
    kinds = {
        "embed_tokens": "Q8_0",
        "0.self_attn.q": "Q4_0",
        "0.self_attn.k": "Q4_1",
        "1.mlp": "Q4_1",
        "1.self": "Q8_0",
    }
    for name in list(tensors):
        kind = next((kind for part, kind in kinds.items() if part in name), None)
        if kind is not None and tensors[name].dim() == 2:
            tiles[name], tensors[name] = own(tensors[name], kind)

    def forms(form: str) -> list[list[int]]:
        made = decoder_weights(config, tensors, tiles, form)
        matrices = [[layer.qkv, layer.out, layer.gate, layer.up, layer.down] for layer in made.layers]
        return [[matrix.bits for matrix in layer] for layer in [*matrices, [made.head]]]

    assert forms("auto") == [[16] * 5, [8, 8, 4, 4, 4], [8]]
    assert forms("bf16") == [[16] * 5, [16] * 5, [16]]
    assert forms("int8") == [[8] * 5, [8, 8, 4, 4, 4], [8]], "four bits of the file stay four bits"
    assert forms("int4") == [[8, 4, 4, 4, 4], [8, 4, 4, 4, 4], [8]]
    kept = list(decoder_weights(config, tensors, tiles).layers)[1]
    np.testing.assert_array_equal(kept.down.data, tiles["model.layers.1.mlp.down_proj.weight"].data)

    ids = np.random.default_rng(0).integers(3, 384, 150)
    cpu = torch.device("cpu")
    model = build(config, iter(tensors.items()), torch.float32, cpu, "m")
    exact = LoadedModel(model=model, config=config, revision="", path=tmp_path, dtype=torch.float32, device=cpu)
    expected = Paged(exact).step({0: ids.tolist()})[0]
    error = torch.from_numpy(logits_of(decoder_weights(config, tensors, tiles), ids)) - expected
    assert (error.norm(dim=-1) / expected.norm(dim=-1)).mean() < 0.03


def test_a_tied_embedding_is_not_held_twice_and_an_untied_one_is_kept(tmp_path: Path) -> None:
    for tied in (True, False):
        folder = make_tiny(tmp_path / str(tied), head_dim=32, tie_word_embeddings=tied)
        config, tensors, _ = open_folder(folder)
        made = decoder_weights(config, tensors, {})
        assert (made.embedding is None) == tied


def test_slow_loading_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, tensors, _ = open_folder(make_tiny(tmp_path / "m", head_dim=32, num_hidden_layers=4))
    clock = iter(np.arange(0.0, 100.0, REPORT_EVERY_S / 3))
    monkeypatch.setattr("engine.models.decoder_weights.time.monotonic", lambda: next(clock))
    said: list[str] = []
    assert len(list(decoder_weights(config, tensors, {}, report=said.append).layers)) == 4
    assert said == ["75 %"]
