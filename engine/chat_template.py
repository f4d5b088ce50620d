"""A model's chat template: the Jinja program, found in its folder and run in a sandbox.

Owns finding it and the environment that such templates are written for (the one that transformers made customary).
Knows no tokens: it turns messages into text.
"""

from __future__ import annotations

import json
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


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


class ChatTemplate:
    """`source` is the Jinja text, `tokens` the names that it may use: bos_token, eos_token and the like."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        self.source = source
        self._tokens = dict(tokens)

    @cached_property
    def _template(self) -> Any:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            return environment.from_string(self.source)
        except TemplateError as error:
            raise ModelError(f"The model's chat template is damaged: {error}") from None

    def render(self, messages: list[dict[str, str]]) -> str:
        """The prompt for an answer to `messages` ({role, content} each). ChatTemplateError when they are not taken."""
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **self._tokens
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ChatTemplateError(f"The model's chat template refuses these messages: {reason}") from None


def find_template(folder: Path) -> ChatTemplate | None:
    """The folder's template: chat_template.jinja, or what tokenizer_config.json names; None when it has none."""
    settings = folder / "tokenizer_config.json"
    data = read_json(settings) if settings.is_file() else {}
    tokens = {key: text for key, value in data.items() if key.endswith("_token") and (text := _text(value)) is not None}
    alone = folder / "chat_template.jinja"
    if alone.is_file():
        return ChatTemplate(alone.read_text(encoding="utf-8"), tokens)
    source = data.get("chat_template")
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    return ChatTemplate(source, tokens) if isinstance(source, str) else None


def _text(value: Any) -> str | None:
    """A special token in tokenizer_config.json is a string, or an object with one."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
