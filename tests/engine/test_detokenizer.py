"""Text comes out whole: no half characters, no lost or doubled ones, no stop strings, whatever the tokens' edges."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from engine.detokenizer import Detokenizer, StopSearch, TokenizerVocabulary
from engine.tokenizer import Tokenizer as ModelTokenizer

TEXTS = [
    "삼겹살 두 개 주세요",
    "👋🏽 hi 👨‍👩‍👧 family",
    "é à ñ, Z̷̰a̷l̷g̷o̷ text",
    "naïve café — “quotes” …",
    "中文、日本語、한국어 mixed",
    "\t tabs\n\nnew lines   spaces ",
    "def f(x):\n    return x ** 2  # комментарий",
    " leading space",
    "\u202bשלמ\u202c ไทย हिन्दी",
]


class Bytes:
    """A vocabulary of the 256 bytes and of any texts behind them."""

    strips_first_space = False

    def __init__(self, *texts: str) -> None:
        self._tokens = [bytes([byte]) for byte in range(256)] + [text.encode() for text in texts]

    def token_bytes(self, token_id: int) -> bytes:
        return self._tokens[token_id]


def deltas(detokenizer: Detokenizer, token_ids: list[int]) -> tuple[list[str], bool]:
    out = []
    for token_id in token_ids:
        text, stopped = detokenizer.push(token_id)
        out.append(text)
        if stopped:
            return out, True
    out.append(detokenizer.finish())
    return out, False


@pytest.fixture(scope="module")
def smollm(model_path: str) -> ModelTokenizer:
    return ModelTokenizer.load(model_path)


@pytest.fixture(scope="module")
def vocabulary(smollm: ModelTokenizer) -> TokenizerVocabulary:
    return TokenizerVocabulary(smollm.backend)


# --- no half characters ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_deltas_join_to_the_decoded_text_without_half_characters(
    smollm: ModelTokenizer, vocabulary: TokenizerVocabulary, text: str
) -> None:
    """C19, with the real tokenizer, on the incremental path."""
    token_ids = smollm.encode(text)
    parts, _ = deltas(Detokenizer(vocabulary), token_ids)
    assert "".join(parts) == smollm.decode(token_ids) == text
    assert not any("\ufffd" in part for part in parts)


def test_any_token_ids_give_what_decoding_them_at_once_gives(
    smollm: ModelTokenizer, vocabulary: TokenizerVocabulary
) -> None:
    """C20: random ids of the real vocabulary, invalid bytes among them, never raise; nor do ids beyond it."""
    size = smollm.backend.get_vocab_size()
    rng = random.Random(0)
    odd = [i for i in range(size) if any(b >= 0x80 for b in vocabulary.token_bytes(i))]
    for _ in range(300):
        token_ids = [rng.choice(odd) if rng.random() < 0.6 else rng.randrange(size) for _ in range(40)]
        parts, _ = deltas(Detokenizer(vocabulary), token_ids)
        assert "".join(parts) == smollm.decode(token_ids)
    assert deltas(Detokenizer(vocabulary), [size + 5, 10**9])[0] == ["", "", ""]


@given(st.text(max_size=60), st.randoms())
@settings(max_examples=200, deadline=None)
def test_bytes_in_any_cut_give_the_text(text: str, rng: random.Random) -> None:
    data = text.encode("utf-8", "replace")
    parts, _ = deltas(Detokenizer(Bytes()), list(data))
    assert "".join(parts) == data.decode()
    assert "\ufffd" not in "".join(parts) or "\ufffd" in text


def test_half_a_character_at_the_end_is_shown_as_what_it_is() -> None:
    token_ids = list("삼".encode()[:2])
    parts, _ = deltas(Detokenizer(Bytes()), token_ids)
    assert parts == ["", "", "\ufffd"]


def test_special_tokens_are_no_text(smollm: ModelTokenizer, vocabulary: TokenizerVocabulary) -> None:
    end = smollm.eos_token_ids[0]
    parts, _ = deltas(Detokenizer(vocabulary), [*smollm.encode("a"), end, *smollm.encode("b")])
    assert "".join(parts) == "ab"


# --- sentencepiece --------------------------------------------------------------------------------------------------


def sentencepiece_like(*, strip: bool) -> Tokenizer:
    """A tokenizer with the decoder of Llama 2 and Gemma: U+2581 for spaces, <0xNN> for bytes."""
    words = ["<unk>", "▁", "▁Hello", "▁world", "ing", "▁a▁b", "!"]
    vocab = [(word, 0.0) for word in words] + [(f"<0x{byte:02X}>", 0.0) for byte in range(256)]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return tokenizer


@pytest.mark.parametrize("strip", [True, False])
def test_sentencepiece_spaces_and_bytes_join_to_the_decoded_text(strip: bool) -> None:
    tokenizer = sentencepiece_like(strip=strip)
    vocabulary = TokenizerVocabulary(tokenizer)
    assert vocabulary.strips_first_space is strip
    emoji = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "👋🏽".encode()]
    for token_ids in ([2, 3, 6], [1, 2, 3], [5, *emoji, 4], [*emoji, 1, 1], [263, 2, 263, 3], [1], []):
        parts, _ = deltas(Detokenizer(vocabulary), token_ids)
        assert "".join(parts) == tokenizer.decode(token_ids)


@pytest.mark.parametrize("strip", [True, False])
def test_random_byte_fallback_tokens_never_raise(strip: bool) -> None:
    """C20. The library gives up a whole run of bytes for one bad one; here only broken characters are lost."""
    tokenizer = sentencepiece_like(strip=strip)
    vocabulary = TokenizerVocabulary(tokenizer)
    rng = random.Random(1)
    for _ in range(300):
        token_ids = [rng.randrange(264) for _ in range(30)]
        parts, _ = deltas(Detokenizer(vocabulary), token_ids)
        data = b"".join(vocabulary.token_bytes(token) for token in token_ids)
        assert "".join(parts) == (data.removeprefix(b" ") if strip else data).decode("utf-8", "replace")


def test_a_decoder_that_cannot_work_token_by_token_is_refused() -> None:
    tokenizer = Tokenizer(models.WordPiece({"a": 0}, unk_token="a"))
    tokenizer.decoder = decoders.CTC()
    with pytest.raises(ValueError, match="CTC"):
        TokenizerVocabulary(tokenizer)


# --- stop strings ---------------------------------------------------------------------------------------------------


def stopped_text(text: str, stops: list[str]) -> tuple[str, bool]:
    """The rule in its simplest form: the first stop to be complete wins, the longest of those that end together."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


