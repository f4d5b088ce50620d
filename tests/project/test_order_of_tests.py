"""Who of two processes runs which of the long tests, and in which order (tests/conftest.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.conftest import pytest_xdist_make_scheduler

MANY = [f"tests/kernels/test_triton_attention.py::test_{n}" for n in range(30)]
PRODUCT = ["tests/browser/test_pages.py::test_a", "tests/api/test_websocket.py::test_b"]
OWN = ["tests/operators/test_two_models.py::test_c", "tests/postgresql/test_on_postgresql.py::test_d"]


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


def test_all_that_talk_to_the_shared_product_go_to_one_process_first_and_who_has_its_own_to_any() -> None:
    values = {"dist": "loadscope", "tx": ["2*popen"]}
    config: Any = SimpleNamespace(getvalue=values.get, option=SimpleNamespace(loadscopereorder=True))
    collected = [*OWN, *MANY, *PRODUCT]
    scheduler = pytest_xdist_make_scheduler(config, None)
    one, other = Process("gw0"), Process("gw1")
    for process in (one, other):
        scheduler.add_node(process)
    for process in (one, other):
        scheduler.add_node_collection(process, collected)
    scheduler.schedule()

    def given(process: Process) -> list[str]:
        return [collected[index] for index in process.given]

    assert given(one)[:2] == PRODUCT, "however few they are: they take longest"
    assert given(other)[:30] == MANY
    while not scheduler.tests_finished:
        for process in (one, other):
            done = {
                name for scope in scheduler.assigned_work[process].values() for name, is_so in scope.items() if is_so
            }
            left = [index for index in process.given if collected[index] not in done]
            if len(left) > 1:
                scheduler.mark_test_complete(process, left[0])
    assert sorted([*given(one), *given(other)]) == sorted(collected)
    assert not {*PRODUCT} & {*given(other)}
