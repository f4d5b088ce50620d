"""What set-up installs is one list: every package in one version, by the hashes of its files."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution, distributions
from pathlib import Path

import pytest

from ops.lock import LOCKS, UNLOCKED, blocks, normal, pinned
from ops.setup import REQUIREMENTS

RUN, DEV = pinned(REQUIREMENTS / "lock.txt"), pinned(REQUIREMENTS / "lock-dev.txt")


def named(file: str) -> Iterator[tuple[str, str]]:
    """Names and versions in a list, and in those that it includes."""
    text = (REQUIREMENTS / file).read_text()
    for name, version in re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==(\S+)$", text, re.MULTILINE):
        yield normal(name), version
    for other in re.findall(r"^-r (\S+)$", text, re.MULTILINE):
        yield from named(other)


def test_every_package_has_one_version_and_hashes() -> None:
    assert not RUN.keys() & DEV.keys()
    for name in LOCKS:
        found = blocks((REQUIREMENTS / name).read_text())
        assert found
        for package, text in found.items():
            assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", text), package
            assert not UNLOCKED.match(package)


@pytest.mark.parametrize(("wanted", "locked"), [("run.txt", RUN), ("dev.txt", RUN | DEV)])
def test_the_lock_has_the_versions_that_are_asked_for(wanted: str, locked: dict[str, str]) -> None:
    asked = {name: version for name, version in named(wanted) if not UNLOCKED.match(name)}
    assert asked
    assert asked.items() <= locked.items()


def test_the_lock_holds_all_that_is_needed_by_what_it_holds() -> None:
    """Of those that are installed here; what one needs elsewhere pip asks for, as set-up does not say --no-deps."""
    from packaging.requirements import Requirement

    installed = {normal(found.metadata["Name"]) for found in distributions()}
    for name in RUN:
        if name not in installed:
            continue
        for line in distribution(name).requires or []:
            need = Requirement(line)
            if need.marker and not need.marker.evaluate({"extra": ""}):
                continue
            assert normal(need.name) in RUN or UNLOCKED.match(normal(need.name)), f"{name} needs {need.name}"


def test_what_is_installed_here_is_what_the_lock_says() -> None:
    wrong = {}
    for found in distributions():
        name = normal(found.metadata["Name"])
        version = (RUN | DEV).get(name)
        if version is not None and version != found.version:
            wrong[name] = (found.version, version)
    assert not wrong


def test_a_file_with_another_hash_is_not_installed(tmp_path: Path) -> None:
    """pip itself, as set-up calls it, with a package of our own on the disk."""
    wheel = tmp_path / "thing-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("thing-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1\n")
        file.writestr("thing-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("thing-1.dist-info/RECORD", "")
    lock = tmp_path / "lock.txt"
    lock.write_text(f"thing==1 --hash=sha256:{'0' * 64}\n")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--isolated", "--no-index", "--find-links"]
    command += [str(tmp_path), "--target", str(tmp_path / "there"), "--require-hashes", "-r", str(lock)]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in refused.stderr
    lock.write_text(f"thing==1 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    assert subprocess.run(command, capture_output=True, text=True).returncode == 0
