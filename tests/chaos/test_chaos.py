"""The short form: one signal of each kind that matters, two engines, two web processes, sixteen answers at once."""

from __future__ import annotations

import random
import secrets
from pathlib import Path

import pytest

from ops.engines import CONF
from tests.chaos import checks
from tests.chaos.clients import Seen
from tests.chaos.product import several
from tests.chaos.questions import SOCKET, Question, made
from tests.chaos.report import SEVERAL, worst_gaps
from tests.chaos.running import Plan, run
from tests.chaos.trouble import KILL, WEIGHTS, Done, Event, planned


@pytest.mark.long
@pytest.mark.timeout(600)
def test_whatever_dies_no_word_is_lost_repeated_or_rewritten(tmp_path: Path) -> None:
    seed = secrets.randbits(31)
    outcome = run(Plan("", seed, kills=len(WEIGHTS), every_s=2.5), tmp_path / "data", print)
    print(outcome.table)
    assert not outcome.findings.faults, f"python -m tests.chaos --made --kills {len(WEIGHTS)} --every 2.5 --seed {seed}"
    assert len(outcome.done) == len(WEIGHTS)
    assert outcome.findings.verdicts[checks.WHOLE] > len(outcome.seen) * 0.8


# --- the suite itself: it would notice ------------------------------------------------------------------------------


def test_the_same_seed_asks_the_same_and_does_the_same() -> None:
    first, again, other = (random.Random(seed) for seed in (5, 5, 6))
    plan = {"engines": 2, "webs": 2, "every_s": 3.0}
    assert (made(first), planned(first, 40, **plan)) == (made(again), planned(again, 40, **plan))  # type: ignore[arg-type]
    assert planned(other, 40, **plan) != planned(again, 40, **plan)  # type: ignore[arg-type]


def test_a_plan_as_long_as_there_are_kinds_has_each_of_them_once() -> None:
    events = planned(random.Random(3), len(WEIGHTS), engines=2, webs=2, every_s=3.0)
    assert {event.kind for event in events} == {f"{program} {how}" for program, how in WEIGHTS}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("one two three four", None),
        ("one two three", checks.LOST),
        ("", checks.LOST),
        ("one two two three four", checks.REPEATED),
        ("one two three four four", checks.REPEATED),
        ("one three four", checks.LOST),
        ("one two thrice four", checks.REWRITTEN),
    ],
)
def test_what_became_of_a_text_is_called_by_its_name(text: str, what: str | None) -> None:
    assert checks.difference(text, "one two three four") == what


QUESTION = Question("q", SOCKET, 0, "?", {})


def an_answer(text: str, ended: str = "completed", tokens: int = 4) -> Seen:
    seen = Seen(QUESTION, asked_at=10.0)
    seen.named("f" * 32)
    seen.came(0, text)
    seen.end(ended, tokens)
    seen.ended_at = 20.0
    return seen


def judged(seen: Seen, *done: Done) -> tuple[str, list[str]]:
    findings = checks.Findings()
    return checks.judge(findings, seen, an_answer("one two three"), list(done)), findings.faults


def test_an_answer_that_is_not_the_undisturbed_one_is_a_fault() -> None:
    assert judged(an_answer("one two three")) == (checks.WHOLE, [])
    for other in (
        an_answer("one two"),
        an_answer("one two two three"),
        an_answer("one two three", ended="incomplete"),
        an_answer("one two three", tokens=5),
        an_answer("one two", ended="engine_died: It died."),
    ):
        assert judged(other)[1]
    odd = an_answer("one two three")
    odd.problems.append("event 3 came behind 1")
    assert judged(odd)[1]


def test_an_answer_may_end_interrupted_where_redis_and_a_worker_were_hit_meanwhile_and_nowhere_else() -> None:
    restart, engine = (Done(Event(program, KILL, 0), at=15.0) for program in ("redis", "engine-0"))
    late = Done(Event("redis", KILL, 0), at=25.0)
    code = "redis_restarted: …"
    assert judged(an_answer("one", code), restart, engine) == (checks.INTERRUPTED, [])
    assert judged(an_answer("one", code), restart)[0] == checks.UNANSWERED, "its worker lived, and knew all of it"
    assert judged(an_answer("one", code), engine, late)[0] == checks.UNANSWERED
    assert judged(an_answer("two", code), restart, engine)[1], "what it had said must be a beginning of it"


def test_a_stream_that_was_cut_must_have_told_a_beginning() -> None:
    seen = an_answer("")
    seen.came(0, "one t")
    seen.cut()
    seen.came(0, "one two three")
    seen.cuts[0] = (15.0, ["one t"])
    web = Done(Event("web-1", KILL, 0), at=14.0)
    assert judged(seen, web) == (checks.WHOLE, [])
    assert judged(seen)[1], "and what carries it must have been hit"
    seen.cuts[0] = (15.0, ["two"])
    assert judged(seen, web)[1]


def test_a_gap_is_that_of_the_event_within_it_and_of_none_where_there_are_several() -> None:
    seen = an_answer("")
    seen.came_at, seen.ended_at = [1.0, 1.1, 4.1, 4.2], 9.2
    kill, freeze, other = (
        Done(Event(program, KILL, 0), at=at) for program, at in (("engine-1", 2.0), ("web-0", 5.0), ("redis", 6.0))
    )
    found = worst_gaps([seen], [kill, freeze, other])
    assert found["engine KILL"] == (pytest.approx(3.0), 1)
    assert found[SEVERAL] == (pytest.approx(5.0), 1)
    assert found["redis KILL"] == (0.0, 0)


def test_the_supervisor_s_programs_come_as_often_as_wanted_and_are_begun_anew_whatever_they_ended_with() -> None:
    text = several(CONF.read_text(), [81, 82], engines=2)
    for section in ("engine-0", "engine-1", "web-0", "web-1", "recorder", "celery", "beat", "redis"):
        assert text.count(f"[program:{section}]") == 1
    assert "--port 81 " in text
    assert "--port 82 " in text
    programs = CONF.read_text().count("[program:")
    assert CONF.read_text().count("autorestart=true") == programs, "a process that got TERM from nobody's stop too"
