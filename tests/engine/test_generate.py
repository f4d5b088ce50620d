"""The command line: streams an answer, and says in one line what cannot work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine import EngineConfig, LLMEngine, SamplingParams, generate

ROOT = Path(__file__).resolve().parents[2]


def command(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "engine.generate", *arguments],
        cwd=ROOT,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_real_model_answers(model_path: str) -> None:
    question = "What is the capital of France? Answer in one short sentence."
    result = command("--model", model_path, question, "--max-tokens", "20", "--dtype", "float32", "--stats")
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout
    assert "answer tokens" in result.stderr


def test_raw_text_is_continued_and_may_come_from_stdin(tiny_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", str(tiny_path), "--raw", "--max-tokens", "8", "--dtype", "float32", "--ignore-eos"]
    assert generate.main(["the quick brown", *arguments]) == 0
    shown = capsys.readouterr().out
    engine = LLMEngine(EngineConfig(model=str(tiny_path), dtype="float32", num_blocks=64))
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    assert shown == engine.generate(["the quick brown"], params)[0].text + "\n"
    result = command("-", *arguments, stdin="the quick brown")
    assert (result.returncode, result.stdout) == (0, shown)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--model", "/does/not/exist", "hello"], 1, "/does/not/exist does not exist"),
        (["--model", "Makefile", "hello"], 1, "Makefile is not a model"),
        (["--model", "docs", "hello"], 1, "is not a model folder"),
        (["--model", "/does/not/exist", ""], 2, "the text is empty"),
        (["--model", "/does/not/exist", " \n\t "], 2, "the text is empty"),
        (["--model", "/does/not/exist", "hello", "--temperature", "-1"], 2, "temperature is out of range: -1.0"),
        (
            ["--model", "/does/not/exist", "hello", "--tensor-parallel", "0"],
            1,
            "tensor_parallel must be a whole number",
        ),
        (["--model", "/does/not/exist", "hello", "--tensor-parallel", "2"], 1, "/does/not/exist does not exist"),
        (["--model", "/does/not/exist", "hello", "--device", "abacus"], 1, "device 'abacus' is not one"),
        (["--model", "/does/not/exist", "hello", "--weights", "int3"], 1, "weights 'int3' is unknown"),
    ],
)
def test_what_cannot_work_is_one_line_on_stderr_and_a_status(
    arguments: list[str], status: int, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert generate.main(arguments) == status
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert says in told.err


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(
    tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate.main(["--model", str(tiny_path), "--dtype", "float32", "x" * 2000]) == 1
    told = capsys.readouterr()
    assert told.err.count("\n") == 1
    assert "at most 511 fit" in told.err


def test_too_little_memory_is_one_line_and_status_1(
    tiny_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C13."""
    monkeypatch.setattr("engine.device.free_host_memory", lambda: 1000)
    assert generate.main(["--model", str(tiny_path), "--dtype", "float32", "hello"]) == 1
    told = capsys.readouterr()
    assert told.err.count("\n") == 1
    assert "set kv_memory_bytes to" in told.err
