"""Exports: all that a team has and nothing of another's, whole or not there, for owners and a week."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import zipfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db import models
from django.utils import timezone

from chatapp.audit.models import AuditEntry, BreakGlass
from chatapp.batches.models import Batch, BatchAnswer, BatchItem
from chatapp.chat.attachments import attach
from chatapp.chat.models import Conversation, Generation, Message, State, Tag
from chatapp.data import archive, contents, exports
from chatapp.data.archive import Archive
from chatapp.data.exports import cancel_export, request_export, request_own_export
from chatapp.data.models import Export, JobState, OwnExport, Retention, Sweep
from chatapp.errors import Conflict, Forbidden, NotFound
from chatapp.feedback.models import Feedback
from chatapp.files.models import Attachment, Reading, StoredFile
from chatapp.files.services import store
from chatapp.limits.models import LowerLimits, Meter, Reservation, TenantLimits
from chatapp.limits.selectors import limits_of_team
from chatapp.moving.models import Import, Imported
from chatapp.owned import TenantOwned
from chatapp.prompts.models import PromptVersion, SystemPrompt
from chatapp.responses.models import StoredResponse
from chatapp.shares.models import Share
from chatapp.tenants.models import ApiKey, DomainClaim, Invitation, Membership, SignIn, Tenant
from chatapp.tenants.services import add_member
from chatapp.usage.models import UsageDay, UsageHorizon, UsageHour, UsageRow, UsageTotal
from chatapp.webhooks.models import WebhookDelivery, WebhookEndpoint
from tests.chat.conftest import Team
from tests.data.conftest import Sent, a_chat

ODD = (
    "line\u2028separator \x07 bell, \U0001f468\u200d\U0001f469\u200d\U0001f467, \u202eright to left,"
    ' e\u0301, \u4e2d\u6587, "quotes"\r\n</script>'
)
pytestmark = pytest.mark.django_db(transaction=False)


@pytest.fixture(autouse=True)
def _commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a commit happens at once: these tests run inside a transaction."""
    from django.db import transaction

    monkeypatch.setattr(transaction, "on_commit", lambda work, **kw: work())


def opened(export: Any) -> zipfile.ZipFile:
    export.refresh_from_db()
    assert export.state == JobState.DONE, export.error
    file = zipfile.ZipFile(export.path)
    assert file.testzip() is None
    return file


def lines(file: zipfile.ZipFile, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read(name).decode().split("\n")[:-1]]


def test_an_export_holds_all_of_the_team_and_nothing_of_anothers(team: Team, strangers: Team, sent: Sent) -> None:
    mine = a_chat(team.member, ODD, "=1+1")
    by_key = a_chat(team.key, "by key", "yes")
    a_chat(strangers.member, "THEIRS", "THEIRS")
    export = request_export(access=team.owner)
    sent.run()
    file = opened(export)
    assert {row["id"] for row in lines(file, "conversations.jsonl")} == {str(mine.pk), str(by_key.pk)}
    texts = [row["text"] for row in lines(file, "messages.jsonl") if row["conversation"] == str(mine.pk)]
    assert texts == [ODD, "=1+1"]
    assert {row["email"] for row in lines(file, "members.jsonl")} == {"owner@acme.test", "member@acme.test"}
    assert [row["text"] for row in lines(file, "prompts.jsonl")] == ["You answer for acme."]
    assert lines(file, "prompts.jsonl")[0]["is_published"] is True
    (key,) = lines(file, "keys.jsonl")
    assert key["prefix"] == team.secret[:9]
    usage = list(csv.DictReader(io.StringIO(file.read("usage.csv").decode())))
    assert [row["prompt_tokens"] for row in usage] == ["7", "7"]
    audit = list(csv.DictReader(io.StringIO(file.read("audit.csv").decode())))
    assert "data.export_requested" in {row["action"] for row in audit}
    assert json.loads(file.read("settings.json"))["team"]["slug"] == "acme"
    assert "messages.jsonl" in file.read("README.txt").decode()
    whole = b"".join(file.read(name) for name in file.namelist())
    for secret in ("THEIRS", team.secret, team.tenant.salt, team.key.key.hash, team.key.key.salt, mine.salt, "argon"):  # type: ignore[union-attr]
        assert secret.encode() not in whole


