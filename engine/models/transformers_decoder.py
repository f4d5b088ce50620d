"""Decoder-only models that the native decoder does not cover: transformers' own modules over our paged KV cache.

transformers computes everything but attention, which is ours through its AttentionInterface: q, k and v of the flat row
of tokens come in, k and v go to their slots, and q attends through the block tables. Owns that exchange and the reading
of a model's shape. Promises that a model which it loads gives transformers' own logits: a short text goes through both
ways of attention at load, in pieces through ours, and a model that comes out differently is refused. That catches what
no config tells: states beside the KV cache, biases on scores, caches shared between layers.

transformers is imported when a model is loaded, not before. Code that comes with a model is never run.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engine.models.config import ModelShape, eos_token_ids, read_files
from engine.models.errors import ModelError
from engine.models.linear import Linear
from engine.models.refusals import USE_INSTEAD, refuse
from kernels.api import AttentionMetadata, KVCache, paged_attention, write_kv

_PAGED, _OBSERVED = "octavo_paged", "octavo_observed"
# The text of the comparison: long enough that a lost state or position shows, too short to cost anything.
_COMPARED_CUTS = (0, 9, 10, 17, 24)
# Distance of the logits from transformers' own, relative to these. Median of the tokens: a 16-bit near tie between two
# experts may send one token another way, whereas a model that this engine gets wrong is wrong in most.
_MAX_DISTANCE = {torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.1}


@dataclass(frozen=True, slots=True)
class _Step:
    kv: KVCache
    meta: AttentionMetadata


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one layer's call of attention shows of it."""

    num_kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None


_step: ContextVar[_Step] = ContextVar("the step that transformers' modules are running")
_seen: ContextVar[list[tuple[int, _Seen]]] = ContextVar("layers as their attention is called, with their index")


class TransformersDecoder:
    """The same two calls as engine.models.llama.LlamaModel, over a causal language model of transformers."""

    def __init__(self, model: Any) -> None:
        """`model`: a PreTrainedModel with a head; it is taken over, and must not be used by others any more."""
        self._decoder: Any = model.base_model
        self._head = model
        self._given = _GivenHidden()
        self.row_wise = not any("expert" in name for name, _ in model.named_modules())

    @torch.inference_mode()
    def __call__(self, input_ids: Tensor, positions: Tensor, kv: KVCache, meta: AttentionMetadata) -> Tensor:
        """Hidden states [T, hidden_size] after the last norm, for input_ids and positions int64 [T]."""
        token = _step.set(_Step(kv, meta))
        try:
            output = self._decoder(input_ids=input_ids[None], position_ids=positions[None], use_cache=False)
        finally:
            _step.reset(token)
        hidden: Tensor = output[0][0]
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 [R, vocab_size] for the hidden states of the rows that need a token, [R, hidden_size].

        Through the model's own forward, so that its scales and caps of logits count, with its layers left out.
        """
        prefix = self._head.base_model_prefix
        self._given.hidden = hidden[None]
        setattr(self._head, prefix, self._given)
        try:
            logits: Tensor = self._head(input_ids=hidden.new_zeros(1, len(hidden), dtype=torch.long), use_cache=False)[
                0
            ]
        finally:
            setattr(self._head, prefix, self._decoder)
        return logits[0].float()


class _GivenHidden(nn.Module):
    """Stands in for a model's layers: gives the hidden states that it was given."""

    hidden: Tensor

    @property
    def decoder(self) -> _GivenHidden:
        """Some models (OPT) hold their layers one step further down."""
        return self

    def forward(self, *_: Any, **__: Any) -> _GivenOutput:
        return _GivenOutput(self.hidden)


class _GivenOutput(tuple[Tensor]):
    """As much of a ModelOutput as a head reads: the hidden states, by name or place, and nothing of the rest."""

    def __new__(cls, hidden: Tensor) -> _GivenOutput:
        return super().__new__(cls, (hidden,))

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None


def _paged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' interface: q, k and v are [1, heads, T, head_dim], the result is [1, T, heads, head_dim]."""
    step = _step.get()
    layer = step.kv.layer(module.layer_idx)
    write_kv(key[0].transpose(0, 1), value[0].transpose(0, 1), layer, step.meta.slot_mapping)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows = query[0].transpose(0, 1)
    # 0 and None both stand for "none" in configs.
    out = paged_attention(rows, layer, step.meta, scale, window=sliding_window or None, softcap=softcap or None)
    return out[None], None


def _observed_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    if options.get("s_aux") is not None:
        raise ModelError("its attention has sinks, which this engine's kernels do not know")
    seen = _Seen(key.shape[1], key.shape[3], value.shape[3], options.get("sliding_window") or None)
    _seen.get().append((module.layer_idx, seen))
    return value.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None


def load_decoder(folder: Path, dtype: torch.dtype, device: torch.device) -> tuple[TransformersDecoder, ModelShape]:
    """The model in `folder`, and its shape. ModelError, of one line, when it cannot be run or cannot be run right."""
    data, generation = read_files(folder)
    refuse(data, str(folder))
    model = _load(folder, data, dtype)
    try:
        _pack(model.to(device))
        shape = _shape_of(model, data, generation)
        decoder = TransformersDecoder(model)
        _compare(decoder, model, shape, dtype, device)
    except Exception as error:  # ours, or whatever a model of an unforeseen form leads transformers to
        raise ModelError(
            f"{folder} ({data['model_type']}) does not run on this engine's paged attention: {_first_line(error)}; "
            f"{USE_INSTEAD}."
        ) from error
    return decoder, shape


