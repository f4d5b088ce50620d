"""A model's chat template: the Jinja program, found in its folder and run in a sandbox.

Owns finding it and the environment that such templates are written for (the one that transformers made customary).
Knows no tokens: it turns messages into text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.models.config import ModelError, read_json


class ChatTemplateError(ValueError):
    """The model's template does not take these messages. The message is one line fit for the caller to read."""


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}` marks an answer for training; here it is just its contents."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: no HTML escapes. Noncharacters stay as they are, since a caller may look for its own."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _BEYOND_ASCII.sub(lambda found: json.dumps(found.group())[1:-1], text) if ensure_ascii else text


_BEYOND_ASCII = re.compile(r"[^\x00-\x7f\ufdd0-\ufdef]")


class ChatTemplate:
    """`source` is the Jinja text, `tokens` the names that it may use: bos_token, eos_token and the like.

    `with_tools`: the text for requests with tools, where the model has another one for these.
    """

    def __init__(self, source: str, tokens: Mapping[str, str], with_tools: str | None = None) -> None:
        self.source = source
        self.with_tools = source if with_tools is None else with_tools
        self._tokens = dict(tokens)

    @cached_property
    def _template(self) -> Any:
        return self._compiled(self.source)

    @cached_property
    def _tools_template(self) -> Any:
        return self._template if self.with_tools == self.source else self._compiled(self.with_tools)

    @staticmethod
    def _compiled(source: str) -> Any:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            return environment.from_string(source)
        except TemplateError as error:
            raise ModelError(f"The model's chat template is damaged: {error}") from None

    def render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
        """The prompt for an answer to `messages` ({role, content, …} each). ChatTemplateError when they are not taken.

        `tools`: {"type": "function", "function": {name, description, parameters}} each, as transformers has them.
        """
        template = self._tools_template if tools else self._template
        try:
            return template.render(
                messages=messages, add_generation_prompt=True, tools=tools, documents=None, **self._tokens
            )
        except (
            TemplateError,
            TypeError,
            ValueError,
            KeyError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ChatTemplateError(f"The model's chat template refuses these messages: {reason}") from None


def find_template(folder: Path) -> ChatTemplate | None:
    """The folder's template: chat_template.jinja, or what tokenizer_config.json names; None when it has none."""
    settings = folder / "tokenizer_config.json"
    data = read_json(settings) if settings.is_file() else {}
    tokens = {key: text for key, value in data.items() if key.endswith("_token") and (text := _text(value)) is not None}
    alone, tool_use = folder / "chat_template.jinja", folder / "additional_chat_templates" / "tool_use.jinja"
    if alone.is_file():
        with_tools = tool_use.read_text(encoding="utf-8") if tool_use.is_file() else None
        return ChatTemplate(alone.read_text(encoding="utf-8"), tokens, with_tools)
    source, other = data.get("chat_template"), None
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source, other = named.get("default"), named.get("tool_use")
    return ChatTemplate(source, tokens, other if isinstance(other, str) else None) if isinstance(source, str) else None


def _text(value: Any) -> str | None:
    """A special token in tokenizer_config.json is a string, or an object with one."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
