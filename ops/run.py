"""`make run`: prepare the data folder, start all under the supervisor, say when it is ready, stop all on Ctrl-C.

Owns the supervisor process and the data folder's lock. Every way to fail ends in one line that says what to do.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import xmlrpc.client
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from ops import engines
from ops.child import die_with_parent
from ops.messages import compile_catalogues
from ops.setup import CACHE, MODEL_DIR, ROOT, SetupError, convert
from ops.supervision import (
    StartError,
    check_supervisor,
    ended,
    failed_program,
    start_site,
    start_supervisor,
    stop,
    wait_for_the_one_before,
)

READY_TIMEOUT_S = 300.0
REDIS_WAIT_S = 10.0
DEMO_SETTINGS = "chatapp.settings.local"
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FAILURES = {
    "migrate": "The database cannot be prepared (DATABASE_URL)",
    "collectstatic": "The pages' files cannot be collected",
    "demo": "The demo data cannot be made",
}
# `module.SomeError: ` at the start of a traceback's last paragraph.
EXCEPTION = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception|Configured|Warning): ")
# A unix socket's path has room for 107 bytes; the longest name that we put into the run folder needs 16 of them.
LONGEST_RUN_FOLDER = 90
MEMORY = Path("/dev/shm")  # noqa: S108  only its owner can read what is put there
COUNTS_NEED = 16 << 20


class Stopped(Exception):
    """The user or the system asked for an end."""


def check_port(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise StartError(f"OCTAVO_BIND={host}, port {port}, cannot be listened on: {error.strerror}.") from None
            raise StartError(
                f"Port {port} is taken ({error.strerror}). Stop what uses it, or take another: make run PORT={port + 1}"
            ) from None


@contextlib.contextmanager
def data_folder(path: Path) -> Iterator[None]:
    """Make the folder, readable by its owner only, and hold its lock while we serve from it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (path / "logs").mkdir(exist_ok=True)
        lock = (path / "run.lock").open("w")
    except OSError as error:
        raise StartError(f"The data folder {path} cannot be used: {error.strerror}.") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartError(
                f"Octavo already runs with the data folder {path}. Choose another: OCTAVO_DATA=…"
            ) from None
        yield


def run_folder(data: Path) -> Path:
    """Where the unix sockets lie: the data folder, or a short private stand-in where its path is too long for them."""
    if len(os.fsencode(data)) <= LONGEST_RUN_FOLDER:
        return data
    name = hashlib.sha256(os.fsencode(data)).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"octavo-{os.getuid()}-{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise StartError(f"{folder} belongs to someone else. Set OCTAVO_DATA to a shorter path.")
    return folder


def model_folder(wanted: str | None, variable: str = "OCTAVO_MODEL") -> str:
    """A model as the engine will load it: a GGUF file is converted once, a folder is taken as it is."""
    if not wanted:
        return str(MODEL_DIR)
    path = Path(wanted).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        folder = CACHE / "models" / f"{path.stem.lower()}-{hashlib.sha256(bytes(path.resolve())).hexdigest()[:8]}"
        try:
            convert(path.resolve(), folder)
        except SetupError as error:
            raise StartError(str(error).splitlines()[-1]) from None
        return str(folder)
    if path.is_dir():
        if not (path / "config.json").exists():
            raise StartError(f"{variable}={wanted} is no model folder: it has no config.json.")
        return str(path.resolve())
    if path.exists():
        raise StartError(f"{variable}={wanted} is neither a model folder nor a .gguf file.")
    if wanted.startswith(("/", ".", "~")) or wanted.endswith(".gguf"):
        raise StartError(f"{variable}={wanted} does not exist.")
    return wanted  # a hub id, which the loader fetches where the machine is online


def models() -> dict[str, str]:
    """What is served: name -> folder. Empty where OCTAVO_MODELS is not set, and OCTAVO_MODEL names the only one."""
    text = os.environ.get("OCTAVO_MODELS")
    if not text:
        return {}
    from engine.protocol import served_models

    try:
        return {name: model_folder(path, f"OCTAVO_MODELS: {name}") for name, path in served_models(text).items()}
    except ValueError as error:
        raise StartError(f"OCTAVO_MODELS: {error}.") from None


def check_identity(served: dict[str, str]) -> None:
    """The model is the one that OCTAVO_MODEL_SHA256 asks for. Each worker looks again; here it is said at once."""
    wanted = os.environ.get("OCTAVO_MODEL_SHA256")
    if not wanted:
        return
    if served:
        one = engines.variable(next(iter(served)))
        raise StartError(f"OCTAVO_MODEL_SHA256 is for a single model; with OCTAVO_MODELS: {one}='--model-sha256 …'.")
    from engine.models.errors import ModelError
    from engine.models.identity import check
    from engine.models.source import located

    try:
        check(located(os.environ.get("OCTAVO_MODEL") or MODEL_DIR), wanted)
    except ModelError as error:
        raise StartError(str(error)) from None


