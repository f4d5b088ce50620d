"""What form an answer must have, as callers say it -> a GrammarSpec. Every complaint names the field.

Takes OpenAI's `response_format` (and the `text.format` of its Responses, whose json_schema is flat), and what vLLM's
clients send beside it: `structured_outputs`, or the older fields that begin with guided_. One of them at most. A schema
is enforced whether it is called strict or not. What a schema means, and whether it can be enforced, the engine says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from chatapp.errors import BadInput
from engine.protocol import GrammarError, GrammarSpec

FIELDS = frozenset({"response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice"})
SCHEMA_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KINDS = {"json": "json_schema", "json_object": "json_object", "regex": "regex", "choice": "choice"}
_TYPES = ("text", "json_object", "json_schema")


def grammar(given: Mapping[str, Any]) -> GrammarSpec | None:
    """None where any text will do. Raises BadInput."""
    said = [name for name in sorted(FIELDS) if given.get(name) is not None]
    if len(said) > 1:
        raise BadInput(f"{said[1]} cannot be combined with {said[0]}; send one of them.", param=said[1])
    if not said:
        return None
    field, value = said[0], given[said[0]]
    if field == "response_format":
        return _response_format(value)
    if field == "structured_outputs":
        return _structured(value)
    return _spec(_KINDS[field.removeprefix("guided_")], value, field)


def _response_format(value: Any) -> GrammarSpec | None:
    field = "response_format"
    if not isinstance(value, Mapping):
        raise BadInput(f"{field} must be an object with a type.", param=field)
    kind = value.get("type")
    if kind not in _TYPES:
        raise BadInput(f"{field}.type must be one of {', '.join(_TYPES)}.", param=f"{field}.type")
    if kind == "text":
        return None
    if kind == "json_object":
        return GrammarSpec("json_object")
    flat = "json_schema" not in value and "schema" in value
    inner, where = (value, field) if flat else (value.get("json_schema"), f"{field}.json_schema")
    if not isinstance(inner, Mapping):
        raise BadInput(f"{where} must be an object with a name and a schema.", param=where)
    name = inner.get("name")
    if not isinstance(name, str) or not SCHEMA_NAME.fullmatch(name):
        raise BadInput(f"{where}.name must be 1 to 64 of the characters a-z, A-Z, 0-9, _ and -.", param=f"{where}.name")
    if not isinstance(inner.get("strict"), bool | None):
        raise BadInput(f"{where}.strict must be true or false.", param=f"{where}.strict")
    if not isinstance(inner.get("schema"), Mapping):
        raise BadInput(f"{where}.schema must be a JSON schema, an object.", param=f"{where}.schema")
    return _spec("json_schema", inner["schema"], f"{where}.schema")


def _structured(value: Any) -> GrammarSpec | None:
    field = "structured_outputs"
    if not isinstance(value, Mapping):
        raise BadInput(f"{field} must be an object with one of {', '.join(_KINDS)}.", param=field)
    said = [name for name in value if value[name] not in (None, False)]
    if len(said) != 1 or said[0] not in _KINDS:
        unknown = next((name for name in said if name not in _KINDS), None)
        param = field if unknown is None else f"{field}.{unknown[:64]}"
        raise BadInput(f"{field} takes exactly one of {', '.join(_KINDS)}.", param=param)
    if said[0] == "json_object" and value["json_object"] is not True:
        raise BadInput(f"{field}.json_object must be true or false.", param=f"{field}.json_object")
    return _spec(_KINDS[said[0]], value[said[0]], f"{field}.{said[0]}")


def _spec(kind: str, value: Any, param: str) -> GrammarSpec:
    """`value`: a schema as an object or as its text, an expression, or a list of texts."""
    if kind == "json_object":
        text = ""
    elif isinstance(value, str) and kind in ("json_schema", "regex"):
        text = value
    elif (kind == "json_schema" and isinstance(value, Mapping)) or (kind == "choice" and isinstance(value, list)):
        try:
            text = msgspec.json.encode(value).decode()
        except (TypeError, ValueError, RecursionError):
            raise BadInput(f"{param} cannot be written as JSON.", param=param) from None
    else:
        expected = {"json_schema": "a JSON schema", "regex": "a text", "choice": "a list of texts"}[kind]
        raise BadInput(f"{param} must be {expected}.", param=param)
    try:
        return GrammarSpec(kind, text)  # type: ignore[arg-type]
    except GrammarError as error:
        raise BadInput(f"{param}: {error}", code="invalid_grammar", param=param) from None
