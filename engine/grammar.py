"""Answers that keep to a JSON schema, a regular expression or a list of choices.

The only module that knows llguidance, the library that turns a grammar and the text so far into the set of tokens that
may follow: lazily, a mask in a few microseconds, after a compilation of about a millisecond.

Promises: under a grammar no answer can leave it; special tokens are never within it; the tokens that end an answer are
allowed only where the grammar may end, and a state is `finished` as soon as nothing else could follow. A state is a
function of the output tokens: the same ones give the same masks, whoever said them and when. A schema that is taken is
enforced in full: a keyword that the library cannot enforce is refused and not ignored. What a compilation, a mask and
a grammar's automaton may cost is bounded, since a tenant writes the grammar: beyond the bounds there is a GrammarError
at compilation, and later a state's `failure`, which ends that answer alone.

It knows neither sequences nor requests, and loads the library when a first grammar is compiled.
"""

from __future__ import annotations

import json
import math
import secrets
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.grammar_spec import KINDS, GrammarError, GrammarSpec
from engine.tool_grammar import ToolGrammar

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
    from tokenizers import Tokenizer as Backend
    from torch import Tensor

CACHED = 32
"""Compiled grammars that are kept. Each may grow to MAX_LEXER_STATES, so their number bounds the memory."""
BLANKS = r"[ ]{1,2}|\r?\n[ \t]{0,40}"
"""Between the parts of JSON. Without a bound a model at a loss writes blanks until its tokens are used up."""
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 400_000,  # some 50,000 a millisecond
    "step_lexer_fuel": 20_000,  # a mask of some 5 ms; the \\w+@\\w+ kind needs more than 5,000
    "step_max_items": 100_000,  # some 2 ms; 240 optional properties need a tenth of it behind a lone brace
    "max_items_in_row": 4_000,  # three hundred alternative objects need 3,300
    "max_lexer_states": 32_000,  # about 1 kB each; a string with a maxLength takes one a character
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}
MAX_MULTIPLE = 10_000
"""Of all multipleOf in a schema, the least common multiple: so many states are built at once, uncounted by LIMITS."""
JSON_OPTIONS: Any = {
    "lenient": False,
    "coerce_one_of": False,
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": BLANKS,
}
"""All that a schema could set by the library's own keyword `x-guidance`."""
TRIAL = Path(__file__).with_name("grammar_trial.py")
TRIAL_S = 30.0
"""Of the clock; of the processor's time it takes a second at most. So this bounds no grammar, but how long others may
keep the machine busy: with 3 s plain schemas were refused on such a one, and answers under way did not go on there."""
ENDED = ("NoExtension", "NoExtensionBias", "EndOfSentence")
WORN = ("LexerTooComplex", "ParserTooComplex")