# Where the rows of each model are: a line each, or a part of a document.
ROWS: dict[type[models.Model], str] = {
    ApiKey: "keys.jsonl",
    Attachment: "attachments.jsonl",
    AuditEntry: "audit.csv",
    BreakGlass: "readings.jsonl",
    Conversation: "conversations.jsonl",
    Generation: "usage.csv",
    Invitation: "invitations.jsonl",
    LowerLimits: "lower_limits.jsonl",
    Membership: "members.jsonl",
    Message: "messages.jsonl",
    Meter: "meters.jsonl",
    PromptVersion: "prompts.jsonl",
    StoredResponse: "responses.jsonl",
    StoredFile: "files.jsonl",
    Share: "shares.jsonl",
    Feedback: "feedback.jsonl",
    SystemPrompt: "assistants.jsonl",
    UsageDay: "usage_days.csv",
    Batch: "batches.jsonl",
    WebhookDelivery: "deliveries.jsonl",
    WebhookEndpoint: "webhooks.jsonl",
}
PARTS: dict[type[models.Model], str] = {
    DomainClaim: "sign_in.json",
    Retention: "settings.json",
    SignIn: "sign_in.json",
    TenantLimits: "limits.json",
}
LEFT_OUT: dict[type[models.Model], str] = {
    BatchAnswer: "what a batch is made of until its results are in its files",
    BatchItem: "what a batch is made of until its results are in its files",
    Import: "how many conversations came at once; each of them says where it came from",
    Imported: "stands in conversations.jsonl, with its conversation",
    Export: "about such files themselves; the audit log says who asked for which",
    Reading: "what was read of the files, which are there as they came",
    Reservation: "held while an answer is under way, and settled in its meter",
    Sweep: "counts of a night, which the audit log has too",
    Tag: "stands in conversations.jsonl, with its conversation",
    UsageHorizon: "how far rows of usage have been deleted: what is there says it",
    UsageHour: "summed up in usage_days.csv",
    UsageRow: "the same answers as in usage.csv, in the form that sums are made of",
    UsageTotal: "summed up in usage_days.csv",
}
SECRET = ("salt", "hash", "secret", "nonce", "digest")


