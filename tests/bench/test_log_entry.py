"""The entry of docs/LOG.md: what it tells, where it goes, and what it must not give away."""

from __future__ import annotations

import datetime
from itertools import pairwise
from pathlib import Path

from bench.log import LOG, append, commit, entry, insert, machine, scrub, this_machine
from bench.table import Column
from bench.targets import Results

CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 26
model\t\t: 2
model name\t: AMD EPYC
flags\t\t: fpu sse2 avx2 avx512f avx512_bf16 avx512_vnni

processor\t: 1
model name\t: another
"""
RESULTS = Results(
    [
        Column("Octavo", {"16 users: output tok/s": 450.0}),
        Column("llama-server", {"16 users: output tok/s": 40.0}, ["failed: cannot open /root/secret/model.gguf today"]),
    ],
    cpu={"engine": 0.9, "web": 0.1},
    sections={"steps": {"columns": ["low-bit"], "rows": {"step of 1 at 900 tokens, ms": [4.6]}}},
)


def make() -> str:
    day = datetime.date(2026, 11, 29)
    return entry(RESULTS, day=day, commit="abc1234", machine="2-core machine (X)", command="python -m bench --log")


def test_an_entry_tells_date_commit_machine_command_and_every_table() -> None:
    said = make()
    assert said.startswith("## 2026-11-29 ")
    for part in (
        "2-core machine (X). Commit abc1234; `python -m bench --log`.",
        "| 16 users: output tok/s | 450.0 | 40.0 | x 11.25 |",
        "engine 90.0%, web 10.0%",
        "| step of 1 at 900 tokens, ms | 4.60 |",
        "| 16 users: output tok/s | >= 400 | 450.0 | met |",
        "Not measured: 16 users: TTFT p50, s;",
    ):
        assert part in said
    for before, after in pairwise(said.splitlines()):
        assert before == "" or after == "" or before.startswith("|") == after.startswith("|")


def test_no_absolute_path_gets_into_an_entry() -> None:
    assert "cannot open …/model.gguf today" in make()
    assert "secret" not in make()
    assert scrub("tok/s, p50 / p95, 1/2, http://127.0.0.1:80/v1/x, bench/load.py") == (
        "tok/s, p50 / p95, 1/2, http://127.0.0.1:80/v1/x, bench/load.py"
    )
    assert scrub("'/a/b' (/c/d/e.py:3)") == "'…/b' (…/e.py:3)"


def test_the_newest_entry_stands_first_below_the_heading() -> None:
    log = "# Log\n\nNewest first.\n\n## 2026-01-01 Older\n\nText.\n"
    assert insert(log, "## 2026-02-02 New\n") == (
        "# Log\n\nNewest first.\n\n## 2026-02-02 New\n\n## 2026-01-01 Older\n\nText.\n"
    )
    assert insert("# Log\n\nNewest first.\n", "## New\n") == "# Log\n\nNewest first.\n\n## New\n"


def test_appending_twice_keeps_both_and_leaves_no_part_behind(tmp_path: Path) -> None:
    path = tmp_path / "LOG.md"
    path.write_text("# Log\n\n## Older\n")
    append(RESULTS, ["--log"], path)
    append(Results(), ["--only", "steps", "--log"], path)
    said = path.read_text()
    order = [
        said.index(words) for words in ("python -m bench --only steps --log`", "python -m bench --log`", "## Older")
    ]
    assert order == sorted(order)
    assert [file.name for file in tmp_path.iterdir()] == ["LOG.md"]


def test_the_projects_log_has_the_form_that_entries_need() -> None:
    text = LOG.read_text()
    assert insert(text, "## NEW\n").startswith(text[: text.index("\n## ")] + "\n## NEW\n")


def test_a_machine_is_described_in_plain_words() -> None:
    assert machine(CPUINFO, 2, 8 * 2**20) == (
        "2-core machine (AMD EPYC, family 26 model 2, avx2, avx512_vnni, avx512_bf16, no AMX, 8 GiB of memory)"
    )
    intel = CPUINFO.replace("avx512_bf16", "avx512_bf16 amx_tile").replace("AMD EPYC", "Intel")
    assert "AMX, 8 GiB" in machine(intel, 2, 8 * 2**20)
    assert "no AMX" not in machine(intel, 2, 8 * 2**20)
    arm = machine("processor\t: 0\nFeatures\t: fp asimd\n", 4, 2**20)
    assert arm.startswith("4-core machine (")
    assert "AMX" not in arm


def test_this_machine_and_commit_can_be_told() -> None:
    assert "-core machine (" in this_machine()
    assert commit().split()[0].isalnum()
