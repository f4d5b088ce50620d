"""Two teams that have nothing to do with each other, a real server, and a worker that says what it is told to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from chatapp.accounts.models import User
from chatapp.prompts.services import publish
from chatapp.tenants.access import Access, access_for_key, access_for_user
from chatapp.tenants.models import KeyScope, Role, Tenant
from chatapp.tenants.services import add_member, create_api_key
from engine import protocol
from engine.protocol import Delta, Finished, Part, Request, Started, Tell, Usage, WorkerDetails


@pytest.fixture(autouse=True)
def server(redis_url: str, settings: Any) -> Iterator[redis.Redis]:
    """An empty server with the library; the product's settings point at it."""
    client = redis.Redis.from_url(redis_url, protocol=2)
    client.flushall()
    client.function_load(protocol.LIBRARY_SOURCE.read_text(), replace=True)
    settings.REDIS_URL = redis_url
    yield client
    client.close()


@dataclass(frozen=True)
class Team:
    """A tenant, its owner and a member by their sessions, and a key that may send system messages."""

    tenant: Tenant
    owner: Access
    member: Access
    key: Access
    secret: str


def make_team(slug: str) -> Team:
    tenant = Tenant.objects.create(slug=slug, name=slug.title())
    publish(tenant=tenant, text=f"You answer for {slug}.")
    for name, role in (("owner", Role.OWNER), ("member", Role.MEMBER)):
        add_member(tenant=tenant, user=User.objects.create_user(f"{name}@{slug}.test", "a password"), role=role)
    secret = create_api_key(tenant=tenant, name="tests", scopes=(KeyScope.CHAT, KeyScope.SYSTEM))[1]
    return Team(
        tenant=tenant,
        owner=access_for_user(User.objects.get(email=f"owner@{slug}.test"), slug),
        member=access_for_user(User.objects.get(email=f"member@{slug}.test"), slug),
        key=access_for_key(secret),
        secret=secret,
    )


@pytest.fixture
def team(db: None) -> Team:
    return make_team("acme")


@pytest.fixture
def strangers(db: None) -> Team:
    return make_team("other")


class ScriptedWorker:
    """Speaks the wire's functions as a worker does, with a text of the test's choice in place of a model's."""

    def __init__(self, client: redis.Redis, model: str) -> None:
        self.redis = client
        self.model = model
        self.name = "scripted"

    def _call(self, call: protocol.Call) -> Any:
        return self.redis.fcall(*call)

    def beat(self) -> None:
        details = WorkerDetails(id=self.name, model=self.model, context=99, block_size=16, num_blocks=9, pid=1)
        self._call(protocol.heartbeat(self.name, details))

    def take(self) -> protocol.Taken:
        self.beat()
        taken = protocol.parse_taken(self._call(protocol.take(self.name, self.model, 1, ())))
        assert taken is not None, "nothing is queued"
        return taken

    def begin(self, *texts: str) -> protocol.Taken:
        """Take the next request and say this much of its answer."""
        taken = self.take()
        events: list[Started | Delta] = [Started(seq=0, prompt_tokens=7, cached_tokens=3)]
        events += [Delta(seq=seq, parts=[Part(text=text, token_ids=[seq])]) for seq, text in enumerate(texts, start=1)]
        replies = self._call(protocol.tell(self.name, [Tell(taken.id, taken.attempt, e, 1.0) for e in events]))
        assert all(told.outcome in ("ok", "cancelled") for told in protocol.parse_told(replies))
        return taken

    def end(self, taken: protocol.Taken, event: protocol.AnyTerminal) -> None:
        reply = protocol.parse_finished(self._call(protocol.finish(self.name, taken.id, taken.attempt, event)))
        assert reply.outcome == "ok"

    def remember(self, watch: protocol.Watch, *runs: protocol.MemoryRun, **fields: Any) -> None:
        """Say what it holds of a chat, as a worker does that has heard of the look."""
        now = int(time.time() * 1000)
        given = {"worker": self.name, "at_ms": now, "state": "idle", "block_size": 16, "block_bytes": 1024, **fields}
        said = protocol.encode(protocol.Memory(runs=list(runs), **given))
        self.redis.hset(protocol.memory_key(watch), given["worker"], said)
        self.redis.publish(protocol.memory_key(watch), said)

    def watched(self) -> list[protocol.Watch]:
        return protocol.parse_watched(self._call(protocol.watched(self.model)))

    def answer(self, *texts: str, finish_reason: str = "stop") -> Request:
        """The whole of it; returns the request as the worker got it."""
        taken = self.begin(*texts)
        usage = Usage(prompt_tokens=7, cached_tokens=3, completion_tokens=len(texts))
        self.end(taken, Finished(seq=len(texts) + 1, finish_reason=finish_reason, usage=usage))
        return protocol.decode_request(taken.payload)


@pytest.fixture
def worker(server: redis.Redis, settings: Any) -> ScriptedWorker:
    return ScriptedWorker(server, settings.OCTAVO_MODEL_NAME)


@pytest.fixture
def record() -> Callable[[], int]:
    """A fresh recorder's one round over what has ended."""
    from chatapp.chat.recorder import Recorder

    def once() -> int:
        return Recorder(lambda: False).once(block_s=0.05)

    return once
