"""From a path to a model ready to run: a safetensors folder (one file or sharded), a GGUF file, or a hub id.

Owns the choice between the native decoder and transformers' modules, the fusing of a model's weights, the choice of
dtype, and the revision that the prefix cache keys on. Every failure is a ModelError of one line. engine.models.source
says what a name means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.models.config import ModelConfig, ModelShape, read_config, read_json
from engine.models.digest import digest_files
from engine.models.errors import ModelError, NotNative
from engine.models.llama import LlamaModel
from engine.models.source import resolve
from kernels.api import AttentionMetadata, KVCache

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class DecoderModel(Protocol):
    """What every model does; engine.models.llama.LlamaModel says it in full."""

    row_wise: bool
    """Whether all rows go through the same products; experts multiply as many as happen to be sent to them."""

    def __call__(self, input_ids: Tensor, positions: Tensor, kv: KVCache, meta: AttentionMetadata) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


@dataclass
class LoadedModel:
    """A model on its device. `path` is the folder it came from (the tokenizer's too), `dtype` that of its weights.

    `revision` is 32 hex digits over config.json and the weight files (engine.models.digest says how thoroughly).
    """

    model: DecoderModel
    config: ModelShape
    revision: str
    path: Path
    dtype: torch.dtype
    device: torch.device


def load(
    path: str | Path,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    *,
    cache_dir: str | Path | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> LoadedModel:
    """Load a model folder, a .gguf file (converted once, into `cache_dir`) or a hub id.

    A model that the native decoder does not cover runs through transformers (engine.models.transformers_decoder).
    dtype: "auto", "float32", "bfloat16", "float16" or a torch dtype. `report` is told the lines of a conversion's
    progress. Raises ModelError, of one line.
    """
    folder = resolve(path, cache_dir=cache_dir, report=report)
    device = torch.device(device)
    kind = choose_dtype(dtype, device)
    model: DecoderModel
    config: ModelShape
    try:
        config = read_config(folder)
        files = weight_files(folder)
        model = build(config, _tensors(files), kind, device, str(folder))
    except NotNative:
        from engine.models.transformers_decoder import load_decoder

        files = weight_files(folder)
        model, config = load_decoder(folder, kind, device)
    revision = digest_files([folder / "config.json", *files])
    return LoadedModel(model=model, config=config, revision=revision, path=folder, dtype=kind, device=device)


def open_folder(folder: Path) -> tuple[ModelConfig, Mapping[str, Tensor], str]:
    """Config, weights by their Hugging Face names, each read when it is asked for, and revision. Raises ModelError."""
    config = read_config(folder)
    files = weight_files(folder)
    return config, Checkpoint(files), digest_files([folder / "config.json", *files])


class Checkpoint(Mapping[str, Tensor]):
    """The tensors of safetensors files, memory-mapped."""

    def __init__(self, files: list[Path]) -> None:
        from safetensors import SafetensorError, safe_open

        self._file_of: dict[str, Any] = {}
        for file in files:
            try:
                opened: Any = safe_open(str(file), framework="pt")
            except SafetensorError as error:
                raise ModelError(f"{file} is damaged ({error}); fetch or convert the model again.") from None
            self._file_of.update(dict.fromkeys(opened.keys(), opened))

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._file_of:
            raise ModelError(f"The model lacks the weight {name}; fetch or convert it again.")
        tensor: Tensor = self._file_of[name].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)


@lru_cache(maxsize=1)
def cpu_flags() -> frozenset[str]:
    """The processor's feature flags, read once; empty where the system does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found.group(1).split()) if found else frozenset()


def choose_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """ "auto" is bfloat16 on CUDA and on CPUs that multiply it natively, else float32."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        native = device.type == "cuda" or cpu_flags() & {"avx512_bf16", "amx_bf16"}
        return torch.bfloat16 if native else torch.float32
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is unknown; choose auto, {', '.join(DTYPES)}.")
    return DTYPES[dtype]


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, in a fixed order; ModelError when one is missing."""
    if (folder / INDEX).is_file():
        names = read_json(folder / INDEX).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise ModelError(f"{folder / INDEX} names no weights; the model folder is damaged.")
        files = [folder / name for name in sorted(set(names.values()))]
    else:
        files = [folder / SINGLE]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelError(f"{folder} has no weights: {', '.join(missing)} is missing.")
    return files


def _tensors(files: list[Path]) -> Iterator[tuple[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    with ExitStack() as stack:
        for file in files:
            try:
                opened: Any = stack.enter_context(safe_open(str(file), framework="pt"))
            except SafetensorError as error:
                raise ModelError(f"{file} is damaged ({error}); fetch or convert the model again.") from None
            for name in opened.keys():  # noqa: SIM118  not a dict
                yield name, opened.get_tensor(name)


# Where the weights of a Hugging Face checkpoint go: parts of one fused matrix, in the order of its rows.
_FUSED = {
    "self_attn.q_proj": ("self_attn.qkv_proj", 0),
    "self_attn.k_proj": ("self_attn.qkv_proj", 1),
    "self_attn.v_proj": ("self_attn.qkv_proj", 2),
    "mlp.gate_proj": ("mlp.gate_up_proj", 0),
    "mlp.up_proj": ("mlp.gate_up_proj", 1),
}
_PLAIN = ("embed_tokens", "norm", "input_layernorm", "post_attention_layernorm", "q_norm", "k_norm")


def build(
    config: ModelConfig, tensors: Iterator[tuple[str, Tensor]], dtype: torch.dtype, device: torch.device, name: str
) -> LlamaModel:
    """A LlamaModel with the given weights (Hugging Face names). ModelError names what is missing, wrong or unknown."""
    with torch.device("meta"):
        model = LlamaModel(config)
    slots = _slots(config, model)
    storage = {key: torch.empty(p.shape, dtype=dtype, device=device) for key, p in model.named_parameters()}
    waiting = set(slots)
    unknown = []
    for hf_name, tensor in tensors:
        if hf_name not in slots:
            tied = config.tie_embeddings and hf_name == "lm_head.weight"
            if not tied and not hf_name.endswith("rotary_emb.inv_freq"):
                unknown.append(hf_name)
            continue
        key, first, rows = slots[hf_name]
        target = storage[key].narrow(0, first, rows)
        if tensor.shape != target.shape:
            raise ModelError(
                f"{name}: the weight {hf_name} is {list(tensor.shape)}, but config.json asks for {list(target.shape)}."
            )
        target.copy_(tensor)
        waiting.discard(hf_name)
    if waiting:
        raise ModelError(f"{name} lacks weights: {_some(waiting)}.")
    if unknown:
        raise ModelError(f"{name} has weights that model_type {config.model_type} does not know: {_some(unknown)}.")
    model.load_state_dict(storage, strict=False, assign=True)
    if config.tie_embeddings:
        model.lm_head.weight = model.embed_tokens
    model.rotary.to(device)
    model.eval().requires_grad_(False)
    model.pack()
    return model


def _some(names: set[str] | list[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return ", ".join(ordered[:3]) + more


def _slots(config: ModelConfig, model: LlamaModel) -> dict[str, tuple[str, int, int]]:
    """Hugging Face name -> (our parameter, its first row there, rows) for every weight the model needs."""
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    parts = {"qkv_proj": (query, kv, kv), "gate_up_proj": (config.intermediate_size,) * 2}
    pieces: dict[str, list[tuple[str, int]]] = {}
    for theirs, (ours, index) in _FUSED.items():
        pieces.setdefault(ours, []).append((theirs, index))
    slots = {}
    for key, parameter in model.named_parameters():
        stem, _, kind = key.rpartition(".")
        short = ".".join(stem.split(".")[-2:])
        if short in pieces:
            rows = parts[short.split(".")[-1]]
            for theirs, index in pieces[short]:
                hf_name = f"model.{stem.removesuffix(short)}{theirs}.{kind}"
                slots[hf_name] = (key, sum(rows[:index]), rows[index])
        elif key.split(".")[-1] in _PLAIN:
            slots[f"model.{key}.weight"] = (key, 0, parameter.shape[0])
        elif stem == "lm_head":
            slots[key] = (key, 0, parameter.shape[0])
        else:
            slots[f"model.{key}"] = (key, 0, parameter.shape[0])
    return slots