def filled(team: Team) -> None:
    """One row at least of each model that an export has, most fields said."""
    now = timezone.now()
    tenant, key = team.tenant, team.key.key
    assert key is not None
    assistant = SystemPrompt.objects.get(tenant=tenant)
    chat = a_chat(team.member, "one", "two", assistant=assistant, model="small")
    Tag.objects.create(conversation=chat, name="tax")
    batch = Import.objects.create(tenant=tenant, user=team.member.user, source="chatgpt", finished_at=now)
    Imported.objects.create(
        conversation=chat, batch=batch, source="chatgpt", digest="DIGEST-OF-AN-IMPORT", told={"m": {"model": "theirs"}}
    )
    Share.objects.create(
        tenant=tenant, conversation=chat, user=team.member.user, title="one", messages=[{"role": "user", "text": "one"}]
    )
    Feedback.objects.create(
        tenant=tenant, user=team.member.user, message=chat.messages.last(), rating="down", reasons=["wrong"],
        comment="It is twelve.", assistant=assistant, version=assistant.published, model="small",
    )  # fmt: skip
    file = store(access=team.member, name="../Plan.TXT", content=io.BytesIO(b"nine o'clock"), purpose="user_data")
    attach(chat.messages.order_by("created_at")[0], [file])
    SystemPrompt.objects.create(
        tenant=tenant, name="Archived one", slug="archived-one", description="Knows the tax.", order=3, archived_at=now
    )
    ApiKey.objects.filter(pk=key.pk).update(
        allowed_origins=["https://app.test"], allowed_networks=["10.0.0.0/8"], expires_at=now, replaced_at=now
    )
    ApiKey.objects.create(tenant=tenant, name="next", prefix="octv_next", hash="h" * 64, replaces=key, revoked_at=now)
    Invitation.objects.create(
        tenant=tenant, email="new@acme.test", inviter="owner@acme.test", invited_by=team.owner.user, expires_at=now
    )
    limits_of_team(tenant)
    TenantLimits.objects.filter(tenant=tenant).update(queue_length=17)
    LowerLimits.objects.create(tenant=tenant, key=key, requests_per_minute=5)
    LowerLimits.objects.create(tenant=tenant, user=team.member.user, tokens_per_month=1000)
    Meter.objects.create(tenant=tenant, month=now.date().replace(day=1), subject="", used=42)
    UsageDay.objects.create(tenant=tenant, at=now, kind="chat", principal="user:7", model="m", requests=1, finished=1)
    SignIn.objects.create(
        tenant=tenant, mfa="managers", issuer="https://id.acme.test", client_id="octavo", sealed_secret="SEALED-SECRET"
    )
    DomainClaim.objects.create(tenant=tenant, domain="acme.test", confirmed_at=now)
    Retention.objects.create(tenant=tenant, days=90)
    answered = Generation.objects.create(
        tenant=tenant, principal=team.key.principal, model="small", state=State.FINISHED, deadline=now
    )
    StoredResponse.objects.create(
        generation=answered, tenant=tenant, digest="DIGEST-OF-A-RESPONSE", settings={"metadata": {"for": "tests"}},
        input=[{"type": "message", "role": "user"}], output=[{"type": "message", "role": "assistant"}],
    )  # fmt: skip
    Batch.objects.create(tenant=tenant, key=key, endpoint="/v1/completions", input_file=tenant.pk, total=3)
    webhook = WebhookEndpoint.objects.create(
        tenant=tenant, url="https://hooks.acme.test/", events=["member.joined"], created_by_name="owner@acme.test",
        sealed_secret="SEALED-WEBHOOK", former_sealed_secret="SEALED-FORMER-WEBHOOK",
    )  # fmt: skip
    WebhookDelivery.objects.create(
        tenant=tenant, endpoint=webhook, event=webhook.pk, kind="member.joined", payload={"type": "member.joined"}
    )
    BreakGlass.objects.create(
        tenant=tenant, operator_name="op@octavo.test", reason="They asked us to look.", opened_at=now,
        expires_at=now + timedelta(minutes=15),
    )  # fmt: skip


def test_each_model_of_tenants_rows_is_in_an_export_or_left_out_for_a_reason(
    team: Team, strangers: Team, sent: Sent
) -> None:
    owned = {model for model in apps.get_models() if issubclass(model, TenantOwned)}
    assert owned == ROWS.keys() | PARTS.keys() | LEFT_OUT.keys()
    assert len(owned) == len(ROWS) + len(PARTS) + len(LEFT_OUT)
    filled(team)
    export = request_export(access=team.owner)
    sent.run()
    file = opened(export)
    rows = {entry["name"]: entry["rows"] for entry in json.loads(file.read("manifest.json"))["files"]}
    for model, name in ROWS.items():
        own = model._default_manager.filter(**{model.tenant_path: team.tenant})  # type: ignore[attr-defined]
        later = 1 if model is AuditEntry else 0  # that the export was made
        assert rows[name] == own.count() - later > 0, name
    readme = file.read("README.txt").decode()
    for name in file.namelist():
        # Files are people's own: said once for all of them.
        assert name in readme or name == "README.txt" or name.startswith("files/file-"), name


