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
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from engine.models.config import ModelConfig, ModelShape, read_config, read_json
from engine.models.digest import digest_files
from engine.models.errors import ModelError, NotNative
from engine.models.llama import LlamaModel
from engine.models.ranks import Share, config_of_each
from engine.models.source import resolve
from engine.models.split import Ranks, SplitModel
from kernels.api import AttentionMetadata, KVCache

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
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
    Of a model that ranks share, `config` is what each of them runs.
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
    ranks: Ranks | None = None,
) -> LoadedModel:
    """Load a model folder, a .gguf file (converted once, into `cache_dir`) or a hub id.

    A model that the native decoder does not cover runs through transformers (engine.models.transformers_decoder).
    dtype: "auto", "float32", "bfloat16", "float16" or a torch dtype. `report` is told the lines of a conversion's
    progress. `ranks`: load this rank's part of a native decoder, reading no more of its weights; that it can be divided
    has been checked (engine.models.ranks). Raises ModelError, of one line.
    """
    folder = resolve(path, cache_dir=cache_dir, report=report)
    device = torch.device(device)
    kind = choose_dtype(dtype, device)
    model: DecoderModel
    config: ModelShape
    try:
        config = read_config(folder)
        files = weight_files(folder)
        model = build(config, _tensors(files, whole=ranks is None), kind, device, str(folder), ranks)
        if ranks is not None:
            config = config_of_each(config, ranks.share.size)
    except NotNative:
        if ranks is not None:
            raise
        from engine.models.transformers_decoder import load_decoder

        files = weight_files(folder)  # before transformers looks: what it would load otherwise
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
    foreign = [file.name for file in files if file.suffix != ".safetensors"]
    if foreign:
        raise ModelError(f"{folder / INDEX} names {foreign[0]}: only .safetensors files are loaded.")
    missing = [file.name for file in files if not file.is_file()]
    pickled = [file.name for kind in PICKLED for file in sorted(folder.glob(kind))]
    if missing and pickled:
        raise ModelError(
            f"{folder} has its weights in {pickled[0]}, and loading that could run any code: it is never done. "
            f"Use the model's .safetensors or .gguf files, or convert it elsewhere."
        )
    if missing:
        raise ModelError(f"{folder} has no weights: {', '.join(missing)} is missing.")
    return files


def _tensors(files: list[Path], *, whole: bool) -> Iterator[tuple[str, Any]]:
    """Name and tensor of each weight; where not the `whole` is wanted, something to be indexed that reads only that."""
    from safetensors import SafetensorError, safe_open

    with ExitStack() as stack:
        for file in files:
            try:
                opened: Any = stack.enter_context(safe_open(str(file), framework="pt"))
            except SafetensorError as error:
                raise ModelError(f"{file} is damaged ({error}); fetch or convert the model again.") from None
            for name in opened.keys():  # noqa: SIM118  not a dict
                yield name, opened.get_tensor(name) if whole else opened.get_slice(name)


# Where the weights of a Hugging Face checkpoint go: parts of one fused matrix, in the order of its rows.
_FUSED = {
    "self_attn.q_proj": ("self_attn.qkv_proj", 0),
    "self_attn.k_proj": ("self_attn.qkv_proj", 1),
    "self_attn.v_proj": ("self_attn.qkv_proj", 2),
    "mlp.gate_proj": ("mlp.gate_up_proj", 0),
    "mlp.up_proj": ("mlp.gate_up_proj", 1),
}


def build(
    config: ModelConfig,
    tensors: Iterator[tuple[str, Any]],
    dtype: torch.dtype,
    device: torch.device,
    name: str,
    ranks: Ranks | None = None,
) -> LlamaModel:
    """A LlamaModel with the given weights (Hugging Face names). ModelError names what is missing, wrong or unknown."""
    with torch.device("meta"):
        model = LlamaModel(config) if ranks is None else SplitModel(config, ranks)
    slots = _slots(config, model, Share() if ranks is None else ranks.share)
    storage = {key: torch.zeros(p.shape, dtype=dtype, device=device) for key, p in model.named_parameters()}
    waiting = set(slots)
    unknown = []
    for hf_name, tensor in tensors:
        if hf_name not in slots:
            tied = config.tie_embeddings and hf_name == "lm_head.weight"
            if not tied and not hf_name.endswith("rotary_emb.inv_freq"):
                unknown.append(hf_name)
            continue
        slot = slots[hf_name]
        shape = list(tensor.shape if isinstance(tensor, Tensor) else tensor.get_shape())
        if shape != slot.shape:
            raise ModelError(f"{name}: the weight {hf_name} is {shape}, but config.json asks for {slot.shape}.")
        rows = slot.part[0].stop - slot.part[0].start
        if rows:
            storage[slot.key].narrow(0, slot.first, rows).copy_(tensor[slot.part])
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


class _Slot(NamedTuple):
    """Where a weight of the checkpoint goes: `part` of its `shape` to our parameter `key`, from row `first` on."""

    key: str
    first: int
    shape: list[int]
    part: tuple[slice, ...]


def _slots(config: ModelConfig, model: LlamaModel, share: Share) -> dict[str, _Slot]:
    """By Hugging Face name, for every weight the model needs. `config` is the whole model's."""
    heads = (config.num_heads, config.head_dim)
    kv_heads, inner = (config.num_kv_heads, config.head_dim), (config.intermediate_size, 1)
    parts = {"qkv_proj": (heads, kv_heads, kv_heads), "gate_up_proj": (inner, inner)}  # cut by columns: (count, rows)
    inputs = {"o_proj": heads, "down_proj": inner}  # cut by rows
    pieces: dict[str, list[tuple[str, int]]] = {}
    for theirs, (ours, index) in _FUSED.items():
        pieces.setdefault(ours, []).append((theirs, index))
    slots = {}
    for key, parameter in model.named_parameters():
        stem, _, kind = key.rpartition(".")
        short, last = ".".join(stem.split(".")[-2:]), stem.split(".")[-1]
        rest = list(parameter.shape[1:])
        whole = tuple(slice(0, n) for n in parameter.shape)
        if short in pieces:
            mine = [share.part(*one) for one in parts[last]]
            for theirs, index in pieces[short]:
                hf_name = f"model.{stem.removesuffix(short)}{theirs}.{kind}"
                first = sum(one.stop - one.start for one in mine[:index])
                count, rows = parts[last][index]
                slots[hf_name] = _Slot(key, first, [count * rows, *rest], (mine[index], *whole[1:]))
        elif last in inputs and kind == "weight":
            count, columns = inputs[last]
            shape = [parameter.shape[0], count * columns]
            slots[f"model.{key}"] = _Slot(key, 0, shape, (whole[0], share.part(count, columns)))
        elif last in inputs:
            once = whole[0] if share.rank == 0 else slice(0, 0)
            slots[f"model.{key}"] = _Slot(key, 0, list(parameter.shape), (once,))
        elif key == "embed_tokens" or stem == "lm_head":
            hf_name = key if stem == "lm_head" else f"model.{key}.weight"
            slots[hf_name] = _Slot(key, 0, [config.vocab_size, *rest], (share.tokens(config.vocab_size), *whole[1:]))
        else:
            slots[f"model.{key}.weight"] = _Slot(key, 0, list(parameter.shape), whole)
    return slots
