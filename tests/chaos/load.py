"""So many answers at once, asked again and again until somebody says that it is enough."""

from __future__ import annotations

import asyncio
import random

from tests.chaos.clients import Clients, Seen
from tests.chaos.questions import Question, stopped

AT_ONCE = 16


async def all_once(clients: Clients, questions: list[Question]) -> dict[Question, Seen]:
    """Each question once, AT_ONCE at a time."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(question: Question) -> Seen:
        async with free:
            return await clients.ask(question)

    return dict(zip(questions, await asyncio.gather(*map(one, questions)), strict=True))


async def undisturbed(clients: Clients, rng: random.Random, questions: list[Question]) -> dict[Question, Seen]:
    """What the answers are while nothing happens; with some more that end at stop strings out of these."""
    found = await all_once(clients, questions)
    more = [stopped(rng, question, seen.texts[0]) for question, seen in found.items()]
    chosen = [question for question in more if question is not None]
    rng.shuffle(chosen)
    return {**found, **await all_once(clients, chosen[: max(4, len(questions) // 4)])}


async def under_way(
    clients: Clients, rng: random.Random, questions: list[Question], enough: asyncio.Event, seen: list[Seen]
) -> None:
    """Keep AT_ONCE answers under way until `enough`, and wait for the last of them."""
    order = [rng.sample(questions, len(questions)) for _ in range(64)]
    coming = iter([question for some in order for question in some])

    async def one() -> None:
        while not enough.is_set():
            seen.append(await clients.ask(next(coming)))

    await asyncio.gather(*(one() for _ in range(AT_ONCE)))
