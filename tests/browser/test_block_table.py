"""The browser's block table is the one that Python knows: frames that Python made, read by both."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import subprocess
from typing import Any

import msgspec
import pytest

from bench.made_pool import MadePool
from engine import occupancy_wire as wire
from tests.browser.test_modules import ROOT, node


def read_by_the_browser(messages: list[bytes]) -> list[dict[str, Any]]:
    program = node()
    if program is None:
        pytest.skip("there is no node on this machine")
    lines = b"\n".join(map(base64.b64encode, messages))
    command = [program, "tests/js/told-tables.mjs"]
    done = subprocess.run(command, cwd=ROOT, input=lines, capture_output=True, timeout=60, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def known(table: wire.Table) -> dict[str, Any]:
    """What the script prints, of the table that Python keeps."""
    assert table.head is not None
    rows = [msgspec.to_builtins(msgspec.structs.replace(row)) for _, row in sorted(table.rows.items())]
    return {
        "number": table.head.number,
        "tenants": table.tenants,
        "columns": [hashlib.sha256(column.tobytes()).hexdigest() for column in table.columns],
        "rows": [{**FULL_ROW, **row} for row in rows],
        "figures": {**FULL_FIGURES, **msgspec.to_builtins(table.head.figures)},
    }


FULL_ROW = {name: getattr(wire.Row(number=0), name) for name in wire.Row.__struct_fields__} | {"regions": [0, 0]}
FULL_FIGURES = {name: getattr(wire.Figures(), name) for name in wire.Figures.__struct_fields__}


@pytest.mark.parametrize("seed", range(3))
def test_frames_add_up_to_the_same_table_in_the_browser_as_in_python(seed: int) -> None:
    dice = random.Random(seed)
    pool = MadePool("w", dice.choice([60, 300, 2000]), ["a", "b", "ü"], host_blocks=dice.choice([0, 17]), seed=seed)
    table, messages, expected = wire.Table(), [], []
    for _ in range(60):
        for _ in range(dice.randint(0, 3)):
            pool.step(tokens=dice.choice([1, 8, 90]))
        message = pool.message(whole=dice.random() < 0.05)
        head, cells = wire.unpacked(message)
        table.apply(wire.decode_head(head), cells)
        messages.append(message)
        expected.append(json.loads(json.dumps(known(table))))
    found = read_by_the_browser(messages)
    assert [one.pop("gaps") for one in found] == [0] * len(messages)
    assert found == expected


def test_after_a_missing_frame_the_browser_waits_for_a_whole_one() -> None:
    pool = MadePool("w", 200, ["a", "b"])
    messages = [pool.message()]
    for turn in range(1, 12):
        pool.step()
        messages.append(pool.message(whole=turn == 8))
    del messages[4]
    found = read_by_the_browser(messages)
    assert [one["number"] for one in found] == [1, 2, 3, 4, 4, 4, 4, 9, 10, 11, 12]
    assert [one["gaps"] for one in found] == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1], (
        "said once, and not of each that follows"
    )


def test_a_message_that_cannot_be_read_is_a_missing_one() -> None:
    pool = MadePool("w", 100, ["a"])
    first = pool.message()
    pool.step()
    second = pool.message()
    pool.step()
    found = read_by_the_browser([first, second[:-6], pool.message(), pool.message(whole=True)])
    assert [(one["number"], one["gaps"]) for one in found] == [(1, 0), (1, 1), (1, 1), (4, 1)]


def test_frames_of_another_worker_begin_a_table_of_their_own() -> None:
    one, other = MadePool("one", 100, ["a"]), MadePool("other", 50, ["b"])
    found = read_by_the_browser([one.message(), other.message()])
    assert [table["tenants"] for table in found] == [["a"], ["b"]]
