"""Builds the C++ kernels once and keeps the library, keyed by the sources, the compiler and the CPU's features."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# No contraction: whether a product and a sum become one instruction must not depend on how a loop was unrolled, or
# results would change with the number of rows in a batch.
FLAGS = ["-O3", "-ffp-contract=off", "-march=native", "-std=c++17", "-fPIC", "-shared", "-pthread", "-Wno-psabi"]


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


def library_path(level: str = "avx512", name: str = "step") -> Path:
    """The built library; builds it when it is not there yet. `level`: the fastest inner loops that it may have.

    name: "step" is the decoder in one call, "ops" the single kernels.

    Raises BuildError when there is no compiler or it fails. Safe to call from several processes at once: each builds
    into a file of its own, and the last rename wins.
    """
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if compiler is None:
        raise BuildError("no C++ compiler found; install g++ to make decoding on this CPU several times faster")
    flags = [*FLAGS, f"-DOCTAVO_LEVEL={LEVELS[level]}"]
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    key = hashlib.sha256("\0".join([version, cpu_features(), *flags, *sources(name)]).encode())
    path = cache_folder() / f"octavo-{name}-{key.hexdigest()[:16]}.so"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(handle)
    command = [compiler, *flags, "-o", part, str(HERE / f"{name}.cpp")]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        Path(part).unlink()
        raise BuildError(f"{compiler} could not build the CPU kernels: {result.stderr.strip().splitlines()[:1]}")
    Path(part).replace(path)
    return path


def load(level: str = "avx512") -> ctypes.CDLL:
    library = ctypes.CDLL(str(library_path(level)))
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
    """`python -m kernels.cpu.build`: build now, so that the first start does not have to."""
    try:
        for name in LIBRARIES:
            library_path(name=name)
    except BuildError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
