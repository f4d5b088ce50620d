"""A POST ends in time and in words, whatever the other side does."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from chatapp.webhooks import posting
from tests.webhooks.conftest import Receiver


def send(url: str, body: bytes = b"{}") -> posting.Outcome:
    return posting.post(url, headers={"content-type": "application/json"}, body=body)


def test_a_success_has_its_status_and_no_error(receiver: Receiver) -> None:
    receiver.says(202)
    outcome = send(receiver.url + "?a=%C3%A9", b'{"x":1}')
    assert (outcome.status, outcome.error, outcome.ok) == (202, "", True)
    (got,) = receiver.got
    assert (got.path, got.body, got.headers["host"]) == ("/hook?a=%C3%A9", b'{"x":1}', f"127.0.0.1:{receiver.port}")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(receiver: Receiver, status: int) -> None:
    receiver.says(status, location=receiver.url + "/elsewhere")
    outcome = send(receiver.url)
    assert not outcome.ok
    assert "redirect, which is not followed" in outcome.error
    assert [got.path for got in receiver.got] == ["/hook"]


@pytest.mark.parametrize("status", [400, 404, 410, 429, 500, 503])
def test_any_other_status_is_a_failure_that_names_it(receiver: Receiver, status: int) -> None:
    receiver.says(status)
    outcome = send(receiver.url)
    assert not outcome.ok
    assert str(status) in outcome.error


def test_proxies_of_the_environment_are_not_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert send(receiver.url).ok


def test_one_that_never_answers_is_left_after_its_time(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting, "TOTAL_S", 0.3)
    receiver.slow_s = 1.0
    began = time.monotonic()
    assert "no answer within 0.3 s" in send(receiver.url).error
    assert time.monotonic() - began < 0.8


def test_one_that_trickles_is_left_after_the_same_time(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read gets something, so only a deadline for all of them ends it."""
    monkeypatch.setattr(posting, "TOTAL_S", 0.3)
    receiver.slow_s, receiver.trickle = 1.0, True
    began = time.monotonic()
    outcome = send(receiver.url)
    assert not outcome.ok
    assert outcome.error
    assert time.monotonic() - began < 0.8


def test_an_endless_body_is_not_read_to_its_end(receiver: Receiver) -> None:
    receiver.answers = [(200, {}, b"x" * 5_000_000)]
    outcome = send(receiver.url)
    assert outcome.ok


def test_nobody_there_is_said_in_words(receiver: Receiver) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert "refused" in send(f"http://127.0.0.1:{port}/").error


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 50_000])
def test_what_does_not_speak_http_is_a_failure(receiver: Receiver, said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                with contextlib.suppress(OSError):
                    connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        outcome = send(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        thread.join()
    assert outcome.status is None
    assert outcome.error


def certificate(folder: Path, name: str) -> Path:
    """Key and certificate of `name`, its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


def test_over_tls_the_certificate_must_be_the_names_though_the_connection_goes_to_an_address(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.OCTAVO_WEBHOOK_ALLOW = ["127.0.0.0/8"]
    pem = certificate(tmp_path, "hooks.acme.com")
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    posting._context.cache_clear()
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, port, *a, **k: real("127.0.0.1" if "acme" in host else host, port, *a, **k)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    names: list[str | None] = []
    heads: list[bytes] = []
    context.sni_callback = lambda connection, name, _: names.append(name)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                try:
                    with context.wrap_socket(connection, server_side=True) as secure:
                        heads.append(secure.recv(65536))
                        while not heads[-1].endswith(b"{}"):  # else what is unread resets the connection
                            heads[-1] += secure.recv(65536)
                        secure.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
                except OSError:
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        good = send(f"https://hooks.acme.com:{port}/x")
        bad = send(f"https://other.acme.com:{port}/x")
        thread.join()
    posting._context.cache_clear()
    assert good.ok, good
    assert f"Host: hooks.acme.com:{port}".encode() in heads[0]
    assert bad.status is None
    assert "certificate does not hold" in bad.error
    assert names == ["hooks.acme.com", "other.acme.com"]