def feed_in_pieces(search: StopSearch, pieces: list[str]) -> tuple[list[str], bool]:
    out = []
    for piece in pieces:
        shown, stopped = search.feed(piece)
        out.append(shown)
        if stopped:
            return out, True
    return [*out, search.flush()], False


@pytest.mark.parametrize(
    ("stops", "pieces", "shown"),
    [
        (["DEFGHIJ"], list("ABCDEFGHIJKLMN"), "ABC"),
        (["own fox"], ["The quick br", "own", " fox jumps"], "The quick br"),
        (["lo wo"], ["hello world"], "hel"),
        (["aab"], list("aaab"), "a"),
        (["abc", "bcd"], list("xabcd"), "x"),
        (["c", "abc"], list("abc"), ""),
        (["\n\nUser:"], ["Fine.\n", "\nUs", "er", ": hi"], "Fine."),
        (["ábc"], ["xá", "b", "c"], "x"),
    ],
)
def test_a_stop_string_ends_the_text_before_it(stops: list[str], pieces: list[str], shown: str) -> None:
    """C21."""
    out, stopped = feed_in_pieces(StopSearch(stops), pieces)
    assert stopped
    assert "".join(out) == shown


def test_a_stops_prefix_at_the_very_end_is_flushed() -> None:
    """C21."""
    out, stopped = feed_in_pieces(StopSearch(["DEFG"]), list("ABCDEF"))
    assert not stopped
    assert out == ["A", "B", "C", "", "", "", "DEF"]


def test_what_turns_out_to_be_no_stop_is_shown_at_once() -> None:
    out, _ = feed_in_pieces(StopSearch(["abab!"]), list("xababab?"))
    assert out == ["x", "", "", "", "", "ab", "", "abab?", ""]


@given(
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=4), max_size=12),
)
@settings(max_examples=400, deadline=None)
def test_stop_search_does_not_depend_on_the_pieces_and_holds_back_only_true_prefixes(
    stops: list[str], pieces: list[str]
) -> None:
    search = StopSearch(stops)
    seen = shown = ""
    for piece in pieces:
        seen += piece
        out, stopped = search.feed(piece)
        shown += out
        wanted, must_stop = stopped_text(seen, stops)
        assert stopped == must_stop
        if stopped:
            assert shown == wanted
            return
        held = seen[len(shown) :]
        prefixes = [s[:n] for s in stops for n in range(len(s)) if seen.endswith(s[:n])]
        assert held == max(prefixes, key=len)
    assert shown + search.flush() == seen


def test_a_stop_string_may_come_out_of_half_characters() -> None:
    detokenizer = Detokenizer(Bytes(), ["살!"])
    parts, stopped = deltas(detokenizer, list("삼겹살!?".encode()))
    assert stopped
    assert "".join(parts) == "삼겹"


def test_a_stop_string_counts_only_from_min_tokens_on() -> None:
    parts, stopped = deltas(Detokenizer(Bytes(), ["b"], min_tokens=3), list(b"abababa"))
    assert stopped
    assert "".join(parts) == "aba"
    parts, stopped = deltas(Detokenizer(Bytes(), ["b"], min_tokens=2), list(b"abababa"))
    assert stopped
    assert "".join(parts) == "a"


def test_work_per_token_does_not_grow_with_the_text() -> None:
    """Counted in characters looked at, not in seconds: a stop that nearly matches all the time."""
    search = StopSearch(["a" * 300 + "b"])
    for _ in range(3000):
        search.feed("aaaa")
    assert len(search._held) == 300