def test_an_export_has_what_people_have_set(team: Team, sent: Sent) -> None:
    filled(team)
    export = request_export(access=team.owner)
    sent.run()
    file = opened(export)
    (chat,) = lines(file, "conversations.jsonl")
    live, archived = lines(file, "assistants.jsonl")
    assert (chat["assistant"], chat["model"]) == (live["slug"], "small")
    (version,) = lines(file, "prompts.jsonl")
    assert (live["published"], live["published_number"], live["is_default"]) == (version["id"], 1, True)
    assert (archived["slug"], archived["description"], archived["order"]) == ("archived-one", "Knows the tax.", 3)
    assert archived["archived_at"]
    old, new = lines(file, "keys.jsonl")
    assert (old["allowed_origins"], old["allowed_networks"]) == (["https://app.test"], ["10.0.0.0/8"])
    assert old["scopes"] == ["chat", "system"]
    assert all((old["expires_at"], old["replaced_at"], new["revoked_at"]))
    assert new["replaces"] == old["id"]
    (invitation,) = lines(file, "invitations.jsonl")
    assert (invitation["email"], invitation["invited_by"]) == ("new@acme.test", "owner@acme.test")
    limits = json.loads(file.read("limits.json"))
    assert (limits["plan"], limits["overrides"]) == ("Standard", {"queue_length": 17})
    assert limits["limits"]["output_tokens"] == 4096
    lower = lines(file, "lower_limits.jsonl")
    assert [(row["user"], bool(row["key"]), row["requests_per_minute"], row["tokens_per_month"]) for row in lower] == [
        (None, True, 5, None), ("member@acme.test", False, None, 1000),
    ]  # fmt: skip
    assert [(row["subject"], row["used"]) for row in lines(file, "meters.jsonl")] == [("", 42)]
    (day,) = csv.DictReader(io.StringIO(file.read("usage_days.csv").decode()))
    assert (day["principal"], day["requests"]) == ("user:7", "1")
    sign_in = json.loads(file.read("sign_in.json"))
    assert (sign_in["mfa"], sign_in["issuer"]) == ("managers", "https://id.acme.test")
    assert [claim["domain"] for claim in sign_in["domains"]] == ["acme.test"]
    (response,) = lines(file, "responses.jsonl")
    assert (response["settings"], response["principal"]) == ({"metadata": {"for": "tests"}}, team.key.principal)
    assert [response[side][0]["role"] for side in ("input", "output")] == ["user", "assistant"]
    (plan,) = lines(file, "files.jsonl")
    assert (plan["name"], plan["user"], plan["bytes"]) == ("Plan.TXT", "member@acme.test", 12)
    assert plan["place"] == f"files/{plan['id']}.txt"
    assert file.read(plan["place"]) == b"nine o'clock"
    (attachment,) = lines(file, "attachments.jsonl")
    first = min(lines(file, "messages.jsonl"), key=lambda row: row["created_at"])
    assert (attachment["message"], attachment["file"]) == (first["id"], plan["id"])
    (webhook,) = lines(file, "webhooks.jsonl")
    assert (webhook["url"], webhook["events"]) == ("https://hooks.acme.test/", ["member.joined"])
    (batch,) = lines(file, "batches.jsonl")
    assert (batch["endpoint"], batch["total"], batch["status"]) == ("/v1/completions", 3, "validating")
    (delivery,) = lines(file, "deliveries.jsonl")
    assert (delivery["webhook"], delivery["payload"]) == (webhook["id"], {"type": "member.joined"})
    (reading,) = lines(file, "readings.jsonl")
    assert (reading["operator"], reading["reason"]) == ("op@octavo.test", "They asked us to look.")


def test_no_secret_of_any_row_is_in_an_export(team: Team, sent: Sent) -> None:
    filled(team)
    export = request_export(access=team.owner)
    sent.run()
    file = opened(export)
    whole = b"".join(file.read(name) for name in file.namelist())
    seen = set()
    for model in [Tenant, *(model for model in apps.get_models() if issubclass(model, TenantOwned))]:
        for field in model._meta.concrete_fields:
            if any(word in field.name for word in SECRET):
                values = [value for value in model._default_manager.values_list(field.name, flat=True) if value]
                assert values, f"no {field} to look for"
                assert not [value for value in values if value.encode() in whole], str(field)
                seen.add(field.name)
    assert seen == {"salt", "hash", "sealed_secret", "former_sealed_secret", "nonce", "digest"}


