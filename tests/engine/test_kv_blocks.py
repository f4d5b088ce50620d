"""Blocks of keys and values, copied, read and written: the effect of one call after the other, however they go out."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import numpy as np
import pytest
import torch

from engine import device, kv_blocks
from engine.kv_blocks import KVBlocks
from kernels import api
from kernels.api import KVCache

DTYPES = [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn]
POOL, HOST, SIZE = 9, 5, 4


def filled(dtype: torch.dtype, blocks: int = POOL) -> KVCache:
    return KVCache(2, blocks, SIZE, 3, 8, dtype=dtype)


def randomise(kv: KVCache, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    as_bytes = kv.data.view(torch.uint8)
    as_bytes.copy_(torch.randint(0, 120, as_bytes.shape, generator=generator))
    if kv.scales is not None:
        kv.scales.copy_(torch.rand(kv.scales.shape, generator=generator))


def state(blocks: KVBlocks) -> list[torch.Tensor]:
    """Every block's bytes, those of the host behind the pool's."""
    return [
        torch.cat((part.movedim(2, 0).contiguous().view(POOL, -1), host.view(HOST, -1)))
        for part, host in zip(blocks._parts, blocks._host, strict=True)
    ]


def some_pairs(rng: random.Random, count: int) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    while len(pairs) < count:
        pair = rng.randrange(POOL + HOST), rng.randrange(POOL + HOST)
        if min(pair) < POOL:
            pairs.append(pair)
    return pairs


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gpu", [False, True])
def test_copies_have_the_effect_of_one_after_the_other(
    gpu: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Destinations that are sources later, or given out again; pool and host in any order."""
    monkeypatch.setattr(api, "through_triton", lambda x: gpu)
    kv = filled(dtype)
    blocks = KVBlocks(kv, HOST)
    rng = random.Random(3)
    for _ in range(8):
        randomise(kv, rng.randrange(100))
        wanted = state(blocks)
        pairs = some_pairs(rng, rng.choice([1, 3, 12]))
        for source, destination in pairs:
            for part in wanted:
                part[destination] = part[source]
        blocks.copy(pairs)
        for part, expected in zip(state(blocks), wanted, strict=True):
            assert torch.equal(part.view(torch.uint8), expected.view(torch.uint8))


def test_on_a_gpu_few_launches_take_a_list_and_host_memory_goes_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(api, "through_triton", lambda x: True)
    blocks = KVBlocks(filled(torch.float32), HOST)
    copy_each = blocks._copy_each

    def aside(pairs: list[tuple[int, int]]) -> None:
        done.append(("each", pairs))
        copy_each(pairs)

    def beside(at: torch.device, first: Callable[[], None], meanwhile: Callable[[], None]) -> None:
        done.append("aside")
        first()
        done.append("meanwhile")
        meanwhile()
        done.append("both")

    def launch(cache: KVCache, src: torch.Tensor, dst: torch.Tensor) -> None:
        done.append(("launch", list(zip(src.tolist(), dst.tolist(), strict=True))))

    monkeypatch.setattr(blocks, "_copy_each", aside)
    monkeypatch.setattr(kv_blocks, "beside", beside)
    monkeypatch.setattr(api, "copy_blocks", launch)
    blocks.copy([(0, 1), (2, 3), (4, POOL), (POOL + 1, 5), (1, 6), (7, 8)])
    assert done == [
        "aside",
        ("each", [(4, POOL), (POOL + 1, 5)]),
        "meanwhile",
        ("launch", [(0, 1), (2, 3)]),
        "both",
        ("launch", [(1, 6), (7, 8)]),
    ]


def test_what_is_done_beside_comes_behind_what_was_and_before_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams are made up: each has a queue, and a wait for another takes in what that one has then."""
    log: list[str] = []

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            log.append(f"{self.name} waits for {other.name}")

    main, side = Stream("main"), Stream("side")
    at = [main]

    @contextmanager
    def stream(which: Stream) -> Iterator[None]:
        at.append(which)
        yield
        at.pop()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: main)
    monkeypatch.setattr(device, "_side_stream", lambda _: side)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    device.beside(
        torch.device("cuda", 0),
        lambda: log.append(f"copies on {at[-1].name}"),
        lambda: log.append(f"launches on {at[-1].name}"),
    )
    assert log == ["side waits for main", "copies on side", "launches on main", "main waits for side"]

    def fail() -> None:
        raise RuntimeError("no such block")

    with pytest.raises(RuntimeError, match="no such block"):
        device.beside(torch.device("cuda", 0), lambda: None, fail)
    assert log[-1] == "main waits for side"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_was_read_can_be_written_elsewhere_scales_included(dtype: torch.dtype) -> None:
    kv, other = filled(dtype), filled(dtype, 12)
    blocks, others = KVBlocks(kv, 0), KVBlocks(other, 0)
    randomise(kv)
    data = blocks.read([7, 2, 4], 2 * SIZE + 3)
    one = 2 * 2 * SIZE * 3 * (8 * dtype.itemsize + (4 if dtype.itemsize == 1 else 0))
    assert (data.shape, data.dtype) == ((3, one), np.uint8)
    others.write([0, 11, 5], data)
    for source, destination, slots in ((7, 0, SIZE), (2, 11, SIZE), (4, 5, 3)):
        for mine, theirs in zip(blocks._parts, others._parts, strict=True):
            assert torch.equal(theirs[:, :, destination, :slots], mine[:, :, source, :slots])
            assert not theirs[:, :, destination, slots:].any(), "behind the tokens nothing is told"
    assert (others.read([0, 11, 5], 3 * SIZE) == data).all()
