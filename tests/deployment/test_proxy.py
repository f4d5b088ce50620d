"""The proxy alone, nginx itself: what it says where no web process is, and what it keeps out of its log."""

from __future__ import annotations

import contextlib
import http.server
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from ops import secret_files
from tests.deployment import compose, proxy
from tests.stack import free_port, wait_for


class Falling(http.server.BaseHTTPRequestHandler):
    """A web process that falls while it works on a request: it has read all of it, and says nothing."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append(f"{self.command} {self.path}")
        self.close_connection = True

    do_POST = do_PATCH = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


class Proxy:
    def __init__(self, nginx: str, folder: Path, *webs: int) -> None:
        self.http, self.https, self.log = free_port(), free_port(), folder / "log"
        secret_files.self_signed(folder, "localhost")
        (folder / "acme" / ".well-known" / "acme-challenge").mkdir(parents=True)
        (folder / "acme" / ".well-known" / "acme-challenge" / "word").write_text("answer")
        folder.chmod(0o755)
        env = compose.read(compose.NEEDED)["services"]["proxy"]["environment"] | proxy.upstream(*webs)
        env |= {"OCTAVO_LISTEN_HTTP": str(self.http), "OCTAVO_LISTEN_HTTPS": str(self.https)}
        names = {"CERTIFICATE": secret_files.CERTIFICATE, "CERTIFICATE_KEY": secret_files.KEY, "ACME": "acme"}
        env |= {f"OCTAVO_{name}": f"/tmp/{file}" for name, file in names.items()}
        (folder / "nginx.conf").write_text(proxy.rendered(env).replace("/tmp/", f"{folder}/"))
        command = [nginx, "-e", "stderr", "-c", str(folder / "nginx.conf"), "-g", "daemon off; user root;"]
        # Started by root its workers would be nobody, who gets to no folder of the tests.
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for(self.answers)

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return httpx.get(f"http://127.0.0.1:{self.http}/proxy-alive").text == "ok\n"
        except httpx.TransportError:
            return False

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"https://localhost:{self.https}{path}", verify=False)


@pytest.fixture(scope="module")
def lonely(nginx: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    yield from running(Proxy(nginx, tmp_path_factory.mktemp("proxy"), 1, 2))


def running(found: Proxy) -> Iterator[Proxy]:
    yield found
    found.process.terminate()
    found.process.wait(20)


@pytest.fixture
def falling(nginx: str, tmp_path: Path) -> Iterator[Proxy]:
    """In front of two web processes that fall with every request."""
    Falling.asked.clear()
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Falling)) for _ in range(2)]
        for server in servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
        yield from running(Proxy(nginx, tmp_path, *(server.server_port for server in servers)))


def test_without_a_web_process_programs_get_an_error_that_they_understand_and_people_a_page(lonely: Proxy) -> None:
    for path in ("/v1/models", "/api/t/a/keys", "/ws/ui", "/v1/files"):
        reply = lonely.get(path)
        assert (reply.status_code, reply.headers["Retry-After"]) == (503, "2"), path
        assert reply.json()["error"]["code"] == "unavailable"
    page = lonely.get("/t/studio/")
    assert page.status_code == 503
    assert "tries again by itself" in page.text
    assert page.headers["Content-Type"].startswith("text/html")


def test_a_link_s_token_is_in_no_log(lonely: Proxy) -> None:
    for path in (
        "/invitations/a-token", "/setup?token=a-token", "/accounts/password/reset/key/1-a-token/", "/s/a-token",
        "/v1/models?key=a-token",
    ):  # fmt: skip
        lonely.get(path)
    wait_for(lambda: '"path":"/v1/models"' in lonely.log.read_text())
    said = lonely.log.read_text()
    assert '"path":"/accounts/password"' in said
    assert '"path":"/invitations"' in said
    assert "a-token" not in said


def test_http_leads_to_https_but_for_who_renews_the_certificate(lonely: Proxy) -> None:
    reply = httpx.post(f"http://localhost:{lonely.http}/v1/chat/completions?a=b", content=b"x")
    assert (reply.status_code, reply.headers["Location"]) == (308, "https://localhost/v1/chat/completions?a=b")
    proof = httpx.get(f"http://localhost:{lonely.http}/.well-known/acme-challenge/word")
    assert proof.text == "answer"


def test_only_what_changes_nothing_is_asked_of_another_web_process_when_one_falls_over_it(falling: Proxy) -> None:
    for _ in range(2):  # nobody is left out for having fallen: whoever makes them fall would take all away
        for method, path, times in (
            ("GET", "/v1/models", 2), ("POST", "/v1/chat/completions", 1), ("PATCH", "/api/t/a/keys/1", 1),
            ("POST", "/v1/files", 1),
        ):  # fmt: skip
            Falling.asked.clear()
            reply = httpx.request(method, f"https://localhost:{falling.https}{path}", content=b"{}", verify=False)
            assert reply.status_code == 503
            assert Falling.asked == [f"{method} {path}"] * times


def test_old_tls_is_refused(lonely: Proxy) -> None:
    import ssl

    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"https://localhost:{lonely.https}/", verify=old)
