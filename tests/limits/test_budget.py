"""What a month may cost is reserved before it is spent, and settled by what was spent."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
import time_machine
from django.db import connection, transaction
from django.utils import timezone

from chatapp.audit.models import AuditEntry
from chatapp.chat import reaper, recorder, services
from chatapp.chat.models import Conversation, Generation, State
from chatapp.errors import Refusal
from chatapp.limits import budget
from chatapp.limits.budget import QuotaUsedUp, RateLimited
from chatapp.limits.models import TEAM, Meter, Reservation
from chatapp.limits.selectors import next_month, used_by_subject, warning
from engine import protocol
from engine.protocol import Cancelled, ChatMessage, Refused, SystemText
from tests.chat.conftest import ScriptedWorker, Team
from tests.limits.conftest import Allow

pytestmark = pytest.mark.django_db


def call(access: Any, **params: Any) -> Generation:
    return services.complete(access=access, messages=[{"role": "user", "content": "Hi"}], params=params)


def meter(team: Team, subject: str = TEAM) -> tuple[int, int]:
    """(used, reserved) of the only month there is."""
    found = Meter.objects.get(tenant=team.tenant, subject=subject)
    return found.used, found.reserved


def request_of(generation: Generation) -> protocol.Request:
    assert generation.request is not None
    return protocol.decode_request(bytes(generation.request))


def bound_of(generation: Generation) -> int:
    request = request_of(generation)
    return budget.most_prompt_tokens(request.system, request.messages)


# --- reserve and settle -------------------------------------------------------------------------------------------


def test_what_is_under_way_is_reserved_and_what_has_ended_is_used(
    team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    generation = call(team.key, max_tokens=50)
    held = bound_of(generation) + 50
    assert meter(team) == meter(team, team.key.principal) == (0, held)
    worker.answer("a", "b", "c")
    record()
    assert meter(team) == meter(team, team.key.principal) == (7 + 3, 0)
    assert not Reservation.objects.exists()


def test_settling_again_changes_nothing(team: Team, worker: ScriptedWorker, record: Callable[[], int]) -> None:
    """P10: a replay of the recorder finds no reservation."""
    generation = call(team.key, max_tokens=50)
    worker.answer("a")
    record()
    before = meter(team)
    recorder.write(generation, recorder.Answer(prompt_tokens=900, completion_tokens=900), State.FINISHED)
    budget.settle(generation.pk, tokens=900)
    assert meter(team) == before


@pytest.mark.parametrize("ending", ["refused", "cancelled while it waited", "cancelled", "lost", "late", "undone"])
def test_every_ending_gives_back_what_was_not_used(
    team: Team,
    worker: ScriptedWorker,
    record: Callable[[], int],
    server: redis.Redis,
    allow: Allow,
    ending: str,
) -> None:
    allow(queue_length=1)
    generation = call(team.key, max_tokens=50)
    used = 0
    if ending == "refused":
        taken = worker.take()
        worker.end(taken, Refused(seq=0, code="context_length_exceeded", message="Too long."))
    elif ending == "cancelled while it waited":
        services.cancel(access=team.key, generation_id=generation.pk)
    elif ending == "cancelled":
        worker.end(worker.begin("a", "b"), Cancelled(seq=3))
        used = 7 + 2
    elif ending == "lost":
        server.flushall()
        server.function_load(protocol.LIBRARY_SOURCE.read_text(), replace=True)
        with time_machine.travel(timezone.now() + timedelta(seconds=30)):
            assert reaper.reap() == {"interrupted": 1}
    elif ending == "late":
        Generation.objects.update(state=State.ACCEPTED)
        server.delete(protocol.request_key(str(generation.pk)))
        with time_machine.travel(timezone.now() + timedelta(hours=1)):
            assert reaper.reap() == {"timed_out": 1}
    else:
        with pytest.raises(Refusal) as full:
            call(team.key, max_tokens=50)
        assert full.value.code == "queue_full"
        assert Reservation.objects.count() == 1, "only the one that waits holds any"
        services.cancel(access=team.key, generation_id=generation.pk)
    record()
    assert meter(team) == (used, 0)


def test_a_conversation_that_is_deleted_while_it_is_answered_is_paid_for(
    team: Team, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    services.ask(access=team.member, text="Forget this")
    taken = worker.begin("a", "b")
    Conversation.objects.all().delete()
    worker.end(taken, protocol.Finished(seq=3, finish_reason="stop"))
    record()
    assert meter(team) == (9, 0)


def test_what_nobody_will_settle_is_freed_an_hour_behind_its_deadline(team: Team) -> None:
    generation = call(team.key, max_tokens=50)
    generation.delete()
    with time_machine.travel(generation.deadline + timedelta(minutes=59)):
        assert budget.release_expired() == 0
    with time_machine.travel(generation.deadline + timedelta(minutes=61)):
        assert budget.release_expired() == 1
    assert meter(team) == (0, 0)


def test_the_bound_of_a_prompt_holds_for_the_models_own_tokens(model_path: str) -> None:
    from engine.chat_template import ChatTemplate  # noqa: F401  the template's opening counts too
    from engine.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(model_path)
    for text in ("Hello", "삼겹살 👨‍👩‍👧 é", "\n\n\t  \x00", "a" * 999, "日本語のテキスト", "=" * 7):
        messages = [ChatMessage("user", text), ChatMessage("assistant", text), ChatMessage("user", text)]
        system = [SystemText(text, "")]
        whole = "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in messages)
        whole = f"<|im_start|>system\n{text}<|im_end|>\n{whole}<|im_start|>assistant\n"
        assert len(tokenizer.encode(whole, special=True)) <= budget.most_prompt_tokens(system, messages)


# --- P10 ----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("choices", [1, 4])
def test_fifty_at_once_spend_at_most_what_ten_may(
    transactional_db: None, team: Team, worker: ScriptedWorker, record: Callable[[], int], allow: Allow, choices: int
) -> None:
    """P10, with threads: the month's tokens are for ten requests; fifty ask at the same moment. Also with n = 4."""
    first = call(team.key, max_tokens=50, n=choices)
    each = bound_of(first) + 50 * choices
    services.cancel(access=team.key, generation_id=first.pk)
    record()
    allow(tokens_per_month=10 * each + 49)
    outcomes: list[str] = []
    start = threading.Barrier(50)

    def go() -> None:
        try:
            start.wait(30)
            call(team.key, max_tokens=50, n=choices)
            outcomes.append("accepted")
        except Refusal as refusal:
            outcomes.append(refusal.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=copy_context().run, args=(go,)) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("accepted") == 10
    assert outcomes.count("rate_limit_exceeded") == 40, "what is held may come back: they may try again"
    assert meter(team) == (0, 10 * each)
    for _ in range(10):
        worker.answer(*("x" for _ in range(50 * choices)))
    record()
    used, reserved = meter(team)
    assert (used, reserved) == (10 * (7 + 50 * choices), 0)
    assert used <= 10 * each


