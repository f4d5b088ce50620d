"""The events of one generation, wherever they are now: still coming, in the log, or in the database alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from chatapp.api.answering import in_thread
from chatapp.chat import selectors
from chatapp.chat.models import Generation, State
from chatapp.errors import Refusal
from chatapp.streaming.follow import LogGone, follower
from chatapp.tenants.access import Access
from engine import protocol

ASK_AGAIN_S = 0.5

TERMINALS: dict[str, type[protocol.Terminal]] = {
    State.FINISHED: protocol.Finished,
    State.REFUSED: protocol.Refused,
    State.CANCELLED: protocol.Cancelled,
    State.TIMEOUT: protocol.TimedOut,
    State.INTERRUPTED: protocol.Interrupted,
    State.FAILED: protocol.Failed,
}


class TextGone(Refusal):
    """Of a stateless call nothing is kept once its log has expired."""

    status = 410
    code = "expired"


async def events(access: Access, generation_id: str, after: int = -1) -> AsyncGenerator[protocol.AnyEvent]:
    """Every event with a seq above `after`, in order, ending with the terminal one.

    Follows the log while there is one; after it has expired the database tells the rest as one delta. A generation that
    has been accepted but not queued yet (Redis was away) is waited for. Raises NotFound, TextGone.
    """
    while True:
        try:
            # Closed with us, and not whenever it is collected: it holds a place in the follower.
            async with aclosing(follower().follow(generation_id, after)) as log:
                async for event in log:
                    yield event
                    if isinstance(event, protocol.Terminal):
                        return
                    after = max(after, event.seq)  # should the log go meanwhile, the database tells what is left
            after -= 1  # the reader knows the ending already; who asks nevertheless is told it again
            continue
        except LogGone:
            generation = await in_thread(selectors.generation, access, generation_id)
        if not generation.unfinished:
            for event in told_by_database(generation, after):
                yield event
            return
        await asyncio.sleep(ASK_AGAIN_S)


class Whole(protocol.Delta, frozen=True, tag="whole"):
    """All of the text, from the first event to `seq`: the database does not know where a reader has stopped."""


def told_by_database(generation: Generation, after: int) -> list[protocol.AnyEvent]:
    """What is left of a recorded generation for a reader that has seen `after`."""
    found: list[protocol.AnyEvent] = []
    last = generation.last_seq
    if after < 0:
        found.append(
            protocol.Started(
                seq=0,
                prompt_tokens=generation.prompt_tokens,
                cached_tokens=generation.cached_tokens,
                shared_tokens=generation.shared_tokens,
            )
        )
    if last > 0 and after < last:
        if generation.message is None:
            raise TextGone("The text of this response is not kept any more; ask again.", param="response_id")
        found.append(Whole(seq=last, parts=[protocol.Part(text=generation.message.text)]))
    usage = protocol.Usage(
        prompt_tokens=generation.prompt_tokens,
        cached_tokens=generation.cached_tokens,
        shared_tokens=generation.shared_tokens,
        completion_tokens=generation.completion_tokens,
    )
    timing = protocol.Timing(**generation.timing) if generation.timing else None
    terminal = TERMINALS[generation.state](
        seq=last + 1,
        usage=usage,
        timing=timing,
        finish_reason=generation.finish_reason or None,
        code=generation.error_code or None,
        param=generation.error_param or None,
        message=generation.error_message or None,
    )
    found.append(terminal)  # type: ignore[arg-type]
    return found
