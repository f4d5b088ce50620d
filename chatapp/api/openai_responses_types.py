"""Requests to /v1/responses as structs, and what they ask for in the services' words.

`parse` reads a body or raises RequestError with the name of the field. Fields that OpenAI knows and that would change
the answer, but are not served here, are refused by name; those that change nothing here are taken and told back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from chatapp.api.frames import where
from chatapp.api.openai_types import SAMPLING_FIELDS, RequestError
from chatapp.chat.requests import digest_of
from chatapp.responses.items import GivenItem, kept, kept_value, read
from chatapp.responses.services import Wanted

LOGPROBS = "message.output_text.logprobs"
# What can be asked to come along. All but the log probabilities belong to tools and models that are not served here, so
# that there is nothing of it to leave out.
INCLUDABLE = frozenset(
    {
        LOGPROBS,
        "reasoning.encrypted_content",
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    }
)
MOVED = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "functions": "tools",
}
MOST_METADATA = 16
LONGEST_METADATA_KEY = 64
LONGEST_METADATA_VALUE = 512
LONGEST_NAME = 512
MOST_TOP_LOGPROBS = 20


class TextFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: str
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True, kw_only=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class GivenTool(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Reasoning(msgspec.Struct, frozen=True, kw_only=True):
    effort: str | None = None
    summary: str | None = None


class CreateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The sampling settings that OpenAI's Responses lack have the names that vLLM gives them."""

    input: str | list[GivenItem] | None = None
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    text: TextConfig | None = None
    tools: list[GivenTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    truncation: str | None = None
    reasoning: Reasoning | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    cache_salt: str | None = None
    # Known, and refused unless they say what happens anyway.
    conversation: Any = None
    prompt: Any = None
    context_management: list[Any] | None = None
    moderation: Any = None
    # What chat completions call things: whoever sends it means something by it.
    messages: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    response_format: Any = None
    functions: Any = None
    n: Any = None

    @property
    def kept(self) -> bool:
        return self.store is not False

    def wanted(self) -> Wanted:
        """Raises BadInput."""
        told = self._told()
        return Wanted(
            items=read(self.input if self.input is not None else []),
            instructions=self.instructions,
            previous_response_id=self.previous_response_id,
            model=self.model,
            params=self._params(),
            tools=self._tools(),
            cache_salt=self.cache_salt,
            store=self.kept,
            background=bool(self.background),
            told=told,
            digest=digest_of(
                msgspec.to_builtins(self.input), self.model, self.previous_response_id, self._params(), told,
                self.cache_salt, self.kept, bool(self.background),
            ),
        )  # fmt: skip

    def _params(self) -> dict[str, Any]:
        names = (*SAMPLING_FIELDS, "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias")
        chosen = {name: value for name in names if (value := getattr(self, name, None)) is not None}
        if self.max_output_tokens is not None:
            chosen["max_tokens"] = self.max_output_tokens
        if self.text is not None and self.text.format is not None and self.text.format.type != "text":
            chosen["response_format"] = msgspec.to_builtins(self.text.format)
        if self.top_logprobs or LOGPROBS in (self.include or ()):
            chosen["logprobs"] = self.top_logprobs or 0
        return chosen

    def _tools(self) -> dict[str, Any]:
        if not self.tools and self.tool_choice in (None, "none", "auto"):
            return {}
        return {
            "tools": [self._tool(tool) for tool in self.tools or ()],
            "tool_choice": self.tool_choice,
            "parallel_tool_calls": self.parallel_tool_calls,
        }

    @staticmethod
    def _tool(tool: GivenTool) -> dict[str, Any]:
        return {name: value for name, value in msgspec.structs.asdict(tool).items() if value is not None}

    def _told(self) -> dict[str, Any]:
        """Under the names of shapes.Response."""
        form: Mapping[str, Any] = {"type": "text"}
        if self.text is not None and self.text.format is not None:
            form = msgspec.to_builtins(self.text.format)
        tools = [{"strict": None, "parameters": None, "description": None, **self._tool(t)} for t in self.tools or ()]
        return {
            "instructions": None if self.instructions is None else kept(self.instructions),
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": kept_value(self.metadata or {}, "metadata"),
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "prompt_cache_key": _name(self.prompt_cache_key, "prompt_cache_key"),
            "safety_identifier": _name(self.safety_identifier, "safety_identifier"),
            "temperature": self.temperature,
            "text": {"format": kept_value(form, "text.format"), "verbosity": "medium"},
            "tool_choice": kept_value("auto" if self.tool_choice is None else self.tool_choice, "tool_choice"),
            "tools": kept_value(tools, "tools"),
            "top_logprobs": self.top_logprobs or 0,
            "top_p": self.top_p,
            "user": _name(self.user, "user"),
        }


def _name(value: str | None, param: str) -> str | None:
    if value is not None and len(value) > LONGEST_NAME:
        raise RequestError(f"{param} may have {LONGEST_NAME} characters.", param=param)
    return None if value is None else kept(value)


_decoder = msgspec.json.Decoder(CreateRequest)


def parse(body: bytes) -> CreateRequest:
    """The request in `body`. Raises RequestError for what is not JSON, has wrong types, or asks for what we lack."""
    try:
        request = _decoder.decode(body)
    except msgspec.ValidationError as error:
        message, param = where(error)
        raise RequestError(f"{param or 'The body'}: {message}.", param=param, code="invalid_type") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise RequestError("The body is not JSON.", code="invalid_json") from None
    _check(request)
    return request


def _check(request: CreateRequest) -> None:
    for name, why in _unserved(request):
        raise RequestError(why, param=name, code="unsupported_parameter")
    if request.input is None:
        raise RequestError("input is missing: a text, or a list of items.", param="input", code="missing")
    for index, tool in enumerate(request.tools or ()):
        if tool.type != "function":
            raise RequestError(
                f"Tools of the type {tool.type[:40]!r} are not served here, only functions.",
                param=f"tools[{index}].type",
                code="unsupported_value",
            )
    if request.background and not request.kept:
        raise RequestError("background needs store: nobody could fetch the response otherwise.", param="background")
    if request.top_logprobs is not None and not 0 <= request.top_logprobs <= MOST_TOP_LOGPROBS:
        raise RequestError(f"top_logprobs must be from 0 to {MOST_TOP_LOGPROBS}.", param="top_logprobs")
    if request.max_tool_calls is not None and not 1 <= request.max_tool_calls <= 2**31 - 1:
        raise RequestError("max_tool_calls must be 1 at least.", param="max_tool_calls")
    includable(request.include or ())
    _check_metadata(request.metadata or {})


def _unserved(request: CreateRequest) -> list[tuple[str, str]]:
    """The fields that ask for something that is not served, and why."""
    verbosity = request.text.verbosity if request.text is not None else None
    effort = request.reasoning.effort if request.reasoning is not None else None
    summary = request.reasoning.summary if request.reasoning is not None else None
    found = {
        "conversation": (
            request.conversation is not None,
            "conversation is not served here; go on from a response with previous_response_id.",
        ),
        "prompt": (
            request.prompt is not None,
            "prompt is not served here; name an assistant of your team as the model: assistant:<slug>.",
        ),
        "truncation": (
            request.truncation not in (None, "disabled"),
            "truncation can only be disabled here: what does not fit is refused, and nothing is left out unsaid.",
        ),
        "context_management": (bool(request.context_management), "context_management is not served here."),
        "moderation": (request.moderation is not None, "moderation is not served here."),
        **{
            old: (getattr(request, old) is not None, f"In /v1/responses {old} is called {new}.")
            for old, new in MOVED.items()
        },
        "n": (request.n not in (None, 1), "A response has one answer; ask several times for several."),
        "reasoning.effort": (effort not in (None, "none"), "The models here do not reason; leave reasoning out."),
        "reasoning.summary": (summary is not None, "The models here do not reason; leave reasoning out."),
        "text.verbosity": (verbosity not in (None, "medium"), "verbosity is not served here; leave it out."),
    }
    return [(name, why) for name, (asked, why) in found.items() if asked]


def _check_metadata(metadata: Mapping[str, str]) -> None:
    if len(metadata) > MOST_METADATA:
        raise RequestError(f"metadata may have {MOST_METADATA} keys, not {len(metadata)}.", param="metadata")
    for key, value in metadata.items():
        if not 0 < len(key) <= LONGEST_METADATA_KEY:
            raise RequestError(f"metadata's keys have 1 to {LONGEST_METADATA_KEY} characters.", param="metadata")
        if len(value) > LONGEST_METADATA_VALUE:
            raise RequestError(
                f"metadata's values have at most {LONGEST_METADATA_VALUE} characters.", param=f"metadata.{key}"
            )


def includable(names: Any) -> None:
    for index, name in enumerate(names):
        if name not in INCLUDABLE:
            raise RequestError(
                f"{name[:60]!r} cannot be included.", param=f"include[{index}]", code="unsupported_value"
            )


# --- queries ------------------------------------------------------------------------------------------------------


def flag(value: str | None, param: str) -> bool:
    if value in (None, "", "false"):
        return False
    if value == "true":
        return True
    raise RequestError(f"{param} is true or false.", param=param, code="invalid_type")


def whole_number(value: str | None, param: str, *, least: int, most: int, default: int) -> int:
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) < 20 and least <= int(value) <= most):
        raise RequestError(f"{param} must be a whole number from {least} to {most}.", param=param, code="invalid_type")
    return int(value)
