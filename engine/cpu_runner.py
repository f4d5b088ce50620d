"""Steps on a CPU through the C++ decoder: weights of 4, 8 or 16 bits, one call a step.

Owns the decoder (weights, KV pool, threads) and the grouping of sequences that share their leading blocks, so that a
tenant's system prompt is read once a step and not once a chat. Same promises as engine.runner.Runner, and one more: a
token does not depend on what else is in the batch, nor on chunking, nor on grouping.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from engine.config import EngineConfig, free_host_memory
from engine.drawing import Drawing, merge
from engine.flat_batch import NOTHING, BlockTableRows, FlatBatch
from engine.models.config import ModelConfig
from engine.models.decoder_weights import decoder_weights
from engine.models.loader import open_folder
from engine.models.low_bit import load_tiles
from engine.models.source import resolve
from engine.runner import Pending, Ready, context_length
from engine.sampler import Drawn, Sample, SamplingRows, uniforms
from engine.scheduler import Batch
from engine.sequence import Sequence
from kernels import prefix_groups
from kernels.cpu.build import BuildError, load
from kernels.cpu.decoder import ROUND_BLOCKS, Decoder, supports
from kernels.cpu.decoder import Batch as DecoderBatch
from kernels.cpu.kv_layout import BLOCK_SIZE, KvLayout

log = structlog.get_logger(__name__)

FORMS = {4: "int4", 8: "int8", 16: "bf16"}  # of weights, by their bits
LOGITS_BYTES = 64 << 20
"""Memory of a step's logits, unless more sequences than that run at once. A step that wants more is cut in parts."""


