"""A model on several ranks says what it says in one process; and no rank outlives another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file

from engine import EngineConfig, LLMEngine, SamplingParams, rank_links
from engine.config import EngineConfigError
from engine.follower import Setup
from engine.models.config import read_config
from engine.models.errors import ModelError
from engine.models.llama import LlamaModel
from engine.models.loader import LoadedModel, load
from engine.models.ranks import Share, config_of_each, why_not
from engine.outputs import StepError
from engine.rank_links import Followers, RankError
from engine.regions import Region
from kernels.api import AttentionMetadata, KVCache
from tests.engine.test_batch_invariance import PROMPTS, Heard
from tests.engine.test_llm_engine import GREEDY, prompts
from tests.engine.thread_ranks import ThreadRanks, on_ranks
from tests.engine.tiny import VOCAB, make_foreign, make_tiny

ROOT = Path(__file__).resolve().parents[2]
PROMPT = [(i * i * 7 + 3) % (VOCAB - 4) + 3 for i in range(100)]
FAMILIES: list[tuple[int, dict[str, Any]]] = [
    (2, {"model_type": "llama"}),
    (2, {"model_type": "qwen2", "tie_word_embeddings": False}),
    (2, {"model_type": "qwen3", "vocab_size": VOCAB - 1}),
    (2, {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    (4, {"model_type": "smollm3", "no_rope_layers": [1, 0], "tie_word_embeddings": False, "vocab_size": VOCAB - 2}),
]


def logits_of(loaded: LoadedModel, prompt: list[int] = PROMPT) -> torch.Tensor:
    """Of every token of a prompt, called once and without an engine."""
    shape, blocks = loaded.config, -(-len(prompt) // 16)
    cache = KVCache(shape.num_layers, blocks, 16, shape.num_kv_heads, shape.head_dim)
    meta = AttentionMetadata(
        slot_mapping=torch.arange(len(prompt)),
        block_tables=torch.arange(blocks, dtype=torch.int32)[None],
        query_starts=torch.tensor([0, len(prompt)], dtype=torch.int32),
        seq_lens=torch.tensor([len(prompt)], dtype=torch.int32),
        max_query_len=len(prompt),
        max_seq_len=len(prompt),
    )
    return loaded.model.logits(loaded.model(torch.tensor(prompt), meta.slot_mapping, cache, meta))


def settings(folder: Path, **changes: Any) -> EngineConfig:
    return EngineConfig(**{"model": str(folder), "dtype": "float32", "device": "cpu", "num_blocks": 64, **changes})


# --- the split ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "family"), FAMILIES, ids=str)
def test_logits_of_ranks_are_those_of_one_process(size: int, family: dict[str, Any], tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "m", **family)
    whole = logits_of(load(folder, "float32"))
    shared = on_ranks(size, lambda ranks: logits_of(load(folder, "float32", ranks=ranks)))[0]
    assert shared.shape == whole.shape
    assert torch.allclose(shared, whole, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(whole[1:], whole[:-1], atol=1.0), "the rows differ, so that a mixed-up one would show"


def test_a_rank_has_its_slices_of_the_checkpoint_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of q, k and v, rows of gate and up, columns of o and down, rows of the vocabulary; a bias of a sum once."""
    monkeypatch.setattr(LlamaModel, "pack", lambda self: None)
    folder = make_tiny(
        tmp_path / "m", attention_bias=True, mlp_bias=True, vocab_size=VOCAB - 1, tie_word_embeddings=False, shards=2
    )
    hf: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        hf.update(load_file(file))
    layer = "model.layers.1."
    half = VOCAB // 2
    mine = ((slice(0, 32), slice(0, 16), slice(0, 48)), (slice(32, 64), slice(16, 32), slice(48, 96)))
    for rank, (heads, kv, inner) in enumerate(mine):
        model = load(folder, "float32", ranks=ThreadRanks(Share(rank, 2), None, [])).model  # type: ignore[arg-type]
        ours = dict(model.named_parameters())  # type: ignore[attr-defined]
        for kind in ("weight", "bias"):
            parts = [hf[f"{layer}self_attn.{n}_proj.{kind}"][p] for n, p in (("q", heads), ("k", kv), ("v", kv))]
            assert torch.equal(ours[f"layers.1.self_attn.qkv_proj.{kind}"], torch.cat(parts))
            parts = [hf[f"{layer}mlp.{n}_proj.{kind}"][inner] for n in ("gate", "up")]
            assert torch.equal(ours[f"layers.1.mlp.gate_up_proj.{kind}"], torch.cat(parts))
        for name, columns in (("self_attn.o_proj", heads), ("mlp.down_proj", inner)):
            assert torch.equal(ours[f"layers.1.{name}.weight"], hf[f"{layer}{name}.weight"][:, columns])
            assert torch.equal(ours[f"layers.1.{name}.bias"], hf[f"{layer}{name}.bias"] * (rank == 0))
        for name, theirs in (("embed_tokens", "model.embed_tokens.weight"), ("lm_head.weight", "lm_head.weight")):
            rows = hf[theirs][rank * half : (rank + 1) * half]
            assert torch.equal(ours[name][: len(rows)], rows)
            assert len(ours[name]) == half
            assert not ours[name][len(rows) :].any(), "what stands behind the vocabulary's end is zero"
        assert torch.equal(ours["norm"], hf["model.norm.weight"])


