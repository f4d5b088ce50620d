"""Calls of functions, read out of an answer while it is being said.

Models write a call as text. Three customary forms are known, told by the markers that a chat template uses:

- **hermes**: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once for each call, text before and between them
  (NousResearch/Hermes-Function-Calling; Qwen 2.5 and 3, SmolLM3);
- **llama**: the whole answer is `{"name": …, "parameters": {…}}`, perhaps behind `<|python_tag|>`, several of them
  separated by `;` (Meta's prompt format of Llama 3.1; vLLM's parser llama3_json);
- **mistral**: `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, and since tokenizer version 11
  `[TOOL_CALLS]name[ARGS]{…}` for each call (mistral-common; vLLM's parser mistral).

Owns `CallParser`, which splits one choice's text into content and calls. Promises:

- what it gives does not depend on how the text is cut into pieces: a broken-off answer is rebuilt by feeding it again;
- a call begins when its name is read, one of the request's functions, and its arguments begin to be an object; from
  there they are handed on as they come, character for character; ids depend on the request, choice and call alone;
- held back is only what may yet turn out to be a call; if it is none it comes out as text, and so does whatever stands
  behind the place where a call broke off: nothing is lost but the form's own marks and the blanks beside a call;
- each character is looked at a bounded number of times.

Arguments are read by their brackets and strings, not judged: what a grammar does not enforce may be no JSON. Knows
neither tokens nor requests.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from engine.protocol import ToolCallPart

LONGEST_BLANKS = 64
"""Blanks before a possible call that are held back; of a longer run the end."""


@dataclass(frozen=True)
class CallForm:
    """How a model writes calls. `opening`: before them; `closing`: behind each (or each list), unless it is left out.

    `bare`: an answer that begins with an object may be a call. `named`: the name stands before the arguments' object.
    """

    kind: str
    opening: str
    closing: str = ""
    arguments: str = "arguments"
    bare: bool = False
    named: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """What may be control tokens of the model's, which must be seen here nevertheless."""
        return (self.opening, self.closing, *((ARGS, CALL_ID) if self.kind == "mistral" else ()))


ARGS, CALL_ID = "[ARGS]", "[CALL_ID]"
HERMES = CallForm("hermes", "<tool_call>", "</tool_call>")
LLAMA = CallForm("llama", "<|python_tag|>", arguments="parameters", bare=True)
MISTRAL = CallForm("mistral", "[TOOL_CALLS]")
MISTRAL_NAMED = CallForm("mistral", "[TOOL_CALLS]", named=True)


def form_of(template: str) -> CallForm | None:
    """The form that a chat template teaches, by its marks; None: none that is known here."""
    if "[TOOL_CALLS]" in template:
        return MISTRAL_NAMED if ARGS in template else MISTRAL
    if "<function=" in template:
        return None  # arguments in tags of their own (Qwen3-Coder), no JSON
    if "<tool_call>" in template:
        return HERMES
    if "<|python_tag|>" in template or re.search(r'\{\s*\\?"name\\?"\s*:.{0,80}?\\?"parameters\\?"\s*:', template):
        return LLAMA
    return None


class CallReading(msgspec.Struct, frozen=True):
    """How the answers to one request are to be read. `request`: its id. `most`: an answer ends behind so many calls."""

    form: CallForm
    names: frozenset[str]
    request: str
    most: int | None = None

    def parser(self, choice: int) -> CallParser:
        return CallParser(self.form, self.names, lambda call: call_id(self.request, choice, call), self.most)


def call_id(request: str, choice: int, call: int) -> str:
    """The same for an answer that is gone on with elsewhere."""
    return "call_" + hashlib.sha256(f"{request}\0{choice}\0{call}".encode()).hexdigest()[:24]


