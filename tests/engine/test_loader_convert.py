"""Conversion of GGUF files: the same model comes out, once, whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engine.models import ModelError, load
from engine.models.convert import MANIFEST, convert, main
from engine.models.gguf_file import _BLOCK, _OUTER
from engine.tokenizer import Tokenizer
from tests.engine.test_models import LLAMA3, Paged
from tests.engine.tiny import CHATML, VOCAB, make_tiny, tiny_config, tiny_weights

ROOT = Path(__file__).parents[2]


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """What GGUF files of Llama hold: row i of a head's first half beside row i of its second."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face weight."""
    stem, _, kind = name.rpartition(".")
    outer = {theirs: ours for ours, theirs in _OUTER.items()}
    if stem in outer:
        return f"{outer[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{ {theirs: ours for ours, theirs in _BLOCK.items()}[part] }.{kind}"


def write_gguf(path: Path, folder: Path, *, factors: list[float] | None = None, quantize: bool = False) -> Path:
    """The tiny model in `folder` as a GGUF file."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    kind = config["model_type"]
    writer = gguf.GGUFWriter(str(path), kind)
    writer.add_name("tiny")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(VOCAB)
    tokens = {index: token for token, index in tokenizer["model"]["vocab"].items()}
    count = VOCAB
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([tokens.get(i, f"<unused {i}>") for i in range(count)])
    writer.add_token_types([3 if i < 3 else 1 for i in range(count)])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHATML)
    if factors:
        writer.add_tensor("rope_freqs.weight", np.array(factors, dtype=np.float32))
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.numpy()
        if kind == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config["num_attention_heads"] if "q_proj" in name else config["num_key_value_heads"]
            values = interleaved(values, heads)
        if quantize and values.ndim == 2:
            packed = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(gguf_name(name), packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(path: Path) -> torch.Tensor:
    return Paged(load(path, "float32")).step({0: [5, 60, 7, 200, *range(40, 120)]})[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "llama"},
        {"model_type": "llama", "num_attention_heads": 8, "head_dim": 8, "tie_word_embeddings": False},
        {"model_type": "qwen2", "rope_theta": 5000.0},
        {"model_type": "qwen3", "head_dim": 24},
    ],
    ids=["llama", "llama untied, eight heads", "qwen2", "qwen3"],
)
def test_the_converted_model_is_the_model_in_the_file(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "tiny", **changes)
    made = convert(write_gguf(tmp_path / "Tiny.gguf", folder), tmp_path / "made")
    ours, theirs = load_file(made / "model.safetensors"), load_file(folder / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert torch.equal(logits(made), logits(folder))
    tokenizer, original = Tokenizer.load(made), Tokenizer.load(folder)
    text = "the quick brown fox, the block table: 삼겹살 👋🏽"
    assert tokenizer.encode(text) == original.encode(text)
    assert tokenizer.eos_token_ids == (2,)
    assert load(made, "float32").config.eos_token_ids == (2,)


def test_quantized_weights_come_out_as_float32_close_to_the_original(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "tiny")
    made = convert(write_gguf(tmp_path / "t.gguf", folder, quantize=True), tmp_path / "made")
    ours, theirs = load_file(made / "model.safetensors"), load_file(folder / "model.safetensors")
    for name, weight in theirs.items():
        assert ours[name].dtype == torch.float32
        torch.testing.assert_close(ours[name], weight, atol=float(weight.abs().max()) / 100, rtol=0)


def test_llama_3_frequency_factors_survive_as_numbers(tmp_path: Path) -> None:
    from engine.models.config import parse_config

    scaled = parse_config(tiny_config(rope_scaling=LLAMA3), {}, "scaled")
    plain = parse_config(tiny_config(), {}, "plain")
    pairs = zip(*(config.rope.inverse_frequencies(config.head_dim) for config in (plain, scaled)), strict=True)
    factors = [before / after for before, after in pairs]
    assert max(factors) > 7, "the scaling does something"
    folder = make_tiny(tmp_path / "tiny", rope_scaling=LLAMA3)
    made = convert(write_gguf(tmp_path / "t.gguf", folder, factors=factors), tmp_path / "made")
    torch.testing.assert_close(logits(made), logits(folder), atol=1e-4, rtol=1e-4)


def test_a_second_call_does_nothing_and_another_source_converts_anew(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "t.gguf", make_tiny(tmp_path / "one", seed=1))
    lines: list[str] = []
    made = convert(source, tmp_path / "made", lines.append)
    assert any("weights" in line for line in lines), "progress is shown"
    assert {"config.json", "model.safetensors", "tokenizer.json", MANIFEST} <= {f.name for f in made.iterdir()}
    before, written = logits(made), (made / "model.safetensors").stat().st_mtime_ns
    lines.clear()
    convert(source, tmp_path / "made", lines.append)
    assert not lines
    assert (made / "model.safetensors").stat().st_mtime_ns == written
    source.unlink()
    write_gguf(source, make_tiny(tmp_path / "two", seed=2))
    convert(source, tmp_path / "made", lines.append)
    assert lines
    assert not torch.equal(logits(made), before)


def test_a_killed_conversion_leaves_nothing_half_made(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "t.gguf", make_tiny(tmp_path / "tiny"))
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom engine.models.convert import convert\n"
        "def die(line):\n    if 'weights' in line: os.kill(os.getpid(), signal.SIGKILL)\n"
        "convert(Path(sys.argv[1]), Path(sys.argv[2]), die)\n"
    )
    made = tmp_path / "models" / "made"
    killed = subprocess.run([sys.executable, "-c", code, str(source), str(made)], cwd=ROOT, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert not made.exists()
    assert list(made.parent.glob(".made.part-*")), "it was killed in the middle"
    convert(source, made)
    load(made, "float32")
    assert not list(made.parent.glob(".made.part-*")), "the next one clears up"


def test_a_folder_that_no_conversion_made_is_left_alone(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "t.gguf", make_tiny(tmp_path / "tiny"))
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(ModelError, match="no conversion made"):
        convert(source, mine)
    assert [file.name for file in mine.iterdir()] == ["thesis.txt"]


def test_the_loader_converts_a_gguf_file_into_the_cache_folder_it_is_given(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "tiny")
    source = write_gguf(tmp_path / "Tiny-X.gguf", folder)
    loaded = load(source, "float32", cache_dir=tmp_path / "cache")
    assert loaded.path.parent == tmp_path / "cache"
    assert loaded.path.name.startswith("tiny-x-")
    assert torch.equal(Paged(loaded).step({0: [5, 6]})[0], Paged(load(folder, "float32")).step({0: [5, 6]})[0])
    assert Tokenizer.load(source, cache_dir=tmp_path / "cache").eos_token_ids == (2,)


def test_the_command_says_in_one_line_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken, foreign = tmp_path / "broken.gguf", tmp_path / "foreign.gguf"
    broken.write_bytes(b"GGUF" + bytes(40))
    (tmp_path / "text.gguf").write_text("hello")
    writer = gguf.GGUFWriter(str(foreign), "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for source, reason in (
        (tmp_path / "none.gguf", "does not exist"),
        (tmp_path, "is not a file"),
        (tmp_path / "text.gguf", "is not a GGUF file"),
        (broken, "damaged GGUF file"),
        (foreign, "'mamba'"),
    ):
        assert main([str(source), str(tmp_path / "made")]) == 1
        error = capsys.readouterr().err
        assert reason in error
        assert error.count("\n") == 1
        assert not (tmp_path / "made").exists()
    assert main([]) == 2


def test_large_models_are_written_in_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.models import convert as convert_module

    folder = make_tiny(tmp_path / "tiny")
    monkeypatch.setattr(convert_module, "SHARD_BYTES", 50_000)
    made = convert(write_gguf(tmp_path / "t.gguf", folder), tmp_path / "made")
    assert len(list(made.glob("model-*-of-*.safetensors"))) > 2
    assert torch.equal(logits(made), logits(folder))
    assert len(tiny_weights(tiny_config())) == len(
        json.loads((made / "model.safetensors.index.json").read_text())["weight_map"]
    )


def test_the_shipped_model_was_converted_exactly(model_path: str) -> None:
    """What SmolLM2's file says about itself has come out: shape, end token, template, digits one by one."""
    config = load(model_path, "float32").config
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (30, 576, 9, 3)
    assert (config.max_position, config.rope.theta, config.tie_embeddings) == (8192, 100000.0, True)
    assert os.stat(Path(model_path) / "model.safetensors").st_mode & 0o044 == 0o044