class GrammarCompiler:
    """Compiles grammars for one model's vocabulary, and keeps the last ones. May be used by several threads.

    backend: the model's tokenizer. eos_token_ids: what ends an answer. vocab_size: the width of the logits, which may
    be more or less than the tokenizer's. The first compilation takes another quarter of a second.
    """

    def __init__(self, backend: Backend, eos_token_ids: Iterable[int], vocab_size: int) -> None:
        self._backend = backend
        self._width = max(vocab_size, backend.get_vocab_size(with_added_tokens=True))
        self._ends = sorted(token for token in set(eos_token_ids) if 0 <= token < vocab_size)
        self._loaded: tuple[LLTokenizer, LLParserLimits, Masks] | None = None
        self._kept: OrderedDict[tuple[str, GrammarSpec | ToolGrammar], CompiledGrammar | str] = OrderedDict()
        self._lock = Lock()

    def forget(self, tenant: str) -> None:
        """Drop what was compiled for a tenant."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == tenant]:
                del self._kept[key]

    def compile(self, spec: GrammarSpec | ToolGrammar, tenant: str = "") -> CompiledGrammar:
        """Raises GrammarError when the grammar cannot be enforced, is too large, or lets nothing be said.

        What was compiled is kept for its tenant alone: else the time it takes would tell what others use.

        A new grammar takes a tenth of a second, one that is refused for its cost a second of it.
        """
        with self._lock:
            kept = self._kept.get((tenant, spec))
            if kept is not None:
                self._kept.move_to_end((tenant, spec))
        if kept is None or (isinstance(kept, CompiledGrammar) and kept.worn):
            try:
                kept = self._compile(spec)
            except GrammarError as error:
                kept = str(error)
            with self._lock:
                self._kept[tenant, spec] = kept
                while len(self._kept) > CACHED:
                    self._kept.popitem(last=False)
        if isinstance(kept, str):
            raise GrammarError(kept)
        return kept

    def _load(self) -> tuple[LLTokenizer, LLParserLimits, Masks]:
        from llguidance import LLExecutor, LLParserLimits, LLTokenizer

        with self._lock:
            if self._loaded is None:
                if not self._ends:
                    raise GrammarError("The model has no token that ends an answer, so no grammar can be kept to.")
                try:
                    tokenizer = LLTokenizer(_unwritable(self._backend), n_vocab=self._width, eos_token=self._ends)
                except Exception as error:  # the library raises what it likes
                    raise GrammarError(f"No grammar can be kept to with this tokenizer: {_line(error)}.") from None
                masks = Masks(LLExecutor(1), self._width, self._ends)
                self._loaded = tokenizer, LLParserLimits(**LIMITS), masks
            return self._loaded

    def _compile(self, spec: GrammarSpec | ToolGrammar) -> CompiledGrammar:
        what = "tools' grammar" if isinstance(spec, ToolGrammar) else KINDS[spec.kind][0]
        try:
            return self._build(spec, what)
        except GrammarError:
            raise
        except Exception as error:  # the library raises what it likes, on numbers beyond 64 bits for example
            raise GrammarError(f"The {what} cannot be enforced: {_line(error)}.") from None

    def _build(self, spec: GrammarSpec | ToolGrammar, what: str) -> CompiledGrammar:
        from llguidance import LLMatcher, regex_to_lark

        if isinstance(spec, ToolGrammar):
            for schema in json.loads(spec.schemas):
                _check_multiples(schema)
            grammar = LLMatcher.grammar_from_lark(spec.lark)
        elif spec.kind == "regex":
            # \d, \w and \s are ASCII, as in a JSON schema's patterns: who asks for a digit rarely means one of 700.
            grammar = LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(spec.text, 'dws')}/")
        elif spec.kind == "choice":
            choices = dict.fromkeys(json.loads(spec.text))
            grammar = LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, choices)))
        else:
            schema = json.loads(spec.text) if spec.kind == "json_schema" else {"type": "object"}
            _check_multiples(schema)
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)
        if isinstance(spec, ToolGrammar) or spec.kind != "json_object":
            _try_out(what, grammar)
        tokenizer, limits, masks = self._load()
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise GrammarError(f"The {what} cannot be enforced: {_line(matcher.get_error())}.")
        compiled = CompiledGrammar(matcher, masks)
        first = compiled.start()
        silent = first.must_end
        first._look()
        if first.failure is not None:
            raise GrammarError(f"The {what} cannot be enforced: {first.failure}.")
        if silent:
            raise GrammarError(f"The {what} allows no answer but an empty one.")
        # What is too wide shows where it fans out, which in JSON is behind the first brace.
        failure = first.failure_behind_next()
        if failure is not None:
            raise GrammarError(f"The {what} cannot be enforced: {failure}.")
        return compiled


def _try_out(what: str, grammar: str) -> None:
    """Have the grammar compiled by a process that can be stopped. Raises GrammarError."""
    try:
        trial = subprocess.run(
            [sys.executable, "-I", "-X", "utf8", str(TRIAL)],
            input=json.dumps({"grammar": grammar, "limits": LIMITS}),
            capture_output=True,
            encoding="utf-8",
            timeout=TRIAL_S,
        )
    except subprocess.TimeoutExpired:
        raise GrammarError(f"The {what} takes too long to compile; simplify it.") from None
    if trial.returncode:
        raise GrammarError(f"The {what} takes too long or too much memory to compile; simplify it.")
    if complaint := trial.stdout.strip():
        raise GrammarError(f"The {what} cannot be enforced: {_line(complaint)}.")


def _unwritable(backend: Backend) -> str:
    """The tokenizer's description, its special tokens under names that nobody can write.

    The library takes text that a grammar forces apart as the tokenizer does, and that would take a special token's name
    in it for the token itself: an answer could neither say that text nor keep to the grammar.
    """
    description = json.loads(backend.to_str())
    names = {
        token["content"]: f"<{secrets.token_hex(16)}>" for token in description["added_tokens"] if token["special"]
    }
    for token in description["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    vocabulary = description["model"]["vocab"]
    if isinstance(vocabulary, dict):
        description["model"]["vocab"] = {names.get(token, token): number for token, number in vocabulary.items()}
    else:
        description["model"]["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
    description["post_processor"] = None  # it may name them too, and adds them to whole texts only
    return json.dumps(description)


class CompiledGrammar:
    """A grammar that answers can be started under, any number at a time; they share its automaton, which grows."""

    def __init__(self, matcher: LLMatcher, masks: Masks) -> None:
        self._matcher = matcher
        self._masks = masks
        self.worn = False
        """Its automaton has grown to the limit: those who come later need a new one."""

    def start(self, token_ids: Sequence[int] = ()) -> GrammarState:
        """The state behind output tokens that were said already, as a continued answer's. Check `failure`."""
        state = GrammarState(self, self._matcher.deep_copy(), self._masks)
        for token in token_ids:
            state.accept(token)
        return state


