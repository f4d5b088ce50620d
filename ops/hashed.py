"""`python -m ops.hashed REPORT`: the part of requirements/lock.txt that a report of pip's names, hashes included.

An image needs some of what is locked. pip holds a constraint's hashes against no list without any, so what a list leads
to is asked first (`pip install --dry-run --report`), and then installed from this. What torch brings along for its own
build is locked nowhere (requirements/torch.txt) and left out here; anything else that is missing is an error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ops.lock import UNLOCKED, blocks, normal
from ops.setup import REQUIREMENTS


def needed(report: str, lock: str) -> str:
    """Raises LookupError, which names a package that is not locked in the version of the report."""
    locked = blocks(lock)
    found = []
    for item in json.loads(report)["install"]:
        name, version = normal(item["metadata"]["name"]), item["metadata"]["version"]
        if UNLOCKED.match(name):
            continue
        if not locked.get(name, "").lower().replace("_", "-").startswith(f"{name}=={version}"):
            raise LookupError(f"{name}=={version} is not in requirements/lock.txt: run `make lock`")
        found.append(locked[name])
    return "".join(sorted(found))


def main() -> int:
    try:
        print(needed(Path(sys.argv[1]).read_text(), (REQUIREMENTS / "lock.txt").read_text()), end="")
    except LookupError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