# --- what is left -------------------------------------------------------------------------------------------------


def spend(team: Team, tokens: int) -> None:
    """As if so much of this month had been used."""
    month = timezone.now().astimezone(UTC).date().replace(day=1)
    Meter.objects.update_or_create(tenant=team.tenant, month=month, subject=TEAM, defaults={"used": tokens})


def test_an_answer_without_a_said_length_is_lowered_to_what_is_left(team: Team, allow: Allow) -> None:
    allow(tokens_per_month=10_000)
    bound = bound_of(call(team.key, max_tokens=1))
    Reservation.objects.all().delete()
    Meter.objects.all().delete()
    spend(team, 10_000 - bound - 12)
    assert request_of(call(team.key)).params.max_tokens == 12
    assert meter(team) == (10_000 - bound - 12, bound + 12)


def test_a_said_length_that_is_not_left_is_refused_with_the_numbers(team: Team, allow: Allow) -> None:
    allow(tokens_per_month=10_000)
    spend(team, 9_500)
    with pytest.raises(QuotaUsedUp) as refused:
        call(team.key, max_tokens=600)
    assert (refused.value.status, refused.value.code, refused.value.param) == (429, "insufficient_quota", "max_tokens")
    assert not refused.value.retryable
    assert "500 of this month's 10,000" in refused.value.message
    assert call(team.key, max_tokens=300).state == State.QUEUED


def test_a_month_that_is_used_up_says_when_the_next_begins(team: Team, allow: Allow) -> None:
    allow(tokens_per_month=10_000)
    with time_machine.travel(datetime(2026, 12, 31, 23, 0, tzinfo=UTC), tick=False):
        spend(team, 10_000)
        for ask in (lambda: call(team.key), lambda: services.ask(access=team.member, text="Hi")):
            with pytest.raises(QuotaUsedUp, match="from 1 January"):
                ask()
        with pytest.raises(QuotaUsedUp) as refused:
            call(team.key)
        assert refused.value.retry_after_s == 3601
        assert not Generation.objects.exists()
        assert not Conversation.objects.exists()
    with time_machine.travel(datetime(2027, 1, 1, 0, 0, 1, tzinfo=UTC)):
        assert call(team.key, max_tokens=5).state == State.QUEUED


def test_months_are_utcs_for_everyone() -> None:
    from datetime import date

    from chatapp.limits.selectors import month_of

    new_year_in_auckland = datetime.fromisoformat("2027-01-01T05:00:00+13:00")
    assert month_of(new_year_in_auckland) == date(2026, 12, 1)
    assert next_month(date(2026, 12, 1)) == date(2027, 1, 1)
    assert next_month(date(2026, 1, 1)) == date(2026, 2, 1)


