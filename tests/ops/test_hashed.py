"""An image installs what its list leads to by the lock's hashes, and nothing that is not locked."""

from __future__ import annotations

import json
import re

import pytest

from ops.hashed import needed
from ops.lock import pinned
from ops.setup import REQUIREMENTS

LOCK = REQUIREMENTS / "lock.txt"


def report(**versions: str) -> str:
    return json.dumps({"install": [{"metadata": {"name": n, "version": v}} for n, v in versions.items()]})


def test_the_part_of_the_lock_comes_with_its_hashes_whatever_the_name_is_spelled_like() -> None:
    versions = pinned(LOCK)
    found = needed(report(Django=versions["django"], uuid_utils=versions["uuid-utils"]), LOCK.read_text())
    assert re.findall(r"^(\S+)==(\S+)", found, re.M) == [
        ("django", versions["django"]), ("uuid-utils", versions["uuid-utils"]),
    ]  # fmt: skip
    assert found.count("--hash=sha256:") > 10


def test_what_torch_brings_for_its_build_is_left_out_and_anything_else_has_to_be_locked() -> None:
    assert needed(report(torch="2.13.0", triton="3.9.0", nvidia_cublas="13"), LOCK.read_text()) == ""
    for name, version in (("django", "1.0"), ("unheard-of", "1.0")):
        with pytest.raises(LookupError, match=f"{name}==1.0 is not in requirements/lock.txt"):
            needed(report(**{name: version}), LOCK.read_text())