class CpuRunner:
    """Runs a Llama-like model through `kernels.cpu`. `why_not` says beforehand whether it can."""

    asynchronous = False

    def __init__(self, config: EngineConfig) -> None:
        folder = resolve(config.model)
        shape, tensors, self.revision = open_folder(folder)
        self.vocab_size = shape.vocab_size
        self.eos_token_ids = frozenset(shape.eos_token_ids)
        self.max_model_len = context_length(config, shape.max_position)
        self.window: int | None = None  # `why_not` lets no shorter one than the context pass
        layout = KvLayout(shape.num_kv_heads, shape.head_dim, config.kv_dtype)
        block_bytes = shape.num_layers * layout.block_bytes
        self.num_blocks = config.pool_blocks(block_bytes, free_host_memory(), self.max_model_len)
        # What torch still does is small; its own threads would spin on the cores that the decoder needs.
        torch.set_num_threads(1)
        self.threads = config.threads or len(os.sched_getaffinity(0))
        self._max_rows = max(config.max_num_seqs, min(config.token_budget, LOGITS_BYTES // (4 * self.vocab_size)))
        self._decoder = Decoder(
            decoder_weights(shape, tensors, load_tiles(folder), config.weights, _report_loading),
            num_blocks=self.num_blocks,
            max_tokens=config.token_budget,
            max_rows=self._max_rows,
            threads=self.threads,
            kv_dtype=config.kv_dtype,
        )
        # Touched now: the system would hand out a page of it at a time later, in the middle of somebody's answer.
        with ThreadPoolExecutor(self.threads) as touching:
            list(touching.map(lambda part: part.fill(0), np.array_split(self._decoder.cache.reshape(-1), self.threads)))
        self.num_host_blocks = config.host_blocks(block_bytes, free_host_memory())
        self._host = np.empty((self.num_host_blocks, shape.num_layers, layout.block_bytes), np.uint8)
        self.isa = self._decoder.isa
        self.weights = ", ".join(
            f"{FORMS[bits]} {size >> 20} MiB" for bits, size in sorted(self._decoder.weight_bytes.items())
        )
        self.block_bytes = block_bytes
        self.kv_layout = (
            f"{self._decoder.build} {config.kv_dtype} {[shape.num_layers, layout.kv_heads, layout.head_dim]}"
        )
        self.kv_layout += f", weights {sorted(self._decoder.weight_bytes.items())}"
        self._tables = BlockTableRows(config.max_num_seqs, self.max_model_len, config.block_size)
        self._drawing = Drawing(config.max_num_seqs, self.vocab_size, sample_by(self._decoder.sample))

    @staticmethod
    def why_not(config: EngineConfig, shape: ModelConfig) -> str | None:
        """None when this runner can run such a model on this machine, else the reason, for one log line."""
        if config.kv_dtype == "fp8":
            return "kv_dtype fp8 is only there in torch"
        if shape.output_bias or shape.mlp_bias:
            return "the model has biases in its output or MLP projections"
        longest = context_length(config, shape.max_position)
        if any(window is not None and window < longest for window in shape.windows):
            return f"the model has windows shorter than its context of {longest} tokens"
        if config.block_size != BLOCK_SIZE:
            return f"its blocks have {BLOCK_SIZE} tokens, not {config.block_size}; leave block_size out"
        reason = supports(
            head_dim=shape.head_dim,
            heads=shape.num_heads,
            kv_heads=shape.num_kv_heads,
            hidden=shape.hidden_size,
            intermediate=shape.intermediate_size,
        )
        if reason is not None:
            return f"the model has {reason}"
        try:
            isa = load().octavo_isa()
        except BuildError as error:
            return str(error)
        # The portable loops are there for tests and for what torch cannot run; torch's own products are faster.
        return "this CPU has no AVX2" if isa == b"portable" else None

    def check(self) -> None:
        """Nothing fails here while nothing is computed."""

    def launch(self, batch: Batch, behind: Batch = NOTHING) -> Pending:
        self._drawing.enter(batch)
        drawn: dict[Sequence, Drawn] = {}
        for flat in self._tables.parts(batch, self._max_rows, behind):
            logits = self._logits(flat)
            merge(drawn, self._drawing.draw(flat, logits.__getitem__))
        return Ready(drawn)

    def _logits(self, flat: FlatBatch) -> torch.Tensor:
        group_of, group_blocks = shared_prefixes(flat, self._tables.block_size)
        logits = self._decoder.step(
            DecoderBatch(
                ids=self._drawing.input_ids(flat).astype(np.int32),
                positions=flat.positions.astype(np.int32),
                slots=flat.slot_mapping,
                query_starts=flat.query_starts,
                lengths=flat.seq_lens,
                tables=flat.block_tables,
                row_tokens=flat.rows.astype(np.int32),
                group_of=group_of,
                group_blocks=group_blocks,
                # One row is bound by memory, which half the cores fill; the others are the web's then.
                threads=max(1, self.threads // 2) if len(flat.input_ids) == 1 else 0,
            )
        )
        return torch.from_numpy(logits)

    def copy_blocks(self, pairs: SequenceOf[tuple[int, int]]) -> None:
        for source, destination in pairs:
            self._block(destination)[:] = self._block(source)

    def _block(self, number: int) -> NDArray[np.uint8]:
        """All layers' K and V of a block of the pool, or of one behind it; [layers, bytes of a layer]."""
        if number < self.num_blocks:
            return self._decoder.cache[:, number]
        return self._host[number - self.num_blocks]

    def read_blocks(self, blocks: SequenceOf[int], tokens: int) -> NDArray[np.uint8]:
        cache = self._decoder.cache
        kv = np.empty((len(blocks), len(cache), cache.shape[2]), np.uint8)
        for index, block in enumerate(blocks):
            kv[index] = cache[:, block]
        self._decoder.layout.clear(kv[-1], tokens - (len(blocks) - 1) * BLOCK_SIZE)
        return kv.reshape(len(blocks), -1)

    def write_blocks(self, blocks: SequenceOf[int], data: NDArray[np.uint8]) -> None:
        cache = self._decoder.cache
        kv = data.reshape(len(blocks), len(cache), cache.shape[2])
        for index, block in enumerate(blocks):
            cache[:, block] = kv[index]

    def close(self) -> None:
        self._decoder.close()


def _report_loading(done: str) -> None:
    log.info("weights.loading", done=done)


def sample_by(draw: Callable[..., NDArray[np.int32]]) -> Sample:
    """engine.sampler.sample through kernels.cpu.sampling.sample, whose first argument is the logits."""

    def sample(
        logits: torch.Tensor, settings: SamplingRows, rows: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> tuple[list[int], list[int]]:
        tokens = draw(
            logits.numpy(),
            uniform=uniforms(settings.seed[rows], settings.index[rows], positions),
            temperature=settings.temperature[rows],
            top_p=settings.top_p[rows],
            min_p=settings.min_p[rows],
            top_k=settings.top_k[rows],
        )
        return tokens.tolist(), np.flatnonzero(tokens < 0).tolist()

    return sample


def shared_prefixes(flat: FlatBatch, block_size: int) -> tuple[NDArray[np.int32] | None, NDArray[np.int32]]:
    """Which decoding sequences share leading blocks: (group or -1 of each, blocks of each group), None for no group.

    Shared blocks count in whole rounds of the attention loop, so that a result is the same with and without groups.
    """
    found = prefix_groups.shared_prefixes(
        flat.block_tables, flat.query_starts, flat.seq_lens, block_size, granule=ROUND_BLOCKS
    )
    if found is None:
        return None, np.zeros(0, np.int32)
    group_of = np.full(len(flat.seq_lens), -1, np.int32)
    group_of[found.members] = np.repeat(np.arange(len(found.blocks), dtype=np.int32), np.diff(found.starts))
    return group_of, found.blocks
