"""What a generation may use is reserved before it begins, and settled by what it used when it has ended.

`reserve` runs in the transaction that accepts a generation, and takes the lock of the tenant's month: however many ask
at once, what is reserved and used never exceeds the limit. A reservation is the most that a request can use: every
byte of its prompt a token, and the whole of its answers. `settle` runs in the transaction that writes the end. It
deletes the reservation, so that a replay finds none and changes nothing; endings that the reaper writes come the same
way, and `release_expired` frees what nobody will settle any more.

The row of a reservation is also what counts as an answer under way.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta

import msgspec
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from chatapp.errors import TooMany
from chatapp.limits import rates, warning
from chatapp.limits.models import TEAM, Meter, Reservation
from chatapp.limits.rates import Rate, Standing
from chatapp.limits.selectors import month_of, next_month, under_way
from chatapp.limits.values import Limits
from chatapp.tenants.access import Access
from engine.protocol import ChatMessage, Request, SystemText, Tool

# Of the chat template, beside the texts: an opening and a closing around each message, and what opens the answer.
TEMPLATE_TOKENS = 64
TEMPLATE_TOKENS_A_MESSAGE = 16
# What a template says before tools, and around each of them and each call; templates may write them one value a line.
TEMPLATE_TOKENS_OF_TOOLS = 512
TEMPLATE_TOKENS_A_TOOL = 32
TOOL_INDENT = 4
# Long behind a deadline: by then the reaper has ended what can be ended.
EXPIRES_AFTER = timedelta(hours=1)
SOON_S = 5


class RateLimited(TooMany):
    """It may be tried again in `retry_after_s`. `standings`: how the rates stood."""

    code = "rate_limit_exceeded"
    standings: tuple[Standing, ...] = ()
    # Answers under way are in its way: some may have ended without being written yet.
    under_way = False


class QuotaUsedUp(TooMany):
    """The month's tokens do not suffice, and will not before the next month. `team`: whether all of the team's are
    used, so that a shorter answer would not fit either."""

    code = "insufficient_quota"
    retryable = False
    team = False


def most_prompt_tokens(
    system: Iterable[SystemText], messages: Iterable[ChatMessage], tools: Sequence[Tool] = ()
) -> int:
    """An upper bound without a tokenizer: no token of a byte-level vocabulary is shorter than a byte of its text."""
    messages = list(messages)
    texts = [text.text for text in system] + [message.content for message in messages]
    tokens = TEMPLATE_TOKENS + sum(TEMPLATE_TOKENS_A_MESSAGE + len(text.encode()) for text in texts)
    for call in (call for message in messages for call in message.tool_calls):
        # Its JSON may be written anew, with a space behind each comma and colon.
        tokens += TEMPLATE_TOKENS_A_TOOL + len(call.name) + 2 * len(call.arguments.encode())
    if tools:
        tokens += TEMPLATE_TOKENS_OF_TOOLS + sum(TEMPLATE_TOKENS_A_TOOL + _written(tool) for tool in tools)
    return tokens


def most_tokens_of(request: Request) -> int:
    """The same for all that a request's prompt is made of; of one that comes in tokens, their number."""
    if request.token_ids is not None:
        return TEMPLATE_TOKENS + len(request.token_ids)
    if request.text is not None:
        return TEMPLATE_TOKENS + len(request.text.encode())
    return most_prompt_tokens(request.system, request.messages, request.tools)


def _written(tool: Tool) -> int:
    return len(json.dumps(msgspec.to_builtins(tool), indent=TOOL_INDENT))


def reserve(
    *,
    access: Access,
    limits: Limits,
    generation: uuid.UUID,
    deadline: datetime,
    prompt_tokens: int,
    output_tokens: int,
    least_output: int | None,
    choices: int = 1,
    wanted: Sequence[Rate] = (),
    estimate: int = 0,
) -> int:
    """Reserve for a generation; returns how long its answer may be, each of its `choices`. `prompt_tokens` is
    `most_tokens_of` its request.

    `least_output`: the shortest answer that will do, where the caller said none: then its length is lowered to what is
    left. None: the caller asked for `output_tokens`, all of them. `wanted`: the rates that will be charged, by
    `estimate` tokens of the prompt and the whole answers. Raises QuotaUsedUp and RateLimited; call it in the
    transaction that accepts the generation.
    """
    assert transaction.get_connection().in_atomic_block, "the reservation belongs to the generation's transaction"
    now = timezone.now()
    month = month_of(now)
    subjects = (TEAM, access.principal)
    caps = (limits.team.tokens_per_month, limits.own.tokens_per_month)
    at_once = (limits.team.concurrent_answers, limits.own.concurrent_answers)
    meters = _locked(access, month, subjects) if any(caps) or any(at_once) else None
    if meters is not None:
        if any(at_once):
            _refuse_at_once(access, at_once)
        for subject, cap in zip(subjects, caps, strict=True):
            if cap is not None:
                output_tokens = _fitting(
                    access, meters[subject], cap, prompt_tokens, output_tokens, least_output, choices
                )
    tokens = prompt_tokens + choices * output_tokens
    ours = Meter.objects.filter(tenant=access.tenant, month=month, subject__in=subjects)
    if ours.update(reserved=F("reserved") + tokens) < len(subjects):
        # The first of a month, or of someone.
        ours.update(reserved=F("reserved") - tokens)
        _make_meters(access, month, subjects)
        ours.update(reserved=F("reserved") + tokens)
    Reservation.objects.create(
        generation=generation,
        tenant=access.tenant,
        month=month,
        subject=access.principal,
        tokens=tokens,
        charged={rate.subject: [rate.amount, estimate + choices * output_tokens, now.timestamp()] for rate in wanted},
        created_at=now,
        expires_at=deadline + EXPIRES_AFTER,
    )
    return output_tokens