def environment(data: Path, run: Path, host: str, port: int, served: dict[str, str]) -> dict[str, str]:
    env = dict(os.environ)
    if file := env.get("REDIS_URL_FILE"):
        try:
            env["REDIS_URL"] = Path(file).read_text().strip()
        except OSError as error:
            raise StartError(f"REDIS_URL_FILE={file} cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise StartError(f"REDIS_URL_FILE={file} cannot be read: it is no text.") from None
        if not env["REDIS_URL"]:
            raise StartError(
                f"REDIS_URL_FILE={file} is empty. Write the address of your Redis into it, or leave the variable out."
            )
    embedded = not env.get("REDIS_URL")
    env.update(
        OCTAVO_DATA=str(data),
        OCTAVO_RUN=str(run),
        OCTAVO_PYTHON=sys.executable,
        OCTAVO_BIND=host,
        OCTAVO_EMBEDDED_REDIS="true" if embedded else "false",
        OCTAVO_MODEL=next(iter(served.values())) if served else model_folder(env.get("OCTAVO_MODEL")),
        PORT=str(port),
        DJANGO_SETTINGS_MODULE=env.get("DJANGO_SETTINGS_MODULE", DEMO_SETTINGS),
        PYTHONUNBUFFERED="1",
        USER=env.get("USER") or str(os.getuid()),
    )
    if env["DJANGO_SETTINGS_MODULE"] == DEMO_SETTINGS:
        env["OCTAVO_URL"] = f"http://127.0.0.1:{port}"  # others are served under names of their own
    env.setdefault("OCTAVO_WORKER_PROMPT_STORE", str(data / "prompts"))
    if env["DJANGO_SETTINGS_MODULE"] == DEMO_SETTINGS and not env.get("OCTAVO_METRICS_TOKEN_FILE"):
        env["OCTAVO_METRICS_TOKEN"] = env.get("OCTAVO_METRICS_TOKEN") or made_once(data / "metrics_token")
    if env.get("OCTAVO_METRICS_TOKEN") or env.get("OCTAVO_METRICS_TOKEN_FILE"):
        env.setdefault("OCTAVO_WORKER_METRICS_PORT", "0")
    if not served and env.get("OCTAVO_MODEL_NAME"):  # the web asks for it by this name, so that is what is served
        env.setdefault("OCTAVO_WORKER_SERVED_AS", env["OCTAVO_MODEL_NAME"])
    if served:
        env["OCTAVO_MODELS"] = ",".join(f"{name}={path}" for name, path in served.items())
    if embedded:
        env["REDIS_URL"] = f"unix://{run}/valkey.sock"
    return env


def made_once(path: Path) -> str:
    """A secret in a file for its owner only: what it holds, or a new one."""
    with contextlib.suppress(FileExistsError):
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(32))
    return path.read_text().strip()


def counting(env: dict[str, str], data: Path) -> dict[str, str]:
    """For the programs that serve: they write what they count into a folder, for the web's /metrics. It is emptied
    here, since pids come again, and a program would go on from another one's counts.

    In memory where there is room: the files are mapped, and on a disk that is full a program that counts something for
    the first time would be killed (SIGBUS), as would each that is started in its place."""
    name = hashlib.sha256(os.fsencode(data)).hexdigest()[:12]
    shared, folder = MEMORY / f"octavo-metrics-{os.getuid()}-{name}", data / "metrics"
    for old in (shared, folder):
        shutil.rmtree(old, ignore_errors=True)
    with contextlib.suppress(OSError):
        shared.mkdir(mode=0o700)
        if shutil.disk_usage(shared).free >= COUNTS_NEED:
            return {**env, "PROMETHEUS_MULTIPROC_DIR": str(shared)}
        shared.rmdir()
    folder.mkdir(mode=0o700, exist_ok=True)
    return {**env, "PROMETHEUS_MULTIPROC_DIR": str(folder)}


def prepare(env: dict[str, str]) -> None:
    """The database, the pages' files and the demo data, in one process: what takes longest is to load Django."""
    command = [sys.executable, "manage.py", "prepare"]
    result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    if result.returncode:
        steps = result.stdout.split()
        # Before the first one the settings are read, which name what is wrong by themselves.
        raise StartError(f"{FAILURES[steps[-1]]}: {reason(result.stderr)}" if steps else reason(result.stderr))


def reason(output: str) -> str:
    """The message of the exception that ended a command, in one line; without a traceback, the last line."""
    lines = output.strip().splitlines() or ["no message"]
    starts = [i for i, line in enumerate(lines) if EXCEPTION.match(line)]
    message = " ".join(line.strip() for line in lines[starts[-1] :]) if starts else lines[-1]
    return EXCEPTION.sub("", message)


def check_redis(url: str) -> None:
    """Somebody else's Redis must answer before anything waits for it."""
    import redis

    from engine.bus import RedisUnavailable, wait_for_redis

    try:
        wait_for_redis(url, REDIS_WAIT_S, lambda line: print(f"  {line}", flush=True))
    except (RedisUnavailable, redis.RedisError) as error:
        raise StartError(f"REDIS_URL: {error}") from None


