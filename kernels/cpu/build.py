"""Builds the C++ kernels once and keeps the library, keyed by the sources and the CPU's features."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shlex
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

    Raises BuildError when there is none and none can be built or kept. Safe to call from several processes at once:
    each builds into a file of its own, and the last rename wins.
    """
    flags = [*FLAGS, f"-DOCTAVO_LEVEL={LEVELS[level]}"]
    # Not the compiler: what was built once is used also where there is none any more.
    key = hashlib.sha256("\0".join([cpu_features(), *flags, *sources(name)]).encode())
    path = cache_folder() / f"octavo-{name}-{key.hexdigest()[:16]}.so"
    if path.exists():
        return path
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
    try:
        ctypes.CDLL(part)
    except OSError as error:
        built.unlink()
        raise BuildError(f"what {' '.join(compiler)} built of the CPU kernels cannot be loaded: {error}") from None
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
