"""Redis input and output of a worker, in threads of its own: the engine loop never waits for the network.

Owns the connections, the heartbeat, and when to take work; what has been said of each generation is in its outbox.
Plain blocking sockets in two threads: each sleeps in the kernel until there is something to do, so the engine loop
loses the GIL only for real work. The main thread of the two does everything in order; the other one waits for hints.

Promises: events go out in the order given, all that has gathered in one pipeline; what was not acknowledged is sent
again after a reconnection, which the wire makes harmless.

Knows nothing of models or tokens.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
import redis
import redis.exceptions
import redis.sentinel
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from engine import occupancy_log, occupancy_wire, protocol
from engine.measures import Measures
from engine.occupancy_log import OccupancyLog
from engine.outbox import Listener, Outbox, Said
from engine.protocol import Taken, Tell, WorkerDetails

if TYPE_CHECKING:
    from engine.occupancy import Frame

log = structlog.get_logger(__name__)

BLOCK_S = 5.0
BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)
HEARING_S = 2.0
SAY_EVERY_S = 10.0  # the same loss of Redis
HUNG_S = 60.0
"""An engine that has work and makes no step for so long will not make one: others took its work over long ago, and
where there are none only a new process helps."""
ANSWER_TTL_S = 10  # of a count's answer that nobody fetches

# What passes by itself: no server, one that has just become a replica, one without memory until something ends.
PASSING = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.OutOfMemoryError,
    OSError,
)


class RedisUnavailable(Exception):
    """Redis cannot be used; one line that says why."""


def connect(url: str, timeout_s: float = 5.0) -> redis.Redis:
    """A client without retries of its own; nothing is sent yet."""
    options: dict[str, Any] = {"protocol": 2, "socket_timeout": timeout_s, "retry": Retry(NoBackoff(), 0)}
    parts = protocol.sentinel(url)
    if parts is None:
        return redis.Redis.from_url(url, **options)
    sentinels, master, db, password = parts
    return redis.sentinel.Sentinel(sentinels, sentinel_kwargs=protocol.SENTINEL_WAIT).master_for(
        master, db=db, password=password, **options
    )


def prepare(client: redis.Redis) -> None:
    """Bring the server this code's function library, unless it has a newer one.

    Raises RedisUnavailable when the server cannot serve us at all."""
    info: Any = client.info("cluster")
    if info.get("cluster_enabled"):
        raise RedisUnavailable("Redis Cluster cannot be used: use one Redis or Valkey server, or sentinel://.")
    try:
        client.transaction(protocol.load_library, protocol.LIBRARY_KEY)
    except redis.exceptions.OutOfMemoryError:
        pass  # it is there, or a call will say that it is not; a heartbeat and an ending must get through now
    except PASSING:
        raise
    except redis.exceptions.ResponseError as error:
        _raise_if_general(error)
        raise RedisUnavailable(f"Redis 7 or Valkey is needed, with functions: {error}") from None


def wait_for_redis(url: str, for_s: float, say: Callable[[str], None]) -> None:
    """Return once Redis answers; raise RedisUnavailable after `for_s` seconds. Says every 5 s that it waits."""
    started = time.monotonic()
    said = started
    while True:
        try:
            client = connect(url)
            prepare(client)
            client.close()
            return
        except PASSING as error:
            now = time.monotonic()
            if now - started >= for_s:
                raise RedisUnavailable(f"Redis did not answer for {for_s:.0f} s: {error}") from None
            if now - said >= 5:
                said = now
                say(f"Waiting for Redis: {error}")
        except (ValueError, redis.exceptions.RedisError) as error:
            raise RedisUnavailable(f"Redis cannot be used: {error}") from None
        time.sleep(0.2)


def recent_lengths(url: str, worker: str | None) -> Counter[int]:
    """How many sequences had which length, in tokens, in all frames that a worker's stream (None: every live worker's)
    still holds.

    Raises RedisUnavailable when the server does not answer.
    """
    lengths = Counter[int]()
    try:
        client = connect(url)
        names: Any = client.zrange(protocol.WORKERS, 0, -1) if worker is None else [worker.encode()]
        for name in names:
            running: dict[int, occupancy_wire.Row] = {}
            entries: Any = client.xrange(protocol.occupancy_key(name.decode()))
            for _, fields in entries:
                running = occupancy_wire.next_rows(running, occupancy_wire.decode_head(fields[b"head"]))
                lengths.update(max(row.prompt, row.tokens) for row in running.values())
        client.close()
        return lengths
    except (ValueError, redis.exceptions.RedisError, OSError) as error:
        raise RedisUnavailable(f"Redis cannot be used: {error}") from None


class Bus:
    """One worker's connection to everyone else. `capacity`: how many generations it takes at once."""

    def __init__(
        self,
        url: str,
        worker: str,
        model: str,
        capacity: int,
        listener: Listener,
        details: Callable[[], WorkerDetails],
        measures: Measures | None = None,
    ) -> None:
        self._url = url
        self._worker = worker
        self._model = model
        self._capacity = capacity
        self._listener = listener
        self._details = details
        self._measures = measures or Measures()
        self._told_since: float | None = None  # when the oldest step was told that is not known to be in the logs
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._outbox = Outbox(listener)
        self._unknown: set[str] = set()
        self._orphans: set[str] = set()  # of which we heard the last time
        self._warm: frozenset[str] = frozenset()
        self._warm_told: frozenset[str] | None = None  # what the server knows of it; None: perhaps nothing
        self._occupancy = OccupancyLog(worker)
        self._forgot: set[str] = set()
        self._watched: list[protocol.Watch] = []
        self._memories: dict[protocol.Watch, protocol.Memory] = {}
        self._warmed: dict[str, int] = {}  # versions to be acknowledged
        self._counted: list[tuple[str, protocol.Counted]] = []
        self._hearing = threading.Event()
        self._may_take = True  # something may wait for us
        self._taking = True
        self._drained = False
        self._beat_at = 0.0
        self._stepped = (-1, 0.0)  # the engine's last step that we know of, and since when
        self._look_at = math.inf  # when what is kept for others is anybody's
        self._stop_at: float | None = None
        self.round_trips = 0
        self._io = threading.Thread(target=self._run, name="bus", daemon=True)
        self._hints = threading.Thread(target=self._read_hints, name="bus-hints", daemon=True)
        self._packer = ThreadPoolExecutor(1, thread_name_prefix="bus-frames")

    # --- called by the engine loop --------------------------------------------------------------------------------

    def start(self) -> None:
        self._io.start()
        self._hints.start()

    def tell(self, said: Iterable[Said]) -> None:
        """All that a step has to say."""
        self._inbox.put(("tell", (time.monotonic(), list(said))))

    @property
    def lacks_whole_frame(self) -> bool:
        """Frames were lost on their way: only a whole one is of use now."""
        return self._occupancy.lost

    def publish(self, frame: Frame) -> None:
        self._packer.submit(self._pack, frame)

    def _pack(self, frame: Frame) -> None:
        try:
            if frame.anew:  # an order of its own: it must not be lost with the frame
                self._inbox.put(("anew", None))
            self._inbox.put(("frame", occupancy_log.pack(frame)))
        except Exception as error:
            log.exception("bus.failed")
            self._listener.broken(error)

    def remember(self, memories: dict[protocol.Watch, protocol.Memory]) -> None:
        """What we hold of chats that somebody looks at."""
        self._inbox.put(("memories", memories))

    def forgot(self, tenant: str) -> None:
        """Nothing is left here of a tenant that was to be forgotten."""
        # Behind the frames, and told once all that was published before is gone: who waits for this sees a block table
        # without the tenant.
        self._packer.submit(self._inbox.put, ("forgot", tenant))

    def leave(self, generation_ids: Iterable[str]) -> None:
        """We end before these do: others go on with them."""
        self._inbox.put(("leave", list(generation_ids)))

    def warm(self, tenants: Iterable[str]) -> None:
        """Whose prompts we hold, from now on."""
        self._warm = frozenset(tenants)

    def acknowledge(self, version: str, tokens: int) -> None:
        """We have a published prompt in memory, so many of its tokens pinned."""
        self._inbox.put(("warmed", (version, tokens)))

    def answer(self, request_id: str, counted: protocol.Counted) -> None:
        """What a count request asked for."""
        self._inbox.put(("counted", (request_id, counted)))

    def beat(self) -> None:
        """Send a heartbeat at once: the details have changed."""
        self._inbox.put(("beat", None))

    def stop_taking(self) -> None:
        self._taking = False
        self.beat()

    def stop(self, within_s: float) -> None:
        """Send what is left to say, as far as it gets within the time, sign off, and end the threads."""
        self._taking = False
        self._packer.shutdown()
        self._inbox.put(("stop", time.monotonic() + within_s))
        self._io.join(within_s + 6)

    # --- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        # Whoever sees our first heartbeat may send a hint at once: it must not be older than where we begin to read.
        self._hearing.wait(HEARING_S)
        failures = 0
        said, why, said_at = False, "", 0.0  # of the loss that was told last
        try:
            while True:
                client = connect(self._url)
                try:
                    prepare(client)
                    if failures and said:
                        log.info("redis.connected")
                    failures, said = 0, False
                    self._beat_at = 0.0
                    self._warm_told = None
                    self._serve(client)
                    return
                except PASSING as error:
                    if self._stop_at is not None and time.monotonic() > self._stop_at:
                        return
                    # One that is full lets us connect and refuses what we say, again and again.
                    if not failures and (str(error) != why or time.monotonic() - said_at > SAY_EVERY_S):
                        log.warning("redis.lost", error=str(error))
                        said, why, said_at = True, str(error), time.monotonic()
                    self._absorb(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)], wait_fully=True)
                    failures += 1
                finally:
                    client.close()
        except Exception as error:
            log.exception("bus.failed")
            self._listener.broken(error)

    @property
    def _takes(self) -> bool:
        return self._taking and not self._drained

    def _serve(self, client: redis.Redis) -> None:
        while True:
            now = time.monotonic()
            if now >= self._beat_at:
                self._beat_at = now + protocol.HEARTBEAT_S
                self._heartbeat(client)
            self._flush(client)
            if self._stop_at is not None and ((self._outbox.done and not self._forgot) or now > self._stop_at):
                self._fcall(client, protocol.retire(self._worker))
                return
            if now >= self._look_at:
                self._may_take, self._look_at = True, math.inf
            if self._may_take and self._takes:
                self._take(client)
            busy = self._outbox.has_unsent() or self._forgotten or (self._may_take and self._takes)
            self._absorb(0.0 if busy else min(self._beat_at, self._look_at) - time.monotonic())

    def _absorb(self, wait_s: float, wait_fully: bool = False) -> None:
        """Take in what the engine loop and the hints have for us, waiting so long for the first of it."""
        deadline = time.monotonic() + wait_s
        while True:
            try:
                kind, value = self._inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return
            if kind == "tell":
                self._told_since = self._told_since or value[0]
                self._outbox.note(value[1])
            elif kind == "frame":
                self._occupancy.add(value)
            elif kind == "anew":
                self._occupancy.begin_anew()
            elif kind == "memories":
                self._memories.update(value)
            elif kind == "forgot":
                self._forgot.add(value)
            elif kind == "hint":
                if value in ("", self._worker):
                    self._may_take = True
                else:
                    self._look_within(protocol.KEPT_S)
            elif kind == "beat":
                self._beat_at = 0.0
            elif kind == "warmed":
                self._warmed[value[0]] = value[1]
            elif kind == "counted":
                self._counted.append(value)
            elif kind == "leave":
                for generation_id in value:
                    self._outbox.leave(generation_id)
            elif kind == "stop":
                self._taking, self._stop_at = False, value
            if not wait_fully:
                deadline = 0.0

    @property
    def _forgotten(self) -> set[str]:
        """Tenants of whom nothing is left here, and nothing in what was published."""
        return set() if self._occupancy.owes_deletion else self._forgot

    def _fcall(self, client: redis.Redis, call: protocol.Call) -> Any:
        self.round_trips += 1
        try:
            return client.fcall(*call)
        except redis.exceptions.ResponseError as error:
            _raise_if_general(error)
            raise

    # --- out ------------------------------------------------------------------------------------------------------

    def _flush(self, client: redis.Redis) -> None:
        """Send all that has gathered, in one pipeline, and act on the replies."""
        tells, ending = self._outbox.unsent()
        forgotten = set(self._forgotten)
        told = self._warmed or self._counted or forgotten or self._memories
        now_ms = int(time.time() * 1000)
        if not (tells or ending or told or self._occupancy.has_work(now_ms)):
            self._told_since = None  # of what has been dropped
            return
        pipe = client.pipeline(transaction=False)
        if tells:
            pipe.fcall(*protocol.tell(self._worker, tells))
        for generation in ending:
            assert generation.terminal is not None
            pipe.fcall(*protocol.finish(self._worker, generation.id, generation.attempt, generation.terminal))
        self._occupancy.write(pipe, now_ms)
        for tenant in forgotten:
            pipe.sadd(protocol.forgot_key(tenant), self._worker)
            pipe.expire(protocol.forgot_key(tenant), protocol.FORGOT_TTL_S)
        self._add_answers(pipe)
        self.round_trips += 1
        began = time.monotonic()
        replies = pipe.execute(raise_on_error=False)
        self._measures.flushed(began, self._told_since)
        first = bool(tells) + len(ending)
        behind = first + self._occupancy.num_asked
        self._occupancy.written(replies[first:behind])
        del replies[first:behind]
        self._forgot -= forgotten
        self._warmed.clear()
        self._counted.clear()
        self._memories.clear()
        for reply in replies:
            if isinstance(reply, redis.exceptions.RedisError):
                _raise_if_general(reply)
        if tells:
            self._told(client, tells, replies.pop(0))
        for generation, reply in zip(ending, replies, strict=False):
            if isinstance(reply, Exception):
                self._outbox.give_up(generation, reply)
            else:
                self._outbox.finished(generation, protocol.parse_finished(reply))
                self._may_take = True
        if not self._outbox.has_unsent():
            self._told_since = None

    def _add_answers(self, pipe: Any) -> None:
        for version, tokens in self._warmed.items():
            pipe.hset(protocol.warm_key(version), self._worker, tokens)
            pipe.expire(protocol.warm_key(version), protocol.WARM_TTL_S)
        for request_id, counted in self._counted:
            pipe.rpush(protocol.counted_key(request_id), protocol.encode(counted))
            pipe.expire(protocol.counted_key(request_id), ANSWER_TTL_S)
        for watch, memory in self._memories.items():
            key, said = protocol.memory_key(watch), protocol.encode(memory)
            pipe.hset(key, self._worker, said)
            pipe.expire(key, protocol.MEMORY_TTL_S)
            pipe.publish(key, said)

    def _told(self, client: redis.Redis, tells: list[Tell], reply: Any) -> None:
        if isinstance(reply, Exception):
            # One of them spoils the call for all: find out which, so that the others go on.
            for tell in tells:
                try:
                    told = protocol.parse_told(self._fcall(client, protocol.tell(self._worker, [tell])))[0]
                except redis.exceptions.ResponseError as error:
                    if tell.id in self._outbox.active:
                        self._outbox.give_up(self._outbox.active[tell.id], error)
                else:
                    self._outbox.told_one(tell, told)
            return
        for tell, told in zip(tells, protocol.parse_told(reply), strict=True):
            self._outbox.told_one(tell, told)

    # --- in -------------------------------------------------------------------------------------------------------

    def _take(self, client: redis.Redis) -> None:
        running = {generation.tenant for generation in self._outbox.active.values()}
        room = self._capacity - len(self._outbox.active)
        warm = self._warm
        said = None if warm == self._warm_told else warm
        reply = self._fcall(client, protocol.take(self._worker, self._model, room, running, said))
        self._warm_told = warm
        taken = protocol.parse_taken(reply)
        if taken is not None:
            self._accept(taken)
            return
        self._may_take = False
        wait_s = protocol.parse_wait_s(reply)
        if wait_s is not None:
            self._look_within(wait_s)

    def _look_within(self, wait_s: float) -> None:
        """Ask for work once so much time has passed: somebody else was asked to take it, and may not."""
        self._look_at = min(self._look_at, time.monotonic() + wait_s)

    def _accept(self, taken: Taken) -> None:
        try:
            tenant = protocol.decode_request(taken.payload).tenant
        except msgspec.DecodeError:
            tenant = ""  # the listener finds out as well, and says so
        self._outbox.add(taken, tenant)
        self._listener.taken(taken)

    def _heartbeat(self, client: redis.Redis) -> None:
        details = self._details()
        self._look_for_steps(details)
        pipe = client.pipeline(transaction=False)
        pipe.fcall(*protocol.heartbeat(self._worker, details))
        pipe.fcall(*protocol.orphans(self._worker, self._model))
        pipe.fcall(*protocol.watched(self._model))
        pipe.hexists(protocol.worker_key(self._worker), protocol.DRAIN)
        self.round_trips += 1
        beat, orphans, watched, drain = pipe.execute(raise_on_error=False)
        for reply in (beat, orphans, watched, drain):
            if isinstance(reply, redis.exceptions.RedisError):
                _raise_if_general(reply)
                raise reply
        self._may_take = True  # a hint may have been missed
        if not self._takes:
            client.hdel(protocol.rooms_key(self._model), self._worker)  # so that nothing is kept for us
        self._compare(client, protocol.parse_heartbeat(beat)[1])
        looks = protocol.parse_watched(watched)
        if looks != self._watched:
            self._watched = looks
            self._listener.watched(looks)
        if bool(drain) != self._drained:
            self._drained = bool(drain)
            self._listener.drained(self._drained)  # which says so with a heartbeat of its own
        if self._takes:
            self._adopt(client, [generation_id.decode() for generation_id in orphans])

    def _look_for_steps(self, details: WorkerDetails) -> None:
        now = time.monotonic()
        # What has ended and cannot be told while Redis is away is no work of the engine's, and would be lost here.
        if details.steps != self._stepped[0] or not (details.running or details.waiting):
            self._stepped = details.steps, now
        elif now - self._stepped[1] > HUNG_S:
            self._listener.hung(now - self._stepped[1])

    def _compare(self, client: redis.Redis, held: dict[str, str]) -> None:
        unknown = self._outbox.compare(held)
        # The reply that brought it to us was lost. Seen twice, so it is not just on its way.
        for generation_id in unknown & self._unknown:
            if self._taking:  # though it drains: it was taken before
                self._claim(client, generation_id)
        self._unknown = unknown

    def _adopt(self, client: redis.Redis, orphans: list[str]) -> None:
        """Go on with what dead workers held: as much as there is room for, and the rest where nobody else has taken it
        within a heartbeat. What the claims fence off is of no use to one that wakes up."""
        room = self._capacity - len(self._outbox.active)
        for generation_id in orphans:
            if room > 0 or generation_id in self._orphans:
                room -= self._claim(client, generation_id)
        self._orphans = set(orphans)

    def _claim(self, client: redis.Redis, generation_id: str) -> bool:
        claimed = protocol.parse_claimed(self._fcall(client, protocol.claim(self._worker, generation_id)))
        if not isinstance(claimed, Taken):
            if claimed not in ("gone", "owned", "busy"):
                log.warning("generation.not_continued", generation=generation_id, outcome=claimed)
            return False
        entries: Any = client.xrange(protocol.generation_key(generation_id)) if claimed.seq >= 0 else ()
        said = [protocol.decode_event(fields[b"event"]) for _, fields in entries]
        log.info(
            "generation.continued",
            generation=generation_id,
            attempt=claimed.attempt,
            seq=claimed.seq,
            alone=claimed.alone,
            request_id=_request_id(claimed),
        )
        self._accept(msgspec.structs.replace(claimed, log=said))
        return True

    # --- hints ----------------------------------------------------------------------------------------------------

    def _read_hints(self) -> None:
        """Wait for hints on the control stream. They only save time: the heartbeat finds all of it within a second."""
        client = connect(self._url, BLOCK_S + 5)
        key = protocol.control_key(self._model)
        last = ""
        while self._stop_at is None:
            try:
                if not last:
                    newest: Any = client.xrevrange(key, count=1)
                    last = newest[0][0].decode() if newest else "0-0"
                    self._hearing.set()
                    self._inbox.put(("hint", ""))
                reply: Any = client.xread({key: last}, block=int(BLOCK_S * 1000))
            except redis.exceptions.RedisError:
                last = ""
                time.sleep(0.5)
                continue
            for entry_id, fields in reply[0][1] if reply else ():
                last = entry_id.decode()
                if fields[b"kind"] == b"enqueued":
                    self._inbox.put(("hint", fields.get(b"worker", b"").decode()))
                elif fields[b"kind"] == b"watch":
                    self.beat()  # which reads what is looked at
                elif fields[b"kind"] == b"cancel":
                    self._outbox.hear_cancel(fields[b"id"].decode())
                elif fields[b"kind"] == b"published":
                    if fields.get(b"worker", b"").decode() in ("", self._worker):
                        self._hear_published(client, fields[b"id"].decode())
                elif fields[b"kind"] == b"released":
                    self._listener.released(fields[b"id"].decode(), fields.get(b"version", b"").decode())
                elif fields[b"kind"] == b"count":
                    self._hear_count(client, fields[b"id"].decode())
                elif fields[b"kind"] == b"forget":
                    self._listener.forget(fields[b"id"].decode())
                elif fields[b"kind"] == b"drain" and fields[b"id"].decode() == self._worker:
                    self.beat()  # which reads the wish
                elif fields[b"kind"] == b"ended" and fields[b"id"].decode() in self._outbox.active:
                    self.beat()

    def _hear_published(self, client: redis.Redis, version: str) -> None:
        try:
            data: Any = client.get(protocol.published_key(version))
            if data is not None:
                self._listener.published(protocol.decode_published(data))
        except (redis.exceptions.RedisError, msgspec.DecodeError) as error:
            log.warning("prompt.unreadable", version=version, error=type(error).__name__)

    def _hear_count(self, client: redis.Redis, request_id: str) -> None:
        """The first of the workers has it; the others find nothing."""
        try:
            data: Any = client.getdel(protocol.count_key(request_id)) if self._takes else None
            if data is not None and len(data) <= protocol.MOST_COUNT_BYTES:
                self._listener.counting(protocol.decode_count(data))
        except (redis.exceptions.RedisError, msgspec.DecodeError) as error:
            log.warning("count.unreadable", error=type(error).__name__)


def _request_id(taken: Taken) -> str:
    try:
        return protocol.decode_origin(taken.payload).request_id
    except msgspec.DecodeError:
        return ""


def _raise_if_general(error: redis.exceptions.RedisError) -> None:
    """Raise what concerns the connection or the server, and no single generation."""
    if "function not found" in str(error).lower():
        raise redis.exceptions.ConnectionError("the function library is gone; connecting again brings it back")
    if protocol.unwritable(str(error)):
        raise redis.exceptions.ConnectionError(f"nothing can be written: {error}")
    if isinstance(error, PASSING) or not isinstance(error, redis.exceptions.ResponseError):
        raise error
