"""Dockerfile, docker-compose.yml, the proxy's configuration and .env.example: well-formed, hardened, and in step with
supervisord.conf and with each other. Nothing is started here."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from compose_spec import PyCompose

from chatapp.settings.base import ROOT as SETTINGS_ROOT
from engine.worker import _arguments
from ops import secret_files, valkey
from tests.conftest import ROOT
from tests.deployment import compose, proxy

PRODUCT = ("web", "recorder", "celery", "beat", "migrate")
ENGINES = ("engine", "engine-gpu")


@pytest.fixture(scope="module")
def file() -> dict[str, Any]:
    return compose.read(compose.NEEDED)


@pytest.fixture(scope="module")
def services(file: dict[str, Any]) -> dict[str, Any]:
    return dict(file["services"])


def seconds(text: str) -> int:
    assert text.endswith("s")
    return int(text[:-1])


# --- well-formed ----------------------------------------------------------------------------------------------------


def test_the_dockerfile_has_no_finding(hadolint: str) -> None:
    done = subprocess.run([hadolint, "--no-color", "Dockerfile"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_the_compose_file_keeps_to_the_specification(file: dict[str, Any]) -> None:
    read = PyCompose.from_json(json.dumps(file))
    read.validate()
    assert sorted(read.service_names()) == sorted(file["services"])


def test_the_compose_file_has_no_finding_that_a_guide_for_hardening_calls_high(compose_lint: str) -> None:
    command = [compose_lint, "check", "--format", "json", "docker-compose.yml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **compose.NEEDED})
    findings = json.loads(done.stdout)
    assert done.returncode == 0, findings
    # Digests are a site's own; a CPU limit would slow what the machine is there for; the proxy is meant to be public.
    rules = {(finding["rule_id"], finding["service"]) for finding in _findings(findings)}
    assert {rule for rule, _ in rules} <= {"CL-0019", "CL-0026", "CL-0005"}, rules
    assert {service for rule, service in rules if rule == "CL-0005"} <= {"proxy"}


def _findings(said: Any) -> list[dict[str, Any]]:
    if isinstance(said, dict):
        return (
            list(said["findings"]) if "findings" in said else [f for value in said.values() for f in _findings(value)]
        )
    return [finding for item in said for finding in _findings(item)] if isinstance(said, list) else []


# --- the same programs as on one machine ----------------------------------------------------------------------------


def supervised() -> dict[str, list[str]]:
    """Program -> the words behind `python`, of supervisord.conf."""
    conf = configparser.RawConfigParser()
    conf.read(ROOT / "supervisord.conf")
    found = {}
    for section in conf.sections():
        if section.startswith("program:"):
            words = shlex.split(conf[section]["command"])
            assert words[1:3] == ["-m", "ops.child"], "each ends with the supervisor"
            assert words[0] == words[3]
            found[section.removeprefix("program:")] = words[4:]
    return found


# What a container has in the place of the supervisor's variables.
INSIDE = {"%(ENV_OCTAVO_BIND)s": "0.0.0.0", "%(ENV_PORT)s": "8000", "%(ENV_OCTAVO_DATA)s": "/data"}


def test_compose_starts_the_same_programs_with_the_same_words(services: dict[str, Any]) -> None:
    expected = supervised()
    del expected["redis"]  # a server of its own, with the same settings: below
    assert set(expected) < set(services)
    for program, words in expected.items():
        for variable, value in INSIDE.items():
            words = [word.replace(variable, value) for word in words]
        assert services[program]["command"] == ["python", *words], program
    assert services["engine-gpu"]["command"] == services["engine"]["command"]


def test_the_images_start_what_compose_does(services: dict[str, Any]) -> None:
    commands = [json.loads(found) for found in re.findall(r"^CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.M)]
    assert commands == [services["web"]["command"], services["engine"]["command"], services["engine-gpu"]["command"]]


def test_backups_are_made_by_programs_of_the_servers_version(services: dict[str, Any]) -> None:
    client = re.search(r"postgresql-client-(\d+)", (ROOT / "Dockerfile").read_text())
    server = re.match(r"postgres:(\d+)", services["postgres"]["image"])
    assert client
    assert server
    assert int(client[1]) >= int(server[1])


def test_redis_is_as_careful_as_the_embedded_one() -> None:
    lines = (ROOT / "deploy" / "redis" / "octavo.conf").read_text().splitlines()
    found = dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))
    for name in ("appendonly", "appendfsync", "save", "maxmemory-policy", "databases", "daemonize"):
        assert found[name] == valkey.SETTINGS[name], name
    assert found["include"] == "/run/secrets/redis_auth"


# --- hardened -------------------------------------------------------------------------------------------------------


def test_every_service_is_read_only_without_capabilities_bounded_and_started_again(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "cap_add" not in service, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"], name
        assert service["pids_limit"], name
        assert service["restart"] == ("no" if name == "migrate" else "unless-stopped"), name
        assert any(place.startswith("/tmp:") for place in service["tmpfs"]), name
        assert all("size=" in place for place in service["tmpfs"]), name
        assert seconds(service["stop_grace_period"]) >= 20, name
        assert ("healthcheck" in service) is (name != "migrate"), name


def test_no_service_runs_as_root(services: dict[str, Any]) -> None:
    users = re.findall(r"^USER (.*)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert users == ["10001:10001"] * 3, "each of the three images that are run"
    for name in ("proxy", "redis", "postgres"):
        assert services[name]["user"] not in ("", "root", "0"), name


def test_only_the_proxy_has_ports_and_only_what_has_to_reaches_the_outside(file: dict[str, Any]) -> None:
    services, networks = file["services"], file["networks"]
    assert [name for name, service in services.items() if "ports" in service] == ["proxy"]
    outside = {name for name, network in networks.items() if not network.get("internal")}
    reach = {name for name, service in services.items() if outside & set(service["networks"])}
    assert reach == {"proxy", "web", "celery"}
    assert "back" not in services["proxy"]["networks"], "the proxy sees neither database nor Redis"


def test_secrets_come_as_files_that_the_helper_makes_and_nobody_gets_more_than_he_needs(
    file: dict[str, Any], tmp_path: Path
) -> None:
    secret_files.make(tmp_path)
    made = {path.name for path in tmp_path.iterdir()} | {secret_files.CERTIFICATE, secret_files.KEY}
    wanted = {Path(secret["file"]).name for secret in file["secrets"].values()}
    assert wanted == made
    given = {name: set(service.get("secrets", ())) for name, service in file["services"].items()}
    assert set().union(*given.values()) == set(file["secrets"])
    assert {name for name, held in given.items() if "postgres_password" in held} == {"postgres"}
    assert {name for name, held in given.items() if "tls_key" in held} == {"proxy"}
    for engine in ENGINES:
        assert given[engine] == {"redis_url", "metrics_token"}, "the engine never sees the database"
    for name, service in file["services"].items():
        for variable, value in service.get("environment", {}).items():
            if str(value).startswith("/run/secrets/"):
                assert Path(value).name in given[name], f"{name} has no {value} for {variable}"
            else:
                assert not re.search("password|secret|token", variable, re.I), f"{name}: {variable}"


def test_nothing_but_listed_folders_gets_into_an_image() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    allowed = {line.removeprefix("!").rstrip("/") for line in lines if line.startswith("!")}
    assert not allowed & {"secrets", ".env", "var", ".git", ".cache", "tests", "models"}
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.M)
    assert {word.rstrip("/") for words in copied for word in words.split()} == allowed


# --- in order -------------------------------------------------------------------------------------------------------


def test_what_needs_the_database_waits_for_the_migrations(services: dict[str, Any]) -> None:
    assert {other for service in services.values() for other in service.get("depends_on", ())} <= set(services)
    for name in PRODUCT:
        waits = services[name]["depends_on"]
        assert waits["postgres"]["condition"] == waits["redis"]["condition"] == "service_healthy", name
        if name != "migrate":
            assert waits["migrate"]["condition"] == "service_completed_successfully", name
    assert services["proxy"]["depends_on"]["web"]["condition"] == "service_healthy"


def test_each_has_the_time_to_end_that_it_takes(services: dict[str, Any]) -> None:
    grace = int(services["engine"]["environment"]["OCTAVO_WORKER_GRACE_S"])
    assert seconds(services["engine"]["stop_grace_period"]) >= grace + 10
    drain = re.search(r"worker_shutdown_timeout (\d+)s", proxy.TEMPLATE.read_text())
    assert drain
    assert seconds(services["proxy"]["stop_grace_period"]) > int(drain[1])
    conf = configparser.RawConfigParser()
    conf.read(ROOT / "supervisord.conf")
    for name in ("web", "recorder", "celery", "beat"):
        assert seconds(services[name]["stop_grace_period"]) >= int(conf[f"program:{name}"]["stopwaitsecs"]), name


def test_the_proxy_stores_what_the_product_does_and_lets_files_through(settings: Any) -> None:
    from chatapp.bodies import MOST_TIMES
    from chatapp.uploads import ADDRESS

    text = proxy.TEMPLATE.read_text()
    usual = re.search(r"^        client_max_body_size (\d+)m;", text, re.M)
    assert usual
    assert int(usual[1]) << 20 == MOST_TIMES * settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    places = re.search(r"location ~ (\S+) \{\n            client_max_body_size 0;", text)
    assert places
    for path in ("/v1/files", "/api/t/a-team/files", "/api/t/a-team/imports", "/v1/files/file-1", "/api/t/a/b/files"):
        assert bool(re.search(places[1], path)) is bool(ADDRESS.fullmatch(path)), path


def test_an_answer_may_take_longer_than_the_proxy_waits_for_anything_else(settings: Any) -> None:
    waits = [int(found) for found in re.findall(r"proxy_read_timeout (\d+)s", proxy.TEMPLATE.read_text())]
    assert max(waits) > settings.OCTAVO_ANSWER_TIMEOUT_S


# --- .env -----------------------------------------------------------------------------------------------------------


def test_env_example_explains_every_variable_of_the_compose_file_and_names_none_that_does_not_exist() -> None:
    text = (ROOT / ".env.example").read_text()
    named = set(re.findall(r"^#?([A-Z0-9_]+)=", text, re.M))
    asked = set(re.findall(r"\$\{(\w+)", compose.FILE.read_text()))
    assert asked <= named
    sources = [*(ROOT / "chatapp").rglob("*.py"), *(ROOT / "engine").rglob("*.py")]
    code = "\n".join(path.read_text() for path in sources)
    options = {f"OCTAVO_WORKER_{name.upper()}" for name in vars(_arguments([]))}
    for name in named - asked - options - {"COMPOSE_PROFILES"}:
        assert f'"{name}"' in code, f"nothing reads {name}"


def test_no_value_of_env_example_is_a_secret() -> None:
    for name, value in compose.env_file(ROOT / ".env.example").items():
        assert not re.search("PASSWORD|SECRET|TOKEN", name), name
        assert "@" not in value, name


def test_the_repository_keeps_secrets_and_data_out(tmp_path: Path) -> None:
    assert SETTINGS_ROOT == ROOT
    paths = ["secrets/secret_key", "secrets/tls.key", ".env", "models/m/config.json", "acme/x"]
    done = subprocess.run(["git", "check-ignore", *paths], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == paths
    done = subprocess.run(["git", "check-ignore", "engine/models/loader.py"], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == ""
