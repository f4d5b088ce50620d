"""What carrying tokens to sockets costs: the real web process, Redis, recorder and database behind a fake engine.

    python -m bench.transport --sockets 300 --seconds 30                 # the target's load
    python -m bench.transport --sockets 1000 --seconds 30 --way ws --way groups
    python -m bench.transport                                            # the short form, as part of `make bench`

`--way`: ws, sockets of /ws/v1; sse, streamed chat completions; groups, the customary design (bench.groups) for
comparison. Every answer runs at `--rate` tokens a second, all in step, while clients in processes of their own on the
same machine read them. Latency is from the step's end in the engine to the client's hand, for every token, on one
clock. Loss is looked for in every frame's range and text, and by a checksum of what was said; any fault is a failure.
Memory a socket is what the web process has grown by, idle and while it streams. CPU is in cores.
"""

from __future__ import annotations

import argparse
import configparser
import contextlib
import json
import shlex
import shutil
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen, run
from typing import Any

import psutil

from bench.children import ChildError, answers, ended, environment, family, started, wait_until
from bench.servers import cores, free_port
from bench.table import aligned, by_load
from ops.run import DEMO_SETTINGS
from ops.setup import ROOT

START_S = 60.0
RAMP_S = 180.0  # to open all sockets, and for all answers to start
MODEL = "bench"
WAYS = {"ws": "websocket", "sse": "HTTP, SSE", "groups": "channel layer"}


@dataclass(frozen=True)
class Load:
    sockets: int = 300
    seconds: float = 30.0
    way: str = "ws"
    rate: float = 20.0
    webs: int = 1
    clients: int = 1
    drop: int = 0

    @property
    def tokens(self) -> int:
        return max(1, round(self.seconds * self.rate))

    @property
    def name(self) -> str:
        return f"{self.sockets:,} {WAYS[self.way]}"


def program(name: str, **variables: str) -> list[str]:
    """A program's command as supervisord.conf has it."""
    conf = configparser.RawConfigParser()
    conf.read(ROOT / "supervisord.conf")
    named = {f"ENV_{key}": value for key, value in variables.items()}
    return shlex.split(conf[f"program:{name}"]["command"] % named)


