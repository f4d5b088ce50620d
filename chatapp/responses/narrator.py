"""From the engine's events to the events of a response: a pure fold, so that every telling has the same numbers.

Whoever resumes is told the log from its beginning by a new narrator, and gets what has a higher number than the last
one it has. Once the log has expired `retold` makes the engine's events again from what was kept, portion by portion.

The text of an answer is one message, each call an item of its own; they stand in the order in which they began. A
message stays open until the end, as text may follow a call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from chatapp.responses import shapes
from chatapp.responses.items import renamed
from chatapp.streaming.assembly import TEXT, Choice
from engine import protocol
from engine.protocol import AnyTerminal, Delta, Part, Started, Terminal, ToolCallPart

# What OpenAI calls a failure that is not the caller's.
SERVER_ERROR = "server_error"
REASON = "max_output_tokens"

_WORDS = {
    "refused": "The engine refused this request.",
    "timeout": "This response took too long and was ended.",
    "interrupted": "The engine stopped while it answered; ask again.",
    "failed": "The engine failed while it answered; ask again.",
}


class _Item:
    """An item that is being said. `call` None: the message."""

    def __init__(self, number: int, key: str, call: ToolCallPart | None) -> None:
        self.number = number
        self.call = call
        self.id = f"{'msg' if call is None else 'fc'}_{key}_{number}"
        self.texts: list[str] = []
        self.logprobs: list[shapes.TokenLogprob] = []
        self.open = True

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def part(self) -> shapes.OutputText:
        return shapes.OutputText(text=self.text, logprobs=self.logprobs)

    def shown(self, status: shapes.ItemStatus, *, empty: bool = False) -> shapes.OutputItem:
        if self.call is None:
            content: list[shapes.Content] = [] if empty else [self.part]
            return shapes.MessageItem(id=self.id, role="assistant", status=status, content=content)
        return shapes.FunctionCallItem(
            id=self.id,
            call_id=self.call.id,
            name=self.call.name,
            arguments="" if empty else self.text,
            status=status,
        )


class Narrator:
    """`base`: the response as it was when it was accepted. `response` is what it has become by what was told."""

    def __init__(self, base: shapes.Response) -> None:
        self._base = base
        self._key = base.id.partition("_")[2]
        self._number = 0
        self._items: list[_Item] = []
        self._message: _Item | None = None
        self._calls: dict[int, _Item] = {}
        self._unsaid: list[shapes.TokenLogprob] = []  # of tokens whose text has not come yet
        self._status: shapes.ResponseStatus = base.status
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._output_tokens = 0
        self._end: Terminal | None = None

    @property
    def number(self) -> int:
        """That of the next event."""
        return self._number

    @property
    def response(self) -> shapes.Response:
        if self._end is not None:
            return self._ended(self._end)
        output = [item.shown("in_progress" if item.open else "completed") for item in self._items]
        return msgspec.structs.replace(self._base, status=self._status, output=output)

    def opening(self) -> Iterator[shapes.AnyEvent]:
        """What can be said before the engine has said anything. Nothing, the second time."""
        if self._number:
            return
        yield shapes.ResponseCreated(sequence_number=self._next(), response=self._base)
        if self._status == "queued":
            yield shapes.ResponseQueued(sequence_number=self._next(), response=self._base)
        else:
            yield shapes.ResponseInProgress(sequence_number=self._next(), response=self._base)

    def tell(self, event: protocol.AnyEvent) -> Iterator[shapes.AnyEvent]:
        """To be exhausted before the next one is told."""
        yield from self.opening()
        if isinstance(event, protocol.Claimed):
            return
        if self._status == "queued":
            self._status = "in_progress"
            response = msgspec.structs.replace(self._base, status="in_progress")
            yield shapes.ResponseInProgress(sequence_number=self._next(), response=response)
        if isinstance(event, Started):
            self._prompt_tokens, self._cached_tokens = event.prompt_tokens, event.cached_tokens
        elif isinstance(event, Delta):
            for part in event.parts:
                self._output_tokens += len(part.token_ids)
                if part.index == 0:
                    yield from self._part(part)
        elif isinstance(event, Terminal):
            yield from self._terminal(event)

    def tell_all(self, events: Iterable[protocol.AnyEvent]) -> list[shapes.AnyEvent]:
        return [said for event in events for said in self.tell(event)]

    def _next(self) -> int:
        self._number += 1
        return self._number - 1

    def _part(self, part: Part) -> Iterator[shapes.AnyEvent]:
        self._unsaid += map(_logprob, part.logprobs)
        if part.text:
            if self._message is None:
                self._message = yield from self._begin(None)
            message = self._message
            # Databases refuse U+0000, and what is resumed must be what was sent.
            text = part.text.replace("\0", "\ufffd")
            message.texts.append(text)
            yield shapes.OutputTextDelta(
                sequence_number=self._next(),
                item_id=message.id,
                output_index=message.number,
                delta=text,
                logprobs=self._say(message),
            )
        for call in part.tool_calls:
            item = self._calls.get(call.call)
            if item is None:
                for other in self._calls.values():
                    if other.open:
                        yield from self._close(other, "completed")
                item = self._calls[call.call] = yield from self._begin(call)
            if call.arguments:
                text = call.arguments.replace("\0", "\ufffd")
                item.texts.append(text)
                yield shapes.ArgumentsDelta(
                    sequence_number=self._next(), item_id=item.id, output_index=item.number, delta=text
                )

    def _say(self, message: _Item) -> list[shapes.TokenLogprob]:
        said, self._unsaid = self._unsaid, []
        message.logprobs += said
        return said

    def _begin(self, call: ToolCallPart | None) -> Any:
        item = _Item(len(self._items), self._key, call)
        self._items.append(item)
        yield shapes.OutputItemAdded(
            sequence_number=self._next(), output_index=item.number, item=item.shown("in_progress", empty=True)
        )
        if call is None:
            yield shapes.ContentPartAdded(
                sequence_number=self._next(),
                item_id=item.id,
                output_index=item.number,
                part=shapes.OutputText(text=""),
            )
        return item

    def _close(self, item: _Item, status: shapes.ItemStatus) -> Iterator[shapes.AnyEvent]:
        item.open = False
        about: dict[str, Any] = {"item_id": item.id, "output_index": item.number}
        if item.call is None:
            part = item.part
            yield shapes.OutputTextDone(sequence_number=self._next(), text=part.text, logprobs=part.logprobs, **about)
            yield shapes.ContentPartDone(sequence_number=self._next(), part=part, **about)
        else:
            yield shapes.ArgumentsDone(sequence_number=self._next(), name=item.call.name, arguments=item.text, **about)
        yield shapes.OutputItemDone(sequence_number=self._next(), output_index=item.number, item=item.shown(status))

    def _terminal(self, event: Terminal) -> Iterator[shapes.AnyEvent]:
        if self._message is not None:
            self._say(self._message)
        self._end = event
        for item in self._items:
            if item.open:
                yield from self._close(item, self._item_status(item, event))
        response = self._ended(event)
        last: dict[str, type[shapes.Last]] = {
            "completed": shapes.ResponseCompleted,
            "incomplete": shapes.ResponseIncomplete,
            "cancelled": shapes.ResponseCancelled,
            "failed": shapes.ResponseFailed,
        }
        yield last[response.status](sequence_number=self._next(), response=response)

    def _item_status(self, item: _Item, event: Terminal) -> shapes.ItemStatus:
        """Of an answer that was cut, what it had begun last is what is not whole."""
        whole = status_of(event) == "completed" or item is not self._items[-1]
        return "completed" if whole else "incomplete"

    def _ended(self, event: Terminal) -> shapes.Response:
        status = status_of(event)
        return msgspec.structs.replace(
            self._base,
            status=status,
            completed_at=_completed_at(self._base, event) if status == "completed" else None,
            error=problem_of(event),
            incomplete_details=shapes.IncompleteDetails(reason=REASON) if status == "incomplete" else None,
            output=[item.shown(self._item_status(item, event)) for item in self._items],
            usage=self._usage(event),
        )

    def _usage(self, event: Terminal) -> shapes.ResponseUsage | None:
        """None where nothing was computed."""
        used = event.usage or protocol.Usage(
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            completion_tokens=self._output_tokens,
        )
        if not used.prompt_tokens:
            return None
        return shapes.ResponseUsage(
            input_tokens=used.prompt_tokens,
            input_tokens_details=shapes.InputTokensDetails(cached_tokens=used.cached_tokens),
            output_tokens=used.completion_tokens,
            output_tokens_details=shapes.OutputTokensDetails(),
            total_tokens=used.prompt_tokens + used.completion_tokens,
        )


def _completed_at(base: shapes.Response, event: Terminal) -> int:
    timing = event.timing or protocol.Timing()
    return int(base.created_at + timing.queue_s + timing.prefill_s + timing.decode_s)


def status_of(event: Terminal) -> shapes.ResponseStatus:
    if isinstance(event, protocol.Finished):
        return "incomplete" if event.finish_reason == "length" else "completed"
    return "cancelled" if isinstance(event, protocol.Cancelled) else "failed"


def problem_of(event: Terminal) -> shapes.ResponseProblem | None:
    """What went wrong; None where nothing did. What the caller can mend keeps its code, the rest is the server's."""
    if isinstance(event, protocol.Finished | protocol.Cancelled):
        return None
    kind = str(type(event).__struct_config__.tag)
    code = event.code or kind
    return shapes.ResponseProblem(
        code=code if isinstance(event, protocol.Refused) else SERVER_ERROR,
        message=event.message or _WORDS[kind],
        param=renamed(event.param) if event.param else None,
        type=code,
    )


