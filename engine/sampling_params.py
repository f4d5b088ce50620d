"""How the tokens of one request are drawn, and what can be told of a draw. Shared by the wire and the engine; loads no
torch."""

from __future__ import annotations

import msgspec


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

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_p == 0.0

    def __post_init__(self) -> None:
        problems = {
            "max_tokens": self.max_tokens is not None and self.max_tokens < 1,
            "n": not 1 <= self.n <= 128,
            "min_tokens": self.min_tokens < 0,
            "temperature": not 0.0 <= self.temperature <= 100.0,
            "top_p": not 0.0 <= self.top_p <= 1.0,
            "top_k": self.top_k < 0,
            "min_p": not 0.0 <= self.min_p <= 1.0,
            "seed": not -(2**63) <= self.seed < 2**63,
            "stop": len(self.stop) > 16 or any(not s or len(s) > 512 for s in self.stop),
        }
        for name, bad in problems.items():
            if bad:
                raise ValueError(f"{name} is out of range: {getattr(self, name)!r}")
