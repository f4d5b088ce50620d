"""A conversation as callers send it -> the wire's messages. Every complaint names the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chatapp.chat.text import clean, measured
from chatapp.chat.tools import call_id, tool_calls
from chatapp.errors import BadInput
from engine.protocol import ChatMessage

MOST_MESSAGES = 2000


def parse_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[list[ChatMessage], str]:
    """The conversation, and the caller's system texts joined.

    Of a role tool: {content, tool_call_id}, which answers a call of an assistant's message before it. An empty answer
    that calls nothing is left out. Raises BadInput.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise BadInput("messages must be a list of at least one message.", code="empty", param="messages")
    if len(messages) > MOST_MESSAGES:
        raise BadInput(f"messages has {len(messages)} entries; at most {MOST_MESSAGES} can be sent.", param="messages")
    history: list[ChatMessage] = []
    system: list[str] = []
    called: set[str] = set()
    for index, message in enumerate(messages):
        param = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise BadInput("A message is an object with role and content.", param=param)
        role, content = message.get("role"), message.get("content")
        if role in ("system", "developer"):
            system.append(clean(content, param=f"{param}.content"))
        elif role == "user":
            history.append(ChatMessage("user", clean(content, param=f"{param}.content")))
        elif role == "assistant":
            said = _assistant(message, param)
            if said is not None:
                history.append(said)
                called.update(call.id for call in said.tool_calls)
        elif role == "tool":
            of = call_id(message.get("tool_call_id"), f"{param}.tool_call_id")
            if of not in called:
                raise BadInput(
                    f"No message before this one calls a tool with the id {of[:40]!r}.", param=f"{param}.tool_call_id"
                )
            history.append(ChatMessage("tool", measured(content, param=f"{param}.content"), tool_call_id=of))
        else:
            raise BadInput(
                f"The role {str(role)[:40]!r} is unknown; use system, user, assistant or tool.", param=f"{param}.role"
            )
    if not any(message.role == "user" for message in history):
        raise BadInput("messages must hold a message of the role user.", code="empty", param="messages")
    return history, "\n\n".join(system)


def _assistant(message: Mapping[str, Any], param: str) -> ChatMessage | None:
    content, given = message.get("content"), message.get("tool_calls")
    calls = tool_calls(given, f"{param}.tool_calls") if given is not None else []
    if content is None or (isinstance(content, str) and not content.strip()):
        return ChatMessage("assistant", tool_calls=calls) if calls else None
    return ChatMessage("assistant", clean(content, param=f"{param}.content"), calls)
