"""Any order of requests, aborts, faults, warm-ups, pins and steps: the promises hold after each (I1, I2, I3, I7, I11).

The null model reads every context back through the block tables, so any wrong reuse of a block fails the step.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.llm_engine import LLMEngine
from engine.outputs import RequestRefused, StepError
from engine.regions import Region
from engine.sampling_params import SamplingParams
from tests.engine.conftest import audit
from tests.engine.null_model import expected, null_engine

# Few different prompts, so that prefixes are shared, evicted and computed by twins all the time.
PROMPTS = [[1 + (base + i * i) % 96 for i in range(41)] for base in (0, 7)]

# The null model sees its last two tokens only: so it repeats itself, and drafts are right now and then.
MEMORY = 2


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(3, 24),
        block_size=st.sampled_from([1, 2, 4]),
        max_num_seqs=st.integers(1, 5),
        extra_budget=st.integers(0, 12),
        hash_bits=st.sampled_from([2, 64]),
        caching=st.booleans(),
        spare_tokens=st.sampled_from([0, 6]),
        max_seqs_per_tenant=st.sampled_from([None, 1, 2]),
        max_kv_share=st.sampled_from([1.0, 0.4]),
        speculation=st.booleans(),
        host_blocks=st.sampled_from([None, 1, 4, 20]),
        window=st.sampled_from([None, 1, 3, 8]),
        overlap=st.sampled_from([None, True]),
        deferred=st.booleans(),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        extra_budget: int,
        hash_bits: int,
        caching: bool,
        spare_tokens: int,
        max_seqs_per_tenant: int | None,
        max_kv_share: float,
        speculation: bool,
        host_blocks: int | None,
        window: int | None,
        overlap: bool | None,
        deferred: bool,
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
            spare_tokens=spare_tokens,
            max_seqs_per_tenant=max_seqs_per_tenant,
            max_kv_share=max_kv_share,
            speculation=speculation,
            host_kv_memory_bytes=host_blocks,
            memory=MEMORY,
            window=window,
            overlap=overlap,
            deferred=deferred,
        )
        self.blocks = blocks = max(1, int(num_blocks * max_kv_share))
        self.slots = blocks * block_size
        self.slides = False
        if window is not None and -(-(window + max_num_seqs + extra_budget) // block_size) + 2 <= blocks:
            self.slots = 40  # it can go on in the blocks that it leaves behind
            self.slides = True
        self.asked: dict[str, tuple[list[int], int, int]] = {}
        self.answers: dict[tuple[str, int], list[int]] = {}
        self.ended: dict[tuple[str, int], str] = {}
        self.started: set[str] = set()
        self.counter = 0

    def live(self) -> list[str]:
        return [
            name for name, (*_, n) in self.asked.items() if any((name, index) not in self.ended for index in range(n))
        ]

    def end(self, name: str, reason: str) -> None:
        for index in range(self.asked[name][-1]):
            self.ended.setdefault((name, index), reason)

    @rule(
        which=st.integers(0, 1),
        length=st.integers(1, 41),
        max_tokens=st.integers(1, 9),
        tenant=st.sampled_from("abc"),
        edge=st.integers(0, 41),
        weight=st.sampled_from([1.0, 3.0]),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        share=st.sampled_from([1.0, 1.0, 0.5, 0.1]),
        longest=st.sampled_from([None, None, 5]),
    )
    def ask(
        self,
        which: int,
        length: int,
        max_tokens: int,
        tenant: str,
        edge: int,
        weight: float,
        n: int,
        share: float,
        longest: int | None,
    ) -> None:
        prompt = PROMPTS[which][:length]
        name = f"r{self.counter}"
        self.counter += 1
        regions = [Region(min(edge, length), "public"), Region(length, tenant)]
        blocks = min(self.blocks, max(1, int(self.engine.num_blocks * share)))
        slots = self.slots if self.slides else blocks * self.engine.block_size
        fits = length < 40 and length <= slots and length <= (longest or 40)
        params = SamplingParams(max_tokens=max_tokens, n=n)
        try:
            self.engine.add_request(
                name,
                prompt,
                params,
                tenant=tenant,
                regions=regions,
                weight=weight,
                kv_share=share,
                max_prompt_tokens=longest,
            )
        except RequestRefused:
            assert not fits
        else:
            assert fits
            self.asked[name] = (prompt, min(max_tokens, 40 - length, slots + 1 - length), n)
            self.answers.update({(name, index): [] for index in range(n)})

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.take_a_step()

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.asked:
            name = data.draw(st.sampled_from(sorted(self.asked)))
            assert self.engine.abort(name) == (name in self.live())
            assert not self.engine.abort(name)
            self.end(name, "abort")

    @rule(data=st.data())
    def break_one(self, data: st.DataObject) -> None:
        if live := sorted(self.live()):
            self.engine.runner.broken.add(data.draw(st.sampled_from(live)))

    @rule(where=st.sampled_from(["copy", "run"]))
    def break_a_step(self, where: str) -> None:
        self.engine.runner.fails_at = where

    @rule(name=st.sampled_from(["p", "q"]), which=st.integers(0, 1), length=st.integers(2, 41))
    def pin(self, name: str, which: int, length: int) -> None:
        regions = [Region(length - 1, "public"), Region(length, "a")]
        assert self.engine.prompts.pin(name, PROMPTS[which][:length], regions, tenant="a") < length

    @rule(name=st.sampled_from(["p", "q"]), which=st.integers(0, 1), length=st.integers(2, 41))
    def warm(self, name: str, which: int, length: int) -> None:
        regions = [Region(length - 1, "public"), Region(length, "a")]
        fits = length - 1 < 40 and length - 1 <= self.slots
        try:
            self.engine.prompts.warm(name, PROMPTS[which][:length], regions, tenant="a")
        except RequestRefused:
            assert not fits
        else:
            assert fits

    @rule(name=st.sampled_from(["p", "q"]))
    def release(self, name: str) -> None:
        self.engine.prompts.release(name)

    @rule()
    def finish_everything(self) -> None:
        tokens = sum((len(prompt) + count) * n for prompt, count, n in self.asked.values())
        for _ in range(100 + 4 * tokens):
            if not self.engine.has_work():
                return
            self.take_a_step()
        raise AssertionError(f"no end: {self.engine.scheduler.counts()}")

    def take_a_step(self) -> None:
        try:
            outputs = self.engine.step()
        except StepError as error:
            if not isinstance(error.__cause__, RuntimeError):
                raise
            if not set(error.request_ids) <= set(self.live()):
                raise
            for name in error.request_ids:
                self.end(name, "fault")
            return
        for output in outputs:
            choice = output.request_id, output.index
            if output.started is not None:
                assert output.request_id not in self.started, "started twice"
                self.started.add(output.request_id)
            assert not output.new_token_ids or output.request_id in self.started, "a token before the start"
            self.answers[choice] += output.new_token_ids
            if output.finish_reason == "abort":
                assert self.ended[choice] == "abort"
                continue
            assert choice not in self.ended, "an output after the end"
            if output.finish_reason == "error":
                assert output.request_id in self.engine.runner.broken
                self.ended[choice] = "error"
            elif output.finish_reason:
                assert output.finish_reason == "length"
                self.ended[choice] = "length"
                prompt, count, _ = self.asked[output.request_id]
                assert self.answers[choice] == expected(prompt, count, MEMORY)

    @invariant()
    def promises_hold(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.check_integrity()
        assert list(self.engine._live) == self.live()
        if not self.engine._live and not self.engine.prompts.warming:
            assert not any(self.engine.pool.refs)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            audit(self.engine)


EngineMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
test_the_engine_keeps_its_promises_in_any_order_of_calls = EngineMachine.TestCase
