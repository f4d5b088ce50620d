"""Weights out of a GGUF file, under their Hugging Face names and in their Hugging Face layout.

Owns the names and the one difference in layout: GGUF files of architecture "llama" store the rows of the query and key
projections with the two halves of each head interleaved (their rotary embedding turns neighbouring pairs); here they
are put back. Values come out as float32, whatever the file's quantization.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize

from engine.models.config import ModelError
from engine.models.low_bit import from_blocks
from kernels.cpu.packing import Quantised

ARCHITECTURES = ("llama", "qwen2", "qwen3")

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# The factors by which Llama 3's scaling divides each rotary frequency: GGUF stores them, the config does not.
ROPE_FACTORS = "rope_freqs.weight"


class GgufFile:
    """One GGUF file, opened for reading (memory-mapped)."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelError(f"{path} is not a GGUF file.")
        try:
            self._reader = gguf.GGUFReader(str(path))
        except Exception as error:  # the reader raises whatever a damaged header leads it to
            raise ModelError(f"{path} is a damaged GGUF file ({error}).") from None
        self.architecture = self.field("general.architecture")
        if self.architecture not in ARCHITECTURES:
            raise ModelError(
                f"{path} has architecture {self.architecture!r}, which this engine does not run; "
                f"it runs {', '.join(ARCHITECTURES)}."
            )
        self.num_tensors = len(self._reader.tensors)

    def field(self, name: str, default: Any = None) -> Any:
        """A metadata value, `default` when the file has none of that name."""
        field = self._reader.fields.get(name)
        return default if field is None else field.contents()

    def has(self, tensor_name: str) -> bool:
        return any(tensor.name == tensor_name for tensor in self._reader.tensors)

    def rope_factors(self) -> np.ndarray | None:
        """Float32 [head_dim / 2], or None when the file scales no frequency."""
        for tensor in self._reader.tensors:
            if tensor.name == ROPE_FACTORS:
                return np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        return None

    def weights(self) -> Iterator[tuple[str, np.ndarray]]:
        """Every weight as (Hugging Face name, float32 array), one at a time: memory holds one tensor, not a model."""
        for tensor in self._named():
            values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            name, heads = hugging_face_name(tensor.name), self._interleaved_heads(tensor.name)
            yield name, _halves_apart(values, heads) if heads else values

    def low_bit(self) -> Iterator[tuple[str, Quantised]]:
        """The matrices that the C++ decoder can multiply with as the file has them: same names, same rows, exact."""
        for tensor in self._named():
            matrix = from_blocks(tensor.data, tensor.tensor_type.name) if tensor.data.ndim == 2 else None
            if matrix is not None:
                name, heads = hugging_face_name(tensor.name), self._interleaved_heads(tensor.name)
                yield name, matrix.rows(_halves_apart(np.arange(len(matrix.q)), heads)) if heads else matrix

    def _named(self) -> Iterator[Any]:
        return (tensor for tensor in self._reader.tensors if tensor.name != ROPE_FACTORS)

    def _interleaved_heads(self, name: str) -> int:
        """How many heads the rows of this tensor make up if their halves are interleaved, else 0."""
        if self.architecture != "llama":
            return 0
        heads = int(self.field("llama.attention.head_count"))
        if ".attn_q." in name:
            return heads
        return int(self.field("llama.attention.head_count_kv", heads)) if ".attn_k." in name else 0


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; ModelError for a tensor we do not know."""
    stem, _, kind = name.rpartition(".")
    if stem in _OUTER:
        return f"{_OUTER[stem]}.{kind}"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _BLOCK:
        return f"model.layers.{parts[1]}.{_BLOCK[parts[2]]}.{kind}"
    raise ModelError(f"The GGUF file has the tensor {name}, which this engine does not know.")


def _halves_apart(values: np.ndarray, heads: int) -> np.ndarray:
    """Undo the interleaving: rows 0, 2, 4, ... of a head become its first half, rows 1, 3, 5, ... its second."""
    half = values.shape[0] // heads // 2
    return values.reshape(heads, half, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
