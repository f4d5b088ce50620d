"""What a team has in the memory of the engines, by HTTP. As it changes: the page's socket (chatapp.api.team_memory)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from ninja import Router, Schema

from chatapp.api.product.base import AccessRequest, needs
from chatapp.api.team_memory import told
from chatapp.tenants.permissions import Permission

router = Router(tags=["memory"])


class BlockRun(Schema):
    """Neighbouring blocks of which the same can be said. `held`: by how many running answers; 0: kept. `room`: slots
    without a token. `since`: seconds of the Unix epoch when what is kept was used last; 0 for others."""

    kind: Literal["platform", "team", "own"]
    held: int = 0
    room: int = 0
    pinned: bool = False
    host: bool = False
    since: int = 0
    blocks: int = 1


class Running(Schema):
    """`id`: the answer's. `table`: its logical blocks in order, as [first, how many] neighbouring blocks of the
    engine's `cells`, counted from 0; first -1: they are gone. `kind`: chat or api, "" for instructions on their way."""

    id: str
    choice: int = 0
    prompt: int = 0
    cached: int = 0
    tokens: int = 0
    table: list[tuple[int, int]] = []
    kind: str
    assistant: str


class TeamMemory(Schema):
    """Counts of blocks; `room`: of slots. The first `instructions` of `cells` are the platform's and the team's."""

    block_size: int
    running: int
    waiting: int
    used: int
    kept: int
    host: int
    saved: int
    room: int
    instructions: int
    cells: list[BlockRun]
    sequences: list[Running]


class EngineMemory(Schema):
    """`quota`: blocks that the team may use at once. `memory`: null while the engine has not said anything. `queued`:
    requests of the team that wait for the model, whichever engine will take them."""

    id: str
    model: str
    quota: int
    memory: TeamMemory | None
    queued: int = 0


class EnginesMemory(Schema):
    engines: list[EngineMemory]


@router.get("/t/{slug}/memory", response=EnginesMemory, auth=needs(Permission.READ_DASHBOARD))
def memory(request: AccessRequest, slug: str) -> Any:
    """The team's own blocks in each engine that serves it, numbered in the order in which its own answers and
    instructions hold them."""
    found = msgspec.to_builtins(told(request.auth))
    for engine in found["engines"]:
        for sequence in (engine["memory"] or {}).get("sequences", ()):
            sequence.update(found["answers"][sequence["id"]])
    return {"engines": found["engines"]}
