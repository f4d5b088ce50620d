"""I9 over real arithmetic: in batch-invariant mode a token's logits are the same to the bit, whatever else happens.

Both runners: torch in that mode, and the C++ decoder, which is never in another.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import EngineConfig, LLMEngine
from engine.config import WEIGHTS
from engine.cpu_runner import CpuRunner
from engine.flat_batch import FlatBatch
from engine.models.loader import load
from engine.runner import Runner
from engine.sampling_params import SamplingParams, TokenLogprobs
from engine.sequence import Sequence
from kernels.api import AttentionMetadata, KVCache
from tests.engine.hash_model import speculate
from tests.engine.tiny import VOCAB, make_foreign, make_tiny, numeric

SHARED = [(i * i * 7 + 3) % (VOCAB - 3) + 3 for i in range(150)]  # more than a round of blocks: decodes are grouped
PROMPTS = {f"r{n}": SHARED + [(n * 31 + i * 5) % (VOCAB - 3) + 3 for i in range(n * 9 + 1)] for n in range(4)}
ASKED = {
    "r0": SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True, logprobs=2),
    "r1": SamplingParams(max_tokens=25, seed=1, temperature=0.9, top_p=0.9, ignore_eos=True),
    "r2": SamplingParams(max_tokens=20, seed=2, frequency_penalty=0.5, repetition_penalty=1.1, ignore_eos=True),
    "r3": SamplingParams(max_tokens=15, seed=3, temperature=1.3, prompt_logprobs=1, ignore_eos=True),
}
KINDS = ["float32", "bfloat16", "int8", "bf16"]
MakeEngine = Callable[..., LLMEngine]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that the C++ decoder can run too."""
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny", head_dim=32)


@pytest.fixture(params=KINDS)
def make_engine(request: pytest.FixtureRequest, folder: Path) -> MakeEngine:
    def make(**settings: Any) -> LLMEngine:
        defaults = {"model": str(folder), "device": "cpu", "batch_invariant": True, **numeric(request.param)}
        engine = LLMEngine(EngineConfig(**{**defaults, "num_blocks": 128, "token_budget": 256, **settings}))
        assert isinstance(engine.runner, CpuRunner if request.param in WEIGHTS else Runner)
        return engine

    return make


