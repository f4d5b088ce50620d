"""A model that several ranks run together, a process and a GPU each: rank 0's runner, and the others'.

To the engine rank 0's is a runner like any: it schedules, draws and talks, the others only compute. Each step goes to
them as flat arrays; then all do the same, and meet in the model's sums. Each holds the KV of its own heads, in blocks
of the same numbers. Promises: a rank that ends or fails, fails the step, and every later one, with a RankError that
says which and why; none is waited for in vain (engine.rank_links, engine.rank_group).

With batch_invariant the promise of engine.runner.Runner holds for each number of ranks by itself: another number adds
in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection

import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from engine.config import EngineConfig, EngineConfigError
from engine.flat_batch import FlatBatch
from engine.follower import Setup
from engine.models import load
from engine.models.config import read_config
from engine.models.errors import ModelError, NotNative
from engine.models.loader import LoadedModel
from engine.models.ranks import Share, why_not
from engine.models.source import resolve
from engine.rank_group import RankGroup, backend_of, make_store
from engine.rank_links import TIMEOUT_S, Followers, RankRefused
from engine.runner import Runner
from engine.step_inputs import Inputs

log = structlog.get_logger(__name__)


def refuse_unless_divisible(config: EngineConfig, *, on_cpu: bool) -> None:
    """Raise EngineConfigError, or ModelError, when so many ranks cannot run the model here."""
    ranks = config.tensor_parallel
    if config.weights != EngineConfig.weights:
        raise EngineConfigError(
            f"tensor_parallel {ranks} does not go with weights {config.weights}: these are for the C++ decoder, which "
            "has the whole model in one process; leave one of them out."
        )
    if config.device.startswith("cuda:"):
        raise EngineConfigError(
            f"tensor_parallel {ranks} takes the first {ranks} GPUs, so device {config.device} cannot be named; say "
            "cuda, and choose among them with CUDA_VISIBLE_DEVICES."
        )
    if not on_cpu and ranks > torch.cuda.device_count():
        raise EngineConfigError(
            f"tensor_parallel {ranks} needs {ranks} GPUs, and torch finds {torch.cuda.device_count()}; lower it."
        )
    try:
        reason = why_not(read_config(resolve(config.model)), ranks)
    except NotNative as not_native:
        reason = f"{not_native}, and only that one can be divided; leave tensor_parallel out"
    if reason is not None:
        raise EngineConfigError(f"tensor_parallel {ranks} cannot divide {config.model}: {reason}.")


def load_leader(config: EngineConfig, *, on_cpu: bool) -> LeadingRunner:
    """Rank 0's runner, once all ranks have their part of the model. Raises EngineConfigError, ModelError."""
    refuse_unless_divisible(config, on_cpu=on_cpu)
    size = config.tensor_parallel
    if on_cpu and config.threads is None:
        config = replace(config, threads=max(1, torch.get_num_threads() // size))
    device = torch.device("cpu") if on_cpu else torch.device("cuda", 0)
    followers, group = Followers(size), None
    try:
        store = make_store(TIMEOUT_S)
        devices = ["cpu" if on_cpu else f"cuda:{rank}" for rank in range(1, size)]
        followers.tell_each([Setup(config, size, store.port, TIMEOUT_S, device) for device in devices])
        followers.hear(patient=True)  # they have torch and their device: now all can meet in time
        group = RankGroup(Share(0, size), store, device, timeout_s=TIMEOUT_S, fixed_order=config.batch_invariant)
        loaded = load(config.model, config.dtype, device, ranks=group)
        followers.hear(patient=True)  # and they their part of the model
        runner = LeadingRunner(loaded, config, followers, group)
    except Exception as error:
        reason = followers.fault(error)
        if group is not None:
            group.close()
        if isinstance(error, EngineConfigError | ModelError):
            raise
        if isinstance(error, RankRefused):
            raise EngineConfigError(str(error)) from None
        raise EngineConfigError(f"tensor_parallel {size} could not start: {reason}.") from error
    log.info("runner.tensor_parallel", ranks=size, backend=backend_of(device), blocks=runner.num_blocks)
    return runner


class RankRunner(Runner):
    """What all ranks do alike. Their steps are not recorded as graphs."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig, group: RankGroup) -> None:
        self._group = group
        super().__init__(loaded, replace(config, graphs=False))

    def _hidden(self, inputs: Inputs) -> torch.Tensor:
        if inputs.late is not None:  # tokens that only rank 0 has drawn
            self._group.broadcast(self._drawing.last)
        return super()._hidden(inputs)


class LeadingRunner(RankRunner):
    """Rank 0's. `block_bytes` and the bytes of blocks are those of all ranks, one after the other in each block."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig, followers: Followers, group: RankGroup) -> None:
        self._followers = followers
        self._leads = False  # at first all ranks try a step, each by itself
        super().__init__(loaded, config, group)
        self._leads = True
        self.block_bytes *= group.share.size
        self.kv_layout += f", {group.share.size} ranks"

    def _agreed(self, blocks: int) -> int:
        blocks = min([blocks, *self._followers.hear(patient=True)])
        self._followers.tell(blocks)
        return blocks

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise self._followers.fault(error) from error

    def check(self) -> None:
        """Whether all other ranks are there."""
        with self._together():
            self._followers.check()

    def _compute(self, flat: FlatBatch) -> Callable[[slice], torch.Tensor]:
        if not self._leads:
            return super()._compute(flat)
        with self._together():
            self._followers.tell("step", replace(flat, drawing=[], scored=[]))
            logits_of = super()._compute(flat)

        def logits_of_all(part: slice) -> torch.Tensor:
            with self._together():
                self._followers.tell("logits", part)
                return logits_of(part)

        return logits_of_all

    def copy_blocks(self, pairs: SequenceOf[tuple[int, int]]) -> None:
        with self._together():
            self._followers.tell("copy", list(pairs))
            super().copy_blocks(pairs)

    def read_blocks(self, blocks: SequenceOf[int], tokens: int) -> NDArray[np.uint8]:
        with self._together():
            self._followers.tell("read", list(blocks), tokens)
            return np.concatenate([super().read_blocks(blocks, tokens), *self._followers.hear()], axis=1)

    def write_blocks(self, blocks: SequenceOf[int], data: NDArray[np.uint8]) -> None:
        mine, *theirs = (np.ascontiguousarray(part) for part in np.split(data, self._group.share.size, axis=1))
        with self._together():
            self._followers.tell_each([("write", list(blocks), part) for part in theirs])
            super().write_blocks(blocks, mine)

    def close(self) -> None:
        """End the other ranks. Without it they end with this process, or when nothing refers to this runner."""
        self._followers.hang_up()
        self._group.close()
        self._followers.close()


class FollowingRunner(RankRunner):
    """Another rank's: does what rank 0's does, on its part."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig, link: Connection, group: RankGroup) -> None:
        self._link = link
        self.close = group.close
        super().__init__(loaded, config, group)

    @classmethod
    def join(cls, share: Share, setup: Setup, link: Connection) -> FollowingRunner:
        device, config = torch.device(setup.device), setup.config
        if device.type == "cuda":
            torch.cuda.set_device(device)
        link.send(("ready", None))
        store = make_store(setup.timeout_s, setup.port)
        group = RankGroup(share, store, device, timeout_s=setup.timeout_s, fixed_order=config.batch_invariant)
        loaded = load(config.model, config.dtype, device, ranks=group)
        link.send(("loaded", None))
        return cls(loaded, config, link, group)

    def _agreed(self, blocks: int) -> int:
        self._link.send(("blocks", blocks))
        (agreed,) = self._link.recv()
        return int(agreed)

    @torch.inference_mode()
    def follow(self) -> None:
        """Until the socket closes: EOFError."""
        logits_of: Callable[[slice], torch.Tensor]
        while True:
            kind, *what = self._link.recv()
            if kind == "step":
                logits_of = self._compute(*what)
            elif kind == "logits":
                logits_of(*what)
            elif kind == "copy":
                self.copy_blocks(*what)
            elif kind == "read":
                self._link.send(("blocks", self.read_blocks(*what)))
            elif kind == "write":
                self.write_blocks(*what)
