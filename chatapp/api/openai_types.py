"""Requests and answers of the OpenAI-compatible HTTP API as structs: their shapes, and nothing that acts.

`parse` reads a chat completion request or raises `RequestError` with the name of the field. Types are strict, fields
that OpenAI does not know are ignored as OpenAI does, and fields that it knows but that are not served here yet are
refused by name where they would change the answer: a silently ignored `tools` is worse than an error.
"""

from __future__ import annotations

from typing import Any

import msgspec

from chatapp.api.frames import InputText, where

# What the services take, under the names that vLLM gives the extra ones.
SAMPLING_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "stop", "min_tokens", "ignore_eos", "stop_token_ids",
)  # fmt: skip


class RequestError(Exception):
    """The body cannot be served: HTTP 400, `param` names the field where there is one."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


# --- request ------------------------------------------------------------------------------------------------------


class RequestMessage(msgspec.Struct, frozen=True):
    role: str
    content: str | list[InputText] | None = None
    tool_calls: list[Any] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[RequestMessage]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    cache_salt: str | None = None
    user: str | None = None
    # Known, and refused unless they say what happens anyway.
    n: int | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    best_of: int | None = None
    use_beam_search: bool | None = None

    def unserved(self) -> str | None:
        """The first field whose value asks for something that is not served."""
        asks = {
            "n": self.n not in (None, 1),
            "tools": bool(self.tools),
            "tool_choice": self.tool_choice not in (None, "none", "auto"),
            "functions": bool(self.functions),
            "function_call": self.function_call not in (None, "none", "auto"),
            "logprobs": bool(self.logprobs),
            "top_logprobs": bool(self.top_logprobs),
            "prompt_logprobs": self.prompt_logprobs is not None,
            "response_format": self.response_format is not None and self.response_format.get("type") != "text",
            "logit_bias": bool(self.logit_bias),
            "presence_penalty": bool(self.presence_penalty),
            "frequency_penalty": bool(self.frequency_penalty),
            "repetition_penalty": self.repetition_penalty not in (None, 1.0),
            "modalities": self.modalities not in (None, ["text"]),
            "audio": self.audio is not None,
            "prediction": self.prediction is not None,
            "web_search_options": self.web_search_options is not None,
            "best_of": self.best_of not in (None, 1),
            "use_beam_search": bool(self.use_beam_search),
        }
        return next((name for name, asked in asks.items() if asked), None)

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def params(self) -> dict[str, Any]:
        """The sampling settings that the request names; what it leaves out or sets to null is the server's choice."""
        chosen = {name: value for name in SAMPLING_FIELDS if (value := getattr(self, name)) is not None}
        limit = self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
        if limit is not None:
            chosen["max_tokens"] = limit
        return chosen


_decoder = msgspec.json.Decoder(ChatRequest)


def parse(body: bytes) -> ChatRequest:
    """The request in `body`. Raises RequestError for what is not JSON, has wrong types, or asks for what we lack."""
    try:
        request = _decoder.decode(body)
    except msgspec.ValidationError as error:
        message, param = where(error)
        raise RequestError(f"{param or 'The body'}: {message}.", param=param, code="invalid_type") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise RequestError("The body is not JSON.", code="invalid_json") from None
    refused = request.unserved()
    if refused:
        raise RequestError(
            f"{refused} is not supported here with this value; leave it out.",
            param=refused,
            code="unsupported_parameter",
        )
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options is only for stream: true.", param="stream_options")
    for position, entry in enumerate(request.messages):
        if entry.tool_calls:
            field = f"messages[{position}].tool_calls"
            raise RequestError("Tool calls are not supported here.", param=field, code="unsupported_parameter")
    return request


# --- answers ------------------------------------------------------------------------------------------------------


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class ChatUsage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str = "assistant"
    content: str | None = None
    refusal: str | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: AnswerMessage
    logprobs: None = None
    finish_reason: str


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: ChatUsage
    system_fingerprint: str


class DeltaMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: DeltaMessage
    logprobs: None = None
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the stream. `usage` is absent unless asked for; then it is null but in the last chunk."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    system_fingerprint: str
    usage: ChatUsage | msgspec.UnsetType | None = msgspec.UNSET


class Model(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "octavo"
    # Whether a worker serves it at this moment; asked for without one, it waits for the next.
    available: bool = True
    max_model_len: int | msgspec.UnsetType = msgspec.UNSET


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[Model]


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    error: ErrorBody


encode = msgspec.json.Encoder().encode
