"""What a worker's log and its traces say of a generation: that it runs, how it ended, and where its time went.

Ids, numbers and reasons only. Called by the engine loop, so nothing here waits: lines are written and spans are made in
threads of their own (engine.logs, engine.otel).
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import structlog

from engine import protocol, tracing
from engine.protocol import AnyTerminal

if TYPE_CHECKING:
    from engine.run import Run

log = structlog.get_logger(__name__)

_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*(?:\"|$)|(?<!\w)'(?:[^'\\]|\\.)*(?:'|$)|`[^`]*(?:`|$)", re.DOTALL)


def begun(run: Run) -> None:
    """Its prompt is ready, and the scheduler has it."""
    log.info("generation.begun", **_whose(run), attempt=run.attempt, waited_s=round(run.waited_s, 3))


def failed(run: Run, error: str) -> None:
    """The engine could not go on with it. What others' libraries quote is a piece of its prompt, form or answer."""
    log.error("generation.failed", **_whose(run), attempt=run.attempt, error=_QUOTED.sub("…", error))


def ended(run: Run, event: AnyTerminal) -> None:
    status = str(event.__struct_config__.tag)
    usage, timing = run.usage, run.timing
    say = log.warning if isinstance(event, protocol.Failed) else log.info
    say(
        "generation.ended",
        **_whose(run),
        attempt=run.attempt,
        status=status,
        reason=event.finish_reason or event.code or "",
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        queue_s=timing.queue_s,
        prefill_s=timing.prefill_s,
        decode_s=timing.decode_s,
    )
    if tracing.on() and run.request is not None:
        tracing.ended(*_parts(run, event, status))


def _whose(run: Run) -> dict[str, Any]:
    request = run.request
    if request is None:  # it could not be read, or not yet
        return {"generation": run.id}
    said = {"generation": run.id, "tenant": request.tenant, "request_id": request.request_id}
    if request.traceparent:
        said["trace_id"] = tracing.trace_id_of(request.traceparent)
    return said


def _parts(run: Run, event: AnyTerminal, status: str) -> list[tracing.Part]:
    """The generation, from when it was queued, and its phases, as far as it came: each lasts until the next."""
    request, now = run.request, time.monotonic()
    assert request is not None
    began = run.taken_at - run.waited_s
    reached = [
        ("queue", began),
        ("prepare", run.taken_at),
        ("schedule", run.added_at),
        ("prefill", run.scheduled_at),
        ("decode", run.first_at),
    ]
    phases = [(name, at) for name, at in reached if at is not None]
    ends = [at for _, at in phases[1:]] + [run.last_at if run.first_at is not None else now]
    usage = run.usage
    whole = tracing.Part(
        "generation",
        began,
        now,
        kind="consumer",
        parent=request.traceparent,
        failed=event.code or status if isinstance(event, protocol.Failed | protocol.TimedOut) else "",
        gen_ai__operation__name="text_completion" if request.text or request.token_ids else "chat",
        gen_ai__request__model=request.model,
        gen_ai__usage__input_tokens=usage.prompt_tokens,
        gen_ai__usage__output_tokens=usage.completion_tokens,
        octavo__generation=run.id,
        octavo__tenant=request.tenant,
        octavo__request_id=request.request_id,
        octavo__attempt=run.attempt,
        octavo__status=status,
        octavo__finish_reason=event.finish_reason or event.code or "",
        octavo__cached_tokens=usage.cached_tokens,
        octavo__shared_tokens=usage.shared_tokens,
    )
    return [whole, *(tracing.Part(name, at, max(at, end)) for (name, at), end in zip(phases, ends, strict=True))]
