"""Deleting a team: locked at once, undone within a week, then gone from everywhere, and only that team."""

from __future__ import annotations

import json
import subprocess
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import redis
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from chatapp.accounts.models import User
from chatapp.audit.models import ActorKind, AuditEntry
from chatapp.audit.services import Actor
from chatapp.chat.attachments import attach
from chatapp.chat.models import Conversation, Generation, Message, State
from chatapp.chat.services import ask
from chatapp.data import deletion as deletions
from chatapp.data import exports, purge
from chatapp.data.deletion import request_deletion, request_own_deletion, undo_deletion, undo_own_deletion
from chatapp.data.models import Deletion, DeletionState
from chatapp.data.retention import set_retention
from chatapp.data.rows import owned_models
from chatapp.errors import BadInput, Conflict, Forbidden, NotFound
from chatapp.files import services
from chatapp.files.models import Reading
from chatapp.operators.services import resume_tenant, suspend_tenant
from chatapp.prompts.models import PromptVersion
from chatapp.prompts.services import publish
from chatapp.scope import tenant_scope
from chatapp.streaming.finished import state
from chatapp.tenants.access import BadKey, NoAccess, access_for_key, access_for_user, revoked
from chatapp.tenants.models import ApiKey, Membership, Tenant
from chatapp.tenants.services import create_api_key
from engine import occupancy_wire, protocol
from tests.chat.conftest import ScriptedWorker, Team
from tests.data.conftest import Sent, a_chat

CANARY = "canary-7f3a9c51d2"
OPERATOR = Actor(ActorKind.OPERATOR, "1", "operator@octavo.test")
NOW = timedelta(0)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge, "ANSWERS_S", 0.0)
    monkeypatch.setattr(purge, "ENGINES_S", 0.0)


@pytest.fixture
def an_operator(db: None) -> User:
    return User.objects.create_superuser("operator@octavo.test", "a password")


def fill(team: Team, worker: ScriptedWorker, server: redis.Redis, data: Path) -> None:
    """The canary wherever a text of the team can be: chats, titles, prompts, names of keys, logs, files, counters."""
    tenant = team.tenant
    for access in (team.member, team.owner, team.key):
        a_chat(access, f"{CANARY} question", f"{CANARY} answer")
        file = services.store(
            access=access, name=f"{CANARY}.txt", content=BytesIO(CANARY.encode()), purpose="user_data"
        )
        attach(Message.objects.filter(conversation__tenant=tenant, role="user").latest("created_at"), [file])
        Reading.objects.create(file=file, state="ready", text=f"{CANARY} read")
    publish(tenant=tenant, text=f"You know {CANARY}.", note=CANARY)
    PromptVersion.objects.create(prompt=tenant.system_prompts.get(), number=99, text=f"a draft with {CANARY}")
    create_api_key(tenant=tenant, name=f"key {CANARY}")
    set_retention(access=team.owner, days=30)
    generation = ask(access=team.member, text=f"{CANARY} in redis")
    taken = worker.take()
    assert taken.id == str(generation.pk)
    started: Any = protocol.Started(seq=0, prompt_tokens=7, cached_tokens=0)
    said: Any = protocol.Delta(seq=1, parts=[protocol.Part(text=f"{CANARY} out", token_ids=[1])])
    server.fcall(*protocol.tell(worker.name, [protocol.Tell(taken.id, 1, event, 1.0) for event in (started, said)]))
    ask(access=team.owner, text=f"{CANARY} queued")
    server.set(f"LIMITS:requests:{tenant.pk}:minute", "3")
    assert team.key.key is not None
    server.hset(f"octavo:usage:{team.key.key.pk}", "tokens", 9)
    export = exports.request_export(access=team.owner)
    exports.run("team", str(export.pk))
    assert team.member.user is not None
    own = exports.request_own_export(user=team.member.user)
    exports.run("own", str(own.pk))
    a_history(server, "gone-1", str(tenant.pk), "somebody else")
    store = data / "prompts"
    store.mkdir(parents=True)
    (store / f"{protocol.owner_tag(str(tenant.pk))}{'0' * 40}.safetensors").write_text(CANARY)
    (store / f"{protocol.owner_tag('somebody else')}{'0' * 40}.safetensors").write_text("theirs")


