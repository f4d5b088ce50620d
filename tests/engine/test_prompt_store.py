"""Published prompts on disk: what comes back is what was saved, and nothing else is ever taken for it."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from structlog.testing import capture_logs

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.config import WEIGHTS
from engine.cpu_runner import CpuRunner
from engine.prompt_store import PromptStore
from engine.regions import Region
from engine.runner import Runner
from tests.engine.null_model import expected, null_engine
from tests.engine.tiny import make_tiny, numeric

GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
SECRET = "a-tenants-secret-salt"


def regions(published: int, length: int, salt: str = SECRET) -> list[Region]:
    return [Region(3, "public"), Region(published, salt), Region(length, "a conversation's own salt")]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, 90), k=length)


def ask(engine: LLMEngine, prompt: list[int], where: list[Region], name: str = "r") -> tuple[list[int], int]:
    engine.add_request(name, prompt, GREEDY, tenant="t", regions=where)
    tokens: list[int] = []
    cached = -1
    while engine.has_work():
        for output in engine.step():
            tokens += output.new_token_ids
            cached = output.cached_tokens
    engine.check_integrity()
    return tokens, cached


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def saved(engine: LLMEngine, prompt: list[int], where: list[Region]) -> list[int]:
    """Answer and pin a prompt; the answer, once all is on disk."""
    answer, _ = ask(engine, prompt, where)
    assert engine.prompts.pin("t", prompt, where, tenant="t") == where[-2].end
    assert engine.prompts.store is not None
    engine.prompts.store.flush()
    return answer


def a_store(folder: Path, **changes: Any) -> PromptStore:
    defaults = {"revision": "r", "layout": "l", "block_size": 4, "block_bytes": 32, "most_bytes": 1 << 20}
    return PromptStore(folder, **{**defaults, **changes})


def content(tokens: list[int], salt: str = SECRET) -> tuple[tuple[str, bytes], ...]:
    return ((salt, array("i", tokens).tobytes()),)


def kv_of(tokens: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (-(-tokens // 4), 32), np.uint8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that the C++ decoder can run too."""
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny", head_dim=32)


@pytest.fixture(params=["float32", "bfloat16", "float32/int8", "float32/fp8", "int8", "bf16/int8"])
def make(request: pytest.FixtureRequest, model: Path, tmp_path: Path) -> Callable[..., LLMEngine]:
    kind, _, kv_dtype = request.param.partition("/")

    def start(**settings: Any) -> LLMEngine:
        defaults = {"model": str(model), "device": "cpu", "num_blocks": 64, "threads": 1, **numeric(kind)}
        defaults["kv_dtype"] = kv_dtype or "bfloat16"
        engine = LLMEngine(EngineConfig(**{**defaults, "prompt_store": str(tmp_path / "store"), **settings}))
        assert isinstance(engine.runner, CpuRunner if kind in WEIGHTS else Runner)
        return engine

    return start