def test_a_share_covers_everything_once_and_kv_heads_as_often_as_it_takes() -> None:
    for size, kv_heads in ((1, 8), (2, 8), (8, 8), (8, 2), (6, 3)):
        parts = [list(range(kv_heads))[Share(rank, size).part(kv_heads)] for rank in range(size)]
        times = max(1, size // kv_heads)
        assert [head for part in parts for head in part] == [h for h in range(kv_heads) for _ in range(times)]
        tokens = [list(range(101))[Share(rank, size).tokens(101)] for rank in range(size)]
        assert [token for part in tokens for token in part] == list(range(101))


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "changes", "says"),
    [
        ({}, {"tensor_parallel": 0}, "tensor_parallel must be a whole number from 1"),
        ({}, {"tensor_parallel": 3}, "its 4 query heads do not divide by 3; use 1, 2 or 4"),
        ({"intermediate_size": 90}, {"tensor_parallel": 4}, "90 values within its MLP do not divide by 4; use 1 or 2"),
        (
            {"num_attention_heads": 12, "num_key_value_heads": 6},
            {"tensor_parallel": 4},
            "its 6 KV heads do not go with 4 ranks; use 1, 2, 3, 6 or 12",
        ),
        ({"intermediate_size": 95}, {"tensor_parallel": 2}, "95 values within its MLP do not divide by 2; run it in"),
        ({}, {"tensor_parallel": 2, "weights": "int8", "dtype": "auto"}, "does not go with weights int8"),
        ({"hidden_act": "gelu"}, {"tensor_parallel": 2}, "native decoder knows only silu, and only that one"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_divided_is_refused_with_the_sizes_that_go(
    model: dict[str, Any], changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    folder = make_tiny(tmp_path / "m", **model)
    with pytest.raises(EngineConfigError) as caught:
        LLMEngine(settings(folder, **changes))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_more_ranks_than_gpus_and_a_single_gpu_s_name_are_refused(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for device, says in (("cuda", "needs 2 GPUs, and torch finds 1"), ("cuda:0", "takes the first 2 GPUs")):
        with pytest.raises(EngineConfigError, match=says):
            LLMEngine(settings(tiny_path, tensor_parallel=2, device=device, dtype="auto"))


def test_the_sizes_that_are_offered_can_all_be_used(tmp_path: Path) -> None:
    config = read_config(make_tiny(tmp_path / "m", num_attention_heads=12, num_key_value_heads=6))
    fitting = [size for size in range(1, 20) if why_not(config, size) is None]
    assert fitting == [1, 2, 3, 6, 12]
    for size in fitting:
        each = config_of_each(config, size)
        assert each.num_heads % each.num_kv_heads == 0
        assert (each.num_heads * size, each.intermediate_size * size) == (12, 96)


def test_one_process_needs_nothing_of_this(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensor_parallel", "rank_group", "rank_links", "follower"):
        monkeypatch.setitem(sys.modules, f"engine.{name}", None)  # to import it raises
    assert len(LLMEngine(settings(tiny_path)).generate([PROMPT], GREEDY)[0].token_ids) == 24


def test_a_rank_that_cannot_start_is_said_in_one_line(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(rank: int, link: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(7)"], pass_fds=[link.fileno()])

    monkeypatch.setattr(rank_links, "_start", start)
    with pytest.raises(EngineConfigError) as caught:
        LLMEngine(settings(tiny_path, tensor_parallel=2))
    assert str(caught.value) == "tensor_parallel 2 could not start: rank 1 of 2 ended with status 7."


# --- processes ------------------------------------------------------------------------------------------------------


def followers_of(engine: LLMEngine) -> Followers:
    runner: Any = engine.runner
    return runner._followers


def gone(pid: int) -> bool:
    """Also where it has ended and nobody has asked how yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def until(condition: Callable[[], bool], within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it does not become so"
        time.sleep(0.02)


@pytest.fixture
def ranks() -> Iterator[Callable[..., LLMEngine]]:
    """Starts engines of several ranks, which are closed when the test ends."""
    made: list[LLMEngine] = []

    def start(folder: Path, **changes: Any) -> LLMEngine:
        made.append(LLMEngine(settings(folder, **{"tensor_parallel": 2, **changes})))
        return made[-1]

    yield start
    for engine in made:
        runner: Any = engine.runner
        pids = followers_of(engine).pids
        runner.close()
        assert all(gone(pid) for pid in pids)


def test_two_processes_say_what_one_says_chunked_preempted_copied_and_from_the_host(
    tiny_path: Path, ranks: Callable[..., LLMEngine]
) -> None:
    """C2, C5, I3 over a split model: the pool is too small for what runs, blocks are shared, copied, and come back."""
    alone = LLMEngine(settings(tiny_path, prefix_caching=False, max_num_seqs=1))
    wanted = [alone.generate([prompt], GREEDY)[0].token_ids for prompt in prompts()]
    small = {"num_blocks": 16, "max_num_seqs": 8, "token_budget": 40, "host_kv_memory_bytes": 1 << 20}
    engine = ranks(tiny_path, **small)
    for process in (psutil.Process(), *map(psutil.Process, followers_of(engine).pids)):
        listening = {c.laddr.ip for c in process.net_connections() if c.status == psutil.CONN_LISTEN}
        assert listening == {"127.0.0.1"}, "nobody outside this machine reaches them"
    pairs = []
    runner: Any = engine.runner
    copy_blocks = runner.copy_blocks
    runner.copy_blocks = lambda copies: (pairs.extend(copies), copy_blocks(copies))
    for _ in range(2):
        assert [answer.token_ids for answer in engine.generate(prompts(), GREEDY)] == wanted
    engine.overlap = not engine.overlap  # a step's tokens are then drawn when the next one is on its way
    assert [answer.token_ids for answer in engine.generate(prompts(), GREEDY)] == wanted
    counters = engine.counters()
    assert counters["preemptions"] > 0
    assert counters["cached_tokens"] > 0
    assert counters["host_loaded_blocks"] > 0
    assert any(max(pair) < engine.num_blocks for pair in pairs), "a block was copied for its beginning"

    scored = SamplingParams(max_tokens=4, temperature=0.8, seed=5, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    (told,), (right,) = engine.generate([PROMPT], scored), alone.generate([PROMPT], scored)
    assert told.token_ids == right.token_ids
    for ours, theirs in ((told.logprobs, right.logprobs), (told.prompt_logprobs, right.prompt_logprobs)):
        assert ours is not None
        assert theirs is not None
        assert [one.logprob for one in ours] == pytest.approx([one.logprob for one in theirs], abs=1e-4)

    kv = runner.read_blocks([3, 5], 20)
    assert kv.shape == (2, runner.block_bytes)
    runner.write_blocks([7, 2], kv)
    assert np.array_equal(runner.read_blocks([7, 2], 20), kv)
    parts = kv.view(np.float32).reshape(2, 2, 2, 2, 16, 1, 16)  # block, rank, K or V, layer, slot, head, dim
    assert not parts[1, :, :, :, 4:].any(), "what stands behind the tokens is zero, on each rank"
    assert parts[0, 0].any()
    assert parts[0, 1].any()
    assert not np.array_equal(parts[0, 0], parts[0, 1])


def test_each_rank_keeps_the_eight_bits_of_its_heads(tiny_path: Path, ranks: Callable[..., LLMEngine]) -> None:
    alone = LLMEngine(settings(tiny_path, kv_dtype="int8", prefix_caching=False, max_num_seqs=1))
    wanted = [alone.generate([prompt], GREEDY)[0].token_ids for prompt in prompts()]
    engine = ranks(tiny_path, kv_dtype="int8", max_num_seqs=8, token_budget=40)
    assert [answer.token_ids for answer in engine.generate(prompts(), GREEDY)] == wanted
    assert engine.counters()["cached_tokens"] > 0
    runner = engine.runner
    assert runner.block_bytes == alone.runner.block_bytes
    kv = runner.read_blocks([3, 5], 20)
    runner.write_blocks([7, 2], kv)
    assert np.array_equal(runner.read_blocks([7, 2], 20), kv)
    values = 2 * 2 * 16 * 16  # K and V, layers, slots, one head
    scales = kv.reshape(2, 2, -1)[:, :, values:].copy().view(np.float32)  # block, rank
    assert (scales[0] > 0).all()
    assert not np.array_equal(scales[0, 0], scales[0, 1])


def test_a_killed_rank_fails_the_step_and_every_later_one_and_leaves_nobody(
    tiny_path: Path, ranks: Callable[..., LLMEngine]
) -> None:
    """I11."""
    engine = ranks(tiny_path)
    (pid,) = followers_of(engine).pids
    engine.add_request("r", PROMPT, GREEDY)
    told = 0
    while told < 5:
        told += sum(len(output.new_token_ids) for output in engine.step())
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(StepError, match="rank 1 of 2 was killed by SIGKILL") as caught:
        engine.step()
    assert caught.value.request_ids == ["r"]
    assert gone(pid)
    engine.add_request("later", PROMPT, GREEDY)
    with pytest.raises(StepError, match="rank 1 of 2 was killed by SIGKILL"):
        engine.step()


def test_a_rank_that_dies_while_nothing_runs_is_noticed_by_asking(
    tiny_path: Path, ranks: Callable[..., LLMEngine]
) -> None:
    engine = ranks(tiny_path)
    engine.runner.check()
    (pid,) = followers_of(engine).pids
    os.kill(pid, signal.SIGKILL)
    told = ""

    def noticed() -> bool:
        nonlocal told
        try:
            engine.runner.check()
        except RankError as error:
            told = str(error)
        return bool(told)

    until(noticed, within_s=5)
    assert told == "rank 1 of 2 was killed by SIGKILL"
    with pytest.raises(RankError, match=told):
        engine.runner.check()


@pytest.mark.long
@pytest.mark.parametrize(("size", "family"), FAMILIES, ids=str)
def test_every_family_says_the_same_on_several_processes(
    size: int, family: dict[str, Any], tmp_path: Path, ranks: Callable[..., LLMEngine]
) -> None:
    folder = make_tiny(tmp_path / "m", **{**family, "vocab_size": VOCAB})
    wanted = [answer.token_ids for answer in LLMEngine(settings(folder)).generate(prompts(), GREEDY)]
    engine = ranks(folder, tensor_parallel=size)
    assert [answer.token_ids for answer in engine.generate(prompts(), GREEDY)] == wanted
    assert len(followers_of(engine).pids) == size - 1


@pytest.mark.long
@pytest.mark.parametrize(("size", "kv_heads", "dtype"), [(2, 2, "float32"), (3, 3, "float32"), (2, 2, "bfloat16")])
def test_batch_invariance_is_kept_by_any_number_of_ranks(
    size: int, kv_heads: int, dtype: str, tmp_path: Path, ranks: Callable[..., LLMEngine]
) -> None:
    """I9: the ranks' sums have one order too, wherever in a tile a row lies."""
    folder = make_tiny(tmp_path / "m", num_attention_heads=6, num_key_value_heads=kv_heads)
    engine = ranks(
        folder,
        tensor_parallel=size,
        dtype=dtype,
        batch_invariant=True,
        num_blocks=128,
        token_budget=37,
        max_num_seqs=4,
        prefix_caching=False,
    )
    alone = Heard(engine)
    for name in PROMPTS:
        alone.ask([name])
    assert engine.runner.kv_layout.endswith(f"batch-invariant, {size} ranks")
    together = Heard(engine).ask([*PROMPTS])
    together.equals(alone, [*PROMPTS])


@pytest.mark.long
def test_a_published_prompt_s_blocks_come_back_from_disk_to_every_rank(
    tiny_path: Path, tmp_path: Path, ranks: Callable[..., LLMEngine]
) -> None:
    regions = [Region(80, "tenant"), Region(len(PROMPT), "private")]
    answers, cached = [], []
    for _ in range(2):
        engine = ranks(tiny_path, prompt_store=str(tmp_path / "store"))
        stored = engine.prompts.stored(PROMPT, regions, tenant="t")
        if stored is not None:
            assert engine.prompts.restore("t", PROMPT, regions, tenant="t", stored=stored) == 80
        engine.add_request("r", PROMPT, GREEDY, tenant="t", regions=regions)
        tokens: list[int] = []
        while engine.has_work():
            for output in engine.step():
                tokens += output.new_token_ids
                cached.append(output.cached_tokens)
        answers.append(tokens)
        engine.prompts.pin("t", PROMPT, regions, tenant="t")
        assert engine.prompts.store is not None
        engine.prompts.store.flush()
        engine.runner.close()  # type: ignore[attr-defined]
    assert answers[0] == answers[1]
    assert (cached[0], cached[-1]) == (0, 80)


@pytest.mark.long
def test_a_rank_that_hangs_is_not_waited_for_longer_than_the_limit(
    tiny_path: Path, ranks: Callable[..., LLMEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.tensor_parallel.TIMEOUT_S", 3)
    engine = ranks(tiny_path)
    (pid,) = followers_of(engine).pids
    engine.generate([PROMPT], GREEDY)
    os.kill(pid, signal.SIGSTOP)
    engine.add_request("r", PROMPT, GREEDY)
    with pytest.raises(StepError, match=r"the 2 ranks are out of step after .*[Tt]imed out"):
        engine.step()
    assert gone(pid)


@pytest.mark.long
def test_a_rank_s_own_fault_is_what_the_step_fails_with(tiny_path: Path, ranks: Callable[..., LLMEngine]) -> None:
    engine = ranks(tiny_path)
    followers_of(engine).tell("write", [10**6], np.zeros((1, engine.runner.block_bytes // 2), np.uint8))
    engine.add_request("r", PROMPT, GREEDY)
    with pytest.raises(StepError, match="rank 1 of 2 failed: IndexError"):
        engine.step()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_whatever_ends_rank_0_ends_the_others(tiny_path: Path, number: int) -> None:
    """Waiting for a step, or in the middle of one."""
    code = (
        "import sys, torch\n"
        "from engine import EngineConfig, LLMEngine, SamplingParams\n"
        f"engine = LLMEngine(EngineConfig(model={str(tiny_path)!r}, dtype='float32', device='cpu', num_blocks=64,\n"
        "                   tensor_parallel=2))\n"
        "print(engine.runner._followers.pids[0], flush=True)\n"
        "while True: engine.generate([[5] * 50], SamplingParams(max_tokens=50, ignore_eos=True))\n"
    )
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as leader:
        assert leader.stdout is not None
        line = leader.stdout.readline()
        while not line.strip().isdigit():  # log lines
            line = leader.stdout.readline()
        pid = int(line)
        assert not gone(pid)
        time.sleep(0.5)
        leader.send_signal(number)
        leader.wait(30)
    until(lambda: gone(pid))


@pytest.mark.long
def test_a_second_engine_of_ranks_in_a_process_is_refused(tiny_path: Path, ranks: Callable[..., LLMEngine]) -> None:
    engine = ranks(tiny_path)
    with pytest.raises(EngineConfigError, match="has an engine with tensor_parallel already"):
        ranks(tiny_path)
    assert len(engine.generate([PROMPT], GREEDY)[0].token_ids) == 24, "which harms the first one in nothing"


@pytest.mark.long
def test_what_no_rank_or_only_another_one_can_do_is_said_in_one_line(
    tiny_path: Path, tmp_path: Path, ranks: Callable[..., LLMEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EngineConfigError, match="not phi3, and only that one can be divided"):
        ranks(make_foreign(tmp_path / "m", "phi3"))
    with pytest.raises(EngineConfigError, match="set num_blocks to"):
        ranks(tiny_path, num_blocks=10**9)
    with pytest.raises(ModelError, match="dtype 'float64' is unknown"):
        ranks(tiny_path, dtype="float64")
    for change, says in (
        ({"config": settings(tmp_path / "gone")}, "gone does not exist; name a model folder"),
        ({"device": "abacus"}, "tensor_parallel 2 could not start: rank 1 of 2 failed: RuntimeError: "),
    ):
        monkeypatch.setattr(
            "engine.tensor_parallel.Setup", lambda *told, change=change: msgspec.structs.replace(Setup(*told), **change)
        )
        with pytest.raises(EngineConfigError, match=says) as caught:
            ranks(tiny_path)
        assert "\n" not in str(caught.value)
    monkeypatch.undo()
    assert len(ranks(tiny_path).generate([PROMPT], GREEDY)[0].token_ids) == 24, "nothing of them is left behind"