def wait_until_ready(port: int, supervisor: subprocess.Popen[bytes], run: Path, data: Path) -> None:
    # Production settings answer to the hosts that they serve only.
    host = os.environ.get("OCTAVO_HOSTS", "").partition(",")[0].strip() or "127.0.0.1"
    question = urllib.request.Request(f"http://127.0.0.1:{port}/readyz", headers={"Host": host})
    deadline = time.monotonic() + READY_TIMEOUT_S
    failures: dict[str, int] = {}
    while time.monotonic() < deadline:
        check_supervisor(supervisor, data)
        try:
            with urllib.request.urlopen(question, timeout=2) as reply:  # noqa: S310
                # A model that is still being loaded leaves the site up, and is named.
                if reply.status == 200 and not json.load(reply).get("missing"):
                    return
        except (urllib.error.URLError, OSError):
            pass
        failure = failed_program(run, data)
        if failure:
            failures[failure] = failures.get(failure, 0) + 1
            if failures[failure] >= 3:
                raise StartError(f"Octavo could not start {failure}")
        time.sleep(0.25)
    raise StartError(f"Octavo was not ready within {READY_TIMEOUT_S:.0f} s; see {data / 'logs'}.")


def setup_link(env: dict[str, str]) -> str:
    """Where the first operator is made, while there is none; demo data brings its own."""
    if env["DJANGO_SETTINGS_MODULE"] == DEMO_SETTINGS:
        return ""
    command = [sys.executable, "manage.py", "setup", "--link"]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True).stdout.strip()


def address(env: dict[str, str]) -> str:
    """Where people find it, as the settings read it."""
    return env.get("OCTAVO_URL") or f"https://{env.get('OCTAVO_HOSTS', '').partition(',')[0].strip()}"


def announce(url: str, data: Path, seconds: float, link: str = "") -> None:
    lines = [f"Octavo is ready: {url} ({seconds:.0f} s). Ctrl-C stops it."]
    demo = data / "demo.json"
    if demo.exists():
        member = json.loads(demo.read_text())["tenants"][0]["member"]
        lines.append(f"  Log in as {member['email']} with the password {member['password']}")
        lines.append(f"  All demo accounts and API keys: {demo}")
    if link:
        lines.append(f"  Nobody runs this site yet. Make its first operator: {link}")
    print("\n".join(lines), flush=True)


def serve() -> int:
    host = os.environ.get("OCTAVO_BIND", "127.0.0.1")
    port_text = os.environ.get("PORT", "8000")
    if not port_text.isdigit() or not 0 < int(port_text) < 65536:
        raise StartError(f"PORT={port_text} is no port: a number from 1 to 65535 is needed.")
    port = int(port_text)
    data = (ROOT / os.environ.get("OCTAVO_DATA", "var")).resolve()
    if "%" in str(data):
        raise StartError(f"OCTAVO_DATA={data} has a % in it, which the supervisor would read as a variable.")
    started = time.monotonic()
    with data_folder(data):
        run = run_folder(data)
        wait_for_the_one_before(run)
        check_port(host, port)
        served = models()
        check_identity(served)
        env = environment(data, run, host, port, served)
        try:
            conf = engines.configuration(run, env, served)
        except ValueError as error:
            raise StartError(str(error)) from None
        if env["OCTAVO_EMBEDDED_REDIS"] == "false":
            check_redis(env["REDIS_URL"])
        print("* Starting the engine, preparing the database and the demo data", flush=True)
        if about := engines.about(served, env):
            print(f"  {about}", flush=True)
        counts = counting(env, data)
        supervisor = start_supervisor(counts, conf)
        try:
            compile_catalogues()
            prepare(env)
            print("* Starting the web server, the recorder and Celery", flush=True)
            check_supervisor(supervisor, data)
            try:
                start_site(run)
            except (OSError, xmlrpc.client.Error):  # it is ending just now
                raise StartError(ended(data)) from None
            wait_until_ready(port, supervisor, run, data)
            announce(address(env), data, time.monotonic() - started, setup_link(env))
            status = supervisor.wait()
            raise StartError(f"The supervisor ended with status {status}; see {data / 'logs' / 'supervisord.log'}.")
        finally:
            heed_no_more()
            print("\nStopping …", flush=True)
            stop(supervisor)
            shutil.rmtree(counts["PROMETHEUS_MULTIPROC_DIR"], ignore_errors=True)
            if run != data:
                shutil.rmtree(run, ignore_errors=True)


def on_signal(number: int, frame: FrameType | None) -> None:
    heed_no_more()
    raise Stopped


def heed_no_more() -> None:
    """We are ending already. A second signal (Ctrl-C again, the terminal that closes behind it) must not keep us from
    stopping what runs: it would go on, with nobody to hold the data folder for it."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def die_with_make() -> None:
    """Killed make must not leave the product behind; a shell that started us in the background may well end."""
    with contextlib.suppress(OSError):
        if Path(f"/proc/{os.getppid()}/comm").read_text().strip() == "make":
            die_with_parent()


def main() -> int:
    die_with_make()
    for number in STOPPING:
        signal.signal(number, on_signal)
    try:
        return serve()
    except StartError as error:
        print(error, file=sys.stderr)
        return 1
    except Stopped:
        return 0


if __name__ == "__main__":
    sys.exit(main())
