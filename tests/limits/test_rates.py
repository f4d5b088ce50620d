"""Requests and tokens a minute, counted by all web processes together."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
import redis
from django.db import connection

from chatapp.chat import services
from chatapp.chat.models import Conversation, Generation, State
from chatapp.limits import rates
from chatapp.limits.budget import RateLimited
from chatapp.limits.models import TEAM, Meter
from chatapp.limits.rates import Rate
from chatapp.limits.selectors import standings
from tests.chat.conftest import ScriptedWorker, Team
from tests.limits.conftest import Allow

pytestmark = pytest.mark.django_db


def call(access: Any, **params: Any) -> Generation:
    return services.complete(access=access, messages=[{"role": "user", "content": "Hi"}], params=params)


def remaining(access: Any) -> dict[str, int]:
    return {standing.what: standing.remaining for standing in standings(access)}


def test_requests_a_minute_hold_for_people_and_keys_together(team: Team, allow: Allow) -> None:
    allow(requests_per_minute=3)
    call(team.key, max_tokens=5)
    services.ask(access=team.member, text="Hi")
    last = call(team.key, max_tokens=5)
    assert [(s.what, s.limit, s.remaining) for s in last.standings or ()] == [("requests", 3, 0)]
    for access in (team.key, team.owner):
        with pytest.raises(RateLimited, match="Your team may use 3 requests a minute") as refused:
            services.ask(access=access, text="Hi")
        assert (refused.value.status, refused.value.code, refused.value.retryable) == (429, "rate_limit_exceeded", True)
        assert 1 <= (refused.value.retry_after_s or 0) <= 121
        assert [s.remaining for s in refused.value.standings] == [0]
    assert Generation.objects.count() == 3


def test_a_repeat_of_a_request_is_not_counted(team: Team, allow: Allow) -> None:
    allow(requests_per_minute=5)
    messages = [{"role": "user", "content": "Hi"}]
    for _ in range(3):
        services.complete(access=team.key, messages=messages, idempotency_key="once")
    assert remaining(team.key) == {"requests": 4}


def test_a_lower_rate_of_one_takes_nothing_from_the_others(team: Team, allow: Allow, lower: Callable[..., Any]) -> None:
    allow(requests_per_minute=4)
    lower(key=team.key.key, requests_per_minute=1)
    call(team.key, max_tokens=5)
    for _ in range(3):
        with pytest.raises(RateLimited, match="This key may use 1 requests"):
            call(team.key, max_tokens=5)
    assert remaining(team.member) == {"requests": 3}, "what was refused to the key is not charged to the team"
    for _ in range(3):
        services.ask(access=team.member, text="Hi")
    with pytest.raises(RateLimited, match="Your team"):
        services.ask(access=team.member, text="Hi")


def test_tokens_are_charged_by_an_estimate_and_corrected_at_the_end(
    team: Team,
    allow: Allow,
    worker: ScriptedWorker,
    record: Callable[[], int],
    django_capture_on_commit_callbacks: Any,
) -> None:
    allow(tokens_per_minute=1000)
    generation = call(team.key, max_tokens=600)
    (standing,) = generation.standings or ()
    assert (standing.what, standing.limit) == ("tokens", 1000)
    assert 380 <= standing.remaining <= 400
    assert remaining(team.key) == {"tokens": standing.remaining}
    with pytest.raises(RateLimited, match="tokens a minute") as refused:
        call(team.key, max_tokens=600)
    assert refused.value.retry_after_s
    assert Generation.objects.count() == 1, "nothing is left of the one that was refused"
    assert Meter.objects.get(subject=TEAM).reserved < 1000
    with pytest.raises(RateLimited, match="tokens a minute"):
        services.ask(access=team.member, text="Hi " * 300)
    assert not Conversation.objects.exists()
    worker.answer("a")
    with django_capture_on_commit_callbacks(execute=True):
        record()
    assert remaining(team.key) == {"tokens": 1000 - 8}
    call(team.key, max_tokens=600)


def test_a_request_that_never_fits_is_refused_for_good_and_an_unsaid_length_is_made_to_fit(
    team: Team, allow: Allow
) -> None:
    allow(tokens_per_minute=100)
    with pytest.raises(RateLimited, match="may use 100 a minute") as refused:
        call(team.key, max_tokens=200)
    assert (refused.value.retryable, refused.value.param) == (False, "max_tokens")
    generation = call(team.key)
    assert services.protocol.decode_request(bytes(generation.request or b"")).params.max_tokens < 100


def test_without_redis_nothing_is_refused_by_rates(team: Team, allow: Allow, settings: Any) -> None:
    """No request gets to an engine then either; what it may cost is held in the database."""
    allow(requests_per_minute=1, tokens_per_minute=10_000, concurrent_answers=2)
    settings.REDIS_URL = "unix:///nowhere/valkey.sock"
    for _ in range(2):
        assert call(team.key, max_tokens=5).state == State.ACCEPTED
    with pytest.raises(RateLimited, match="2 answers under way"):
        call(team.key, max_tokens=5)


@pytest.mark.django_db(transaction=True)
def test_threads_that_ask_at_once_get_exactly_what_the_minute_has(
    transactional_db: None, team: Team, allow: Allow
) -> None:
    allow(requests_per_minute=7)
    outcomes: list[bool] = []
    start = threading.Barrier(30)

    def go() -> None:
        try:
            start.wait(30)
            call(team.key, max_tokens=5)
            outcomes.append(True)
        except RateLimited:
            outcomes.append(False)
        finally:
            connection.close()

    threads = [threading.Thread(target=copy_context().run, args=(go,)) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (outcomes.count(True), outcomes.count(False)) == (7, 23)


TAKER = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "chatapp.settings.test"
os.environ["REDIS_URL"] = sys.argv[1]
import django
django.setup()
from chatapp.limits import rates
from chatapp.limits.rates import Rate
print(sum(rates.take([Rate("requests", "t", "", 10)], 1) is None for _ in range(8)))
"""


