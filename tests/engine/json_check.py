"""A checker of values against a JSON schema, for those keywords that our tests use; it knows no grammar library."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "integer": lambda v: isinstance(v, int | float) and not isinstance(v, bool) and v == int(v),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
}
KEYWORDS = {
    "$defs", "$ref", "additionalProperties", "anyOf", "const", "enum", "items", "maxItems", "maxLength", "maximum",
    "minItems", "minLength", "minimum", "pattern", "properties", "required", "type",
}  # fmt: skip


def problems(value: Any, schema: dict[str, Any], root: dict[str, Any] | None = None, at: str = "$") -> list[str]:
    """What is wrong with the value, a line each. Raises KeyError for a keyword that it does not know."""
    root = schema if root is None else root
    if unknown := set(schema) - KEYWORDS:
        raise KeyError(f"the checker does not know {unknown}")
    found: list[str] = []

    def expect(right: bool, what: str) -> None:
        if not right:
            found.append(f"{at}: {what}, and is {value!r}")

    if "$ref" in schema:
        target: Any = root
        for step in schema["$ref"].removeprefix("#").strip("/").split("/"):
            target = target[step] if step else target
        found += problems(value, target, root, at)
    if "anyOf" in schema:
        expect(any(not problems(value, each, root, at) for each in schema["anyOf"]), "one alternative must fit")
    if "type" in schema:
        types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        expect(any(TYPES[name](value) for name in types), f"must be {types}")
    if "const" in schema:
        expect(value == schema["const"], f"must be {schema['const']!r}")
    if "enum" in schema:
        expect(value in schema["enum"], f"must be among {schema['enum']}")
    if isinstance(value, str):
        expect(schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10**9), "has the wrong length")
        expect(re.search(schema.get("pattern", ""), value) is not None, "must match the pattern")
    if TYPES["number"](value):
        expect(schema.get("minimum", value) <= value <= schema.get("maximum", value), "is out of range")
    if isinstance(value, list):
        expect(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 10**9), "has the wrong size")
        for i, item in enumerate(value):
            found += problems(item, schema.get("items", {}), root, f"{at}[{i}]")
    if isinstance(value, dict):
        expect(set(schema.get("required", ())) <= set(value), f"must have {schema.get('required')}")
        for name, inner in value.items():
            if name in schema.get("properties", {}):
                found += problems(inner, schema["properties"][name], root, f"{at}.{name}")
            elif schema.get("additionalProperties", True) is False:
                found.append(f"{at}: must not have {name}")
    return found
