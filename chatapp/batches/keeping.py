"""What a generation has said, as bytes in a row: a short form of its own events, read back to the same Assembly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from chatapp.streaming.assembly import Assembly, Choice, assembled
from engine.protocol import AnyEvent, Delta, Interrupted, Part, Started, Terminal, ToolCallPart, Usage

if TYPE_CHECKING:
    from chatapp.chat.recorder import Answer

_decoder = msgspec.json.Decoder(list[AnyEvent])
_encode = msgspec.json.Encoder().encode
LOST = "This answer was lost in a restart."


def pack(answer: Answer) -> bytes:
    end = answer.terminal or Interrupted(code="redis_lost_it", message=LOST, retryable=True)
    if end.usage is None:
        used = Usage(
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            completion_tokens=answer.completion_tokens,
        )
        end = msgspec.structs.replace(end, usage=used)
    parts = list(_parts(answer.choices.items()))
    if answer.prompt_logprobs:
        parts.append(Part(index=0, prompt_logprobs=answer.prompt_logprobs))
    events: list[object] = [
        Started(seq=0, prompt_tokens=answer.prompt_tokens, cached_tokens=answer.cached_tokens),
        Delta(seq=answer.last_seq, parts=parts),
        msgspec.structs.replace(end, timing=None),
    ]
    return _encode(events)


def unpack(kept: bytes) -> tuple[Assembly, Terminal]:
    found = assembled(_decoder.decode(kept))
    assert found.terminal is not None, "what is kept has ended"
    return found, found.terminal


def _parts(choices: Iterable[tuple[int, Choice]]) -> Iterable[Part]:
    for index, choice in choices:
        calls = [
            ToolCallPart(call=place, id=call.id, name=call.name, arguments=call.arguments)
            for place, call in enumerate(choice.tool_calls)
        ]
        yield Part(
            index=index,
            text=choice.text,
            logprobs=choice.logprobs,
            tool_calls=calls,
            finish_reason=choice.finish_reason,
        )
