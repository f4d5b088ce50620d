"""Requests and answers of /v1/completions as structs: their shapes, and nothing that acts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from chatapp.api.openai_types import RequestError, Sampled, Usage, check_stream, parse, refuse_unserved

Prompts = Annotated[
    str | list[str | int | list[int]],
    msgspec.Meta(description="A text, a list of texts, a list of token ids, or a list of such lists."),
]


class CompletionRequest(Sampled, frozen=True, kw_only=True):
    """Bare prompts to go on from: no template, and no prompt of your team, is applied to them."""

    prompt: Prompts
    echo: Annotated[bool | None, msgspec.Meta(description="Begin the answer with the prompt.")] = None
    logprobs: Annotated[
        int | None, msgspec.Meta(description="0 to 20: so many of the likeliest tokens are told of in each place.")
    ] = None
    # Known, and refused unless they say what happens anyway.
    suffix: str | None = None
    best_of: int | None = None
    prompt_logprobs: int | None = None
    use_beam_search: bool | None = None

    def prompts(self) -> list[str | list[int]]:
        """One entry for each answer, or each n of them. Raises RequestError for a mixture."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        if given and all(type(item) is int for item in given):
            return [given]  # type: ignore[list-item]
        if any(type(item) is int for item in given):
            raise RequestError("prompt mixes token ids with prompts; send one kind.", param="prompt")
        return given  # type: ignore[return-value]

    @property
    def echo_alone(self) -> bool:
        """The prompt only, for its log probabilities; the engine draws a token that nobody is shown."""
        return bool(self.echo) and self.max_tokens == 0

    def params(self) -> dict[str, Any]:
        chosen = super().params()
        if self.echo_alone:
            chosen["max_tokens"] = 1
            chosen.pop("min_tokens", None)
        if self.logprobs is not None:
            chosen["logprobs"] = self.logprobs
        if self.needs_prompt_tokens:
            chosen["prompt_logprobs"] = self.logprobs or 0
        return chosen

    @property
    def needs_prompt_tokens(self) -> bool:
        """Of a prompt in tokens nobody but the engine knows the text."""
        return bool(self.echo) and (self.logprobs is not None or not all(isinstance(p, str) for p in self.prompts()))


DECODER = msgspec.json.Decoder(CompletionRequest)


def parse_completion(body: bytes) -> CompletionRequest:
    """Raises RequestError for what is not JSON, has wrong types, or asks for what is not served."""
    request = parse(DECODER, body)
    refuse_unserved(
        [
            ("suffix", bool(request.suffix)),
            ("best_of", request.best_of not in (None, request.choices)),
            ("prompt_logprobs", request.prompt_logprobs is not None),
            ("use_beam_search", bool(request.use_beam_search)),
        ]
    )
    check_stream(request)
    if request.max_tokens == 0 and not request.echo:
        raise RequestError("max_tokens 0 is only for echo: true; ask for 1 token at least.", param="max_tokens")
    return request


# --- answers ------------------------------------------------------------------------------------------------------


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """One entry a token, the first of the prompt's without a probability. A token that is no text of its own is written
    bytes:\\xf0\\x9f. `text_offset`: where in the answer's text a token begins, in characters."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """`index`: that of its prompt times n, and from there on one for each of its answers."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The events of a stream have this shape too. `usage` of these is absent unless asked for; then it is null but in
    the last."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    system_fingerprint: str
