"""Going on with an answer that another worker began: what its log says, and a sequence brought to where it ends.

The log holds every token of every choice, those included whose text was held back, so feeding them to new followers
(detokenizer, stop search, call reader, grammar, repetition watch) brings these to the state that the dead worker's had:
none of them depends on how its input was cut. Tokens count as output, so penalties, min_tokens, max_tokens and the
positions that draws depend on are what they were; the prompt's counts are those of the first attempt.

Promises: the text and calls that follow continue what was told, character for character, or CannotContinue is raised.
Knows no Redis and no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.protocol import AnyEvent, Delta, Started, ToolCallPart

if TYPE_CHECKING:
    from engine.sequence import Sequence


class CannotContinue(Exception):
    """The log was written under other rules: another tokenizer, another template. One line that says what differs."""


@dataclass(slots=True)
class SaidChoice:
    """What was told of one choice. `calls`: of each function that it calls the id, the name and the arguments."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    finish_reason: str | None = None

    def add_calls(self, parts: Iterable[ToolCallPart]) -> None:
        for part in parts:
            if part.call == len(self.calls):
                self.calls.append((part.id, part.name, part.arguments))
            else:
                call, name, arguments = self.calls[part.call]
                self.calls[part.call] = (call, name, arguments + part.arguments)


@dataclass(slots=True)
class Begun:
    """What was told of a generation. `prompt_logprobs`: how many of them."""

    started: Started | None = None
    choices: dict[int, SaidChoice] = field(default_factory=dict)
    prompt_logprobs: int = 0

    def choice(self, index: int) -> SaidChoice:
        return self.choices.setdefault(index, SaidChoice())

    def ended(self, n: int) -> bool:
        """Whether all of its n choices have ended."""
        return sum(choice.finish_reason is not None for choice in self.choices.values()) == n


def begun(events: Iterable[AnyEvent]) -> Begun:
    """What a log says."""
    found = Begun()
    texts: dict[int, list[str]] = {}
    for event in events:
        if isinstance(event, Started):
            found.started = event
        elif isinstance(event, Delta):
            for part in event.parts:
                choice = found.choice(part.index)
                choice.token_ids += part.token_ids
                texts.setdefault(part.index, []).append(part.text)
                choice.add_calls(part.tool_calls)
                choice.finish_reason = part.finish_reason or choice.finish_reason
                found.prompt_logprobs += len(part.prompt_logprobs)
    for index, pieces in texts.items():
        found.choice(index).text = "".join(pieces)
    return found


@dataclass(slots=True)
class Replayed:
    """What has yet to be told of a choice that stands where its log ends. `reason`: why it has ended there, if it has;
    `flush`: text that is still held back belongs to the answer."""

    text: str
    calls: list[ToolCallPart]
    reason: str | None
    flush: bool


def replay(
    sequence: Sequence, before: SaidChoice, hear: Callable[[Sequence, int], tuple[str, str | None, bool]]
) -> Replayed:
    """Bring a new sequence to where its log ends. `hear` appends one token to it and tells all that follow it: the
    text to show, why it ends there, whether to flush. Raises CannotContinue."""
    texts, reason, flush = [], None, True
    for token in before.token_ids:
        text, reason, flush = hear(sequence, token)
        texts.append(text)
        if reason is not None:
            break
    shown = "".join(texts)
    if not shown.startswith(before.text):
        raise CannotContinue(f"its first {len(before.text)} characters would read otherwise here")
    calls: list[ToolCallPart] = []
    if sequence.calls is not None:
        rebuilt = SaidChoice()
        rebuilt.add_calls(sequence.calls.take())
        calls = _untold(rebuilt.calls, before.calls)
    elif before.calls:
        raise CannotContinue("it calls functions, which are not read here")
    return Replayed(shown[len(before.text) :], calls, reason, flush)


def _untold(rebuilt: list[tuple[str, str, str]], told: list[tuple[str, str, str]]) -> list[ToolCallPart]:
    if len(rebuilt) < len(told):
        raise CannotContinue(f"it made {len(told)} calls, of which {len(rebuilt)} are read here")
    untold = []
    for number, (call, name, arguments) in enumerate(rebuilt):
        if number >= len(told):
            untold.append(ToolCallPart(call=number, id=call, name=name, arguments=arguments))
            continue
        known = told[number]
        if (call, name) != known[:2] or not arguments.startswith(known[2]):
            raise CannotContinue(f"its call {number} reads otherwise here")
        if len(arguments) > len(known[2]):
            untold.append(ToolCallPart(call=number, arguments=arguments[len(known[2]) :]))
    return untold
