"""`python -m bench`: which parts run, what a failed one does to the others, and when docs/LOG.md is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import __main__ as program
from bench import log, serve
from bench.children import ChildError
from bench.table import Column


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the modules that were run instead of measured; bench.scheduler fails."""
    names: list[str] = []

    def run_module(module: str, *arguments: str, timeout_s: float) -> None:
        names.append(" ".join([module, *arguments[:2]]))
        if module == "bench.scheduler":
            raise ChildError("bench.scheduler ended with status 1")
        if module == "bench.transport":
            figures = {"300 websocket": {"write to client p99, ms": 50.0, "tokens a second": 6000.0}}
            Path(arguments[1]).write_text(json.dumps(figures))
        elif "--json" in arguments:
            section = arguments[arguments.index("--only") + 1]
            rows = {"prefill of 1,024 tokens, tok/s": [1800.0, 700.0]}
            table = {section: {"columns": ["low-bit", "bfloat16"], "rows": rows}}
            Path(arguments[arguments.index("--json") + 1]).write_text(json.dumps(table))

    monkeypatch.setattr(program, "run_module", run_module)
    octavo = Column("Octavo", {"16 users: output tok/s": 450.0})
    monkeypatch.setattr(serve, "octavo_column", lambda: (octavo, {"engine": 0.9, "web": 0.1}))
    peer = Column("llama-server", {"16 users: output tok/s": 40.0})
    absent = Column("transformers", {}, ["failed: no room."])
    monkeypatch.setattr(program, "PEERS", {"llama-server": lambda: peer, "transformers": lambda: absent})
    return names


@pytest.fixture
def logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "LOG.md"
    path.write_text("# Log\n\n## Older\n")
    monkeypatch.setattr(log, "LOG", path)
    return path


def test_a_part_that_fails_is_named_and_the_others_go_on(
    ran: list[str], logged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main([]) == 1
    said = capsys.readouterr().out
    assert "scheduler failed: bench.scheduler ended with status 1" in said
    assert "transformers: failed: no room." in said
    assert "x 11.25" in said
    assert ran[0].startswith("bench.transport --json")
    assert [name.removeprefix("bench.engine --only ") for name in ran[1:]] == [
        *program.SECTIONS,
        *(f"bench.{name}" for name in program.OTHERS),
    ]
    assert said.index("x 11.25") < said.index("== steps ==") < said.index("targets for 2 cores")


def test_only_the_wanted_parts_run_and_nothing_is_logged_unasked(
    ran: list[str], logged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["--only", "steps", "--only", "fairness"]) == 0
    assert ran == ["bench.engine --only steps", "bench.fairness"]
    said = capsys.readouterr().out
    assert "Octavo" not in said
    assert ["prefill, tok/s" in line and line.endswith("met") for line in said.splitlines()].count(True) == 1
    assert logged.read_text() == "# Log\n\n## Older\n"


def test_the_log_gets_the_table_and_the_command(ran: list[str], logged: Path) -> None:
    assert program.main(["--only", "octavo", "--only", "llama-server", "--only", "steps", "--log"]) == 0
    said = logged.read_text()
    assert "`python -m bench --only octavo --only llama-server --only steps --log`" in said
    assert "| 16 users: output tok/s | 450.0 | 40.0 | x 11.25 |" in said
    assert "| prefill of 1,024 tokens, tok/s | 1,800.00 | 700.00 | 2.57 |" in said


def test_what_carrying_tokens_costs_is_judged_and_logged(
    ran: list[str], logged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["--only", "transport", "--log"]) == 0
    said = capsys.readouterr().out
    assert any("write to client p99, ms" in line and line.endswith("met") for line in said.splitlines())
    assert "| tokens to clients | 300 websocket |" in logged.read_text()
    assert "| tokens a second | 6,000 |" in logged.read_text()


def test_an_octavo_that_could_not_be_measured_is_a_failure(ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "octavo_column", lambda: (Column("Octavo", {}, ["failed: no port."]), {}))
    assert program.main(["--only", "octavo"]) == 1


def test_a_peer_that_was_asked_for_by_name_and_is_not_there_is_a_failure_too(ran: list[str]) -> None:
    assert program.main(["--only", "octavo", "--only", "transformers"]) == 1
    assert program.main(["--only", "octavo", "--only", "llama-server"]) == 0
