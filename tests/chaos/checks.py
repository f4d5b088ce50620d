"""What must hold afterwards. Every fault is a sentence that names the answer, the row or the key.

`Verdict` of an answer: whole (byte for byte the undisturbed one), interrupted (its worker and Redis both died, and it
says so; what was said is a beginning of the undisturbed one), or a fault. What a stream was told before its connection
broke is held to the same.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from engine import protocol
from tests.chaos.clients import Seen
from tests.chaos.product import Product
from tests.chaos.questions import BROWSER, RESPONSES, SOCKET
from tests.chaos.trouble import Done
from tests.stack import wait_for

WHOLE, INTERRUPTED = "whole", "interrupted"
LOST, REPEATED, REWRITTEN, UNANSWERED = "lost", "repeated", "rewritten", "unanswered"
# An answer may end so where Redis was restarted and its worker died, and there only.
OF_REDIS = ("redis_restarted", "request_lost", "redis_lost_it", "log_lost", "interrupted")
# What may stay in Redis for good: a handful of keys each, whatever was asked.
STAYS = re.compile(
    r"octavo:(?:service:[^:]+|control:[^:]+|workers|worker:[^:]+|occupancy:[^:]+|line:[^:]+"
    r"|vanished|finished|dead|server|library|rooms:[^:]+|warmth:[^:]+)"
)
ENDS_S = 90.0


def _same(text: str, wanted: str) -> int:
    """How many characters are the same at their beginnings."""
    return next(
        (at for at, (a, b) in enumerate(zip(text, wanted, strict=False)) if a != b), min(len(text), len(wanted))
    )


def difference(text: str, wanted: str) -> str | None:
    """What became of a text that should be another one: a piece of it is missing, or there are pieces more than there
    should be, or it is another one. None where it is that one."""
    if text == wanted:
        return None
    outside = _same(text, wanted) + _same(text[::-1], wanted[::-1])
    if outside >= min(len(text), len(wanted)):
        return LOST if len(text) < len(wanted) else REPEATED
    return REWRITTEN


@dataclass
class Findings:
    verdicts: Counter[str] = field(default_factory=Counter)
    why: Counter[str] = field(default_factory=Counter)
    cuts: int = 0
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _may_be_interrupted(seen: Seen, done: Iterable[Done]) -> bool:
    """Whether Redis was restarted while it ran, and a worker hit: either alone interrupts nothing."""
    during = [one for one in done if one.at <= seen.ended_at and max(one.at, one.until) >= seen.asked_at]
    return any(one.event.program == "redis" for one in during) and any(
        one.event.kind.startswith("engine") for one in during
    )


def _disturbed(seen: Seen, until: float, done: Iterable[Done]) -> bool:
    """Whether what carries a stream (its web process, or Redis behind it) was hit while it ran."""
    return any(
        one.event.kind.startswith(("web", "redis")) and one.at <= until and max(one.at, one.until) >= seen.asked_at
        for one in done
    )


def judge(findings: Findings, seen: Seen, base: Seen, done: list[Done], code: str = "") -> str:
    """Of what the client saw. `code`: why it ended as it did, by the database; /v1/responses says less."""
    name = f"{seen.question.name} ({seen.id or 'no id'})"
    for problem in seen.problems:
        findings.faults.append(f"{name}: {problem}")
    for at, texts in seen.cuts:
        findings.cuts += 1
        if not _disturbed(seen, at, done):
            findings.faults.append(f"{name}: its stream was cut, and nothing had happened to what carries it")
        for text, wanted in zip(texts, base.texts, strict=True):
            if not wanted.startswith(text):
                findings.faults.append(f"{name}: a stream that was cut had told {text[-60:]!r}, which is not so")
    if seen.ended in ("completed", "incomplete"):
        for text, wanted in zip(seen.texts, base.texts, strict=True):
            what = difference(text, wanted)
            if what is not None:
                findings.faults.append(f"{name}: {what}: {_near(text, wanted)}")
                return what
        if (seen.ended, seen.tokens) != (base.ended, base.tokens):
            findings.faults.append(
                f"{name}: ended {seen.ended} with {seen.tokens} tokens, not {base.ended} with {base.tokens}"
            )
        return WHOLE
    code = code or seen.ended.partition(":")[0]
    if code in OF_REDIS and _may_be_interrupted(seen, done):
        findings.why[code] += 1
        for text, wanted in zip(seen.texts, base.texts, strict=True):
            if not wanted.startswith(text):
                findings.faults.append(f"{name}: interrupted, and what it had said is not so: {_near(text, wanted)}")
        return INTERRUPTED
    findings.faults.append(f"{name}: not answered: {seen.ended}")
    return UNANSWERED


def _near(text: str, wanted: str) -> str:
    same = _same(text, wanted)
    begin = max(0, same - 20)
    return (
        f"at character {same} of {len(wanted)} {text[begin : same + 30]!r}, not {wanted[begin : same + 30]!r}"
        f" ({len(text)} characters)"
    )


# --- the database -------------------------------------------------------------------------------------------------


def unfinished(product: Product) -> int:
    ((rows,),) = product.rows("SELECT count(*) FROM chat_generation WHERE state IN ('accepted', 'queued')")
    ((reserved,),) = product.rows("SELECT count(*) FROM limits_reservation")
    return int(rows) + int(reserved)


def come_to_rest(product: Product) -> list[str]:
    """Wait until everything has ended and is written. What has not within a time is a fault."""
    faults = []
    for what in (
        ("rows or reservations are unfinished", lambda: unfinished(product) == 0),
        ("ended answers are not recorded", lambda: product.redis.xlen(protocol.FINISHED) == 0),
        ("workers hold something", lambda: not list(product.redis.scan_iter("octavo:held:*"))),
        ("blocks are in use", lambda: not any(product.used_blocks().values())),
    ):
        try:
            wait_for(what[1], ENDS_S, 0.25)
        except AssertionError:
            faults.append(f"after {ENDS_S:.0f} s {what[0]}")
    return faults


def database(findings: Findings, product: Product, pairs: list[tuple[Seen, Seen]], done: list[Done]) -> None:
    rows = {
        str(pk): more
        for pk, *more in product.rows(
            "SELECT generation.id, generation.state, generation.completion_tokens, generation.error_code,"
            " message.text, message.status, response.output FROM chat_generation generation"
            " LEFT JOIN chat_message message ON message.id = generation.message_id"
            " LEFT JOIN responses_storedresponse response ON response.generation_id = generation.id"
        )
    }
    for seen, base in pairs:
        name = f"{seen.question.name} ({seen.id or 'no id'})"
        if not seen.id:
            continue
        if seen.id not in rows:
            findings.faults.append(f"{name}: the database does not have it")
            continue
        state, tokens, code, text, status, output = rows[seen.id]
        if seen.question.way == RESPONSES:
            text = "".join(
                part.get("text", "") for item in json.loads(output or "[]") for part in item.get("content") or ()
            )
        wanted = base.texts[0].replace("\0", "")  # no database of ours keeps it
        if seen.ended in ("completed", "incomplete"):
            if (state, tokens) != ("finished", base.tokens):
                findings.faults.append(f"{name}: the database has it as {state} {code} with {tokens} tokens")
            if seen.question.way in (SOCKET, BROWSER) and status != "done":
                findings.faults.append(f"{name}: its message is {status}")
            if seen.question.way in (SOCKET, BROWSER, RESPONSES) and text != wanted:
                findings.faults.append(f"{name}: the database has another text: {_near(text or '', wanted)}")
        elif text is not None and not wanted.startswith(text):
            findings.faults.append(f"{name}: {state}, and the database has {_near(text, wanted)}")
    _ends(findings, product, {one for seen, _ in pairs for one in seen.ids[-1:]}, done)
    _budgets(findings, product)


def _ends(findings: Findings, product: Product, known: set[str], done: list[Done]) -> None:
    """How everything else has ended: titles, streams that were cut. Nothing ends for no reason."""
    for pk, state, code in product.rows("SELECT id, state, error_code FROM chat_generation WHERE state <> 'finished'"):
        findings.notes.append(
            f"{state} {code}".strip() + ("" if pk in known else " (a title, or a stream that was cut)")
        )
        redis_did = any(one.event.program == "redis" for one in done)
        if not (
            (
                state == "cancelled"
                and code in ("lease_expired", "")
                and any(one.event.program != "redis" for one in done)
            )
            or (code in OF_REDIS and redis_did)
            or pk in known  # judged by what its client saw
        ):
            findings.faults.append(f"generation {pk} ended {state} {code}")
    for pk, status in product.rows("SELECT id, status FROM chat_message WHERE status = 'running'"):
        findings.faults.append(f"message {pk} is {status} for ever")


def _budgets(findings: Findings, product: Product) -> None:
    ((left,),) = product.rows("SELECT count(*) FROM limits_reservation")
    if left:
        findings.faults.append(f"{left} reservations are left")
    for tenant, subject, reserved in product.rows("SELECT tenant_id, subject, reserved FROM limits_meter"):
        if reserved:
            findings.faults.append(f"{reserved} tokens stay reserved for {subject or 'the team'} of {tenant}")
    used = dict(product.rows("SELECT tenant_id, sum(used) FROM limits_meter WHERE subject = '' GROUP BY tenant_id"))
    spent = dict(
        product.rows("SELECT tenant_id, sum(prompt_tokens + completion_tokens) FROM chat_generation GROUP BY tenant_id")
    )
    for tenant, tokens in spent.items():
        if used.get(tenant, 0) != tokens:
            findings.faults.append(f"the meter of {tenant} has {used.get(tenant, 0)} tokens, its answers used {tokens}")
    wrong = product.rows(
        "SELECT generation.id FROM chat_generation generation LEFT JOIN usage_usagerow row ON"
        " row.generation_id = generation.id WHERE row.generation_id IS NULL"
        " OR row.output_tokens <> generation.completion_tokens OR row.prompt_tokens <> generation.prompt_tokens"
    )
    for (pk,) in wrong:
        findings.faults.append(f"the usage of {pk} is not what it used")


# --- Redis, the workers, the logs -----------------------------------------------------------------------------------


def keys(findings: Findings, product: Product) -> None:
    """What stays without an end that is not one of the few that may."""
    kinds: Counter[str] = Counter()
    for key in sorted(product.redis.scan_iter(count=1000)):
        name = key.decode()
        ttl: Any = product.redis.ttl(key)
        if ttl == -2:
            continue
        if ttl >= 0:
            kinds[re.sub(r"[0-9a-f-]{8,}.*", "…", name)] += 1
        elif STAYS.fullmatch(name):
            kinds[":".join(name.split(":")[:2])] += 1
        else:
            more: Any = product.redis.hgetall(key) if product.redis.type(key) == b"hash" else ""
            findings.faults.append(f"the key {name} stays in Redis {str(more)[:300]}".strip())
    findings.notes.append("keys: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    dead: Any = product.redis.xrange("octavo:dead")
    findings.notes += [f"dead letter {fields}" for _, fields in dead]


def logs(findings: Findings, product: Product) -> None:
    for program in product.programs():
        said: Counter[str] = Counter()
        for line in product.log(program):
            if "AssertionError" in line:
                findings.faults.append(f"{program} says {line[:2000]}")
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and entry.get("level") in ("error", "critical"):
                why = str(entry.get("exception") or entry.get("cause") or entry.get("error") or "").strip()
                what = [str(entry.get("event")).partition("\n")[0], why.splitlines()[-1] if why else ""]
                said[": ".join(filter(None, what))[:160]] += 1
        findings.notes += [f"{program}, {count} times: {what}" for what, count in said.most_common()]


def all_of_it(product: Product, pairs: list[tuple[Seen, Seen]], done: list[Done]) -> Findings:
    """Everything, in the order in which it says most."""
    findings = Findings()
    findings.faults += come_to_rest(product)
    codes = dict(product.rows("SELECT id, error_code FROM chat_generation"))
    for seen, base in pairs:
        findings.verdicts[judge(findings, seen, base, done, codes.get(seen.id, ""))] += 1
    database(findings, product, pairs, done)
    keys(findings, product)
    logs(findings, product)
    return findings
