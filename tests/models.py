"""Models that tests make out of the real one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

HERMES = """\
{%- if messages[0].role == 'system' or tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content }}{% endif %}
{%- if tools %}
{%- if messages[0].role == 'system' %}{{- '\\n\\n' }}{% endif %}
{{- 'You may call functions. They are described within <tools></tools> by their signatures:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{% endfor %}
{{- '\\n</tools>\\n\\nTo call one, say its name and arguments as JSON:\\n' }}
{{- '<tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif message.role != 'system' %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": ' + (call.function.name | tojson) + ', "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
"""A chat template of the Hermes form, for a tokenizer of the ChatML kind."""


def make_tool_model(folder: Path, model: str | Path, template: str = HERMES) -> Path:
    """The model with another chat template, in a new folder: its weights are linked and take no room."""
    folder.mkdir(parents=True)
    for file in Path(model).iterdir():
        if file.suffix in (".safetensors", ".gguf"):
            try:
                os.link(file, folder / file.name)
            except OSError:  # another file system
                os.symlink(file.resolve(), folder / file.name)
        elif file.is_file():
            shutil.copy(file, folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder
