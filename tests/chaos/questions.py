"""What is asked: answers of many lengths and kinds, all of them decided beforehand by temperature 0 or a seed.

Some end at a stop string, some are JSON, some have two choices, some are emoji of many bytes, some have penalties: what
a continuation has to rebuild (C25).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

SOCKET, BROWSER, CHAT, RESPONSES = "/ws/v1", "/ws/ui", "/v1/chat", "/v1/responses"
WAYS = (SOCKET, BROWSER, CHAT, RESPONSES)
TENANTS = 4
TEXTS = (
    "Tell me a long story about a lighthouse keeper and a whale.",
    "Explain how a bicycle stays upright, step by step.",
    "List twenty animals and say a sentence about each of them.",
    "Write a letter to a friend about a journey through the mountains.",
    "Describe how bread is made, from the field to the table.",
)
FAMILY = '"👨‍👩‍👧 삼겹살 👋🏽 né 🏳️‍🌈"'
EMOJI = {
    "type": "json_schema",
    "json_schema": {
        "name": "faces",
        "schema": {
            "type": "array",
            "items": {"enum": ["👨‍👩‍👧‍👦 삼겹살", "👋🏽👋🏿 né", "🏳️‍🌈 ﷽ नमस्ते"]},
            "minItems": 12,
            "maxItems": 12,
        },
    },
}
RECORD = {
    "type": "json_schema",
    "json_schema": {
        "name": "report",
        "schema": {
            "type": "object",
            "properties": {
                "title": {"type": "string", "maxLength": 400},
                "pages": {"type": "integer"},
                "body": {"type": "string", "maxLength": 400},
            },
            "required": ["title", "pages", "body"],
            "additionalProperties": False,
        },
    },
}


@dataclass(frozen=True)
class Question:
    """`params` under the names of /v1/chat/completions."""

    name: str
    way: str
    tenant: int
    text: str
    params: dict[str, Any] = field(hash=False)

    @property
    def choices(self) -> int:
        return int(self.params.get("n", 1))


def _kinds(rng: random.Random, scale: float) -> list[tuple[str, dict[str, Any], tuple[str, ...]]]:
    def length(least: int, most: int) -> int:
        return max(8, int(rng.randint(least, most) * scale))

    def seed() -> int:
        return rng.getrandbits(40)

    open_ways = (SOCKET, BROWSER, CHAT)
    return [
        ("greedy, long", {"temperature": 0, "max_tokens": length(250, 450), "ignore_eos": True}, WAYS[:3]),
        ("greedy, short", {"temperature": 0, "max_tokens": length(20, 60)}, WAYS),
        ("greedy", {"temperature": 0, "max_tokens": length(100, 200)}, WAYS),
        ("drawn", {"temperature": 0.9, "top_p": 0.95, "seed": seed(), "max_tokens": length(100, 250)}, open_ways),
        ("drawn hot", {"temperature": 1.6, "seed": seed(), "max_tokens": length(80, 200)}, open_ways),
        ("JSON", {"temperature": 0.8, "seed": seed(), "max_tokens": 400, "response_format": RECORD}, (SOCKET, CHAT)),
        ("emoji", {"temperature": 1, "seed": seed(), "max_tokens": 400, "response_format": EMOJI}, (BROWSER, CHAT)),
        ("n=2", {"temperature": 0.9, "seed": seed(), "max_tokens": length(80, 160), "n": 2}, (CHAT,)),
        (
            "penalties",
            {
                "temperature": 0.7, "seed": seed(), "max_tokens": length(100, 200), "min_tokens": 40,
                "frequency_penalty": 0.8, "presence_penalty": 0.4, "repetition_penalty": 1.15,
            },
            open_ways,
        ),
    ]  # fmt: skip


def made(rng: random.Random, scale: float = 1.0) -> list[Question]:
    """Each kind in each way that it can be asked, texts and tenants by chance. `scale`: of the lengths."""
    found = []
    for kind, params, ways in _kinds(rng, scale):
        for way in ways:
            found.append(Question(f"{kind} by {way}", way, rng.randrange(TENANTS), rng.choice(TEXTS), params))
    return found


def stopped(rng: random.Random, question: Question, text: str) -> Question | None:
    """The same with a stop string, which its answer comes upon far behind its beginning; None where it has none."""
    if question.choices > 1 or "response_format" in question.params or question.way == RESPONSES or len(text) < 80:
        return None
    at = rng.randrange(len(text) // 2, len(text) - 20)
    stop = text[at : at + rng.randint(8, 18)]
    if not stop.strip() or "\ufffd" in stop or text.index(stop) < len(text) // 3:
        return None
    return Question(
        f"{question.name}, stopped", question.way, question.tenant, question.text, {**question.params, "stop": [stop]}
    )
