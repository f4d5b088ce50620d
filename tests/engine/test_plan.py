"""The planner: its figures against counting by hand, the real model both ways, and one line for what cannot work."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import EngineConfig, SamplingParams, protocol
from engine.bus import connect
from engine.kv_plan import blocks_of, mix_that_fits, spread, unused_slots
from engine.models.config import ModelError
from engine.models.kv_shape import KvShape, read_shape
from engine.occupancy import Occupancy
from engine.occupancy_wire import compress, encode_head
from engine.plan import BLOCK_SIZES, main, parse_size, percentile, read_lengths, sequences_that_fit, waste
from engine.runner import Runner
from kernels.cpu.kv_layout import KvLayout
from tests.conftest import ROOT
from tests.engine.null_model import null_engine
from tests.engine.tiny import make_tiny

GGUF = ROOT / ".cache/gguf/SmolLM2-135M-Instruct.Q4_1.gguf"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(list(arguments)) == 0
    printed = capsys.readouterr()
    assert not printed.err
    return printed.out.splitlines()


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a wrong command gets, and nothing on standard output."""
    assert main(list(arguments)) == 2
    printed = capsys.readouterr()
    assert not printed.out
    assert printed.err.count("\n") == 1
    return printed.err.removeprefix("engine.plan: ").strip()


def row(lines: list[str], first: str) -> list[str]:
    """The cells of the table row that begins so."""
    return next(words for line in lines if (words := line.split()) and words[0] == first)


# --- figures ----------------------------------------------------------------------------------------------------------


