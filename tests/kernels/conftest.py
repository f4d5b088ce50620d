"""Every test of a kernel behind kernels.api runs over each path that there is on a CPU."""

from __future__ import annotations

import pytest

from kernels.cpu import ops
from kernels.cpu.build import BuildError

LEVELS = ("avx512", "avx2", "portable")
THREADS = {"avx512": 3, "avx2": 1, "portable": 3}


@pytest.fixture(params=["torch", *LEVELS])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """kernels.api takes this path during the test: plain torch, or C++ with inner loops of at most a level."""
    if request.param == "torch":
        monkeypatch.setattr(ops, "why_not", lambda: "the test is about torch's path")
    else:
        use_level(request.param, monkeypatch)
    name: str = request.param
    return name


def use_level(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        library = ops.load(level)
    except BuildError as error:  # pragma: no cover
        pytest.skip(str(error))
    if library.octavo_ops_isa().decode() != level:
        pytest.skip(f"this CPU has no {level}")
    monkeypatch.setattr(ops, "_library", library)
    # All ways of sharing work: torch's threads, none, and where there are none of torch's, our own pool.
    parallel = None if level == "portable" else ops._parallel
    monkeypatch.setattr(ops, "_team", lambda: ops._Team(THREADS[level], parallel))
