"""The programs that judge what a deployment is made of."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

DEBIAN = ROOT / ".cache" / "debian" / "usr"


@pytest.fixture(scope="session")
def nginx() -> str:
    found = shutil.which("nginx") or shutil.which("nginx", path=str(DEBIAN / "sbin"))
    if found is None:
        assert not os.environ.get("CI"), "there is no nginx; set-up fetches it where it may"
        pytest.skip("there is no nginx on this machine")
    return found


@pytest.fixture(scope="session")
def hadolint() -> str:
    return str(Path(sys.executable).with_name("hadolint"))


@pytest.fixture(scope="session")
def compose_lint() -> str:
    return str(Path(sys.executable).with_name("compose-lint"))
