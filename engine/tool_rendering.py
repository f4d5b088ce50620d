"""Tools and calls in the shape that chat templates expect, their texts guarded like those of messages.

Owns the shape (transformers' "chat templates: tools"): a tool is {"type": "function", "function": {name, description,
parameters}}, a call the same with name and arguments, which are an object because most templates write them as JSON
themselves; arguments that are no JSON object stay the string that they are. Every string that the caller wrote goes
through `guard`, so that none of it can become a control token; words that templates compare (the keywords and types of
JSON schemas) are left as they are unless they hold a character that a control token begins or ends with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from engine.protocol import ChatMessage, Tool

Guard = Callable[[str], str]

COMPARED = frozenset(
    (
        "type", "object", "array", "string", "number", "integer", "boolean", "null", "properties", "items",
        "required", "enum", "const", "description", "title", "default", "format", "anyOf", "oneOf", "allOf",
        "not", "$ref", "$defs", "definitions", "additionalProperties", "prefixItems", "pattern", "minimum",
        "maximum", "nullable",
    )
)  # fmt: skip
"""Words of JSON schemas that templates look for."""


def tools_for(tools: Sequence[Tool], guard: Guard) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": guard(tool.name),
                "description": guard(tool.description),
                "parameters": _guarded(tool.parameters or {"type": "object", "properties": {}}, guard),
            },
        }
        for tool in tools
    ]


def messages_for(messages: Sequence[ChatMessage], guard: Guard, *, short_ids: bool) -> list[dict[str, Any]]:
    """`short_ids`: nine hexadecimal digits in place of each call's id, which Mistral's templates insist on."""

    def named(call: str) -> str:
        return hashlib.sha256(call.encode("utf-8", "surrogatepass")).hexdigest()[:9] if short_ids else guard(call)

    names = {call.id: call.name for message in messages for call in message.tool_calls}
    chat: list[dict[str, Any]] = []
    for message in messages:
        turn: dict[str, Any] = {"role": message.role, "content": guard(message.content)}
        if message.tool_calls:
            turn["tool_calls"] = [
                {
                    "id": named(call.id),
                    "type": "function",
                    "function": {"name": guard(call.name), "arguments": _arguments(call.arguments, guard)},
                }
                for call in message.tool_calls
            ]
        if message.role == "tool":
            turn["tool_call_id"] = named(message.tool_call_id)
            if message.tool_call_id in names:
                turn["name"] = guard(names[message.tool_call_id])
        chat.append(turn)
    return chat


def texts_of(tools: Sequence[Tool], messages: Sequence[ChatMessage]) -> list[str]:
    """All that a caller wrote besides the contents of messages, for whoever looks for a character that is in none."""
    texts: list[str] = []
    for tool in tools:
        texts += [tool.name, tool.description, *_strings(tool.parameters)]
    for message in messages:
        texts.append(message.tool_call_id)
        for call in message.tool_calls:
            # As it stands and as it is meant: within JSON any character may be written as an escape.
            texts += [call.id, call.name, call.arguments, *_strings(_parsed(call.arguments))]
    return texts


def _arguments(text: str, guard: Guard) -> Any:
    value = _parsed(text)
    return guard(text) if value is None else _guarded(value, guard)


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _guarded(value: Any, guard: Guard) -> Any:
    if isinstance(value, str):
        return value if value in COMPARED else guard(value)
    if isinstance(value, dict):
        return {_guarded(key, guard): _guarded(item, guard) for key, item in value.items()}
    if isinstance(value, list):
        return [_guarded(item, guard) for item in value]
    return value


def _strings(value: Any) -> list[str]:
    found: list[str] = []
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            found += item
            stack += item.values()
        elif isinstance(item, list):
            stack += item
    return found
