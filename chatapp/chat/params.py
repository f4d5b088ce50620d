"""Sampling parameters as callers send them -> SamplingParams. Every complaint names the field and the value."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from chatapp.chat import form
from chatapp.chat.text import plain
from chatapp.errors import BadInput
from engine.protocol import MOST_BIASES, MOST_LOGPROBS, SamplingParams

MOST_CHOICES = 128
INTEGERS = {
    "max_tokens": (1, 1_000_000),
    "min_tokens": (0, 1_000_000),
    "top_k": (-1, 1_000_000),
    "n": (1, MOST_CHOICES),
    "logprobs": (0, MOST_LOGPROBS),
    "prompt_logprobs": (0, MOST_LOGPROBS),
}
NUMBERS = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 10.0),
}
MOST_STOPS = 16
LONGEST_STOP = 512
KNOWN = frozenset({*INTEGERS, *NUMBERS, *form.FIELDS, "seed", "stop", "stop_token_ids", "ignore_eos", "logit_bias"})


def sampling_params(
    given: Mapping[str, Any], *, most_tokens: int, defaults: Mapping[str, Any] | None = None, whose: str = "your team's"
) -> SamplingParams:
    """None stands for "not given". A seed that is not given is drawn here, so that a continued answer stays the same.
    `logprobs`: how many of the likeliest tokens are told of in each place, 0 for the drawn one alone. The form of the
    answer: see chatapp.chat.form.

    Raises BadInput for an unknown field, a wrong type, or a value out of range. `most_tokens` is a limit, `whose`
    is for its message.
    """
    unknown = sorted(set(given) - KNOWN)
    if unknown:
        raise BadInput(f"There is no parameter {unknown[0]!r}.", code="unknown_parameter", param=unknown[0])
    values = {**(defaults or {}), **{name: value for name, value in given.items() if value is not None}}
    clean: dict[str, Any] = {"max_tokens": most_tokens}
    for name, (least, most) in INTEGERS.items():
        if name in values:
            clean[name] = _integer(name, values[name], least, most)
    for name, (low, high) in NUMBERS.items():
        if name in values:
            clean[name] = _number(name, values[name], low, high)
    if clean["max_tokens"] > most_tokens:
        raise BadInput(f"max_tokens is {clean['max_tokens']}; {whose} limit is {most_tokens}.", param="max_tokens")
    if clean.get("min_tokens", 0) > clean["max_tokens"]:
        raise BadInput(
            f"min_tokens {clean['min_tokens']} is above max_tokens {clean['max_tokens']}.", param="min_tokens"
        )
    clean["top_k"] = max(0, clean.get("top_k", 0))  # -1 is how some clients say "no limit"
    clean["stop"] = _stops(values.get("stop"))
    clean["stop_token_ids"] = _token_ids(values.get("stop_token_ids"))
    if "ignore_eos" in values:
        if not isinstance(values["ignore_eos"], bool):
            raise BadInput("ignore_eos must be true or false.", param="ignore_eos")
        clean["ignore_eos"] = values["ignore_eos"]
    clean["logit_bias"] = _bias(values.get("logit_bias"))
    clean["grammar"] = form.grammar(values)
    seed = _integer("seed", values["seed"], -(2**63), 2**63 - 1) if "seed" in values else new_seed()
    return SamplingParams(**clean, seed=seed)


def new_seed() -> int:
    return secrets.randbits(63)


def _integer(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{name} must be a whole number, not {_shown(value)}.", param=name)
    if not least <= value <= most:
        raise BadInput(f"{name} must be from {least} to {most}, not {value}.", param=name)
    return value


def _number(name: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(f"{name} must be a number, not {_shown(value)}.", param=name)
    if not low <= value <= high:  # NaN fails too
        raise BadInput(f"{name} must be from {low:g} to {high:g}, not {value}.", param=name)
    return float(value)


def _stops(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list | tuple) or not all(isinstance(stop, str) for stop in stops):
        raise BadInput("stop must be a text or a list of texts.", param="stop")
    if len(stops) > MOST_STOPS:
        raise BadInput(f"stop may hold {MOST_STOPS} texts, not {len(stops)}.", param="stop")
    return tuple(plain(stop, param="stop", longest=LONGEST_STOP) for stop in stops)


def _token_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or len(value) > MOST_STOPS:
        raise BadInput(f"stop_token_ids must be a list of at most {MOST_STOPS} token ids.", param="stop_token_ids")
    return tuple(_integer("stop_token_ids", item, 0, 2**31 - 1) for item in value)


def _bias(value: Any) -> dict[int, float]:
    """Keys are token ids, which JSON can only write as texts."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadInput("logit_bias must be an object: token ids and numbers.", param="logit_bias")
    if len(value) > MOST_BIASES:
        raise BadInput(f"logit_bias may name {MOST_BIASES} tokens, not {len(value)}.", param="logit_bias")
    found: dict[int, float] = {}
    for key, bias in value.items():
        text = str(key)
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 2**31):
            raise BadInput(f"logit_bias: {_shown(key)} is no token id.", param="logit_bias")
        found[int(text)] = _number("logit_bias", bias, -100.0, 100.0)
    return found


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