class Heard:
    """Runs requests and keeps all that they were told, and the logits that each output token was drawn from."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self.tokens: dict[str, list[int]] = {name: [] for name in ASKED}
        self.about: dict[str, list[TokenLogprobs]] = {name: [] for name in ASKED}
        self.logits: dict[tuple[str, int], torch.Tensor] = {}
        runner: Any = engine.runner
        plain = runner._drawing.draw

        def draw(flat: FlatBatch, logits_of: Callable[[slice], torch.Tensor]) -> Any:
            logits = logits_of(slice(flat.num_draws)).clone() if flat.drawing else []
            counts = [1] * len(flat.drawing) if flat.draws is None else flat.draws.tolist()
            drawn = plain(flat, logits_of)
            at = 0
            for sequence, count in zip(flat.drawing, counts, strict=True):
                for i in range(len(drawn[sequence].tokens)):
                    self.logits[sequence.request_id, sequence.num_output + i] = logits[at + i]
                at += count
            return drawn

        def launch(flat: FlatBatch, logits_of: Callable[[slice], torch.Tensor]) -> Any:
            drawn = draw(flat, logits_of)
            return lambda: drawn

        runner._drawing.draw = draw
        runner._drawing.launch = launch

    def ask(self, names: list[str], between: Callable[[int], None] = lambda step: None) -> Heard:
        for name in names:
            self.engine.add_request(name, PROMPTS[name], ASKED[name])
        step = 0
        while self.engine.has_work():
            for output in self.engine.step():
                self.tokens[output.request_id] += output.new_token_ids
                self.about[output.request_id] += (output.logprobs or []) + (output.prompt_logprobs or [])
            between(step := step + 1)
        return self

    def equals(self, other: Heard, names: list[str]) -> None:
        for name in names:
            assert self.tokens[name] == other.tokens[name]
            assert self.about[name] == other.about[name]
            for position in range(len(self.tokens[name])):
                assert torch.equal(self.logits[name, position], other.logits[name, position]), (name, position)


def test_logits_are_bit_equal_in_any_batch_chunked_cached_preempted_and_drafted(make_engine: MakeEngine) -> None:
    """C24, C7."""
    alone = Heard(make_engine(prefix_caching=False))
    for name in PROMPTS:
        alone.ask([name])
    assert len(set(map(tuple, alone.tokens.values()))) == 4, "they are different answers"

    together = Heard(make_engine(token_budget=37, max_num_seqs=4)).ask([*PROMPTS])
    together.equals(alone, [*PROMPTS])

    cached = make_engine()
    Heard(cached).ask(["r0"])
    others = Heard(cached).ask(["r3", "r2", "r1", "r0"])
    others.equals(alone, [*PROMPTS])
    assert cached.counters()["cached_tokens"] > 3 * 128

    disturbed = Heard(make_engine(token_budget=90))

    def preempt(step: int) -> None:
        if step % 4 == 0 and len(disturbed.engine.scheduler.running) > 1:
            disturbed.engine.scheduler._preempt(list(disturbed.engine.scheduler.running)[-1], {})

    disturbed.ask(["r1", "r3", "r0", "r2"], preempt).equals(alone, [*PROMPTS])
    assert disturbed.engine.scheduler.preemptions > 2

    chance = random.Random(0)

    def guess(sequence: Sequence) -> list[int]:
        coming = alone.tokens[sequence.request_id][sequence.num_output :][: chance.randint(0, 4)]
        return [token if chance.random() < 0.8 else 5 for token in coming]

    drafted = Heard(make_engine())
    speculate(drafted.engine, guess)
    drafted.ask([*PROMPTS]).equals(alone, [*PROMPTS])
    assert drafted.engine.steps < together.engine.steps


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("gemma2", {"sliding_window": 24, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 24}),
        ("mixtral", {"num_local_experts": 4, "sliding_window": 32}),
    ],
)
def test_models_that_run_through_transformers_are_bit_equal_too(
    tmp_path: Path, family: str, config: dict[str, Any]
) -> None:
    """Windows, caps, and experts, which would multiply as many rows as happen to be sent to them."""
    folder = make_foreign(tmp_path / family, family, tie_word_embeddings=False, **config)

    def make(**settings: Any) -> LLMEngine:
        defaults: dict[str, Any] = {"dtype": "float32", "num_blocks": 128, "batch_invariant": True}
        return LLMEngine(EngineConfig(model=str(folder), device="cpu", **{**defaults, **settings}))

    names = ["r0", "r1", "r2"]
    alone = Heard(make(prefix_caching=False))
    for name in names:
        alone.ask([name])
    Heard(make(token_budget=37, max_num_seqs=4)).ask(names[::-1]).equals(alone, names)


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_logprobs_are_those_of_one_pass_over_the_prompt(folder: Path, kind: str) -> None:
    """C7, against the model in float32, called once and without an engine."""
    exact = load(str(folder), "float32")
    prompt = PROMPTS["r3"]
    blocks = -(-len(prompt) // 16)
    cache = KVCache(exact.config.num_layers, blocks, 16, exact.config.num_kv_heads, exact.config.head_dim)
    at = torch.arange(len(prompt))
    meta = AttentionMetadata(
        slot_mapping=at,
        block_tables=torch.arange(blocks, dtype=torch.int32)[None],
        query_starts=torch.tensor([0, len(prompt)], dtype=torch.int32),
        seq_lens=torch.tensor([len(prompt)], dtype=torch.int32),
        max_query_len=len(prompt),
        max_seq_len=len(prompt),
    )
    expected = exact.model.logits(exact.model(torch.tensor(prompt), at, cache, meta)).log_softmax(-1)
    wanted = [float(expected[i, token]) for i, token in enumerate(prompt[1:])]

    settings: dict[str, Any] = {"num_blocks": 64, "token_budget": 48, "max_num_seqs": 3}
    engine = LLMEngine(EngineConfig(model=str(folder), device="cpu", **numeric(kind), **settings))
    if isinstance(engine.runner, CpuRunner):
        engine.runner._max_rows = 10  # so that steps are cut in parts
    plain = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    (before,) = engine.generate([prompt], plain)
    scored = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True, prompt_logprobs=2)
    first, again = engine.generate([prompt, prompt], scored)
    for answer in (first, again):
        assert answer.prompt_logprobs is not None
        assert [one.token_id for one in answer.prompt_logprobs] == prompt[1:]
        off = [abs(one.logprob - right) for one, right in zip(answer.prompt_logprobs, wanted, strict=True)]
        assert sum(off) / len(off) < {"float32": 1e-4, "bfloat16": 0.2, "int8": 0.2, "bf16": 0.1}[kind]
        if kind != "bfloat16":
            assert answer.token_ids == before.token_ids
