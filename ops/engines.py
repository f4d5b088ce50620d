"""An engine for each model of OCTAVO_MODELS: the supervisor's configuration with one program a model.

One model is the plain supervisord.conf. With several, each engine has the program of the file as its pattern, with the
model, its name and its share of the cores as options. OCTAVO_ENGINE_<NAME> holds further options of one engine, as
`--device cuda:1 --kv-memory-bytes 8000000000`: how memory and GPUs are best divided only the operator knows.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from ops.setup import ROOT

CONF = ROOT / "supervisord.conf"
ENGINE = re.compile(r"^\[program:engine\]\n(?:.+\n)+", re.MULTILINE)
COMMAND = re.compile(r"^command=(.*)$", re.MULTILINE)


def program(name: str) -> str:
    return f"engine-{name}"


def variable(name: str) -> str:
    """Where further options of this model's engine are found."""
    return "OCTAVO_ENGINE_" + re.sub(r"[^A-Z0-9]", "_", name.upper())


def cores_each(engines: int) -> int:
    """Products of a step use all threads at once and wait for the last: two engines on one core would halve both."""
    return max(1, len(os.sched_getaffinity(0)) // engines)


def options(name: str, path: str, env: dict[str, str], engines: int) -> list[str]:
    found = ["--model", path, "--served-as", name]
    if not env.get("OCTAVO_WORKER_THREADS"):
        found += ["--threads", str(cores_each(engines))]
    # One store a model: each keeps its folder below a size of its own.
    found += ["--prompt-store", str(Path(env["OCTAVO_WORKER_PROMPT_STORE"]) / name)]
    return found + shlex.split(env.get(variable(name), ""))


def configuration(run: Path, env: dict[str, str], served: dict[str, str]) -> Path:
    """The supervisor's configuration; written anew into the run folder where there are several models or names."""
    if not served:
        return CONF
    text = CONF.read_text()
    found = ENGINE.search(text)
    assert found, "supervisord.conf has a program engine"
    programs = []
    for name, path in served.items():
        more = " " + shlex.join(options(name, path, env, len(served))).replace("%", "%%")
        one = found.group().replace("[program:engine]", f"[program:{program(name)}]")
        one = one.replace("/logs/engine.log", f"/logs/{program(name)}.log")
        command = COMMAND.search(one)
        assert command
        programs.append(one[: command.end()] + more + one[command.end() :])
    conf = run / "supervisord.conf"
    conf.write_text(text[: found.start()] + "\n".join(programs) + text[found.end() :])
    return conf


def about(served: dict[str, str]) -> str:
    """What whoever starts several should know of how the machine is divided."""
    return (
        f"Models: {', '.join(served)}. On a CPU each engine gets {cores_each(len(served))} of "
        f"{len(os.sched_getaffinity(0))} cores (OCTAVO_WORKER_THREADS) and a KV pool of its own; "
        f"{variable(next(iter(served)))}=… gives one engine further options."
    )
