"""The browser libraries that are served."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ops import vendor

ROOT = Path(__file__).parents[2]


def state() -> dict[str, tuple[int, bytes]]:
    files = (path for path in vendor.VENDOR.iterdir() if not path.name.startswith("."))
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_copying_again_changes_nothing_and_removes_what_is_not_listed() -> None:
    command = [sys.executable, "ops/vendor.py"]
    subprocess.run(command, cwd=ROOT, check=True)
    before = state()
    (vendor.VENDOR / "stray.js").write_text("old")
    subprocess.run(command, cwd=ROOT, check=True)
    assert state() == before
    assert set(before) == {*vendor.FILES, "icons.svg"}


def test_packages_that_another_lock_installed_are_refused_by_name(tmp_path: Path) -> None:
    lock = json.loads((ROOT / "package-lock.json").read_text())
    vendor.check_lock()
    lock["packages"]["node_modules/dompurify"]["integrity"] = "sha512-AAAA"
    (tmp_path / "lock.json").write_text(json.dumps(lock))
    with pytest.raises(vendor.VendorError, match=r"node_modules/dompurify is not the one in package-lock\.json"):
        vendor.check_lock(tmp_path / "lock.json")
    with pytest.raises(vendor.VendorError, match="was not installed by npm"):
        vendor.check_lock(installed=tmp_path / "nothing")


def test_no_served_library_points_at_a_source_map() -> None:
    assert all(b"sourceMappingURL=" not in text for _, text in state().values())


def test_every_icon_that_pages_use_is_in_the_sprite() -> None:
    used = set()
    for path in [*(ROOT / "templates").rglob("*.html"), *(ROOT / "static/js").glob("*.js")]:
        used |= set(re.findall(r'\bicon:? ?\(?"([a-z0-9-]+)"', path.read_text()))
    assert used
    assert used <= set(vendor.ICONS), f"not in the sprite: {used - set(vendor.ICONS)}"


def test_versions_are_exact() -> None:
    text = (ROOT / "package.json").read_text()
    dependencies = re.search(r'"dependencies": {(.*?)}', text, re.DOTALL)
    assert dependencies
    versions = re.findall(r'": "([^"]+)"', dependencies[1])
    assert versions
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions)
