"""Who of two processes runs which of the long tests, and in which order (tests/conftest.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.conftest import pytest_xdist_make_scheduler

MANY = [f"tests/kernels/test_triton_attention.py::test_{n}" for n in range(100)]
PATIENT = ["tests/backups/test_cold_restore.py::test_a", "tests/backups/test_cold_restore.py::test_b"]
SHORT = ["tests/ops/test_start_errors.py::test_c", "tests/limits/test_migration.py::test_d"]


class Process:
    """A node of pytest-xdist that runs nothing."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.given: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_what_may_take_longest_begins_first_and_the_tests_of_a_file_stay_with_one_process() -> None:
    values = {"dist": "loadscope", "tx": ["2*popen"]}
    config: Any = SimpleNamespace(getvalue=values.get, option=SimpleNamespace(loadscopereorder=True))
    collected = [*SHORT, *PATIENT, *MANY]
    scheduler = pytest_xdist_make_scheduler(config, None)
    one, other = Process("gw0"), Process("gw1")
    for process in (one, other):
        scheduler.add_node(process)
    for process in (one, other):
        scheduler.add_node_collection(process, collected)
    scheduler.schedule()

    def given(process: Process) -> list[str]:
        return [collected[index] for index in process.given]

    assert given(one)[:100] == MANY, "each takes little, but they are many"
    assert given(other)[:2] == PATIENT, "they are few, but each may take minutes"
    while not scheduler.tests_finished:
        for process in (one, other):
            done = {
                name for scope in scheduler.assigned_work[process].values() for name, is_so in scope.items() if is_so
            }
            left = [index for index in process.given if collected[index] not in done]
            if len(left) > 1:
                scheduler.mark_test_complete(process, left[0])
    assert sorted([*given(one), *given(other)]) == sorted(collected)
