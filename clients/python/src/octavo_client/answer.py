"""An answer as it grows: its choices with text, tool calls and log probabilities, and how it ended."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from octavo_client.frames import Timing, Usage

LIVE = frozenset({"sending", "queued", "running"})


@dataclass
class ToolCall:
    """A call that the model asks for; `arguments` is JSON text as the model wrote it."""

    id: str = ""
    name: str = ""
    arguments: str = ""

    def parsed(self) -> Any:
        """The arguments as Python values. Raises ValueError where the model wrote no valid JSON."""
        return json.loads(self.arguments)


@dataclass
class Choice:
    """One of the `n` answers. `finish_reason`: stop, length or tool_calls; `logprobs`: one entry a token, where they
    were asked for."""

    index: int = 0
    text: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str | None = None
    logprobs: list[Any] = field(default_factory=list)


@dataclass
class Answer:
    """`status`: sending, queued or running; at last completed, incomplete (cut by its limit), cancelled or failed.

    `conversation_id` is what the next question names to go on; None for a stateless call, of which nothing is kept.
    """

    status: str = "sending"
    response_id: str | None = None
    conversation_id: str | None = None
    message_id: str | None = None
    parent_id: str | None = None
    model: str | None = None
    position: int = 0
    choices: list[Choice] = field(default_factory=lambda: [Choice()])
    finish_reason: str | None = None
    prompt_logprobs: list[Any] = field(default_factory=list)
    usage: Usage | None = None
    timing: Timing | None = None

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text

    @property
    def texts(self) -> list[str]:
        """The texts of all choices."""
        return [choice.text for choice in self.choices]

    @property
    def message(self) -> dict[str, Any]:
        """The first choice as a message, to go on with in the next stateless call."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            message["content"] = self.text or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return message

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls of the first choice."""
        return self.choices[0].tool_calls

    @property
    def ended(self) -> bool:
        return self.status not in LIVE

    def __str__(self) -> str:
        return self.text
