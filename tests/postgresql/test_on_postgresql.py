"""The product's tests on a real PostgreSQL: what is isolation in every run, the rest in the long ones.

In a process of its own, since Django's settings choose the database once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT
from tests.postgresql.server import binaries, running

QUICK = ("tests/postgresql/test_row_security.py", "tests/tenants", "tests/audit")
# Everything that reads or writes the database by itself; the whole product runs on it in the long tests.
LONG = (
    "tests/chat",
    "tests/prompts",
    "tests/dashboard",
    "tests/project/test_admin.py",
    "tests/api/test_product_api.py",
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
