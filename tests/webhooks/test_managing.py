"""Webhooks by page and by HTTP: what is typed stays, secrets are shown once, and each change is in the log."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from chatapp.audit.models import AuditEntry
from chatapp.errors import BadInput, Conflict, Forbidden, NotFound
from chatapp.scope import tenant_scope
from chatapp.tenants.models import ApiKey, KeyScope
from chatapp.tenants.services import create_api_key
from chatapp.webhooks import outbox, sending, services, targets
from chatapp.webhooks.models import WebhookDelivery, WebhookEndpoint
from tests.chat.conftest import Team
from tests.webhooks.conftest import Receiver

BACKEND = "django.contrib.auth.backends.ModelBackend"
PAGE = "/t/acme/admin/webhooks"
API = "/api/t/acme/webhooks"


@pytest.fixture
def owner(team: Team) -> Client:
    client = Client()
    client.force_login(team.owner.user, backend=BACKEND)  # type: ignore[arg-type]
    return client


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any) -> None:
    """Sent at once: a test's transaction never commits."""
    monkeypatch.setattr(outbox, "start", lambda pk: sending.drain(str(pk)))
    monkeypatch.setattr(outbox.transaction, "on_commit", lambda work, robust=False: work())


# --- the rules ----------------------------------------------------------------------------------------------------


def test_a_secret_is_sealed_in_its_row_and_returned_once(team: Team) -> None:
    webhook, secret = services.create(access=team.owner, url="https://8.8.8.8/", events=["member.joined"])
    assert re.fullmatch(r"whsec_[A-Za-z0-9+/]{43}=", secret)
    row = WebhookEndpoint.objects.values().get(pk=webhook.pk)
    assert secret not in json.dumps(row, default=str)
    assert secret not in json.dumps(list(AuditEntry.objects.values()), default=str)


def test_who_may_not_manage_webhooks_does_nothing_with_them(team: Team, webhook: WebhookEndpoint) -> None:
    for access in (team.member, team.key):
        with pytest.raises(Forbidden):
            services.create(access=access, url="https://8.8.8.8/", events=["member.joined"])
        with pytest.raises(Forbidden):
            services.rotate(access=access, webhook_id=webhook.pk)


def test_another_teams_webhook_does_not_exist(team: Team, strangers: Team, webhook: WebhookEndpoint) -> None:
    with tenant_scope(strangers.tenant):
        for do in (services.rotate, services.delete, services.send_test):
            with pytest.raises(NotFound):
                do(access=strangers.owner, webhook_id=webhook.pk)


