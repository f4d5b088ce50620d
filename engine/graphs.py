"""Decode steps that were recorded once and are replayed: the host launches one graph instead of hundreds of kernels.

Owns one recorded step for each padded size, all over the same memory of inputs and outputs. Such a step has one row a
sequence, and each draws; it reads what `StepInputs` holds for its size, and its logits lie where the next one's will.
It was recorded with the bounds that hold for every step (the model's longest context), so nothing of a step is in it.

Each size is there twice where groups of sequences with a shared prefix are looked for: a step without any would pay for
the launches of those with some. Steps with prompt chunks, drafts, scored prompts or very many groups are not recorded:
their shapes vary, and their kernels are few for the work in them. They run as they are.

How a step is recorded is a function that is given, so all but that function runs on a CPU too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import TypeAlias

import torch
from torch import Tensor

from engine.flat_batch import FlatBatch
from engine.step_groups import RecordedGroups
from engine.step_inputs import Inputs, StepInputs
from kernels.prefix_groups import PrefixGroups

Work: TypeAlias = Callable[[], None]
Record: TypeAlias = Callable[[Work], Work]
"""Takes work that always touches the same memory, does it, and gives what does it again."""

POWERS_UPTO = 8
"""Sizes double up to here, then come two for each doubling: a third of a step's rows is padding at most."""


def padded_sizes(most: int) -> list[int]:
    """The sizes to record for steps of 1 to `most` rows, ascending."""
    sizes, size = {most}, 1
    while size < most:
        sizes.add(size)
        if size >= POWERS_UPTO:
            sizes.add(min(size + size // 2, most))
        size *= 2
    return sorted(sizes)


class DecodeGraphs:
    """`logits_of(inputs)`: float32 [size, V] of a step's rows. `sizes`: what is recorded, largest first, as the others
    can then use the memory of the larger ones again. `groups`: where those of a step lie; None where none are sought.
    """

    def __init__(
        self,
        logits_of: Callable[[Inputs], Tensor],
        inputs: StepInputs,
        sizes: Iterable[int],
        *,
        vocab_size: int,
        max_seq_len: int,
        record: Record,
        groups: RecordedGroups | None = None,
    ) -> None:
        self.sizes = sorted(sizes)
        self.replays = 0
        self._inputs = inputs
        self._logits = torch.empty((self.sizes[-1], vocab_size), dtype=torch.float32, device=inputs.memory.device)
        self._groups = groups
        self._replay: dict[tuple[int, bool], Work] = {}
        for size in reversed(self.sizes):
            inputs.put_nothing(size)
            self._replay[size, False] = record(self._step(logits_of, size, max_seq_len, None))
            if groups is not None and size > 1:
                groups.put(None, size)
                self._replay[size, True] = record(self._step(logits_of, size, max_seq_len, groups))

    def _step(
        self, logits_of: Callable[[Inputs], Tensor], size: int, max_seq_len: int, groups: RecordedGroups | None
    ) -> Work:
        def step() -> None:
            # The inputs anew each time: a kernel's own preparation, which they carry, belongs to one step.
            inputs = self._inputs.decodes(size, max_seq_len, None if groups is None else groups.of(size))
            self._logits[:size].copy_(logits_of(inputs))

        return step

    def fits(self, flat: FlatBatch, groups: PrefixGroups | None = None) -> bool:
        """Whether the step is one that was recorded: every sequence has one row and draws one token from it."""
        rows = len(flat.input_ids)
        return (
            rows == len(flat.seq_lens) == len(flat.drawing) <= self.sizes[-1]
            and flat.draws is None
            and not flat.scored
            and (groups is None or (self._groups is not None and len(groups.blocks) <= self._groups.room(rows)))
        )

    def run(self, flat: FlatBatch, groups: PrefixGroups | None = None) -> Tensor:
        """Logits float32 [S, V] of such a step; they may be changed, and are there until the next one."""
        rows = len(flat.input_ids)
        size = self.sizes[bisect_left(self.sizes, rows)]
        self._inputs.put_decodes(flat, size)
        if self._groups is not None and groups is not None:
            self._groups.put(groups, size)
        self._replay[size, groups is not None]()
        self.replays += 1
        return self._logits[:rows]


def cuda_recorder(device: torch.device) -> Record:
    """Records CUDA graphs that share one pool of memory. They must be replayed in order, on one stream."""
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream(device)

    def record(work: Work) -> Work:
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            work()  # what is done once (compiling kernels, making workspaces) must not be in the graph
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            work()
        torch.cuda.current_stream(device).wait_stream(stream)
        return graph.replay

    return record
