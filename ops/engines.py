"""An engine for each model of OCTAVO_MODELS, or several (OCTAVO_ENGINES): the supervisor's configuration with one
program an engine.

One engine is the plain supervisord.conf. With several, each has the program of the file as its pattern, with the model,
its name and its share of the cores as options. OCTAVO_ENGINE_<NAME> holds further options of a model's engines, as
`--device cuda:{n} --kv-memory-bytes 8000000000`, where {n} is the engine's number, from 0: how memory and GPUs are best
divided only the operator knows. Engines of one model share its prompt store, which is made for that, so that what one
has computed the other restores, and a store does not outlive its engine with texts of deleted teams in it.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from engine.protocol import model_name
from ops.setup import ROOT

CONF = ROOT / "supervisord.conf"
ENGINE = re.compile(r"^\[program:engine\]\n(?:.+\n)+", re.MULTILINE)
COMMAND = re.compile(r"^command=(.*)$", re.MULTILINE)
NUMBER = re.compile(r"[0-9]{1,6}")
MOST = 64


def each(env: dict[str, str]) -> int:
    """Engines of each model. Raises ValueError with the reason."""
    text = env.get("OCTAVO_ENGINES") or "1"
    if not NUMBER.fullmatch(text) or not 1 <= int(text) <= MOST:
        raise ValueError(f"OCTAVO_ENGINES={text} is no number of engines: 1 to {MOST} of each model can be started.")
    return int(text)


def program(name: str, number: int = 0, engines: int = 1) -> str:
    return f"engine-{name}" if engines == 1 else f"engine-{name}-{number + 1}"


def variable(name: str) -> str:
    """Where further options of this model's engines are found."""
    return "OCTAVO_ENGINE_" + re.sub(r"[^A-Z0-9]", "_", name.upper())


def cores_each(engines: int) -> int:
    """Products of a step use all threads at once and wait for the last: two engines on one core would halve both."""
    return max(1, len(os.sched_getaffinity(0)) // engines)


def options(name: str, path: str, env: dict[str, str], engines: int) -> list[str]:
    found = ["--model", path, "--served-as", name]
    if not env.get("OCTAVO_WORKER_THREADS"):
        found += ["--threads", str(cores_each(engines))]
    return found


def more_options(name: str, number: int, env: dict[str, str]) -> list[str]:
    given = env.get(variable(name), "")
    try:
        return shlex.split(given.replace("{n}", str(number)))
    except ValueError as error:
        raise ValueError(f"{variable(name)}={given} cannot be read as options: {error}.") from None


def configuration(run: Path, env: dict[str, str], served: dict[str, str]) -> Path:
    """The supervisor's configuration; written anew into the run folder where there are several engines, or names.

    Raises ValueError with the reason where the environment asks for what cannot be.
    """
    count = each(env)
    if not served and count == 1:
        return CONF
    alone = not served
    models = served or {model_name(env["OCTAVO_MODEL"]): env["OCTAVO_MODEL"]}
    text = CONF.read_text()
    found = ENGINE.search(text)
    assert found, "supervisord.conf has a program engine"
    port = env.get("OCTAVO_WORKER_METRICS_PORT", "")
    programs: list[str] = []
    for name, path in models.items():
        for number in range(count):
            served_as = (alone and env.get("OCTAVO_WORKER_SERVED_AS")) or name
            words = options(served_as, path, env, len(models) * count)
            if not alone:  # one store a model: each keeps its folder below a size of its own
                words += ["--prompt-store", str(Path(env["OCTAVO_WORKER_PROMPT_STORE"]) / name)]
            if port.isdigit() and int(port) > 0:
                words += ["--metrics-port", str(int(port) + len(programs))]
            words += more_options(name, number, env)
            programs.append(_program(found.group(), program(name, number, count), words))
    conf = run / "supervisord.conf"
    conf.write_text(text[: found.start()] + "\n".join(programs) + text[found.end() :])
    return conf


def _program(pattern: str, name: str, words: list[str]) -> str:
    more = " " + shlex.join(words).replace("%", "%%")
    one = pattern.replace("[program:engine]", f"[program:{name}]").replace("/logs/engine.log", f"/logs/{name}.log")
    command = COMMAND.search(one)
    assert command
    return one[: command.end()] + more + one[command.end() :]


def about(served: dict[str, str], env: dict[str, str]) -> str:
    """What whoever starts several should know of how the machine is divided; empty where there is one."""
    count = each(env)
    models = served or {model_name(env["OCTAVO_MODEL"]): env["OCTAVO_MODEL"]}
    if len(models) * count == 1:
        return ""
    engines = f", {count} engines each" if count > 1 else ""
    return (
        f"Models: {', '.join(models)}{engines}. On a CPU each engine gets {cores_each(len(models) * count)} of "
        f"{len(os.sched_getaffinity(0))} cores (OCTAVO_WORKER_THREADS) and a KV pool of its own; "
        f"{variable(next(iter(models)))}=… gives a model's engines further options."
    )
