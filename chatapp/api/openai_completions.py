"""/v1/completions: answers to bare prompts, several at once where asked for; streamed or not.

What a caller sees of a prompt's tokens comes from the engine: it tells of them from the second on, so the first is
what is left of the prompt's text.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

import msgspec
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from chatapp.api import openai_completions_types as types
from chatapp.api import openai_types as wire
from chatapp.api.answering import complete_all
from chatapp.api.http import json_of, with_key
from chatapp.api.openai_calls import FINGERPRINT, answered
from chatapp.api.operations import Operation
from chatapp.chat.models import Generation
from chatapp.streaming.assembly import Assembly
from chatapp.tenants.access import Access
from engine import protocol

OPERATIONS = (
    Operation(
        "POST",
        "/v1/completions",
        "Go on from bare prompts",
        body=types.CompletionRequest,
        answer=types.Completion,
        event=types.Completion,
    ),
)


@with_key("POST")
async def completions(request: HttpRequest, access: Access) -> HttpResponseBase:
    wanted = types.parse_completion(json_of(request))
    prompts = wanted.prompts()
    generations = await complete_all(
        access=access,
        prompts=prompts,
        params=wanted.params(),
        model=wanted.model,
        cache_salt=wanted.cache_salt,
        idempotency_key=request.headers.get("Idempotency-Key"),
        restart=True,
    )
    request.standings = generations[-1].standings  # type: ignore[attr-defined]
    teller = CompletionTeller(wanted, prompts, generations[0])
    return await answered(access, generations, teller, stream=bool(wanted.stream))


class Written:
    """The tokens of one choice so far, and where each begins in its text."""

    def __init__(self) -> None:
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, tokens: Sequence[protocol.TokenLogprob], first: bytes | None = None) -> types.CompletionLogprobs:
        """`first`: of a prompt's first token, which nothing says how likely it was."""
        found = types.CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        if first is not None:
            self._place(found, _shown_bytes(first), first, None, None)
        for token in tokens:
            name = _name(token)
            top = {_name(one): one.logprob for one in token.top}
            # The drawn token is told of in any case, as OpenAI does.
            self._place(found, name, bytes(wire.bytes_of(token)), token.logprob, {**top, name: token.logprob})
        return found

    def _place(
        self,
        found: types.CompletionLogprobs,
        name: str,
        data: bytes,
        logprob: float | None,
        top: dict[str, float] | None,
    ) -> None:
        found.tokens.append(name)
        found.token_logprobs.append(logprob)
        found.top_logprobs.append(top)
        found.text_offset.append(self._offset)
        self._offset += len(self._decoder.decode(data))

    def skip(self, text: str) -> None:
        self._offset += len(text)


def _name(token: protocol.Logprob) -> str:
    return token.token if token.bytes is None else _shown_bytes(bytes(token.bytes))


