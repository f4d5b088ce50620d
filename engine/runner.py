"""One step of the model: a schedule becomes flat arrays, these become logits, and these tokens.

Owns the model and its KV pool's memory. On a GPU `launch` does not wait for the device: the next step can be launched
before a result is in, and takes the tokens that it lacks from where the device put them. It knows sequences, but
changes nothing of them except `num_synced`; neither queues, text nor tenants concern it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from engine.config import KV_SCALE_BYTES, EngineConfig, EngineConfigError, free_host_memory, in_words
from engine.device import Memory, memory_of, upload
from engine.drawing import Drawing
from engine.flat_batch import NOTHING, BlockTableRows, FlatBatch, tiles
from engine.graphs import DecodeGraphs, Record, cuda_recorder, padded_sizes
from engine.kv_blocks import KVBlocks
from engine.models import LoadedModel, load
from engine.models.llama import LlamaModel
from engine.sampler import Drawn, SamplingRows, draw
from engine.sampling_params import SamplingParams
from engine.scheduler import Batch
from engine.sequence import Sequence
from engine.step_groups import RecordedGroups, StepGroups
from engine.step_inputs import Inputs, StepInputs
from engine.trial_step import trial_step
from kernels import api
from kernels.api import KVCache
from kernels.fixed_order import TILE

IN_EIGHT_BITS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
"""By EngineConfig.kv_dtype."""

log = structlog.get_logger(__name__)


class Pending(Protocol):
    """A step that was launched."""

    def result(self) -> dict[Sequence, Drawn]:
        """Wait for it. Gives the next tokens of every sequence that has no token left to compute behind it.

        A sequence whose count reaches beyond its tokens has so many of its draft tokens computed too. A prompt chunk of
        a sequence that asked for prompt_logprobs has an entry as well, with no token in it. Raises what it failed at.
        """
        ...


@dataclass(slots=True)
class Ready:
    """A step that was computed as it was launched."""

    drawn: dict[Sequence, Drawn]

    def result(self) -> dict[Sequence, Drawn]:
        return self.drawn


@dataclass(slots=True)
class _Launched:
    result: Callable[[], dict[Sequence, Drawn]]


class ModelRunner(Protocol):
    """What the engine needs of a model: its limits, and steps.

    Steps, copies, reads and writes of blocks take effect in the order of the calls, also where a call returns earlier.
    """

    asynchronous: bool
    """`launch` returns before the step is computed."""

    num_blocks: int
    num_host_blocks: int
    """Blocks that can be kept in host memory; their numbers follow those of the pool."""
    vocab_size: int
    max_model_len: int
    window: int | None
    """Tokens beyond which no layer looks back; None when one sees all. Blocks wholly behind it are not read again."""
    revision: str
    eos_token_ids: frozenset[int]
    kv_layout: str
    """What a block's bytes mean and how they were computed: runners of one revision and layout may exchange blocks."""
    block_bytes: int

    def check(self) -> None:
        """Raise what is known to keep the next step from being computed. Asked now and then while nothing runs."""
        ...

    def launch(self, batch: Batch, behind: Batch = NOTHING) -> Pending:
        """Compute the batch, behind the step in flight if there is one: what that computes and draws comes first."""
        ...

    def copy_blocks(self, pairs: SequenceOf[tuple[int, int]]) -> None:
        """Copy the KV of whole blocks, (source, destination), one after the other in this order."""
        ...

    def read_blocks(self, blocks: SequenceOf[int], tokens: int) -> NDArray[np.uint8]:
        """A copy in host memory of the first `tokens` tokens' KV, the last block's other slots zero: [n, block_bytes].

        The bytes have the order of `kv_layout`.
        """
        ...

    def write_blocks(self, blocks: SequenceOf[int], data: NDArray[np.uint8]) -> None:
        """Set the KV of whole blocks to what `read_blocks` gave."""
        ...


