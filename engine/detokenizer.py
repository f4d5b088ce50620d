"""Token ids to text, one token at a time: no half characters, no stop strings, nothing lost.

Owns three steps behind each other: `Vocabulary` (token -> bytes), an incremental UTF-8 decoder that holds back half
characters, and `StopSearch`, which holds back what may become a stop string. Promises:

- the concatenated deltas equal the decoded tokens, up to the stop string if one came;
- text is held back only while it is half a character or a proper prefix of a stop string, and `finish` flushes it;
- the result does not depend on how the text is cut into tokens;
- the work per token does not grow with what was said before.

It knows nothing of sequences; rebuilding the state of a broken-off answer is feeding its tokens again.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Vocabulary(Protocol):
    """What a token adds to the text, as bytes. `strips_first_space`: the decoder drops the text's first space."""

    strips_first_space: bool

    def token_bytes(self, token_id: int) -> bytes: ...


class TokenizerVocabulary:
    """The bytes of a Hugging Face fast tokenizer's tokens; special tokens and unknown ids are empty.

    Two kinds of decoders turn tokens into bytes one by one: byte-level (GPT-2's printable stand-ins for bytes) and the
    sentencepiece kind (U+2581 for a space, `<0x0A>` for a byte). Others are refused by `ValueError`.
    """

    def __init__(self, backend: Any) -> None:
        """`backend`: a `tokenizers.Tokenizer`."""
        self._backend = backend
        description = json.loads(backend.to_str())
        steps = _decoder_steps(description.get("decoder"))
        kinds = {step["type"] for step in steps}
        self._byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds
        self._space = next((_replaced(step) for step in steps if step["type"] in ("Replace", "Metaspace")), None)
        if not self._byte_level and self._space is None and not self._byte_fallback:
            raise ValueError(f"no way to decode single tokens with this tokenizer's decoder: {sorted(kinds) or 'none'}")
        self.strips_first_space = any(_strips(step) for step in steps)
        self._special = {token["id"] for token in description.get("added_tokens", ()) if token["special"]}
        self._known: dict[int, bytes] = {}

    def token_bytes(self, token_id: int) -> bytes:
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._look_up(token_id)
        return known

    def name(self, token_id: int) -> str:
        """How the tokenizer calls a token, a control token too; nothing for an unknown id."""
        return self._backend.id_to_token(token_id) or ""

    def _look_up(self, token_id: int) -> bytes:
        token = None if token_id in self._special else self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._byte_level:
            # A token added later is plain text, which may hold characters that stand for no byte.
            if all(character in _BYTE_OF for character in token):
                return bytes(_BYTE_OF[character] for character in token)
            return token.encode()
        if self._byte_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        return (token.replace(self._space, " ") if self._space else token).encode()


class StopSearch:
    """Finds stop strings in a text that comes in pieces, and tells how much of its end must be held back.

    One Knuth-Morris-Pratt automaton per stop string, so each character is looked at once, wherever the pieces end. The
    first stop string to be complete wins; of several that end together, the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [(stop, _failure_function(stop)) for stop in stops]
        self._matched = [0] * len(self._stops)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that is safe to show now, and whether a stop string is complete (it and the rest are dropped)."""
        if not self._stops:
            return text, False
        pending = self._held + text
        for position in range(len(self._held), len(pending)):
            character = pending[position]
            longest = 0
            for which, (stop, failure) in enumerate(self._stops):
                matched = self._matched[which]
                while matched and stop[matched] != character:
                    matched = failure[matched - 1]
                if stop[matched] == character:
                    matched += 1
                if matched == len(stop):
                    longest = max(longest, matched)
                    matched = failure[matched - 1]
                self._matched[which] = matched
            if longest:
                self._held = ""
                return pending[: position + 1 - longest], True
        keep = len(pending) - max(self._matched)
        self._held = pending[keep:]
        return pending[:keep], False

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


class Detokenizer:
    """The text of one choice. `min_tokens`: stop strings that begin before so many tokens do not count; `continues`: it
    goes on with a text, so a space that it begins with is meant."""

    def __init__(
        self, vocabulary: Vocabulary, stops: Sequence[str] = (), min_tokens: int = 0, *, continues: bool = False
    ) -> None:
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._search = StopSearch(stops)
        self._unsearched = min_tokens - 1
        self._strip = vocabulary.strips_first_space and not continues

    def push(self, token_id: int) -> tuple[str, bool]:
        """The text to show after one more token, and whether it completed a stop string."""
        data = self._vocabulary.token_bytes(token_id)
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        text = self._utf8.decode(data)
        if self._unsearched > 0:
            self._unsearched -= 1
            return text, False
        return self._search.feed(text)

    def finish(self) -> str:
        """What was held back: half a character (shown as U+FFFD, for that is what was said), a stop's beginning."""
        text, stopped = self._search.feed(self._utf8.decode(b"", final=True))
        return text if stopped else text + self._search.flush()


class ShowingVocabulary:
    """A vocabulary in which some control tokens are text: `shown` maps their ids to their names."""

    def __init__(self, vocabulary: Vocabulary, shown: Mapping[int, str]) -> None:
        self.strips_first_space = vocabulary.strips_first_space
        self._vocabulary = vocabulary
        self._shown = {token: name.encode() for token, name in shown.items()}

    def token_bytes(self, token_id: int) -> bytes:
        return self._shown.get(token_id) or self._vocabulary.token_bytes(token_id)


class Reader(Protocol):
    """Takes parts out of a text: `feed` and `finish` give what is left to be shown. `full`: nothing more is wanted."""

    @property
    def full(self) -> bool: ...

    def feed(self, text: str) -> str: ...

    def finish(self) -> str: ...


class ReadDetokenizer(Detokenizer):
    """The text of one choice behind a reader, which sees it without stop strings and what they cut off."""

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str], min_tokens: int, reader: Reader) -> None:
        super().__init__(vocabulary, stops, min_tokens)
        self._reader = reader

    def push(self, token_id: int) -> tuple[str, bool]:
        text, stopped = super().push(token_id)
        text = self._reader.feed(text)
        if stopped:
            text += self._reader.finish()
        return text, stopped or self._reader.full

    def finish(self) -> str:
        text = self._reader.feed(super().finish())
        return text + self._reader.finish()


def _byte_stand_ins() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 bytes stand for themselves, the others for U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_stand_ins()


def _failure_function(pattern: str) -> list[int]:
    """For each prefix of `pattern`, the length of its longest proper prefix that is also its suffix."""
    failure = [0] * len(pattern)
    matched = 0
    for position in range(1, len(pattern)):
        while matched and pattern[matched] != pattern[position]:
            matched = failure[matched - 1]
        if pattern[matched] == pattern[position]:
            matched += 1
        failure[position] = matched
    return failure


def _decoder_steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


def _replaced(step: dict[str, Any]) -> str:
    """The character that stands for a space."""
    return step["replacement"] if step["type"] == "Metaspace" else step["pattern"]["String"]


def _strips(step: dict[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return step.get("prepend_scheme", "always") != "never"
    return step["type"] == "Strip" and step.get("content") == " " and step.get("start", 0) > 0
