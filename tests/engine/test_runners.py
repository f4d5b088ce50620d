"""Which path a model takes on a CPU, and that the choice is told with its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from engine.config import EngineConfig, EngineConfigError
from engine.cpu_runner import CpuRunner
from engine.models.errors import ModelError
from engine.runner import Runner
from engine.runners import load_runner
from kernels.cpu import ops
from tests.engine.tiny import make_foreign, make_tiny

FITTING = {"hidden_size": 128, "head_dim": 32, "intermediate_size": 192}


def settings(folder: Path, **changes: Any) -> EngineConfig:
    return EngineConfig(**{"model": str(folder), "device": "cpu", "num_blocks": 32, "token_budget": 32, **changes})


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "smollm3"])
def test_a_family_that_the_c_decoder_computes_gets_it(model_type: str, tmp_path: Path) -> None:
    with capture_logs() as logs:
        runner = load_runner(settings(make_tiny(tmp_path / "m", model_type, **FITTING)))
    assert isinstance(runner, CpuRunner)
    assert [(entry["event"], entry["weights"]) for entry in logs] == [("runner.cpu", "bf16 0 MiB")]
    assert runner.window is None
    runner.close()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "mistral", "sliding_window": 64}, "windows shorter than its context of 512 tokens"),
        ({"model_type": "llama", "mlp_bias": True}, "biases in its output or MLP projections"),
        ({"model_type": "llama", "head_dim": 24}, "head_dim 24"),
    ],
)
def test_what_it_does_not_compute_goes_through_torch_with_the_reason(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = make_tiny(tmp_path / "m", **{**FITTING, **changes})
    with capture_logs() as logs:
        runner = load_runner(settings(folder))
    assert isinstance(runner, Runner)
    (entry,) = logs
    assert entry["event"] == "runner.torch"
    assert reason in entry["reason"]
    with pytest.raises(EngineConfigError, match=reason):
        load_runner(settings(folder, weights="int8"))


def test_blocks_of_another_size_go_through_torch(tmp_path: Path) -> None:
    with capture_logs() as logs:
        assert isinstance(load_runner(settings(make_tiny(tmp_path / "m", **FITTING), block_size=8)), Runner)
    assert logs[0]["reason"] == "its blocks have 16 tokens, not 8; leave block_size out"


def test_a_window_beyond_the_context_that_is_asked_for_does_not_matter(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "m", "mistral", sliding_window=64, **FITTING)
    runner = load_runner(settings(folder, max_model_len=64))
    assert isinstance(runner, CpuRunner)
    runner.close()
    torch_runner = load_runner(settings(folder, dtype="float32"))
    assert isinstance(torch_runner, Runner)
    assert torch_runner.window == 64


def test_what_our_decoders_do_not_cover_goes_through_transformers_with_the_reason(tmp_path: Path) -> None:
    folder = make_foreign(tmp_path / "m", "phi3")
    for dtype in ("auto", "float32"):
        with capture_logs() as logs:
            assert isinstance(load_runner(settings(folder, dtype=dtype)), Runner)
        (entry,) = logs
        assert entry["event"] == "runner.transformers"
        assert entry["reason"].endswith("not phi3")


def test_weights_are_the_c_decoders_and_a_dtype_is_torchs(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "m", **FITTING)
    for kind, forms in (("int4", ["int4", "int8"]), ("int8", ["int8"]), ("bf16", ["bf16"])):
        with capture_logs() as logs:
            runner = load_runner(settings(folder, weights=kind))
        assert isinstance(runner, CpuRunner)
        assert [part.split()[0] for part in logs[0]["weights"].split(", ")] == forms
        runner.close()
    for dtype in ("float32", "bfloat16"):
        assert isinstance(load_runner(settings(folder, dtype=dtype)), Runner)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"weights": "int3"}, "weights 'int3' is unknown; choose auto, int4, int8, bf16."),
        (
            {"weights": "int4", "dtype": "bfloat16"},
            "weights int4 is for the C++ decoder, dtype bfloat16 for torch",
        ),
        ({"dtype": "low-bit"}, "dtype 'low-bit' is unknown; choose auto, float32"),
    ],
)
def test_settings_that_cannot_be_are_one_line(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises((EngineConfigError, ModelError)) as caught:
        load_runner(settings(make_tiny(tmp_path / "m", **FITTING), **changes))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_are_refused_where_there_is_no_cpu_to_run_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    for device in ("auto", "cuda"):
        with pytest.raises(EngineConfigError, match="weights int8 are for a CPU only"):
            load_runner(settings(tmp_path, weights="int8", device=device))


def test_where_there_is_no_compiler_torch_computes_and_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "why_not", lambda: "no C++ compiler found")
    folder = make_tiny(tmp_path / "m", "llama", **FITTING)
    with capture_logs() as logs:
        assert isinstance(load_runner(settings(folder, dtype="float32")), Runner)
    assert [(entry["event"], entry["reason"]) for entry in logs] == [("runner.kernels", "no C++ compiler found")]
