"""What a person may choose about how a conversation is answered: model and sampling, within the team's limits.

A conversation keeps what was chosen (Conversation.params); a question may say otherwise for itself. Limits that are
lowered later hold at once, and what was chosen above them is cut to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chatapp.chat.params import INTEGERS, NUMBERS, sampling_params
from chatapp.errors import BadInput
from chatapp.limits.selectors import limits_of
from chatapp.limits.values import Limits
from chatapp.tenants.access import Access

# Where nobody says otherwise. Calm and to the point: small models wander at higher temperatures, and some of them
# never find an end.
CHAT_DEFAULTS = {"temperature": 0.3, "top_p": 0.9}
# Of an answer in a conversation, in tokens.
CHAT_LENGTH = 1024
# What a conversation keeps; the rest of what a question may say is for that question.
KEPT = ("temperature", "top_p", "max_tokens", "presence_penalty", "frequency_penalty", "seed", "stop")


def defaults(limits: Limits) -> dict[str, Any]:
    return {**CHAT_DEFAULTS, "max_tokens": min(CHAT_LENGTH, limits.output_tokens)}


def kept(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: params[name] for name in KEPT if params.get(name) is not None}


def within(limits: Limits, params: Mapping[str, Any]) -> dict[str, Any]:
    """What was kept, as the limits allow it now."""
    if params.get("max_tokens", 0) > limits.output_tokens:
        return {**params, "max_tokens": limits.output_tokens}
    return dict(params)


def chosen(access: Access, params: Mapping[str, Any]) -> dict[str, Any]:
    """Checked, for keeping; null stands for the default. Raises BadInput with the field."""
    for name in params:
        if name not in KEPT:
            raise BadInput(
                f"A conversation keeps no {name!r}; it keeps {', '.join(KEPT)}.", param=f"params.{name}"[:60]
            )
    limits = limits_of(access)
    sampling_params(params, most_tokens=limits.output_tokens, defaults=defaults(limits))
    return kept(params)


def offered(access: Access) -> dict[str, Any]:
    """For the page: the models, and each parameter with its bounds and what holds where nothing is chosen."""
    limits = limits_of(access)
    standing = defaults(limits)
    params: dict[str, dict[str, Any]] = {
        name: {"least": NUMBERS[name][0], "most": NUMBERS[name][1], "default": standing.get(name, 0)}
        for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty")
    }
    params["max_tokens"] = {
        "least": INTEGERS["max_tokens"][0],
        "most": limits.output_tokens,
        "default": standing["max_tokens"],
    }
    tenant = access.tenant
    return {"models": tenant.models, "model": tenant.model, "params": params}
