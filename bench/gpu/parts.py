"""One part in a process of its own: `python -m bench.gpu.parts PART …`, started by `python -m bench.gpu`.

An illegal access on a GPU ends all work of its process; so no part can take another with it.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path

from bench.gpu.report import Report, one_line

# Module and function of each part, in the order in which they are run, and the seconds that each may take.
PARTS: dict[str, tuple[str, str, float]] = {
    "checks": ("bench.gpu.checks", "run", 120.0),
    "decode": ("bench.gpu.attention", "decode", 90.0),
    "prefix": ("bench.gpu.attention", "prefix", 40.0),
    "prefill": ("bench.gpu.attention", "prefill", 60.0),
    "step": ("bench.gpu.step", "run", 80.0),
    "workload": ("bench.gpu.workload", "run", 80.0),
}
SPARE_S = 5.0
"""A part stops by itself so much before its end."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--device", required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    args = parser.parse_args(argv)
    report = Report(args.part, args.rows, args.seconds - SPARE_S)
    if args.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
    try:
        import torch

        from bench.gpu.sizes import FULL, MINIATURE

        module, function, _ = PARTS[args.part]
        device = torch.device("cuda", torch.cuda.current_device()) if args.device == "cuda" else torch.device("cpu")
        run = getattr(import_module(module), function)
        run(report, FULL if args.device == "cuda" else MINIATURE, device, args.seed)
    except Exception as error:
        report.row("the whole part", error=one_line(error), ok=False if args.part == "checks" else None)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
