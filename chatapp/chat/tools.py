"""Functions that an answer may call, and calls that former answers made, as callers send them -> the wire's structs.

Takes the shape of OpenAI's chat completions ({"type": "function", "function": {"name", …}}) and the flat one of its
Responses ({"type": "function", "name", …}). Every complaint names the field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from chatapp.chat.text import settled
from chatapp.errors import BadInput
from engine.protocol import GrammarError, GrammarSpec, Tool, ToolCall

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
NAME_RULE = "1 to 64 of the characters a-z, A-Z, 0-9, _ and -"
MOST_TOOLS = 128
MOST_TOOLS_BYTES = 256 * 1024
LONGEST_ID = 200
MOST_CALLS = 128

Mode = Literal["auto", "none", "required", "function"]


@dataclass(frozen=True)
class Toolbox:
    """What the request says of tools, in the wire's words."""

    tools: list[Tool] = field(default_factory=list)
    choice: Mode = "auto"
    name: str = ""
    parallel: bool = True


def toolbox(tools: Any, tool_choice: Any, parallel: Any) -> Toolbox:
    """Raises BadInput."""
    found = _tools(tools)
    if not isinstance(parallel, bool | None):
        raise BadInput("parallel_tool_calls must be true or false.", param="parallel_tool_calls")
    allowed, choice = _allowed(found, tool_choice)
    mode, name = _choice(allowed, choice)
    return Toolbox(allowed, mode, name, parallel is not False)


def _tools(value: Any) -> list[Tool]:
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise BadInput("tools must be a list of functions.", param="tools")
    if len(value) > MOST_TOOLS:
        raise BadInput(f"tools has {len(value)} entries; at most {MOST_TOOLS} can be sent.", param="tools")
    found = [_tool(entry, f"tools[{index}]") for index, entry in enumerate(value)]
    names: set[str] = set()
    for index, tool in enumerate(found):
        if tool.name in names:
            raise BadInput(f"Two tools are named {tool.name!r}.", param=f"tools[{index}]")
        names.add(tool.name)
    size = sum(map(size_of, found))
    if size > MOST_TOOLS_BYTES:
        raise BadInput(f"tools has {size:,} bytes; at most {MOST_TOOLS_BYTES:,} can be sent.", param="tools")
    return found


def size_of(tool: Tool) -> int:
    return len(msgspec.json.encode(tool))


def _tool(entry: Any, param: str) -> Tool:
    if not isinstance(entry, Mapping):
        raise BadInput("A tool is an object with a type and a function.", param=param)
    if entry.get("type") != "function":
        raise BadInput("Only tools of the type function are served here.", param=f"{param}.type")
    function, where = _function(entry, param)
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise BadInput(f"A function's name is {NAME_RULE}.", param=f"{where}.name")
    description = function.get("description")
    if not isinstance(description, str | None):
        raise BadInput("A function's description is a text.", param=f"{where}.description")
    parameters = function.get("parameters")
    if not isinstance(parameters, Mapping | None):
        raise BadInput("A function's parameters are a JSON schema, an object.", param=f"{where}.parameters")
    if not isinstance(function.get("strict"), bool | None):
        raise BadInput("strict must be true or false.", param=f"{where}.strict")
    try:
        GrammarSpec("json_schema", msgspec.json.encode(parameters or {}).decode())
    except GrammarError as error:
        raise BadInput(f"{where}.parameters: {error}", param=f"{where}.parameters") from None
    except (TypeError, ValueError, RecursionError):
        raise BadInput("A function's parameters must be JSON.", param=f"{where}.parameters") from None
    return Tool(name, settled(description or ""), dict(parameters or {}), strict=bool(function.get("strict")))


def _function(entry: Mapping[str, Any], param: str) -> tuple[Mapping[str, Any], str]:
    """What describes the function, and where it stands: nested, or flat."""
    if "function" not in entry:
        return (entry, param) if "name" in entry else ({}, f"{param}.function")
    if not isinstance(entry["function"], Mapping):
        raise BadInput("A function is an object with a name.", param=f"{param}.function")
    return entry["function"], f"{param}.function"


def _allowed(tools: list[Tool], choice: Any) -> tuple[list[Tool], Any]:
    """`tool_choice` of the type allowed_tools names those of the tools that count, and how."""
    if not isinstance(choice, Mapping) or choice.get("type") != "allowed_tools":
        return tools, choice
    inner, where = choice.get("allowed_tools", choice), "tool_choice"
    if "allowed_tools" in choice:
        where = "tool_choice.allowed_tools"
    if not isinstance(inner, Mapping) or not isinstance(inner.get("tools"), list):
        raise BadInput("allowed_tools is an object with a mode and a list of tools.", param=where)
    if inner.get("mode") not in ("auto", "required"):
        raise BadInput("The mode is auto or required.", param=f"{where}.mode")
    names = []
    for index, entry in enumerate(inner["tools"]):
        param = f"{where}.tools[{index}]"
        if not isinstance(entry, Mapping):
            raise BadInput("A tool is an object with a type and a function.", param=param)
        function, at = _function(entry, param)
        names.append(_known(tools, function.get("name"), f"{at}.name"))
    return [tool for tool in tools if tool.name in names], inner["mode"]


def _choice(tools: list[Tool], value: Any) -> tuple[Mode, str]:
    if value is None or value == "auto":
        return "auto", ""
    if value == "none":
        return "none", ""
    if value == "required":
        if not tools:
            raise BadInput("tool_choice is required, but there are no tools.", param="tool_choice")
        return "required", ""
    if not isinstance(value, Mapping) or value.get("type") != "function":
        raise BadInput(
            "tool_choice must be none, auto, required, or name a function of tools.",
            param="tool_choice.type" if isinstance(value, Mapping) else "tool_choice",
        )
    function, where = _function(value, "tool_choice")
    return "function", _known(tools, function.get("name"), f"{where}.name")


def _known(tools: list[Tool], name: Any, param: str) -> str:
    if not isinstance(name, str) or all(tool.name != name for tool in tools):
        raise BadInput("tool_choice names a function that is not among tools.", param=param)
    return name


# --- calls of former answers --------------------------------------------------------------------------------------


def tool_calls(value: Any, param: str) -> list[ToolCall]:
    """The calls that a message of an assistant made. Raises BadInput."""
    if not isinstance(value, list | tuple) or len(value) > MOST_CALLS:
        raise BadInput(f"tool_calls must be a list of at most {MOST_CALLS} calls.", param=param)
    calls = [_call(entry, f"{param}[{index}]") for index, entry in enumerate(value)]
    ids: set[str] = set()
    for index, call in enumerate(calls):
        if call.id in ids:
            raise BadInput(f"Two tool calls have the id {call.id[:40]!r}.", param=f"{param}[{index}].id")
        ids.add(call.id)
    return calls


def _call(entry: Any, param: str) -> ToolCall:
    if not isinstance(entry, Mapping):
        raise BadInput("A tool call is an object with id, type and function.", param=param)
    if entry.get("type", "function") != "function":
        raise BadInput("Only calls of the type function are served here.", param=f"{param}.type")
    function, where = _function(entry, param)
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise BadInput(f"A function's name is {NAME_RULE}.", param=f"{where}.name")
    if not isinstance(arguments, str):
        raise BadInput("arguments is the JSON text of an object, as the call had it.", param=f"{where}.arguments")
    return ToolCall(call_id(entry.get("id"), f"{param}.id"), name, settled(arguments))


def call_id(value: Any, param: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_ID:
        raise BadInput(f"The id of a tool call is a text of 1 to {LONGEST_ID} characters.", param=param)
    return settled(value)
