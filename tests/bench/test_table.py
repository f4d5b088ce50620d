"""The table's ratios, dashes and forms, and the targets' verdicts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from bench import engine
from bench.table import Column, aligned, by_dtype, compare, from_load, markdown, notes
from bench.targets import GOALS, Results, cpu_line, unmeasured, verdicts

OURS = Column("Octavo", {"16 users: output tok/s": 450.0, "16 users: TTFT p50, s": 0.25, "16 users: errors": 0})
PEER = Column(
    "llama-server",
    {"16 users: output tok/s": 40.0, "16 users: TTFT p50, s": 3.5, "16 users: errors": 2, "one user: ITL p50, ms": 9.5},
    ["2 users ended early."],
)
ABSENT = Column("transformers", {}, ["absent."])


def line(grid: list[list[str]], name: str) -> list[str]:
    return next(row for row in grid if row[0] == name)


def test_more_tokens_and_less_time_are_both_times_better_above_one() -> None:
    grid = compare([OURS, PEER])
    assert grid[0] == ["", "Octavo", "llama-server", "times better"]
    assert line(grid, "16 users: output tok/s")[1:] == ["450.0", "40.0", "x 11.25"]
    assert line(grid, "16 users: TTFT p50, s")[1:] == ["0.250", "3.500", "x 14.00"]


def test_what_was_not_measured_is_a_dash_without_a_ratio_and_what_nobody_has_no_row() -> None:
    grid = compare([OURS, PEER, ABSENT])
    assert line(grid, "one user: ITL p50, ms")[1:] == ["-", "9.5", "", "-", ""]
    assert line(grid, "16 users: errors")[1:] == ["0", "2", "", "-", ""], "no ratio says anything about errors"
    assert "one user: TTFT p50, s" not in [row[0] for row in grid]
    nan = Column("Octavo", {"16 users: TTFT p50, s": float("nan")})
    assert line(compare([nan, PEER]), "16 users: TTFT p50, s")[1:] == ["-", "3.500", ""]


def test_a_peer_alone_or_beside_an_octavo_that_failed_has_no_ratio() -> None:
    assert line(compare([PEER]), "16 users: output tok/s")[1:] == ["40.0"]
    assert line(compare([Column("Octavo"), PEER]), "16 users: output tok/s")[1:] == ["-", "40.0"]


def test_reasons_stand_below_the_table_under_their_names() -> None:
    assert notes([OURS, PEER, ABSENT]) == ["llama-server: 2 users ended early.", "transformers: absent."]


def test_the_load_clients_report_fills_the_rows_of_its_load() -> None:
    report = {"output, tok/s": 1.0, "TTFT p50, s": 2.0, "ITL p50, ms": 3.0, "ITL p95, ms": 4.0, "cached share": 0.5}
    assert from_load("one user", report) == {
        "one user: output tok/s": 1.0,
        "one user: TTFT p50, s": 2.0,
        "one user: ITL p50, ms": 3.0,
        "one user: ITL p95, ms": 4.0,
    }


def test_text_is_aligned_and_markdown_has_as_many_cells_in_every_line() -> None:
    grid = compare([OURS, PEER])
    text = aligned(grid).splitlines()
    assert len({row.index("40.0") + 4 for row in text if "40.0" in row} | {text[0].index("llama-server") + 12}) == 1
    rows = markdown(grid).splitlines()
    assert rows[1] == "|---|---|---|---|"
    assert {row.count("|") for row in rows} == {5}


def test_an_in_process_table_compares_the_first_dtype_with_the_last() -> None:
    grid = by_dtype("steps", ["low-bit", "bfloat16"], {"step, ms": [5.0, 20.0]})
    assert grid == [["steps", "low-bit", "bfloat16", "low-bit / bfloat16"], ["step, ms", "5.00", "20.00", "0.25"]]
    assert by_dtype("steps", ["low-bit"], {"step, ms": [5.0]}) == [["steps", "low-bit"], ["step, ms", "5.00"]]


def test_a_target_is_met_missed_or_not_measured() -> None:
    results = Results([OURS, PEER], cpu={"engine": 0.8, "web": 0.1, "redis": 0.06, "recorder": 0.04})
    said = {row[0]: row[1:] for row in verdicts(results)}
    assert said["16 users: output tok/s"] == [">= 400", "450.0", "met"]
    assert said["16 users: output, times llama-server's"] == [">= 10", "11.2", "met"]
    assert said["web, recorder and Redis, share of CPU time"] == ["<= 15%", "20.0%", "missed"]
    rest = str(unmeasured(results))
    for name in ("16 users: TTFT p95, s", "step of 16 behind 4,096 tokens, shared over each its own"):
        assert name not in said
        assert name in rest
    assert "web, recorder and Redis together 20.0%" in cpu_line(results.cpu)


def test_nothing_measured_is_nothing_met_and_nothing_missed() -> None:
    assert len(verdicts(Results())) == 1
    assert all(goal.name in str(unmeasured(Results())) for goal in GOALS)


def test_the_engines_sections_write_the_figures_that_the_targets_ask_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def by_rows(args: argparse.Namespace, title: str, rows: engine.Rows, **settings: object) -> engine.Table:
        table = engine.Table(args.dtype)
        for name in rows:
            table.row(name, [1.0, 2.0])
        return table

    monkeypatch.setattr(engine, "by_rows", by_rows)
    assert engine.main(["--only", "steps", "--only", "prefix", "--json", str(tmp_path / "figures")]) == 0
    results = Results(sections=json.loads((tmp_path / "figures").read_text()))
    measured = [goal.name for goal in GOALS if goal.figure(results) is not None]
    assert measured == [
        "prefill, tok/s",
        "step of 16 behind a shared prefix, 4,096 over 512 tokens",
        "step of 16 behind 4,096 tokens, shared over each its own",
    ]
