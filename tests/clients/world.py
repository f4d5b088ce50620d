"""A server and a network in memory, for the client's core: each connection keeps what it has not delivered yet."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo_client.call import Call
from octavo_client.core import Close, Core, Open, Send

DELTA = "response.output_text.delta"
# An event of a response: what it adds to each choice. A part is ("text", more), ("call", number, name) or
# ("arguments", number, more).
Event = dict[int, list[tuple[Any, ...]]]


@dataclass
class Response:
    id: str
    events: Sequence[Event]
    key: str
    stateless: bool = False
    said: int = 0  # events that there are already
    cancelled: bool = False
    expired: bool = False  # only the database has it still, as one text

    def frames(self, first: int, last: int) -> list[dict[str, Any]]:
        """One range, in as many frames as it takes."""
        texts: dict[int, str] = {}
        calls: dict[tuple[int, int], dict[str, str]] = {}
        for event in self.events[first - 1 : last]:
            for index, parts in event.items():
                for what, *rest in parts:
                    if what == "text":
                        texts[index] = texts.get(index, "") + rest[0]
                    elif what == "call":
                        calls.setdefault((index, rest[0]), {})["name"] = rest[1]
                    else:
                        call = calls.setdefault((index, rest[0]), {})
                        call["arguments"] = call.get("arguments", "") + rest[1]
        found: list[dict[str, Any]] = []
        for index, text in texts.items():
            found.append({"type": DELTA, "index": index, "delta": text})
        for (index, number), call in calls.items():
            if "name" in call:
                item = {"type": "function_call", "call_id": f"{index}-{number}", "name": call["name"]}
                added = {"type": "response.output_item.added", "index": index, "call": number, "item": item}
                found.append(added)
            if "arguments" in call:
                kind = "response.function_call_arguments.delta"
                found.append({"type": kind, "index": index, "call": number, "delta": call["arguments"]})
        found = found or [{"type": DELTA, "index": 0, "delta": ""}]
        about = {"response_id": self.id, "first_seq": first, "seq": last}
        told = [{**frame, **about, "more": True} for frame in found]
        del told[-1]["more"]
        return told

    def ending(self) -> dict[str, Any]:
        kind = "cancelled" if self.cancelled else "completed"
        return {"type": f"response.{kind}", "response_id": self.id, "seq": self.said + 1, "finish_reason": "stop"}


@dataclass
class Wire:
    """One connection, and how far each response has been told on it."""

    number: int
    incoming: deque[dict[str, Any]] = field(default_factory=deque)
    told: dict[str, int] = field(default_factory=dict)
    leases: set[str] = field(default_factory=set)


class World:
    """`send` frames wait in their wires until `deliver`; time goes on by `wait`."""

    def __init__(self, **options: Any) -> None:
        self.now = 100.0
        self.core = Core(jitter=lambda: 1.0, **options)
        self.wires: dict[int, Wire] = {}
        self.opened: list[int] = []
        self.sent: list[dict[str, Any]] = []
        self.responses: dict[str, Response] = {}
        self.script: list[Event] = []
        self.refuses = False  # connections
        self.refusal: dict[str, Any] | None = None  # what the next request is answered with
        self.unreadable = ""  # a question that it answers with an error about the connection
        self.hello: dict[str, Any] = {}

    # --- what a program does ------------------------------------------------------------------------------------------

    def ask(self, text: str | list[dict[str, Any]] = "Hi", *, timeout_s: float | None = None, **fields: Any) -> Call:
        call = self.core.start(Call({"input": text, **fields}), self.now, timeout_s=timeout_s)
        self.pump()
        return call

    def pump(self) -> None:
        for action in self.core.actions():
            if isinstance(action, Open):
                self.opened.append(action.connection)
                if self.refuses:
                    self.core.lost(action.connection, self.now, reason="refused")
                    continue
                wire = self.wires[action.connection] = Wire(action.connection)
                self.core.opened(action.connection, self.now)
                hello = {"type": "session.created", "session_id": "s", "limits": {"max_responses": 32}}
                wire.incoming.append({**hello, "heartbeat_s": 25, "expires_at": 9e9, **self.hello})
            elif isinstance(action, Send):
                frame = json.loads(action.text)
                self.sent.append(frame)
                if action.connection in self.wires:
                    self._hear(self.wires[action.connection], frame)
            elif isinstance(action, Close):
                self._gone(action.connection)

    # --- what the server does -----------------------------------------------------------------------------------------

    def _hear(self, wire: Wire, frame: dict[str, Any]) -> None:
        kind = frame["type"]
        if kind == "ping":
            wire.incoming.append({"type": "pong"})
        elif kind == "response.create":
            if self.unreadable and frame["input"] == self.unreadable:
                wire.incoming.append({"type": "error", "code": "why", "message": "Because.", "retryable": False})
                return
            if self.refusal is not None:
                wire.incoming.append({"type": "error", "event_id": frame["event_id"], **self.refusal})
                self.refusal = None
                return
            key = frame["idempotency_key"]
            found = next((known for known in self.responses.values() if known.key == key), None)
            if found is None:
                name = f"r{len(self.responses) + 1}"
                found = Response(name, list(self.script), key, stateless=isinstance(frame["input"], list))
                self.responses[name] = found
            if found.stateless:
                wire.leases.add(found.id)
            told = {"type": "response.queued", "event_id": frame["event_id"], "response_id": found.id, "position": 0}
            if not found.stateless:
                told |= {"conversation_id": "c1", "message_id": "m2", "parent_id": "m1"}
            wire.incoming.append(told)
            wire.incoming.append({"type": "response.created", "response_id": found.id, "prompt_tokens": 3})
            wire.told[found.id] = 0
        elif kind == "response.resume":
            response = self.responses[frame["response_id"]]
            # What was not sent yet of it is told from its new place instead.
            wire.incoming = deque(
                waits for waits in wire.incoming if not (waits.get("response_id") == response.id and "seq" in waits)
            )
            if frame["after"] < 0:
                wire.incoming.append({"type": "response.created", "response_id": response.id, "prompt_tokens": 3})
            wire.told[response.id] = max(0, frame["after"])
        elif kind == "response.cancel":
            self.responses[frame["response_id"]].cancelled = True

    def say(self, response: Response, events: int = 1) -> None:
        """The engine goes on."""
        if not response.cancelled:
            response.said = min(len(response.events), response.said + events)

    def tell(self, wire: Wire, response: Response, most: int = 10**9) -> None:
        """Put what there is into the wire as one range, and the ending once all is told."""
        if response.id not in wire.told:
            return
        told = wire.told[response.id]
        upto = min(response.said, told + most)
        if upto > told:
            first = 1 if response.expired else told + 1
            last = response.said if response.expired else upto
            wire.incoming.extend(response.frames(first, last))
            wire.told[response.id] = last
        if wire.told[response.id] == response.said and (response.cancelled or response.said == len(response.events)):
            wire.incoming.append(response.ending())
            del wire.told[response.id]

    # --- what the network does ----------------------------------------------------------------------------------------

    @property
    def wire(self) -> Wire:
        """The newest one."""
        return self.wires[max(self.wires)]

    def deliver(self, wire: Wire | None = None, most: int = 10**9) -> None:
        """Frames arrive, one after the other."""
        wire = wire or self.wire
        while wire.incoming and most > 0 and wire.number in self.wires:
            most -= 1
            self.core.received(wire.number, json.dumps(wire.incoming.popleft()), self.now)
            self.pump()

    def cut(self, wire: Wire | None = None, code: int = 1006) -> None:
        """The connection breaks, with all that was on its way."""
        wire = wire or self.wire
        self._gone(wire.number)
        self.core.lost(wire.number, self.now, code=code)
        self.pump()

    def _gone(self, number: int) -> None:
        wire = self.wires.pop(number, None)
        for held in wire.leases if wire is not None else ():
            response = self.responses[held]
            if response.said < len(response.events):
                response.cancelled = True

    def wait(self, seconds: float) -> None:
        """Time passes, and the core is woken whenever it has asked for it."""
        until = self.now + seconds
        while (at := self.core.deadline()) is not None and at <= until:
            self.now = max(self.now, at)
            self.core.tick(self.now)
            self.pump()
        self.now = until

    def settle(self) -> None:
        """No more trouble: everything is said and delivered."""
        self.refuses = False
        for _ in range(200):
            if not self.core.calls:
                return
            for response in list(self.responses.values()):
                self.say(response, len(response.events))
            for wire in list(self.wires.values()):
                for response in list(self.responses.values()):
                    self.tell(wire, response)
                self.deliver(wire)
            self.wait(1.0)
        raise AssertionError("it does not come to an end")
