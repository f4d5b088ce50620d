"""Draws a token for each row of logits in C++ (sampling.hpp): the filters need no sorted vocabulary."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

# As struct Draw in sampling.hpp.
DRAW = np.dtype(
    [("uniform", "f8"), ("temperature", "f4"), ("top_p", "f4"), ("min_p", "f4"), ("top_k", "i4")], align=True
)


def sample(
    library: ctypes.CDLL,
    model: int | None,
    logits: F32,
    *,
    uniform: npt.NDArray[np.float64],
    temperature: F32,
    top_p: F32,
    min_p: F32,
    top_k: npt.NDArray[np.int64],
) -> npt.NDArray[np.int32]:
    """A token for each row of logits [R, vocabulary], C-contiguous; -1 where one is NaN or the best is infinite.

    uniform: in [0, 1). temperature: 0 for the greedy token. top_k: 0 for no limit. The order of the filters is min_p,
    top_k, top_p, each on what the one before left; tokens tied with the last one admitted stay in. `model`: whose
    threads do it, or None for the calling one.
    """
    rows, vocabulary = logits.shape
    if not logits.flags.c_contiguous or logits.dtype != np.float32:
        raise ValueError(f"logits must be contiguous float32, not {logits.dtype} with strides {logits.strides}")
    draws = np.empty(rows, DRAW)
    draws["uniform"], draws["temperature"] = uniform, temperature
    draws["top_p"], draws["min_p"], draws["top_k"] = top_p, min_p, np.minimum(top_k, vocabulary)
    tokens = np.empty(rows, np.int32)
    library.octavo_sample(model, logits.ctypes.data, draws.ctypes.data, rows, vocabulary, tokens.ctypes.data)
    return tokens
