"""The GPU benchmark: its arithmetic, its targets, and all of it in miniature where there is no GPU."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.gpu import __main__ as program
from bench.gpu import counts, made, oracle, parts, sizes
from bench.gpu import report as reports
from bench.gpu.checks import Checks
from bench.gpu.clock import Clock
from bench.gpu.counts import LLAMA_8B, QWEN3_06B, Shape
from bench.gpu.judge import Wrong
from bench.gpu.parts import PARTS
from bench.gpu.report import TARGETS, Report, Row, Target, verdict, worst
from bench.gpu.step import Watch
from kernels import reference
from kernels import triton as gpu
from kernels.api import AttentionMetadata, CacheLayer

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),  # numpy's, of NaN and infinity
    pytest.mark.filterwarnings("ignore:flex_attention called without"),  # on a GPU it is compiled
]

ROOT = Path(__file__).parents[2]


def bench(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.gpu", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **settings},
        capture_output=True,
        text=True,
        check=False,
    )


# --- arithmetic -------------------------------------------------------------------------------------------------------


def test_a_small_step_s_bytes_are_those_counted_by_hand() -> None:
    shape = Shape(layers=2, hidden=8, heads=4, kv_heads=2, dim=3, inner=10, vocabulary=7, tied=False)
    # qkv 8 x 24, output 12 x 8, gate, up and down 3 x 80, two norms of 8.
    assert counts.weights_read(shape) == 2 * (192 + 96 + 240 + 16) + 8 + 7 * 8
    assert counts.kv_token(shape, 2) == 2 * 2 * 2 * 3 * 2
    assert counts.step_bytes(shape, [5, 6]) == 1152 * 2 + 11 * 48


@pytest.mark.parametrize(
    ("shape", "parameters", "kv"),
    [(LLAMA_8B, 8_030_261_248, 131_072), (QWEN3_06B, 596_049_920, 114_688)],
    ids=["llama 8B", "qwen3 0.6B"],
)
def test_the_shapes_are_those_of_the_published_models(shape: Shape, parameters: int, kv: int) -> None:
    """Their published counts of parameters, an untied embedding included, and bytes of a token in bfloat16."""
    embedding = 0 if shape.tied else shape.vocabulary * shape.hidden
    assert counts.weights_read(shape) + embedding == parameters
    assert counts.kv_token(shape, 2) == kv


def test_decode_attention_moves_keys_and_values_once_and_queries_and_results() -> None:
    # 30 tokens of K and V, 2 rows of q and out, of 2 and 4 heads.
    assert counts.decode_bytes([10, 20], heads=4, kv_heads=2, dim=8) == (2 * 30 * 2 + 2 * 2 * 4) * 8 * 2


@pytest.mark.parametrize(("length", "rows", "pairs"), [(3, 3, 1 + 2 + 3), (5, 2, 4 + 5), (4, 1, 4)])
def test_a_causal_row_sees_itself_and_what_is_before_it(length: int, rows: int, pairs: int) -> None:
    assert counts.pairs(length, rows) == pairs
    assert counts.attention_flops(length, rows, heads=2, dim=8) == pairs * 2 * 8 * 4


# --- made-up steps ----------------------------------------------------------------------------------------------------


def test_sequences_share_their_first_blocks_and_nothing_else() -> None:
    steps = made.sequences([70, 50, 33], [1, 1, 1], 20, 16, np.random.default_rng(0), shared=2)
    needed = [5, 4, 3]
    assert (steps.tables[:, :2] == steps.tables[0, :2]).all()
    own = [block for seq, count in enumerate(needed) for block in steps.tables[seq, 2:count]]
    assert len({*own, *steps.tables[0, :2].tolist()}) == sum(needed) - 4
    assert all((steps.tables[seq, count:] == made.GARBAGE).all() for seq, count in enumerate(needed))


def test_a_pool_smaller_than_its_sequences_is_gone_through_again() -> None:
    steps = made.sequences([160] * 3, [1] * 3, 7, 16, np.random.default_rng(0))
    blocks = steps.tables[:, :10].flatten()
    assert np.bincount(blocks, minlength=7).min() >= 30 // 7


@pytest.mark.parametrize(("window", "softcap"), [(None, None), (9, None), (None, 2.0)])
def test_the_float64_oracle_is_the_float32_one(window: int | None, softcap: float | None) -> None:
    steps = made.sequences([40, 7, 19], [3, 7, 1], 9, 16, np.random.default_rng(1))
    torch.manual_seed(1)
    layer = CacheLayer(torch.randn(9, 16, 2, 8), torch.randn(9, 16, 2, 8))
    q = torch.randn(11, 6, 8)
    found = oracle.attention(q, layer, steps, 0.3, window, softcap)
    meta = steps.metadata(torch.device("cpu"))
    expected = reference.paged_attention(q, layer, meta, 0.3, window=window, softcap=softcap)
    torch.testing.assert_close(found.float(), expected)


def test_a_token_may_be_drawn_only_where_the_uniform_number_points() -> None:
    logits = torch.tensor([0.5, 0.25, 0.2, 0.05]).log()
    free = [1.0, 0.0, 0.0, 1.0]

    def drawn(*settings: float) -> list[int]:
        row = torch.tensor(settings, dtype=torch.float64)
        return [token for token in range(4) if oracle.may_be_drawn(logits, row, token)]

    assert drawn(*free, 0.3) == [0]
    assert drawn(*free, 0.6) == [1]
    assert drawn(*free, 0.97) == [3]
    assert drawn(1.0, 0.0, 2.0, 1.0, 0.97) == [1], "top_k leaves two"
    assert drawn(1.0, 0.45, 0.0, 1.0, 0.97) == [1], "min_p leaves what is half as likely as the best"
    assert drawn(0.0, 0.0, 0.0, 1.0, 0.97) == [0], "temperature 0 takes the best"
    assert 3 not in drawn(1.0, 0.0, 0.0, 0.7, 0.999), "top_p leaves the last one out"


# --- report and targets -----------------------------------------------------------------------------------------------


def judged(measure: str, *figures: float) -> list[Row]:
    return [Row("part", str(figure), figure, measures={measure: figure}) for figure in figures]


@pytest.mark.parametrize(
    ("measure", "met", "missed"),
    [
        ("copy_share", [85.0, 99.0], [84.9, 99.0]),
        ("grouped_times", [8.0], [7.9]),
        ("floor_times", [1.25, 1.1], [1.26, 1.1]),
        ("host_share", [5.0, 0.0], [5.1, 0.0]),
    ],
)
def test_a_target_is_met_when_the_worst_row_is_within_it(measure: str, met: list[float], missed: list[float]) -> None:
    target = next(target for target in TARGETS if target.measure == measure)
    assert verdict(target, judged(measure, *met)) == "met"
    assert verdict(target, judged(measure, *missed)) == "missed"
    assert verdict(target, []) == "not measured"
    assert verdict(target, judged(measure, *[float("nan")] * target.rows)) == "not measured"


def test_a_target_of_which_a_row_is_missing_is_not_met() -> None:
    target = Target("both batches", "floor_times", 1.25, "x", most=True, rows=2)
    assert worst(target, judged("floor_times", 1.0)) is None
    assert verdict(target, judged("floor_times", 1.0)) == "not measured"


def test_the_table_names_every_row_and_the_targets_their_verdict() -> None:
    rows = [
        Row("checks", "silu_mul", ok=False, error="Wrong: it is"),
        Row("decode", "of 16", 91.234, "% of copy", measures={"copy_share": 91.234}),
        Row("decode", "a peer", note="not installed, left out"),
    ]
    printed = reports.table(rows).splitlines()
    assert [line.split("  ")[0] for line in printed] == ["part", "checks", "decode", "decode"]
    assert "FAILED" in printed[1]
    assert "Wrong: it is" in printed[1]
    assert "91.2 % of copy" in printed[2]
    assert "not installed" in printed[3]
    verdicts = [line.split()[-1] for line in reports.target_table(rows).splitlines()[1:]]
    assert verdicts == ["met", "measured", "measured", "measured"]


def test_a_part_out_of_time_leaves_the_rest_out_and_says_so(tmp_path: Path) -> None:
    now = [0.0]
    report = Report("part", tmp_path / "rows", 10.0, clock=lambda: now[0])
    ran: list[str] = []

    def slow() -> None:
        ran.append("first")
        now[0] += 11
        raise ValueError("it\nbroke")

    report.attempt("first", slow, check=True)
    report.attempt("second", lambda: ran.append("second"))
    first, second = reports.read(tmp_path / "rows")
    assert ran == ["first"]
    assert (first.ok, first.error) == (False, "ValueError: it broke")
    assert (second.ok, second.note) == (None, "left out: no time")


def test_the_parts_limits_stay_within_the_whole() -> None:
    assert sum(limit for _, _, limit in PARTS.values()) <= program.WHOLE_S < 480


def test_both_sizes_have_cases_for_every_part() -> None:
    """And the full ones those that the targets name."""
    for each in (sizes.FULL, sizes.MINIATURE):
        assert all(each.heads % group == 0 for group in each.groups)
        assert all(prefix % each.block_size == 0 for prefix in each.prefixes)
    full = sizes.FULL
    assert (min(full.batches), max(full.batches), min(full.contexts), max(full.contexts)) == (1, 256, 1024, 32768)
    assert full.groups == (1, 4, 8)
    assert (full.prefix_seqs, full.prefixes) == (64, (1024, 8192))
    assert (full.step_shape, full.step_batches) == (LLAMA_8B, (1, 64))
    assert (full.work_shape, full.requests, full.tokens) == (QWEN3_06B, 256, (100, 1024))


# --- a part's process -------------------------------------------------------------------------------------------------


def as_part(code: str) -> Callable[[object], subprocess.Popen[bytes]]:
    """In place of Popen: this code, with the part's arguments."""
    start = subprocess.Popen

    def popen(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        return start([command[0], "-c", textwrap.dedent(code), *command[3:]], **options)  # type: ignore[call-overload,no-any-return]

    return popen  # type: ignore[return-value]


ROWS = "import sys; rows = open(sys.argv[sys.argv.index('--rows') + 1], 'a')\n"
ONE = ROWS + 'print(\'{"part": "step", "name": "known"}\', file=rows, flush=True)\n'


def gone(pid: str) -> bool:
    """Within some seconds: a process that was killed takes a moment to end."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            if (Path("/proc") / pid / "stat").read_text().split()[2] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_a_part_that_hangs_is_ended_with_its_children_and_keeps_its_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = (
        ONE
        + f"""
import subprocess, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(['sleep', '60'])
open({str(tmp_path / "child")!r}, 'w').write(str(child.pid))
child.wait()
child = subprocess.Popen(['sleep', '60']).wait()
"""
    )
    monkeypatch.setattr(program.subprocess, "Popen", as_part(code))
    monkeypatch.setattr(program, "STOP_S", 0.5)
    start = time.monotonic()
    rows = program.run_part("step", "cpu", 1, 1.0)
    assert time.monotonic() - start < 10
    assert [(row.name, row.error) for row in rows] == [("known", ""), ("the whole part", "it took longer than 1 s")]
    assert gone((tmp_path / "child").read_text())


def test_a_part_that_dies_is_a_row_and_a_broken_last_row_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    code = ONE + 'rows.write(\'{"part": "st\'); rows.flush()\nimport os; os.kill(os.getpid(), 11)'
    monkeypatch.setattr(program.subprocess, "Popen", as_part(code))
    rows = program.run_part("checks", "cpu", 1, 20.0)
    assert [(row.name, row.error, row.ok) for row in rows] == [
        ("known", "", None),
        ("the whole part", "it ended by signal 11", False),
    ]


def test_a_part_that_fails_does_not_keep_the_others_from_running(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run_part(part: str, device: str, seed: int, seconds: float) -> list[Row]:
        assert 0 < seconds <= PARTS[part][2]
        return [Row(part, "it", error="broke")] if part == "decode" else [Row(part, "it", 1.0, ok=True)]

    monkeypatch.setattr(program, "run_part", run_part)
    assert program.main(["--device", "cpu", "--json", str(tmp_path / "found")]) == 1
    found = json.loads((tmp_path / "found").read_text())
    assert [row["part"] for row in found["rows"]] == list(PARTS)
    assert [target["verdict"] for target in found["targets"]] == ["not measured"] * 4
    assert "5 of 5 checks passed; 1 rows without" in capsys.readouterr().out
    assert program.main(["--device", "cpu", "--only", "step"]) == 0


# --- clocks of a GPU --------------------------------------------------------------------------------------------------


class FakeGpu:
    """What the benchmark uses of torch.cuda, with a clock that only work moves. Names as there."""

    def __init__(self, refuses: bool = False) -> None:
        self.now, self.recording, self.recorded, self.refuses = 0.0, False, [], refuses

    def work(self) -> None:
        if self.recording:
            if self.refuses:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.recorded.append(3.0)
        else:
            self.now += 3.0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = gpu.now

            def synchronize(self) -> None:
                """There is nothing to wait for."""

            def elapsed_time(self, end: Event) -> float:
                return end.at - self.at

        class Graph:
            def replay(self) -> None:
                gpu.now += sum(gpu.recorded)

        @contextlib.contextmanager
        def graph(one: Graph, stream: Any) -> Iterator[None]:
            gpu.recording = True
            try:
                yield
            finally:
                gpu.recording = False

        class Stream:
            def __init__(self, device: Any = None) -> None:
                """Of any device."""

            def wait_stream(self, other: Any) -> None:
                """All is done at once."""

        fakes = {"Event": Event, "CUDAGraph": Graph, "graph": graph, "Stream": Stream}
        fakes |= {"current_stream": Stream, "stream": lambda stream: contextlib.nullcontext()}
        fakes |= {"synchronize": lambda device=None: None}
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)


@pytest.mark.parametrize("refuses", [False, True])
def test_work_on_a_gpu_is_recorded_and_timed_by_events(refuses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(refuses)
    gpu.install(monkeypatch)
    clock = Clock(torch.device("cpu"))
    clock._flush = torch.ones(4)
    assert clock.seconds(gpu.work) == pytest.approx(0.003)
    assert gpu.recorded == ([] if refuses else [3.0])
    assert ("cannot be recorded" in clock.remark) == refuses


def test_the_time_that_a_gpu_waits_for_the_host_is_what_lies_between_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu()
    gpu.install(monkeypatch)

    class Pending:
        def result(self) -> str:
            time.sleep(0.01)
            return "drawn"

    class Runner:
        def launch(self, batch: Any, behind: Any) -> Pending:
            gpu.work()
            return Pending()

    runner = Runner()
    watch = Watch(runner, torch.device("cuda"))
    watch.forget()
    for _ in range(3):
        assert runner.launch({}, {}).result() == "drawn"
        gpu.now += 1.0
    assert watch.device_seconds() == pytest.approx(0.003)
    assert watch.waited >= 0.03


# --- in miniature -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line() -> None:
    ended = bench()
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    assert "no CUDA GPU" in ended.stderr


NOT_NEEDED = ["django", "redis", "transformers", "tokenizers", "safetensors", "gguf", "llguidance", "jinja2", "psutil"]


def without(names: list[str], folder: Path) -> str:
    """PYTHONPATH for a Python in which these are not installed."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({names!r}))\n")
    return str(folder)