@pytest.mark.parametrize(
    ("events", "words"), [([], "at least one"), (["member.joined", "no.such"], "'no.such' is no event")]
)
def test_events_are_those_that_there_are(team: Team, events: list[str], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        services.create(access=team.owner, url="https://8.8.8.8/", events=events)


def test_a_team_has_a_bounded_number_of_them(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MOST_ENDPOINTS", 2)
    for _ in range(2):
        services.create(access=team.owner, url="https://8.8.8.8/", events=["member.joined"])
    with pytest.raises(Conflict, match="2 webhooks at most"):
        services.create(access=team.owner, url="https://8.8.8.8/", events=["member.joined"])


def test_each_change_is_in_the_audit_log_and_none_is_where_nothing_changed(
    team: Team, webhook: WebhookEndpoint
) -> None:
    services.change(access=team.owner, webhook_id=webhook.pk, changes={"description": " The\nfirst "})
    services.change(access=team.owner, webhook_id=webhook.pk, changes={"description": "The first"})
    services.change(access=team.owner, webhook_id=webhook.pk, changes={"enabled": False})
    services.rotate(access=team.owner, webhook_id=webhook.pk)
    services.delete(access=team.owner, webhook_id=webhook.pk)
    found = AuditEntry.objects.filter(action__startswith="webhook.").order_by("at", "id")
    assert [(entry.action, entry.details) for entry in found] == [
        ("webhook.created", {"events": "budget.threshold, member.joined"}),
        ("webhook.changed", {"description": ["", "The first"]}),
        ("webhook.changed", {"enabled": [True, False]}),
        ("webhook.rotated", {}),
        ("webhook.deleted", {}),
    ]


def test_switched_off_it_gives_up_what_waits_and_sends_no_tests(
    team: Team, webhook: WebhookEndpoint, receiver: Receiver
) -> None:
    waiting = services.send_test(access=team.owner, webhook_id=webhook.pk)
    services.change(access=team.owner, webhook_id=webhook.pk, changes={"enabled": False})
    waiting.refresh_from_db()
    assert (waiting.state, waiting.error) == ("failed", sending.SWITCHED_OFF)
    with pytest.raises(Conflict, match="Switch it on first"):
        services.send_test(access=team.owner, webhook_id=webhook.pk)
    with pytest.raises(Conflict, match="Switch it on first"):
        services.send_again(access=team.owner, webhook_id=webhook.pk, delivery_id=waiting.pk)


def test_an_event_that_is_sent_again_has_the_same_id_and_one_that_waits_goes_now(
    team: Team, webhook: WebhookEndpoint, receiver: Receiver
) -> None:
    receiver.says(500, 200, 200)
    first = services.send_test(access=team.owner, webhook_id=webhook.pk)
    sending.drain(str(webhook.pk))
    assert services.send_again(access=team.owner, webhook_id=webhook.pk, delivery_id=first.pk).pk == first.pk
    assert sending.drain(str(webhook.pk)) == 1
    second = services.send_again(access=team.owner, webhook_id=webhook.pk, delivery_id=first.pk)
    assert second.pk != first.pk
    sending.drain(str(webhook.pk))
    assert len({got.headers["webhook-id"] for got in receiver.got}) == 1
    assert len(receiver.got) == 3


# --- pages --------------------------------------------------------------------------------------------------------


def test_an_empty_list_teaches_what_webhooks_are_and_how_to_check_them(owner: Client) -> None:
    text = owner.get(PAGE).content.decode()
    assert "There are no webhooks yet" in text
    assert "standardwebhooks" in text
    assert "webhook.verify(body, headers)" in text


def test_a_webhook_is_added_its_secret_shown_once_and_a_reload_makes_no_second(owner: Client) -> None:
    token = re.search(r'name="once" value="(\w+)"', owner.get(f"{PAGE}/new").content.decode())
    assert token
    sent = {"url": "https://hooks.acme.com/x", "events": ["member.joined"], "once": token[1]}
    shown = owner.post(f"{PAGE}/new", sent)
    assert shown.status_code == 201
    secret = re.search(r"whsec_[\w+/]+=", shown.content.decode())
    assert secret
    assert owner.post(f"{PAGE}/new", sent).status_code == 302
    webhook = WebhookEndpoint.objects.get()
    for path in (PAGE, f"{PAGE}/{webhook.pk}"):
        assert "whsec_" not in owner.get(path).content.decode().replace("whsec_…", "")


def test_what_is_refused_is_said_at_its_field_with_what_was_typed(owner: Client) -> None:
    reply = owner.post(f"{PAGE}/new", {"url": "https://10.0.0.1/x", "description": "Mine & ours", "events": []})
    text = reply.content.decode()
    assert reply.status_code == 400
    assert "This field is required" in text
    assert "https://10.0.0.1/x" in text
    assert "Mine &amp; ours" in text
    reply = owner.post(f"{PAGE}/new", {"url": "https://10.0.0.1/x", "events": ["member.joined"]})
    assert "goes to public addresses only" in reply.content.decode()
    assert not WebhookEndpoint.objects.exists()


def test_a_test_says_at_once_what_came_of_it_and_the_payload_can_be_read(
    owner: Client, webhook: WebhookEndpoint, receiver: Receiver, eager: None
) -> None:
    reply = owner.post(f"{PAGE}/{webhook.pk}/test", follow=True)
    text = reply.content.decode()
    assert "It was taken: 204 within" in text
    assert "This is a test of the webhook of Acme." in text
    receiver.says(500)
    text = owner.post(f"{PAGE}/{webhook.pk}/test", follow=True).content.decode()
    assert "It was not taken. It answered 500." in text
    listed = owner.get(f"{PAGE}/{webhook.pk}").content.decode()
    assert "Tries again" in listed
    assert "Delivered" in listed
    assert "Nothing has been taken since" in listed
    assert "No delivery is in this state" in owner.get(f"{PAGE}/{webhook.pk}?state=failed").content.decode()


def test_it_is_deleted_only_when_its_name_is_typed(owner: Client, webhook: WebhookEndpoint) -> None:
    assert owner.post(f"{PAGE}/{webhook.pk}/delete", {"confirm": "no"}).status_code == 400
    assert WebhookEndpoint.objects.exists()
    assert owner.post(f"{PAGE}/{webhook.pk}/delete", {"confirm": "127.0.0.1"}).status_code == 302
    assert not WebhookEndpoint.objects.exists()


def test_it_is_switched_off_and_on_and_rotated_by_page(owner: Client, webhook: WebhookEndpoint) -> None:
    owner.post(f"{PAGE}/{webhook.pk}/switch", {"enabled": "no"})
    assert "It is off." in owner.get(f"{PAGE}/{webhook.pk}").content.decode()
    owner.post(f"{PAGE}/{webhook.pk}/switch", {"enabled": "yes"})
    assert "It is off." not in owner.get(f"{PAGE}/{webhook.pk}").content.decode()
    shown = owner.post(f"{PAGE}/{webhook.pk}/rotate")
    assert shown.status_code == 201
    assert "the former secret signs as well" in shown.content.decode()


def test_ten_thousand_deliveries_come_in_pages_without_a_gap(
    owner: Client, team: Team, webhook: WebhookEndpoint
) -> None:
    now = timezone.now()
    WebhookDelivery.objects.bulk_create(
        WebhookDelivery(
            tenant=team.tenant, endpoint=webhook, event=webhook.pk, kind="member.joined", payload={}, created_at=now,
            state="delivered", next_attempt_at=None,
        )
        for _ in range(10_000)
    )  # fmt: skip
    seen, cursor = set(), ""
    for _ in range(3):
        found = owner.get(f"{API}/{webhook.pk}/deliveries", {"cursor": cursor}).json()
        seen |= {item["id"] for item in found["items"]}
        cursor = found["next"]
    assert len(seen) == 150
    text = owner.get(f"{PAGE}/{webhook.pk}").content.decode()
    assert "Older" in text
    assert owner.get(f"{PAGE}/{webhook.pk}?cursor=nonsense").status_code == 302


# --- by HTTP ------------------------------------------------------------------------------------------------------


def test_a_program_does_all_of_it_by_http(team: Team, receiver: Receiver, eager: None) -> None:
    secret = create_api_key(tenant=team.tenant, name="robot", scopes=(KeyScope.ADMIN,))[1]
    client = Client(headers={"Authorization": f"Bearer {secret}"})

    def send(method: str, path: str, **body: Any) -> Any:
        return client.generic(method, API + path, json.dumps(body), content_type="application/json")

    made = send("POST", "", url=receiver.url, events=["member.joined"], description="Robot")
    assert made.status_code == 201, made.content
    assert made.json()["secret"].startswith("whsec_")
    webhook = made.json()["webhook"]
    robot = str(ApiKey.objects.get(name="robot"))
    assert (webhook["enabled"], webhook["waiting"], webhook["created_by"]) == (True, 0, robot)
    one = f"/{webhook['id']}"
    assert [item["id"] for item in send("GET", "").json()["items"]] == [webhook["id"]]
    assert send("PATCH", one, events=["budget.threshold"]).json()["events"] == ["budget.threshold"]
    assert send("PATCH", one, url="https://10.0.0.1/").json()["error"]["param"] == "url"
    rotated = send("POST", f"{one}/rotate").json()
    assert rotated["secret"] != made.json()["secret"]
    assert rotated["webhook"]["former_secret_until"]
    sent = send("POST", f"{one}/test")
    assert sent.status_code == 202
    (listed,) = send("GET", f"{one}/deliveries").json()["items"]
    assert (listed["type"], listed["state"], listed["response_status"]) == ("webhook.test", "delivered", 204)
    read = send("GET", f"{one}/deliveries/{listed['id']}").json()
    assert read["payload"]["type"] == "webhook.test"
    assert send("POST", f"{one}/deliveries/{listed['id']}/again").status_code == 202
    assert [got.headers["webhook-id"] for got in receiver.got] == [listed["message_id"]] * 2
    assert send("GET", f"{one}/deliveries?state=odd").json()["error"]["param"] == "state"
    assert send("DELETE", one).status_code == 204
    assert send("GET", one).status_code == 404


def test_the_address_of_an_existing_one_is_looked_at_again_only_when_it_changes(
    team: Team, webhook: WebhookEndpoint, settings: Any
) -> None:
    settings.OCTAVO_WEBHOOK_ALLOW = []
    with pytest.raises(BadInput):
        targets.checked(webhook.url)
    changed = services.change(
        access=team.owner, webhook_id=webhook.pk, changes={"url": webhook.url, "description": "Kept"}
    )
    assert changed.description == "Kept"