def settle(generation: uuid.UUID, *, tokens: int, charged: bool = True) -> None:
    """It has ended and used so many tokens, prompt and answer. Safe to repeat; call it in the end's transaction.

    `charged`: whether its rates have been, so that there is something to give back.
    """
    with transaction.atomic(savepoint=False):
        rows = Reservation.objects.filter(pk=generation)
        found = rows.select_related("tenant").first()
        # Of several that settle it at once the one whose deletion finds it does.
        if found is None or not rows.delete()[0]:
            return
        meters = Meter.objects.filter(tenant=found.tenant_id, month=found.month, subject__in=(TEAM, found.subject))
        meters.update(reserved=F("reserved") - found.tokens, used=F("used") + tokens)
        if tokens:
            warning.note_use(found.tenant, found.month)
        if found.charged and charged:
            transaction.on_commit(lambda: _correct(found, tokens), robust=True)


def release_expired() -> int:
    """Free what nobody will settle any more: its generation has been deleted while it ran."""
    gone = list(Reservation.objects.filter(expires_at__lt=timezone.now()).values_list("pk", flat=True)[:1000])
    for generation in gone:
        settle(generation, tokens=0)
    return len(gone)


# --- parts --------------------------------------------------------------------------------------------------------


def _locked(access: Access, month: date, subjects: tuple[str, ...]) -> dict[str, Meter]:
    """The meters of the month, locked until the transaction ends; always in the same order."""
    rows = Meter.objects.select_for_update().filter(tenant=access.tenant, month=month, subject__in=subjects)
    found = {meter.subject: meter for meter in rows.order_by("subject")}
    if len(found) < len(subjects):
        _make_meters(access, month, subjects)
        found = {meter.subject: meter for meter in rows.order_by("subject")}
    return found


def _make_meters(access: Access, month: date, subjects: tuple[str, ...]) -> None:
    """Those that are missing; someone else may make them at the same moment."""
    meters = [Meter(tenant=access.tenant, month=month, subject=subject) for subject in subjects]
    Meter.objects.bulk_create(meters, ignore_conflicts=True)


def _refuse_at_once(access: Access, most: tuple[int | None, int | None]) -> None:
    for limit, running, whose in zip(most, under_way(access.tenant, access.principal), _names(access), strict=True):
        if limit is not None and running >= limit:
            raise _busy(
                f"{whose} {_has(whose)} {running} answers under way, of {limit} at once. "
                f"Try again when one has ended, in about {SOON_S} s."
            )


def _fitting(
    access: Access, meter: Meter, cap: int, prompt: int, output: int, least_output: int | None, choices: int
) -> int:
    """The length of an answer that fits into the month. Raises QuotaUsedUp, or RateLimited if it may fit soon."""
    left = cap - meter.used - meter.reserved
    wanted = choices * (output if least_output is None else least_output)
    if prompt + wanted <= left:
        return min(output, (left - prompt) // choices)
    team, own = _names(access)
    whose = team if meter.subject == TEAM else own
    if meter.reserved and prompt + wanted <= cap - meter.used:
        raise _busy(
            f"Answers under way may use what is left of this month's {cap:,} tokens. "
            f"Try again when they have ended, in about {SOON_S} s."
        )
    again = next_month(meter.month)
    until = f"Ask again from {again.day} {again:%B} (UTC)"
    rest = max(0, cap - meter.used)
    shorter = least_output is None and prompt + choices <= rest
    if shorter:
        need = f"{prompt + choices * output:,} tokens"
        message = (
            f"This request may need {need}, and {whose.lower()} {_has(whose)} {rest:,} of this month's {cap:,} left. "
            f"Ask for a shorter answer (max_tokens). {until}, or ask an admin for more."
        )
    else:
        message = f"{whose} {_has(whose)} used this month's {cap:,} tokens. {until}, or ask an admin for more."
    seconds = (datetime(again.year, again.month, again.day, tzinfo=UTC) - timezone.now()).total_seconds()
    refusal = QuotaUsedUp(message, param="max_tokens" if least_output is None else None, retry_after_s=int(seconds) + 1)
    refusal.team = meter.subject == TEAM and not shorter
    raise refusal


def _busy(message: str) -> RateLimited:
    refusal = RateLimited(message, retry_after_s=SOON_S)
    refusal.under_way = True
    return refusal


def _names(access: Access) -> tuple[str, str]:
    return "Your team", "You" if access.user is not None else "This key"


def _has(whose: str) -> str:
    return "have" if whose == "You" else "has"


def _correct(reservation: Reservation, tokens: int) -> None:
    """The rates were charged by an estimate: what it was too much is given back, while its minute lasts."""
    for subject, (amount, charged, at) in reservation.charged.items():
        rates.correct(Rate("tokens", str(reservation.tenant_id), subject, amount), tokens - charged, at)
