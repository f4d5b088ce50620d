"""`make lock`: requirements/lock*.txt anew, from what run.txt, dev.txt and node.txt name: every package that they bring
along, in one version, with the SHA-256 of each of its files.

uv does the work, in an environment of its own; versions stay as they are unless the names ask for others, or
UPGRADE=1. What depends on the machine is left out: requirements/torch.txt says why. The packages of CPython 3.11.0 are
a superset of those of newer ones, so one list does for all.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

from ops.setup import CACHE, REQUIREMENTS, SetupError, call

UV = "uv==0.13.9"
LOCKS = {"lock.txt": "run.txt", "lock-dev.txt": "dev.txt", "lock-node.txt": "node.txt"}
# pip and setuptools: what an environment brings with it stays.
UNLOCKED = re.compile(r"^(?:torch$|triton$|nvidia-|cuda-|pip$|setuptools$)", re.IGNORECASE)
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)")


def blocks(text: str) -> dict[str, str]:
    """name==version -> its lines, hashes included."""
    found: dict[str, str] = {}
    for part in re.split(r"\n(?=[A-Za-z0-9])", text):
        pin = PIN.match(part)
        if pin:
            found[normal(pin[1])] = part.rstrip() + "\n"
    return found


def normal(name: str) -> str:
    """A package's name as the index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(lock: Path) -> dict[str, str]:
    """name -> version of all that a lock holds."""
    return {name: str(PIN.match(block)[2]) for name, block in blocks(lock.read_text()).items()}  # type: ignore[index]


def compiled(uv: Path, wanted: Path) -> dict[str, str]:
    """What the names in `wanted` lead to."""
    with tempfile.TemporaryDirectory() as folder:
        preferred, out = Path(folder) / "preferred.txt", Path(folder) / "out.txt"
        if not os.environ.get("UPGRADE"):
            locks = [REQUIREMENTS / name for name in LOCKS]
            preferred.write_text("".join(lock.read_text() for lock in locks if lock.exists()))
            out.write_text(preferred.read_text())
        command: list[str | Path] = [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
        command += ["--generate-hashes", "--python-version", "3.11.0", "--python-platform", "linux", "-o", out, wanted]
        call([*command], f"Locking {wanted.name}")
        return {name: text for name, text in blocks(out.read_text()).items() if not UNLOCKED.match(name)}


def main() -> int:
    environment = CACHE / "lock"
    try:
        call([sys.executable, "-m", "venv", environment], "Making an environment for uv")
        call([environment / "bin" / "pip", "install", "--quiet", UV], "Installing uv")
        uv = environment / "bin" / "uv"
        run, dev, node = (compiled(uv, REQUIREMENTS / wanted) for wanted in LOCKS.values())
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    changed = sorted(name for name, text in run.items() if dev.get(name) != text)
    if changed:
        print(f"The tests' packages want other versions of {', '.join(changed)} than the product's.", file=sys.stderr)
        return 1
    dev = {name: text for name, text in dev.items() if name not in run}
    for (lock, wanted), found in zip(LOCKS.items(), (run, dev, node), strict=True):
        beside = " beside lock.txt" if lock == "lock-dev.txt" else ""
        head = f"# Made by `make lock`: all that {wanted} brings along{beside}, but for what torch.txt is about.\n"
        (REQUIREMENTS / lock).write_text(head + "".join(found[name] for name in sorted(found)))
        print(f"requirements/{lock}: {len(found)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
