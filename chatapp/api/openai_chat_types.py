"""Requests and answers of /v1/chat/completions as structs: their shapes, and nothing that acts.

The deprecated `functions` and `function_call` are read as the tools that followed them.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

from chatapp.api.openai_types import RequestError, Sampled, Usage, check_stream, parse, refuse_unserved

MOST_TOP_LOGPROBS = 20
_OLD_TOOL = re.compile(r"^tools(\[\d+\])(\.function)?")
_OLD_CALL = re.compile(r"^(messages\[(\d+)\])\.tool_calls\[0\]\.function(.*)$")

Role = Annotated[
    str,
    msgspec.Meta(
        extra_json_schema={"enum": ["system", "developer", "user", "assistant", "tool", "function"]},
        description="developer is read as system; function is the deprecated form of tool.",
    ),
]


class TextPart(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class RefusalPart(msgspec.Struct, frozen=True, tag_field="type", tag="refusal"):
    refusal: str


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True):
    """`arguments`: a JSON object as its text, as the model wrote it."""

    name: str
    arguments: str


class MessageToolCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class RequestMessage(msgspec.Struct, frozen=True, kw_only=True):
    """`tool_calls`: of an assistant's. `tool_call_id`: of a message of the role tool, which call it answers."""

    role: Role
    content: str | list[TextPart | RefusalPart] | None = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None

    @property
    def text(self) -> str | None:
        if isinstance(self.content, list):
            return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in self.content)
        return self.content


