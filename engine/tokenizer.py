"""Text to token ids and back, and a chat as a prompt whose tokens know whom they may be shared with.

Built on the `tokenizers` library alone: importing transformers would add two seconds to a worker's start.

Two promises of `render_chat`:

- No content makes a control token. Tokens like <|im_end|> come from the model's template only; the same characters in
  a message are encoded as plain text. Around each content, and around every character in it that could begin or end a
  control token, stands a marker character that occurs in no message; so whatever control token is found in the
  template's output is the template's own. The markers are gone before the text between such tokens is encoded.
- A token is shared as widely as its last character may be, never wider. What comes before the end of a system text is
  computed without looking at the messages, so nothing of a conversation can be in it; where a template puts the
  system text elsewhere or rewrites it, the whole prompt is private.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from engine.chat_template import ChatTemplate, ChatTemplateError, find_template
from engine.models.config import ModelError, read_json
from engine.models.source import resolve
from engine.protocol import ChatMessage, SystemText, Tool
from engine.regions import Region
from engine.tool_calls import CallForm, form_of
from engine.tool_rendering import messages_for, texts_of, tools_for

SEPARATOR = "\n\n"
_STAND_IN_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "stand_in_tool",
        "description": "Stands in for a tool.",
        "parameters": {"type": "object", "properties": {}},
    },
}


@dataclass(frozen=True)
class _Piece:
    """A token and the position in the rendered text, in characters, just behind it."""

    token: int
    end: int


class Tokenizer:
    """One model's tokenizer and chat template. `backend` is the `tokenizers.Tokenizer` that decodes.

    `eos_token_ids`: the tokens that end an answer, by config, generation config and tokenizer together.
    """

    def __init__(self, backend: Backend, template: ChatTemplate | None, eos_token_ids: Iterable[int]) -> None:
        self.backend = backend
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        self._template = template
        description = json.loads(backend.to_str())
        control = [token for token in description.get("added_tokens") or () if token["content"].strip()]
        # Longest first, as the library itself looks for them; one group each, so a match tells which it is.
        control.sort(key=lambda token: len(token["content"]), reverse=True)
        self._control = [int(token["id"]) for token in control]
        self._control_ids = frozenset(self._control)
        self._special_ids = {token["content"]: int(token["id"]) for token in control if token["special"]}
        self._find_control = re.compile("|".join(map(_pattern, control)) or r"(?!)")
        edges = sorted({token["content"][i] for token in control for i in (0, -1)})
        self._edges = re.compile(f"[{''.join(map(re.escape, edges))}]" if edges else r"(?!)")
        self._first = _plain(description)
        self._continued = _plain(description, continued=True) if _spaces_the_first(description) else self._first

    @classmethod
    def load(cls, path: str | Path, *, cache_dir: str | Path | None = None) -> Tokenizer:
        """The tokenizer of a model, named as for engine.models.load. Raises ModelError."""
        folder = resolve(path, cache_dir=cache_dir)
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ModelError(f"{folder} has no tokenizer.json; only models with a fast tokenizer can be served.")
        try:
            backend = Backend.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise ModelError(f"{file} cannot be read ({error}); fetch or convert the model again.") from None
        backend.no_truncation()
        backend.no_padding()
        return cls(backend, find_template(folder), _eos(folder, backend))

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of a text. Control tokens written in it are plain characters, unless `special`.

        With `special` the text is a prompt: they count, and the tokenizer adds its own (a beginning-of-text token).
        """
        text = well_formed(text)
        if special:
            return list(self.backend.encode(text).ids)
        return [piece.token for piece in self._encode_plain(text, 0)]

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of token ids; unknown ids are left out, bytes that are no UTF-8 become U+FFFD."""
        size = self.backend.get_vocab_size(with_added_tokens=True)
        known = [token for token in token_ids if 0 <= token < size]
        return self.backend.decode(known, skip_special_tokens=skip_special)

    def control_id(self, name: str) -> int | None:
        """The id of a token that no text makes, as grammars and the detokenizer see it; None for other words."""
        return self._special_ids.get(name)

    @cached_property
    def call_form(self) -> CallForm | None:
        """How the model's template has functions called; None where it knows of no tools, or has a form of its own."""
        if self._template is None:
            return None
        chat = [{"role": "user", "content": "-"}]
        try:
            rendered = self._template.render(chat, [_STAND_IN_TOOL])
            known = rendered != self._template.render(chat) and _STAND_IN_TOOL["function"]["name"] in rendered
        except (ChatTemplateError, ModelError):
            return None
        return form_of(self._template.with_tools) if known else None

    def render_chat(
        self,
        system: Sequence[SystemText],
        messages: Sequence[ChatMessage],
        salt: str,
        tools: Sequence[Tool] = (),
        *,
        begun: str = "",
    ) -> tuple[list[int], list[Region]]:
        """The prompt for an answer to `messages`, and the salt of each of its parts.

        `begun`: an answer so far, with which the prompt ends. Its tokens stand behind those of the prompt that it was
        given to, as the model put them there, so no template can trim or rewrite it, and its KV is found again. (What
        transformers calls continue_final_message cuts the rendered text instead, which a template may have changed.)

        The system texts, and behind them the contents of messages of the role system (their salt is `salt`), become one
        system message, joined by blank lines; blank ones are left out. A token up to the end of system text i has that
        text's salt, everything behind the last one `salt`; so do tools wherever they stand, and what stands behind
        them. The last region ends at the prompt's end. Raises ChatTemplateError when the model has no template or its
        template does not take these messages.
        """
        if self._template is None:
            raise ChatTemplateError("The model has no chat template, so it cannot answer messages.")
        parts = [SystemText(well_formed(part.text), part.salt) for part in system]
        parts += [SystemText(well_formed(m.content), salt) for m in messages if m.role == "system"]
        parts = [part for part in parts if part.text.strip()]
        turns = [message for message in messages if message.role != "system"]
        own = map(well_formed, chain((message.content for message in turns), texts_of(tools, turns)))
        marker = _unused_character(chain((part.text for part in parts), own))

        def guarded(text: str) -> str:
            text = well_formed(text)
            core = text.strip()
            if not core:
                return text
            lead, trail = text[: text.index(core)], text[text.index(core) + len(core) :]
            core = self._edges.sub(lambda found: f"{marker}{found.group()}{marker}", core)
            return f"{lead}{marker}{core}{marker}{trail}"

        form = self.call_form
        chat = messages_for(turns, guarded, short_ids=form is not None and form.kind == "mistral")
        joined = guarded(SEPARATOR.join(part.text for part in parts))
        if parts:
            chat.insert(0, {"role": "system", "content": joined})
        rendered = self._template.render(chat, tools_for(tools, guarded) or None)
        pieces = list(self._encode_rendered(rendered, marker))
        ends = self._system_ends(parts, rendered, joined, marker, bool(tools)) if parts else []
        pieces += self._encode_plain(well_formed(begun), pieces[-1].end if pieces else 0)
        return [piece.token for piece in pieces], _regions(pieces, parts, ends, salt)

    def _system_ends(
        self, parts: list[SystemText], rendered: str, joined: str, marker: str, with_tools: bool
    ) -> list[int]:
        """Where each system text ends in the rendered text without markers; nothing when they are not at its head.

        Nothing either where the caller's tools come before them: what stands there must be the same beside a tool that
        nobody can send, as three markers in a row come from no text.
        """
        assert self._template is not None
        stand_in = f"{marker}system{marker}"
        tool = {**_STAND_IN_TOOL, "function": {**_STAND_IN_TOOL["function"], "name": f"{marker * 3}tool"}}
        try:
            probe = self._template.render(
                [{"role": "system", "content": stand_in}, {"role": "user", "content": f"{marker}user{marker}"}],
                [tool] if with_tools else None,
            )
        except ChatTemplateError:
            return []
        head, found, _ = probe.partition(stand_in)
        if not found:
            return []
        # Some templates trim; a text is the same to every conversation then, too, only shorter.
        for text in (joined, joined.strip()):
            if rendered.startswith(head + text):
                break
        else:
            return []
        length = len(text.replace(marker, ""))
        trimmed = len(joined) - len(joined.lstrip()) if text != joined else 0
        ends, position = [], -trimmed
        for part in parts:
            position += len(part.text)
            ends.append(len(head) + min(max(position, 0), length))
            position += len(SEPARATOR)
        return ends

    def _encode_rendered(self, rendered: str, marker: str) -> Iterator[_Piece]:
        position = cut = 0
        for found in self._find_control.finditer(rendered):
            text = rendered[cut : found.start()].replace(marker, "")
            yield from self._encode_plain(text, position)
            position += len(text) + len(found.group())
            assert found.lastindex is not None
            yield _Piece(self._control[found.lastindex - 1], position)
            cut = found.end()
        yield from self._encode_plain(rendered[cut:].replace(marker, ""), position)

    def _encode_plain(self, text: str, position: int) -> Iterator[_Piece]:
        """Tokens of a text that starts at `position` of the whole; never a control token, whatever the text says."""
        if not text:
            return
        encoding = (self._continued if position else self._first).encode(text, add_special_tokens=False)
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in self._control_ids and end - start > 1:
                # The model's own merges lead to a control token (some converted vocabularies allow that): cut inside.
                yield from self._encode_plain(text[: start + 1], position)
                yield from self._encode_plain(text[start + 1 :], position + start + 1)
                return
        for token, (_, end) in zip(encoding.ids, encoding.offsets, strict=True):
            yield _Piece(token, position + end)