def _shown_bytes(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class CompletionTeller:
    """The shapes of one answer to all of the prompts."""

    def __init__(self, wanted: types.CompletionRequest, prompts: Sequence[Any], generation: Generation) -> None:
        self._wanted = wanted
        self._prompts = prompts
        self._n = wanted.choices
        self._about: dict[str, Any] = {
            "id": f"cmpl-{generation.pk.hex}",
            "created": int(generation.created_at.timestamp()),
            "model": generation.model,
            "system_fingerprint": FINGERPRINT,
        }
        self._usage: Any = None if wanted.include_usage else msgspec.UNSET
        every = [(at, index) for at in range(len(prompts)) for index in range(self._n)]
        self._open = set(every)
        self._written = {one: Written() for one in every}
        self._prompt_tokens: dict[int, list[protocol.TokenLogprob]] = {at: [] for at in range(len(prompts))}
        self._to_echo = set(range(len(prompts))) if wanted.echo else set()

    def field(self, at: int, param: str | None) -> str | None:
        if param in ("prompt", "messages"):
            return f"prompt[{at}]" if len(self._prompts) > 1 else "prompt"
        return {"prompt_logprobs": "logprobs", "response_format": self._wanted.form_field}.get(param or "", param)

    # --- whole --------------------------------------------------------------------------------------------------

    def whole(self, found: Sequence[Assembly]) -> types.Completion:
        choices = []
        for at, one in enumerate(found):
            assert one.terminal is not None
            self._prompt_tokens[at] = one.prompt_logprobs
            for index in range(self._n):
                choice, text, told = one.choice(index), "", []
                if self._wanted.echo:
                    text, echoed = self._echo(at, index)
                    told.append(echoed)
                if not self._wanted.echo_alone:
                    text += choice.text
                    told.append(self._logprobs(at, index, choice.logprobs))
                reason = choice.finish_reason or one.terminal.finish_reason
                choices.append(self._choice(at, index, text, _joined(told), self._reason(reason)))
        ends = [one.terminal for one in found if one.terminal is not None]
        return types.Completion(**self._about, choices=choices, usage=wire.usage_of(ends))

    # --- streamed -----------------------------------------------------------------------------------------------

    def tell(self, at: int, event: protocol.AnyEvent) -> Iterable[types.Completion]:
        if isinstance(event, protocol.Started):
            if not self._wanted.needs_prompt_tokens:
                yield from self._echoes(at)
        elif isinstance(event, protocol.Delta):
            for part in event.parts:
                yield from self._part(at, part)
        elif isinstance(event, protocol.Finished):
            yield from self._echoes(at)
            for index in range(self._n):
                yield from self._end_of(at, index, event.finish_reason)

    def _part(self, at: int, part: protocol.Part) -> Iterable[types.Completion]:
        self._prompt_tokens[at] += part.prompt_logprobs
        if not (part.text or part.token_ids or part.logprobs or part.finish_reason):
            return
        yield from self._echoes(at)  # the whole prompt has been told of by now
        told = self._logprobs(at, part.index, part.logprobs) if part.logprobs else None
        if (part.text or told is not None) and not self._wanted.echo_alone:
            yield self._chunk(self._choice(at, part.index, part.text, told, None))
        if part.finish_reason is not None:
            yield from self._end_of(at, part.index, part.finish_reason)

    def _echoes(self, at: int) -> Iterable[types.Completion]:
        if at not in self._to_echo:
            return
        self._to_echo.discard(at)
        for index in range(self._n):
            text, told = self._echo(at, index)
            yield self._chunk(self._choice(at, index, text, told, None))

    def _end_of(self, at: int, index: int, reason: str | None) -> Iterable[types.Completion]:
        if (at, index) in self._open:
            self._open.discard((at, index))
            yield self._chunk(self._choice(at, index, "", None, self._reason(reason)))

    def end(self, found: Sequence[protocol.Terminal]) -> Iterable[types.Completion]:
        if self._wanted.include_usage:
            yield types.Completion(**self._about, choices=[], usage=wire.usage_of(found))

    # --- both ---------------------------------------------------------------------------------------------------

    def _echo(self, at: int, index: int) -> tuple[str, types.CompletionLogprobs | None]:
        """The prompt as text, and its tokens where asked for."""
        prompt, tokens = self._prompts[at], self._prompt_tokens[at]
        rest = b"".join(bytes(wire.bytes_of(token)) for token in tokens)
        if isinstance(prompt, str):
            whole = prompt.encode("utf-8", "replace")
            first, text = whole.removesuffix(rest) if whole.endswith(rest) else b"", prompt
        else:
            first, text = b"", rest.decode("utf-8", "replace")
        if self._wanted.logprobs is None:
            self._written[at, index].skip(text)
            return text, None
        return text, self._written[at, index].add(tokens, first)

    def _logprobs(
        self, at: int, index: int, tokens: Sequence[protocol.TokenLogprob]
    ) -> types.CompletionLogprobs | None:
        return None if self._wanted.logprobs is None else self._written[at, index].add(tokens)

    def _reason(self, reason: str | None) -> Literal["stop", "length"]:
        if self._wanted.echo_alone:
            return "length"
        return cast(Literal["stop", "length"], reason or "stop")

    def _choice(
        self,
        at: int,
        index: int,
        text: str,
        logprobs: types.CompletionLogprobs | None,
        finish_reason: Literal["stop", "length"] | None,
    ) -> types.CompletionChoice:
        return types.CompletionChoice(
            index=at * self._n + index, text=text, logprobs=logprobs, finish_reason=finish_reason
        )

    def _chunk(self, choice: types.CompletionChoice) -> types.Completion:
        return types.Completion(**self._about, choices=[choice], usage=self._usage)


def _joined(told: Sequence[types.CompletionLogprobs | None]) -> types.CompletionLogprobs | None:
    parts = [one for one in told if one is not None]
    if not parts:
        return None
    return types.CompletionLogprobs(
        tokens=[token for part in parts for token in part.tokens],
        token_logprobs=[value for part in parts for value in part.token_logprobs],
        top_logprobs=[value for part in parts for value in part.top_logprobs],
        text_offset=[value for part in parts for value in part.text_offset],
    )
