"""The product's tests on a real PostgreSQL: what is isolation in every run, the rest in the long ones.

In a process of its own, since Django's settings choose the database once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import openai
import psycopg
import pytest
from octavo_client import Octavo, TextDelta

from tests.conftest import ROOT
from tests.postgresql.server import binaries, control, running
from tests.stack import Stack, started, wait_for

QUICK = (
    "tests/postgresql/test_row_security.py",
    "tests/tenants/test_scope.py",
    "tests/tenants/test_every_address.py",
    "tests/audit/test_audit_log.py",
)
# What depends on the database's own ways: locks, constraints, triggers, sums and cuts of time, what is erased.
LONG = (
    "tests/tenants/test_members.py",
    "tests/tenants/test_invitations.py",
    "tests/tenants/test_isolation.py",
    "tests/tenants/test_keys.py",
    "tests/audit",
    "tests/chat",
    "tests/limits/test_budget.py",
    "tests/usage/test_rows.py",
    "tests/usage/test_budgets.py",
    "tests/usage/test_reconcile.py",
    "tests/usage/test_pages.py",
    "tests/prompts/test_versions.py",
    "tests/api/test_product_api.py",
    "tests/webhooks/test_delivering.py",
    "tests/batches/test_running.py",
    "tests/files/test_openai_files.py",
    "tests/backups/test_taking.py",
)


@pytest.fixture(scope="module")
def database_url() -> Iterator[str]:
    programs = binaries()
    if programs is None:
        assert not os.environ.get("OCTAVO_REQUIRE_POSTGRESQL"), "there are no programs of PostgreSQL"
        pytest.skip("there is no PostgreSQL on this machine")
    with running(programs) as url:
        yield url


def run(database_url: str, *paths: str) -> str:
    env = {key: value for key, value in os.environ.items() if key not in ("OCTAVO_DATA", "PYTEST_CURRENT_TEST")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths]
    done = subprocess.run(
        command, cwd=ROOT, env={**env, "DATABASE_URL": database_url}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, f"on PostgreSQL:\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    assert "passed" in done.stdout
    return done.stdout


@pytest.mark.timeout(600)
def test_tenants_are_apart_on_postgresql_too(database_url: str) -> None:
    assert "skipped" not in run(database_url, *QUICK).splitlines()[-1]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_product_works_on_postgresql(database_url: str) -> None:
    run(database_url, *LONG)


@pytest.fixture(scope="module")
def product(database_url: str, tmp_path_factory: pytest.TempPathFactory, model_path: str) -> Iterator[Stack]:
    yield from started(tmp_path_factory.mktemp("product"), model_path, DATABASE_URL=database_url)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_running_product_answers_records_and_keeps_teams_apart_on_postgresql(
    product: Stack, database_url: str
) -> None:
    client = openai.OpenAI(base_url=f"{product.url}/v1", api_key=product.key())
    reply = client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": "Say hello."}], max_tokens=8, temperature=0
    )
    assert reply.choices[0].message.content
    own, foreign = (product.demo["tenants"][number] for number in (0, 1))
    with httpx.Client(base_url=product.url, follow_redirects=True) as browser:
        page = browser.get("/accounts/login/")
        token = browser.cookies["csrftoken"]
        form = {"login": own["admin"]["email"], "password": own["admin"]["password"], "csrfmiddlewaretoken": token}
        page = browser.post("/accounts/login/", data=form, headers={"Referer": product.url})
        assert (page.status_code, page.url.path) == (200, f"/t/{own['slug']}/")
        assert browser.get(f"/t/{own['slug']}/admin/", follow_redirects=True).status_code == 200
        assert browser.get(f"/t/{foreign['slug']}/").status_code == 404
    superuser = database_url.replace("octavo:@", "postgres:@", 1)

    def recorded() -> bool:
        with psycopg.connect(superuser) as everything:
            return everything.execute("SELECT state FROM chat_generation").fetchall() == [("finished",)]

    wait_for(recorded)
    with psycopg.connect(database_url) as nobody:
        for table in ("chat_generation", "tenants_membership", "tenants_apikey", "prompts_promptversion"):
            assert nobody.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table


@pytest.mark.long
@pytest.mark.timeout(300)
def test_while_the_database_is_away_answers_go_on_and_what_needs_it_says_so_and_all_heals(
    product: Stack, database_url: str
) -> None:
    key = {"Authorization": f"Bearer {product.key()}"}
    body = {"model": "default", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
    with (
        Octavo(product.url, api_key=product.key()) as octavo,
        httpx.Client(base_url=product.url, headers=key, timeout=30) as http,
    ):
        stream = octavo.stream("Tell me a long story.", temperature=0, max_tokens=300, ignore_eos=True)
        told = iter(event.delta for event in stream if isinstance(event, TextDelta))
        text = next(told)
        control(database_url, "stop", "-m", "immediate")
        away_since = time.monotonic()
        try:
            for path, ask in (
                ("/v1/chat/completions", lambda: http.post("/v1/chat/completions", json=body)),
                ("/readyz", lambda: http.get("/readyz")),
                ("/accounts/login/", lambda: http.get("/accounts/login/", cookies={"sessionid": "x" * 32})),
                ("/api/", lambda: http.get(f"/api/t/{product.demo['tenants'][0]['slug']}/conversations")),
            ):
                began = time.monotonic()
                reply = ask()
                assert reply.status_code == 503, path
                assert time.monotonic() - began < 8, f"{path} hung"
                if path != "/readyz":
                    assert int(reply.headers["retry-after"]) > 0, path
            assert http.get("/readyz").json()["missing"] == ["database"]
            assert octavo.state == "open", "sockets stay"
            text += "".join(told)
            assert stream.answer.status == "incomplete"
            assert text == stream.answer.text
            assert len(text) > 300
            time.sleep(max(0.0, 10 - (time.monotonic() - away_since)))
        finally:
            control(database_url, "start")
        wait_for(lambda: http.get("/readyz").status_code == 200)
        slug = product.demo["tenants"][0]["slug"]
        path = f"/api/t/{slug}/conversations/{stream.answer.conversation_id}"

        def kept() -> bool:
            message = http.get(path).json()["messages"][-1]
            return bool(message["text"] == text)

        wait_for(kept)
        assert octavo.complete("Say hello.", max_tokens=4).text
