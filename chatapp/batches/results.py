"""What comes of the items: kept as their generations are recorded, and written to files at the end.

`on_ended` runs in the recorder's transaction: an answer is kept if and only if its end is. The files are made of rows,
a page at a time, and named by the batch, so that whoever was killed in between finds them and makes no second ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import structlog
from django.db import transaction
from django.db.models import Prefetch
from django.utils import timezone

from chatapp.batches import keeping
from chatapp.batches.endpoints import ENDPOINTS
from chatapp.batches.models import Batch, BatchAnswer, BatchItem, ItemState, Status
from chatapp.batches.starting import start
from chatapp.chat.models import Generation
from chatapp.chat.recorder import Answer
from chatapp.events import tell
from chatapp.files import services as files
from chatapp.files.models import Purpose, StoredFile
from chatapp.lines import one_line
from chatapp.logs import cause
from engine.protocol import Cancelled, Finished, TimedOut

log = structlog.get_logger(__name__)

# Of an item whose generation was stopped by a fault of ours.
MOST_ATTEMPTS = 3
PAGE = 200
# Of results; answers have more in them than questions, and the file of those may be as large as any.
LARGEST = 64 * 1024**3
MOMENTS = {
    Status.COMPLETED: "completed_at",
    Status.EXPIRED: "expired_at",
    Status.CANCELLED: "cancelled_at",
    Status.FAILED: "failed_at",
}
EXPIRED = {"code": "batch_expired", "message": "This request was not answered within the batch's time."}
CANCELLED = {"code": "batch_cancelled", "message": "The batch was cancelled before this request was answered."}
UNANSWERED = {Status.EXPIRED: EXPIRED, Status.CANCELLED: CANCELLED}


def on_ended(sender: object, *, generation: Generation, answer: Answer, **more: object) -> None:
    """The receiver of chatapp.chat.recorder.ended."""
    if generation.conversation_id is not None:
        return
    row = BatchAnswer.objects.filter(pk=generation.pk, kept=None).first()
    if row is None:
        return
    # The item's row first: of two that end at once the second sees the first.
    item = BatchItem.objects.select_for_update().get(pk=row.item_id)
    row.kept = keeping.pack(answer)
    row.save(update_fields=["kept"])
    answers = list(item.answers.all())
    if all(one.kept is not None for one in answers):
        _settle(item, [keeping.unpack(bytes(one.kept))[1] for one in answers if one.kept is not None])
    transaction.on_commit(lambda: start(item.batch_id), robust=True)


def _settle(item: BatchItem, ends: list[Any]) -> None:
    if all(isinstance(end, Finished) for end in ends):
        item.state = ItemState.DONE
    elif item.attempts + 1 < MOST_ATTEMPTS and any(_is_our_fault(end) for end in ends):
        item.attempts += 1
        item.answers.all().delete()
    else:
        item.state = ItemState.FAILED
    item.save(update_fields=["state", "attempts"])


def _is_our_fault(end: Any) -> bool:
    return bool(end.retryable) and not isinstance(end, TimedOut | Cancelled)


# --- files --------------------------------------------------------------------------------------------------------


def write(batch: Batch, renew: Callable[[], object]) -> None:
    """The files of what there is, and the end of the batch. Raises what keeping a file refuses; may be repeated.

    `renew` is called now and then: nobody else is to be at it meanwhile.
    """
    ending = Status(batch.ending)
    done = batch.items.filter(state=ItemState.DONE)
    others = batch.items.exclude(state=ItemState.DONE)
    counts = (done.count(), others.count())
    output = _file(batch, "output", _lines(batch, done, renew)) if counts[0] else None
    errors = _file(batch, "errors", _lines(batch, others, renew)) if counts[1] else None
    with transaction.atomic():
        row = Batch.objects.select_for_update().get(pk=batch.pk)
        if not row.unfinished:
            return
        row.output_file = output.pk if output is not None else None
        row.error_file = errors.pk if errors is not None else None
        row.completed, row.failed = counts
        finish(row, ending)


def finish(row: Batch, status: Status) -> None:
    """Call it inside a transaction, with the row locked."""
    row.status, row.ending = status, ""
    row.paused_code, row.paused_because, row.next_at = "", "", None
    setattr(row, MOMENTS[status], timezone.now())
    row.save()
    data = {
        "id": row.public_id,
        "status": str(status),
        "endpoint": row.endpoint,
        "metadata": row.metadata,
        "request_counts": {"total": row.total, "completed": row.completed, "failed": row.failed},
        "output_file_id": file_id(row.output_file),
        "error_file_id": file_id(row.error_file),
    }
    tell(tenant_id=row.tenant_id, kind=f"batch.{status}", data=data)


def file_id(key: Any) -> str | None:
    return StoredFile(pk=key).public_id if key is not None else None


def _file(batch: Batch, what: str, lines: Iterator[bytes]) -> StoredFile:
    name = f"{batch.public_id}_{what}.jsonl"
    made = StoredFile.objects.filter(tenant=batch.tenant_id, purpose=Purpose.BATCH_OUTPUT, name=name).first()
    if made is not None:  # whoever was at it was killed after this
        return made
    return files.keep(
        tenant=batch.tenant,
        key=batch.key,
        name=name,
        content=lines,
        purpose=Purpose.BATCH_OUTPUT,
        most=LARGEST,
    )


def _lines(batch: Batch, items: Any, renew: Callable[[], object]) -> Iterator[bytes]:
    last = 0
    answers = Prefetch("answers", BatchAnswer.objects.select_related("generation").defer("generation__request"))
    while page := list(items.filter(line__gt=last).order_by("line").prefetch_related(answers)[:PAGE]):
        for item in page:
            yield one_line(_line(batch, item)) + b"\n"
        last = page[-1].line
        renew()


def _line(batch: Batch, item: BatchItem) -> dict[str, Any]:
    """OpenAI's shape: either a response with its status, or an error of the batch itself."""
    response, error = None, None
    try:
        found = _response(batch, item)
    except Exception as failed:  # what cannot be shaped is no reason to lose all others
        log.error("batch.not_shaped", batch=str(batch.pk), line=item.line, cause=cause(failed))
        found = None
        error = {"code": "internal", "message": "This answer could not be written."}
    if found is not None:
        status, body = found
        answers = list(item.answers.all())
        request_id = answers[0].generation_id.hex if answers else item.pk.hex
        response = {"status_code": status, "request_id": request_id, "body": msgspec.Raw(body)}
    elif error is None:
        error = UNANSWERED.get(Status(batch.ending), EXPIRED)
    return {"id": item.public_id, "custom_id": item.custom_id, "response": response, "error": error}


def _response(batch: Batch, item: BatchItem) -> tuple[int, bytes] | None:
    """None: the batch ended before the item."""
    if item.refusal is not None:
        return item.status_code or 400, bytes(item.refusal)
    endpoint = ENDPOINTS[batch.endpoint]
    answers = [answer for answer in item.answers.all() if answer.kept is not None]
    if not answers or item.state == ItemState.PENDING:
        return None
    kept = [keeping.unpack(bytes(answer.kept)) for answer in answers if answer.kept is not None]
    if item.state == ItemState.DONE:
        found = [assembly for assembly, _ in kept]
        return 200, endpoint.answered(bytes(item.body or b""), [answer.generation for answer in answers], found)
    bad = next(end for _, end in kept if not isinstance(end, Finished))
    if isinstance(bad, TimedOut) and batch.ending == Status.EXPIRED:
        return None
    if isinstance(bad, Cancelled) and batch.ending in UNANSWERED:
        return None
    return endpoint.ended(bad)