def test_a_token_of_smollm2_takes_23040_bytes_and_its_folder_and_gguf_file_have_the_same_plan(
    model_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = [run(capsys, "--model", model, "--memory", "8GiB") for model in (model_path, str(GGUF))]
    assert plans[0][0].removeprefix(model_path) == plans[1][0].removeprefix(str(GGUF))
    assert plans[0][1:] == plans[1][1:]
    text = "\n".join(plans[0])
    assert "30 layers, 3 KV heads of 64, context 8,192" in text
    assert "23,040 bytes a token (22.5 KiB)" in text
    assert "46,080 bytes a token (45.0 KiB)" in text
    blocks = 8 * 2**30 // (16 * 23_040)
    assert row(plans[0], "blocks") == ["blocks", f"{blocks:,}"]
    assert row(plans[0], "tokens") == ["tokens", f"{16 * blocks:,}"]
    assert row(plans[0], "8,192")[1] == f"{blocks // 512:,}"


def test_float32_halves_what_fits(model_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    half = run(capsys, "--model", model_path, "--memory", "1GiB", "--dtype", "float32")
    assert row(half, "blocks") == ["blocks", f"{2**30 // (16 * 46_080):,}"]


def test_int8_keys_and_values_take_what_the_decoder_takes_and_nearly_double_what_fits(
    model_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run(capsys, "--model", model_path, "--memory", "1GiB", "--kv-dtype", "int8")
    block_bytes = 30 * KvLayout(kv_heads=3, head_dim=64, dtype="int8").block_bytes
    assert row(lines, "bytes")[-1] == f"{block_bytes:,}"
    assert row(lines, "blocks") == ["blocks", f"{2**30 // block_bytes:,}"]
    assert 1.9 < 16 * 23_040 / block_bytes < 2
    assert "1.0 GiB, int8 KV, blocks of 16 tokens" in "\n".join(lines)


@pytest.mark.parametrize(("arguments", "kv_dtype"), [(["--dtype", "float16"], "int8"), ([], "fp8")])
def test_torchs_eight_bits_have_scales_of_four_bytes_as_its_runner_has(
    arguments: list[str], kv_dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_tiny(tmp_path / "tiny", num_hidden_layers=3)
    lines = run(capsys, "--model", str(folder), "--memory", "1GiB", "--kv-dtype", kv_dtype, *arguments)
    config = EngineConfig(model=str(folder), dtype="float32", device="cpu", num_blocks=2, kv_dtype=kv_dtype)
    runner = Runner.load(config)
    assert row(lines, "bytes")[-1] == f"{runner.block_bytes:,}"
    assert runner.block_bytes * 2 == sum(part.nbytes for part in runner._blocks._parts)
    assert f"1.0 GiB, {kv_dtype} KV, blocks of 16 tokens" in "\n".join(lines)


def test_of_a_model_that_ranks_share_each_holds_its_own_heads(
    model_path: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ("--model", model_path, "--memory", "1GiB", "--tensor-parallel")
    third, sixth = run(capsys, *arguments, "3"), run(capsys, *arguments, "6")
    assert "1 KV heads of 64 on each of 3 ranks" in third[0]
    assert row(third, "blocks") == ["blocks", f"{2**30 // (16 * 23_040 // 3):,}"]
    assert row(sixth, "blocks") == row(third, "blocks"), "two have the same head"
    assert "3 KV heads, which do not go with 2 ranks" in failure(capsys, *arguments, "2")
    int8 = run(capsys, *arguments, "3", "--kv-dtype", "int8")
    assert row(int8, "bytes")[-1] == f"{16 * 2 * 30 * (64 + 4):,}", "through torch"
    assert "--tensor-parallel must be 1 or more, not 0" in failure(capsys, *arguments, "0")


@given(
    blocks=st.integers(1, 400),
    block_size=st.sampled_from([1, 8, 16, 100]),
    length=st.integers(1, 600),
    shared=st.integers(0, 700),
)
def test_as_many_sequences_fit_as_can_be_counted_into_the_pool(
    blocks: int, block_size: int, length: int, shared: int
) -> None:
    together = min(shared, length - 1) // block_size
    used, count = together, 0
    while (used := used + -(-length // block_size) - together) <= blocks:
        count += 1
    assert sequences_that_fit(blocks, block_size, length, shared) == count


@given(st.dictionaries(st.integers(1, 3000), st.integers(1, 20), min_size=1), st.sampled_from(BLOCK_SIZES))
def test_waste_is_what_the_last_blocks_leave_empty(lengths: dict[int, int], block_size: int) -> None:
    every = [length for length, count in lengths.items() for _ in range(count)]
    empty = [-length % block_size for length in every]
    blocks = [-(-length // block_size) for length in every]
    figures = waste(Counter(lengths), block_size)
    assert figures.slots == pytest.approx(sum(empty) / len(every))
    assert figures.blocks == pytest.approx(sum(blocks) / len(every))
    assert figures.share == pytest.approx(sum(empty) / (sum(blocks) * block_size))
    assert percentile(Counter(lengths), 0.5) == sorted(every)[(len(every) - 1) // 2]


def test_four_sequences_in_blocks_of_16_have_the_blocks_and_unused_slots_counted_by_hand() -> None:
    lengths = (32, 50, 17, 80)
    assert [blocks_of(length, 16) for length in lengths] == [2, 4, 2, 5]
    assert [unused_slots(length, 16) for length in lengths] == [0, 14, 15, 0]
    figures = waste(Counter(lengths), 16)
    assert (figures.slots, figures.blocks, figures.share) == (29 / 4, 13 / 4, 29 / 208)


@given(
    st.dictionaries(st.integers(1, 300), st.integers(1, 5), min_size=1, max_size=5),
    st.sampled_from([1, 8, 16, 100]),
    st.integers(0, 350),
    st.integers(0, 4000),
)
def test_of_a_mix_of_lengths_as_many_fit_as_whole_rounds_of_it_leave_room_for(
    lengths: dict[int, int], block_size: int, shared: int, blocks: int
) -> None:
    mix = Counter(lengths)
    once = min(shared, max(mix) - 1) // block_size
    a_round = sum(-(-length // block_size) - min(shared, length - 1) // block_size for length in mix.elements())
    fit = mix_that_fits(blocks, block_size, mix, shared)
    rounds = max(0, blocks - once) // a_round
    assert rounds * mix.total() <= fit < (rounds + 1) * mix.total()


@given(st.integers(1, 20_000), st.integers(1, 50_000), st.integers(1, 40_000))
def test_a_spread_of_lengths_has_the_median_and_the_tail_that_were_asked_for(
    median: int, high: int, longest: int
) -> None:
    lengths = spread(median, high, longest)
    assert lengths.total() == 200
    assert 1 <= min(lengths) <= max(lengths) <= longest
    assert percentile(lengths, 0.5) <= min(median, longest)
    end = min(max(high, median), longest)
    assert percentile(lengths, 0.94) - 1 <= end <= percentile(lengths, 0.96) + 1


def test_a_longer_prefix_that_is_shared_lets_more_sequences_in(
    model_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run(capsys, "--model", model_path, "--prefix", "500", "--prefix", "1000")
    alone, some, more = (int(cell.replace(",", "")) for cell in row(lines, "2,048")[1:])
    assert alone < some < more
    assert row(lines, "512")[2:] != ["-", "-"]
    assert row(lines, "512")[3] == "-"


def test_lengths_beyond_the_models_context_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "--model", folder(tmp_path, max_position_embeddings=1500))
    begins = [words[0] for line in lines if (words := line.split())]
    assert "1,500" in begins
    assert "2,048" not in begins


def test_the_chosen_block_size_is_marked_among_the_others(model_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "--model", model_path, "--block-size", "24")
    assert row(lines, "24")[-1] == "<"
    assert sum(line.endswith(" <") for line in lines) == 1


# --- where the lengths come from --------------------------------------------------------------------------------------


def test_without_lengths_the_example_says_that_it_is_made_up(
    model_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert any("made-up example" in line for line in run(capsys, "--model", model_path))


def test_lengths_are_read_one_a_line_with_counts_and_comments(
    tmp_path: Path, model_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lengths"
    path.write_text("# yesterday\n100\n100 2\n\n17, 3  # short ones\n")
    assert read_lengths(str(path)) == {100: 3, 17: 3}
    lines = run(capsys, "--model", model_path, "--lengths", str(path))
    assert any(f"lengths from {path}" in line for line in lines)
    # (112 - 100 + 32 - 17) / 2 empty slots in (7 + 2) / 2 blocks
    assert row(lines, "16")[1:4] == ["13.5", "18.8%", "4.5"]


def test_lengths_are_sampled_from_what_a_worker_has_shown(
    redis_url: str, model_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client = connect(redis_url)
    client.flushall()
    client.zadd(protocol.WORKERS, {"w1": 1, "w2": 2})
    for worker, prompts in (("w1", [5, 9]), ("w2", [13])):
        engine = null_engine(num_blocks=32)
        for number, length in enumerate(prompts):
            engine.add_request(str(number), [number + 1] * length, SamplingParams(max_tokens=4))
        engine.step()
        frame = Occupancy(engine, worker=worker).frame(1)
        assert frame is not None
        fields = {"head": encode_head(frame.head), "cells": compress(frame.columns)}
        client.xadd(protocol.occupancy_key(worker), fields)
    client.close()
    one = run(capsys, "--model", model_path, "--redis", redis_url, "--worker", "w1")
    assert any("2 sequences: mean 7 tokens" in line for line in one)  # those that are in slots
    every = run(capsys, "--model", model_path, "--redis", redis_url, "--worker", "all")
    assert any("3 sequences: mean 9 tokens" in line for line in every)
    assert "w3 has shown" in failure(capsys, "--model", model_path, "--redis", redis_url, "--worker", "w3")


@pytest.mark.parametrize(
    ("model_type", "says"), [("t5", "is an encoder-decoder"), ("mamba", "state-space"), ("jamba", "state-space")]
)
def test_a_model_that_the_engine_refuses_has_no_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model_type: str, says: str
) -> None:
    config = {"model_type": model_type, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert says in failure(capsys, "--model", str(tmp_path))


def test_lengths_of_an_odd_file_are_read_or_refused_in_one_line(
    tmp_path: Path, model_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lengths"
    path.write_text("100\n", encoding="utf-8-sig")
    assert read_lengths(str(path)) == {100: 1}
    path.write_text("9" * 5000)
    assert "line 1" in failure(capsys, "--model", model_path, "--lengths", str(path))


# --- what a model is --------------------------------------------------------------------------------------------------


def folder(path: Path, **changes: object) -> str:
    config: dict[str, object] = {
        "model_type": "gpt_neox",
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "hidden_size": 512,
        "max_position_embeddings": 2048,
    }
    (path / "config.json").write_text(json.dumps({**config, **changes}))
    return str(path)


def test_a_model_that_only_transformers_runs_can_be_planned_for(tmp_path: Path) -> None:
    assert read_shape(folder(tmp_path)) == KvShape(6, 8, 64, 2048)
    assert read_shape(folder(tmp_path, head_dim=80, num_key_value_heads=2)) == KvShape(6, 2, 80, 2048)
    nested = {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 64, "max_position_embeddings": 99}
    assert read_shape(folder(tmp_path, text_config=nested)) == KvShape(4, 4, 16, 99)


def test_the_old_names_of_gpt_2_are_understood(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}')
    assert read_shape(str(tmp_path)) == KvShape(12, 12, 64, 1024)


def test_a_model_that_is_not_there_is_refused_without_asking_the_network() -> None:
    with pytest.raises(ModelError, match="was not downloaded before"):
        read_shape("nobody/nothing-of-that-name")


@pytest.mark.parametrize(
    ("content", "words"),
    [("[]", "not a JSON object"), ("{", "cannot be read as JSON"), ('{"n_head": 2}', "num_hidden_layers=None")],
)
def test_a_damaged_config_is_said_in_one_line(
    content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(content)
    assert words in failure(capsys, "--model", str(tmp_path))


def test_a_damaged_gguf_file_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content, words in ((b"GGUF\x03\0\0", "damaged GGUF"), (b"PK\3\4", "neither a folder"), (b"", "neither")):
        (tmp_path / "m.gguf").write_bytes(content)
        assert words in failure(capsys, "--model", str(tmp_path / "m.gguf"))


# --- wrong commands ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--model"),
        (["--model", "/nowhere"], "/nowhere is no model: there is nothing of that name"),
        (["--model", "/"], "it has no config.json"),
        (["--model", "MODEL", "--memory", "lots"], "'lots' is no size"),
        (["--model", "MODEL", "--memory", "0GiB"], "no memory at all"),
        (["--model", "MODEL", "--memory", "100KiB"], "one of 16 tokens takes 360.0 KiB"),
        (["--model", "MODEL", "--block-size", "0"], "--block-size must be 1 or more, not 0"),
        (["--model", "MODEL", "--block-size", "many"], "invalid int value: 'many'"),
        (["--model", "MODEL", "--prefix", "-3"], "--prefix must be 1 or more, not -3"),
        (["--model", "MODEL", "--dtype", "int3"], "int3"),
        (["--model", "MODEL", "--kv-dtype", "int4"], "int4"),
        (["--model", "MODEL", "--lengths", "/nowhere"], "/nowhere cannot be read (No such file or directory)"),
        (["--model", "MODEL", "--lengths", "x", "--worker", "y"], "leave one of them out"),
        (["--model", "MODEL", "--worker", "w", "--redis", ""], "REDIS_URL"),
        (["--model", "MODEL", "--worker", "w", "--redis", "unix:///nowhere"], "Redis cannot be used"),
        (["--model", "MODEL", "--worker", "w", "--redis", "ftp://x"], "Redis cannot be used"),
    ],
)
def test_a_wrong_command_gets_one_line_that_says_what_is_wrong(
    arguments: list[str], words: str, model_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in failure(capsys, *(model_path if word == "MODEL" else word for word in arguments))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("100\nten\n", "line 2: 'ten'"),
        ("100 2 3\n", "line 1: '100 2 3'"),
        ("0\n", "line 1: '0'"),
        ("-5\n", "line 1"),
        ("1.5\n", "line 1"),
        ("# nothing\n", "holds no lengths"),
        ("", "holds no lengths"),
    ],
)
def test_a_wrong_line_of_lengths_is_named(
    content: str, words: str, tmp_path: Path, model_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lengths"
    path.write_text(content)
    assert words in failure(capsys, "--model", model_path, "--lengths", str(path))


def test_lengths_that_are_no_text_are_refused(
    tmp_path: Path, model_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lengths").write_bytes(b"\xff\xfe\x80")
    assert "it is no text" in failure(capsys, "--model", model_path, "--lengths", str(tmp_path / "lengths"))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 << 30),
        ("8G", 8 << 30),
        ("8GB", 8 * 10**9),
        ("1.5 MiB", 3 << 19),
        ("640k", 640 << 10),
        ("7", 7),
        ("7b", 7),
    ],
)
def test_sizes_are_read_with_their_units(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_planning_loads_neither_torch_nor_a_redis_client(model_path: str) -> None:
    code = (
        "import sys; from engine.plan import main; status = main(['--model', sys.argv[1]])\n"
        "assert status == 0 and not {'torch', 'transformers', 'redis'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, model_path], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
