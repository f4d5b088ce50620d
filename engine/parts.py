"""What a step added to an answer, in the words of the wire: text, token ids, log probabilities, tool calls.

Owns the text of single tokens, as it stands beside their log probabilities. `token` is a token's own text, a control
token's its name; where its bytes alone are no whole text (a part of an emoji), `token` has U+FFFD for them and `bytes`
says which they are, so that a reader can put neighbours together. This is OpenAI's meaning of the two, but for a
`bytes` that says only what `token` does not. A step of a request that asks for none pays four comparisons.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from engine.outputs import StepOutput
from engine.protocol import Logprob, Part, TokenLogprob
from engine.sampling_params import TokenLogprobs

if TYPE_CHECKING:
    from engine.detokenizer import TokenizerVocabulary

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON has no word for; OpenAI's figure for "very unlikely"."""


class PartWriter:
    """vocabulary: None for an engine without a tokenizer, whose tokens have no text."""

    def __init__(self, vocabulary: TokenizerVocabulary | None) -> None:
        self._vocabulary = vocabulary
        self._known: dict[int, tuple[str, list[int] | None]] = {}

    def part(self, output: StepOutput) -> Part:
        """One choice's share of a step. finish_reason: only where the choice has ended by itself."""
        told = output.logprobs is not None or output.prompt_logprobs is not None
        if output.finish_reason is None and not told and not output.tool_calls:  # most of them, by far
            return Part(index=output.index, text=output.text, token_ids=output.new_token_ids)
        ended = output.finish_reason if output.finish_reason not in ("abort", "error") else None
        return Part(
            index=output.index,
            text=output.text,
            token_ids=output.new_token_ids,
            logprobs=self._told(output.logprobs or ()),
            prompt_logprobs=self._told(output.prompt_logprobs or ()),
            tool_calls=output.tool_calls,
            finish_reason=ended,
        )

    def _told(self, entries: Iterable[TokenLogprobs]) -> list[TokenLogprob]:
        return [
            TokenLogprob(
                self._text(entry.token_id)[0],
                max(entry.logprob, LEAST_LOGPROB),
                entry.token_id,
                self._text(entry.token_id)[1],
                [Logprob(self._text(t)[0], max(value, LEAST_LOGPROB), t, self._text(t)[1]) for t, value in entry.top],
            )
            for entry in entries
        ]

    def _text(self, token_id: int) -> tuple[str, list[int] | None]:
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._look_up(token_id)
        return known

    def _look_up(self, token_id: int) -> tuple[str, list[int] | None]:
        if self._vocabulary is None:
            return "", []
        data = self._vocabulary.token_bytes(token_id)
        if not data:
            return self._vocabulary.name(token_id), None
        try:
            return data.decode(), None
        except UnicodeDecodeError:
            return data.decode(errors="replace"), list(data)