class GrammarState:
    """Where one answer stands in its grammar."""

    __slots__ = ("_compiled", "_masks", "_matcher", "failure", "finished")

    def __init__(self, compiled: CompiledGrammar, matcher: LLMatcher, masks: Masks) -> None:
        self._compiled = compiled
        self._matcher = matcher
        self._masks = masks
        self.finished = False
        """Nothing can follow: the answer is complete, whether or not a token that ends it was drawn."""
        self.failure: str | None = None
        """Why there is no mask any more: a limit was reached, or a token was accepted that the grammar forbids."""

    def accept(self, token: int) -> None:
        """Go on by an output token, one of those that `apply_masks` left or one of those that end an answer."""
        if not self.finished and self.failure is None:
            self._matcher.consume_token(token)
            self._look()

    def failure_behind_next(self) -> str | None:
        """Why there would be no mask behind the first token allowed now; None if there is one."""
        allowed = self._masks.bits([self])[0]
        self._look()
        if self.failure is not None:
            return self.failure
        (words,) = (allowed & self._masks.others).nonzero()
        word = int(words[0])
        bit = int(allowed[word] & self._masks.others[word])
        ahead = self.copy()
        ahead.accept(word * 32 + (bit & -bit).bit_length() - 1)
        if ahead.failure is None and not ahead.finished:
            self._masks.bits([ahead])
            ahead._look()
        return ahead.failure

    def copy(self) -> GrammarState:
        other = GrammarState(self._compiled, self._matcher.deep_copy(), self._masks)
        other.finished, other.failure = self.finished, self.failure
        return other

    @property
    def must_end(self) -> bool:
        """Whether only tokens that end the answer are allowed next."""
        return self.finished or not (self._masks.bits([self])[0] & self._masks.others).any()

    def _look(self) -> None:
        """Learn from the library whether it can go on."""
        matcher = self._matcher
        if not matcher.is_stopped():
            return
        reason = matcher.stop_reason()
        if reason in ENDED and matcher.is_accepting() and not matcher.is_error():
            self.finished = True
            return
        said = _line(matcher.get_error()) or reason
        self.failure = "nothing may follow" if said in ENDED else said
        self._compiled.worn |= reason in WORN


class Masks:
    """Computes masks of one vocabulary. width: tokens; a mask is uint32 [ceil(width / 32)], the lowest bit first."""

    def __init__(self, executor: LLExecutor, width: int, ends: list[int]) -> None:
        self._executor = executor
        self._words = -(-width // 32)
        self.others = np.full(self._words, 0xFFFFFFFF, np.uint32)
        """All but the tokens that end an answer."""
        for token in ends:
            self.others[token // 32] &= np.uint32(0xFFFFFFFF ^ (1 << token % 32))

    def bits(self, states: Sequence[GrammarState]) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """The allowed tokens of each state, uint32 [R, words]. Those of a failed one are to be ignored.

        One call for all: the library lets go of the interpreter's lock once, and not once a row, which beside a busy
        thread of ours would cost up to 5 ms each time.
        """
        masks = np.zeros((len(states), self._words), np.uint32)
        pairs = [(state._matcher, row) for row, state in enumerate(states)]
        self._executor.unsafe_compute_mask_ptr(pairs, masks.ctypes.data, self._words * 4, len(states))
        return masks


BIAS = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), 0, -np.inf)
BIAS = BIAS.astype(np.float32)
"""What eight bits of a mask add to eight logits; float32 [256, 8]."""


def apply_masks(logits: Tensor, rows: Sequence[int], states: Sequence[GrammarState]) -> None:
    """Make what the grammars forbid impossible: -inf in place.

    logits float32 [R, V]; rows: the row of each state; states: of one compiler. The row of a state that fails becomes
    -inf throughout, and its `failure` says why.
    """
    if not states:
        return
    masks = states[0]._masks.bits(states)
    for state, mask in zip(states, masks, strict=True):
        state._look()
        if state.failure is not None:
            mask[:] = 0
    size = logits.shape[1]
    if logits.device.type == "cpu":
        # By adding from a table: a third of the time of a fill by a boolean mask.
        values = logits.numpy()
        for row, mask in zip(rows, masks.view(np.uint8), strict=True):
            values[row] += BIAS.take(mask, axis=0).reshape(-1)[:size]
        return
    import torch

    bits = torch.from_numpy(masks.view(np.int32)).to(logits.device)
    shifts = torch.arange(32, device=logits.device, dtype=torch.int32)
    allowed = (bits[:, :, None] >> shifts & 1).flatten(1)[:, :size].bool()
    where = torch.tensor(rows, device=logits.device)
    logits[where] = logits[where].masked_fill(~allowed, -torch.inf)


def _check_multiples(schema: Any) -> None:
    tops, bottoms, stack = 1, 1, [schema]
    while stack:
        value = stack.pop()
        stack += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        multiple = value.get("multipleOf") if isinstance(value, dict) else None
        if isinstance(multiple, int | float) and multiple > 0:
            each = Fraction(str(multiple))
            tops, bottoms = math.lcm(tops, each.numerator), math.lcm(bottoms, each.denominator)
            if tops * bottoms > MAX_MULTIPLE:
                raise GrammarError(f"The schema's multipleOf have no common multiple up to {MAX_MULTIPLE:,}.")


def _line(error: object) -> str:
    """What a message of the library's says is wrong: one sentence, without its advice on settings that are ours."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "".join(lines[:1]))
    if any(sign in said for sign in ("fuel", "oo many", "oo large", "max is")):
        said = f"it is too complex ({said.split(';')[0]})"
    return said.split(". Enable")[0].rstrip(".")[:300]
