"""A model without arithmetic, for tests and benches of the scheduler: its KV pool holds token ids.

It writes the id and position of every token to its slot, as a model writes K and V, and reads the whole context, or the
window that it was given, back through the block tables before it "predicts". So a block that was reused, shared,
evicted or given back wrongly shows at once, as does a token that was never computed. The answer is a hash of the whole
context, the same however it was computed.

It can also work as a GPU does: `deferred`, it computes a step only when a result is asked for, as late as possible, and
everything in the order of the calls.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import numpy as np

from engine.config import EngineConfig
from engine.flat_batch import NOTHING, BlockTableRows, FlatBatch
from engine.llm_engine import LLMEngine
from engine.sampler import Drawn
from engine.scheduler import Batch
from engine.sequence import Sequence

VOCAB = 97
EOS = 0


class Queued:
    """A piece of work that is done later."""

    def __init__(self, runner: NullRunner, work: Callable[[], Any]) -> None:
        self._runner = runner
        self._work = work
        self._done = False
        self._value: Any = None
        self._error: Exception | None = None

    def do(self) -> Exception | None:
        self._done = True
        try:
            self._value = self._work()
        except Exception as error:
            self._error = error
        return self._error

    def lose(self, error: Exception) -> None:
        self._done, self._error = True, error

    def result(self) -> Any:
        while not self._done:
            self._runner.do_next()
        if self._error is not None:
            raise self._error
        return self._value


class NullRunner:
    def __init__(
        self,
        config: EngineConfig,
        *,
        max_model_len: int = 4096,
        check: bool = True,
        memory: int = 0,
        window: int | None = None,
        deferred: bool = False,
    ) -> None:
        assert config.num_blocks is not None
        self.asynchronous = deferred
        self.queue: list[Queued] = []
        self.num_blocks = config.num_blocks
        self.num_host_blocks = config.host_blocks(1, 1 << 20)  # host_kv_memory_bytes counts blocks here
        self.vocab_size = VOCAB
        self.max_model_len = config.max_model_len or max_model_len
        self.window = window
        self.revision = "null"
        self.kv_layout = f"null [{config.block_size}, token position]"
        self.block_bytes = config.block_size * 2 * 8
        self.eos_token_ids = frozenset({EOS})
        self.batches: list[dict[str, int]] = []
        self.broken: set[str] = set()
        """Requests whose next draw is unusable."""
        self.memory = memory
        self.fails_at = ""
        """The next call that raises, and has done only half of its work: "copy" or "run"."""
        self._check = check
        self._tables = BlockTableRows(config.max_num_seqs, self.max_model_len, config.block_size)
        self._last = np.zeros(config.max_num_seqs, np.int64)
        self._tokens = np.full((self.num_blocks + self.num_host_blocks) * config.block_size, -1)
        self._positions = np.full((self.num_blocks + self.num_host_blocks) * config.block_size, -1)

    def check(self) -> None:
        """Nothing fails here while nothing is computed."""

    def launch(self, batch: Batch, behind: Batch = NOTHING) -> Queued:
        flat = self._tables.flatten(batch, behind)
        # What the host knows now; what it learns later must not matter.
        known = [
            (sequence.row, (sequence.token_ids + sequence.draft)[: flat.seq_lens[i]])
            for i, sequence in enumerate(batch)
        ]
        return self._queue(lambda: self.run(batch, flat, known))

    def _queue(self, work: Callable[[], Any]) -> Queued:
        queued = Queued(self, work)
        self.queue.append(queued)
        if not self.asynchronous:
            queued.result()
        return queued

    def do_next(self) -> None:
        error = self.queue.pop(0).do()
        if error is not None:  # a device that fails does nothing of what was asked of it since
            for queued in self.queue:
                queued.lose(error)
            self.queue.clear()

    def _catch_up(self) -> None:
        if self.queue:
            with suppress(RuntimeError):  # it is told to whoever launched it
                self.queue[-1].result()

    def run(self, batch: Batch, flat: FlatBatch, known: list[tuple[int, list[int]]]) -> dict[Sequence, Drawn]:
        """`known`: each sequence's row and tokens when it was launched; one that was being drawn is missing."""
        if not self._check:
            return {s: Drawn([(s.token_ids[-1] * 31 + len(s.token_ids)) % (VOCAB - 1) + 1]) for s in flat.drawing}
        self.batches.append({sequence.request_id: count for sequence, count in batch.items()})
        assert len(set(flat.slot_mapping.tolist())) == len(flat.slot_mapping), "two tokens were given one slot"
        if self.fails_at == "run":
            self.fails_at = ""
            self._tokens[flat.slot_mapping[::2]] = -1
            raise RuntimeError("a broken step")
        ids = flat.input_ids if flat.late is None else np.where(flat.late < 0, flat.input_ids, self._last[flat.late])
        self._tokens[flat.slot_mapping] = ids
        self._positions[flat.slot_mapping] = flat.positions
        size = self._tables.block_size
        contexts = {}
        for i, (sequence, (row, tokens)) in enumerate(zip(batch, known, strict=True)):
            length = int(flat.seq_lens[i])
            tokens = tokens if len(tokens) == length else [*tokens, int(self._last[row])]
            contexts[sequence] = row, tokens
            blocks = flat.block_tables[i, : -(-length // size)].astype(np.int64)
            slots = (blocks[:, None] * size + np.arange(size)).reshape(-1)[:length]
            start = length - batch[sequence]
            first = 0 if self.window is None else max(0, start - self.window + 1)
            slots = slots[first:]
            assert self._tokens[slots].tolist() == tokens[first:length], f"{sequence} reads foreign tokens"
            assert self._positions[slots].tolist() == list(range(first, length)), f"{sequence} reads shifted tokens"
        draws = [1] * len(flat.drawing) if flat.draws is None else flat.draws.tolist()
        drawn = {}
        for sequence, drafted in zip(flat.drawing, draws, strict=True):
            row, tokens = contexts[sequence]
            said = len(tokens) - (drafted - 1)
            drawn[sequence] = Drawn(confirm(tokens[:said], tokens[said:], self.memory))
            self._last[row] = drawn[sequence].tokens[-1]
            if sequence.request_id in self.broken:
                drawn[sequence] = Drawn([], bad=True)
        return drawn

    def read_blocks(self, blocks: list[int], tokens: int) -> np.ndarray:
        self._catch_up()
        size = self._tables.block_size
        slots = (np.array(blocks)[:, None] * size + np.arange(size)).reshape(-1)
        kv = np.stack([self._tokens[slots], self._positions[slots]], -1)
        kv[tokens:] = 0
        return kv.reshape(len(blocks), -1).view(np.uint8)

    def write_blocks(self, blocks: list[int], data: np.ndarray) -> None:
        self._catch_up()
        size = self._tables.block_size
        slots = (np.array(blocks)[:, None] * size + np.arange(size)).reshape(-1)
        kv = data.reshape(-1).view(np.int64).reshape(-1, 2)
        self._tokens[slots], self._positions[slots] = kv[:, 0], kv[:, 1]

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        if self.fails_at == "copy":
            self.fails_at = ""
            raise RuntimeError("a broken copy")
        pairs = list(pairs)
        self._queue(lambda: self._copy(pairs))

    def _copy(self, pairs: list[tuple[int, int]]) -> None:
        size = self._tables.block_size
        for source, destination in pairs:
            for memory in (self._tokens, self._positions):
                memory[destination * size :][:size] = memory[source * size :][:size]


def confirm(token_ids: list[int], draft: list[int], memory: int) -> list[int]:
    """The draft tokens that the model would have said behind `token_ids`, and the token behind them."""
    tokens: list[int] = []
    for guess in [*draft, None]:
        tokens.append(predict(token_ids + tokens, memory))
        if tokens[-1] != guess:
            break
    return tokens


def predict(token_ids: list[int], memory: int = 0) -> int:
    """What the null model answers to a context; never EOS, so that max_tokens decides the length.

    `memory`: it sees only so many last tokens, and so repeats itself; 0 for all.
    """
    token_ids = token_ids[-memory:]
    return zlib.crc32(np.array(token_ids, np.int32).tobytes()) % (VOCAB - 1) + 1


def expected(prompt: list[int], count: int, memory: int = 0) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(predict(tokens, memory))
    return tokens[len(prompt) :]


def null_engine(
    *,
    check: bool = True,
    max_model_len: int = 4096,
    memory: int = 0,
    window: int | None = None,
    deferred: bool = False,
    **settings: object,
) -> LLMEngine:
    """An engine over the null model, without a tokenizer; `settings` are EngineConfig's, num_blocks among them.

    Its clock goes on by a millisecond whenever it is read.
    """
    readings = count()
    config = EngineConfig(**{"block_size": 4, "max_num_seqs": 4, "token_budget": 16, **settings})  # type: ignore[arg-type]
    return LLMEngine(
        config,
        runner=NullRunner(
            config, max_model_len=max_model_len, check=check, memory=memory, window=window, deferred=deferred
        ),
        clock=lambda: next(readings) / 1000,
    )
