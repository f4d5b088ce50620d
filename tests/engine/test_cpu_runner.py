"""The engine over the C++ decoder: the real model's answers, and the same ones whatever runs beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.config import EngineConfigError
from engine.cpu_runner import CpuRunner, shared_prefixes
from engine.flat_batch import FlatBatch
from engine.models.loader import load, open_folder
from engine.models.low_bit import load_tiles
from engine.protocol import ChatMessage, SystemText
from engine.runner import Runner
from engine.runners import load_runner
from kernels.api import AttentionMetadata, KVCache
from kernels.cpu.decoder import Batch
from tests.engine.tiny import make_foreign, make_tiny, numeric

SYSTEM = [SystemText("You answer for a shop that sells tents, boots and stoves. Be brief and kind. " * 12, "shop")]
QUESTIONS = ["What is the capital of France?", "Name three colours.", "Do you sell boots?", "Why is the sky blue?"]


@pytest.fixture(scope="module", params=["bfloat16", "int8"])
def make_engine(request: pytest.FixtureRequest, model_path: str) -> Callable[..., LLMEngine]:
    def make(**settings: object) -> LLMEngine:
        defaults: dict = {"model": model_path, "device": "cpu", "num_blocks": 512, "kv_dtype": request.param}
        engine = LLMEngine(EngineConfig(**{**defaults, **settings}))
        assert isinstance(engine.runner, CpuRunner)
        return engine

    return make


def answers(engine: LLMEngine, questions: list[str], params: SamplingParams) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {question: [] for question in questions}
    for question in questions:
        prompt, regions = engine.tokenizer.render_chat(SYSTEM, [ChatMessage("user", question)], question)
        engine.add_request(question, prompt, params, tenant="shop", regions=regions)
    while engine.has_work():
        for output in engine.step():
            tokens[output.request_id] += output.new_token_ids
    return tokens


@pytest.mark.parametrize("weights", ["auto", "bf16"])
def test_auto_is_the_c_decoder_and_it_answers_as_float32_does(model_path: str, weights: str) -> None:
    """Questions whose answers do not hang on a near tie of two tokens."""
    questions = [[ChatMessage("user", text)] for text in ("What is the largest planet?", "Who wrote Hamlet?")]
    params = SamplingParams(temperature=0, max_tokens=12)
    engine = LLMEngine(EngineConfig(model=model_path, device="cpu", num_blocks=64, weights=weights))
    assert isinstance(engine.runner, CpuRunner)
    exact = LLMEngine(EngineConfig(model=model_path, device="cpu", num_blocks=64, dtype="float32"))
    got = [answer.token_ids for answer in engine.generate(questions, params)]
    assert got == [answer.token_ids for answer in exact.generate(questions, params)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_answer_is_the_same_alone_in_a_batch_cached_grouped_or_in_other_chunks(
    make_engine: Callable[..., LLMEngine], temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, seed=7, max_tokens=24, ignore_eos=True)
    alone = make_engine(prefix_caching=False, token_budget=256)
    expected: dict[str, list[int]] = {}
    for question in QUESTIONS:
        expected |= answers(alone, [question], params)
    together = make_engine(token_budget=48, threads=2)
    assert answers(together, QUESTIONS, params) == expected
    assert answers(together, QUESTIONS[::-1], params) == expected  # all of it from the cache
    assert together.counters()["cached_tokens"] > 0


def test_the_tokens_it_prefers_are_mostly_those_of_float32(
    make_engine: Callable[..., LLMEngine], model_path: str
) -> None:
    """int8 activations and KV cost something; how much is kept in docs/LOG.md. Here: that nothing is broken."""
    text = (Path(__file__).resolve().parents[2] / "bench" / "quality.txt").read_text()
    exact = load(model_path, "float32")
    engine = make_engine(num_blocks=64, token_budget=512)
    runner = engine.runner
    assert isinstance(runner, CpuRunner)
    ids = np.array(engine.tokenizer.encode(text)[:256])
    slots = np.arange(len(ids))
    blocks = -(-len(ids) // 16)
    cache = KVCache(exact.config.num_layers, blocks, 16, exact.config.num_kv_heads, exact.config.head_dim)
    meta = AttentionMetadata(
        slot_mapping=torch.from_numpy(slots),
        block_tables=torch.arange(blocks, dtype=torch.int32)[None],
        query_starts=torch.tensor([0, len(ids)], dtype=torch.int32),
        seq_lens=torch.tensor([len(ids)], dtype=torch.int32),
        max_query_len=len(ids),
        max_seq_len=len(ids),
    )
    hidden = exact.model(torch.from_numpy(ids), torch.from_numpy(slots), cache, meta)
    expected = exact.model.logits(hidden)
    rows = np.arange(7, len(ids), 8)
    logits = runner._decoder.step(
        Batch(
            ids=ids.astype(np.int32),
            positions=slots.astype(np.int32),
            slots=slots,
            query_starts=np.array([0, len(ids)], np.int32),
            lengths=np.array([len(ids)], np.int32),
            tables=np.arange(blocks, dtype=np.int32)[None],
            row_tokens=rows.astype(np.int32),
        )
    )
    got, wanted = torch.from_numpy(logits), expected[rows]
    assert (got.argmax(-1) == wanted.argmax(-1)).float().mean() >= 0.9
    divergence = torch.nn.functional.kl_div(
        got.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="none"
    )
    assert divergence.sum(-1).mean() < 0.005


def test_a_folder_made_from_a_gguf_file_is_decoded_with_the_files_own_weights(model_path: str) -> None:
    """And not with a second quantisation of them, which nothing else would show but speed."""
    tiles = load_tiles(Path(model_path))
    _, tensors, _ = open_folder(Path(model_path))
    bits = {name: tiles[name].bits for name in tensors if tensors[name].dim() == 2}
    assert bits.pop("model.embed_tokens.weight") == 8
    assert set(bits.values()) == {4}
    assert len(bits) == 30 * 7


def test_a_model_that_it_cannot_run_goes_through_torch_and_insisting_is_an_error(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "odd")
    config = EngineConfig(model=str(folder), device="cpu", num_blocks=32)
    assert isinstance(load_runner(config), Runner)
    with pytest.raises(EngineConfigError, match=r"weights bf16 cannot be had for .*head_dim 16"):
        load_runner(EngineConfig(model=str(folder), device="cpu", num_blocks=32, weights="bf16"))


def test_blocks_of_other_weights_are_not_taken_for_ones_own(tmp_path: Path) -> None:
    """Stored KV is found by revision and layout; the forms of one model round differently."""
    folder = make_tiny(tmp_path / "m", head_dim=32)

    def layout(weights: str) -> str:
        runner = load_runner(EngineConfig(model=str(folder), device="cpu", num_blocks=8, weights=weights))
        assert isinstance(runner, CpuRunner)
        runner.close()
        return runner.kv_layout

    layouts = [layout(weights) for weights in ("int4", "int8", "bf16", "auto")]
    assert len(set(layouts)) == 3
    assert layouts[2] == layouts[3]


def test_int8_keys_and_values_hold_nearly_twice_the_tokens_in_the_same_memory(
    model_path: str,
) -> None:
    pools = {}
    for kv_dtype in ("bfloat16", "int8"):
        config = EngineConfig(model=model_path, device="cpu", kv_dtype=kv_dtype, kv_memory_bytes=16 << 20, threads=1)
        runner = load_runner(config)
        assert isinstance(runner, CpuRunner)
        assert runner.num_blocks == (16 << 20) // runner.block_bytes
        assert runner._decoder.cache.nbytes == runner.num_blocks * runner.block_bytes
        pools[runner.kv_layout] = runner.num_blocks
        runner.close()
    bf16, int8 = pools.values()
    assert int8 > 1.9 * bf16
    assert len(pools) == 2, "a stored prompt of the one would be taken for one of the other"


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_eight_bit_keys_and_values_are_kept_where_torch_computes(kv_dtype: str, tmp_path: Path) -> None:
    """And not silently left as they were: who asked for them counts on the memory."""
    odd, fitting = make_tiny(tmp_path / "odd"), make_tiny(tmp_path / "fitting", head_dim=32)
    for folder, kind in ((odd, "auto"), (fitting, "float32"), (make_foreign(tmp_path / "foreign", "phi3"), "auto")):
        settings: Any = numeric(kind)
        runner = load_runner(
            EngineConfig(model=str(folder), device="cpu", num_blocks=32, kv_dtype=kv_dtype, **settings)
        )
        assert isinstance(runner, Runner)
        assert runner._kv.data.dtype == {"int8": torch.int8, "fp8": torch.float8_e4m3fn}[kv_dtype]
        assert kv_dtype in runner.kv_layout


def test_eight_bit_floats_are_torchs_and_who_insists_on_the_c_decoder_is_told(tmp_path: Path) -> None:
    config: Any = {"model": str(make_tiny(tmp_path / "m", head_dim=32)), "device": "cpu", "num_blocks": 32}
    with capture_logs() as logs:
        assert isinstance(load_runner(EngineConfig(**config, kv_dtype="fp8")), Runner)
    assert [entry["reason"] for entry in logs if entry["event"] == "runner.torch"] == [
        "kv_dtype fp8 is only there in torch"
    ]
    with pytest.raises(
        EngineConfigError, match=r"weights int8 cannot be had for .*: kv_dtype fp8 is only there"
    ) as one:
        load_runner(EngineConfig(**config, kv_dtype="fp8", weights="int8"))
    assert "\n" not in str(one.value)


def flat(tables: list[list[int]], lengths: list[int], counts: list[int]) -> FlatBatch:
    zero = np.zeros(0, np.int64)
    width = max(map(len, tables))
    return FlatBatch(
        input_ids=zero,
        positions=zero,
        slot_mapping=zero,
        block_tables=np.array([table + [0] * (width - len(table)) for table in tables], np.int32),
        query_starts=np.cumsum([0, *counts]).astype(np.int32),
        seq_lens=np.array(lengths, np.int32),
        max_query_len=max(counts),
        max_seq_len=max(lengths),
        drawing=[],
        rows=zero,
        num_draws=0,
    )


def test_decoding_sequences_are_grouped_by_the_blocks_that_they_share() -> None:
    shared, other = list(range(100, 120)), list(range(200, 210))
    tables = [[*shared, 1], [*shared, 2], [*other, 3], [*shared, 4], [*other, 5], list(range(300, 310))]
    lengths = [330, 331, 170, 332, 171, 150]
    group_of, blocks = shared_prefixes(flat(tables, lengths, [1, 1, 1, 4, 1, 1]), 16)
    assert group_of is not None
    assert group_of.tolist() == [0, 0, 1, -1, 1, -1]  # the fourth prefills
    assert blocks.tolist() == [16, 8]  # whole rounds of 8 only
    assert shared_prefixes(flat(tables[:1], lengths[:1], [1]), 16)[0] is None
