"""The engine's own way through the GPU's kernels, in Triton's interpreter on a CPU: the answers of the torch path.

All is as on a GPU but the device: which kernels are called with which arrays, the groups of shared prefixes, recorded
steps over padded rows, copies. So a first run on a GPU meets no fault of wiring.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import pytest

import kernels.triton
from engine import EngineConfig, LLMEngine, SamplingParams
from engine.graphs import Work
from engine.models.loader import load
from engine.runner import Runner
from engine.tokenizer import Tokenizer
from kernels import api
from kernels.triton import grouped, paged, split
from tests.engine.test_graphs import Recorder, poison
from tests.engine.tiny import make_foreign, make_tiny

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # numpy's, of NaN and infinity

BLOCK = 8
SHARED = [3 + (i * i * 7) % 370 for i in range(40)]
SHAPE: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny", "qwen3", num_hidden_layers=1, **SHAPE)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """From here on kernels.api takes the GPU's path; how often each of its functions was called."""
    counted = Counter[str]()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            counted[name] += 1
            return function(*arguments, **keywords)

        return call

    monkeypatch.setattr(api, "through_triton", lambda x: True)
    for name in kernels.triton.__all__:
        monkeypatch.setattr(kernels.triton, name, counting(name, getattr(kernels.triton, name)))
    monkeypatch.setattr(grouped, "attend", counting("grouped", grouped.attend))
    monkeypatch.setattr(grouped, "find_groups", counting("find_groups", grouped.find_groups))
    # What pays on a GPU is far larger than a test.
    monkeypatch.setattr(grouped, "MIN_SAVED", 2 * BLOCK)
    monkeypatch.setattr(split, "MIN_SEGMENT", 16)
    monkeypatch.setattr(paged, "PROGRAMS_PER_SM", 8)
    return counted


def engine_over(model: Path, record: Callable[[Work], Work] | None = None, **settings: Any) -> LLMEngine:
    defaults = {"model": str(model), "dtype": "float32", "device": "cpu", "num_blocks": 40, "block_size": BLOCK}
    config = EngineConfig(**{**defaults, "max_num_seqs": 4, "token_budget": 24, **settings})
    runner = Runner(load(str(model), "float32", "cpu"), config, record=record)
    return LLMEngine(config, runner=runner, tokenizer=Tokenizer.load(str(model)))


Request = tuple[list[int], SamplingParams]


def answers(engine: LLMEngine, *rounds: list[Request]) -> list[Any]:
    """The requests of each round together, one round after the other."""
    said: dict[tuple[str, int], list[int]] = {}
    for at, requests in enumerate(rounds):
        for number, (prompt, params) in enumerate(requests):
            engine.add_request(f"{at} {number}", prompt, params)
        while engine.has_work():
            for output in engine.step():
                assert output.error is None
                said.setdefault((output.request_id, output.index), []).extend(output.new_token_ids)
            engine.check_integrity()
    return sorted(said.items())


def noting(replayed: list[tuple[int, bool]], key: tuple[int, bool], work: Work) -> Work:
    def replay() -> None:
        replayed.append(key)
        work()

    return replay


def greedy(tokens: int, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, **more)


FIRST: list[Request] = [(SHARED, greedy(2))]
REQUESTS: list[Request] = [
    # The shared beginning ends within a block, which these copy.
    ([*SHARED[:36], 9, 8], greedy(12)),
    ([*SHARED[:36], 7], SamplingParams(max_tokens=9, seed=3, temperature=0.9, top_p=0.9, ignore_eos=True)),
    ([*SHARED[:20], 4], greedy(6)),
    (SHARED[5:], greedy(7, n=2)),
]


