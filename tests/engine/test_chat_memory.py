"""What is said of a chat's memory is what the engine has: its table while it runs, and then what a new turn finds.

Chats are made of three regions, as the product's are: public, the tenant's prompt, the chat's own.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine import LLMEngine
from engine.chat_memory import MOST_CHATS
from engine.regions import Region
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence
from tests.engine.null_model import null_engine

SIZE = 4
PUBLIC, TEAM = 9, 22  # where these parts end: the first block of the team's own holds a part of both


def prompt(own: list[int]) -> list[int]:
    return [1 + n % 50 for n in range(TEAM)] + own


def regions(tenant: str, chat: str, length: int) -> list[Region]:
    return [Region(PUBLIC, "public"), Region(TEAM, f"salt of {tenant}"), Region(length, f"{tenant} {chat}")]


def begin(engine: LLMEngine, chat: str, own: list[int], tenant: str = "t", max_tokens: int = 6) -> str:
    tokens = prompt(own)
    name = f"{tenant}/{chat}/{engine.steps}/{random.random()}"
    engine.add_request(
        name,
        tokens,
        SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
        tenant=tenant,
        regions=regions(tenant, chat, len(tokens)),
        conversation=chat,
    )
    return name


def end(engine: LLMEngine) -> None:
    while engine.has_work():
        engine.step()


def turn(engine: LLMEngine, chat: str, own: list[int], tenant: str = "t", max_tokens: int = 6) -> None:
    begin(engine, chat, own, tenant, max_tokens)
    end(engine)


def look(engine: LLMEngine, chat: str, tenant: str = "t", name: str = "p") -> dict[str, Any]:
    return engine.chats.look(tenant, chat, name)


def cells(told: dict[str, Any]) -> list[tuple[str, int]]:
    """(kind, other chats) of each block."""
    return [(kind, chats) for kind, chats, _, _, _, blocks in told["runs"] for _ in range(blocks)]


def kinds(told: dict[str, Any]) -> list[str]:
    return [kind for kind, _ in cells(told)]


def publish(engine: LLMEngine, tenant: str = "t", name: str = "p", tokens: list[int] | None = None) -> None:
    asked = [*(tokens or prompt([]))[:TEAM], 3]
    engine.prompts.warm(name, asked, regions(tenant, "nobody", len(asked)), tenant=tenant)
    end(engine)


def test_a_running_chats_blocks_are_its_table_and_fill_token_by_token() -> None:
    engine = null_engine(num_blocks=64, block_size=SIZE)
    begin(engine, "a", [7, 8, 9], max_tokens=10)
    grown = []
    while engine.has_work():
        engine.step()
        (sequence,) = list(engine.scheduler.running) or [None]
        if sequence is None:
            break
        told = look(engine, "a")
        assert told["state"] == "answering"
        assert len(cells(told)) == len(sequence.block_table)
        assert told["tokens"] == sequence.num_computed
        assert told["length"] == sequence.num_tokens
        grown.append(told["tokens"])
    assert grown == [16, *range(25, 34)], "a prompt in two steps, then one token more with each"
    assert kinds(told)[:6] == ["platform", "platform", "team", "team", "team", "own"]


def test_the_second_turn_says_what_was_there_before_it() -> None:
    engine = null_engine(num_blocks=64, block_size=SIZE)
    turn(engine, "a", [7] * 10)
    said = list(engine.chats._chats["t", "a"].tokens[TEAM:])
    begin(engine, "a", [*said, 5, 5, 5, 5, 5])
    engine.step()
    told = look(engine, "a")
    assert told["cached"] == 22 + 15, "10 of the question, and the 5 of the answer that were computed"
    assert kinds(told) == ["platform"] * 2 + ["team"] * 3 + ["kept"] * 4 + ["own"] * 2
    end(engine)


def test_an_idle_chat_has_what_its_next_turn_finds_and_loses_its_tail_first() -> None:
    engine = null_engine(num_blocks=16, block_size=SIZE)
    turn(engine, "a", [7] * 10)
    whole = look(engine, "a")
    assert (whole["state"], whole["tokens"], whole["length"], whole["lost_at"]) == ("idle", 37, 37, 0)
    assert kinds(whole) == ["platform"] * 2 + ["team"] * 3 + ["kept"] * 5
    turn(engine, "b", [9] * 20, tenant="u")
    partly = look(engine, "a")
    assert kinds(partly).count("lost") == 10 - len(engine.cache.match_first(chain(engine, "a"), 37).entries)
    assert 0 < partly["tokens"] < 37
    assert partly["lost_at"] > 0


def test_a_new_chat_is_told_of_the_prompt_that_waits_for_it() -> None:
    engine = null_engine(num_blocks=64, block_size=SIZE)
    assert cells(look(engine, "")) == []
    publish(engine)
    told = look(engine, "")
    assert (told["state"], told["tokens"]) == ("new", TEAM)
    assert kinds(told) == ["platform"] * 2 + ["team"] * 4
    assert all(run[2] for run in told["runs"]), "it is pinned"
    assert cells(look(engine, "never heard of")) == cells(told)
    assert cells(look(engine, "", tenant="u")) == [], "and to another tenant it is not there"


def test_a_chat_whose_prompt_has_a_new_version_is_told_that_its_next_turn_finds_nothing_of_it() -> None:
    engine = null_engine(num_blocks=64, block_size=SIZE)
    publish(engine)
    turn(engine, "a", [7] * 10)
    assert not look(engine, "a")["outdated"]
    publish(engine, tokens=[*prompt([])[:PUBLIC], *[90] * 13])
    assert look(engine, "a")["outdated"]


def test_only_chats_of_the_same_tenant_are_counted_running_or_idle() -> None:
    """C1: another tenant's chats say the same words, and share the public preamble's block."""
    engine = null_engine(num_blocks=128, block_size=SIZE)
    for chat in ("a", "b", "c"):
        turn(engine, chat, [7] * 10)
    for chat in ("a", "x", "y"):
        turn(engine, chat, [7] * 10, tenant="u")
    assert cells(look(engine, "a"))[:5] == [("platform", 2)] * 2 + [("team", 2)] * 3
    assert {chats for _, chats in cells(look(engine, "a"))[5:]} == {0}, "what is a chat's own nobody shares"
    begin(engine, "d", [1])
    begin(engine, "d", [2])  # two answers of one chat are one chat
    engine.step()
    assert cells(look(engine, "a"))[:5] == [("platform", 3)] * 2 + [("team", 3)] * 3
    end(engine)
    begin(engine, "b", [7] * 10)  # an idle one runs again, and is still one
    engine.step()
    assert cells(look(engine, "a"))[0] == ("platform", 3)
    end(engine)
    assert look(engine, "a", tenant="u")["tokens"] == 37
    assert cells(look(engine, "x"))[:1] == [], "a chat of another tenant is not known, nor a prompt that it has not"


def test_a_chat_of_another_tenant_is_not_found_by_its_name() -> None:
    engine = null_engine(num_blocks=64, block_size=SIZE)
    turn(engine, "a", [7] * 10)
    assert look(engine, "a", tenant="u") == {**look(engine, "", tenant="u")}
    begin(engine, "a", [7] * 10)
    engine.step()
    assert look(engine, "a", tenant="u")["state"] == "new"
    end(engine)


def test_requests_without_a_chat_are_neither_remembered_nor_counted() -> None:
    engine = null_engine(num_blocks=64, block_size=SIZE)
    turn(engine, "a", [7] * 10)
    turn(engine, "", [8] * 10)
    assert len(engine.chats) == 1
    assert cells(look(engine, "a"))[0] == ("platform", 0)


def test_a_stopped_chat_is_remembered_as_far_as_it_came_and_one_that_never_began_is_not() -> None:
    engine = null_engine(num_blocks=64, block_size=SIZE)
    name = begin(engine, "a", [7] * 10, max_tokens=50)
    for _ in range(5):
        engine.step()
    (sequence,) = engine.scheduler.running
    computed = sequence.num_computed
    assert engine.abort(name)
    assert look(engine, "a")["tokens"] == computed
    assert engine.abort(begin(engine, "b", [7]))
    assert len(engine.chats) == 1
    end(engine)


def test_a_forgotten_tenant_leaves_no_chat() -> None:
    engine = null_engine(num_blocks=64, block_size=SIZE)
    turn(engine, "a", [7] * 10)
    turn(engine, "a", [7] * 10, tenant="u")
    engine.forget_tenant("t")
    assert list(engine.chats._chats) == [("u", "a")]
    assert engine.chats._tokens == 37
    assert look(engine, "a")["tokens"] == 0


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = null_engine(num_blocks=64, block_size=SIZE)
    monkeypatch.setattr("engine.chat_memory.MOST_TOKENS", 100)
    for chat in ("a", "b", "a", "c"):
        turn(engine, chat, [7] * 10)
    assert list(engine.chats._chats) == [("t", "a"), ("t", "c")]
    assert engine.chats._tokens == 74
    monkeypatch.setattr("engine.chat_memory.MOST_TOKENS", 10**9)
    for number in range(MOST_CHATS + 3):
        turn(engine, f"{number}", [7], max_tokens=1)
    assert len(engine.chats) == MOST_CHATS
    assert ("t", "0") not in engine.chats._chats
    assert engine.chats._tokens == sum(len(one.tokens) for one in engine.chats._chats.values())


def test_without_the_prefix_cache_only_what_runs_is_told() -> None:
    engine = null_engine(num_blocks=64, block_size=SIZE, prefix_caching=False)
    begin(engine, "a", [7] * 10)
    engine.step()
    assert look(engine, "a")["tokens"] > 0
    end(engine)
    assert look(engine, "a")["tokens"] == 0


def chain(engine: LLMEngine, chat: str, tenant: str = "t") -> Sequence:
    return engine.chats._chats[tenant, chat].sequence()


def holders(engine: LLMEngine, tenant: str, chat: str, block: int) -> int:
    """Other chats of the tenant that hold a block, the long way: by their tables, and by asking the cache for each."""
    others = set()
    for sequence in engine.scheduler.running:
        own_from = sequence.private_from // SIZE
        if sequence.tenant == tenant and block in sequence.block_table[: min(own_from, sequence.num_hashed)]:
            others.add(sequence.conversation)
    running = {s.conversation for s in engine.scheduler.running if s.tenant == tenant}
    for (owner, name), remembered in engine.chats._chats.items():
        if owner != tenant or name in running:
            continue
        match = engine.cache.match_first(remembered.sequence(), len(remembered.tokens))
        if match.tokens > TEAM and block in [entry.block for entry in match.entries[: TEAM // SIZE]]:
            others.add(name)
    return len(others - {chat, ""})


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_all_that_is_said_is_true(seed: int) -> None:
    """Turns, branches and aborts of two tenants in a pool too small for them, with and without host memory: told blocks
    are the table's, told tokens what a new turn would find, told sharers what a count the long way gives."""
    rng = random.Random(seed)
    engine = null_engine(
        num_blocks=rng.choice([30, 48, 200]), block_size=SIZE, max_num_seqs=4,
        host_kv_memory_bytes=rng.choice([None, None, 24]),
    )  # fmt: skip
    said: dict[tuple[str, str], list[int]] = {}
    live: list[str] = []
    if rng.random() < 0.7:
        publish(engine)
    for _ in range(100):
        tenant, chat = rng.choice("tu"), rng.choice("abcde")
        running = {(s.tenant, s.conversation) for s in engine.scheduler.running}
        choice = rng.random()
        if choice < 0.3 and (tenant, chat) not in running and engine.scheduler.num_waiting < 3:
            known = said.get((tenant, chat), [])
            own = known[: rng.randint(0, len(known))] + [rng.randint(1, 60) for _ in range(rng.randint(1, 9))]
            live.append(begin(engine, chat, own[-40:], tenant, rng.randint(1, 12)))
        elif choice < 0.35 and live:
            engine.abort(rng.choice(live))
        elif engine.has_work():
            engine.step()
        for sequence in engine.scheduler.running:
            if sequence.conversation:
                told = engine.chats.look(sequence.tenant, sequence.conversation, "p")
                first = next(s for s in engine.scheduler.running_of(sequence.tenant)
                             if s.conversation == sequence.conversation)  # fmt: skip
                assert (told["state"], told["tokens"]) == ("answering", first.num_computed)
                assert len(cells(told)) == len(first.block_table)
        for (owner, name), remembered in list(engine.chats._chats.items()):
            said[owner, name] = list(remembered.tokens[TEAM:])
            told = engine.chats.look(owner, name, "p")
            if told["state"] == "answering":
                continue
            tokens = [*remembered.tokens, 96]
            new_turn = Sequence("", tokens, SamplingParams(), tenant=owner, regions=regions(owner, name, len(tokens)))
            found = engine.cache.match(new_turn)
            assert told["tokens"] == min(found.tokens, len(remembered.tokens))
            assert told["length"] == len(remembered.tokens)
            listed = cells(told)
            for entry, (kind, chats) in zip(found.entries, listed, strict=False):
                assert kind != "lost"
                assert chats == holders(engine, owner, name, entry.block), (owner, name, kind)
            assert [run[3] for run in told["runs"] if run[0] != "lost"] == sorted(
                run[3] for run in told["runs"] if run[0] != "lost"
            ), "blocks of the pool, then blocks of the host"
    end(engine)
    engine.check_integrity()
