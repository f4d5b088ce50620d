"""An event is kept with what it tells of, arrives signed, is tried again for a day, and holds up nobody."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import pytest
import time_machine
from django.core import mail
from django.db import transaction
from django.utils import timezone
from standardwebhooks import Webhook, WebhookVerificationError

from chatapp import events
from chatapp.audit.models import AuditEntry
from chatapp.limits.models import Meter, TenantLimits
from chatapp.limits.selectors import forget, limits_of_team, month_of
from chatapp.limits.warning import note_use
from chatapp.scope import tenant_scope
from chatapp.tenants.addresses import parse
from chatapp.tenants.invitations import invite, join_with_new_account, token
from chatapp.webhooks import outbox, sending, services, tasks
from chatapp.webhooks.kinds import EVENTS
from chatapp.webhooks.models import DeliveryState, WebhookDelivery, WebhookEndpoint
from tests.chat.conftest import Team
from tests.webhooks.conftest import Receiver

Tell = Callable[..., None]


def drain(webhook: WebhookEndpoint) -> int:
    return sending.drain(str(webhook.pk))


def deliveries() -> list[WebhookDelivery]:
    return list(WebhookDelivery.objects.order_by("created_at"))


def test_an_event_arrives_and_the_official_library_takes_its_signature(
    team: Team, receiver: Receiver, started: list[Any], tell: Tell
) -> None:
    webhook, secret = services.create(access=team.owner, url=receiver.url, events=["member.joined"])
    tell(email="ada@acme.test", note="日本 ☂")
    assert started == [webhook.pk]
    assert drain(webhook) == 1
    (got,) = receiver.got
    payload = Webhook(secret).verify(got.body, got.headers)
    assert payload["type"] == "member.joined"
    assert payload["data"] == {"email": "ada@acme.test", "note": "日本 ☂"}
    assert payload["timestamp"].endswith("Z")
    assert got.headers["content-type"] == "application/json"
    (row,) = deliveries()
    assert (row.state, row.attempts, row.response_status, row.error) == (DeliveryState.DELIVERED, 1, 204, "")
    assert got.headers["webhook-id"] == row.message_id
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(got.body + b" ", got.headers)
    assert drain(webhook) == 0, "there is nothing more"


def test_after_a_rotation_both_secrets_hold_for_a_day_and_then_the_new_one_alone(
    team: Team, receiver: Receiver, started: list[Any], tell: Tell
) -> None:
    webhook, old = services.create(access=team.owner, url=receiver.url, events=["member.joined"])
    _, new = services.rotate(access=team.owner, webhook_id=webhook.pk)
    tell()
    drain(webhook)
    for secret in (old, new):
        Webhook(secret).verify(receiver.got[0].body, receiver.got[0].headers)
    with time_machine.travel(timezone.now() + timedelta(hours=25)):
        tell()
        drain(webhook)
        Webhook(new).verify(receiver.got[1].body, receiver.got[1].headers)
        with pytest.raises(WebhookVerificationError):
            Webhook(old).verify(receiver.got[1].body, receiver.got[1].headers)


def test_only_those_who_want_an_event_get_it_and_other_teams_never(
    team: Team, strangers: Team, receiver: Receiver, started: list[Any], tell: Tell
) -> None:
    wants = services.create(access=team.owner, url=receiver.url, events=["member.joined"])[0]
    services.create(access=team.owner, url=receiver.url, events=["budget.threshold"])
    off = services.create(access=team.owner, url=receiver.url, events=["member.joined"])[0]
    services.change(access=team.owner, webhook_id=off.pk, changes={"enabled": False})
    with tenant_scope(strangers.tenant):
        services.create(access=strangers.owner, url=receiver.url, events=list(EVENTS))
    tell()
    assert [row.endpoint_id for row in WebhookDelivery.objects.all()] == [wants.pk]


def test_an_event_of_a_transaction_that_is_undone_was_never_told(team: Team, webhook: WebhookEndpoint) -> None:
    with transaction.atomic():
        events.tell(tenant_id=team.tenant.pk, kind="member.joined", data={})
        assert WebhookDelivery.objects.exists()
        transaction.set_rollback(True)
    assert not WebhookDelivery.objects.exists()


def test_a_kind_that_nobody_knows_is_told_to_nobody_and_breaks_nothing(tell: Tell, webhook: WebhookEndpoint) -> None:
    tell("batch.flew_away")
    assert deliveries() == []


def test_a_failure_is_tried_again_at_growing_distances_for_a_day_and_then_given_up(
    receiver: Receiver, webhook: WebhookEndpoint, tell: Tell
) -> None:
    receiver.says(500)
    tell()
    began = timezone.now()
    waits, moments = [], []
    with time_machine.travel(began, tick=False) as clock:
        while (row := deliveries()[0]).next_attempt_at is not None:
            clock.move_to(max(row.next_attempt_at, timezone.now()))
            assert drain(webhook) == 1
            moments.append(timezone.now())
            row = deliveries()[0]
            if row.next_attempt_at is not None:
                waits.append((row.next_attempt_at - timezone.now()).total_seconds())
                assert drain(webhook) == 0, "not before its time"
    assert len(receiver.got) == 8
    assert {got.headers["webhook-id"] for got in receiver.got} == {row.message_id}
    assert len({got.headers["webhook-timestamp"] for got in receiver.got}) == 8
    for wait, planned in zip(waits, sending.SCHEDULE, strict=True):
        assert 0.8 * planned <= wait <= 1.2 * planned
    assert timedelta(hours=20) < moments[-1] - began < timedelta(hours=36)
    assert (row.state, row.attempts, row.error) == (DeliveryState.FAILED, 8, "It answered 500.")


def test_a_success_at_the_second_attempt_ends_it(receiver: Receiver, webhook: WebhookEndpoint, tell: Tell) -> None:
    receiver.says(503, 200)
    tell()
    drain(webhook)
    webhook.refresh_from_db()
    assert webhook.failing_since is not None
    with time_machine.travel(timezone.now() + timedelta(seconds=10)):
        drain(webhook)
    webhook.refresh_from_db()
    assert webhook.failing_since is None
    assert deliveries()[0].state == DeliveryState.DELIVERED


def test_an_answer_of_410_switches_it_off_and_what_waits_is_given_up(
    team: Team, receiver: Receiver, webhook: WebhookEndpoint, tell: Tell
) -> None:
    receiver.says(410)
    tell()
    tell()
    assert drain(webhook) == 1
    webhook.refresh_from_db()
    assert not webhook.enabled
    assert "410" in webhook.disabled_because
    assert {row.state for row in deliveries()} == {DeliveryState.FAILED}
    entry = AuditEntry.objects.get(action="webhook.given_up")
    assert (entry.actor_name, entry.object_id) == ("Octavo", str(webhook.pk))
    # Switched on again it begins anew.
    again = services.change(access=team.owner, webhook_id=webhook.pk, changes={"enabled": True})
    assert again.enabled
    assert again.disabled_because == ""


def test_one_that_has_taken_nothing_for_days_is_switched_off_and_its_admins_are_told_by_mail(
    team: Team, receiver: Receiver, webhook: WebhookEndpoint, tell: Tell, settings: Any,
    django_capture_on_commit_callbacks: Any,
) -> None:  # fmt: skip
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    receiver.says(500)
    tell()
    drain(webhook)
    with time_machine.travel(timezone.now() + timedelta(days=3, minutes=1)):
        tell()
        with django_capture_on_commit_callbacks(execute=True):
            drain(webhook)
    webhook.refresh_from_db()
    assert not webhook.enabled
    assert "Nothing has been taken for 3 days" in webhook.disabled_because
    assert AuditEntry.objects.filter(action="webhook.given_up").count() == 1
    (sent,) = mail.outbox
    assert sent.to == ["owner@acme.test"]
    assert receiver.url in sent.body
    assert f"/t/acme/admin/webhooks/{webhook.pk}" in sent.body


def test_two_senders_never_have_one_endpoint_at_once_and_a_killed_ones_lease_ends(
    receiver: Receiver, webhook: WebhookEndpoint, tell: Tell
) -> None:
    tell()
    WebhookEndpoint.objects.filter(pk=webhook.pk).update(lease_until=timezone.now() + sending.LEASE)
    assert drain(webhook) == 0
    assert sending.tend() == 0
    with time_machine.travel(timezone.now() + sending.LEASE + timedelta(seconds=1)):
        assert sending.tend() == 1
        assert drain(webhook) == 1


def test_what_no_broker_took_or_a_killed_worker_left_is_found_by_the_beat(
    webhook: WebhookEndpoint, receiver: Receiver, started: list[Any], tell: Tell
) -> None:
    tell()
    started.clear()
    assert sending.tend() == 1
    assert started == [webhook.pk]
    drain(webhook)
    assert sending.tend() == 0


def test_a_team_has_a_few_senders_only_so_that_others_have_the_rest(
    team: Team, receiver: Receiver, started: list[Any], tell: Tell
) -> None:
    made = [services.create(access=team.owner, url=receiver.url, events=["member.joined"])[0] for _ in range(5)]
    tell()
    until = timezone.now() + sending.LEASE
    WebhookEndpoint.objects.filter(pk__in=[one.pk for one in made[:3]]).update(lease_until=until)
    assert drain(made[3]) == 0
    WebhookEndpoint.objects.filter(pk=made[0].pk).update(lease_until=None)
    assert drain(made[3]) == 1


def test_endpoints_that_hang_leave_senders_to_those_that_work(
    team: Team, receiver: Receiver, started: list[Any], tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [services.create(access=team.owner, url=receiver.url, events=["member.joined"])[0] for _ in range(6)]
    tell()
    hanging, working = made[:4], made[4:]
    for one in hanging:
        one.failing_since = timezone.now()
        one.save()
    inside: list[int] = []

    def hangs(endpoint: WebhookEndpoint, delivery: WebhookDelivery) -> bool:
        """While one of them hangs: the others of its kind wait, and those that work do not."""
        if endpoint.failing_since is not None:
            inside.extend([drain(other) for other in hanging[1:]] + [drain(one) for one in working])
        return real(endpoint, delivery)

    real = sending.attempt
    monkeypatch.setattr(sending, "attempt", hangs)
    assert drain(hanging[0]) == 1
    assert inside == [0, 0, 0, 1, 1]
    monkeypatch.setattr(sending, "attempt", real)
    WebhookEndpoint.objects.filter(pk=hanging[0].pk).update(lease_until=None)
    assert drain(hanging[1]) == 1


def test_endpoints_that_hang_do_not_take_all_senders_of_the_site(
    team: Team, receiver: Receiver, started: list[Any], tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [services.create(access=team.owner, url=receiver.url, events=["member.joined"])[0] for _ in range(3)]
    tell()
    until, failing = timezone.now() + sending.LEASE, timezone.now()
    monkeypatch.setattr(sending, "MOST_FAILING", 1)
    monkeypatch.setattr(sending, "MOST_FAILING_OF_A_TEAM", 9)
    WebhookEndpoint.objects.filter(pk=made[0].pk).update(lease_until=until, failing_since=failing)
    WebhookEndpoint.objects.filter(pk=made[1].pk).update(failing_since=failing)
    assert drain(made[1]) == 0
    assert drain(made[2]) == 1
    assert sending.MOST_FAILING < sending.THREADS


def test_a_failure_ends_the_turn_so_that_a_broken_endpoint_keeps_no_sender(
    receiver: Receiver, webhook: WebhookEndpoint, tell: Tell
) -> None:
    receiver.says(500)
    for _ in range(5):
        tell()
    assert drain(webhook) == 1


def test_what_is_due_is_sent_in_the_order_of_the_events(
    receiver: Receiver, webhook: WebhookEndpoint, tell: Tell
) -> None:
    for number in range(4):
        tell(number=number)
    assert drain(webhook) == 4
    assert [json.loads(got.body)["data"]["number"] for got in receiver.got] == [0, 1, 2, 3]


def test_senders_are_threads_of_their_own_and_a_slow_endpoint_takes_one() -> None:
    done: list[str] = []
    gate, all_fast = threading.Event(), threading.Event()

    def work(endpoint: str) -> None:
        if endpoint == "slow":
            gate.wait(5)
        if endpoint == "breaks":
            raise RuntimeError
        done.append(endpoint)
        if len(done) == 3:
            all_fast.set()

    senders = sending.Senders(threads=2, work=work)
    senders.add("slow")
    for endpoint in ("a", "breaks", "b", "c"):
        senders.add(endpoint)
    assert all_fast.wait(5), done
    assert sorted(done) == ["a", "b", "c"]
    gate.set()


def test_too_many_that_wait_are_counted_and_not_kept(
    webhook: WebhookEndpoint, tell: Tell, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MOST_PENDING", 2)
    for _ in range(5):
        tell()
    webhook.refresh_from_db()
    assert (len(deliveries()), webhook.missed) == (2, 3)


def test_deliveries_that_ended_are_kept_for_two_weeks_and_those_that_wait_for_as_long_as_they_do(
    webhook: WebhookEndpoint, receiver: Receiver, tell: Tell
) -> None:
    tell()
    drain(webhook)
    tell()
    with time_machine.travel(timezone.now() + timedelta(days=15)):
        assert sending.forget_old() == 1
    assert [row.state for row in deliveries()] == [DeliveryState.PENDING]


def test_a_suspended_team_is_told_nothing_until_it_is_back(
    team: Team, webhook: WebhookEndpoint, receiver: Receiver, tell: Tell
) -> None:
    tell()
    type(team.tenant).objects.filter(pk=team.tenant.pk).update(suspended_at=timezone.now())
    assert (drain(webhook), sending.tend()) == (0, 0)
    type(team.tenant).objects.filter(pk=team.tenant.pk).update(suspended_at=None)
    assert drain(webhook) == 1


def test_one_that_was_deleted_while_it_was_sent_to_stays_deleted(
    team: Team, webhook: WebhookEndpoint, receiver: Receiver, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell()
    real = sending.posting.post

    def post(*args: Any, **kwargs: Any) -> Any:
        outcome = real(*args, **kwargs)
        services.delete(access=team.owner, webhook_id=webhook.pk)
        return outcome

    monkeypatch.setattr(sending.posting, "post", post)
    assert drain(webhook) == 1
    assert not WebhookEndpoint.objects.exists()
    assert not WebhookDelivery.objects.exists()


def test_a_secret_that_cannot_be_read_any_more_is_said_and_nothing_is_sent_unsigned(
    webhook: WebhookEndpoint, receiver: Receiver, tell: Tell
) -> None:
    WebhookEndpoint.objects.filter(pk=webhook.pk).update(sealed_secret="of another key")
    tell()
    drain(webhook)
    assert receiver.got == []
    assert "rotate it" in deliveries()[0].error


# --- what is told -------------------------------------------------------------------------------------------------


def test_somebody_who_accepts_an_invitation_is_told_of(team: Team, webhook: WebhookEndpoint) -> None:
    (invited,) = invite(access=team.owner, addresses=parse("new@example.org"), role="editor")
    assert invited.invitation is not None
    join_with_new_account(token=token(invited.invitation), name="New", password="a long pass phrase")
    (row,) = deliveries()
    assert row.payload["type"] == "member.joined"
    data = row.payload["data"]
    assert (data["email"], data["role"], data["by"]) == ("new@example.org", "editor", "invitation")


@pytest.mark.parametrize("share", [80, 100])
def test_a_budget_that_is_nearly_used_is_told_once_for_each_mark(
    team: Team, webhook: WebhookEndpoint, share: int
) -> None:
    limits_of_team(team.tenant)
    TenantLimits.objects.filter(tenant=team.tenant).update(tokens_per_month=1000)
    month: date = month_of(timezone.now())
    Meter.objects.update_or_create(tenant=team.tenant, month=month, subject="", defaults={"used": 10 * share})
    forget()
    for _ in range(2):
        note_use(team.tenant, month)
    (row,) = deliveries()
    assert row.kind == "budget.threshold"
    assert row.payload["data"] == {"percent": share, "used": 10 * share, "limit": 1000, "month": f"{month:%Y-%m}"}


def test_celerys_message_is_an_id_and_a_broker_that_is_away_stops_nothing(
    team: Team, receiver: Receiver, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook, _ = services.create(access=team.owner, url=receiver.url, events=["member.joined"])
    sent: list[Any] = []
    monkeypatch.setattr(tasks.drain, "apply_async", lambda **kwargs: sent.append(kwargs))
    tell(email="ada@acme.test")
    assert sent == [{"args": [str(webhook.pk)], "retry": False}]

    def away(**kwargs: Any) -> None:
        raise OSError("no broker")

    monkeypatch.setattr(tasks.drain, "apply_async", away)
    tell()
    assert len(deliveries()) == 2