class FormatText(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    pass


class FormatObject(msgspec.Struct, frozen=True, tag_field="type", tag="json_object"):
    """The answer is a JSON object."""


class JsonSchema(msgspec.Struct, frozen=True, kw_only=True):
    """It is held to the schema whether it is called strict or not."""

    name: str
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class FormatSchema(msgspec.Struct, frozen=True, tag_field="type", tag="json_schema"):
    json_schema: JsonSchema


class FunctionDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """`parameters`: a JSON schema of the object that the function takes."""

    name: Annotated[str, msgspec.Meta(description="1 to 64 of the characters a-z, A-Z, 0-9, _ and -.")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    function: FunctionDefinition


class FunctionName(msgspec.Struct, frozen=True):
    name: str


class ChosenFunction(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    function: FunctionName


class AllowedTools(msgspec.Struct, frozen=True, kw_only=True):
    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]


class ChosenTools(msgspec.Struct, frozen=True, tag_field="type", tag="allowed_tools"):
    allowed_tools: AllowedTools


class ChatRequest(Sampled, frozen=True, kw_only=True):
    """A conversation to be answered. Fields that are not listed are ignored."""

    messages: list[RequestMessage]
    max_completion_tokens: Annotated[
        int | None, msgspec.Meta(description="The longest that each answer may be; max_tokens is its older name.")
    ] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, msgspec.Meta(description="0 to 20; needs logprobs: true.")] = None
    response_format: FormatText | FormatObject | FormatSchema | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction | ChosenTools | None = None
    parallel_tool_calls: bool | None = None
    functions: list[FunctionDefinition] | None = None
    function_call: Literal["none", "auto"] | FunctionName | None = None
    # Accepted: they change no answer here.
    store: bool | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    # Known, and refused unless they say what happens anyway.
    prompt_logprobs: int | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None

    @property
    def old_functions(self) -> bool:
        """Asked in the deprecated form, and so answered in it."""
        return bool(self.functions)

    def params(self) -> dict[str, Any]:
        chosen = super().params()
        if self.max_completion_tokens is not None:
            chosen["max_tokens"] = self.max_completion_tokens
        if self.logprobs:
            chosen["logprobs"] = self.top_logprobs or 0
        if self.response_format is not None:
            chosen["response_format"] = msgspec.to_builtins(self.response_format)
        return chosen

    def field(self, param: str | None) -> str | None:
        """What the caller calls the field that services and engine call so."""
        if param == "response_format":
            return self.form_field
        if param == "max_tokens" and self.max_completion_tokens is not None:
            return "max_completion_tokens"
        if param is not None and self.old_functions:
            param = _OLD_TOOL.sub(r"functions\1", param).replace("tool_choice.function", "function_call")
            param = {"tools": "functions", "tool_choice": "function_call"}.get(param, param)
        if param is not None and (found := _OLD_CALL.match(param)) and self.messages[int(found[2])].tool_calls is None:
            return f"{found[1]}.function_call{found[3]}"
        return param

    def tooling(self) -> dict[str, Any]:
        """The arguments of services.complete that say which functions may be called."""
        if self.old_functions:
            choice: Any = self.function_call
            if isinstance(choice, FunctionName):
                choice = {"type": "function", "function": {"name": choice.name}}
            tools: Any = [{"type": "function", "function": msgspec.to_builtins(one)} for one in self.functions or ()]
            return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
        return {
            "tools": msgspec.to_builtins(self.tools),
            "tool_choice": msgspec.to_builtins(self.tool_choice),
            "parallel_tool_calls": self.parallel_tool_calls,
        }

    def conversation(self) -> list[dict[str, Any]]:
        """The messages as the services take them."""
        found: list[dict[str, Any]] = []
        last_call = ""
        for at, message in enumerate(self.messages):
            said: dict[str, Any] = {"role": message.role, "content": message.text}
            if message.tool_calls is not None:
                said["tool_calls"] = msgspec.to_builtins(message.tool_calls)
            elif message.function_call is not None:
                last_call = f"function_{at}"
                call = msgspec.to_builtins(message.function_call)
                said["tool_calls"] = [{"id": last_call, "type": "function", "function": call}]
            if message.role == "tool":
                said["tool_call_id"] = message.tool_call_id
            elif message.role == "function":
                said.update(role="tool", tool_call_id=last_call)
            found.append(said)
        return found


DECODER = msgspec.json.Decoder(ChatRequest)


def parse_chat(body: bytes) -> ChatRequest:
    """Raises RequestError for what is not JSON, has wrong types, or asks for what is not served."""
    request = parse(DECODER, body)
    refuse_unserved(
        [
            ("modalities", request.modalities not in (None, [], ["text"])),
            ("audio", request.audio is not None),
            ("web_search_options", request.web_search_options is not None),
            ("best_of", request.best_of not in (None, 1)),
            ("use_beam_search", bool(request.use_beam_search)),
        ]
    )
    check_stream(request)
    if request.top_logprobs is not None and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs: true.", param="top_logprobs")
    if not 0 <= (request.top_logprobs or 0) <= MOST_TOP_LOGPROBS:
        raise RequestError(f"top_logprobs must be from 0 to {MOST_TOP_LOGPROBS}.", param="top_logprobs")
    if request.functions and request.tools:
        raise RequestError("functions is the old name of tools; send one of them.", param="functions")
    return request


# --- answers ------------------------------------------------------------------------------------------------------


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(TopLogprob, frozen=True, kw_only=True):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    content: list[ChatLogprob] | None
    refusal: None = None


class AnswerToolCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: str | None = None
    tool_calls: list[AnswerToolCall] | msgspec.UnsetType = msgspec.UNSET
    function_call: FunctionCall | msgspec.UnsetType = msgspec.UNSET


FinishReason = Literal["stop", "length", "tool_calls", "function_call"]


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    service_tier: str
    system_fingerprint: str


class DeltaFunction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class DeltaToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Its first chunk has id, type and name; `arguments` are what was added."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: DeltaFunction


class DeltaMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[DeltaToolCall] | None = None
    function_call: DeltaFunction | None = None


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: DeltaMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the stream. `usage` is absent unless asked for; then it is null but in the last chunk."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    service_tier: str
    system_fingerprint: str
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