def well_formed(text: str) -> str:
    """The text with lone surrogates, which are no Unicode text, replaced by U+FFFD; pairs become their character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _regions(pieces: list[_Piece], parts: list[SystemText], ends: list[int], salt: str) -> list[Region]:
    token = 0
    bounds: list[tuple[int, str]] = []
    for part, end in zip(parts, ends, strict=False):
        while token < len(pieces) and pieces[token].end <= end:
            token += 1
        bounds.append((token, part.salt))
    regions: list[Region] = []
    for end, its_salt in [*bounds, (len(pieces), salt)]:
        if regions and regions[-1].salt == its_salt:
            regions[-1] = Region(end, its_salt)
        elif end > (regions[-1].end if regions else 0):
            regions.append(Region(end, its_salt))
    return regions


def _unused_character(texts: Iterable[str]) -> str:
    """A character that is in none of the texts: a noncharacter, or failing that one of the private planes."""
    used = set().union(*texts)
    return next(c for c in map(chr, chain(range(0xFDD0, 0xFDF0), range(0xF0000, 0x10FFFE))) if c not in used)


def _pattern(token: dict[str, Any]) -> str:
    """A regular expression for one control token as the library matches it in text."""
    body = f"({re.escape(token['content'])})"
    if token["single_word"]:
        body = rf"(?<!\w){body}(?!\w)"
    return (r"\s*" if token["lstrip"] else "") + body + (r"\s*" if token["rstrip"] else "")


def _pre_tokenizers(description: dict[str, Any]) -> list[dict[str, Any]]:
    step = description.get("pre_tokenizer") or {}
    return step.get("pretokenizers", [step])


def _spaces_the_first(description: dict[str, Any]) -> bool:
    """Whether a text gets a space in front at the start of a prompt and nowhere else."""
    return any(
        step.get("type") == "Metaspace" and step.get("prepend_scheme") == "first"
        for step in _pre_tokenizers(description)
    )


def _plain(description: dict[str, Any], *, continued: bool = False) -> Backend:
    """The tokenizer for plain text: blind to control tokens, adding none, its offsets those of the text given.

    continued: the text does not start a prompt. Changes `description`.
    """
    for token in description.get("added_tokens") or ():
        token["special"] = bool(token["content"].strip())
    description["post_processor"] = None
    for step in _pre_tokenizers(description):
        if continued and step.get("type") == "Metaspace":
            step["prepend_scheme"] = "never"
    backend = Backend.from_str(json.dumps(description))
    backend.encode_special_tokens = True
    return backend


def _eos(folder: Path, backend: Backend) -> list[int]:
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            value = read_json(folder / name).get("eos_token_id")
            found += value if isinstance(value, list) else [] if value is None else [value]
    settings = folder / "tokenizer_config.json"
    token = read_json(settings).get("eos_token") if settings.is_file() else None
    content = token.get("content") if isinstance(token, dict) else token
    known = backend.token_to_id(content) if isinstance(content, str) else None
    return found if known is None else [*found, known]