def _load(folder: Path, data: dict[str, Any], dtype: torch.dtype) -> Any:
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    # No mask function is registered under these names: transformers then makes no masks.
    ALL_ATTENTION_FUNCTIONS.register(_PAGED, _paged_attention)
    ALL_ATTENTION_FUNCTIONS.register(_OBSERVED, _observed_attention)
    model_type = data["model_type"]
    if model_type not in CONFIG_MAPPING:
        own = "needs code of its own, which is never run here" if data.get("auto_map") else "is unknown here"
        raise ModelError(
            f"{folder} has model_type {model_type!r}, which {own} (transformers {transformers.__version__}); "
            f"{USE_INSTEAD}."
        )
    transformers.utils.logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise ModelError(f"{folder} is a {model_type}: it has no head that predicts the next token; {USE_INSTEAD}.")
        if getattr(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], "_is_stateful", False):
            raise ModelError(
                f"{folder} is a {model_type}: it keeps a state beside the KV cache, which this engine does not run; "
                f"{USE_INSTEAD}."
            )
        model, info = AutoModelForCausalLM.from_pretrained(
            str(folder),
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except ModelError:
        raise
    except Exception as error:  # of the library, of safetensors, of the system
        raise ModelError(f"{folder} cannot be loaded by transformers ({_first_line(error)}).") from error
    for kind, what in (("missing_keys", "lacks weights"), ("mismatched_keys", "has weights of other shapes")):
        if info.get(kind):
            names = sorted(str(name) for name in info[kind])
            raise ModelError(f"{folder} {what}: {', '.join(names[:3])}{' and more' if len(names) > 3 else ''}.")
    model.requires_grad_(False)
    return model


def _pack(model: nn.Module) -> None:
    """Lay the matrices out for this CPU, where that is possible, as the native decoder does."""
    others = {id(p) for m in model.modules() if type(m) is not nn.Linear for p in m.parameters(recurse=False)}
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                linear = Linear.of(child)
                linear.pack(keep_weight=id(child.weight) in others)
                setattr(module, name, linear)


def _shape_of(model: Any, data: dict[str, Any], generation: dict[str, Any]) -> ModelShape:
    """Told by what reaches the attention of each layer when one token goes through."""
    model.set_attn_implementation(_OBSERVED)
    calls: list[tuple[int, _Seen]] = []
    token = _seen.set(calls)
    try:
        with torch.inference_mode():
            one = torch.zeros(1, 1, dtype=torch.long, device=model.device)
            logits = model(input_ids=one, position_ids=one, use_cache=False).logits
    finally:
        _seen.reset(token)
    layers = sorted(calls, key=lambda call: call[0])
    kinds = {(seen.num_kv_heads, seen.head_dim) for _, seen in layers}
    if not layers:
        raise ModelError(f"its class {type(model).__name__} does not let its attention be replaced")
    if [index for index, _ in layers] != list(range(len(layers))):
        raise ModelError("it does not call attention once a layer with K and V of its own")
    if len(kinds) > 1 or any(seen.head_dim != seen.value_dim for _, seen in layers):
        raise ModelError("it has heads of several sizes, which this engine's KV cache does not hold")
    (num_kv_heads, head_dim) = kinds.pop()
    max_position = _max_position(model.config)
    shape = ModelShape(
        model_type=data["model_type"],
        num_layers=len(layers),
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=logits.shape[-1],
        max_position=max_position,
        eos_token_ids=eos_token_ids(data, generation),
        windows=tuple(_within(seen.window, max_position) for _, seen in layers),
    )
    _check_windows(model.config, shape)
    return shape


def _max_position(config: Any) -> int:
    longest = getattr(config, "max_position_embeddings", None)
    if not isinstance(longest, int) or longest < 1:
        raise ModelError("it does not say its longest context (max_position_embeddings)")
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        # Beyond it the frequencies of all tokens change with the longest text of a batch, those already cached too.
        longest = min(longest, int(rope.get("original_max_position_embeddings") or longest))
    return longest


def _within(window: int | None, max_position: int) -> int | None:
    """A window that is one: configs write None, 0 or more than there can be for no window."""
    return window if window and window < max_position else None


def _check_windows(config: Any, shape: ModelShape) -> None:
    """A window that transformers would put in a mask only, which we do not get, must not be lost."""
    window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    slides = [kind == "sliding_attention" for kind in kinds] if kinds else [True] * shape.num_layers
    if tuple(_within(window, shape.max_position) if slide else None for slide in slides) != shape.windows:
        raise ModelError(f"it does not tell its attention the windows of {window} tokens that its config has")


def _compare(
    decoder: TransformersDecoder, model: Any, shape: ModelShape, dtype: torch.dtype, device: torch.device
) -> None:
    """ModelError when our attention, fed in pieces, leads to other logits than transformers' own over the whole."""
    count = max(cut for cut in _COMPARED_CUTS if cut <= shape.max_position)
    ids = (torch.arange(count, device=device) * 7919 + 11) % shape.vocab_size
    positions = torch.arange(count, device=device)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        expected = model(input_ids=ids[None], position_ids=positions[None], use_cache=False).logits[0].float()
    model.set_attn_implementation(_PAGED)
    block_size = 4
    blocks = -(-count // block_size)
    kv = KVCache(shape.num_layers, blocks, block_size, shape.num_kv_heads, shape.head_dim, dtype=dtype, device=device)
    parts = []
    for start, stop in pairwise(cut for cut in _COMPARED_CUTS if cut <= count):
        meta = AttentionMetadata(
            slot_mapping=positions[start:stop],
            block_tables=torch.arange(blocks, dtype=torch.int32, device=device)[None],
            query_starts=torch.tensor([0, stop - start], dtype=torch.int32, device=device),
            seq_lens=torch.tensor([stop], dtype=torch.int32, device=device),
            max_query_len=stop - start,
            max_seq_len=stop,
        )
        parts.append(decoder.logits(decoder(ids[start:stop], positions[start:stop], kv, meta)))
    distance = float(((torch.cat(parts) - expected).norm(dim=-1) / expected.norm(dim=-1)).median())
    if not distance <= _MAX_DISTANCE.get(dtype, 0.1):
        raise ModelError(f"its logits differ from those of transformers' own attention, by {distance:.2g} of them")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
