"""Sequences are grouped by the leading blocks that they share, so that the grouping saves most."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from kernels.prefix_groups import PrefixGroups, shared_prefixes

GARBAGE = 2**31 - 1


def find(
    tables: list[list[int]], lengths: list[int] | None = None, counts: list[int] | None = None, **options: int
) -> PrefixGroups | None:
    """Blocks of 16 tokens; by default each table's blocks are full, but for one token in one block more."""
    width = max(map(len, tables)) + 2
    lengths = lengths or [16 * len(table) + 1 for table in tables]
    rows = [table + [GARBAGE] * (width - len(table)) for table in tables]
    starts = np.cumsum([0, *(counts or [1] * len(tables))])
    return shared_prefixes(
        np.array(rows, np.int32), starts.astype(np.int32), np.array(lengths, np.int32), 16, **options
    )


def listed(groups: PrefixGroups | None) -> list[tuple[list[int], int]]:
    if groups is None:
        return []
    for array in (groups.members, groups.starts, groups.blocks):
        assert array.dtype == np.int32
    spans = itertools.pairwise(groups.starts.tolist())
    return [(sorted(groups.members[a:b].tolist()), n) for (a, b), n in zip(spans, groups.blocks.tolist(), strict=True)]


def test_each_tenant_s_sequences_make_a_group() -> None:
    tables = [[1, 2, 3, 4], [7, 8, 20], [1, 2, 3, 5, 6], [7, 8, 21], [9, 10]]
    assert listed(find(tables)) == [([0, 2], 3), ([1, 3], 2)]


def test_long_prompts_behind_a_short_preamble_are_groups_of_their_own() -> None:
    a, b = [1, 2, *range(10, 20)], [1, 2, *range(30, 40)]
    assert listed(find([[*a, 50], [*b, 51], [*a, 52], [*b, 53]])) == [([0, 2], 12), ([1, 3], 12)]
    # Who is alone behind the preamble makes a group with others who are.
    apart = [[*a, 50], [*a, 51], [1, 2, 60], [1, 2, 70]]
    assert sorted(listed(find(apart))) == [([0, 1], 12), ([2, 3], 2)]
    # All share more than the few that go on together.
    assert listed(find([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 6]])) == [([0, 1, 2, 3], 3)]


def test_chunks_and_sequences_without_a_token_outside_are_left_out() -> None:
    tables = [[1, 2, 3], [1, 2, 3], [1, 2, 3]]
    assert listed(find(tables, counts=[1, 4, 1])) == [([0, 2], 3)]
    assert listed(find(tables, lengths=[48, 49, 60])) == [([0, 1, 2], 2)]
    assert listed(find(tables, lengths=[48, 0, 16])) == []
    assert listed(find(tables[:1])) == []


def test_blocks_count_in_granules_and_a_group_must_save_enough() -> None:
    tables = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 7], [1, 2, 3, 9, 9, 9]]
    assert listed(find(tables, granule=4)) == [([0, 1], 4)]
    assert listed(find(tables, granule=3)) == [([0, 1, 2], 3)]
    assert listed(find(tables, min_saved=6)) == [([0, 1, 2], 3)]
    assert listed(find(tables, min_saved=7)) == []
    assert listed(find([[1, 2, 3], [9, 2, 3]], granule=3)) == []


def best(tables: list[list[int]], members: frozenset[int]) -> int:
    """What the best of all partitions saves, by trying them."""
    if len(members) < 2:
        return 0
    first = min(members)
    others = sorted(members - {first})
    most = best(tables, members - {first})
    for n in range(1, len(others) + 1):
        for chosen in itertools.combinations(others, n):
            group = [tables[i] for i in (first, *chosen)]
            shared = next((i for i, column in enumerate(zip(*group, strict=False)) if len(set(column)) > 1), None)
            depth = min(map(len, group)) if shared is None else shared
            most = max(most, n * depth + best(tables, members - {first, *chosen}))
    return most


@pytest.mark.parametrize("seed", range(30))
def test_no_grouping_saves_more(seed: int) -> None:
    rng = random.Random(seed)
    tables: list[list[int]] = []
    for _ in range(6):
        shared = rng.choice(tables)[: rng.randint(0, 6)] if tables else []
        tables.append([*shared, *(rng.randint(100, 10**6) for _ in range(rng.randint(0, 4)))] or [1])
    groups = listed(find(tables))
    members = [member for group, _ in groups for member in group]
    assert len(members) == len(set(members))
    for group, depth in groups:
        assert len({tuple(tables[i][:depth]) for i in group}) == 1
        assert min(len(tables[i]) for i in group) >= depth
    assert sum((len(group) - 1) * depth for group, depth in groups) == best(tables, frozenset(range(len(tables))))
