"""A receiver on this machine that answers as it is told and keeps what it got, and a team's webhook to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from chatapp.webhooks import outbox, sending, services
from chatapp.webhooks.models import WebhookEndpoint
from tests.chat.conftest import Team, record, server, strangers, team, worker

__all__ = ["record", "server", "strangers", "team", "worker"]


@dataclass(frozen=True)
class Got:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """`answers`: (status, headers, body) for each request in turn, the last one for all that follow."""

    port: int
    got: list[Got] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=lambda: [(204, {}, b"")])
    slow_s: float = 0.0
    trickle: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def says(self, *statuses: int, **headers: str) -> None:
        self.answers = [(status, {k.replace("_", "-"): v for k, v in headers.items()}, b"") for status in statuses]


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.OCTAVO_WEBHOOK_PLAIN = True
    settings.OCTAVO_WEBHOOK_ALLOW = ["127.0.0.0/8"]
    with listening() as kept:
        yield kept


@contextmanager
def listening() -> Iterator[Receiver]:

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            kept.got.append(Got(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            status, headers, answer = kept.answers[min(len(kept.got), len(kept.answers)) - 1]
            end = time.monotonic() + kept.slow_s
            while kept.trickle and time.monotonic() < end:
                self.wfile.write(b"X")
                time.sleep(0.02)
            time.sleep(max(0.0, end - time.monotonic()))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *args: Any) -> None:
            pass  # callers who hang up are part of the tests

    with Quiet(("127.0.0.1", 0), Handler) as http:
        kept = Receiver(http.server_address[1])
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield kept
        http.shutdown()
        thread.join()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """No broker: which endpoints would have been handed to Celery."""
    kept: list[Any] = []
    monkeypatch.setattr(outbox, "start", kept.append)
    monkeypatch.setattr(sending, "start", kept.append)
    return kept


@pytest.fixture
def webhook(team: Team, receiver: Receiver, started: list[Any]) -> WebhookEndpoint:
    return services.create(access=team.owner, url=receiver.url, events=["member.joined", "budget.threshold"])[0]


@pytest.fixture
def tell(team: Team, django_capture_on_commit_callbacks: Any) -> Callable[..., None]:
    from chatapp import events

    def told(kind: str = "member.joined", **data: Any) -> None:
        with django_capture_on_commit_callbacks(execute=True):
            events.tell(tenant_id=team.tenant.pk, kind=kind, data=data)

    return told
