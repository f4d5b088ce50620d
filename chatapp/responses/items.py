"""Items as callers send them -> items as they are kept, and from those the conversation that the engine is asked with.

Shapes are checked here, each complaint with the field it is about; what the texts, names and calls may be, chat's own
checks say (chatapp.chat.services.complete), whose complaints about messages `Places` turns into ones about items.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from chatapp.errors import BadInput
from chatapp.responses import shapes
from chatapp.responses.shapes import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputText,
    Item,
    MessageItem,
    OutputText,
    Refusal,
)

ROLES = ("user", "assistant", "system", "developer")
MOST_ITEMS = 2000
MOST_DEPTH = 64
TEXTS = ("input_text", "output_text", "text")


class GivenPart(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    text: str | None = None
    refusal: str | None = None


class GivenItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item of any kind, as it is sent: which fields it needs, its type says."""

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[GivenPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[GivenPart] | None = None


@dataclass(frozen=True)
class Reference:
    """An item of a response that is kept here, by its id."""

    id: str
    place: str


def read(given: str | Sequence[GivenItem]) -> list[Item | Reference]:
    """Raises BadInput. The ids that callers give to items are not kept."""
    if isinstance(given, str):
        return [MessageItem(role="user", content=[InputText(text=kept(given))])]
    if not given:
        raise BadInput("input must be a text or a list of at least one item.", code="empty", param="input")
    if len(given) > MOST_ITEMS:
        raise BadInput(f"input has {len(given)} items; at most {MOST_ITEMS} can be sent.", param="input")
    return [_item(item, f"input[{index}]") for index, item in enumerate(given)]


def _item(given: GivenItem, place: str) -> Item | Reference:
    kind = given.type or ("message" if given.role is not None else "item_reference")
    if kind == "message":
        return _message(given, place)
    if kind == "function_call":
        return FunctionCallItem(
            call_id=_needed(given.call_id, f"{place}.call_id"),
            name=_needed(given.name, f"{place}.name"),
            arguments=_needed(given.arguments, f"{place}.arguments"),
        )
    if kind == "function_call_output":
        call_id = _needed(given.call_id, f"{place}.call_id")
        if isinstance(given.output, list):
            return FunctionCallOutputItem(call_id=call_id, output=_texts(given.output, f"{place}.output"))
        return FunctionCallOutputItem(call_id=call_id, output=_needed(given.output, f"{place}.output"))
    if kind == "item_reference":
        return Reference(_needed(given.id, f"{place}.id"), place)
    raise BadInput(
        f"Items of the type {kind[:40]!r} are not served here; use message, function_call, function_call_output or "
        "item_reference.",
        code="unsupported_value",
        param=f"{place}.type",
    )


def _message(given: GivenItem, place: str) -> MessageItem:
    role: Any = given.role
    if role not in ROLES:
        raise BadInput(f"The role {str(role)[:40]!r} is unknown; use {', '.join(ROLES)}.", param=f"{place}.role")
    content = given.content
    if content is None:
        raise BadInput("A message has content: a text, or a list of parts.", param=f"{place}.content")
    parts = [GivenPart(type="text", text=content)] if isinstance(content, str) else content
    return MessageItem(role=role, content=list(_parts(parts, f"{place}.content", role)))


def _parts(parts: Sequence[GivenPart], place: str, role: str) -> Iterator[shapes.Content]:
    for index, part in enumerate(parts):
        if part.type == "refusal":
            yield Refusal(refusal=_needed(part.refusal, f"{place}[{index}].refusal"))
            continue
        text = kept(_text(part, f"{place}[{index}]"))
        yield OutputText(text=text) if role == "assistant" else InputText(text=text)


def _texts(parts: Sequence[GivenPart], place: str) -> list[InputText]:
    return [InputText(text=kept(_text(part, f"{place}[{index}]"))) for index, part in enumerate(parts)]


def _text(part: GivenPart, place: str) -> str:
    if part.type not in TEXTS:
        raise BadInput(
            f"Parts of the type {part.type[:40]!r} are not served here; send text.",
            code="unsupported_value",
            param=f"{place}.type",
        )
    return _needed(part.text, f"{place}.text")


def _needed(value: str | None, place: str) -> str:
    if value is None:
        raise BadInput(f"{place} is missing; it is a text.", param=place)
    return kept(value)


def kept(text: str) -> str:
    """Without U+0000 and lone surrogates, which databases and UTF-8 refuse."""
    return text.replace("\0", "").encode("utf-8", "ignore").decode()


def kept_value(value: Any, param: str, depth: int = 0) -> Any:
    """The same for anything that JSON can say. Raises BadInput for what is nested deeper than anybody means it."""
    if depth > MOST_DEPTH:
        raise BadInput(f"{param} is nested more than {MOST_DEPTH} deep.", param=param)
    if isinstance(value, str):
        return kept(value)
    if isinstance(value, Mapping):
        return {kept(str(key)): kept_value(inner, param, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [kept_value(inner, param, depth + 1) for inner in value]
    return value


def numbered(items: Sequence[Item], key: str) -> list[Item]:
    """With ids of their own, made of the response's."""
    prefixes = {MessageItem: "msg", FunctionCallItem: "fc", FunctionCallOutputItem: "fco"}
    return [
        msgspec.structs.replace(item, id=f"{prefixes[type(item)]}_{key}_i{number}") for number, item in enumerate(items)
    ]


# --- the conversation ---------------------------------------------------------------------------------------------


@dataclass
class Place:
    """Where a message came from: an item of the input, and for each of its calls the item of that one."""

    item: str
    content: str = "content"
    calls: list[str] = field(default_factory=list)


PREVIOUS = "previous_response_id"
_MESSAGE = re.compile(r"messages\[(\d+)\]\.?(.*)")
_CALL = re.compile(r"tool_calls\[(\d+)\]\.?(.*)")
_CALL_FIELDS = {"id": "call_id", "function.name": "name", "function.arguments": "arguments"}
_FIELDS = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "response_format": "text.format",
}


def renamed(param: str) -> str:
    """What a response calls a field of a chat completion."""
    first, dot, rest = param.partition(".")
    return _FIELDS.get(first, first) + dot + rest


class Places:
    """The messages of a request, and what a complaint about one of them is about in the caller's words."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._places: list[Place] = []

    def add_system(self, text: str, place: str) -> None:
        self._add({"role": "system", "content": text}, Place(place, ""))

    def add(self, items: Sequence[Item], place: str, *, each: bool = False) -> None:
        """`each`: the items stand in a list at `place`."""
        for index, item in enumerate(items):
            here = f"{place}[{index}]" if each else place
            if isinstance(item, MessageItem):
                self._add({"role": item.role, "content": item.text}, Place(here, "content" if each else ""))
            elif isinstance(item, FunctionCallOutputItem):
                message = {"role": "tool", "tool_call_id": item.call_id, "content": item.text}
                self._add(message, Place(here, "output"))
            elif item.status == "completed":  # nobody can answer a call that was cut
                self._add_call(item, here)

    def _add(self, message: dict[str, Any], place: Place) -> None:
        self.messages.append(message)
        self._places.append(place)

    def _add_call(self, item: FunctionCallItem, place: str) -> None:
        """What an answer says and calls is one message."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self._add({"role": "assistant", "content": None}, Place(place))
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        self.messages[-1].setdefault("tool_calls", []).append(call)
        self._places[-1].calls.append(place)

    def param(self, param: str | None) -> str | None:
        """The field of a response that chat's name of a field means."""
        if param is None:
            return None
        found = _MESSAGE.fullmatch(param)
        if found is None:
            return renamed(param)
        place, rest = self._places[int(found[1])], found[2]
        if place.item in (PREVIOUS, "instructions"):
            return place.item
        called = _CALL.fullmatch(rest)
        if called is not None:
            name = _CALL_FIELDS.get(called[2], called[2])
            return f"{place.calls[int(called[1])]}.{name}" if name else place.calls[int(called[1])]
        name = {"content": place.content, "tool_call_id": "call_id"}.get(rest, rest)
        return f"{place.item}.{name}" if name else place.item
