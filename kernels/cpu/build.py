"""Builds the C++ kernels once and keeps the library, keyed by the sources and the CPU's features.

An image is built on one machine and runs on others, without a compiler: `python -m kernels.cpu.build --every-cpu`
builds each level for any CPU that has what the level needs, and there the best of them is used.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLAGS = ["-std=c++17", "-fPIC", "-shared", "-pthread", "-Wno-psabi"]


class BuildError(Exception):
    """The kernels could not be built; the message says why and what is lost."""


def cache_folder() -> Path:
    return Path(os.environ.get("OCTAVO_KERNEL_CACHE") or HERE.parents[1] / ".cache" / "kernels")


def cpu_features() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


LEVELS = {"portable": 0, "avx2": 1, "avx512": 2}
# Of x86-64, what each level is compiled for, and what /proc/cpuinfo must have for it (x86-64-v3, and v4 with what the
# level's products are made of). Elsewhere there is only the portable one, for the compiler's usual CPU.
AVX2 = ("avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16")
BASELINES: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "avx512": (["-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"], AVX512),
    "avx2": (["-march=x86-64-v3"], AVX2),
    "portable": ([], ()),
}

LIBRARIES = ("step", "ops")


def sources(name: str) -> list[str]:
    """The text of a library's .cpp and of all the headers that it includes."""
    found: dict[str, str] = {}
    waiting = [f"{name}.cpp"]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found[file] = (HERE / file).read_text()
            waiting += re.findall(r'^#include "(.+)"', found[file], re.MULTILINE)
    return [found[file] for file in sorted(found)]


def flags_of(level: str, march: list[str]) -> list[str]:
    # No contraction: whether a product and a sum become one instruction must not depend on how a loop was unrolled, or
    # results would change with the number of rows in a batch.
    return ["-O3", "-ffp-contract=off", *march, *FLAGS, f"-DOCTAVO_LEVEL={LEVELS[level]}"]


def library_path(level: str = "avx512", name: str = "step") -> Path:
    """The library: built for this CPU before, else one for every CPU that is here, else built now.

    level: the fastest inner loops that it may have; name: "step" is the decoder in one call, "ops" the single kernels.
    Raises BuildError when there is none and none can be built or kept. Safe to call from several processes at once:
    each builds into a file of its own, and the last rename wins.
    """
    flags = flags_of(level, ["-march=native"])
    # Not the compiler: what was built once is used also where there is none any more.
    key = hashlib.sha256("\0".join([cpu_features(), *flags, *sources(name)]).encode())
    path = cache_folder() / f"octavo-{name}-{key.hexdigest()[:16]}.so"
    if path.exists():
        return path
    return prebuilt(level, name) or build(name, flags, path)


def baseline_path(level: str, name: str) -> Path:
    """Where the library is that runs on every CPU with what this level needs."""
    flags = flags_of(level, BASELINES[level][0])
    key = hashlib.sha256("\0".join([platform.machine(), *flags, *sources(name)]).encode())
    return cache_folder() / f"octavo-{name}-{level}-{key.hexdigest()[:16]}.so"


def prebuilt(level: str, name: str) -> Path | None:
    """The best of those for every CPU that this one can run; None where there is none."""
    has = set(cpu_features().split())
    for found, (_, needs) in BASELINES.items():
        if LEVELS[found] <= LEVELS[level] and has.issuperset(needs):
            path = baseline_path(found, name)
            if path.exists():
                return path
    return None


def build_for_every_cpu() -> None:
    """Raises BuildError."""
    for level, (march, _) in BASELINES.items():
        if march and platform.machine() != "x86_64":
            continue
        for name in LIBRARIES:
            # Not tried out: the machine that builds need not have what this level needs.
            build(name, flags_of(level, march), baseline_path(level, name), try_out=False)


def build(name: str, flags: list[str], path: Path, try_out: bool = True) -> Path:
    """Raises BuildError."""
    compiler = find_compiler()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(suffix=".so", dir=path.parent)
    except OSError as error:
        raise BuildError(
            f"the CPU kernels cannot be kept in {path.parent} ({error.strerror}); set OCTAVO_KERNEL_CACHE to a folder "
            "that can be written to"
        ) from None
    os.close(handle)
    built = Path(part)
    result = subprocess.run([*compiler, *flags, "-o", part, str(HERE / f"{name}.cpp")], capture_output=True, text=True)
    if result.returncode:
        built.unlink()
        reason = (result.stderr.strip().splitlines() or [f"it ended with status {result.returncode}"])[0]
        raise BuildError(f"{' '.join(compiler)} could not build the CPU kernels: {reason}")
    if try_out:
        try:
            ctypes.CDLL(part)
        except OSError as error:
            built.unlink()
            raise BuildError(f"what {' '.join(compiler)} built of the CPU kernels cannot be loaded: {error}") from None
    else:
        built.chmod(0o755)  # who builds an image is not who runs it
    built.replace(path)
    return path


def find_compiler() -> list[str]:
    """The command of CXX, else g++ or clang++. Raises BuildError."""
    wanted = shlex.split(os.environ.get("CXX", ""))
    if wanted:
        if shutil.which(wanted[0]) is None:
            raise BuildError(f"the compiler {wanted[0]} is not there; correct CXX, or leave it out")
        return wanted
    for name in ("g++", "clang++"):
        if (found := shutil.which(name)) is not None:
            return [found]
    raise BuildError("no C++ compiler found; with g++ installed this CPU would decode several times faster")


def open_library(level: str, name: str) -> ctypes.CDLL:
    """Raises BuildError."""
    path = library_path(level, name)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"the CPU kernels in {path} cannot be loaded ({error}); delete that file") from None


def load(level: str = "avx512") -> ctypes.CDLL:
    library = open_library(level, "step")
    library.octavo_isa.restype = ctypes.c_char_p
    library.octavo_model_new.restype = ctypes.c_void_p
    library.octavo_model_new.argtypes = [ctypes.c_void_p]
    library.octavo_model_free.argtypes = [ctypes.c_void_p]
    library.octavo_model_step.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.octavo_model_times.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.octavo_memory_new.restype = ctypes.c_void_p
    library.octavo_memory_new.argtypes = [ctypes.c_int64]
    library.octavo_memory_free.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    sizes = [ctypes.c_int32, ctypes.c_int32]
    library.octavo_sample.argtypes = [ctypes.c_void_p] * 3 + sizes + [ctypes.c_void_p]
    library.octavo_gemm.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *sizes, ctypes.c_void_p]
    return library


def main() -> int:
    """`python -m kernels.cpu.build [--every-cpu]`: build now, so that the first start does not have to."""
    parser = argparse.ArgumentParser(prog="python -m kernels.cpu.build")
    parser.add_argument("--every-cpu", action="store_true", help="each level, for all CPUs that can run it")
    options = parser.parse_args()
    try:
        if options.every_cpu:
            build_for_every_cpu()
            return 0
        for name in LIBRARIES:
            library_path(name=name)
    except BuildError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