EXPECTED = {
    "decode": {"copy bandwidth", "decode of 2 x 64 tokens, GQA 2", "flex_attention: decode of 2 x 32 tokens"},
    "prefix": {"grouped over ungrouped, 3 x 2,048 shared"},
    "prefill": {"prefill of 2 x 16 tokens behind 16", "flex_attention: prefill of 1 x 32 tokens"},
    "step": {"copy bandwidth", "host time that the device waits for, batch 3"},
    "workload": {"output tokens a second"},
}


def look(found: list[Row], part: str) -> None:
    """Whether these are a part's rows, each with a figure."""
    assert [row.error for row in found] == [""] * len(found)
    assert [row.note for row in found if row.value is None and "not installed" not in row.note] == []
    assert all(row.value > 0 for row in found if row.value is not None and "host time" not in row.name)
    assert EXPECTED[part] <= {row.name for row in found}
    assert {row.part for row in found} == {part}


@pytest.mark.parametrize("part", ["decode", "prefix", "prefill"])
def test_attention_is_timed_in_miniature(part: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    assert parts.main([part, "--device", "cpu", "--rows", str(rows), "--seconds", "100", "--seed", "3"]) == 0
    look(reports.read(rows), part)


def test_the_engine_s_parts_run_in_miniature_where_little_is_installed(tmp_path: Path) -> None:
    path = without(NOT_NEEDED, tmp_path / "without")
    ended = bench(
        *("--device", "cpu", "--only", "step", "--only", "workload", "--json", str(tmp_path / "found")), PYTHONPATH=path
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = [Row(**row) for row in json.loads((tmp_path / "found").read_text())["rows"]]
    for part in ("step", "workload"):
        look([row for row in found if row.part == part], part)
    assert "5 requests" in found[-1].note
    assert "time was up" not in found[-1].note


@pytest.mark.long
def test_all_runs_in_miniature_and_is_in_the_table_and_the_json(tmp_path: Path) -> None:
    ended = bench("--device", "cpu", "--json", str(tmp_path / "found"))
    found = json.loads((tmp_path / "found").read_text())
    rows = [Row(**row) for row in found["rows"]]
    assert ended.returncode == 0, ended.stdout + ended.stderr
    checks = [row for row in rows if row.part == "checks"]
    assert [row.ok for row in checks] == [True] * len(checks)
    assert len(checks) >= 30
    assert f"{len(checks)} of {len(checks)} checks passed" in ended.stdout
    for part in EXPECTED:
        look([row for row in rows if row.part == part], part)
    table = ended.stdout[ended.stdout.index("\npart ") :]
    assert all(row.name in table for row in rows)
    verdicts = {target["measure"]: target["verdict"] for target in found["targets"]}
    assert verdicts.pop("copy_share") == "not measured", "no case of the miniature is as large as the target's"
    assert set(verdicts.values()) <= {"met", "missed"}


@pytest.mark.long
def test_an_engine_that_lacks_a_package_names_it_in_one_line(tmp_path: Path) -> None:
    path = without(["msgspec", "structlog"], tmp_path / "without")
    ended = bench("--device", "cpu", "--only", "workload", PYTHONPATH=path)
    assert ended.returncode == 1
    assert "pip install msgspec structlog" in ended.stdout


# --- the checks notice ------------------------------------------------------------------------------------------------


@pytest.fixture
def checks(tmp_path: Path) -> Checks:
    return Checks(Report("checks", tmp_path / "rows", 60.0), sizes.MINIATURE, torch.device("cpu"), 1)


def test_what_a_kernel_does_not_write_is_noticed(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks._silu(torch.bfloat16) < 0.02
    monkeypatch.setattr(gpu, "silu_mul", lambda x: torch.empty(len(x), x.shape[1] // 2, dtype=x.dtype))
    with pytest.raises(Wrong, match="nan"):
        checks._silu(torch.bfloat16)
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_old_result_is_noticed(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    real, old = gpu.silu_mul, []

    def once(x: torch.Tensor) -> torch.Tensor:
        old.append(real(x))
        return old[0]

    monkeypatch.setattr(gpu, "silu_mul", once)
    checks._silu(torch.bfloat16)
    with pytest.raises(Wrong):
        checks._silu(torch.bfloat16)


def test_a_padded_row_that_is_stored_is_noticed(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    real = gpu.write_kv
    monkeypatch.setattr(gpu, "write_kv", lambda k, v, layer, slots: real(k, v, layer, slots.clamp(min=0)))
    for kind in (torch.bfloat16, torch.int8, torch.float8_e4m3fn):
        with pytest.raises(Wrong):
            checks._write(64, kind)


def test_attention_that_misses_a_token_is_noticed(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    real = gpu.paged_attention

    def short(q: torch.Tensor, layer: CacheLayer, meta: AttentionMetadata, scale: float, **options: Any) -> Any:
        meta.seq_lens[-1] -= 1
        return real(q, layer, meta, scale, **options)

    monkeypatch.setattr(gpu, "paged_attention", short)
    with pytest.raises(Wrong):
        checks._attend(64, 4, torch.bfloat16, [20, 30], [1, 1])


def test_a_draw_that_does_not_follow_its_number_is_noticed(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    real = gpu.pick
    checks._picks()
    monkeypatch.setattr(gpu, "pick", lambda logits, settings: real(logits, settings.flip(0).contiguous()))
    with pytest.raises(Wrong):
        checks._picks()
