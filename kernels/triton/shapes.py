"""Strides as kernels are given them. Their divisibility by 16 is part of what a kernel is compiled for."""

from __future__ import annotations

from torch import Tensor


def row_stride(x: Tensor) -> int:
    """Between the rows of x. For a lone row its length: torch may say anything, which would count as another shape."""
    return x.stride(0) if x.shape[0] > 1 else x[0].numel()


def across(x: Tensor, dimension: int) -> int:
    """x.stride(dimension), where the last dimension lies in one piece; ValueError where it does not."""
    if x.stride(-1) != 1:
        raise ValueError(f"rows are read in one piece, and these have strides {x.stride()}; make them contiguous.")
    return x.stride(dimension)
