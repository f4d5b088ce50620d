"""The grammar of an answer that calls functions, in the form of its model.

Owns the text of that grammar: the form's marks (a control token where the mark is one) around a JSON object with a
function's name and arguments that keep to its schema. `engine.grammar` compiles and enforces it, with all of its
bounds. Schemas are taken as they are but for this: they describe an object, and one that names its properties and says
nothing of others allows no others, as a model has no reason to invent any.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from engine.grammar_spec import GrammarError, GrammarSpec
from engine.protocol import Tool
from engine.tool_calls import ARGS, CallForm

MOST_CALLS = 16
"""In one answer that must call: a model that repeats itself would go on until its tokens are used up."""
OPENS = frozenset({"properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "$ref", "allOf"})
OPENS |= frozenset({"anyOf", "oneOf", "not", "if", "dependentSchemas"})


class ToolGrammar(msgspec.Struct, frozen=True):
    """`lark`: the grammar, which holds `schemas`: the JSON of a list of them."""

    lark: str
    schemas: str = "[]"


def check_schema(tool: Tool) -> None:
    """Raises GrammarError for parameters that are no object's, too large, or nested too deep to be worked with."""
    kind = tool.parameters.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise GrammarError(f"The parameters of {tool.name} must be a schema of an object, not of {json.dumps(kind)}.")
    try:
        text = json.dumps(tool.parameters, ensure_ascii=False)
    except (RecursionError, ValueError) as error:
        raise GrammarError(f"The parameters of {tool.name} cannot be read: {type(error).__name__}.") from None
    try:
        GrammarSpec("json_schema", text)
    except GrammarError as error:
        raise GrammarError(f"The parameters of {tool.name}: {error}") from None


def tool_grammar(
    form: CallForm,
    tools: Sequence[Tool],
    *,
    forced: bool,
    parallel: bool,
    enforced: Iterable[str],
    control: Callable[[str], int | None],
    options: dict[str, Any],
) -> ToolGrammar:
    """`forced`: there must be a call, and nothing else; otherwise text, and calls where the model begins one.

    enforced: names of the functions whose arguments keep to their schema, those of the others are any object. control:
    the id of a mark that is a control token. options: of the JSON schemas. The tools have been checked.
    """
    enforced = set(enforced)
    schemas = [_object_schema(tool) if tool.name in enforced else {"type": "object"} for tool in tools]

    def mark(text: str) -> str:
        token = control(text)
        return json.dumps(text) if token is None else f"<[{token}]>"

    opening, closing = mark(form.opening), mark(form.closing) if form.closing else ""
    rules = {f"arguments_{n}": "%json " + json.dumps({**s, "x-guidance": options}) for n, s in enumerate(schemas)}
    for n, tool in enumerate(tools):
        name = json.dumps(tool.name, ensure_ascii=False)
        before = json.dumps(f'{{"name": {name}, "{form.arguments}": ')
        rules[f"call_{n}"] = (
            f"{json.dumps(tool.name)} {mark(ARGS)} arguments_{n}" if form.named else f'{before} arguments_{n} "}}"'
        )
    rules["call"] = " | ".join(f"call_{n}" for n in range(len(tools)))
    more = f"{{0,{MOST_CALLS - 1}}}"
    if form.bare:
        rules["start"] = "call" if forced else "call | OTHER"
        rules["OTHER"] = r"/([^{ \n](.|\n)*)?/"
    else:
        # A mark that is text ends whatever text comes before it; one that is a control token is in no text.
        lazy = not forced and control(form.opening) is None
        rules["opened"] = f"TEXT {opening}" if not forced else opening
        if form.closing:
            rules["one"] = f'opened "\\n" call "\\n" {closing}'
        elif form.named:
            rules["one"] = "opened call"
        else:
            rules["one"] = f'opened "[" call (", " call){more} "]"' if parallel else 'opened "[" call "]"'
        if not forced:
            rules["start"] = "one* TEXT"
            rules["TEXT"] = r"/(.|\n)*/"
        elif parallel and (form.closing or form.named):
            rules["start"] = f'one ("\\n" one){more}' if form.closing else f"one one{more}"
        else:
            rules["start"] = "one"
        if lazy:
            rules["opened[lazy]"] = rules.pop("opened")
    return ToolGrammar("\n".join(f"{name}: {rule}" for name, rule in rules.items()), json.dumps(schemas))


def _object_schema(tool: Tool) -> dict[str, Any]:
    schema = dict(tool.parameters)
    schema["type"] = "object"
    required = schema.get("required", [])
    named = schema.get("properties", {})
    closed = not (OPENS - {"properties"}) & schema.keys()
    if closed and isinstance(named, dict) and isinstance(required, list) and all(name in named for name in required):
        schema["additionalProperties"] = False
    return schema
