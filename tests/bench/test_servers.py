"""The servers that the table compares: found, started with the right words, measured, ended; failures are lines."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench import peers, serve
from bench.children import family
from bench.load import Work
from bench.servers import GGUF, cores, find_llama_server, llama_server, octavo, shares
from tests.stack import ROOT, wait_for

LITTLE = Work(tenants=2, users=1, turns=1, system_words=10, words=5, max_tokens=6)


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "ALL", {"16 users": LITTLE, "one user": LITTLE})


def script(path: Path, *lines: str) -> str:
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A llama-server that answers in words of its own; the file holds its number and its arguments."""
    told = tmp_path / "told"
    run = f'exec {shlex.quote(sys.executable)} -m tests.bench.chat_server "$@"'
    monkeypatch.setenv("LLAMA_SERVER", script(tmp_path / "llama-server", f'echo $$ "$@" > {told}', run))
    return told


def gone(number: int) -> bool:
    return not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE


def test_llama_server_comes_from_its_variable_and_else_from_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = script(tmp_path / "llama-server", "true")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    assert find_llama_server() == program
    monkeypatch.setenv("LLAMA_SERVER", "another")
    assert find_llama_server() == "another"


def test_llama_server_gets_the_products_model_a_slot_a_user_and_every_core(llama: Path) -> None:
    column = serve.llama_column()
    assert not column.notes
    assert column.figures["16 users: answers"] == 2
    assert "one user: ITL p50, ms" in column.figures
    number, *arguments = llama.read_text().split()
    for words in (f"-m {GGUF}", "-np 16", "-c 65536", "--kv-unified", f"-t {cores()}", "--host 127.0.0.1"):
        assert words in " ".join(arguments)
    assert gone(int(number))


def test_an_error_while_it_is_measured_ends_llama_server(llama: Path) -> None:
    with pytest.raises(ZeroDivisionError), llama_server(str(find_llama_server())):
        raise ZeroDivisionError
    assert gone(int(llama.read_text().split()[0]))


def test_an_absent_peer_is_named_with_how_to_provide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    column = serve.llama_column()
    assert not column.figures
    assert ["LLAMA_SERVER" in note for note in column.notes] == [True]


@pytest.mark.parametrize(
    ("lines", "said"),
    [(["echo no such model >&2", "exit 1"], "failed: it ended with status 1: no such model"), (None, "cannot be run")],
)
def test_a_peer_that_does_not_start_is_a_line_below_the_table(
    lines: list[str] | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "llama-server"
    monkeypatch.setenv("LLAMA_SERVER", script(program, *lines) if lines else str(program))
    column = serve.llama_column()
    assert not column.figures
    assert [said in note for note in column.notes] == [True]


def test_what_transformers_has_found_before_it_failed_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_module(module: str, *arguments: str, timeout_s: float) -> None:
        found = {"dtype": "bfloat16", "generate": 40.0, "one user: ITL p50, ms": 30.0, "generate_batch": "no room"}
        Path(arguments[1]).write_text(json.dumps(found))
        raise serve.ChildError("bench.peers took longer than 300 s")

    monkeypatch.setattr(serve, "run_module", run_module)
    column = serve.transformers_column()
    assert column.figures == {"16 users: output tok/s": 40.0, "one user: ITL p50, ms": 30.0}
    assert [note.partition(":")[0] for note in column.notes] == [
        "output tok/s of 16 requests at once, bfloat16",
        "generate_batch failed",
        "failed",
    ]


def test_transformers_counts_every_token_of_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    clocks: list[peers.Clock] = []

    class Kept(peers.Clock):
        def __init__(self) -> None:
            super().__init__()
            clocks.append(self)

    monkeypatch.setattr(peers, "Clock", Kept)
    figures = peers.one_request(model, [1, 2, 3], 5)
    assert len(clocks[0].times) == 1 + 5, "the prompt, then every token"
    assert set(figures) == {
        f"one user: {name}" for name in ("output tok/s", "TTFT p50, s", "ITL p50, ms", "ITL p95, ms")
    }
    assert all(value > 0 for value in figures.values())


def test_shares_are_of_the_whole_and_the_largest_comes_first() -> None:
    assert shares({"web": 1.0, "engine": 9.0}) == {"engine": 0.9, "web": 0.1}
    assert list(shares({"web": 1.0, "engine": 9.0})) == ["engine", "web"]
    assert shares({"web": 0.0}) == {}


# --- the real product -------------------------------------------------------------------------------------------------


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders are made, other tests' not. Its path is short, as sockets want it."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def folders(place: Path) -> list[Path]:
    return list(place.glob("octavo-bench-*"))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_product_is_measured_with_its_programs_cpu_time_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    members: list[psutil.Process] = []
    cpu_of = serve.Product.cpu

    def watched(product: serve.Product) -> Any:
        members.extend(family(product.process))
        assert folders(place)
        return cpu_of(product)

    monkeypatch.setattr(serve.Product, "cpu", watched)
    column, cpu = serve.octavo_column()
    assert ["prompts" in note for note in column.notes] == [True]
    assert column.figures["16 users: answers"] == 2
    assert {"engine", "web", "recorder", "redis"} <= set(cpu)
    assert sum(cpu.values()) == pytest.approx(1)
    assert max(cpu, key=lambda name: cpu[name]) == "engine"
    assert len(members) > 5
    wait_for(lambda: not [m for m in members if m.is_running() and m.status() != psutil.STATUS_ZOMBIE], 10)
    assert not folders(place)


@pytest.fixture
def bench(place: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench", "--only", "octavo"]
    running = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell's background job has Ctrl-C switched off, and hands that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    yield running
    running.kill()
    running.communicate()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_ctrl_c_while_the_product_answers_leaves_nothing_behind(bench: subprocess.Popen[str], place: Path) -> None:
    assert bench.stdout is not None
    for line in bench.stdout:
        if "16 users" in line:
            break
    members = psutil.Process(bench.pid).children(recursive=True)
    assert len(members) > 5
    assert folders(place)
    bench.send_signal(signal.SIGINT)
    assert "nothing is left running" in bench.communicate(timeout=90)[0]
    assert bench.returncode == 130
    assert not [m for m in members if m.is_running() and m.status() != psutil.STATUS_ZOMBIE]
    assert not folders(place)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_product_that_does_not_start_is_an_error_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_WORKER_TOKEN_BUDGET", "many")
    with pytest.raises(serve.ChildError, match="Octavo could not start engine"), octavo():
        pytest.fail("it cannot have started")
