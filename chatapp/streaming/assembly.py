"""What the events of a generation add up to: its choices, counts and end. Pure; recorder and callers read with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from engine.protocol import AnyEvent, Delta, Started, Terminal, TokenLogprob, ToolCall, ToolCallPart, Usage

TEXT = -1


@dataclass
class Choice:
    """One answer so far. `logprobs`: of its tokens, where they were asked for.

    `pieces`: in what portions it came, in order: the call, or -1 for text; how many characters of it; and how many
    logprobs were known then. So it can be told again just as it came.
    """

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    pieces: list[tuple[int, int, int]] = field(default_factory=list)
    _calls: list[ToolCall] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def tool_calls(self) -> list[ToolCall]:
        return list(self._calls)

    def add_call(self, part: ToolCallPart) -> None:
        if part.call == len(self._calls):
            self._calls.append(ToolCall(part.id, part.name, part.arguments))
        else:
            call = self._calls[part.call]
            self._calls[part.call] = msgspec.structs.replace(call, arguments=call.arguments + part.arguments)


@dataclass
class Assembly:
    """`add` its events in order. `prompt_logprobs`: from the prompt's second token on, where asked for."""

    choices: dict[int, Choice] = field(default_factory=dict)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    shared_tokens: int = 0
    completion_tokens: int = 0
    last_seq: int = 0
    terminal: Terminal | None = None

    def add(self, event: AnyEvent) -> None:
        if isinstance(event, Started):
            self._count(event)
        elif isinstance(event, Delta):
            self.last_seq = event.seq
            for part in event.parts:
                choice = self.choice(part.index)
                self.completion_tokens += len(part.token_ids)
                choice.logprobs += part.logprobs
                if part.text:
                    choice.texts.append(part.text)
                    choice.pieces.append((TEXT, len(part.text), len(choice.logprobs)))
                self.prompt_logprobs += part.prompt_logprobs
                for call in part.tool_calls:
                    choice.add_call(call)
                    choice.pieces.append((call.call, len(call.arguments), len(choice.logprobs)))
                choice.finish_reason = part.finish_reason or choice.finish_reason
        elif isinstance(event, Terminal):
            self.terminal = event
            if event.usage is not None:
                self._count(event.usage)
                self.completion_tokens = event.usage.completion_tokens

    def _count(self, told: Started | Usage) -> None:
        self.prompt_tokens, self.cached_tokens = told.prompt_tokens, told.cached_tokens
        self.shared_tokens = told.shared_tokens

    def choice(self, index: int = 0) -> Choice:
        """The choice `index`, empty where nothing has come of it."""
        return self.choices.setdefault(index, Choice())


def assembled(events: Iterable[AnyEvent]) -> Assembly:
    found = Assembly()
    for event in events:
        found.add(event)
    return found
