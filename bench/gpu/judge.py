"""How far a kernel's result may be from the true numbers, and memory that shows what a kernel did not write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

ROOM = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}
"""Of a number against the largest of its row: a few roundings of the result, and of the weights of attention. (The
interpreter, which stands in for a GPU in miniature, cuts bfloat16 off instead of rounding.)"""


class Wrong(Exception):
    """A kernel's result is not the oracle's."""


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """torch.empty and its like give NaN, and integers their largest value, instead of what happens to lie there."""
    deterministic: Any = torch.utils.deterministic
    before, fill = torch.are_deterministic_algorithms_enabled(), deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        deterministic.fill_uninitialized_memory = fill


def distance(found: Tensor, expected: Tensor, room: float, what: str = "the result") -> float:
    """The largest difference relative to the largest number of its row. Raises Wrong above `room`, or for NaN."""
    size = expected.abs().amax(dim=-1, keepdim=True).clamp(min=1e-3)
    apart = (found.double() - expected).abs() / size
    most = float(apart.max())
    if not most <= room:
        place = torch.nonzero(~(apart <= room))[0].tolist()
        raise Wrong(f"{what} is {float(found[tuple(place)]):.6g} at {place}, not {float(expected[tuple(place)]):.6g}")
    return most