def _logprob(token: protocol.TokenLogprob) -> shapes.TokenLogprob:
    return shapes.TokenLogprob(
        token=token.token,
        bytes=_bytes(token),
        logprob=token.logprob,
        top_logprobs=[shapes.Logprob(token=top.token, bytes=_bytes(top), logprob=top.logprob) for top in token.top],
    )


def _bytes(token: protocol.Logprob) -> list[int]:
    return token.bytes if token.bytes is not None else list(token.token.encode())


# --- from what was kept -------------------------------------------------------------------------------------------

Piece = int | tuple[int, int, int]


def pieces_of(choice: Choice) -> list[Piece]:
    """In what portions an answer came. Of text without logprobs, which is nearly all of it, the length alone."""
    return [length if call == TEXT and not known else (call, length, known) for call, length, known in choice.pieces]


def choice_of(output: Sequence[shapes.OutputItem], pieces: Sequence[Any]) -> Choice:
    """The answer that these items were made of, and its portions."""
    choice = Choice()
    for item in output:
        if isinstance(item, shapes.MessageItem):
            choice.texts.append(item.text)
            for part in item.content:
                if isinstance(part, shapes.OutputText):
                    choice.logprobs += map(_token, part.logprobs)
    calls = [item for item in output if isinstance(item, shapes.FunctionCallItem)]
    for number, item in enumerate(calls):
        choice.add_call(ToolCallPart(call=number, id=item.call_id, name=item.name, arguments=item.arguments))
    known = 0
    for piece in pieces:
        call, length, upto = (TEXT, piece, known) if isinstance(piece, int) else piece
        known = max(known, upto)
        choice.pieces.append((call, length, known))
    return choice