def a_history(server: redis.Redis, worker: str, *tenants: str) -> None:
    """The block table and time line of a worker that has ended: many entries without a name, and then one with."""
    figures = occupancy_wire.Figures(of=dict.fromkeys(tenants, (1, 0, 0, 1, 0)))
    for number in range(1, 61):
        named = number == 60
        head = occupancy_wire.Head(
            worker=worker, number=number, base=number - 1, at_ms=number, block_size=16, blocks=1,
            tenants=list(tenants) if named else [], figures=figures if named else occupancy_wire.Figures(),
        )  # fmt: skip
        fields: Any = {"head": occupancy_wire.encode_head(head), "cells": occupancy_wire.compress([])}
        server.xadd(protocol.occupancy_key(worker), fields)
    line: Any = {"line": json.dumps({"at_ms": 60, "number": 60, "figures": {"of": figures.of}})}
    server.xadd(protocol.line_key(worker), line)


def traces_of(server: redis.Redis, tenant: Tenant) -> list[str]:
    """Every key, field, member and entry of the server that has the tenant's id or the canary in it."""
    found = []
    needles = (str(tenant.pk).encode(), CANARY.encode())
    for key in server.scan_iter():
        kind: Any = server.type(key)
        content: Any = {
            b"string": server.get, b"hash": server.hgetall, b"set": server.smembers,
            b"zset": lambda key: server.zrange(key, 0, -1), b"stream": server.xrange,
        }[kind](key)  # fmt: skip
        if any(needle in key + repr(content).encode() for needle in needles):
            found.append(key.decode())
    return found


def test_from_the_request_on_nobody_gets_in_and_nothing_is_deleted(team: Team, strangers: Team) -> None:
    a_chat(team.member, "kept")
    deletion = request_own_deletion(access=team.owner, confirm="acme")
    assert deletion.state == DeletionState.WAITING
    assert deletion.due_at - deletion.requested_at > timedelta(days=6, hours=23)
    assert team.owner.user is not None
    with pytest.raises(NoAccess):
        access_for_user(team.owner.user, "acme")
    with pytest.raises(BadKey):
        access_for_key(team.secret)
    assert revoked([team.member, team.key, strangers.member]) == {team.member, team.key}
    assert Conversation.objects.count() == 1
    deletions.tend()
    assert Deletion.objects.get().state == DeletionState.WAITING


def test_undone_all_is_as_it_was_a_suspension_by_an_operator_included(team: Team) -> None:
    assert team.owner.user is not None
    deletion = request_own_deletion(access=team.owner, confirm="acme")
    undo_own_deletion(user=team.owner.user, deletion_id=deletion.pk)
    assert access_for_user(team.owner.user, "acme").tenant == team.tenant
    assert access_for_key(team.secret)
    assert [entry.action for entry in AuditEntry.objects.filter(tenant=team.tenant)][:2] == [
        "tenant.deletion_undone",
        "tenant.deletion_requested",
    ]
    suspended = timezone.now() - timedelta(days=3)
    Tenant.objects.filter(pk=team.tenant.pk).update(suspended_at=suspended)
    undo_deletion(deletion=request_deletion(tenant=team.tenant, actor=OPERATOR), actor=OPERATOR)
    team.tenant.refresh_from_db()
    assert team.tenant.suspended_at == suspended


def test_a_suspension_in_the_grace_period_outlives_the_undoing(team: Team, an_operator: User) -> None:
    assert team.owner.user is not None
    deletion = request_own_deletion(access=team.owner, confirm="acme")
    for _ in range(2):
        suspend_tenant(by=an_operator, tenant=team.tenant, reason="spam")
    undo_own_deletion(user=team.owner.user, deletion_id=deletion.pk)
    with pytest.raises(NoAccess):
        access_for_user(team.owner.user, "acme")
    actions = [entry.action for entry in AuditEntry.objects.filter(tenant=team.tenant)]
    assert actions[:3] == ["tenant.deletion_undone", "team.suspended", "tenant.deletion_requested"]
    resume_tenant(by=an_operator, tenant=team.tenant)
    assert access_for_user(team.owner.user, "acme")


