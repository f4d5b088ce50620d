"""`python -m tests.chaos --kills 100 --seed 1`: a run with the real model, its table, and status 1 where there is a
fault. The same seed draws the same questions and the same events at the same distances."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path

from ops.setup import MODEL_DIR
from tests.chaos.running import Plan, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="signals of all kinds")
    parser.add_argument("--seed", type=int, default=None, help="not given: drawn, and said")
    parser.add_argument("--every", type=float, default=3.0, help="seconds from one to the next, on average")
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--webs", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0, help="of the answers' lengths")
    parser.add_argument("--model", default=str(MODEL_DIR))
    parser.add_argument("--only", nargs="*", default=[], help="the programs that are hit: engine, web, redis, …")
    parser.add_argument("--made", action="store_true", help="a small random model instead, quick where cores are few")
    parser.add_argument("--data", type=Path, default=None, help="an empty folder for data and logs")
    given = parser.parse_args()
    seed = secrets.randbits(31) if given.seed is None else given.seed
    plan = Plan(
        "" if given.made else given.model,
        seed,
        kills=given.kills,
        every_s=given.every,
        engines=given.engines,
        webs=given.webs,
        scale=given.scale,
        only=(*given.only,),
    )
    outcome = run(plan, given.data, lambda line: print(line, flush=True))
    print(outcome.table)
    return 1 if outcome.findings.faults else 0


if __name__ == "__main__":
    sys.exit(main())
