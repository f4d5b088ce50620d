"""Says what to do where triton is missing, before anything else of this package is imported."""

from __future__ import annotations

try:
    import triton  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"the GPU path needs the package triton ({error}); a CUDA build of torch brings it along, else install it."
    ) from None