class Runner:
    """Runs a model through torch over a paged KV pool on one device.

    With `batch_invariant` the model only ever sees TILE rows, padded, or one where rows are not treated alike, and its
    attention has a fixed order: all products and sums have one shape, so a token's logits are the same to the bit
    whatever is in the batch, however chunked.
    """

    def __init__(
        self, loaded: LoadedModel, config: EngineConfig, memory: Memory | None = None, record: Record | None = None
    ) -> None:
        """`memory`: tells how much there is, None for the device's own. `record`: how decode steps are recorded, None
        for CUDA graphs on a GPU, and not at all elsewhere.
        """
        shape = loaded.config
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.device = loaded.device
        self.dtype = loaded.dtype
        self.revision = loaded.revision
        self.vocab_size = shape.vocab_size
        self.eos_token_ids = frozenset(shape.eos_token_ids)
        self.max_model_len = context_length(config, shape.max_position)
        self.window = shape.window
        self.asynchronous = self.device.type == "cuda"
        self._model = loaded.model
        self._invariant = config.batch_invariant
        self._tile = TILE if loaded.model.row_wise else 1
        self._tables = BlockTableRows(config.max_num_seqs, self.max_model_len, config.block_size)
        self._drawing = Drawing(config.max_num_seqs, self.vocab_size, device=self.device)
        most = max(config.token_budget, TILE)
        self._inputs = StepInputs(most, config.max_num_seqs, self._tables.tables.shape[1], self.device)

        kv_dtype = IN_EIGHT_BITS.get(config.kv_dtype, loaded.dtype)
        eight = config.kv_dtype in IN_EIGHT_BITS

        def cache(blocks: int) -> KVCache:
            heads, dim = shape.num_kv_heads, shape.head_dim
            layers, size = shape.num_layers, config.block_size
            return KVCache(layers, blocks, size, heads, dim, dtype=kv_dtype, device=self.device)

        self._graphs: DecodeGraphs | None = None
        if record is None and self.device.type == "cuda":
            record = cuda_recorder(self.device)
        if not config.graphs or self._invariant or not isinstance(self._model, LlamaModel):
            record = None
        self._groups: StepGroups | None = None
        # Where no layer sees all, there is nothing that a group would read for longer than a window.
        if api.through_triton(self._inputs.memory) and self.window is None and not self._invariant:
            from kernels.triton import grouped

            self._groups = StepGroups(config.block_size, grouped.find_groups)
            if grouped.CHECK:  # a comparison at every step is none that could be recorded
                record = None
        if isinstance(self._model, LlamaModel):
            self._model.warm_up(cache(1))
        memory = memory or memory_of(self.device)
        step_bytes = self._measure(memory, cache, config.token_budget)
        if record is not None:  # recorded steps have memory of their own
            step_bytes += self._measure(memory, cache, config.max_num_seqs)
        block_bytes = config.block_size * shape.kv_bytes_per_token(kv_dtype.itemsize, KV_SCALE_BYTES if eight else 0)
        free = memory.free() if memory.on_gpu else memory.free() // config.tensor_parallel
        self.num_blocks = self._agreed(
            config.pool_blocks(block_bytes, free, self.max_model_len, on_gpu=memory.on_gpu, step_bytes=step_bytes)
        )
        self.block_bytes = block_bytes
        self.kv_layout = (
            f"{self.device.type} {loaded.dtype} [K V, {shape.num_layers}, {config.block_size}, {shape.num_kv_heads}, "
            f"{shape.head_dim}]{', batch-invariant' if config.batch_invariant else ''}"
        )
        if eight:
            self.kv_layout += f", in {config.kv_dtype} with scales"
        self._kv = cache(self.num_blocks)
        host = free_host_memory() // config.tensor_parallel
        self.num_host_blocks = self._agreed(config.host_blocks(block_bytes, host))
        self._blocks = KVBlocks(self._kv, self.num_host_blocks)
        if record is not None:
            self._graphs = self._recorded(record)

    def _recorded(self, record: Record) -> DecodeGraphs | None:
        most = len(self._drawing.last)
        groups = None
        if self._groups is not None:
            groups = RecordedGroups(most, self._kv.block_size, self.max_model_len, self.device)
        try:
            return DecodeGraphs(
                lambda inputs: self._logits(self._hidden(inputs)),
                self._inputs,
                padded_sizes(most),
                vocab_size=self.vocab_size,
                max_seq_len=self.max_model_len,
                record=record,
                groups=groups,
            )
        except RuntimeError as error:  # a kernel that looks at what it is given cannot be recorded
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            log.warning("runner.no_graphs", reason=reason, lost="host time in every decode step")
            return None

    def _measure(self, memory: Memory, cache: Callable[[int], KVCache], tokens: int) -> int:
        """Bytes that a step of so many tokens takes at most, beside the weights and the KV pool."""
        size = self._tables.block_size
        flat, blocks = trial_step(tokens, len(self._drawing.last), size, self.max_model_len)
        settings = SamplingRows(flat.num_draws)
        for row in range(flat.num_draws):
            settings.set(row, SamplingParams(top_p=0.9), 0)  # what takes most

        @torch.inference_mode()
        def step() -> None:
            logits = self._compute(flat)(slice(None))
            raw = logits.clone()  # logprobs are told of these
            draw(logits, settings, np.arange(flat.num_draws), flat.seq_lens.astype(np.int64))
            del raw

        self._kv = cache(blocks)
        try:
            return memory.peak_of(step)
        except torch.OutOfMemoryError:
            raise EngineConfigError(
                f"A step of {tokens} tokens does not fit beside the weights, where {in_words(memory.free())} are free; "
                "lower token_budget or max_num_seqs, or use a smaller model."
            ) from None
        finally:
            del self._kv

    @classmethod
    def load(cls, config: EngineConfig) -> Runner:
        """Load the model that `config` names. Raises ModelError or EngineConfigError, each of one line."""
        device = config.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device.startswith("cuda:"):
            torch.cuda.set_device(device)  # recorded steps and their memory belong to the current one
        return cls(load(config.model, config.dtype, device), config)

    def check(self) -> None:
        """Nothing fails here while nothing is computed."""

    @torch.inference_mode()
    def launch(self, batch: Batch, behind: Batch = NOTHING) -> Pending:
        self._drawing.enter(batch)
        flat = self._tables.flatten(batch, behind)
        return _Launched(self._drawing.launch(flat, self._compute(flat)))

    def _compute(self, flat: FlatBatch) -> Callable[[slice], torch.Tensor]:
        """Put the step on its way; what it gives computes the logits of a part of `flat.rows`."""
        groups = None if self._groups is None else self._groups.of(flat)
        if self._graphs is not None and self._graphs.fits(flat, groups):
            return self._graphs.run(flat, groups).__getitem__
        if self._invariant:
            parts = [
                self._hidden(self._inputs.put(tile, fixed_order=True))[:size] for tile, size in tiles(flat, self._tile)
            ]
            hidden = torch.cat(parts)
        else:
            hidden = self._hidden(self._inputs.put(flat, groups=groups))
        return lambda part: self._logits(hidden[upload(flat.rows[part], self.device)])

    def _hidden(self, inputs: Inputs) -> torch.Tensor:
        ids, late = inputs.input_ids, inputs.late
        if late is not None:
            ids = torch.where(late < 0, ids, self._drawing.last[late.clamp(min=0)])
        hidden: torch.Tensor = self._model(ids, inputs.positions, self._kv, inputs.meta)
        return hidden

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if not self._invariant:
            logits: torch.Tensor = self._model.logits(hidden)
            return logits
        padded = torch.nn.functional.pad(hidden, (0, 0, 0, -len(hidden) % TILE))
        return torch.cat([self._model.logits(tile) for tile in padded.split(TILE)])[: len(hidden)]

    def _agreed(self, blocks: int) -> int:
        """How many blocks there are, of so many that fit here. (Where ranks share a model, as many as fit on each.)"""
        return blocks

    @torch.inference_mode()
    def copy_blocks(self, pairs: SequenceOf[tuple[int, int]]) -> None:
        self._blocks.copy(pairs)

    @torch.inference_mode()
    def read_blocks(self, blocks: SequenceOf[int], tokens: int) -> NDArray[np.uint8]:
        return self._blocks.read(blocks, tokens)

    @torch.inference_mode()
    def write_blocks(self, blocks: SequenceOf[int], data: NDArray[np.uint8]) -> None:
        self._blocks.write(blocks, data)


def context_length(config: EngineConfig, max_position: int) -> int:
    """Tokens of prompt and answer together: the model's own, or what the settings cut it to."""
    if config.max_model_len is not None and config.max_model_len > max_position:
        raise EngineConfigError(
            f"max_model_len {config.max_model_len} is beyond the model's own {max_position} tokens; lower it."
        )
    return config.max_model_len or max_position
