"""The C++ path: single kernels over torch's tensors on a CPU, for every model that the one-call decoder cannot run.

Functions of the names and meaning of kernels.api, over caches in float32, bfloat16 and float16, for any block size and
any head_dim that is a multiple of 8. Owns the library and the threads it borrows: torch's own, since these spin between
torch's products anyway (team.hpp). Each call releases the GIL. `why_not` tells when there is no such path.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.cpu.build import BuildError, open_library
from kernels.torch_paged import copy_blocks

if TYPE_CHECKING:
    from kernels.api import AttentionMetadata, CacheLayer

__all__ = ["add_rms_norm", "copy_blocks", "paged_attention", "rope_write_kv", "silu_mul", "write_kv"]

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
MAX_DIM = 1024


class _Team(ctypes.Structure):
    _fields_ = [("threads", ctypes.c_int32), ("parallel", ctypes.c_void_p)]


class _Strides(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("block", "token", "head")]


class _Tables(ctypes.Structure):
    _fields_ = [
        ("blocks", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("starts", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("sequences", "rows", "block_size", "per_head", "kv_heads", "window")),
    ]


class _Attention(ctypes.Structure):
    _fields_ = [
        ("tables", _Tables),
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "out")),
        *((name, ctypes.c_int64) for name in ("q_row", "q_head")),
        *((name, _Strides) for name in ("keys", "values")),
        ("dim", ctypes.c_int32),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
    ]


class _Rotation(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("qkv", "cosine", "sine", "query_norm", "key_norm", "k", "v", "slots")),
        ("row", ctypes.c_int64),
        *((name, _Strides) for name in ("keys", "values")),
        *((name, ctypes.c_int64) for name in ("rows", "block_size")),
        *((name, ctypes.c_int32) for name in ("heads", "kv_heads", "dim")),
        ("eps", ctypes.c_float),
    ]


@lru_cache
def load(level: str = "avx512") -> ctypes.CDLL:
    """The library with inner loops of at most this level. Raises BuildError."""
    library = open_library(level, "ops")
    pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    library.octavo_ops_isa.restype = ctypes.c_char_p
    library.octavo_attention.argtypes = [pointer, number, pointer]
    library.octavo_rope_write_kv.argtypes = [pointer, number, pointer]
    library.octavo_write_kv.argtypes = [pointer, size, size, pointer, pointer, pointer, size, size, number, size]
    library.octavo_add_rms_norm.argtypes = [*[pointer] * 5, size, number, ctypes.c_float, number, pointer]
    library.octavo_silu_mul.argtypes = [pointer, size, pointer, size, number, number, pointer]
    return library


@lru_cache
def _loaded() -> ctypes.CDLL | str:
    try:
        return load()
    except BuildError as error:
        return str(error)


def why_not() -> str | None:
    """None where this machine has the library, else the reason. The first call may build it."""
    library = _library or _loaded()
    return library if isinstance(library, str) else None


def serves(x: Tensor) -> bool:
    """Whether these kernels run over such rows of activations."""
    return x.device.type == "cpu" and x.dtype in TYPES and why_not() is None


def serves_cache(cache: Tensor) -> bool:
    """Whether these kernels run over such a cache, K or V."""
    dim = cache.shape[-1]
    return dim % 8 == 0 and dim <= MAX_DIM and cache.stride(-1) == 1 and serves(cache)


def _find_parallel() -> int | None:
    """The address of the entry of the OpenMP runtime in this process, which is torch's."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
    except AttributeError:
        return None


# What the kernels run on; tests set them.
_library: ctypes.CDLL | None = None
_parallel = _find_parallel()


def _current() -> ctypes.CDLL:
    library = _library or _loaded()
    if isinstance(library, str):
        raise BuildError(library)
    return library


def _team() -> _Team:
    return _Team(torch.get_num_threads(), _parallel)


def _strides(cache: Tensor, unit: int = 1) -> _Strides:
    block, token, head, _ = cache.stride()
    return _Strides(block * unit, token * unit, head * unit)


