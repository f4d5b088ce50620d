"""What the OpenAI-compatible addresses share of requests and answers, as structs: shapes, and nothing that acts.

Types are strict, and fields that nobody knows are ignored, as OpenAI does. Fields that OpenAI knows and that are not
served here are refused by name where they would change the answer: a silently ignored one is worse than an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from chatapp.api.frames import where
from engine import protocol

# What the services take, under the names that OpenAI and, for the extra ones, vLLM give them.
SAMPLING_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "stop", "min_tokens", "ignore_eos", "stop_token_ids", "n",
    "logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty", "prompt_logprobs",
    "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
)  # fmt: skip
FORM_FIELDS = ("structured_outputs", "guided_json", "guided_regex", "guided_choice")
MOST_METADATA = 16
_PART_TYPE = re.compile(r"\.content\[\d+\]\.type$")

Body = TypeVar("Body", bound=msgspec.Struct)


class RequestError(Exception):
    """The body cannot be served: HTTP 400, `param` names the field where there is one."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


# --- requests -----------------------------------------------------------------------------------------------------


Temperature: TypeAlias = Annotated[float, msgspec.Meta(description="0 to 2; 0 always takes the likeliest token.")]
TopP: TypeAlias = Annotated[float, msgspec.Meta(description="0 to 1; 0 always takes the likeliest token.")]
Penalty: TypeAlias = Annotated[float, msgspec.Meta(description="-2 to 2, of tokens that the answer holds already.")]
Choices: TypeAlias = Annotated[int, msgspec.Meta(description="How many answers, 1 to 128.")]
Salt: TypeAlias = Annotated[
    str, msgspec.Meta(description="Narrows which requests may share cached blocks; as vLLM's field of this name.")
]
Bias: TypeAlias = Annotated[dict[str, float], msgspec.Meta(description="Token id to -100 … 100.")]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a request that say how an answer is drawn; what it leaves out or sets to null the server says."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    n: Choices | None = None
    logit_bias: Bias | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: float | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    cache_salt: Salt | None = None
    # Read by OpenAI's own dashboards; they change no answer.
    user: str | None = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def choices(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def form_field(self) -> str:
        """The field that says what form the answer has; the engine knows it as response_format."""
        return next((name for name in FORM_FIELDS if getattr(self, name) is not None), "response_format")

    def params(self) -> dict[str, Any]:
        chosen = {name: value for name in SAMPLING_FIELDS if (value := getattr(self, name, None)) is not None}
        if self.max_tokens is not None:
            chosen["max_tokens"] = self.max_tokens
        return chosen


def parse(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    """The request in `body`. Raises RequestError for what is not JSON or has wrong types."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        message, param = where(error)
        if param is not None and _PART_TYPE.search(param):
            raise RequestError(
                f"{param}: only text is read here; send parts of the type text.", param=param, code="invalid_type"
            ) from None
        raise RequestError(f"{param or 'The body'}: {message}.", param=param, code="invalid_type") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise RequestError("The body is not JSON.", code="invalid_json") from None


def refuse_unserved(asks: Iterable[tuple[str, bool]]) -> None:
    """`asks`: fields, and whether their values ask for what is not served. Raises RequestError for the first."""
    for name, asked in asks:
        if asked:
            raise RequestError(
                f"{name} is not supported here with this value; leave it out.",
                param=name,
                code="unsupported_parameter",
            )


def check_stream(request: Sampled) -> None:
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options is only for stream: true.", param="stream_options")


# --- answers ------------------------------------------------------------------------------------------------------


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


def usage_of(events: Iterable[protocol.Terminal]) -> Usage:
    """What several generations used together."""
    found = [event.usage or protocol.Usage() for event in events]
    prompt = sum(usage.prompt_tokens for usage in found)
    completion = sum(usage.completion_tokens for usage in found)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptDetails(cached_tokens=sum(usage.cached_tokens for usage in found)),
    )


def bytes_of(token: protocol.Logprob) -> list[int]:
    return token.bytes if token.bytes is not None else list(token.token.encode("utf-8", "replace"))


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """`param` names the field at fault, as a path: messages[2].content. `code` is for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    error: ErrorBody


encode = msgspec.json.Encoder().encode