def test_the_manifest_says_what_is_in_it_and_the_row_says_what_the_file_is(team: Team, sent: Sent) -> None:
    a_chat(team.member, "one", "two")
    export = request_export(access=team.owner)
    sent.run()
    file = opened(export)
    manifest = json.loads(file.read("manifest.json"))
    assert {entry["name"] for entry in manifest["files"]} == set(file.namelist()) - {"manifest.json"}
    for entry in manifest["files"]:
        data = file.read(entry["name"])
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]
        assert len(data) == entry["bytes"]
    rows = {entry["name"]: entry["rows"] for entry in manifest["files"]}
    assert (rows["messages.jsonl"], rows["conversations.jsonl"], rows["usage.csv"]) == (2, 1, 1)
    content = export.path.read_bytes()
    assert export.sha256 == hashlib.sha256(content).hexdigest()
    assert export.size == len(content)
    assert oct(export.path.stat().st_mode)[-3:] == "600"
    entry = AuditEntry.objects.get(action="data.export_made")
    assert entry.details == {"size": export.size, "sha256": export.sha256}


def test_ten_thousand_messages_come_in_pages_and_progress_is_told(
    team: Team, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = a_chat(team.member, "first")
    Message.objects.bulk_create(
        Message(conversation=chat, role="user", text=f"message {number} {ODD}") for number in range(10_000)
    )
    told: list[int] = []
    monkeypatch.setattr(exports, "BEAT_S", 0.0)
    real = exports._mine

    def mine(export: Export) -> Any:
        told.append(Export.objects.get(pk=export.pk).percent)
        return real(export)

    monkeypatch.setattr(contents, "PAGE", 501)
    monkeypatch.setattr(exports, "BEAT_S", 0.02)
    monkeypatch.setattr(exports, "_mine", mine)
    export = request_export(access=team.owner)
    sent.run()
    file = opened(export)
    rows = lines(file, "messages.jsonl")
    assert len(rows) == 10_001
    assert len({row["id"] for row in rows}) == 10_001
    assert told == sorted(told)
    assert any(0 < percent < 100 for percent in told)


def test_a_file_in_the_archive_may_outgrow_four_gigabytes(tmp_path: Path) -> None:
    """zip64: the local header has the 64-bit sizes already, so nothing needs to be known of what is still to come."""
    with Archive(tmp_path / "a.zip", tmp_path / "a.part", lambda rows: None) as made:
        made.lines("rows.jsonl", ({"n": n} for n in range(3)))
    data = (tmp_path / "a.zip").read_bytes()
    assert int.from_bytes(data[4:6], "little") == 45, "version 4.5 is needed to extract: zip64"
    assert data[26:28] == len("rows.jsonl").to_bytes(2, "little")
    assert int.from_bytes(data[30 + 10 :][:2], "little") == 1, "the zip64 extra field"


def test_a_killed_worker_leaves_nothing_and_the_job_starts_again(team: Team, sent: Sent) -> None:
    """The worker was killed: the row runs, its heartbeat is old, half a file lies there."""
    a_chat(team.member, "one")
    export = request_export(access=team.owner)
    sent.calls.clear()
    half = export.directory / f"{export.pk}.1.part"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half")
    long_ago = timezone.now() - timedelta(minutes=2)
    Export.objects.update(state=JobState.RUNNING, attempt=1, heartbeat_at=long_ago, created_at=long_ago)
    exports.tend()
    sent.run()
    opened(export)
    assert [path.name for path in export.directory.iterdir()] == [f"{export.pk}.zip"]
    assert Export.objects.get().attempt == 2


def test_a_worker_that_was_given_up_and_wakes_again_changes_nothing(team: Team) -> None:
    a_chat(team.member, "one")
    export = request_export(access=team.owner)
    Export.objects.update(state=JobState.RUNNING, attempt=1)
    asleep = Export.objects.get()
    Export.objects.update(attempt=2)
    with pytest.raises(exports.Stopped):
        exports._make(asleep)
    assert list(export.directory.iterdir()) == []


def test_after_three_kills_it_has_failed_and_says_so(team: Team, sent: Sent) -> None:
    request_export(access=team.owner)
    long_ago = timezone.now() - timedelta(minutes=2)
    Export.objects.update(state=JobState.RUNNING, attempt=3, heartbeat_at=long_ago)
    exports.tend()
    export = Export.objects.get()
    assert (export.state, export.error) == (JobState.FAILED, exports.KILLED)
    request_export(access=team.owner)  # and does not stand in the way of the next


def test_a_fault_ends_in_words_and_leaves_no_file(team: Team, sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(contents, "write_team", fails)
    export = request_export(access=team.owner)
    sent.run()
    export.refresh_from_db()
    assert (export.state, export.error) == (JobState.FAILED, exports.FAILED)
    assert list(export.directory.iterdir()) == []


def test_a_stopped_export_ends_where_it_is(team: Team, sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    a_chat(team.member, *["text"] * 50)
    export = request_export(access=team.owner)
    monkeypatch.setattr(exports, "BEAT_S", 0.0)
    real = archive._line
    seen: list[int] = []

    def line(row: dict[str, Any]) -> bytes:
        seen.append(1)
        if len(seen) == 20:
            cancel_export(access=team.owner, export_id=export.pk)
        return real(row)

    monkeypatch.setattr(archive, "_line", line)
    sent.run()
    export.refresh_from_db()
    assert export.state == JobState.CANCELLED
    assert len(seen) <= 21
    assert list(export.directory.iterdir()) == []


def test_one_export_at_a_time(team: Team, strangers: Team, sent: Sent) -> None:
    export = request_export(access=team.owner)
    with pytest.raises(Conflict):
        request_export(access=team.owner)
    request_export(access=strangers.owner)
    sent.run()
    opened(export)
    request_export(access=team.owner)


def test_an_export_is_gone_after_its_week(team: Team, sent: Sent) -> None:
    export = request_export(access=team.owner)
    sent.run()
    export.refresh_from_db()
    assert export.expires_at is not None
    assert export.expires_at - export.finished_at == timedelta(days=7)  # type: ignore[operator]
    Export.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(NotFound):
        exports.download_of(team.owner, export.pk)
    exports.tend()
    assert Export.objects.get().state == JobState.EXPIRED
    assert not export.path.exists()


def test_only_owners_get_exports_and_a_strangers_do_not_exist(team: Team, strangers: Team) -> None:
    """P11."""
    for access in (team.member, team.key):
        with pytest.raises(Forbidden):
            request_export(access=access)
    export = request_export(access=team.owner)
    with pytest.raises(NotFound):
        exports.export_of(strangers.owner, export.pk)
    with pytest.raises(Forbidden):
        exports.export_of(team.member, export.pk)


def test_a_persons_own_export_spans_their_teams_and_holds_nobody_elses_chats(
    team: Team, strangers: Team, sent: Sent
) -> None:
    user = team.member.user
    assert user is not None
    add_member(tenant=strangers.tenant, user=user, role="member")
    from chatapp.tenants.access import access_for_user

    a_chat(team.member, "in acme", "yes")
    a_chat(access_for_user(user, "other"), "in other", "yes")
    a_chat(team.owner, "SECRET", "SECRET")
    export = request_own_export(user=user)
    with pytest.raises(Conflict):
        request_own_export(user=user)
    sent.run()
    file = opened(export)
    assert {row["title"]: row["team"] for row in lines(file, "conversations.jsonl")} == {
        "in acme": "acme", "in other": "other",
    }  # fmt: skip
    assert len(lines(file, "messages.jsonl")) == 4
    account = json.loads(file.read("account.json"))
    assert (account["email"], len(account["teams"])) == ("member@acme.test", 2)
    assert b"SECRET" not in b"".join(file.read(name) for name in file.namelist())
    assert OwnExport.objects.get().path.parent.name == str(user.pk)
    assert team.owner.user is not None
    with pytest.raises(NotFound):
        exports.own_export_of(team.owner.user, export.pk)


def test_cells_that_a_spreadsheet_would_compute_are_text() -> None:
    assert [archive._cell(value) for value in ("=1+1", "+1", "-1", "@x", "a=1", 7, None)] == [
        "'=1+1", "'+1", "'-1", "'@x", "a=1", 7, None,
    ]  # fmt: skip


def test_half_a_character_ends_no_export() -> None:
    assert archive._line({"text": "half \ud83d"}) == b'{"text":"half \\ud83d"}\n'