class Site:
    """The processes of one run, each with its settings; all end with the body."""

    def __init__(self, folder: Path, stack: ExitStack, load: Load) -> None:
        self.folder = folder
        self.load = load
        self._stack = stack
        self.processes: dict[str, list[Popen[bytes]]] = {}
        self.settings = {
            "REDIS_URL": f"unix://{folder}/valkey.sock",
            "OCTAVO_DATA": str(folder),
            "OCTAVO_MODEL": MODEL,
            "DJANGO_SETTINGS_MODULE": DEMO_SETTINGS,
            "PYTHONUNBUFFERED": "1",
        }
        self.variables = {
            "OCTAVO_PYTHON": sys.executable,
            "OCTAVO_BIND": "127.0.0.1",
            "OCTAVO_DATA": str(folder),
            "OCTAVO_RUN": str(folder),
        }
        self.urls: list[str] = []

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.said"

    def start(self, name: str, command: Sequence[str], **more: str) -> Popen[bytes]:
        output = self._stack.enter_context(self.log(name).open("ab"))
        process = self._stack.enter_context(started(command, output, 10.0, **{**self.settings, **more}))
        self.processes.setdefault(name, []).append(process)
        return process

    def wait(self, name: str, ready: Any, timeout_s: float) -> None:
        """Until ready; ChildError when any process of that name ends before."""
        for process in self.processes[name]:
            wait_until(ready, process, self.log(name), timeout_s)

    def manage(self, *arguments: str) -> None:
        command = [sys.executable, "manage.py", *arguments]
        result = run(command, cwd=ROOT, env=environment(**self.settings), capture_output=True, text=True)
        if result.returncode:
            raise ChildError(f"manage.py {arguments[0]}: {result.stderr.strip().splitlines()[-1]}")

    def open(self) -> list[str]:
        """Start what serves; the keys that may ask."""
        self.start("redis", program("redis", **self.variables))
        self.wait("redis", (self.folder / "valkey.sock").exists, START_S)
        groups = self.load.way == "groups"
        keys = ["none"]
        if not groups:
            self.manage("migrate", "--noinput", "--verbosity", "0")
            self.manage("demo")
            keys = [tenant["api_key"] for tenant in json.loads((self.folder / "demo.json").read_text())["tenants"]]
            self.start("recorder", program("recorder", **self.variables))
        self.start("engine", self._engine())
        for _ in range(self.load.webs):
            port = str(free_port())
            self.urls.append(f"http://127.0.0.1:{port}")
            command = program("web", **self.variables, PORT=port)
            if groups:
                command[-1] = "bench.groups:application"
            self.start("web", command)
        for url in self.urls:
            self.wait("web", lambda url=url: answers(f"{url}/" if groups else f"{url}/readyz"), START_S)
        return keys

    def _engine(self) -> list[str]:
        pace = ["--tokens", str(self.load.tokens), "--rate", str(self.load.rate)]
        if self.load.way == "groups":
            return [sys.executable, "-m", "bench.groups", str(self.folder), *pace]
        more = ["--capacity", str(self.load.sockets)]
        return [sys.executable, "-m", "bench.fake_engine", str(self.folder), *pace, *more]

    def listen(self, keys: Sequence[str]) -> list[int]:
        """Start the clients; the numbers of their first sockets."""
        load, numbers = self.load, []
        for client in range(load.clients):
            first, after = (load.sockets * n // load.clients for n in (client, client + 1))
            options = {
                "--number": first,
                "--sockets": after - first,
                "--tokens": load.tokens,
                "--way": "sse" if load.way == "sse" else "ws",
                "--drop": load.drop,
            }
            said = [word for name, value in options.items() for word in (name, str(value))]
            where = ["--urls", *self.urls, "--keys", *keys]
            self.start("clients", [sys.executable, "-m", "bench.listeners", str(self.folder), *said, *where])
            numbers.append(first)
        return numbers

    def all_have(self, names: Sequence[str], timeout_s: float) -> None:
        self.wait("clients", lambda: all((self.folder / name).exists() for name in names), timeout_s)

    def cpu(self) -> dict[str, float]:
        """Seconds that each kind of process has had."""
        found: dict[str, float] = {}
        for name, processes in self.processes.items():
            for member in (member for process in processes for member in family(process)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = member.cpu_times()
                    found[name] = found.get(name, 0.0) + times.user + times.system
        return found

    @staticmethod
    def machine() -> float:
        """Seconds that the machine's cores have worked, for whomever."""
        times = psutil.cpu_times()
        return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))

    def memory(self) -> int:
        """Of the web processes, in bytes."""
        members = (member for process in self.processes["web"] for member in family(process))
        return sum(int(member.memory_info().rss) for member in members)


@contextlib.contextmanager
def site(load: Load) -> Iterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="octavo-bench-"))
    try:
        with ExitStack() as stack:
            yield Site(folder, stack, load)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def figures_of(
    load: Load, heard: list[dict[str, Any]], late_us: array[int], engine: dict[str, Any]
) -> dict[str, float]:
    """What a run comes to, and under "faults" how many answers were not what was said."""
    answers = [answer for one in heard for answer in one["answers"]]
    tokens, frames = (sum(answer[name] for answer in answers) for name in ("tokens", "frames"))
    faults = sum(bool(faults_of(answer, engine["said"])) for answer in answers)
    ordered = sorted(late_us)
    seconds = engine["seconds"]

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1000 if ordered else float("nan")

    return {
        "tokens written": float(load.sockets * load.tokens),
        "tokens that came": float(tokens),
        "answers at fault": float(faults + load.sockets - len(answers)),
        "write to client p50, ms": at(0.5),
        "write to client p99, ms": at(0.99),
        "write to client most, ms": at(1.0),
        "tokens a second": tokens / seconds,
        "frames a second": frames / seconds,
        "tokens a frame": tokens / frames if frames else float("nan"),
        "pipelines a step": engine.get("round trips", float("nan")) / engine["steps"],
        "function calls a step": engine.get("calls", float("nan")) / engine["steps"],
        "late steps": float(engine["late steps"]),
    }


