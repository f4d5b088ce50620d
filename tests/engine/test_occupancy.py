"""The frames of a worker's block table: applied one after the other they are the full state, at little cost."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from engine.occupancy import Occupancy
from engine.occupancy_wire import Table, compress, decode_head, encode_head
from tests.engine import full_look
from tests.engine.test_engine_machine import EngineMachine


class OccupancyMachine(EngineMachine):
    """Any history of an engine, looked at now and then."""

    @initialize()
    def follow(self) -> None:
        self.at_ms = 1_000_000
        self.table = Table()

    @rule(whole=st.sampled_from([False, False, False, True]), passed_ms=st.sampled_from([200, 200, 61_000]))
    def look(self, whole: bool, passed_ms: int) -> None:
        if not hasattr(self, "occupancy"):
            self.occupancy = Occupancy(self.engine, worker="w")
        self.at_ms += passed_ms
        frame = self.occupancy.frame(self.at_ms, whole=whole)
        if frame is not None:
            self.table.apply(decode_head(encode_head(frame.head)), compress(frame.columns))
        full_look.check(self.engine, self.table)
        assert self.occupancy.frame(self.at_ms) is None, "nothing has changed, and something is said"

    @rule(tenant=st.sampled_from("abc"))
    def forget(self, tenant: str) -> None:
        for name, choices in self.engine._live.items():
            if choices[0].tenant == tenant:
                self.end(name, "abort")
        self.engine.forget_tenant(tenant)

    def teardown(self) -> None:
        if hasattr(self, "engine") and hasattr(self, "table"):
            self.look(False, 200)
            super().teardown()
            self.look(False, 200)


OccupancyMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
test_frames_applied_are_a_full_look_after_any_history = OccupancyMachine.TestCase
