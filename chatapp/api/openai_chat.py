"""/v1/chat/completions: an answer to a conversation that the caller sends whole; streamed or not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from chatapp.api import openai_chat_types as types
from chatapp.api import openai_types as wire
from chatapp.api.answering import complete
from chatapp.api.http import json_of, with_key
from chatapp.api.openai_calls import FINGERPRINT, SERVICE_TIER, answered
from chatapp.api.operations import Operation
from chatapp.chat.models import Generation
from chatapp.errors import Refusal
from chatapp.streaming.assembly import Assembly, Choice
from chatapp.tenants.access import Access
from engine import protocol

OPERATIONS = (
    Operation(
        "POST",
        "/v1/chat/completions",
        "Answer a conversation",
        body=types.ChatRequest,
        answer=types.ChatCompletion,
        event=types.ChatChunk,
    ),
)


@with_key("POST")
async def chat_completions(request: HttpRequest, access: Access) -> HttpResponseBase:
    wanted = types.parse_chat(json_of(request))
    try:
        generation = await complete(
            access=access,
            messages=wanted.conversation(),
            params=wanted.params(),
            model=wanted.model,
            cache_salt=wanted.cache_salt,
            idempotency_key=request.headers.get("Idempotency-Key"),
            restart=True,
            **wanted.tooling(),
        )
    except Refusal as refusal:
        named = wanted.field(refusal.param)
        if refusal.param == "max_tokens" and named is not None:
            refusal.message = refusal.message.replace("max_tokens", named)
        refusal.param = named
        raise
    request.standings = generation.standings  # type: ignore[attr-defined]
    return await answered(access, [generation], ChatTeller(wanted, generation), stream=bool(wanted.stream))


class ChatTeller:
    """The shapes of one chat completion."""

    def __init__(self, wanted: types.ChatRequest, generation: Generation) -> None:
        self._wanted = wanted
        self._about: dict[str, Any] = {
            "id": f"chatcmpl-{generation.pk.hex}",
            "created": int(generation.created_at.timestamp()),
            "model": generation.model,
            "service_tier": SERVICE_TIER,
            "system_fingerprint": FINGERPRINT,
        }
        self._usage: Any = None if wanted.include_usage else msgspec.UNSET
        self._open = set(range(wanted.choices))

    def field(self, at: int, param: str | None) -> str | None:
        return self._wanted.field(param)

    # --- whole --------------------------------------------------------------------------------------------------

    def whole(self, found: Sequence[Assembly]) -> types.ChatCompletion:
        (one,) = found
        assert one.terminal is not None
        choices = [self._choice(index, one.choice(index), one.terminal) for index in range(self._wanted.choices)]
        return types.ChatCompletion(**self._about, choices=choices, usage=wire.usage_of([one.terminal]))

    def _choice(self, index: int, choice: Choice, end: protocol.Terminal) -> types.ChatChoice:
        calls = [
            types.AnswerToolCall(id=call.id, function=types.FunctionCall(name=call.name, arguments=call.arguments))
            for call in choice.tool_calls
        ]
        old = self._wanted.old_functions
        message = types.AnswerMessage(
            content=choice.text if choice.text or not calls else None,
            tool_calls=calls if calls and not old else msgspec.UNSET,
            function_call=calls[0].function if calls and old else msgspec.UNSET,
        )
        return types.ChatChoice(
            index=index,
            message=message,
            logprobs=_logprobs(choice.logprobs) if self._wanted.logprobs else None,
            finish_reason=self._reason(choice.finish_reason or end.finish_reason),
        )

    def _reason(self, reason: str | None) -> types.FinishReason:
        if reason == "tool_calls" and self._wanted.old_functions:
            return "function_call"
        return cast(types.FinishReason, reason or "stop")

    # --- streamed -----------------------------------------------------------------------------------------------

    def tell(self, at: int, event: protocol.AnyEvent) -> Iterable[types.ChatChunk]:
        if isinstance(event, protocol.Started):
            for index in sorted(self._open):
                yield self._chunk(index, types.DeltaMessage(role="assistant", content=""))
        elif isinstance(event, protocol.Delta):
            for part in event.parts:
                yield from self._part(part)
        elif isinstance(event, protocol.Finished):
            for index in sorted(self._open):
                yield self._end_of(index, event.finish_reason)
            self._open.clear()

    def _part(self, part: protocol.Part) -> Iterable[types.ChatChunk]:
        told = bool(self._wanted.logprobs and part.logprobs)
        if part.text or told:
            yield self._chunk(
                part.index,
                types.DeltaMessage(content=part.text),
                logprobs=_logprobs(part.logprobs) if told else None,
            )
        if part.tool_calls:
            yield self._chunk(part.index, self._calls(part.tool_calls))
        if part.finish_reason is not None and part.index in self._open:
            self._open.discard(part.index)
            yield self._end_of(part.index, part.finish_reason)

    def _calls(self, parts: Sequence[protocol.ToolCallPart]) -> types.DeltaMessage:
        if self._wanted.old_functions:
            first = types.DeltaFunction(
                name=parts[0].name or None, arguments="".join(part.arguments for part in parts if part.call == 0)
            )
            return types.DeltaMessage(function_call=first)
        return types.DeltaMessage(
            tool_calls=[
                types.DeltaToolCall(
                    index=part.call,
                    id=part.id or None,
                    type="function" if part.id else None,
                    function=types.DeltaFunction(name=part.name or None, arguments=part.arguments),
                )
                for part in parts
            ]
        )

    def _end_of(self, index: int, reason: str | None) -> types.ChatChunk:
        return self._chunk(index, types.DeltaMessage(), self._reason(reason))

    def _chunk(
        self,
        index: int,
        delta: types.DeltaMessage,
        finish_reason: types.FinishReason | None = None,
        logprobs: types.ChatLogprobs | None = None,
    ) -> types.ChatChunk:
        choice = types.ChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=finish_reason)
        return types.ChatChunk(**self._about, choices=[choice], usage=self._usage)

    def end(self, found: Sequence[protocol.Terminal]) -> Iterable[types.ChatChunk]:
        if self._wanted.include_usage:
            yield types.ChatChunk(**self._about, choices=[], usage=wire.usage_of(found))


def _logprobs(tokens: Sequence[protocol.TokenLogprob]) -> types.ChatLogprobs:
    return types.ChatLogprobs(
        content=[
            types.ChatLogprob(
                token=token.token,
                logprob=token.logprob,
                bytes=wire.bytes_of(token),
                top_logprobs=[
                    types.TopLogprob(token=one.token, logprob=one.logprob, bytes=wire.bytes_of(one))
                    for one in token.top
                ],
            )
            for token in tokens
        ]
    )
