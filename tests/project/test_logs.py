"""Logs say what happened and where, and never what anyone wrote."""

from __future__ import annotations

import json
import logging
from typing import Any

import psycopg
import pytest
import structlog
from celery.app.trace import build_tracer
from django.db import DataError
from django.http import HttpResponse
from django.test import Client
from django.utils.log import log_response

from chatapp.audit.models import AuditEntry
from chatapp.audit.source import set_source
from chatapp.celery import app
from chatapp.chat import recorder, services
from chatapp.logs import formatter
from chatapp.scope import tenant_scope, unscoped
from tests.chat.conftest import ScriptedWorker, Team

SECRET, ANSWER = "my private question", "my private answer"
QUOTED = f"value too long\nDETAIL: Failing row contains ({SECRET}, {ANSWER})"


@pytest.fixture
def lines() -> Any:
    """Everything that is logged, as the product writes it."""
    written: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(self.format(record))

    handler = Kept()
    handler.setFormatter(formatter())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield written
    root.removeHandler(handler)
    root.setLevel(level)


def test_no_text_of_a_chat_is_logged_even_when_the_database_quotes_it(
    team: Team, worker: ScriptedWorker, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    services.ask(access=team.member, text=SECRET)
    worker.answer(ANSWER)

    def refuse(*args: Any, **kwargs: Any) -> bool:
        raise DataError(QUOTED)

    monkeypatch.setattr(recorder, "write", refuse)
    recorder.Recorder(lambda: False).once(block_s=0.05)
    try:
        refuse()
    except DataError:
        logging.getLogger("django.request").exception("Internal Server Error: /t/acme/")
    failed = [json.loads(line) for line in lines if '"level": "error"' in line]
    assert {entry["event"] for entry in failed} >= {"recorder.failed", "Internal Server Error: /t/acme/"}
    assert not [line for line in lines if SECRET in line or ANSWER in line]
    assert "DataError" in next(entry["exception"] for entry in failed if "exception" in entry)


def test_what_celery_says_of_a_failed_task_has_no_text_of_a_chat(lines: list[str]) -> None:
    """Its line has the error's words, and not only the error."""

    @app.task(name="tests.refused")
    def refused() -> None:
        try:
            raise psycopg.DataError(QUOTED)
        except psycopg.DataError as error:
            raise DataError(*error.args) from error

    build_tracer(refused.name, refused, app=app)("a1", (), {}, {"id": "a1"})
    app.tasks.unregister(refused.name)
    set_source(None, "")
    failed = json.loads(next(line for line in lines if "raised unexpected" in line))
    assert failed["event"] == "Task tests.refused[a1] raised unexpected: DataError"
    assert "refused" in failed["exception"]
    assert not [line for line in lines if SECRET in line or ANSWER in line]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/invitations/a-secret-of-one", "/invitations/<str:token>"),
        ("/accounts/password/reset/key/1-a-secret-of-one/", "/accounts/password/reset/key/"),
        ("/nowhere/a-secret-of-one", ""),
    ],
)
def test_django_s_own_lines_have_no_path_with_a_secret(path: str, route: str, lines: list[str]) -> None:
    """A form that comes without its cookie, and what fails."""
    answer = Client(enforce_csrf_checks=True).post(path)
    assert answer.status_code in (403, 404)
    request = answer.wsgi_request
    try:
        raise ValueError("no luck")
    except ValueError as error:
        log_response(
            "%s: %s", "Internal Server Error", path, response=HttpResponse(status=500), request=request, exception=error
        )
    said = [json.loads(line)["event"] for line in lines]
    assert [event for event in said if event.startswith(f"Internal Server Error: {route}")]
    if answer.status_code == 403:
        assert [event for event in said if event.startswith(f"Forbidden (CSRF cookie not set.): {route}")]
    assert not [line for line in lines if "a-secret-of-one" in line]


def test_an_error_says_its_kind_its_words_and_what_it_came_from(lines: list[str]) -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise RuntimeError("then this") from error
    except RuntimeError:
        logging.getLogger("any").exception("It failed")
    entry = json.loads(lines[-1])
    assert (entry["event"], entry["level"], entry["logger"]) == ("It failed", "error", "any")
    assert "RuntimeError: then this" in entry["exception"]
    assert "KeyError: 'first'" in entry["exception"]
    assert "test_logs.py" in entry["exception"]


def test_a_line_says_whose_request_it_belongs_to(team: Team, strangers: Team, lines: list[str]) -> None:
    log = structlog.get_logger("tests")
    set_source("192.0.2.1", "req_1")
    for tenant in (team.tenant, strangers.tenant):
        with tenant_scope(tenant):
            log.info("something.happened")
    with unscoped("tests"):
        log.info("something.happened")
    found = [json.loads(line) for line in lines if "something.happened" in line]
    assert [entry.get("tenant") for entry in found] == [str(team.tenant.pk), str(strangers.tenant.pk), None]
    assert {entry["request_id"] for entry in found} == {"req_1"}
    set_source(None, "")


def test_what_people_change_is_in_the_audit_log_under_the_request_s_id(team: Team) -> None:
    owner = Client()
    owner.force_login(team.owner.user)  # type: ignore[arg-type]
    path = f"/api/t/{team.tenant.slug}/settings"
    answer = owner.patch(
        path, {"model_titles": True}, content_type="application/json", headers={"X-Request-Id": "mine"}
    )
    assert answer.status_code == 200
    assert answer.headers["x-request-id"] == "mine"
    assert AuditEntry.objects.latest("at").request_id == "mine"
