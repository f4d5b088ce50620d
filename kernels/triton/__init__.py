"""The GPU path: the functions of kernels.api over Triton kernels, each one launch; attention
over long contexts or shared prefixes takes two or three.

Promises, beside those of the API: no read of the device by the host, so that a step can be captured in a CUDA graph,
and no compilation once a model's shapes have been seen, whatever the number of rows, sequences or tokens.
"""

from __future__ import annotations

from kernels.triton import needed  # noqa: F401  says first, and clearly, where triton is missing
from kernels.triton.cache import copy_blocks, write_kv
from kernels.triton.paged import paged_attention
from kernels.triton.rows import add_rms_norm, rope_write_kv, silu_mul
from kernels.triton.sampling import pick

__all__ = ["add_rms_norm", "copy_blocks", "paged_attention", "pick", "rope_write_kv", "silu_mul", "write_kv"]