@pytest.mark.parametrize("published", [48, 53, 54])
def test_a_restarted_engine_answers_its_first_request_from_the_stored_prompt(
    make: Callable[..., LLMEngine], published: int, tmp_path: Path
) -> None:
    """Whole blocks, and a last one that is part-filled by an odd and by an even number of tokens."""
    prompt = prompt_of(70)
    where = regions(published, 70)
    answer = saved(make(), prompt, where)
    restarted = make()
    began = time.monotonic()
    assert restarted.prompts.restore("t", prompt, where, tenant="t") == published
    restarted.check_integrity()
    assert all(restarted.pool.born(block) >= began for block in restarted.pool.pinned()), "they are of now"
    assert ask(restarted, prompt, where) == (answer, published)
    assert restarted.pool.num_pinned == -(-published // 16)
    assert restarted.prompts.restore("t", prompt, where, tenant="t") == 0, "it is there already"
    other = prompt[:published] + prompt_of(9, 5)
    assert ask(restarted, other, regions(published, len(other)))[0] == ask(make(prompt_store=None), other, where)[0]
    assert len(files(tmp_path / "store")) == 1


def test_what_stands_behind_the_prompt_in_its_last_block_is_not_written(
    make: Callable[..., LLMEngine], tmp_path: Path
) -> None:
    """The rest of that block is a conversation's own; its KV must not lie on the disk with the team's."""
    prompt = prompt_of(70)
    one, two = make(), make()
    for published in (48, 53, 54):
        kv = []
        for engine, tail in ((one, prompt), (two, prompt[:published] + prompt_of(17, 3))):
            where = regions(published, len(tail), f"{SECRET}{published}")
            saved(engine, tail, where)
            stored = engine.prompts.stored(tail, where, tenant="t")
            assert stored is not None
            kv.append(stored)
        assert (kv[0][: published // 16] == kv[1][: published // 16]).mean() > 0.9
        assert kv[0][-1].any()
        blank = make(prompt_store=None)
        blank.runner.write_blocks([0], np.full((1, kv[0].shape[1]), 0x3C, np.uint8))
        cut = blank.runner.read_blocks([0], published % 16 or 16)
        share = np.count_nonzero(cut) / cut.size
        assert share == pytest.approx((published % 16 or 16) / 16)
        assert not kv[0][-1][cut[0] == 0].any(), "a slot behind the prompt has been saved"


def test_other_salts_tokens_revisions_and_layouts_find_nothing(tmp_path: Path) -> None:
    """I4, I5. None of it is worth a line in the log: such a prompt is simply not there."""
    store = a_store(tmp_path)
    tokens = prompt_of(10)
    store.save(store.key(content(tokens)), kv_of(10))
    store.flush()
    with capture_logs() as lines:
        found = store.load(store.key(content(tokens)))
        assert found is not None
        assert (found == kv_of(10)).all()
        for other in (content(tokens, "other"), content(tokens[:9]), content([*tokens[:9], 1]), content(tokens * 2)):
            assert store.load(store.key(other)) is None
        split = ((SECRET, content(tokens[:4])[0][1]), ("own", content(tokens[4:])[0][1]))
        assert store.load(store.key(split)) is None
        for change in ({"revision": "s"}, {"layout": "m"}, {"block_size": 8}):
            other_store = a_store(tmp_path, **change)
            assert other_store.load(other_store.key(content(tokens))) is None
    assert lines == []


def test_a_file_is_a_private_safetensors_file_without_the_salts(tmp_path: Path) -> None:
    store = a_store(tmp_path / "deep" / "store")
    tokens = prompt_of(10)
    store.save(store.key(content(tokens)), kv_of(10))
    store.flush()
    (path,) = files(tmp_path / "deep" / "store")
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert SECRET.encode() not in path.read_bytes()
    assert SECRET not in repr(store.key(content(tokens)))
    with safe_open(path, "np") as file:
        assert file.get_tensor("tokens").tolist() == tokens
        assert (file.get_tensor("kv") == kv_of(10)).all()
        assert file.metadata()["revision"] == "r"


DAMAGES: dict[str, Callable[[Path, random.Random], object]] = {
    "empty": lambda path, rng: path.write_bytes(b""),
    "truncated": lambda path, rng: os.truncate(path, rng.randrange(1, path.stat().st_size)),
    "longer": lambda path, rng: path.write_bytes(path.read_bytes() + b"x"),
    "a flipped bit": lambda path, rng: flip(path, rng),
    "zeros": lambda path, rng: path.write_bytes(bytes(path.stat().st_size)),
    "a folder": lambda path, rng: (path.unlink(), path.mkdir()),
    "a pipe": lambda path, rng: (path.unlink(), os.mkfifo(path)),
    "a link": lambda path, rng: (path.rename(path.with_suffix(".moved")), path.symlink_to(path.with_suffix(".moved"))),
}


def flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_one_line_in_the_log_and_the_answer_is_right(damage: str, tmp_path: Path) -> None:
    prompt = prompt_of(23)
    where = regions(18, 23)
    folder = tmp_path / "store"
    saved(null_engine(num_blocks=32, prompt_store=str(folder)), prompt, where)
    for seed in range(20 if damage in ("truncated", "a flipped bit") else 1):
        (path,) = files(folder)
        DAMAGES[damage](path, random.Random(seed))
        engine = null_engine(num_blocks=32, prompt_store=str(folder))
        with capture_logs() as lines:
            assert engine.prompts.restore("t", prompt, where, tenant="t") == 0
            assert saved(engine, prompt, where) == expected(prompt, 8)
        assert [(line["event"], line["log_level"]) for line in lines] == [("prompt_store.ignored", "warning")]
        assert SECRET not in str(lines)
        if path.is_file() and not path.is_symlink():
            again = null_engine(num_blocks=32, prompt_store=str(folder))
            assert again.prompts.restore("t", prompt, where, tenant="t") == 18, "it was saved anew"


def test_a_file_under_another_prompts_name_is_ignored(tmp_path: Path) -> None:
    """I4, as if two prompts had one name; and a forger who knows the tokens, but not the salts."""
    store = a_store(tmp_path)
    mine, other, salted = (store.key(content(prompt_of(10, s), salt)) for s, salt in ((1, "a"), (2, "a"), (1, "b")))
    for key in (other, salted):
        store.save(key, kv_of(10))
        store.flush()
        (tmp_path / f"{key.name}.safetensors").rename(tmp_path / f"{mine.name}.safetensors")
        with capture_logs() as lines:
            assert store.load(mine) is None
        assert [line["event"] for line in lines] == ["prompt_store.ignored"]


def test_all_files_together_stay_within_the_bound_and_the_unused_go_first(tmp_path: Path) -> None:
    keep = tmp_path / "model.safetensors"
    keep.write_bytes(bytes(10_000))
    one = a_store(tmp_path, most_bytes=1 << 20)
    keys = [one.key(content(prompt_of(40, seed))) for seed in range(6)]
    one.save(keys[0], kv_of(40))
    one.flush()
    size = (tmp_path / f"{keys[0].name}.safetensors").stat().st_size
    store = a_store(tmp_path, most_bytes=3 * size)
    for number, key in enumerate(keys):
        store.save(key, kv_of(40))
        store.flush()
        for age, used in enumerate(reversed([keys[0], *keys[1 : number + 1]])):  # no clock is as fine as this loop
            path = tmp_path / f"{used.name}.safetensors"
            if path.exists():
                os.utime(path, (1000 - age, 1000 - age))
        assert store.load(keys[0]) is not None, "it was used all the time"
        assert sum(path.stat().st_size for path in files(tmp_path) if path != keep) <= 3 * size
    assert [store.load(key) is not None for key in keys] == [True, False, False, False, True, True]
    assert keep.exists()
    with capture_logs() as lines:
        assert not a_store(tmp_path, most_bytes=100).save(keys[1], kv_of(40))
    assert lines == []


def test_a_prompt_that_cannot_be_written_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    engine = null_engine(num_blocks=32, prompt_store=str(tmp_path))
    with capture_logs() as lines:
        saved(engine, prompt_of(23), regions(18, 23))
    assert [(line["event"], line["reason"]) for line in lines] == [
        ("prompt_store.not_saved", "No space left on device")
    ]
    assert files(tmp_path) == []


def test_a_folder_that_cannot_be_made_turns_the_store_off_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with capture_logs() as lines:
        engine = null_engine(num_blocks=32, prompt_store=str(tmp_path / "file" / "store"))
        assert ask(engine, prompt_of(23), regions(18, 23))[0] == expected(prompt_of(23), 8)
        assert engine.prompts.pin("t", prompt_of(23), regions(18, 23), tenant="t") == 18
    assert [line["event"] for line in lines] == ["prompt_store.off"]


def test_a_restored_prompt_takes_nothing_from_what_runs_nor_from_other_pins(tmp_path: Path) -> None:
    prompt = prompt_of(23)
    where = regions(18, 23)
    saved(null_engine(num_blocks=32, prompt_store=str(tmp_path)), prompt, where)
    engine = null_engine(num_blocks=12, prompt_store=str(tmp_path))
    busy = prompt_of(28, 9)
    engine.add_request("busy", busy, GREEDY, tenant="u")
    outputs = engine.step() + engine.step()
    held = dict.fromkeys(block for block, refs in enumerate(engine.pool.refs) if refs)
    assert engine.prompts.restore("t", prompt, where, tenant="t") == 0
    assert engine.pool.num_cached == 0
    assert held == dict.fromkeys(block for block, refs in enumerate(engine.pool.refs) if refs)
    engine.check_integrity()
    while engine.has_work():
        outputs += engine.step()
    assert [token for output in outputs for token in output.new_token_ids] == expected(busy, 8)
    assert engine.prompts.pin("u", busy, regions(24, 28, "u"), tenant="u") == 0, "other salts"
    assert engine.prompts.restore("t", prompt, where, tenant="t") == 18, "what is idle makes room"
    assert ask(engine, prompt, where) == (expected(prompt, 8), 18)


def test_a_fault_while_the_blocks_are_written_leaves_none_to_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_of(23)
    where = regions(18, 23)
    saved(null_engine(num_blocks=32, prompt_store=str(tmp_path)), prompt, where)
    engine = null_engine(num_blocks=32, prompt_store=str(tmp_path))
    monkeypatch.setattr(engine.runner, "write_blocks", lambda blocks, data: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.prompts.restore("t", prompt, where, tenant="t")
    engine.check_integrity()
    assert engine.pool.num_free == 32
    assert ask(engine, prompt, where) == (expected(prompt, 8), 0)


def test_a_warmed_prompt_is_saved_too_and_a_missing_rest_is_restored_behind_what_is_cached(tmp_path: Path) -> None:
    prompt = prompt_of(23)
    where = regions(18, 23)
    engine = null_engine(num_blocks=32, prompt_store=str(tmp_path))
    engine.prompts.warm("t", prompt, where, tenant="t")
    while engine.has_work():
        engine.step()
    assert engine.prompts.store is not None
    engine.prompts.store.flush()
    restarted = null_engine(num_blocks=32, prompt_store=str(tmp_path))
    ask(restarted, prompt[:9], [Region(3, "public"), Region(9, SECRET)])
    assert restarted.prompts.restore("t", prompt, where, tenant="t") == 10
    assert ask(restarted, prompt, where) == (expected(prompt, 8), 18)


def _write_often(folder: str, seed: int) -> None:
    store = a_store(Path(folder), most_bytes=20_000)
    for number in range(40):
        tokens = prompt_of(40, (number * 7 + seed) % 11)
        store.save(store.key(content(tokens)), kv_of(40, sum(tokens)))
        store.load(store.key(content(prompt_of(40, number % 11))))
    store.flush()


def test_two_processes_that_write_at_once_leave_whole_files_only(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("fork")
    both = [spawn.Process(target=_write_often, args=(str(tmp_path), seed)) for seed in (0, 1)]
    for process in both:
        process.start()
    store = a_store(tmp_path, most_bytes=20_000)
    with capture_logs() as lines:
        while any(process.is_alive() for process in both):
            for seed in range(11):
                tokens = prompt_of(40, seed)
                found = store.load(store.key(content(tokens)))
                assert found is None or (found == kv_of(40, sum(tokens))).all()
    assert [process.exitcode for process in both] == [0, 0]
    assert lines == []
    assert files(tmp_path)
    assert all(path.suffix == ".safetensors" for path in files(tmp_path))


def test_what_a_killed_process_left_unfinished_is_deleted_in_time(tmp_path: Path) -> None:
    old, young = (tmp_path / f"{digit * 64}.{'0' * 16}.part" for digit in "ab")
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    a_store(tmp_path)
    assert files(tmp_path) == [young]
