"""Any order of requests, aborts, pins and steps: the engine's promises hold after every one of them (I1, I2, I3, I7).

The null model reads every context back through the block tables, so any wrong reuse of a block fails the step.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.llm_engine import LLMEngine, RequestRefused
from engine.regions import Region
from engine.sampling_params import SamplingParams
from tests.engine.conftest import audit
from tests.engine.null_model import expected, null_engine

# Few different prompts, so that prefixes are shared, evicted and computed by twins all the time.
PROMPTS = [[1 + (base + i * i) % 96 for i in range(41)] for base in (0, 7)]


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(3, 24),
        block_size=st.sampled_from([1, 2, 4]),
        max_num_seqs=st.integers(1, 5),
        extra_budget=st.integers(0, 12),
        hash_bits=st.sampled_from([2, 64]),
        caching=st.booleans(),
    )
    def start(
        self, num_blocks: int, block_size: int, max_num_seqs: int, extra_budget: int, hash_bits: int, caching: bool
    ) -> None:
        self.engine: LLMEngine = null_engine(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            token_budget=max_num_seqs + extra_budget,
            hash_bits=hash_bits,
            prefix_caching=caching or hash_bits == 2,
            max_model_len=40,
            patience=4,
        )
        self.slots = num_blocks * block_size
        self.asked: dict[str, tuple[list[int], int]] = {}
        self.answers: dict[str, list[int]] = {}
        self.ended: dict[str, str] = {}
        self.counter = 0

    @rule(
        which=st.integers(0, 1),
        length=st.integers(1, 41),
        max_tokens=st.integers(1, 9),
        tenant=st.sampled_from("abc"),
        edge=st.integers(0, 41),
        weight=st.sampled_from([1.0, 3.0]),
    )
    def ask(self, which: int, length: int, max_tokens: int, tenant: str, edge: int, weight: float) -> None:
        prompt = PROMPTS[which][:length]
        name = f"r{self.counter}"
        self.counter += 1
        regions = [Region(min(edge, length), "public"), Region(length, tenant)]
        fits = length < 40 and length <= self.slots
        try:
            self.engine.add_request(
                name, prompt, SamplingParams(max_tokens=max_tokens), tenant=tenant, regions=regions, weight=weight
            )
        except RequestRefused:
            assert not fits
        else:
            assert fits
            self.asked[name] = (prompt, min(max_tokens, 40 - length, self.slots + 1 - length))
            self.answers[name] = []

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.take(self.engine.step())

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.asked:
            name = data.draw(st.sampled_from(sorted(self.asked)))
            assert self.engine.abort(name) == (name not in self.ended)
            assert not self.engine.abort(name)
            self.ended.setdefault(name, "abort")

    @rule(data=st.data())
    def break_one(self, data: st.DataObject) -> None:
        if live := sorted(set(self.asked) - set(self.ended)):
            self.engine.runner.broken.add(data.draw(st.sampled_from(live)))

    @rule(name=st.sampled_from(["p", "q"]), which=st.integers(0, 1), length=st.integers(2, 41))
    def pin(self, name: str, which: int, length: int) -> None:
        regions = [Region(length - 1, "public"), Region(length, "a")]
        self.engine.pin_prompt(name, PROMPTS[which][:length], regions)

    @rule(name=st.sampled_from(["p", "q"]))
    def unpin(self, name: str) -> None:
        self.engine.unpin_prompt(name)

    @rule()
    def finish_everything(self) -> None:
        tokens = sum(len(prompt) + count for prompt, count in self.asked.values())
        for _ in range(20 + 4 * tokens):
            if not self.engine.has_work():
                return
            self.take(self.engine.step())
        raise AssertionError(f"no end: {self.engine.scheduler.counts()}")

    def take(self, outputs: list) -> None:
        for output in outputs:
            name = output.request_id
            self.answers[name] += output.new_token_ids
            if output.finish_reason == "abort":
                assert self.ended[name] == "abort"
                continue
            assert name not in self.ended, "an output after the end"
            if output.finish_reason == "error":
                assert name in self.engine.runner.broken
                self.ended[name] = "error"
            elif output.finish_reason:
                assert output.finish_reason == "length"
                self.ended[name] = "length"
                prompt, count = self.asked[name]
                assert self.answers[name] == expected(prompt, count)

    @invariant()
    def promises_hold(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.check_integrity()
        assert set(self.engine._live) == set(self.asked) - set(self.ended)
        if not self.engine._live:
            assert not any(self.engine.pool.refs)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            audit(self.engine)


EngineMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
test_the_engine_keeps_its_promises_in_any_order_of_calls = EngineMachine.TestCase
