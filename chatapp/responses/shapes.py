"""A response, its items and the events of its stream, in OpenAI's shapes: what is kept of one, and what is sent.

Structs alone; nothing here acts. Items are kept in the database as the JSON of these.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]


# --- items --------------------------------------------------------------------------------------------------------


class Logprob(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    bytes: list[int]
    logprob: float


class TokenLogprob(Logprob, frozen=True, kw_only=True):
    top_logprobs: list[Logprob] = []


class InputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_text"):
    text: str


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """`annotations` is there because OpenAI's clients read it; nothing here annotates."""

    text: str
    annotations: list[Any] = []
    logprobs: list[TokenLogprob] = []


class Refusal(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="refusal"):
    """What another model refused to say, where a caller sends its answer on. None of ours comes in this form."""

    refusal: str


Content: TypeAlias = InputText | OutputText | Refusal


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str = ""
    role: Literal["user", "assistant", "system", "developer"]
    status: ItemStatus = "completed"
    content: list[Content]

    @property
    def text(self) -> str:
        return "".join(part.refusal if isinstance(part, Refusal) else part.text for part in self.content)


class FunctionCallItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    id: str = ""
    call_id: str
    name: str
    arguments: str
    status: ItemStatus = "completed"


class FunctionCallOutputItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call_output"):
    id: str = ""
    call_id: str
    output: str | list[InputText]
    status: ItemStatus = "completed"

    @property
    def text(self) -> str:
        return self.output if isinstance(self.output, str) else "".join(part.text for part in self.output)


Item: TypeAlias = MessageItem | FunctionCallItem | FunctionCallOutputItem
OutputItem: TypeAlias = MessageItem | FunctionCallItem


class ItemList(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


# --- the response -------------------------------------------------------------------------------------------------


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int = 0  # nobody is charged for writing here


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseProblem(msgspec.Struct, frozen=True, kw_only=True):
    """`code`: one of OpenAI's; `type`: what it is called here."""

    code: str
    message: str
    param: str | None = None
    type: str | None = None


class IncompleteDetails(msgspec.Struct, frozen=True, kw_only=True):
    reason: str


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller asked for stands in it as it was said, `tools`, `tool_choice` and `text` too."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    background: bool
    store: bool
    model: str
    error: ResponseProblem | None = None
    incomplete_details: IncompleteDetails | None = None
    output: list[OutputItem] = []
    usage: ResponseUsage | None = None
    previous_response_id: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = {}
    parallel_tool_calls: bool = True
    prompt_cache_key: str | None = None
    reasoning: Any = None
    safety_identifier: str | None = None
    service_tier: str = "default"
    temperature: float | None = None
    text: Any = None
    tool_choice: Any = "auto"
    tools: list[Any] = []
    top_logprobs: int = 0
    top_p: float | None = None
    truncation: str = "disabled"
    user: str | None = None


class ResponseDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "response"
    deleted: bool = True


# --- events -------------------------------------------------------------------------------------------------------


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """`sequence_number` counts from 0 without a gap."""

    sequence_number: int


class ResponseCreated(Event, frozen=True, kw_only=True, tag="response.created"):
    response: Response


class ResponseQueued(Event, frozen=True, kw_only=True, tag="response.queued"):
    response: Response


class ResponseInProgress(Event, frozen=True, kw_only=True, tag="response.in_progress"):
    response: Response


class ResponseCompleted(Event, frozen=True, kw_only=True, tag="response.completed"):
    response: Response


class ResponseIncomplete(Event, frozen=True, kw_only=True, tag="response.incomplete"):
    response: Response


class ResponseCancelled(Event, frozen=True, kw_only=True, tag="response.cancelled"):
    response: Response


class ResponseFailed(Event, frozen=True, kw_only=True, tag="response.failed"):
    response: Response


class OutputItemAdded(Event, frozen=True, kw_only=True, tag="response.output_item.added"):
    output_index: int
    item: OutputItem


class OutputItemDone(Event, frozen=True, kw_only=True, tag="response.output_item.done"):
    output_index: int
    item: OutputItem


class ContentPartAdded(Event, frozen=True, kw_only=True, tag="response.content_part.added"):
    item_id: str
    output_index: int
    content_index: int = 0
    part: OutputText


class ContentPartDone(Event, frozen=True, kw_only=True, tag="response.content_part.done"):
    item_id: str
    output_index: int
    content_index: int = 0
    part: OutputText


class OutputTextDelta(Event, frozen=True, kw_only=True, tag="response.output_text.delta"):
    item_id: str
    output_index: int
    content_index: int = 0
    delta: str
    logprobs: list[TokenLogprob] = []


class OutputTextDone(Event, frozen=True, kw_only=True, tag="response.output_text.done"):
    item_id: str
    output_index: int
    content_index: int = 0
    text: str
    logprobs: list[TokenLogprob] = []


class ArgumentsDelta(Event, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(Event, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    item_id: str
    output_index: int
    name: str
    arguments: str


class StreamError(Event, frozen=True, kw_only=True, tag="error"):
    """The stream ends although the response may go on: the caller's rights have ended."""

    code: str | None
    message: str
    param: str | None = None


AnyEvent: TypeAlias = (
    ResponseCreated
    | ResponseQueued
    | ResponseInProgress
    | OutputItemAdded
    | ContentPartAdded
    | OutputTextDelta
    | OutputTextDone
    | ContentPartDone
    | ArgumentsDelta
    | ArgumentsDone
    | OutputItemDone
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseCancelled
    | ResponseFailed
    | StreamError
)
Last: TypeAlias = ResponseCompleted | ResponseIncomplete | ResponseCancelled | ResponseFailed


def kind_of(event: AnyEvent) -> str:
    """What the event is called: response.created."""
    return str(type(event).__struct_config__.tag)
