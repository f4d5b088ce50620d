"""The soak: its judge on series that are made, and the tool itself, for half a minute, on the running product."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from bench import soak
from bench.flat import judge, trend
from bench.soak import Keys, Series, conclude, kind_of
from bench.soak_load import KINDS, Book
from ops.run import run_folder
from tests.conftest import ROOT
from tests.stack import Stack

HALF_AN_HOUR = range(0, 1800, 5)


def series(mb_h: float, noise: float = 2.0, step_at: float = 0.0, seed: int = 0) -> list[float]:
    """A process of 200 MB that grows so fast, under a noise of its own and a cache that fills at the start."""
    rng = random.Random(seed)
    return [
        200 + 30 * min(1.0, t / 300) + mb_h * t / 3600 + rng.gauss(0, noise) + (40 if step_at and t > step_at else 0)
        for t in HALF_AN_HOUR
    ]


@pytest.mark.parametrize("seed", range(5))
def test_a_leak_is_noticed_and_a_flat_line_is_called_so(seed: int) -> None:
    at = list(map(float, HALF_AN_HOUR))
    leaks = judge(at, series(20, seed=seed), 6, 600)
    assert leaks.grows
    assert leaks.text.startswith("grows by ")
    assert 17 < float(leaks.text.split()[2]) < 23
    flat = judge(at, series(0, seed=seed), 6, 600)
    assert not flat.grows
    assert flat.text.startswith("flat: ")


def test_what_fills_before_the_warm_up_ends_and_single_peaks_are_no_leak() -> None:
    at = list(map(float, HALF_AN_HOUR))
    peaks = [value + (300 if number % 40 == 7 else 0) for number, value in enumerate(series(0))]
    assert judge(at, peaks, 6, 600).text.startswith("flat: ")
    assert judge(at, series(0), 6, 0).grows is False, "ten minutes of thirty are no trend of the whole"


def test_a_run_that_is_too_short_says_so() -> None:
    assert judge([0.0, 5.0, 10.0], [1.0, 2.0, 3.0], 6, 0).text.startswith("too short to say")
    assert judge([float(t) for t in range(100)], [float(t) for t in range(100)], 6, 0).text.startswith("too short")
    assert trend([0.0], [1.0]) is None


def test_the_slope_of_a_line_is_found_and_its_interval_holds_it() -> None:
    rng = random.Random(1)
    found = trend([float(t) for t in range(200)], [3 * t + rng.gauss(0, 5) for t in range(200)])
    assert found is not None
    assert found.low <= 3 <= found.high
    assert found.high - found.low < 0.1


def test_growth_a_restart_and_an_error_each_end_it_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    at, nothing = list(map(float, HALF_AN_HOUR)), Keys(1.0, Counter(), Counter())

    def ends(values: list[float], errors: dict[str, int], last: Keys = nothing) -> int:
        made = Series(times=at, rss_mb={"web": values, "redis": series(99)})
        return conclude(made, nothing, last, Book(errors=Counter(errors)), 30)

    assert ends(series(0), {}) == 0
    assert "web  flat: " in capsys.readouterr().out
    assert ends(series(50), {}) == 1
    assert "grows: web; errors: none" in capsys.readouterr().out
    assert ends(series(0), {"chats: error internal": 1}) == 1
    assert ends(series(0)[:-9], {}) == 1
    assert "not always there: web" in capsys.readouterr().out
    ends(series(0), {}, Keys(1.0, Counter(), Counter(held=2, occupancy=1)))
    assert "keys that stay and were not there before: held 2\n" in capsys.readouterr().out


def test_keys_are_counted_by_kind_and_never_by_who_they_are_of() -> None:
    assert kind_of("octavo:generation:018f-1") == "generation"
    assert kind_of("octavo:workers") == "workers"
    assert kind_of("_kombu.binding.celery") == "_kombu.binding.celery"


# --- the product ----------------------------------------------------------------------------------------------------


def documented() -> dict[str, tuple[re.Pattern[str], str]]:
    """The table of keys in docs/limits.md: name -> what it looks like, and how it expires."""
    rows = re.findall(
        r"^\| `(octavo:[^`]+)` \|.*\| ([^|]+) \|$", (ROOT / "docs" / "limits.md").read_text(), re.MULTILINE
    )
    return {
        name: (re.compile(re.sub(r"\\{\w+\\}", "[^:]+", re.escape(name)) + r"(?<!:)\Z"), expires)
        for name, expires in rows
    }


def undocumented(client: Any) -> list[str]:
    """Keys that no row is about, or that do not expire although theirs does by a time."""
    wrong, table = [], documented()
    for key in client.scan_iter(count=1000):
        name, ttl = key.decode(), client.ttl(key)
        if name.startswith("octavo:rates:"):
            name = "octavo:rates:x"  # the library's own names have colons in them
        found = next((expires for looks, expires in table.values() if looks.match(name)), None)
        by_time = found is not None and not re.match(r"never|deleted|with its|an hour or less", found)
        if ttl != -2 and (found is None or (by_time and ttl == -1) or (found == "never" and ttl >= 0)):
            wrong.append(f"{key.decode()} ({ttl} s): {found or 'is in no row of docs/limits.md'}")
    return wrong


def test_the_table_of_keys_can_be_read() -> None:
    table = documented()
    assert len(table) > 25
    assert table["octavo:request:{id}"][0].match("octavo:request:018f")
    assert not table["octavo:request:{id}"][0].match("octavo:requests:m:t")
    assert table["octavo:finished:aside"][1] == "never"


@pytest.mark.long
def test_the_product_under_all_kinds_of_clients_is_reported_and_leaves_only_keys_that_are_known(
    stack: Stack, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """About 40 s."""
    monkeypatch.setattr(soak, "LOOK_EVERY_S", 1.0)
    product: Any = SimpleNamespace(data=stack.data, run=run_folder(stack.data), process=stack.process)
    ended = asyncio.run(soak.soaked(product, 0.4, len(KINDS)))
    said = capsys.readouterr().out
    assert ended == 0, said
    assert "== the end, idle again ==" in said
    for program in ("web", "engine", "recorder", "celery", "beat", "redis"):
        assert re.search(rf"^{program} +\d+\.\d +\d+ +\d+$", said, re.MULTILINE), said
    assert re.search(r"^first token p50 \d+, p95 \d+ ms; gap p50 \d+, p95 \d+ ms$", said, re.MULTILINE), said
    done = set(re.findall(r"(\w+) \d+", said.rpartition("\ndone: ")[2].partition("\n")[0]))
    assert {kind.__name__ for kind in KINDS} <= done, said  # type: ignore[attr-defined]
    assert "errors: none" in said
    assert "keys that stay and were not there before: none" in said
    assert undocumented(stack.redis) == []
