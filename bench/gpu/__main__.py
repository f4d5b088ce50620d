"""Check every kernel of the GPU path and measure it, in less than 8 minutes, without a download.

    python -m bench.gpu [--json PATH] [--only checks --only step] [--seed 1] [--device cpu]

- checks: every kernel against float64, on random numbers, with what it must not use or leave unwritten poisoned;
- decode, prefix, prefill: attention against the copy bandwidth measured in the same run, and in FLOP/s; peers beside;
- step: a decode step of an 8B model with random weights against the bytes that it must read, and the host's share;
- workload: nano-vllm's requests through the engine, with Qwen3-0.6B's shape and random weights.

Every part has a process and a limit of time of its own; one that fails or is not done is a row, and the others go on.
The table and the targets come last. The status is 1 if a check failed or a part did not end well. Needs torch, triton
and numpy; step and workload msgspec and structlog too. `--device cpu` tries all of it in miniature where there is no
GPU, kernels through Triton's interpreter (that of Triton 3.6 wants a numpy below 2.5): its figures mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.gpu.parts import PARTS
from bench.gpu.report import Row, as_json, read, table, target_table
from ops.child import die_with_parent
from ops.setup import ROOT

WHOLE_S = 470.0
STOP_S = 10.0
"""A part that is asked to end gets so long."""


def problem(device: str) -> str | None:
    """What keeps all of it from running, in one line."""
    try:
        import torch
        import triton  # noqa: F401  only whether it is there
    except ImportError as error:
        return f"{error.name} is not installed; pip install torch triton numpy."
    if device == "cuda" and not torch.cuda.is_available():
        return (
            "There is no CUDA GPU here; --device cpu tries the code in miniature, without figures that mean anything."
        )
    return None


def about(device: str, seed: int) -> dict[str, str]:
    """What the figures were measured on."""
    import torch

    found = {"python": platform.python_version(), "seed": str(seed)}
    for name in ("torch", "triton", "numpy"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    found["device"] = torch.cuda.get_device_name() if device == "cuda" else "cpu, in miniature"
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, check=True)
        found["commit"] = said.stdout.decode().strip()
    return found


def run_part(part: str, device: str, seed: int, seconds: float) -> list[Row]:
    """Its rows, and one more if it did not end by itself, or badly."""
    with tempfile.TemporaryDirectory(prefix="octavo-gpu-") as folder:
        path = Path(folder) / "rows"
        arguments = ["--device", device, "--rows", str(path), "--seconds", f"{seconds:.1f}", "--seed", str(seed)]
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.gpu.parts", part, *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        said = ""
        try:
            status = process.wait(seconds)
            if status < 0:
                said = f"it ended by signal {-status}"
        except subprocess.TimeoutExpired:
            said = f"it took longer than {seconds:.0f} s"
        finally:
            end(process)
        rows = read(path)
    if said or not rows:
        rows.append(
            Row(part, "the whole part", error=said or "it gave no figure", ok=False if part == "checks" else None)
        )
    return rows


def end(process: subprocess.Popen[bytes]) -> None:
    """End it and what it started; it leads its own session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
            if number == signal.SIGKILL:
                return


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write rows and targets here as well")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="may be repeated")
    parser.add_argument("--seed", type=int, help="of all random numbers; another one each time where none is given")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    args = parser.parse_args(argv)
    if args.json and not args.json.parent.is_dir():
        parser.error(f"--json {args.json}: there is no folder {args.json.parent}")
    if said := problem(args.device):
        print(said, file=sys.stderr)
        return 1
    seed = time.time_ns() % 1_000_000 if args.seed is None else args.seed
    found = about(args.device, seed)
    print(", ".join(f"{name} {value}" for name, value in found.items()), flush=True)
    started = time.monotonic()
    rows: list[Row] = []
    for part, (_, _, limit) in PARTS.items():
        if args.only and part not in args.only:
            continue
        left = WHOLE_S - (time.monotonic() - started)
        print(f"\n== {part} ==", flush=True)
        if left < STOP_S:
            rows.append(Row(part, "the whole part", error="the time was up before it", ok=part != "checks" and None))
            continue
        rows += run_part(part, args.device, seed, min(limit, left))
        if args.json:  # whatever ends the rest, this is known
            args.json.write_text(as_json(rows, found))
    print("\n" + table(rows))
    print("\n" + target_table(rows))
    if args.device == "cpu":
        print("\nIn miniature, on a CPU: neither figures nor verdicts mean anything.")
    checks = [row.ok for row in rows if row.ok is not None]
    failed = [row for row in rows if row.ok is False or row.error]
    print(f"\n{checks.count(True)} of {len(checks)} checks passed; {len(failed)} rows without what they were to give;")
    print(f"{time.monotonic() - started:.0f} s in all.")
    return 1 if failed else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)