class _Value:
    """Scans one JSON value, by its strings and brackets, piece by piece."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._string = self._escape = self._begun = False

    def scan(self, text: str, position: int) -> tuple[int, str]:
        """Read on from `position`. How far it came, and: more, done (just behind the value), or bad (just before what
        does not belong there)."""
        while position < len(text):
            if self._escape:
                self._escape = False
                position += 1
            elif self._string:
                found = _IN_STRING.search(text, position)
                if found is None:
                    return len(text), "more"
                position = found.end()
                if found.group() == "\\":
                    self._escape = True
                else:
                    self._string = False
                    if not self._open:
                        return position, "done"
            elif not self._open:
                character = text[position]
                if self._begun and (character in ",}]" or character in BLANK):
                    return position, "done"  # behind a number or a word
                if character in ",:}]":
                    return position, "bad"
                self._begun = True
                position += 1
                if character in _CLOSES:
                    self._open.append(_CLOSES[character])
                self._string = character == '"'
            else:
                found = _STRUCTURE.search(text, position)
                if found is None:
                    return len(text), "more"
                character = found.group()
                if character in "}]" and self._open[-1] != character:
                    return found.start(), "bad"
                position = found.end()
                if character == '"':
                    self._string = True
                elif character in _CLOSES:
                    self._open.append(_CLOSES[character])
                else:
                    self._open.pop()
                    if not self._open:
                        return position, "done"
        return position, "more"


BLANK = " \t\r\n"
_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')
_NAME = re.compile(r"[A-Za-z0-9_.\-]")
_CLOSES = {"{": "}", "[": "]"}
_ARGUMENTS = ("arguments", "parameters")
_State: TypeAlias = Callable[[str, int], int]


class CallParser:
    """The content and calls of one choice. `ids` names a call by its number.

    A state is a method that reads a text from a position and returns how far it came; `_fail` where it reads no call.
    """

    def __init__(self, form: CallForm, names: frozenset[str], ids: Callable[[int], str], most: int | None) -> None:
        self.begun = 0
        """Calls that have begun."""
        self.ended = 0
        """Calls whose arguments are complete."""
        self._form = form
        self._names = names
        self._ids = ids
        self._most = most
        self._parts: list[tuple[int, str, str, list[str]]] = []
        self._text: list[str] = []
        self._held: list[str] = []
        """Taken in, and neither said nor understood."""
        self._state: _State = self._bare if form.bare else self._content
        self._behind_call = False
        self._marked = self._listed = False
        self._forget_call()

    @property
    def full(self) -> bool:
        """Whether it has as many calls as are wanted; what follows is dropped."""
        return self._most is not None and self.ended >= self._most

    @property
    def called(self) -> bool:
        """Whether the answer, should it end here, has called something, and in full."""
        return 0 < self.begun == self.ended

    def feed(self, text: str) -> str:
        """Take in a piece of the answer; the content that it gave. What it added to calls is for `take`."""
        position = 0
        while position < len(text) and not self.full:
            position = self._state(text, position)
        return self._said()

    def finish(self) -> str:
        """The answer has ended: what was held is content, but for the form's marks and blanks behind a call."""
        if not self.full and self._state not in (self._tail, self._closing):
            held = "".join(self._held)
            self._text.append(held.lstrip(BLANK) if self._behind_call else held)
        self._held = []
        return self._said()

    def take(self) -> list[ToolCallPart]:
        """What was added to the calls since the last time, one part for each call."""
        parts, self._parts = self._parts, []
        return [ToolCallPart(call=c, id=i, name=name, arguments="".join(said)) for c, i, name, said in parts]

    def _said(self) -> str:
        text = "".join(self._text)
        self._text = []
        return text

    def _forget_call(self) -> None:
        self._name: str | None = None
        self._early: str | None = None  # arguments that came before the name
        self._key = ""
        self._value = _Value()
        self._read: list[str] = []
        self._open = False  # it has begun

    def _hold(self, text: str, state: _State) -> None:
        self._held.append(text)
        self._state = state

    def _fail(self, position: int) -> int:
        """No call, or none any more: what was held is text, and what stands at `position` is looked at as such."""
        self._text += self._held
        self._held = []
        self._behind_call = False
        self._state = self._content
        return position

    # --- content ------------------------------------------------------------------------------------------------------

    def _bare(self, text: str, position: int) -> int:
        """The beginning of an answer that may be a call as it stands."""
        if text[position] in BLANK:
            self._hold(text[position], self._bare)
            return position + 1
        self._state = self._content
        return self._object(text, position, marked=False) if text[position] == "{" else position

    def _content(self, text: str, position: int) -> int:
        opening, before = self._form.opening, "".join(self._held)
        pending = before + text[position:]
        if self._behind_call:
            pending = pending.lstrip(BLANK)
            self._behind_call = not pending
        found = pending.find(opening)
        if found < 0:
            kept = next(n for n in range(min(len(opening) - 1, len(pending)), -1, -1) if pending.endswith(opening[:n]))
            end = len(pending) - kept
            end = _blanks_from(pending, end)
            self._text.append(pending[:end])
            self._held = [pending[end:]]
            return len(text)
        end = _blanks_from(pending, found)
        self._text.append(pending[:end])
        self._held = [pending[end : found + len(opening)]]
        self._marked, self._listed = True, False
        self._state = self._opened
        return len(text) - (len(pending) - found - len(opening))

    # --- a call, from its mark on -------------------------------------------------------------------------------------

    def _opened(self, text: str, position: int) -> int:
        """Behind the opening mark."""
        character = text[position]
        if character in BLANK:
            self._hold(character, self._opened)
        elif character == "{":
            return self._object(text, position, marked=True)
        elif character == "[":
            self._listed = True
            self._hold(character, self._item)
        elif self._form.kind == "mistral" and _NAME.match(character):
            self._forget_call()
            self._state = self._called_name
            return position
        else:
            return self._fail(position)
        return position + 1

    def _item(self, text: str, position: int) -> int:
        """In a list, where an object has to come."""
        if text[position] == "{":
            return self._object(text, position, marked=True)
        if text[position] not in BLANK:
            return self._fail(position)
        self._hold(text[position], self._item)
        return position + 1

    def _called_name(self, text: str, position: int) -> int:
        """A name before the arguments' object."""
        if _NAME.match(text[position]):
            self._read.append(text[position])
            self._hold(text[position], self._called_name)
            return position + 1
        self._name = "".join(self._read)
        self._read = []
        self._state = self._before_arguments
        return position if self._name in self._names else self._fail(position)

    def _before_arguments(self, text: str, position: int) -> int:
        """Between a name and its arguments: blanks, `[ARGS]`, `[CALL_ID]` and an id."""
        character, mark = text[position], "".join(self._read)
        if not mark and character == "{":
            self._begin()
            self._state = self._streamed
            return position
        if not mark and character in BLANK:
            self._hold(character, self._before_arguments)
            return position + 1
        mark += character
        known = [known for known in (ARGS, CALL_ID) if known.startswith(mark)]
        if not known and not (mark.startswith(CALL_ID) and (_NAME.match(character) or character == "[")):
            return self._fail(position)
        self._read.append(character)
        if mark == ARGS:
            self._read = []
        elif mark.startswith(CALL_ID) and character == "[":
            self._read = ["["]  # the id is the model's own; ours takes its place
        self._hold(character, self._before_arguments)
        return position + 1

    # --- an object with a name and arguments --------------------------------------------------------------------------

    def _object(self, text: str, position: int, *, marked: bool) -> int:
        self._forget_call()
        self._marked = marked
        self._hold(text[position], self._before_key)
        return position + 1

    def _before_key(self, text: str, position: int) -> int:
        if text[position] == '"':
            self._value, self._read, self._state = _Value(), [], self._in_key
            return position
        if text[position] not in BLANK:
            return self._fail(position)
        self._hold(text[position], self._before_key)
        return position + 1

    def _in_key(self, text: str, position: int) -> int:
        end, status = self._collect(text, position)
        if status == "done":
            self._key = _string("".join(self._read))
            self._state = self._colon
            known = self._key in ("name", "id", "type", *_ARGUMENTS)
            return end if known or self._open else self._fail(end)
        return end

    def _colon(self, text: str, position: int) -> int:
        if text[position] == ":":
            self._hold(":", self._before_value)
        elif text[position] in BLANK:
            self._hold(text[position], self._colon)
        else:
            return self._fail(position)
        return position + 1

    def _before_value(self, text: str, position: int) -> int:
        character = text[position]
        if character in BLANK:
            self._hold(character, self._before_value)
            return position + 1
        self._value, self._read, self._state = _Value(), [], self._in_value
        if not self._open and self._key == "name" and character != '"':
            return self._fail(position)
        if not self._open and self._key in _ARGUMENTS:
            if character == "{" and self._name is not None:
                self._begin()
                self._state = self._streamed
            elif character not in '{"':
                return self._fail(position)
        return position

    def _in_value(self, text: str, position: int) -> int:
        """A value that is read before anything is said of it."""
        end, status = self._collect(text, position)
        if status == "bad":
            return self._fail(end)
        if status == "done":
            self._state = self._behind_value
            read = "".join(self._read)
            if not self._open and self._key == "name":
                self._name = _string(read)
                if self._name not in self._names:
                    return self._fail(end)
            elif not self._open and self._key in _ARGUMENTS:
                self._early = read if read.startswith("{") else _string(read).strip(BLANK)
                if not read.startswith("{") and not _is_object(self._early):
                    return self._fail(end)
            if not self._open and self._name is not None and self._early is not None:
                self._begin(self._early)
                self._complete()
        return end

    def _behind_value(self, text: str, position: int) -> int:
        character = text[position]
        if character == ",":
            self._hold(character, self._before_key)
        elif character in BLANK:
            self._hold(character, self._behind_value)
        elif character == "}":
            if not self._open:
                if self._name is None or not self._marked:
                    return self._fail(position)
                self._begin("{}")  # a function of no arguments, and none given
                self._complete()
            self._end_call()
        elif self._behind_call and not "".join(self._held).strip(BLANK):
            self._end_call()  # without its last bracket
            return position
        else:
            return self._fail(position)
        return position + 1

    def _collect(self, text: str, position: int) -> tuple[int, str]:
        end, status = self._value.scan(text, position)
        self._read.append(text[position:end])
        self._held.append(text[position:end])
        return end, status

    # --- what is known to be a call -----------------------------------------------------------------------------------

    def _begin(self, arguments: str = "") -> None:
        """It is a call: what was held of it has been understood."""
        assert self._name is not None
        self._parts.append((self.begun, self._ids(self.begun), self._name, [arguments]))
        self.begun += 1
        self._open = True
        self._held = []
        self._value = _Value()

    def _streamed(self, text: str, position: int) -> int:
        """Within the arguments, which are said as they come."""
        end, status = self._value.scan(text, position)
        if end > position:
            call = self.begun - 1
            if not self._parts or self._parts[-1][0] != call:
                self._parts.append((call, "", "", []))
            self._parts[-1][3].append(text[position:end])
        if status == "bad":
            return self._fail(end)
        if status == "done":
            self._complete()
            self._state = self._behind_value
            if self._form.kind == "mistral" and not self._key:
                self._end_call()
        return end

    def _complete(self) -> None:
        self.ended += 1
        self._behind_call = True  # blanks are the form's

    def _end_call(self) -> None:
        self._held = []
        self._state = self._tail

    def _tail(self, text: str, position: int) -> int:
        """Behind a call: another one, the end of a list, the closing mark, or content."""
        character = text[position]
        if character in BLANK:
            self._hold(character, self._tail)
            return position + 1
        if self._listed:
            if character not in ",]":
                return self._fail(position)
            self._listed = character == ","
            self._hold(character, self._item if self._listed else self._tail)
            if not self._listed:
                self._held = []
            return position + 1
        if character == "{" and (self._form.closing or self._form.bare):
            return self._object(text, position, marked=self._marked)
        if character == ";" and self._form.bare and ";" not in self._held:
            self._hold(character, self._tail)
            return position + 1
        self._state = self._closing if self._form.closing else self._content
        if self._state == self._closing:
            self._held = []
        return position

    def _closing(self, text: str, position: int) -> int:
        read = "".join(self._held) + text[position]
        if not self._form.closing.startswith(read):
            self._state = self._content  # it was left out
            return position
        self._held.append(text[position])
        if read == self._form.closing:
            self._held = []
            self._state = self._content
        return position + 1


def _blanks_from(text: str, end: int) -> int:
    """Where the blanks before `end` begin, as far as they are held back."""
    return max(len(text[:end].rstrip(BLANK)), end - LONGEST_BLANKS)


def _string(literal: str) -> str:
    try:
        value = json.loads(literal)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
