"""A published version never changes, and a tenant has one that is in force."""

from __future__ import annotations

import threading
from contextvars import copy_context
from typing import Any

import pytest
import redis.exceptions
from django.db import connection, transaction

from chatapp.prompts.models import PromptVersion, PublishedVersionIsImmutable, SystemPrompt
from chatapp.prompts.selectors import published
from chatapp.prompts.services import publish
from chatapp.streaming.connection import sync_redis
from engine import protocol
from tests.chat.conftest import Team


def test_publishing_makes_the_next_version_and_keeps_the_former(team: Team) -> None:
    second = publish(tenant=team.tenant, text="Second.", note="Shorter")
    assert published(team.tenant) == second
    assert list(PromptVersion.objects.order_by("number").values_list("number", "text")) == [
        (1, "You answer for acme."),
        (2, "Second."),
    ]


@pytest.mark.django_db(transaction=True)
def test_the_engines_hear_of_a_prompt_once_it_is_committed(transactional_db: None, team: Team) -> None:
    client = sync_redis()
    seconds, _ = client.time()
    client.zadd(protocol.WORKERS, {"w": seconds * 1000})
    details = protocol.WorkerDetails(id="w", model=team.tenant.model, context=1, block_size=1, num_blocks=1, pid=1)
    client.hset(protocol.worker_key("w"), "details", protocol.encode(details))
    with transaction.atomic():
        publish(tenant=team.tenant, text="Never published.")
        transaction.set_rollback(True)
    version = publish(tenant=team.tenant, text="Second.")
    hints = client.xrange(protocol.control_key(team.tenant.model))
    told = {name.encode(): value.encode() for name, value in protocol.published_hint(str(version.pk)).items()}
    assert [fields for _, fields in hints] == [told]
    key = protocol.published_key(str(version.pk))
    assert 0 < client.ttl(key) <= protocol.PUBLISHED_TTL_S, "the prompt and its salt are not kept"
    prompt = protocol.decode_published(client.get(key))
    assert (prompt.tenant, prompt.version, prompt.weight) == (str(team.tenant.pk), str(version.pk), 1.0)
    assert prompt.system[-1] == protocol.SystemText("Second.", team.tenant.salt)


@pytest.mark.django_db(transaction=True)
def test_a_prompt_is_published_without_redis_too(
    transactional_db: None, team: Team, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*arguments: Any, **options: Any) -> None:
        raise redis.exceptions.ConnectionError("nobody there")

    monkeypatch.setattr("chatapp.prompts.tasks.announce", gone)
    assert publish(tenant=team.tenant, text="Second.") == published(team.tenant)


def test_a_published_version_cannot_be_changed(team: Team) -> None:
    version = published(team.tenant)
    assert version is not None
    version.text = "Something else."
    with pytest.raises(PublishedVersionIsImmutable):
        version.save()
    version.published_at = None
    with pytest.raises(PublishedVersionIsImmutable):
        version.save()
    version.refresh_from_db()
    assert version.text == "You answer for acme."


def test_a_draft_can_be_changed_and_is_not_in_force(team: Team) -> None:
    prompt = SystemPrompt.objects.get(tenant=team.tenant)
    draft = PromptVersion.objects.create(prompt=prompt, number=2, text="Draft")
    draft.text = "Better draft"
    draft.save()
    version = published(team.tenant)
    assert version is not None
    assert version.text == "You answer for acme."


def test_a_tenant_without_a_published_prompt_has_none(team: Team, strangers: Team) -> None:
    SystemPrompt.objects.filter(tenant=team.tenant).update(published=None)
    assert published(team.tenant) is None
    assert published(strangers.tenant) is not None


@pytest.mark.django_db(transaction=True)
def test_four_who_publish_at_once_get_four_versions(transactional_db: None, team: Team) -> None:
    failures: list[Exception] = []

    def go(number: int) -> None:
        try:
            publish(tenant=team.tenant, text=f"Number {number}")
        except Exception as error:
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=copy_context().run, args=(go, number)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert list(PromptVersion.objects.order_by("number").values_list("number", flat=True)) == [1, 2, 3, 4, 5]
    newest = published(team.tenant)
    assert newest is not None
    assert newest.number == 5
