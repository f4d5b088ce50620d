"""Builds every kernel ahead of time, on any machine: `python -m kernels.triton.aot`.

For compute capabilities 8.0, 9.0 and 10.0, head_dim 64 and 128, bfloat16; prints what each takes of a multiprocessor,
and ends with status 1 where that is more than limits.toml allows, where a kernel is not in there or does not compile. A
module with kernels has a function `variants()` that gives a Variant, or its first four fields, for each thing to build.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.triton.record import E4M3, Variant

MODULES = ("cache", "rows", "sampling", "variants")
"""Modules that may have kernels; those that are not there are passed over."""
CAPABILITIES = (80, 90, 100)
POOL_FROM = 8
"""Fewer builds take less than processes to start."""
LIMITS = Path(__file__).with_name("limits.toml")


@dataclass(frozen=True)
class Figures:
    """What a program of a kernel takes: registers of a thread, bytes of shared memory, bytes a thread spills."""

    registers: int
    shared: int
    spills: int


def variants(module: str) -> list[Variant]:
    name = f"kernels.triton.{module}"
    if find_spec(name) is None:
        return []
    return [Variant(*one) for one in import_module(name).variants()]


def builds(variant: Variant, capability: int) -> bool:
    """Whether there is something to build: some tiles are other GPUs', eight-bit floats need capability 8.9."""
    if variant.capabilities and capability not in variant.capabilities:
        return False
    return capability >= 89 or E4M3 not in variant.signature.values()


def build(variant: Variant, capability: int) -> Figures:
    kernel, signature, constants, options, attributes, _ = variant
    if attributes is None:
        loose = {parameter.name for parameter in kernel.params if parameter.do_not_specialize}
        attributes = {
            (number,): [["tt.divisibility", 16]]
            for number, (name, kind) in enumerate(signature.items())
            if name not in loose and (kind.startswith("*") or kind in ("i32", "i64"))
        }
    compiled = triton.compile(
        ASTSource(kernel, signature, constants, attributes),
        target=GPUTarget("cuda", capability, 32),
        # As it is by default where this runs; said, because a release asks about it.
        options={"enable_fp_fusion": True, **options},
    )
    registers, spills = _usage(compiled.asm["cubin"])
    return Figures(registers, compiled.metadata.shared, spills)


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack, which is where registers are spilled to, as the tool in Triton's package says."""
    tool = triton.knobs.nvidia.cuobjdump.path
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", said)
    if found is None:
        raise RuntimeError(f"{tool} says nothing of registers, but: {said!r}")
    registers, stack, local = (int(number) for number in found.groups())
    return registers, stack + local


def describe(variant: Variant) -> str:
    """What tells a kernel's variants apart, short: the types of its pointers, and its constants."""
    kinds = dict.fromkeys(kind[1:] for kind in variant.signature.values() if kind.startswith("*"))
    missing = [name.removesuffix("_ptr") for name, value in variant.constants.items() if value is None]
    constants = [f"{name}={value}" for name, value in variant.constants.items() if name.isupper()]
    return " ".join([",".join(kinds), *constants, *(f"-{name}" for name in missing)])


def _one(module: str, number: int, capability: int) -> Figures | str:
    try:
        return build(variants(module)[number], capability)
    except Exception as error:  # Triton's own do not travel between processes
        return f"{type(error).__name__}: {error}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.triton.aot", description="Build every kernel.")
    parser.add_argument(
        "--capability", type=int, action="append", choices=CAPABILITIES, help="may be repeated; default: all"
    )
    parser.add_argument("--kernel", action="append", help="a kernel's name; may be repeated; default: all")
    parser.add_argument("--first", action="store_true", help="only the first variant of each kernel")
    parser.add_argument("--limits", type=Path, default=LIMITS, help="a file other than limits.toml")
    options = parser.parse_args(arguments)
    if triton.knobs.runtime.interpret:
        print("TRITON_INTERPRET is set, so that kernels are interpreted and none is built; unset it.", file=sys.stderr)
        return 2
    wanted = [
        (module, number, variant)
        for module in MODULES
        for number, variant in enumerate(variants(module))
        if not options.kernel or variant.kernel.__name__ in options.kernel
    ]
    if options.first:
        wanted = list({variant.kernel.__name__: (m, n, variant) for m, n, variant in reversed(wanted)}.values())
    if not wanted:
        print(f"no kernel is called {' or '.join(options.kernel)}.", file=sys.stderr)
        return 2
    try:
        limits = tomllib.loads(options.limits.read_text())
    except (OSError, ValueError) as error:
        print(f"--limits {options.limits} cannot be read: {error}", file=sys.stderr)
        return 2
    work = [
        (module, number, variant, capability)
        for module, number, variant in wanted
        for capability in options.capability or CAPABILITIES
        if builds(variant, capability)
    ]
    tasks = [(module, number, capability) for module, number, _, capability in work]
    if len(tasks) < POOL_FROM:
        figures = [_one(*task) for task in tasks]
    else:
        # In processes: a compilation holds the interpreter's lock; fresh, as torch's threads do not survive a fork.
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            figures = list(pool.map(_one, *zip(*tasks, strict=True)))
    width = max(len(variant.kernel.__name__) for _, _, variant, _ in work)
    print(f"{'kernel':{width}}  capability  registers  shared  spills  variant")
    over: list[str] = []
    for (_, _, variant, capability), got in zip(work, figures, strict=True):
        name = variant.kernel.__name__
        start = f"{name:{width}}  {capability / 10:10.1f}"
        if isinstance(got, str):
            print(f"{start}  does not compile            {describe(variant)}")
            over.append(f"{name} does not compile for {capability / 10:.1f}: {got}")
            continue
        print(f"{start}  {got.registers:9}  {got.shared:6}  {got.spills:6}  {describe(variant)}")
        over += _over(name, capability, got, limits.get(name))
    over = list(dict.fromkeys(over))
    for line in over:
        print(line)
    print(f"{len(work)} builds, {len(over)} complaints.")
    return 1 if over else 0


def _over(name: str, capability: int, got: Figures, limit: dict[str, Any] | None) -> list[str]:
    if limit is None:
        return [f"{name} has no limit; add one for it."]
    return [
        f"{name} takes {value} of {what} on {capability / 10:.1f}, more than its limit of {limit[what]}."
        for what, value in vars(got).items()
        if value > limit[what]
    ]


if __name__ == "__main__":
    raise SystemExit(main())