def faults_of(answer: dict[str, Any], said: dict[str, int]) -> list[str]:
    """What is wrong with an answer, in words."""
    faults = list(answer["problems"])
    if said.get(answer["id"]) != answer["crc"]:
        faults.append("its text is not what was said" if answer["id"] in said else "nobody has said it")
    return faults


def measure(load: Load) -> tuple[dict[str, float], list[str]]:
    """Figures, and faults in words. Raises ChildError where something does not start."""
    with site(load) as running:
        keys = running.open()
        bare = running.memory()
        numbers = running.listen(keys)
        running.all_have([f"open-{number}" for number in numbers], RAMP_S)
        idle = running.memory()
        (running.folder / "ask").touch()
        running.all_have([f"asked-{number}" for number in numbers], RAMP_S)
        asked = running.memory()
        before, began, all_before = running.cpu(), time.monotonic(), running.machine()
        (running.folder / "go").touch()
        time.sleep(load.seconds * 0.9)
        spent, wall, streaming = running.cpu(), time.monotonic() - began, running.memory()
        others = running.machine() - all_before - sum(spent.values()) + sum(before.values())
        running.all_have([f"heard-{number}.json" for number in numbers], load.seconds + 180)
        running.wait("engine", (running.folder / "engine.json").exists, 30)
        heard = [json.loads((running.folder / f"heard-{number}.json").read_text()) for number in numbers]
        late: array[int] = array("q")
        for number in numbers:
            late.frombytes((running.folder / f"heard-{number}.us").read_bytes())
        engine = json.loads((running.folder / "engine.json").read_text())
    figures = figures_of(load, heard, late, engine)
    for name in spent:
        figures[f"CPU of {name}, cores"] = (spent[name] - before.get(name, 0.0)) / wall
    figures["CPU of all others, cores"] = others / wall
    figures["web, MiB before"] = bare / 2**20
    figures["KiB a socket, idle"] = (idle - bare) / 1024 / load.sockets
    figures["KiB a socket, answer started"] = (asked - bare) / 1024 / load.sockets
    figures["KiB a socket, streaming"] = (streaming - bare) / 1024 / load.sockets
    answers = [answer for one in heard for answer in one["answers"]]
    return figures, sorted({fault for answer in answers for fault in faults_of(answer, engine["said"])})


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.transport", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sockets", type=int, action="append", help="may be repeated; default: 300 and 1,000")
    parser.add_argument("--way", choices=list(WAYS), action="append", help="may be repeated; default: all")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=20.0, help="tokens a second of each answer")
    parser.add_argument("--webs", type=int, default=1, help="web processes")
    parser.add_argument("--clients", type=int, help="client processes; default: one for each 500 sockets")
    parser.add_argument("--drop", type=int, default=0, help="socket 0's client throws it away: a test of the check")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    args = parser.parse_args(argv)
    columns: dict[str, dict[str, float]] = {}
    faulty = False
    for sockets in args.sockets or [300, 1000]:
        for way in args.way or WAYS:
            if not args.way and way != "ws" and sockets > 300:
                continue  # the short form
            clients = args.clients or -(-sockets // 500)
            load = Load(sockets, args.seconds, way, args.rate, args.webs, clients, args.drop)
            print(
                f"* {load.name}, {load.seconds:g} s at {load.rate:g} tokens a second each, {cores()} cores", flush=True
            )
            try:
                figures, faults = measure(load)
            except ChildError as error:
                print(f"  could not be measured: {error}", flush=True)
                faulty = True
                continue
            columns[load.name] = figures
            for fault in faults[:5]:
                print(f"  fault: {fault}", flush=True)
            faulty |= way != "groups" and bool(figures["answers at fault"])
    if columns:
        print("\n" + aligned(by_load(columns)))
    if args.json:
        args.json.write_text(json.dumps(columns))
    return 1 if faulty else 0


if __name__ == "__main__":
    ended(main)