def test_nobody_opens_a_team_that_is_being_deleted(team: Team, an_operator: User) -> None:
    assert team.owner.user is not None
    deletion = request_own_deletion(access=team.owner, confirm="acme")
    browser = Client()
    browser.force_login(an_operator)
    chosen = {"action": "resume_selected", "_selected_action": str(team.tenant.pk)}
    pages = [reverse("admin:tenants_tenant_resume", args=[team.tenant.pk]), reverse("admin:tenants_tenant_changelist")]
    for page in pages:
        answer = browser.post(page, chosen, follow=True)
        assert "Undo the deletion to open it again." in answer.content.decode()
        with pytest.raises(NoAccess):
            access_for_user(team.owner.user, "acme")
    undo_deletion(deletion=deletion, actor=OPERATOR)
    assert access_for_user(team.owner.user, "acme")


def test_only_an_owner_who_types_the_name_deletes_and_only_once(team: Team, strangers: Team) -> None:
    with pytest.raises(BadInput) as refusal:
        request_own_deletion(access=team.owner, confirm="Acme")
    assert refusal.value.param == "confirm"
    for access in (team.member, team.key):
        with pytest.raises(Forbidden):
            request_own_deletion(access=access, confirm="acme")
    deletion = request_own_deletion(access=team.owner, confirm="acme")
    with pytest.raises(Conflict):
        request_deletion(tenant=team.tenant, actor=OPERATOR)
    for user in (team.member.user, strangers.owner.user):
        assert user is not None
        with pytest.raises(NotFound):
            undo_own_deletion(user=user, deletion_id=deletion.pk)


def test_rows_that_point_at_others_go_before_these() -> None:
    order = [model.__name__ for model in owned_models()]
    for before, after in (
        ("Message", "Conversation"),
        ("Generation", "Message"),
        ("Conversation", "ApiKey"),
        ("Generation", "PromptVersion"),
        ("PromptVersion", "SystemPrompt"),
    ):
        assert order.index(before) < order.index(after)


@pytest.fixture
def gone(
    written: tuple[Team, Team], worker: ScriptedWorker, server: redis.Redis, data_folder: Path, sent: Sent
) -> tuple[Team, Team]:
    """Both teams are full of canaries of their own; the first one is deleted."""
    team, strangers = written
    a_chat(strangers.member, "their chat", "stays")
    a_history(server, "gone-2", str(strangers.tenant.pk))
    fill(team, worker, server, data_folder)
    sent.calls.clear()
    request_deletion(tenant=team.tenant, actor=OPERATOR, grace=NOW)
    sent.run()
    return team, strangers


def database_files() -> list[Path]:
    name = Path(str(connection.settings_dict["NAME"]))
    return [path for path in (name, name.with_name(f"{name.name}-wal")) if path.exists()]


def test_after_the_deletion_a_canary_is_nowhere(
    gone: tuple[Team, Team], server: redis.Redis, data_folder: Path
) -> None:
    """P11 and the deletion's own report: rows, Redis, append-only file, database pages, files."""
    team, strangers = gone
    deletion = Deletion.objects.get()
    assert (deletion.state, deletion.error) == (DeletionState.DONE, "")
    assert set(deletion.report["found_afterwards"].values()) == {0}
    assert deletion.report["rows_deleted"]["chat_conversation"] == 5
    with tenant_scope(team.tenant):
        for model in [*owned_models(), AuditEntry]:
            assert model._default_manager.count() == 0, model
    assert not Tenant.objects.filter(pk=team.tenant.pk).exists()
    assert not (data_folder / "files" / team.tenant.pk.hex).exists()
    assert traces_of(server, team.tenant) == []
    folder: Any = server.config_get("dir")
    grepped = [path for path in Path(folder["dir"]).rglob("*") if path.is_file()]
    assert any("appendonly" in str(path) for path in grepped)
    if connection.vendor == "sqlite":
        grepped += database_files()
        assert len(database_files()) >= 1
    grepped += [path for path in data_folder.rglob("*") if path.is_file()]
    assert not list(data_folder.rglob("*.zip")), "nor are exports of its members, which hold its chats"
    for path in grepped:
        # By another process: closing a file of an open SQLite database gives up the locks that this one holds on it,
        # and the next process that closes the database takes its log away under us.
        assert CANARY.encode() not in subprocess.run(["cat", path], capture_output=True, check=True).stdout, path
    assert [path.name for path in (data_folder / "prompts").iterdir()] == [
        f"{protocol.owner_tag('somebody else')}{'0' * 40}.safetensors"
    ]
    # The other team has lost nothing.
    assert server.xlen(protocol.occupancy_key("gone-2")) == 60
    assert server.xlen(protocol.line_key("gone-2")) == 1
    assert strangers.member.user is not None
    assert access_for_user(strangers.member.user, "other")
    assert Message.objects.filter(conversation__tenant=strangers.tenant).count() == 2
    assert PromptVersion.objects.filter(prompt__tenant=strangers.tenant).count() == 1


