"""Drafts against texts whose continuation is known: what is proposed, what it wins, and when nothing is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafts import INDEX_AT_ONCE, LONGEST, MAX_DRAFTS, RETRY_AFTER, SHORTEST, Drafter, DraftPolicy, NgramIndex

BASE_S, DECODE_S, PREFILL_S = 0.004, 0.001, 0.0004


def step_s(prefill: int, decodes: int) -> float:
    return BASE_S + DECODE_S * decodes + PREFILL_S * prefill


def noise(count: int, seed: int = 0, vocabulary: int = 40_000) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(vocabulary) for _ in range(count)]


def answer(prompt: list[int], output: list[int], decodes: int = 1, drafter: Drafter | None = None) -> tuple[float, int]:
    """A model that says `output`, with drafts: (its tokens a second over those without drafts, drafts checked)."""
    drafter, policy = drafter or Drafter(), DraftPolicy(step_s)
    tokens, seconds, checked = list(prompt), 0.0, 0
    while len(tokens) < len(prompt) + len(output):
        left = output[len(tokens) - len(prompt) :]
        drafts = drafter.propose(tokens, policy.least_chance(decodes), len(left) - 1)
        right = 0
        while right < len(drafts) and drafts[right] == left[right]:
            right += 1
        drafter.verdict(len(drafts), right)
        tokens += left[: right + 1]
        checked += len(drafts)
        # This sequence's share of a batch in which all fare alike.
        seconds += step_s(len(drafts) * decodes, decodes)
    return len(output) * step_s(0, decodes) / seconds, checked


def looked_up(tokens: list[int]) -> tuple[int, int]:
    """The definition, by search: where the longest tail of 4 .. 2 tokens last stood, with something behind it."""
    for size in range(min(LONGEST, len(tokens)), SHORTEST - 1, -1):
        tail = tokens[-size:]
        for position in range(len(tokens) - 1, size - 1, -1):
            if tokens[position - size : position] == tail:
                return position, size
    return 0, 0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 7))
def test_the_index_finds_what_a_search_through_the_text_finds(tokens: list[int], at_once: int) -> None:
    index = NgramIndex()
    for length in range(0, len(tokens) + 1, at_once):
        seen = tokens[:length]
        index.extend(seen)
        assert index.find(seen) == looked_up(seen)


def test_a_draft_is_what_followed_the_last_occurrence_of_the_longest_tail() -> None:
    #        1 2 3 is followed by 4, then by 5; the longer tail 9 1 2 3 was followed by 4
    tokens = [9, 1, 2, 3, 4, 4, 8, 1, 2, 3, 5, 5, 9, 1, 2, 3]
    assert Drafter().propose(tokens, least=0.5) == [4]
    assert Drafter().propose([*tokens[:-4], 1, 2, 3], least=0.5) == [5]


def test_what_repeats_itself_is_drafted_beyond_the_end_of_the_text() -> None:
    assert Drafter().propose([7, 8, 9] * 4, least=0.01) == [7, 8, 9, 7, 8, 9, 7, 8]


def test_a_text_without_a_repeated_pair_gets_no_draft() -> None:
    drafter = Drafter()
    tokens = list(range(3000))
    assert [drafter.propose(tokens[:end], least=0.0) for end in range(0, 3000, 7)] == [[]] * 429


@pytest.mark.parametrize("tokens", [[], [1], [1, 1], [1, 1, 1]])
def test_the_shortest_texts_are_no_trouble(tokens: list[int]) -> None:
    assert set(Drafter().propose(tokens, least=0.1)) <= {1}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=40), st.floats(0, 1), st.integers(-1, 12), st.integers(0, 8))
def test_there_are_never_more_drafts_than_room_and_all_are_tokens_of_the_text(
    tokens: list[int], least: float, room: int, accepted: int
) -> None:
    drafter = Drafter()
    for end in range(len(tokens) + 1):
        drafts = drafter.propose(tokens[:end], least, room)
        assert len(drafts) <= max(0, min(room, MAX_DRAFTS))
        assert set(drafts) <= set(tokens[:end])
        drafter.verdict(len(drafts), min(accepted, len(drafts)))


def test_proposals_depend_on_the_tokens_and_verdicts_alone() -> None:
    prompt = noise(50, seed=3, vocabulary=6)
    runs = []
    for _ in range(2):
        drafter, run = Drafter(), []
        for end in range(10, 50):
            run.append(drafter.propose(prompt[:end], least=0.2))
            drafter.verdict(len(run[-1]), len(run[-1]) // 2)
        runs.append(run)
    assert runs[0] == runs[1]
    assert any(runs[0])


def test_an_answer_that_quotes_its_prompt_comes_at_least_twice_as_fast() -> None:
    prompt = noise(400)
    speed, _ = answer(prompt, prompt[100:300])
    assert speed > 2


def test_an_answer_that_repeats_nothing_loses_less_than_two_per_cent() -> None:
    speed, _ = answer(noise(400), noise(600, seed=1))
    assert speed > 0.98


def test_repeated_pairs_with_ever_new_continuations_lose_less_than_three_per_cent() -> None:
    """The worst text: each of its tokens has been seen after the same n-gram never before."""
    pairs = [token for third in range(600) for token in (1, 2, 1000 + third)]
    speed, checked = answer(noise(10), pairs)
    assert checked > 0
    assert speed > 0.97


def test_drafts_come_back_when_a_text_begins_to_repeat_itself() -> None:
    prompt = noise(300)
    stale = [token for third in range(300) for token in (1, 2, 1000 + third)]
    drafter = Drafter()
    answer(prompt, stale, drafter=drafter)
    assert drafter.acceptance(2) < 0.1
    quoted = prompt[:40] + [1, 2, 7] * 100
    speed, _ = answer(prompt + stale, quoted, drafter=drafter)
    assert speed > 1.5


def test_a_proposal_that_was_given_up_is_tried_again_after_a_while() -> None:
    drafter, tokens = Drafter(), [1, 2, 3, 1, 2]
    while drafts := drafter.propose(tokens, least=0.3):
        drafter.verdict(len(drafts), 0)
    withheld = 1
    while not (drafts := drafter.propose(tokens, least=0.3)):
        withheld += 1
    assert withheld == RETRY_AFTER - 1
    assert drafts == [3]
    drafter.verdict(1, 1)
    assert drafter.acceptance(2) > 0.3


def test_lookups_that_fare_badly_after_pairs_do_not_silence_those_after_four_tokens() -> None:
    drafter = Drafter()
    for _ in range(30):
        drafter.verdict(len(drafter.propose([1, 2, 3, 1, 2], least=0.05)), 0)
    assert drafter.acceptance(2) < 0.1 < drafter.acceptance(LONGEST)


def test_drafts_pay_with_few_sequences_and_not_with_many() -> None:
    policy = DraftPolicy(step_s)
    chances = [policy.least_chance(decodes) for decodes in (1, 2, 4, 8, 16, 64)]
    assert chances == sorted(chances)
    assert chances[0] < 0.15
    dense = DraftPolicy(lambda prefill, decodes: 0.001 + 0.001 * (prefill + decodes))
    assert dense.least_chance(32) == 1.0
    prompt = noise(400)
    tokens, checked = Drafter(), 0
    for end in range(300, 400):
        checked += len(tokens.propose(prompt[:end] + prompt[:4], dense.least_chance(32)))
    assert checked == 0


def test_where_nothing_is_known_of_the_machine_no_draft_pays() -> None:
    assert DraftPolicy(lambda prefill, decodes: 0.0).least_chance(4) == 1.0
    assert DraftPolicy(step_s).least_chance(0) == 1.0


def test_a_long_prompt_is_indexed_over_several_calls() -> None:
    index, prompt = NgramIndex(), noise(5 * INDEX_AT_ONCE)
    sizes = []
    for _ in range(6):
        index.extend(prompt)
        sizes.append(len(index))
    steps = [after - before for before, after in zip([0, *sizes], sizes, strict=False)]
    assert max(steps) <= INDEX_AT_ONCE * (LONGEST - SHORTEST + 1)
    assert index.find(prompt[:-1] + prompt[20:24]) == (24, 4)


def test_the_index_stays_bounded_and_keeps_the_newest() -> None:
    index, text = NgramIndex(limit=100), noise(5000)
    for end in range(0, 5001, 50):
        index.extend(text[:end])
        assert len(index) <= 2 * 100 * (LONGEST - SHORTEST + 1)
    assert index.find([*text, *text[4920:4924]]) == (4924, 4)
    assert index.find([*text, *text[1000:1004]]) == (0, 0)