@pytest.mark.parametrize("recorded", [False, True])
def test_the_engine_gives_the_same_answers_through_the_kernels_of_a_gpu(
    recorded: bool, model: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks, decodes, groups, copied blocks; recorded steps with padded rows, plain and grouped. K8, K13."""
    wanted = answers(engine_over(model), FIRST, REQUESTS)
    calls: Counter[str] = request.getfixturevalue("calls")
    if not recorded:
        monkeypatch.setattr(grouped, "CHECK", True)
    engine = engine_over(model, Recorder() if recorded else None, overlap=recorded)
    runner = engine.runner
    assert isinstance(runner, Runner)
    replayed: list[tuple[int, bool]] = []
    launch = runner.launch

    def launch_over_leftovers(*arguments: Any) -> Any:
        poison(runner)
        return launch(*arguments)

    monkeypatch.setattr(runner, "launch", launch_over_leftovers)
    if recorded:
        assert runner._graphs is not None
        for key, work in runner._graphs._replay.items():
            runner._graphs._replay[key] = noting(replayed, key, work)
    calls.clear()
    assert answers(engine, FIRST, REQUESTS) == wanted
    assert engine.counters()["cached_tokens"] >= 2 * 36 + 16
    assert calls["grouped"] > 5
    assert calls["find_groups"] < 0.75 * engine.steps, "found anew only where the sequences are others"
    used = {"copy_blocks", "add_rms_norm", "rope_write_kv", "silu_mul", "paged_attention", "pick"}
    assert used <= {name for name in calls if calls[name]}
    if recorded:
        assert {(4, True), (1, False)} <= set(replayed)
        assert len(replayed) > 8


def test_the_comparison_of_grouped_and_plain_attention_keeps_steps_from_being_recorded(
    model: Path, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the device."""
    monkeypatch.setattr(grouped, "CHECK", True)
    runner = engine_over(model, Recorder()).runner
    assert isinstance(runner, Runner)
    assert runner._graphs is None


@pytest.mark.long
@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_blocks_that_go_to_the_host_and_keys_in_eight_bits_change_no_answer(
    kv_dtype: str, model: Path, request: pytest.FixtureRequest
) -> None:
    """A pool so small that prompts leave it and come back."""
    settings: dict[str, Any] = {"kv_dtype": kv_dtype, "num_blocks": 14, "host_kv_memory_bytes": 1 << 20}
    flood = [3 + (i * 31 + 5) % 370 for i in range(100)]
    asked = FIRST, REQUESTS, [(flood, greedy(2))], REQUESTS[:2]
    wanted = answers(engine_over(model, **settings), *asked)
    calls: Counter[str] = request.getfixturevalue("calls")
    engine = engine_over(model, Recorder(), overlap=True, **settings)
    assert answers(engine, *asked) == wanted
    assert engine.counters()["host_loaded_blocks"] > 0
    assert calls["grouped"] > 5


@pytest.mark.parametrize("settings", [{}, pytest.param({"batch_invariant": True}, marks=pytest.mark.long)], ids=str)
def test_nothing_is_compiled_once_the_engine_has_started(settings: dict[str, Any], model: Path) -> None:
    """K14: over batches of 1 to 12 sequences, chunks, groups, copies and scored prompts."""
    command = [sys.executable, "-m", "tests.engine.triton_keys", str(model), json.dumps(settings)]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    known, launched, later = json.loads(done.stdout.splitlines()[-1])
    assert later == []
    assert launched > 500
    assert known >= 8


@pytest.mark.long
@pytest.mark.parametrize("family", ["smollm3", "mistral", "gemma2"])
def test_windows_caps_and_modules_of_transformers_give_the_same_answers(
    family: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Layers without rotation; windows in all layers, where no groups are looked for; and in every other one, with
    capped scores, over q as transformers lays it out."""
    shape: dict[str, Any] = {"num_hidden_layers": 2, **SHAPE}
    if family == "gemma2":
        folder = make_foreign(tmp_path / "m", family, sliding_window=20, attn_logit_softcapping=2.0, **shape)
    elif family == "mistral":
        folder = make_tiny(tmp_path / "m", family, sliding_window=20, **shape)
    else:
        folder = make_tiny(tmp_path / "m", family, no_rope_layers=[1, 0], **shape)
    asked = FIRST, REQUESTS[1:4]
    wanted = answers(engine_over(folder), *asked)
    calls: Counter[str] = request.getfixturevalue("calls")
    engine = engine_over(folder, Recorder())
    assert answers(engine, *asked) == wanted
    assert isinstance(engine.runner, Runner)
    assert (calls["grouped"] > 0) == (family != "mistral")
    assert (engine.runner._graphs is None) == (family == "gemma2")


@pytest.mark.long
def test_padded_tiles_in_a_fixed_order_give_the_same_answers(model: Path, request: pytest.FixtureRequest) -> None:
    """batch_invariant: one variant of the kernel, no groups, nothing recorded."""
    wanted = answers(engine_over(model), FIRST, REQUESTS[1:4])
    calls: Counter[str] = request.getfixturevalue("calls")
    engine = engine_over(model, Recorder(), batch_invariant=True)
    assert answers(engine, FIRST, REQUESTS[1:4]) == wanted
    assert calls["paged_attention"] > 0
    assert calls["find_groups"] == 0