def test_the_platforms_log_says_what_was_deleted_and_keeps_no_text(gone: tuple[Team, Team]) -> None:
    team, _ = gone
    entry = AuditEntry.objects.get(action="tenant.deleted")
    assert (entry.tenant_id, entry.actor_name, entry.object_name) == (None, "operator@octavo.test", "acme")
    assert entry.details["tenant"] == str(team.tenant.pk)
    assert entry.details["rows_deleted"]["audit_auditentry"] > 0
    assert entry.details["redis_files"]["aof"] == "rewritten"
    assert entry.details["beyond_reach"]
    assert CANARY not in json.dumps(entry.details)
    assert "ids" not in entry.details


def test_people_outlive_their_team(gone: tuple[Team, Team]) -> None:
    team, _ = gone
    for access in (team.owner, team.member):
        assert access.user is not None
        access.user.refresh_from_db()
        assert access.user.is_active


# The two that matter most in every run; they take seconds each.
OFTEN = ("rows", "verify")
STEPS = [step if step in OFTEN else pytest.param(step, marks=pytest.mark.long) for step in purge.STEPS]


@pytest.mark.parametrize("step", STEPS)
def test_killed_in_any_step_it_goes_on_and_ends(
    written: tuple[Team, Team], worker: ScriptedWorker, server: redis.Redis, data_folder: Path, sent: Sent, step: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The step has done its work, and the worker dies before the row says so."""
    team, _ = written
    fill(team, worker, server, data_folder)
    sent.calls.clear()
    real = purge.STEPS[step]
    died: list[str] = []

    class Killed(BaseException):
        pass

    def dies(deletion: Deletion) -> None:
        real(deletion)
        if not died:
            died.append(step)
            raise Killed

    monkeypatch.setitem(purge.STEPS, step, dies)
    request_deletion(tenant=team.tenant, actor=OPERATOR, grace=NOW)
    with pytest.raises(Killed):
        sent.run()
    assert died
    sent.calls.clear()
    if step != "verify":
        assert Deletion.objects.get().state == DeletionState.RUNNING
        deletions.tend()
        assert not sent.calls, "its lease still holds"
        Deletion.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
        deletions.tend()
        sent.run()
    assert Deletion.objects.get().state == DeletionState.DONE
    assert AuditEntry.objects.filter(action="tenant.deleted").count() == 1
    assert traces_of(server, team.tenant) == []


def test_a_worker_that_does_not_answer_is_named_and_it_is_tried_again(
    written: tuple[Team, Team], worker: ScriptedWorker, sent: Sent
) -> None:
    team, _ = written
    worker.beat()  # it lives, and never hears
    request_deletion(tenant=team.tenant, actor=OPERATOR, grace=NOW)
    sent.run()
    deletion = Deletion.objects.get()
    if deletion.state == DeletionState.FAILED:  # its heartbeat outlasted the three rounds
        assert deletion.error == "still there: workers that did not answer"
        assert deletion.rounds == purge.MOST_ROUNDS
        assert AuditEntry.objects.get(action="tenant.deletion_failed").details["engines"]["did_not_answer"]
    assert not Tenant.objects.filter(pk=team.tenant.pk).exists(), "the rows are gone in any case"


def test_a_deletion_that_left_redis_files_as_they_were_has_failed_and_can_be_begun_again(
    written: tuple[Team, Team], sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was deleted may still stand in them, so it is not done; the rows are gone by then, the team's among them."""
    team, _ = written
    with monkeypatch.context() as patched:
        patched.setattr(purge.traces, "compact", lambda: {"aof": "rewrite failed"})
        request_deletion(tenant=team.tenant, actor=OPERATOR, grace=NOW)
        sent.run()
    deletion = Deletion.objects.get()
    assert (deletion.state, deletion.error) == (DeletionState.FAILED, "still there: Redis's files as they were")
    assert not Tenant.objects.filter(pk=team.tenant.pk).exists()
    deletions.begin_now(deletion=deletion, actor=OPERATOR)
    sent.run()
    deletion.refresh_from_db()
    assert (deletion.state, deletion.error) == (DeletionState.DONE, "")
    assert "ids" not in deletion.report
    with pytest.raises(Conflict):
        deletions.begin_now(deletion=deletion, actor=OPERATOR)
    assert [entry.action for entry in AuditEntry.objects.filter(tenant=None).order_by("at")] == [
        "tenant.deletion_failed", "tenant.deletion_begun", "tenant.deleted",
    ]  # fmt: skip


def test_without_redis_nothing_is_deleted_before_it_is_back(
    written: tuple[Team, Team], sent: Sent, settings: Any
) -> None:
    team, _ = written
    a_chat(team.member, "still here")
    request_deletion(tenant=team.tenant, actor=OPERATOR, grace=NOW)
    url = settings.REDIS_URL
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    ((task, args),) = sent.calls
    assert purge.run(*args) == 30.0
    assert Conversation.objects.count() == 1
    settings.REDIS_URL = url
    sent.run()
    assert Deletion.objects.get().state == DeletionState.DONE
    assert task


def test_redis_that_dies_before_it_has_written_its_files_anew_is_asked_again(
    written: tuple[Team, Team], server: redis.Redis, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    team, _ = written
    real, asked = redis.Redis.info, []

    def dies(self: redis.Redis, *arguments: Any, **options: Any) -> Any:
        if arguments == ("persistence",):
            asked.append(arguments)
            if len(asked) == 1:
                raise redis.exceptions.ConnectionError("Connection closed by server.")
        return real(self, *arguments, **options)

    monkeypatch.setattr(redis.Redis, "info", dies)
    request_deletion(tenant=team.tenant, actor=OPERATOR, grace=NOW)
    sent.run()
    deletion = Deletion.objects.get()
    assert deletion.state == DeletionState.DONE
    assert "refused" not in deletion.report["redis_files"]


def test_an_answer_under_way_ends_with_the_request(
    written: tuple[Team, Team], worker: ScriptedWorker, server: redis.Redis
) -> None:
    team, strangers = written
    ours, theirs = (ask(access=access, text="Slow") for access in (team.member, strangers.member))
    request_own_deletion(access=team.owner, confirm="acme")
    assert state(str(ours.pk)) == "cancelled"
    assert state(str(theirs.pk)) != "cancelled"


def test_an_answer_that_runs_is_stopped_first(written: tuple[Team, Team], worker: ScriptedWorker, sent: Sent) -> None:
    team, _ = written
    generation = ask(access=team.member, text="Slow")
    request_deletion(tenant=team.tenant, actor=OPERATOR, grace=NOW)
    with tenant_scope(team.tenant):
        purge._answers(Deletion(tenant_id=team.tenant.pk, step_started_at=timezone.now()))
    generation.refresh_from_db()
    assert generation.state == State.CANCELLED
    assert worker.redis.hget(protocol.request_key(str(generation.pk)), "state") == b"cancelled"
    assert Generation.objects.count() == Membership.objects.filter(tenant=team.tenant).count() - 1
    assert ApiKey.objects.count() == 2
