"""A deployment as docker-compose.yml describes it, as processes: real PostgreSQL, Valkey and nginx, TLS, production
settings. From an empty database to a chat, a lost web process, and an end in order."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from octavo_client import Octavo

from ops import secret_files
from tests.deployment.site import HOST, Site
from tests.metrics.conftest import samples
from tests.stack import wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PASSWORD = "correct horse battery"
EMAIL = "me@example.org"


@pytest.fixture(scope="module")
def site(model_path: str, nginx: str) -> Iterator[Site]:
    from tests.postgresql.server import binaries

    if binaries() is None:
        pytest.skip("there is no PostgreSQL on this machine")
    found = Site(model_path, nginx)
    try:
        found.start()
        yield found
    finally:
        found.kill()


@pytest.fixture(scope="module")
def trust(site: Site) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(site.folder / "secrets" / secret_files.CERTIFICATE))


@pytest.fixture
def browser(site: Site, trust: ssl.SSLContext) -> Iterator[httpx.Client]:
    # Who writes this himself must not be taken for somebody else.
    spoofed = {"X-Forwarded-For": "203.0.113.66", "X-Forwarded-Host": "evil.example", "Forwarded": "for=203.0.113.66"}
    with httpx.Client(base_url=site.url, verify=trust, follow_redirects=True, headers=spoofed, timeout=60) as client:
        yield client


def post(client: httpx.Client, path: str, **form: str) -> httpx.Response:
    token = {"csrfmiddlewaretoken": client.cookies["__Host-csrf"]}
    return client.post(path, data={**form, **token}, headers={"Referer": f"{client.base_url}{path}"})


@pytest.fixture(scope="module")
def key(site: Site, trust: ssl.SSLContext) -> str:
    """The first operator by the link in a web process's log, the first team, and a key of it."""
    logs = [site.folder / "logs" / f"web-{number}.log" for number in range(2)]
    found = wait_for(
        lambda: next(
            filter(None, (re.search(r"https://\S+/setup\?token=[0-9a-f]+", log.read_text()) for log in logs)), None
        )
    )
    assert found[0].startswith(f"{site.url}/setup")
    with httpx.Client(base_url=site.url, verify=trust, follow_redirects=True, timeout=60) as client:
        assert client.get("/").url.path == "/setup"
        assert client.get(found[0]).status_code == 200
        form = {"email": EMAIL, "password": PASSWORD, "again": PASSWORD, "site_name": "Atelier", "action": "save"}
        team = {"tenant_name": "Studio", "tenant_slug": "studio", "owner_email": "", "smtp_url": "", "mail_from": ""}
        done = post(client, "/setup", token=found[0].partition("token=")[2], **form, **team)
        assert (done.status_code, done.url.path) == (200, "/admin/checklist/"), done.text[:2000]
        headers = {"X-CSRFToken": client.cookies["__Host-csrf"], "Referer": site.url}
        made = client.post("/api/t/studio/keys", json={"name": "A key", "scopes": ["chat"]}, headers=headers)
        assert made.status_code == 201, made.text
        return str(next(value for value in made.json().values() if str(value).startswith("octv_")))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def question(max_tokens: int, **more: object) -> dict[str, object]:
    return {
        "model": "default", "messages": [{"role": "user", "content": "Count from one to a hundred."}],
        "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more,
    }  # fmt: skip


def test_every_health_check_succeeds(site: Site) -> None:
    for service in site.running:
        done = service.healthy()
        assert done.returncode == 0, f"{service.name}: {done.stdout}{done.stderr}"


def test_the_first_operator_logs_in_over_tls_and_only_there(site: Site, key: str, browser: httpx.Client) -> None:
    plain = httpx.get(f"http://{HOST}:{site.http}/t/studio/?a=b")
    assert (plain.status_code, plain.headers["Location"]) == (308, f"https://{HOST}/t/studio/?a=b")
    page = browser.get("/accounts/login/")
    assert page.headers["Strict-Transport-Security"].startswith("max-age=31536000")
    assert "nginx/" not in page.headers.get("Server", "")
    cookie = next(cookie for cookie in browser.cookies.jar if cookie.name == "__Host-csrf")
    assert cookie.secure
    done = post(browser, "/accounts/login/", login=EMAIL, password=PASSWORD)
    assert (done.status_code, done.url.path) == (200, "/t/studio/")
    style = re.search(r'href="(/static/\S+\.css)"', done.text)
    assert style
    assert browser.get(style[1]).headers["Content-Type"].startswith("text/css")
    assert browser.get("/setup").status_code == 404


def test_whoever_comes_is_known_by_the_address_that_the_proxy_saw(site: Site, key: str, browser: httpx.Client) -> None:
    browser.get("/accounts/login/")
    post(browser, "/accounts/login/", login=EMAIL, password=PASSWORD)
    addresses = {str(address) for (address,) in site.database("SELECT DISTINCT address FROM audit_auditentry")}
    assert addresses <= {"127.0.0.1", "None"}
    assert "127.0.0.1" in addresses
    sessions = {str(ip) for (ip,) in site.database("SELECT DISTINCT ip FROM usersessions_usersession")}
    assert sessions == {"127.0.0.1"}


def test_the_database_keeps_teams_apart_from_a_role_that_is_no_superuser(site: Site, key: str) -> None:
    role = site.database(
        "SELECT rolsuper, rolbypassrls, rolcreatedb, rolcreaterole FROM pg_roles WHERE rolname = 'octavo'"
    )
    assert role == [(False, False, False, False)]
    assert site.database("SELECT count(*) > 10 FROM pg_policies") == [(True,)]
    assert "superuser" not in site.manage("check", "--database", "default")