def retold(choice: Choice, started: Started, end: AnyTerminal) -> Iterator[protocol.AnyEvent]:
    """The engine's events that made this answer, in the same portions; not with the engine's own numbers."""
    yield started
    text, at, known = choice.text, 0, 0
    calls = choice.tool_calls
    places = [0] * len(calls)
    for call, length, upto in choice.pieces:
        logprobs, known = choice.logprobs[known:upto], max(known, upto)
        if call == TEXT:
            yield Delta(parts=[Part(text=text[at : at + length], logprobs=logprobs)])
            at += length
            continue
        made, place = calls[call], places[call]
        part = ToolCallPart(call=call, id=made.id, name=made.name, arguments=made.arguments[place : place + length])
        places[call] += length
        yield Delta(parts=[Part(logprobs=logprobs, tool_calls=[part])])
    if known < len(choice.logprobs):
        yield Delta(parts=[Part(logprobs=choice.logprobs[known:])])
    yield end


def _token(token: shapes.TokenLogprob) -> protocol.TokenLogprob:
    top = [
        protocol.Logprob(token=other.token, logprob=other.logprob, bytes=other.bytes) for other in token.top_logprobs
    ]
    return protocol.TokenLogprob(token=token.token, logprob=token.logprob, bytes=token.bytes, top=top)
