"""The sums that ranks make together, through torch.distributed: NCCL between GPUs, gloo between processes on a CPU.

Owns the process group of this process, of which there can be one, and its store: a port of the loopback interface that
rank 0 chooses. Knows neither models nor messages: what a step is goes another way (engine.rank_links), so nobody waits
in a collective while there is nothing to compute, and one that takes longer than `timeout_s` raises.
"""

from __future__ import annotations

import os
import socket
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from engine.config import EngineConfigError
from engine.models.ranks import Share


def make_store(timeout_s: float, port: int | None = None) -> dist.TCPStore:
    """Rank 0's, on a free port; with the port, that of another rank."""
    timeout = timedelta(seconds=timeout_s)
    if port is not None:
        return dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timeout)
    # Left to itself the store would listen on every interface.
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    return dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )


class RankGroup:
    """engine.models.split.Ranks, of this process. With `fixed_order` a sum has one order wherever in x a row lies."""

    def __init__(
        self, share: Share, store: dist.TCPStore, device: torch.device, *, timeout_s: float, fixed_order: bool
    ) -> None:
        if dist.is_initialized():
            raise EngineConfigError(
                "This process has an engine with tensor_parallel already: engine.runner.close() ends it."
            )
        self.share = share
        self._fixed_order = fixed_order
        if device.type == "cpu" and sys.platform.startswith("linux"):
            # Otherwise gloo looks for the interface that the host's name means, and fails where it means none.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            backend_of(device),
            store=store,
            rank=share.rank,
            world_size=share.size,
            timeout=timedelta(seconds=timeout_s),
            device_id=device if device.type == "cuda" else None,
        )

    def all_reduce(self, x: Tensor) -> Tensor:
        if not self._fixed_order:
            dist.all_reduce(x)
            return x
        parts = [torch.empty_like(x) for _ in range(self.share.size)]
        dist.all_gather(parts, x)
        total = parts[0]
        for part in parts[1:]:
            total += part
        return total

    def broadcast(self, x: Tensor) -> None:
        """Make x what it is on rank 0."""
        dist.broadcast(x, src=0)

    def gather(self, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(self.share.size)] if self.share.rank == 0 else None
        dist.gather(x, parts, dst=0)
        return x if parts is None else torch.cat(parts, dim=-1)

    @staticmethod
    def close() -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def backend_of(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"
