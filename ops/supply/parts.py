"""What is installed or copied beside our own code: Python packages, browser libraries, the default model.

Read from what is there: the locks with their hashes, the installed packages' own words, package-lock.json. Debian's
packages, the compiler and the browser of the tests are the machine's, and a model of somebody's own is theirs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from typing import Any

from ops.lock import UNLOCKED, blocks, normal, pinned
from ops.setup import MODEL_FILE, MODEL_SHA256, MODEL_WHEEL, REQUIREMENTS, ROOT

HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
TESTS_ONLY = {"triton"}


@dataclass(frozen=True)
class Part:
    """`served`: the product runs with it or gives it to browsers; otherwise only tests and checks do.
    `licence`: as its makers say it, for ops.supply.licences to read. `hashes`: (algorithm, hex) of its files."""

    kind: str  # python, browser, model
    name: str
    version: str
    licence: tuple[str, ...]
    served: bool
    hashes: tuple[tuple[str, str], ...] = ()
    needs: tuple[str, ...] = ()


class Incomplete(Exception):
    """Not all that is locked is installed, so nobody knows its licence; one line."""


def everything() -> list[Part]:
    return [*python(), *browser(), model()]


def python() -> Iterator[Part]:
    run, dev = pinned(REQUIREMENTS / "lock.txt"), pinned(REQUIREMENTS / "lock-dev.txt")
    texts = {**blocks((REQUIREMENTS / "lock.txt").read_text()), **blocks((REQUIREMENTS / "lock-dev.txt").read_text())}
    unlocked = {normal(found.name) for found in distributions() if UNLOCKED.match(normal(found.name))}
    for name in sorted({*run, *dev, *unlocked}):
        try:
            found = distribution(name)
        except PackageNotFoundError:
            raise Incomplete(f"{name} is locked but not installed here: run make setup-dev.") from None
        served = name in run or (name in unlocked and name not in TESTS_ONLY)
        hashes = tuple(("sha256", value) for value in HASH.findall(texts.get(name, "")))
        yield Part("python", name, found.version, _said(found), served, hashes, tuple(_needs(found)))


def _said(found: Distribution) -> tuple[str, ...]:
    """An expression where there is one, else the old field, else the classifiers: all of them count."""
    meta: Any = found.metadata
    if meta.get("License-Expression"):
        return (str(meta["License-Expression"]),)
    text = str(meta.get("License") or "").strip()
    if text and len(text) < 80 and "\n" not in text and text != "Dual License":
        return (text,)
    classifiers = [str(line).rpartition(" :: ")[2] for line in meta.get_all("Classifier") or [] if "License ::" in line]
    return tuple(classifiers)


def _needs(found: Distribution) -> Iterator[str]:
    from packaging.requirements import Requirement

    for line in found.requires or []:
        need = Requirement(line)
        if need.marker is None or need.marker.evaluate({"extra": ""}):
            yield normal(need.name)


def browser() -> Iterator[Part]:
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    for path, about in sorted(packages.items()):
        if not path:
            continue
        name = path.rpartition("node_modules/")[2]
        algorithm, _, value = about["integrity"].partition("-")
        hashes = ((algorithm, _hex(value)),)
        licence = (about["license"],) if "license" in about else ()
        yield Part(
            "browser", name, about["version"], licence, not about.get("dev"), hashes, (*about.get("dependencies", {}),)
        )


def _hex(base64: str) -> str:
    from base64 import b64decode

    return b64decode(base64).hex()


def model() -> Part:
    """Its licence is that of the model's card, which the package repeats."""
    version = MODEL_WHEEL.partition("==")[2]
    return Part("model", MODEL_FILE.rpartition("/")[2], version, ("Apache-2.0",), True, (("sha256", MODEL_SHA256),))