def write_kv(k: Tensor, v: Tensor, layer: CacheLayer, slot_mapping: Tensor) -> None:
    slots = slot_mapping.contiguous()
    for new, cache in ((k, layer.k), (v, layer.v)):
        rows = new.to(cache.dtype)
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        unit = cache.element_size()
        row, head, _ = rows.stride()
        _current().octavo_write_kv(
            rows.data_ptr(),
            row * unit,
            head * unit,
            cache.data_ptr(),
            ctypes.byref(_strides(cache, unit)),
            slots.data_ptr(),
            len(slots),
            cache.shape[1],
            cache.shape[2],
            cache.shape[3] * unit,
        )


def paged_attention(
    q: Tensor,
    layer: CacheLayer,
    meta: AttentionMetadata,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    rows, heads, dim = q.shape
    _, block_size, kv_heads, _ = layer.k.shape
    queries = q.to(layer.k.dtype)
    if queries.stride(2) != 1:
        queries = queries.contiguous()
    out = torch.empty(q.shape, dtype=queries.dtype)
    tables = meta.block_tables if meta.block_tables.stride(-1) == 1 else meta.block_tables.contiguous()
    starts, lengths = meta.query_starts.contiguous(), meta.seq_lens.contiguous()
    call = _Attention(
        _Tables(
            tables.data_ptr(),
            tables.stride(0),
            starts.data_ptr(),
            lengths.data_ptr(),
            len(lengths),
            rows,
            block_size,
            heads // kv_heads,
            kv_heads,
            0 if window is None or window >= meta.max_seq_len else window,
        ),
        queries.data_ptr(),
        layer.k.data_ptr(),
        layer.v.data_ptr(),
        out.data_ptr(),
        queries.stride(0),
        queries.stride(1),
        _strides(layer.k),
        _strides(layer.v),
        dim,
        scale,
        softcap or 0.0,
    )
    _current().octavo_attention(ctypes.byref(call), TYPES[queries.dtype], ctypes.byref(_team()))
    return out.to(q.dtype)


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    weight = weight.to(x.dtype)
    total = x if residual is None else residual
    norm = torch.empty_like(x) if residual is None else x
    _current().octavo_add_rms_norm(
        x.data_ptr(),
        None if residual is None else residual.data_ptr(),
        weight.data_ptr(),
        norm.data_ptr(),
        total.data_ptr(),
        x.shape[0],
        x.shape[1],
        eps,
        TYPES[x.dtype],
        ctypes.byref(_team()),
    )
    return norm, total


def rope_write_kv(
    qkv: Tensor,
    rotation: tuple[Tensor, Tensor] | None,
    layer: CacheLayer,
    slot_mapping: Tensor,
    num_heads: int,
    *,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
) -> Tensor:
    _, block_size, kv_heads, dim = layer.k.shape
    if qkv.stride()[1:] != (dim, 1):
        qkv = qkv.contiguous()
    if norms is not None:
        norms = (norms[0].to(qkv.dtype), norms[1].to(qkv.dtype))
    slots = slot_mapping.contiguous()
    cosine, sine = (None, None) if rotation is None else (part.contiguous() for part in rotation)
    call = _Rotation(
        qkv.data_ptr(),
        None if cosine is None else cosine.data_ptr(),
        None if sine is None else sine.data_ptr(),
        None if norms is None else norms[0].data_ptr(),
        None if norms is None else norms[1].data_ptr(),
        layer.k.data_ptr(),
        layer.v.data_ptr(),
        slots.data_ptr(),
        qkv.stride(0),
        _strides(layer.k),
        _strides(layer.v),
        qkv.shape[0],
        block_size,
        num_heads,
        kv_heads,
        dim,
        eps,
    )
    _current().octavo_rope_write_kv(ctypes.byref(call), TYPES[qkv.dtype], ctypes.byref(_team()))
    return qkv[:, :num_heads]


def silu_mul(gate_up: Tensor) -> Tensor:
    rows, size = gate_up.shape
    out = torch.empty(rows, size // 2, dtype=gate_up.dtype)
    _current().octavo_silu_mul(
        gate_up.data_ptr(),
        gate_up.stride(0),
        out.data_ptr(),
        rows,
        size // 2,
        TYPES[gate_up.dtype],
        ctypes.byref(_team()),
    )
    return out