def test_a_person_and_a_key_have_months_of_their_own(
    team: Team, allow: Allow, lower: Callable[..., Any], worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    allow(tokens_per_month=100_000)
    lower(user=team.member.user, tokens_per_month=9)
    lower(key=team.key.key, tokens_per_month=9)
    for access, who in ((team.member, "You have used"), (team.key, "This key has used")):
        with pytest.raises(QuotaUsedUp, match=who):
            services.ask(access=access, text="Hi")
    services.ask(access=team.owner, text="Hi")
    worker.answer("a")
    record()
    month = Meter.objects.get(subject=TEAM).month
    used = used_by_subject(team.tenant, month)
    assert {name: n for name, n in used.items() if n} == {TEAM: 8, team.owner.principal: 8}
    assert warning(team.tenant) is None, "the team has plenty left"


# --- at once ------------------------------------------------------------------------------------------------------


def test_so_many_answers_at_once_and_no_more(
    team: Team, allow: Allow, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    allow(concurrent_answers=2)
    call(team.key, max_tokens=5)
    services.ask(access=team.member, text="Hi")
    for access in (team.key, team.owner):
        with pytest.raises(RateLimited, match="2 answers under way, of 2 at once") as refused:
            services.ask(access=access, text="Hi")
        assert refused.value.retry_after_s
    worker.answer("a")
    record()
    call(team.key, max_tokens=5)


def test_an_answer_that_has_ended_makes_room_before_the_recorder_has_seen_it(
    team: Team, allow: Allow, worker: ScriptedWorker
) -> None:
    """Who calls one after the other must not be refused for a recorder that is a moment behind."""
    allow(concurrent_answers=1)
    for _ in range(3):
        call(team.key, max_tokens=5)
        worker.answer("a")


def test_a_persons_own_number_of_answers_leaves_the_others_alone(
    team: Team, allow: Allow, lower: Callable[..., Any]
) -> None:
    allow(concurrent_answers=10)
    lower(concurrent_answers=1)
    services.ask(access=team.member, text="Hi")
    with pytest.raises(RateLimited, match="You have 1 answers"):
        services.ask(access=team.member, text="Hi")
    services.ask(access=team.owner, text="Hi")
    call(team.key)
    call(team.key)


# --- warnings -----------------------------------------------------------------------------------------------------


def warnings(team: Team) -> list[int]:
    entries = AuditEntry.objects.filter(tenant=team.tenant, action="limits.warning").order_by("at", "id")
    assert all(entry.actor_kind == "system" for entry in entries)
    return [entry.details["percent"] for entry in entries]


def test_people_are_told_at_80_and_at_100_percent_once_a_month_each(
    team: Team, allow: Allow, worker: ScriptedWorker, record: Callable[[], int]
) -> None:
    allow(tokens_per_month=10_000)
    moment = datetime(2036, 11, 10, tzinfo=UTC)  # ahead of Redis, which has a clock of its own
    for month in (moment, moment + timedelta(days=30)):
        with time_machine.travel(month, tick=False):
            spend(team, 7_985)
            told = []
            for _ in range(4):
                call(team.key, max_tokens=5)
                worker.answer("a")
                record()
                told.append(warnings(team))
            before = told[0]
            assert told == [before, [*before, 80], [*before, 80], [*before, 80]]
            spend(team, 9_999)
            for _ in range(3):
                with pytest.raises(QuotaUsedUp):
                    call(team.key)
            assert warnings(team) == [*before, 80, 100]
            assert warning(team.tenant) == (100, 9_999, 10_000)
    assert warnings(team) == [80, 100, 80, 100]


def test_a_request_that_is_too_long_for_what_is_left_does_not_say_that_all_is_used(team: Team, allow: Allow) -> None:
    """Shorter ones are answered: a single member must not alarm everyone."""
    allow(tokens_per_month=10_000, output_tokens=4096)
    spend(team, 8_000)
    with pytest.raises(QuotaUsedUp, match="shorter answer"):
        call(team.key, max_tokens=4096)
    assert warnings(team) == []
    assert warning(team.tenant) == (80, 8_000, 10_000)
    call(team.key, max_tokens=5)
    spend(team, 9_990)
    with pytest.raises(QuotaUsedUp, match="has used"):
        call(team.key, max_tokens=4096)
    assert warnings(team) == [100]


@pytest.mark.django_db(transaction=True)
def test_owners_and_admins_get_a_mail_where_mail_is_set_up(
    without_entries: None, team: Team, allow: Allow, mailoutbox: list[Any], settings: Any, monkeypatch: Any
) -> None:
    from chatapp.limits import tasks

    monkeypatch.setattr(tasks.mail_warning, "apply_async", lambda args, retry: tasks.mail_warning(*args))
    allow(tokens_per_month=100)
    key = uuid.uuid4()
    with transaction.atomic():
        Meter.objects.update_or_create(
            tenant=team.tenant, month=datetime.now(UTC).date().replace(day=1), subject=TEAM, defaults={"reserved": 90}
        )
        Reservation.objects.create(
            generation=key, tenant=team.tenant, month=datetime.now(UTC).date().replace(day=1), subject="key:x",
            tokens=90, expires_at=timezone.now(),
        )  # fmt: skip
    budget.settle(key, tokens=85)
    assert [mail.to for mail in mailoutbox] == [["owner@acme.test"]], "the member is not told"
    assert "80 %" in mailoutbox[0].subject
    assert "85 of 100 tokens" in mailoutbox[0].body
    assert "/t/acme/admin/limits" in mailoutbox[0].body
