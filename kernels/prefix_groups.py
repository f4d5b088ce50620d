"""Which sequences of a step share their leading blocks, so that these are read once for all of them.

Works on a step's block tables in host memory, with numpy alone; every path groups with it. Which groups pay is the
caller's business: it gives the least that a group must save. Promises: a group's members decode (one row each), their
shared tokens lie in whole blocks and leave at least one token of each member outside.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PrefixGroups:
    """G groups with M members in all.

    members int32 [M]: sequences, group after group; starts int32 [G + 1]: where each group's begin; blocks int32 [G]:
    leading blocks that all members of a group have.
    """

    members: NDArray[np.int32]
    starts: NDArray[np.int32]
    blocks: NDArray[np.int32]


def shared_prefixes(
    block_tables: NDArray[np.int32],
    query_starts: NDArray[np.int32],
    seq_lens: NDArray[np.int32],
    block_size: int,
    *,
    granule: int = 1,
    min_saved: int = 1,
) -> PrefixGroups | None:
    """The grouping that saves most reads of blocks, None if there is none.

    Arguments as in kernels.api.AttentionMetadata, in host memory. granule: shared blocks are counted in so many.
    min_saved: blocks that a group need not read again, (members - 1) * shared blocks, at least.

    Sequences whose first blocks are the same form a tree, and a group belongs to one of its nodes: its members pass
    there. (All tenants may share a preamble, but each has a long prompt of its own: then a group for each tenant saves
    more.) A member saves its group's blocks, but for one member: so each node is tried open, at the price of its own
    depth, and closed, its members left to the next open node above.
    """
    full = (seq_lens - 1) // block_size // granule  # granules
    candidates = np.flatnonzero((np.diff(query_starts) == 1) & (full > 0))
    tree = _Tree(block_tables, full, granule)
    groups = [group for members in tree.branches(candidates, 0) for group in tree.best(tree.node(members), 0)[2]]
    groups = [(members, depth) for members, depth in groups if (len(members) - 1) * depth * granule >= min_saved]
    if not groups:
        return None
    return PrefixGroups(
        members=np.array([member for members, _ in groups for member in members], np.int32),
        starts=np.cumsum([0, *(len(members) for members, _ in groups)]).astype(np.int32),
        blocks=np.array([depth * granule for _, depth in groups], np.int32),
    )


_Group = tuple[list[int], int]
"""Members, and how many granules they share."""


@dataclass(frozen=True)
class _Node:
    """Where sequences that share `depth` granules part: into branches of several, and those that go on alone."""

    depth: int
    branches: list[_Node]
    alone: list[int]
    results: dict[int, tuple[int, list[int], list[_Group]]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Tree:
    tables: NDArray[np.int32]
    full: NDArray[np.int32]
    granule: int

    def branches(self, members: NDArray[np.intp], depth: int) -> list[NDArray[np.intp]]:
        """Those of two and more members that have the same granule behind `depth` others."""
        members = members[self.full[members] > depth]
        keys = np.ascontiguousarray(self.tables[members, depth * self.granule : (depth + 1) * self.granule])
        found: dict[bytes, list[int]] = {}
        for member, key in zip(members.tolist(), keys, strict=True):
            found.setdefault(key.tobytes(), []).append(member)
        return [np.array(branch, np.intp) for branch in found.values() if len(branch) > 1]

    def node(self, members: NDArray[np.intp]) -> _Node:
        """Of members that share their first granule."""
        shortest = int(self.full[members].min()) * self.granule
        rows = self.tables[members, :shortest]
        same = (rows == rows[0]).all(axis=0)
        depth = (shortest if same.all() else int(same.argmin())) // self.granule
        branches = self.branches(members, depth)
        together = {member for branch in branches for member in branch.tolist()}
        alone = [member for member in members.tolist() if member not in together]
        return _Node(depth, [self.node(branch) for branch in branches], alone)

    def best(self, node: _Node, price: int) -> tuple[int, list[int], list[_Group]]:
        """(granules saved, members left to a node above that saves `price` for each, groups)."""
        if price not in node.results:
            closed = self._sum(node, price)
            value, members, groups = self._sum(node, node.depth)
            opened: tuple[int, list[int], list[_Group]] = value - node.depth, [], [(members, node.depth), *groups]
            node.results[price] = opened if opened[0] > closed[0] else closed
        return node.results[price]

    def _sum(self, node: _Node, price: int) -> tuple[int, list[int], list[_Group]]:
        value, left, groups = len(node.alone) * price, list(node.alone), []
        for branch in node.branches:
            more, members, inner = self.best(branch, price)
            value += more
            left += members
            groups += inner
        return value, left, groups