def test_processes_agree(redis_url: str) -> None:
    root = Path(__file__).resolve().parents[2]
    takers = [
        subprocess.Popen([sys.executable, "-c", TAKER, redis_url], cwd=root, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert sum(int(taker.communicate(timeout=60)[0]) for taker in takers) == 10


# --- the window itself --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "limit", "cost", "wait"),
    [
        (rates._Window(0, 0, 5, 90), 10, 5, 0),
        (rates._Window(0, 0, 10, 90), 10, 1, 30 + 6),  # the window ends in 30 s; a tenth of it later one is free
        (rates._Window(10, 30, 4, 90), 10, 5, 30 - 6),  # of the former 10 only one may be left
        (rates._Window(0, 0, 10, 90), 10, 10, 30 + 60),
    ],
)
def test_the_time_to_wait_is_when_it_fits(window: Any, limit: int, cost: int, wait: float) -> None:
    assert window.wait_s(limit, cost) == pytest.approx(wait)


def test_who_waits_as_long_as_was_said_is_let_in(server: redis.Redis) -> None:
    """Against the library's own window, whose minute is made short."""
    rate = Rate("tokens", "t", "", 100)
    assert rates.take([rate], 100) is None
    refused = rates.take([rate], 30)
    assert refused is not None
    assert 60 <= refused[1] <= 60 + 0.3 * 60 + 1
    key = f"octavo:rates:{{{rate.key}}}"
    server.pexpire(key, int(server.pttl(key) - refused[1] * 1000 - 50))  # type: ignore[operator]
    assert rates.take([rate], 30) is None
    assert rates.take([rate], 30) is not None


def test_a_correction_never_gives_back_more_than_its_own_window_holds(server: redis.Redis) -> None:
    import time

    rate = Rate("tokens", "t", "", 100)
    rates.take([rate], 20)
    rates.correct(rate, -50, time.time())
    (standing,) = rates.standings([rate])
    assert standing.remaining == 100
    rates.take([rate], 60)
    rates.correct(rate, -50, time.time() - 300)
    (standing,) = rates.standings([rate])
    assert standing.remaining == 40, "its own minute is long over"
    rates.correct(rate, 500, time.time())
    (standing,) = rates.standings([rate])
    assert standing.remaining == 0
