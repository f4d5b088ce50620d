"""A tenant that is deleted leaves nothing in the engine: no block, no slot of the host, no pin, no file."""

from __future__ import annotations

import random
from pathlib import Path

from engine import EngineConfig, LLMEngine
from engine.prompt_store import PromptStore
from engine.protocol import owner_tag
from engine.regions import Region
from engine.sampling_params import SamplingParams
from tests.engine.null_model import expected, null_engine
from tests.engine.test_prefix_cache import ask, prompt_of
from tests.engine.test_prompt_store import content, kv_of
from tests.engine.tiny import make_tiny

SHORT = SamplingParams(max_tokens=2, temperature=0.0)
LONG = SamplingParams(max_tokens=200, temperature=0.0)


def regions(tenant: str, length: int, public: int = 9) -> list[Region]:
    return [
        Region(public, "public"),
        Region(length - 6, f"the salt of {tenant}"),
        Region(length, f"a chat of {tenant}"),
    ]


def asked(engine: LLMEngine, tenant: str, length: int = 30, seed: int = 0) -> int:
    """Ask with a public beginning; how many tokens were cached."""
    answer, cached = ask(engine, prompt_of(length, seed), tenant=tenant, regions=regions(tenant, length), params=SHORT)
    assert answer == expected(prompt_of(length, seed), 2)
    engine.check_integrity()
    return cached


def test_nothing_of_a_forgotten_tenant_is_found_and_the_others_lose_nothing() -> None:
    engine = null_engine(num_blocks=64)
    for tenant in ("gone", "other"):  # the public beginning was computed and paid for by the one that goes
        asked(engine, tenant)
    assert engine.cache.blocks_of("gone") > 0
    assert engine.forget_tenant("gone") > 0
    engine.check_integrity()
    assert engine.cache.blocks_of("gone") == 0
    assert "gone" not in engine.pool.blocks_of
    assert "gone" not in engine.pool.owner
    assert asked(engine, "other") == 29, "the other tenant finds all of its own, the public beginning included"
    assert asked(engine, "gone") == 9, "and of the one that is gone only what is public"


def test_a_tenant_alone_takes_even_its_public_blocks_with_it() -> None:
    engine = null_engine(num_blocks=64)
    asked(engine, "gone")
    engine.forget_tenant("gone")
    assert len(engine.cache) == 0
    assert engine.pool.num_free == 64


def test_what_runs_of_it_ends_and_its_blocks_go() -> None:
    for deferred in (False, True):
        engine = null_engine(num_blocks=64, deferred=deferred)
        for name in ("gone", "other"):
            engine.add_request(name, prompt_of(30), LONG, tenant=name, regions=regions(name, 30))
        outputs = [output for _ in range(12) for output in engine.step()]
        assert {output.request_id for output in outputs} == {"gone", "other"}
        engine.forget_tenant("gone")
        engine.check_integrity()
        assert "gone" not in engine.pool.owner
        ended = [output for output in engine.step() if output.request_id == "gone"]
        assert [output.finish_reason for output in ended] == ["abort"]
        text = [token for output in outputs if output.request_id == "other" for token in output.new_token_ids]
        while engine.has_work():
            text += [
                token for output in engine.step() for token in output.new_token_ids if output.request_id == "other"
            ]
            engine.check_integrity()
        assert len(text) >= 150
        assert "gone" not in engine.pool.owner


def test_its_blocks_on_the_host_go_as_well() -> None:
    engine = null_engine(num_blocks=16, host_kv_memory_bytes=64)
    asked(engine, "gone")
    ask(engine, prompt_of(58, 1), tenant="flood")
    host = engine.cache.host
    assert host is not None
    assert any(host.owner(slot) == "gone" for slot in range(16, 16 + host.size) if slot in host._owner)
    engine.forget_tenant("gone")
    engine.check_integrity()
    assert "gone" not in host._owner.values()
    assert asked(engine, "gone") == 0


def test_forgetting_at_any_moment_keeps_the_books() -> None:
    """Many tenants, a small pool with a host tier, and one of them is forgotten now and then, while things run."""
    for seed in range(20):
        rng = random.Random(seed)
        engine = null_engine(num_blocks=24, host_kv_memory_bytes=16, deferred=bool(seed % 2))
        for step in range(60):
            tenant = rng.choice("abcd")
            if rng.random() < 0.5:
                length = rng.randrange(16, 40)
                engine.add_request(
                    f"{step}",
                    prompt_of(length, rng.randrange(3)),
                    SHORT,
                    tenant=tenant,
                    regions=regions(tenant, length),
                )
            if rng.random() < 0.15:
                engine.forget_tenant(tenant)
                engine.check_integrity()
                assert engine.cache.blocks_of(tenant) == 0
                assert tenant not in engine.pool.owner
            engine.step()
            engine.check_integrity()


def test_a_pinned_prompt_and_its_file_go_and_another_tenants_stay(tmp_path: Path) -> None:
    model = make_tiny(tmp_path / "model", head_dim=32)
    config = EngineConfig(
        model=str(model), dtype="float32", device="cpu", num_blocks=64, prompt_store=str(tmp_path / "prompts")
    )
    engine = LLMEngine(config)
    for tenant in ("gone", "other"):
        engine.prompts.warm(tenant, prompt_of(40), regions(tenant, 40), tenant=tenant)
        while engine.has_work():
            engine.step()
    store = engine.prompts.store
    assert store is not None
    store.flush()
    assert {path.name[:24] for path in store.folder.iterdir()} == {owner_tag("gone"), owner_tag("other")}
    assert engine.pool.num_pinned
    engine.forget_tenant("gone")
    engine.check_integrity()
    assert {path.name[:24] for path in store.folder.iterdir()} == {owner_tag("other")}
    assert engine.prompts.stored(prompt_of(40), regions("other", 40), tenant="other") is not None
    assert engine.prompts.stored(prompt_of(40), regions("gone", 40), tenant="gone") is None
    assert {engine.pool.owner[block] for block in engine.pool.pinned()} == {"other"}


def test_a_store_writes_nothing_more_of_whom_it_has_forgotten(tmp_path: Path) -> None:
    store = PromptStore(tmp_path, revision="r", layout="l", block_size=4, block_bytes=32, most_bytes=1 << 20)
    key = store.key(content([1, 2, 3, 4, 5]), "gone")
    (tmp_path / f"{key.name}.{'0' * 16}.part").write_bytes(b"half of it")
    assert store.save(key, kv_of(5))
    store.forget("gone")
    assert list(tmp_path.iterdir()) == []
    assert not store.wants(key)
    assert not store.save(key, kv_of(5))
    assert store.load(key) is None


def test_files_that_do_not_say_whose_they_are_are_deleted_as_a_store_opens(tmp_path: Path) -> None:
    old = tmp_path / f"{'a' * 64}.safetensors"
    head = b'{"__metadata__":{"format":"octavo.prompt/1","revision":"r"}}'
    old.write_bytes(len(head).to_bytes(8, "little") + head + b"kv")
    PromptStore(tmp_path, revision="r", layout="l", block_size=4, block_bytes=32, most_bytes=1 << 20)
    assert not old.exists()
