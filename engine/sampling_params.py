"""How the tokens of one request are drawn, and what can be told of a draw. Shared by the wire and the engine; loads no
torch."""

from __future__ import annotations

import msgspec

from engine.grammar_spec import GrammarSpec

MOST_LOGPROBS = 20
"""Likeliest tokens told of in one place: OpenAI's limit."""
MOST_BIASES = 1024


class TokenLogprobs(msgspec.Struct, frozen=True, gc=False):
    """A token's natural logarithm of its probability, and the likeliest tokens of its place with theirs, best first."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]] = []


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling settings of one request, already validated by whoever accepted the request.

    `temperature` 0 or `top_p` 0 is greedy. `top_k` 0 means no limit; a value above the vocabulary means the same.
    `max_tokens` None means: up to the end of the model's context. The engine draws from `(seed, choice index,
    position)` alone, so the server fixes `seed` at submission and a continued answer goes on unchanged.

    The meanings are vLLM's. `n`: how many answers. `logit_bias` (token id -> -100 .. 100) is added to the logits; -100
    forbids in effect. `presence_penalty` and `frequency_penalty` look at the output, `repetition_penalty` at the prompt
    too. `logprobs`: None for none, else those of each output token and of the so many likeliest in its place, by the
    model's own distribution before any of these settings; `prompt_logprobs` the same for the prompt from its second
    token on. `repetition_stop`: end the answer once its last so many tokens are one short cycle, said over and over
    (`engine.repetition`); finish_reason "stop", as for any other condition that the request itself set. `grammar`: the
    form of the answer, which ends when nothing more can follow in it, whatever `min_tokens` says.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    logit_bias: dict[int, float] = {}
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    repetition_stop: int | None = None
    grammar: GrammarSpec | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_p == 0.0

    @property
    def penalised(self) -> bool:
        """Whether logits depend on which tokens came before. Such a request must not be given draft tokens."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0

    @property
    def plain(self) -> bool:
        """Whether a draw needs nothing of the tokens before it, and gives nothing but a token."""
        edited = self.logit_bias or self.min_tokens or self.penalised or self.grammar is not None
        return not edited and self.logprobs is None and self.prompt_logprobs is None

    def __post_init__(self) -> None:
        problems = {
            "max_tokens": self.max_tokens is not None and self.max_tokens < 1,
            "min_tokens": self.min_tokens < 0,
            "temperature": not 0.0 <= self.temperature <= 100.0,
            "top_p": not 0.0 <= self.top_p <= 1.0,
            "top_k": self.top_k < 0,
            "min_p": not 0.0 <= self.min_p <= 1.0,
            "seed": not -(2**63) <= self.seed < 2**63,
            "stop": len(self.stop) > 16 or any(not s or len(s) > 512 for s in self.stop),
            "n": not 1 <= self.n <= 128,
            "logit_bias": len(self.logit_bias) > MOST_BIASES
            or any(token < 0 or not -100.0 <= bias <= 100.0 for token, bias in self.logit_bias.items()),
            "presence_penalty": not -2.0 <= self.presence_penalty <= 2.0,
            "frequency_penalty": not -2.0 <= self.frequency_penalty <= 2.0,
            "repetition_penalty": not 0.01 <= self.repetition_penalty <= 10.0,
            "logprobs": not 0 <= (self.logprobs or 0) <= MOST_LOGPROBS,
            "prompt_logprobs": not 0 <= (self.prompt_logprobs or 0) <= MOST_LOGPROBS,
            "repetition_stop": not 8 <= (8 if self.repetition_stop is None else self.repetition_stop) <= 4096,
        }
        for name, bad in problems.items():
            if bad:
                raise ValueError(f"{name} is out of range: {getattr(self, name)!r}")
