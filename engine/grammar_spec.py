"""What form an answer must have: the part of a request that says so. Shared by the wire and the engine; loads neither
torch nor the grammar library.

A GrammarSpec that exists is of bounded size and, for JSON, well-formed: whatever is quick to tell is told when it is
made, in one line (GrammarError). Whether a schema or expression can be enforced is for `engine.grammar` to say.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

MAX_BYTES = 65_536
"""Of a schema or a list of choices. Public APIs that take schemas allow about as much."""
MAX_REGEX_BYTES = 4_096
MAX_NESTING = 64
"""Arrays and objects in one another within a schema's text; a level of the answer takes about two of them."""


class GrammarError(ValueError):
    """One line: what is wrong with a schema, expression or list of choices."""


class GrammarSpec(msgspec.Struct, frozen=True):
    """kind and text: a JSON schema as JSON; nothing (any JSON object); a regular expression that the whole answer
    matches; or a JSON array of strings, one of which is the answer. Raises GrammarError."""

    kind: Literal["json_schema", "json_object", "regex", "choice"]
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise GrammarError(f"There is no grammar of the kind {self.kind!r}; use one of {', '.join(KINDS)}.")
        what, limit = KINDS[self.kind]
        if len(self.text) > limit:  # before anything that takes time in proportion
            raise GrammarError(f"The {what} has {len(self.text):,} characters, but at most {limit:,} bytes are taken.")
        try:
            size = len(self.text.encode())
        except UnicodeEncodeError as error:
            raise GrammarError(f"The {what} is not Unicode text: there is half a pair at {error.start}.") from None
        if size > limit:
            raise GrammarError(f"The {what} has {size:,} bytes, but at most {limit:,} are taken.")
        if self.kind == "json_schema":
            schema = _decode(what, self.text)
            if not isinstance(schema, dict):
                raise GrammarError(f"The {what} must be a JSON object, and is {_name(schema)}.")
            _check_nesting(what, schema)
        elif self.kind == "choice":
            choices = _decode(what, self.text)
            if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
                raise GrammarError(f"The {what} must be a JSON array of strings that are not empty, at least one.")
        elif self.kind == "regex" and not self.text:
            raise GrammarError(f"The {what} is empty, so the answer would be; leave it out to allow any text.")
        elif self.kind == "regex" and (len(self.text) - len(self.text.rstrip("\\"))) % 2:
            raise GrammarError(f"The {what} ends with a backslash, which escapes nothing.")


KINDS = {
    "json_schema": ("JSON schema", MAX_BYTES),
    "json_object": ("text beside json_object", 0),
    "regex": ("regular expression", MAX_REGEX_BYTES),
    "choice": ("list of choices", MAX_BYTES),
}


def _decode(what: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise GrammarError(f"The {what} is nested more than {MAX_NESTING} deep.") from None
    except msgspec.DecodeError as error:
        raise GrammarError(f"The {what} is not JSON: {error}.") from None


def _check_nesting(what: str, value: Any) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_NESTING):
        inner = [list(v.values()) if isinstance(v, dict) else v for v in level if isinstance(v, dict | list)]
        level = [item for items in inner for item in items]
        if not level:
            return
    raise GrammarError(f"The {what} is nested more than {MAX_NESTING} deep.")


def _name(value: Any) -> str:
    return {list: "an array", str: "a string", bool: "true or false", type(None): "null"}.get(type(value), "a number")
