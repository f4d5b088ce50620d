"""What an engine is told at its start, with the reasons for the defaults, and how large its KV pool becomes.

Loads no torch, so that a command line can check its settings before anything slow happens.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

DEFAULT_CPU_KV_BYTES = 1 << 30
"""About 46,000 tokens of SmolLM2 in bfloat16: dozens of chats, on any machine that can hold the model at all."""
DEFAULT_GPU_FRACTION = 0.9
"""Of the memory that is free once the weights are loaded and a step has what it needs; the rest is for what no
measurement shows (fragments, recorded graphs) and for other users of the device."""
KV_DTYPES = ("bfloat16", "int8", "fp8")
KV_SCALE_BYTES = 4
"""Of the scale that an eight-bit key or value of a head has in torch."""
MAX_THREADS = 1024
MAX_BLOCK_SIZE = 4096
WEIGHTS = ("auto", "int4", "int8", "bf16")
"""Forms of weights in the C++ decoder."""
DEFAULT_CAP_FACTOR = 4
"""By default the pool holds at most so many times what can run at once: more only costs bookkeeping."""


class EngineConfigError(ValueError):
    """A setting that cannot work. One line that says which, why, and what to change."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Settings of one engine.

    `dtype` is torch's and `weights` the C++ decoder's: to set one is to ask for that path, so at most one of them may
    be. Both "auto": the C++ decoder on a CPU where it can run the model, else torch.
    """

    model: str = ""
    """A folder, a .gguf file, or a hub id."""
    dtype: str = "auto"
    """float32, bfloat16, float16: weights, sums and KV in torch. "auto" there: bfloat16 where it is multiplied
    natively, else float32."""
    weights: str = "auto"
    """bf16, int8, int4: the form of the C++ decoder's weights, made of the file's when it is loaded; what a GGUF file
    has in as few bits stays as it is. int4 leaves 8 bits to q, k, v, head and tied embedding. "auto": a GGUF file's own
    4 and 8 bits, else bf16."""
    device: str = "auto"
    """"auto": cuda when there is one, else cpu."""
    tensor_parallel: int = 1
    """Ranks, a process and a GPU each, that share every layer of the model, and the KV of its heads. Sizes of memory
    are each rank's. (On a CPU they are processes of one machine, and slower than one alone.)"""
    threads: int | None = None
    """Threads of a CPU's products. None: all the cores that this process may use, divided among the ranks."""
    block_size: int = 16
    """Tokens a block. Small blocks waste little in the last block and share finer; 16 still copies in long runs."""
    num_blocks: int | None = None
    """None: as many as `kv_memory_bytes` holds."""
    kv_memory_bytes: int | None = None
    """None: 1 GiB on a CPU; on a GPU 90 % of what is free beside the weights and the largest step."""
    host_kv_memory_bytes: int | None = None
    """Host memory for blocks that had to leave the pool, to come back by a copy. None: none; it pays where a copy is
    quicker than computing, on a GPU. On a CPU `kv_memory_bytes` is the same memory, and better used."""
    kv_dtype: str = "bfloat16"
    """Of keys and values. "bfloat16": as they are computed, so in torch in the dtype of the model. "int8", or "fp8" in
    torch: in eight bits, with a scale for each token and head, which holds nearly twice the tokens in the same memory
    and is quicker where contexts are long, on a GPU and in the C++ decoder; torch on a CPU only saves the memory."""
    max_num_seqs: int = 32
    """Sequences that run at once. A decode step costs a CPU little more for 32 than for 1: weights are read once."""
    token_budget: int = 256
    """Tokens a step, decodes and prompt chunks together: bounds how long a long prompt can hold up the others."""
    max_model_len: int | None = None
    """Tokens of prompt and answer together. None: what the model was made for."""
    max_itl_ms: float | None = None
    """How long a step should take at most while sequences decode: prompts are computed in smaller chunks then. None: as
    long as `token_budget` tokens take."""
    speculation: bool = False
    """Check guesses at the next tokens, out of the text itself, where that pays; answers are the same."""
    overlap: bool | None = None
    """Schedule a step while the one before it is computed; answers are the same. None: on a GPU. Not where the next
    draw hangs on the last token: beside requests with penalties, min_tokens, logprobs or a grammar, nor with
    speculation."""
    graphs: bool = True
    """On a GPU: record decode steps once and replay them, which spares the host most of its work."""
    prefix_caching: bool = True
    patience: int = 64
    """Sequences that may pass a head which does not fit (two full houses); then nobody is admitted until it does."""
    spare_tokens: int = 256
    """Of a conversation's cached tokens so many last ones are given up before any other conversation's earlier ones:
    its next turn would compute them anew in a step, and still answer in time (T-LRU, arXiv 2510.15152)."""
    max_seqs_per_tenant: int | None = None
    """Sequences of one tenant that run at once. None: as many as run at all."""
    max_kv_share: float = 1.0
    """The share of the pool that one tenant's running sequences may use; one that needs more is refused."""
    prompt_store: str | None = None
    """A private folder for published prompts' KV, so that a restarted engine has it at once. None: off."""
    prompt_store_bytes: int = 1 << 30
    """What that folder may take: as much as the default pool of a CPU."""
    batch_invariant: bool = False
    """The same logits to the bit whatever else runs, on one machine with one number of threads. The C++ decoder is so
    always; torch then computes in small padded tiles, several times slower."""
    hash_bits: int = 64
    """For tests only: shorter hashes collide, and results must stay right."""

    def __post_init__(self) -> None:
        for name in (
            "tensor_parallel",
            "block_size",
            "max_num_seqs",
            "token_budget",
            "patience",
            "hash_bits",
            "prompt_store_bytes",
        ):
            self._at_least_one(name, getattr(self, name))
        for name in (
            "threads",
            "num_blocks",
            "kv_memory_bytes",
            "host_kv_memory_bytes",
            "max_model_len",
            "max_seqs_per_tenant",
        ):
            value = getattr(self, name)
            if value is not None:
                self._at_least_one(name, value)
        if self.block_size > MAX_BLOCK_SIZE:
            raise EngineConfigError(f"block_size must be at most {MAX_BLOCK_SIZE} tokens, not {self.block_size}.")
        if self.kv_dtype not in KV_DTYPES:
            raise EngineConfigError(f"kv_dtype {self.kv_dtype!r} is unknown; choose {', '.join(KV_DTYPES)}.")
        if self.weights not in WEIGHTS:
            raise EngineConfigError(f"weights {self.weights!r} is unknown; choose {', '.join(WEIGHTS)}.")
        if self.weights != "auto" and self.dtype != "auto":
            raise EngineConfigError(
                f"weights {self.weights} is for the C++ decoder, dtype {self.dtype} for torch; leave one of them out."
            )
        if self.max_itl_ms is not None and not (
            isinstance(self.max_itl_ms, int | float) and 0 < self.max_itl_ms < math.inf
        ):
            raise EngineConfigError(f"max_itl_ms must be above 0, not {self.max_itl_ms}.")
        if self.threads is not None and self.threads > MAX_THREADS:
            raise EngineConfigError(f"threads must be at most {MAX_THREADS}, not {self.threads}.")
        if type(self.spare_tokens) is not int or self.spare_tokens < 0:
            raise EngineConfigError(f"spare_tokens must be a whole number from 0, not {self.spare_tokens!r}.")
        if not isinstance(self.max_kv_share, int | float) or not 0.0 < self.max_kv_share <= 1.0:
            raise EngineConfigError(f"max_kv_share must be above 0 and at most 1, not {self.max_kv_share}.")
        if self.token_budget < self.max_num_seqs:
            raise EngineConfigError(
                f"token_budget {self.token_budget} is below max_num_seqs {self.max_num_seqs}: every running sequence "
                "needs a token a step; raise the one or lower the other."
            )

    def host_blocks(self, block_bytes: int, free_bytes: int) -> int:
        """How many blocks of `block_bytes` are kept in host memory, of which `free_bytes` are left."""
        wanted = self.host_kv_memory_bytes or 0
        if wanted > free_bytes:
            raise EngineConfigError(
                f"host_kv_memory_bytes is {in_words(wanted)}, but {in_words(free_bytes)} of host memory are free; "
                "lower it."
            )
        return wanted // block_bytes

    @staticmethod
    def _at_least_one(name: str, value: int) -> None:
        if type(value) is not int or value < 1:
            raise EngineConfigError(f"{name} must be a whole number from 1, not {value!r}.")

    def pool_blocks(
        self, block_bytes: int, free_bytes: int, max_model_len: int, *, on_gpu: bool = False, step_bytes: int = 0
    ) -> int:
        """How many blocks of `block_bytes` the pool gets, of the `free_bytes` that the device has left.

        `step_bytes` of these are needed by the largest step. Raises EngineConfigError when they do not fit, or when
        they hold no block.
        """
        free = f"{in_words(free_bytes)} are free"
        if step_bytes:
            free += f", of which a step of {self.token_budget} tokens takes {in_words(step_bytes)}"
        left = max(free_bytes - step_bytes, 0)
        if self.num_blocks is not None:
            blocks, setting = self.num_blocks, "num_blocks"
        elif self.kv_memory_bytes is not None:
            blocks, setting = self.kv_memory_bytes // block_bytes, "kv_memory_bytes"
        else:
            memory = int(left * DEFAULT_GPU_FRACTION) if on_gpu else DEFAULT_CPU_KV_BYTES
            useful = DEFAULT_CAP_FACTOR * self.max_num_seqs * -(-max_model_len // self.block_size)
            blocks, setting = min(memory // block_bytes, useful), "kv_memory_bytes"
        advice = "use a smaller model" if not step_bytes else "lower token_budget or use a smaller model"
        if blocks < 1:
            if self.kv_memory_bytes is None and on_gpu:
                raise EngineConfigError(
                    f"The KV pool would hold no block: one of {self.block_size} tokens takes {in_words(block_bytes)}, "
                    f"and {free}; {advice}."
                )
            raise EngineConfigError(
                f"The KV pool would hold no block: one of {self.block_size} tokens takes {in_words(block_bytes)}; "
                f"raise {setting} or lower block_size."
            )
        if blocks * block_bytes > left:
            raise EngineConfigError(
                f"The KV pool of {blocks} blocks needs {in_words(blocks * block_bytes)}, but {free}; "
                f"set {setting} to {_fitting(setting, block_bytes, left)} or less, or {advice}."
            )
        return blocks


def free_host_memory() -> int:
    """Bytes that this process could still take: what the machine has available, within the container's limit."""
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    for limit_file, used_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit, used = _lines(limit_file), _lines(used_file)
        if limit and used and limit[0].isdigit():
            available = min(available, int(limit[0]) - int(used[0]))
    return max(available, 0)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _fitting(setting: str, block_bytes: int, free_bytes: int) -> int:
    fits = max(free_bytes // block_bytes, 0)
    return fits if setting == "num_blocks" else fits * block_bytes


def in_words(count: int) -> str:
    """A number of bytes, as a message gives it."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"
