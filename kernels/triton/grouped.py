"""Attention of sequences that share their leading blocks: the prefix once for a whole group, the rest for each.

Owns which groups pay, what a step's groups look like on the device, and the three launches: the queries of each
group as dense tiles over its prefix (all groups in one launch), every sequence over what it has alone, and the merge
of both by their log-sum-exp (as in Hydragen, arXiv 2402.05099). The result is that of the plain kernel within
rounding. OCTAVO_CHECK_GROUPS=1 computes both at every call and raises where they differ; that is slow.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.api import AttentionMetadata, CacheLayer
from kernels.prefix_groups import PrefixGroups, shared_prefixes
from kernels.triton import split
from kernels.triton.attention import Work, launch
from kernels.triton.tiles import Tile

MIN_SAVED = 2048
"""Tokens that a group need not read again. To be measured: two more launches a layer cost several microseconds, in
which a GPU reads some megabytes; a token of one layer has 4 KiB with 8 KV heads of 128 in bfloat16."""
CHECK = os.environ.get("OCTAVO_CHECK_GROUPS") == "1"
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}
"""Of the check, against the largest value of a row: a few roundings of the output."""


def find_groups(
    block_tables: NDArray[np.int32], query_starts: NDArray[np.int32], seq_lens: NDArray[np.int32], block_size: int
) -> PrefixGroups | None:
    """A step's groups for AttentionMetadata.groups, where they pay on a GPU. Arguments in host memory, as there."""
    return shared_prefixes(block_tables, query_starts, seq_lens, block_size, min_saved=MIN_SAVED // block_size)


@dataclass(frozen=True)
class DeviceGroups:
    """Groups on the device: room for G of them with M members in all, and for S sequences; one int32 tensor.

    Room that a step does not need holds groups without members. longest: no prefix has more tokens.
    """

    packed: Tensor
    num_members: int
    num_groups: int
    num_seqs: int
    longest: int

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """members [M], starts [G + 1], prefix lengths [G], a member of each group [G], prefix of each sequence [S]."""
        return self.packed.split(_sizes(self.num_members, self.num_groups, self.num_seqs))


def _sizes(num_members: int, num_groups: int, num_seqs: int) -> list[int]:
    return [num_members, num_groups + 1, num_groups, num_groups, num_seqs]


def pack(
    groups: PrefixGroups | None, block_size: int, num_seqs: int, num_members: int, num_groups: int
) -> NDArray[np.int32]:
    """Groups as DeviceGroups.packed has them, for a tensor with at least their room: a captured graph's, say."""
    packed = np.zeros(sum(_sizes(num_members, num_groups, num_seqs)), np.int32)
    if groups is None:
        return packed
    places = np.cumsum(_sizes(num_members, num_groups, num_seqs))[:-1]
    members, starts, lengths, firsts, prefixes = np.split(packed, places)
    count = len(groups.blocks)
    members[: len(groups.members)] = groups.members
    starts[: count + 1] = groups.starts
    starts[count + 1 :] = groups.starts[-1]
    lengths[:count] = groups.blocks * block_size
    firsts[:count] = groups.members[groups.starts[:-1]]
    prefixes[groups.members] = np.repeat(lengths[:count], np.diff(groups.starts))
    return packed


def to_device(groups: PrefixGroups, meta: AttentionMetadata, block_size: int) -> DeviceGroups:
    """One copy to the device, which nobody waits for."""
    sizes = len(groups.members), len(groups.blocks), len(meta.seq_lens)
    packed = torch.from_numpy(pack(groups, block_size, sizes[2], *sizes[:2]))
    device = meta.seq_lens.device
    if device.type == "cuda":
        packed = packed.pin_memory().to(device, non_blocking=True)
    return DeviceGroups(packed, *sizes, int(groups.blocks.max()) * block_size)


@dataclass(frozen=True)
class Step:
    """A step's launches and where their results lie until they are merged: its layers' scratch, one after another."""

    prefixes: Work
    prefix_tile: Tile
    suffixes: Work
    suffix_tile: Tile
    prefix_slots: int
    partials: Tensor
    lse: Tensor


def prepare(
    q: Tensor,
    groups: DeviceGroups,
    meta: AttentionMetadata,
    suffixes: Work,
    suffix_tile: Tile,
    prefix_tile: Tile,
    kv_heads: int,
    wanted: int,
) -> Step:
    """Plan the launches on the device. wanted: programs of each KV head that fill it."""
    group = q.shape[1] // kv_heads
    prefix_tokens, suffix_tokens = prefix_tile.rows // group, suffix_tile.rows // group
    members, starts, lengths, firsts, begins = groups.parts
    prefixes = Work(
        meta.block_tables[firsts.long()],
        starts,
        lengths,
        groups.num_groups,
        groups.num_members // prefix_tokens + groups.num_groups,
        # A member decodes: its only row is where its sequence begins.
        rows=meta.query_starts[members.long()],
    )
    prefix_cut = split.cut(prefixes.programs, wanted, groups.longest) or split.UNCUT
    suffix_cut = split.cut(suffixes.programs, wanted, meta.max_seq_len) or split.UNCUT
    slots = prefix_cut.slots + suffix_cut.slots
    return Step(
        split.plan(prefixes, prefix_cut, prefix_tokens, None),
        prefix_tile,
        split.plan(suffixes, suffix_cut, suffix_tokens, None, begins),
        suffix_tile,
        prefix_cut.slots,
        *split.scratch(q, slots),
    )


def attend(out: Tensor, q: Tensor, layer: CacheLayer, step: Step, scale: float, softcap: float | None) -> None:
    """Write every row of out [T, num_heads, head_dim]."""
    n = step.prefix_slots
    partials, lse = step.partials, step.lse
    launch(partials[:, :, :n], lse[:, :, :n], q, layer, step.prefixes, step.prefix_tile, scale, None, softcap)
    launch(partials[:, :, n:], lse[:, :, n:], q, layer, step.suffixes, step.suffix_tile, scale, None, softcap)
    split.merge(out, partials, lse)


class GroupsDisagree(RuntimeError):
    """The grouped result is not the plain one: a bug."""


def compare(grouped: Tensor, plain: Tensor) -> None:
    """Raises GroupsDisagree unless both [T, num_heads, head_dim] agree to rounding, relative to each row's largest."""
    a, b = grouped.float(), plain.float()
    room = TOLERANCE[grouped.dtype] * b.abs().amax(dim=-1, keepdim=True).clamp(min=1e-3)
    wrong = ~((a - b).abs() <= room)
    if wrong.any():
        row, head, place = wrong.nonzero()[0].tolist()
        raise GroupsDisagree(
            f"{int(wrong.sum())} of {wrong.numel()} numbers differ between grouped and plain attention; the first is "
            f"row {row}, head {head}, number {place}: {a[row, head, place]:.6g} and {b[row, head, place]:.6g}"
        )
