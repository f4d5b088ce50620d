"""`make bench`: every benchmark that needs no running product, one table after the other."""

from __future__ import annotations

import sys
from importlib import import_module

OFFLINE = ["bench.engine", "bench.scheduler", "bench.fairness", "bench.quality"]


def main() -> int:
    for name in OFFLINE:
        print(f"\n== {name} ==", flush=True)
        import_module(name).main()
    print("\nAgainst a running product: python -m bench.load --demo var/demo.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