def test_a_stream_comes_through_the_proxy_word_by_word(site: Site, key: str, browser: httpx.Client) -> None:
    running = redis.Redis.from_url((site.folder / "secrets" / "redis_url").read_text(), protocol=2)
    with browser.stream("POST", "/v1/chat/completions", json=question(120, stream=True), headers=bearer(key)) as reply:
        assert reply.status_code == 200, reply.read()
        parts = reply.iter_raw()
        said = b""
        while b'"content":"' not in said.replace(b'"content":""', b"").replace(b" ", b""):
            said += next(parts)
        assert b"[DONE]" not in said
        held: Any = running.keys("octavo:held:*")
        assert any(running.scard(name) for name in held), "the engine still writes the rest"
        rest = list(parts)
    assert len(rest) > 20, "in many parts, as they were written"
    assert (said + b"".join(rest)).strip().endswith(b"data: [DONE]")
    running.close()


def test_a_websocket_chats_through_the_proxy_and_what_was_said_is_recorded(
    site: Site, key: str, trust: ssl.SSLContext
) -> None:
    import websockets.sync.client

    with websockets.sync.client.connect(
        f"{site.url.replace('https', 'wss')}/ws/v1", ssl=trust, additional_headers=bearer(key)
    ) as socket:
        assert json.loads(socket.recv(20))["type"] == "session.created"
        socket.send(json.dumps({"type": "response.create", "input": "Say hello.", "params": {"max_tokens": 12}}))
        frames = []
        while not frames or frames[-1]["type"] not in (
            "response.completed",
            "response.incomplete",
            "response.failed",
            "error",
        ):
            frames.append(json.loads(socket.recv(60)))
    assert frames[-1]["type"] in ("response.completed", "response.incomplete"), frames[-1]
    text = "".join(frame["delta"] for frame in frames if frame["type"] == "response.output_text.delta")
    assert text
    wait_for(lambda: (text,) in site.database("SELECT text FROM chat_message"))


def test_what_is_too_large_is_refused_at_the_proxy_or_behind_it_and_files_go_through(
    site: Site, key: str, browser: httpx.Client
) -> None:
    for size, message in ((3 << 20, "may have"), (9 << 20, "larger than anything")):
        reply = browser.post("/v1/chat/completions", content=b" " * size, headers=bearer(key))
        assert reply.status_code == 413
        assert message in reply.json()["error"]["message"]
    for size, status in ((900 << 10, 200), (2 << 20, 413)):
        file = {"file": ("notes.txt", b"a line of notes\n" * (size // 16), "text/plain")}
        reply = browser.post("/v1/files", files=file, data={"purpose": "user_data"}, headers=bearer(key))
        assert reply.status_code == status, reply.text


def test_any_web_process_tells_what_all_of_them_recorder_and_celery_count(site: Site, key: str) -> None:
    token = (site.folder / "secrets" / "metrics_token").read_text()

    def seen(port: int) -> dict[str, float]:
        reply = httpx.get(f"http://127.0.0.1:{port}/metrics", headers={**bearer(token), "Host": HOST})
        assert reply.status_code == 200
        return samples(reply.text)

    def complete(found: dict[str, float]) -> bool:
        names = ("octavo_recorded_total", "octavo_celery_tasks_total", "octavo_http_requests_total")
        return all(any(sample.startswith(name) for sample in found) for name in names)

    assert all(wait_for(lambda port=port: complete(seen(port))) for port in site.web_ports)
    worker = httpx.get(f"http://127.0.0.1:{site.metrics_port}/metrics", headers=bearer(token))
    assert "octavo_engine_steps_total" in worker.text


def test_when_a_web_process_is_killed_the_other_serves_and_clients_go_on(
    site: Site, key: str, browser: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(site.folder / "secrets" / secret_files.CERTIFICATE))
    with Octavo(site.url, api_key=key) as octavo:
        answer = octavo.stream("Tell me a long story.", max_tokens=150, temperature=0, extra={"ignore_eos": True})
        texts = answer.texts()
        first = next(texts)
        site.lose("web-0")
        rest = "".join(texts)
        assert len(first + rest) > 100
    for number in range(12):
        assert browser.get("/healthz").status_code == 200, number
    reply = browser.post("/v1/chat/completions", json=question(4), headers=bearer(key))
    assert reply.status_code == 200, reply.text


def test_no_secret_is_in_a_log_an_environment_or_a_list_of_processes(site: Site, key: str) -> None:
    held = [
        path.read_text().strip()
        for path in (site.folder / "secrets").iterdir()
        if path.name != secret_files.CERTIFICATE
    ]
    held = [secret.removeprefix("requirepass ") for secret in held if secret] + [key, PASSWORD]
    logs = "\n".join(path.read_text(errors="replace") for path in (site.folder / "logs").iterdir())
    for service in site.running:
        assert service.process
        told = [Path(f"/proc/{service.process.pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
        logs += "\n".join(text.decode(errors="replace") for text in told)
    for secret in held:
        assert secret not in logs


def test_told_to_stop_each_ends_in_order_within_its_time(site: Site) -> None:
    asked = site.stop()
    assert {name.partition("-")[0] for name in asked} == set(site.services) - {"migrate", "engine-gpu"}
    for name, (status, seconds) in asked.items():
        grace = int(site.find(name).service["stop_grace_period"].rstrip("s"))
        assert status == 0, f"{name} ended with {status} after {seconds:.0f} s"
        assert seconds < grace, name
