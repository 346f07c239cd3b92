"""Which word a token is of, for every kind of tokenizer, with offsets and without.

Tokenizers are built here, in memory. The oracle of word membership is what a tokenizer's own pieces spell, and a search
through spans character by character.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

import manyheads as mh
from manyheads.attention import Mask, Rule
from manyheads.errors import RecordingError, ShapeError, StatisticError, TextError, WindowError
from manyheads.recording import LayerRecord
from manyheads.recording import layer as records
from manyheads.spec import Site
from manyheads.texts import Tokens, Words
from manyheads.texts.words import HOWS, Merging, Unit, is_space, merge, readable, run_spans, word_spans
from tests.recording.passing import RECORDED, H, assert_near, make_record
from tests.refusals import refuses
from tests.texts.word_texts import (
    BYTE_KINDS,
    CAFE,
    FAMILY,
    KINDS,
    TEXTS,
    WORDS_OF,
    made_of,
    made_up,
    naive_merge,
    tokenizer,
    words_in,
)

every_kind = pytest.mark.parametrize("kind", KINDS)


def read(kind, texts, offsets=True):
    """Texts as a batch of tokens; without offsets, as a slow tokenizer leaves them."""
    encodings = [tokenizer(kind).encode(text) for text in texts]
    lengths = [len(each.ids) for each in encodings]
    ids, special = torch.full((len(texts), max(lengths)), -1), torch.zeros(len(texts), max(lengths), dtype=torch.bool)
    spans = torch.zeros(len(texts), max(lengths), 2, dtype=torch.long)
    for text, (each, length) in enumerate(zip(encodings, lengths, strict=True)):
        ids[text, :length] = torch.tensor(each.ids)
        special[text, :length] = torch.tensor(each.special_tokens_mask).bool()
        spans[text, :length] = torch.tensor(each.offsets)
    pieces = tuple(tuple(each.tokens) for each in encodings)
    return Tokens(torch.tensor(lengths), ids, pieces, special, spans if offsets else None, tuple(texts))


def tokens_of(words, text=0):
    """For each word, its tokens."""
    found = words.of_token[text].tolist()
    return [[token for token, own in enumerate(found) if own == word] for word in range(len(words.spans[text]))]


# ------------------------------------------------------------------------------------------------------ what a word is


@pytest.mark.parametrize("text", WORDS_OF, ids=ascii)
def test_words_are_those_a_reader_counts_and_runs_between_white_space_those_of_split(text):
    assert [text[begin:end] for begin, end in word_spans(text)] == WORDS_OF[text]
    runs = text.replace("\u200b", " ").split()
    assert [text[begin:end] for begin, end in run_spans(text)] == runs


LETTERS = "ab zé'’-.,1 2\t\n\u0301\u200d\ufe0f\u200b👩👧🏽🇫🇷❤नि्क我،م$_/\u00a0\u0338#⃣ﬁ…\x00"
any_text = st.lists(st.one_of(st.sampled_from(LETTERS), st.characters(exclude_categories=["Cs"])), max_size=30).map(
    "".join
)


@given(any_text)
@pytest.mark.parametrize("find", [word_spans, run_spans])
def test_spans_are_ordered_disjoint_and_hold_every_character_but_white_space(find, text):
    spans, last = find(text), 0
    for begin, end in spans:
        assert last <= begin < end <= len(text)
        assert not any(map(is_space, text[begin:end])) and all(map(is_space, text[last:begin]))
        last = end
    assert all(map(is_space, text[last:]))


# -------------------------------------------------------------------------------------------- which word a token is of


@every_kind
def test_each_token_is_of_the_word_its_first_character_lies_in(kind):
    for by in ("words", "whitespace"):
        tokens = read(kind, TEXTS)
        words = Words.of(tokens, by)
        for text, full in enumerate(TEXTS):
            for token, (begin, end) in enumerate(tokens.offsets[text].tolist()):
                at = next((at for at in range(begin, end) if not is_space(full[at])), None)
                want = [i for i, (b, e) in enumerate(words.spans[text]) if at is not None and b <= at < e]
                covered = {i for i, (b, e) in enumerate(words.spans[text]) for at in range(begin, end) if b <= at < e}
                if tokens.special[text, token] or token >= tokens.lengths[text]:
                    want, covered = [], set()
                assert words.of_token[text, token] == (want or [-1])[0]
                assert words.straddling[text, token] == bool(covered - set(want))


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_single_bytes_come_to_words_by_as_many_as_their_letters_have(text):
    """The oracle is UTF-8, not offsets: each word has its own bytes, white space has none."""
    words = Words.of(read("bytes", [text]))
    assert words_in(words) == WORDS_OF[text]
    assert [len(each) for each in tokens_of(words)] == [len(word.encode()) for word in WORDS_OF[text]]
    assert not words.straddling.any()


@pytest.mark.parametrize("kind", BYTE_KINDS)
def test_pieces_of_bytes_spell_their_words(kind):
    """The oracle is what the pieces decode to, where no token straddles two words."""
    checked = 0
    for text in TEXTS:
        tokens = read(kind, [text])
        words = Words.of(tokens)
        for word, members in zip(words_in(words), tokens_of(words), strict=True):
            if members and not words.straddling[0].any():
                checked += 1
                spelt = tokenizer_decode([tokens.pieces[0][token] for token in members])
                assert spelt.strip(" ") == word, (text, word)
    assert checked > 40


def tokenizer_decode(pieces):
    return decoders.ByteLevel().decode(pieces)


def test_wordpieces_of_an_uncased_tokenizer_are_of_the_words_as_written():
    tokens = read("wordpiece", ["The CATS didn't CAFÉ"])
    words = Words.of(tokens)
    assert words_in(words) == ["The", "CATS", "didn't", "CAFÉ"]
    spelt = ["".join(tokens.pieces[0][t].removeprefix("##") for t in members) for members in tokens_of(words)]
    assert spelt[0] == "the" and spelt[2] == "didn't"
    assert words.of_token[0, 0] == words.of_token[0, -1] == -1


def test_one_emoji_of_many_pieces_is_one_word():
    couple = "👩🏾\u200d🤝\u200d👩🏼"  # in no training text, so in many pieces
    for kind in (*BYTE_KINDS, "byte fallback"):
        words = Words.of(read(kind, [f"a {couple} b"]))
        middle = tokens_of(words)[1]
        assert words_in(words) == ["a", couple, "b"] and len(middle) > 5, kind
        assert middle == list(range(middle[0], middle[-1] + 1)), kind


@pytest.mark.parametrize("kind", ["bytes", "gpt2", "gpt2 trimmed", "unigram"])
def test_tokens_of_white_space_alone_are_of_no_word(kind):
    tokens = read(kind, ["a  \t\n b"])
    words = Words.of(tokens)
    loose = [unit for unit in words.units() if unit.word < 0 and not unit.special]
    assert loose and all(len(unit.tokens) == 1 for unit in loose)
    assert [unit.text for unit in words.units(drop="wordless")] == ["a", "b"]
    assert len(words.units(drop="special")) == len(words.units()) - 2 == len(loose) + 2


def test_a_token_over_two_words_is_of_the_first_and_special_tokens_of_none_whatever_they_cover():
    words = Words.of(made_of("of the dog", [(0, 6), (6, 8), (8, 10)]))
    assert words.of_token.tolist() == [[0, 2, 2]]
    assert words.straddling.tolist() == [[True, False, False]]
    assert words.because.endswith("; tokens that straddle words: 1")
    assert [unit.text for unit in words.units()] == ["of", "dog"]  # "the" has no token that begins in it
    assert "straddle" not in Words.of(made_of("of the", [(0, 2), (2, 6)])).because
    tokens = replace(made_of("a bc", [(0, 1), (0, 4), (2, 4)]), special=torch.tensor([[False, True, False]]))
    words = Words.of(tokens)
    assert words.of_token.tolist() == [[0, -1, 1]] and not words.straddling.any()
    unread = replace(made_of("a bc", [(0, 0), (0, 4), (0, 0)]), special=tokens.special, pieces=(("Ġa", "</s>", "Ġb"),))
    assert "marks of pieces" in Words.of(unread).because  # an end token's span alone is no sign of offsets


def test_the_words_of_one_text_are_those_of_the_batch():
    words = Words.of(read("gpt2", TEXTS))
    for text in (0, 3, -1):
        alone = words.text(text)
        assert alone.units() == words.units(text) and words_in(alone) == words_in(words, text)
        assert len(alone.of_token) == 1 and alone.texts == (TEXTS[text],)


def test_given_spans_are_the_words():
    tokens = made_of("I can't go to New York.", [(0, 1), (1, 5), (5, 7), (7, 10), (10, 13), (13, 17), (17, 23)])
    treebank = [
        (0, 1),
        (2, 4),
        (4, 7),
        (8, 10),
        (14, 22),
    ]  # "ca" and "n't"; "to" and "." are left out, "New York" is one word
    words = Words.of(tokens, [treebank])
    assert words_in(words) == ["I", "ca", "n't", "go", "New York"]
    assert words.of_token.tolist() == [[0, 1, 2, 3, -1, 4, 4]]
    assert words.straddling[0].tolist() == [False, True, False, False, False, False, False]
    assert words.because.startswith("words by given spans, from the tokenizer's offsets")


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(any_text.filter(str.strip), min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
def test_any_text_of_any_tokenizer_comes_to_words(kind, texts):
    tokens = read(kind, texts)
    words = Words.of(tokens)
    for text, full in enumerate(texts):
        units = words.units(text)
        assert sorted(t for unit in units for t in unit.tokens) == list(range(int(tokens.lengths[text])))
        assert len({unit.word for unit in units if unit.word >= 0}) == sum(unit.word >= 0 for unit in units)
        owner = [next((i for i, (b, e) in enumerate(words.spans[text]) if b <= at < e), -1) for at in range(len(full))]
        covered = set()
        for token in range(int(tokens.lengths[text])):
            begin, end = tokens.offsets[text, token].tolist()
            visible = [at for at in range(begin, end) if not is_space(full[at])]
            assert (words.of_token[text, token] >= 0) == (bool(visible) and not bool(tokens.special[text, token]))
            if words.of_token[text, token] >= 0:
                covered |= {at for at in visible if owner[at] == words.of_token[text, token]}
                covered |= {at for at in visible if words.straddling[text, token]}
        if kind in BYTE_KINDS:  # these drop no character
            assert covered == {at for at, char in enumerate(full) if not is_space(char)}


# ------------------------------------------------------------------------------------------------------ without offsets


@pytest.mark.parametrize("kind", [*BYTE_KINDS, "byte fallback"])
def test_without_offsets_pieces_of_bytes_give_the_same_words(kind):
    """The words that offsets give, from marks alone."""
    for text in TEXTS:
        exact, rebuilt = Words.of(read(kind, [f"the the {text}"])), Words.of(read(kind, [f"the the {text}"], False))
        assert words_in(rebuilt) == words_in(exact)
        assert torch.equal(rebuilt.of_token, exact.of_token)
        assert "the marks of pieces, as their offsets are not known" in rebuilt.because
        assert "the tokenizer's offsets" in exact.because


MARKED = {
    "▁ before a word": (["▁The", "▁cat", "s", "▁did", "n", "'", "t", ".", "▁"], [0, 1, 1, 2, 2, 2, 2, 3, -1]),
    "Ġ for a space": (["The", "Ġcat", "s", "Ċ", "Ġdi", "dn", "'t", "Ã", "©", "Ġ."], [0, 1, 1, -1, 2, 2, 2, 2, 2, 3]),
    "</w> after a word": (["the</w>", "ca", "ts</w>", ".</w>"], [0, 1, 1, 2]),
    "## inside a word": (["the", "cat", "##s", "did", "##n", "'", "t", "##", "."], [0, 1, 1, 2, 2, 3, 4, 5, 7]),
    "one byte a piece": ([*"ab", " ", *"c.", *map(chr, "é".encode())], [0, 0, -1, 1, 2, 3, 3]),
    "none found: each piece apart": (["the", "cat", "sat."], [0, 1, 2]),
}


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.parametrize("offsets", [None, torch.zeros(1, 20, 2, dtype=torch.long)], ids=["no offsets", "zeros"])
def test_marks_say_which_pieces_are_of_a_word(name, offsets):
    pieces, want = MARKED[name]
    pieces, special = ["<s>", *pieces], torch.zeros(1, len(pieces) + 1, dtype=torch.bool)
    special[0, 0] = True
    ids = torch.zeros_like(special, dtype=torch.long)
    offsets = None if offsets is None else offsets[:, : len(pieces)]
    tokens = Tokens(torch.tensor([len(pieces)]), ids, (tuple(pieces),), special, offsets, ("not looked at",))
    words = Words.of(tokens)
    assert f"their offsets are not known ({name})" in words.because
    astride = [piece for piece, one in zip(pieces, words.straddling[0].tolist(), strict=True) if one]
    assert astride == [piece for piece in pieces if piece in ("##", "sat.")]  # a bare ## is two marks of the text
    assert words.of_token[0].tolist() == [-1, *want]


def test_stray_bytes_and_special_tokens_without_offsets_part_words_and_are_kept():
    pieces, special = ("Ċ", "the", "</s>", "cat"), torch.tensor([[False, False, True, False]])
    words = Words.of(Tokens(torch.tensor([4]), torch.zeros(1, 4, dtype=torch.long), (pieces,), special))
    assert words.texts == ("\nthe cat",)
    assert words.of_token.tolist() == [[-1, 0, -1, 1]]
    assert words.units()[2] == Unit("</s>", (4, 4), (2,), -1, True)
    pieces = ("Ġa", "ðŁ", "b")
    tokens = Tokens(
        torch.tensor([3]), torch.zeros(1, 3, dtype=torch.long), (pieces,), torch.zeros(1, 3, dtype=torch.bool)
    )
    words = Words.of(tokens)
    assert words.texts == (" a\ufffd\ufffdb",)
    assert words.of_token.tolist() == [[0, 1, 3]]


# --------------------------------------------------------------------------------------------------------------- limits


def test_what_is_no_word_is_said():
    tokens = made_up((13, 7))
    message = r"by='lines' is not a way to find words: use one of words, whitespace, or give spans"
    refuses(TextError, message, Words.of, tokens, "lines")
    refuses(TextError, r"spans of 1 texts were given for 2: give each text a list\.", Words.of, tokens, [[(0, 1)]])
    for spans in ([(0, 2), (1, 3)], [(3, 4), (0, 1)], [(2, 2)], [(0, 99)], [(-1, 2)]):
        message = r"of text 1 does not fit: spans are \(begin, end\) of characters, in order"
        refuses(TextError, message, Words.of, tokens, [[(0, 1)], spans])
    with pytest.raises(
        TextError, match="spans were given, but this recording has no character offsets to match them with"
    ):
        Words.of(replace(tokens, offsets=None), [[(0, 1)], [(0, 1)]])


# ------------------------------------------------------------------------------------------ tokens as people read them


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["Ġthe", "Ċ", "ĊĠĠ", "ĉ", "Ġ", "ðŁ", "Ļ", "Ã©", "ĠĠĠĠĠĠ"],
         ["the", "↵", "↵␣␣", "⇥", "␣", "\\xf0\\x9f", "\\x99", "é", "␣×6"]),
        (["▁the", "▁", "cat", "<0x0A>", "<0xF0>"], ["the", "␣", "cat", "↵", "\\xf0"]),
        (["play", "##ing", "##"], ["play", "ing", "##"]),
        (["cat</w>", "s</w>"], ["cat", "s"]),
    ],
)  # fmt: skip
def test_pieces_without_offsets_are_read_by_their_marks(pieces, expected):
    tokens = Tokens(torch.tensor([len(pieces) + 1]), pieces=(("[CLS]", *pieces),),
                    special=torch.tensor([[True] + [False] * len(pieces)]))  # fmt: skip
    assert readable(tokens) == ("[CLS]", *expected)


def test_with_offsets_a_token_is_what_stands_in_the_text(minilm):
    assert readable(mh.record(minilm, "Ein Café,\tplaying").tokens)[:4] == ("[CLS]", "Ein", "Café", ",")
    tokens = mh.record(mh.load("tiny-code"), "def f():\n\treturn 'é'\n").tokens
    assert readable(tokens) == ("<|begin|>", "def", "f", "():", "↵", "⇥", "return", "'", "é", "é", "'", "↵")


# ===================================================================================================== weights of words
# Pieces merge to words exactly, and so do maps of a recording: the oracle is a double loop over the map of pieces.

# ------------------------------------------------------------------------------------------------------------- merging

CHECK = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.25] * 4, [0.4, 0.3, 0.2, 0.1], [0.7, 0.1, 0.1, 0.1]])
CHECKED = {"first": (0.25, 0.5, 0.25), "mean": (0.325, 0.5, 0.175), "max": (0.3478, 0.4348, 0.2174)}


@pytest.mark.parametrize("how", HOWS)
def test_the_check_vector_of_clark_et_al(how):
    numbers = torch.tensor([0, 1, 1, 2])
    got = merge(CHECK, numbers, numbers, how)
    assert_near(got[1], CHECKED[how], atol=5e-5)
    assert_near(got[0], (0.1, 0.5, 0.4), atol=1e-6)
    assert_near(got[2], (0.7, 0.2, 0.1), atol=1e-6)


def test_the_mean_is_the_default():
    numbers = torch.tensor([0, 1, 1, 2])
    assert torch.equal(merge(CHECK, numbers, numbers), merge(CHECK, numbers, numbers, "mean"))


def groups(numbers):
    return [np.flatnonzero(np.asarray(numbers) == word) for word in range(max(numbers) + 1)]


@pytest.mark.parametrize("how", HOWS)
def test_merging_is_the_double_loop(rng, how):
    """Rows of any mass, words of scattered pieces, pieces of none: as a batch of heads and alone, in blocks or not."""
    for _ in range(5):
        weights = rng.random((3, 11, 7)) * (rng.random((3, 11, 7)) < 0.7)
        weights[:, 4] = 0  # a row that sees nothing
        rows = [*rng.permutation([0, 1, 2, 3]), *rng.integers(-1, 4, 7)]
        columns = [*rng.permutation([0, 1, 2]), *rng.integers(-1, 3, 4)]
        want = np.stack([naive_merge(each, groups(rows), groups(columns), how) for each in weights])
        numbers = torch.tensor(rows), torch.tensor(columns)
        assert_near(merge(torch.from_numpy(weights), *numbers, how), want, atol=1e-12)
        assert_near(merge(torch.from_numpy(weights)[1], *numbers, how), want[1], atol=1e-12)
        blocks = Merging(*numbers, how)
        for begin in range(0, 11, 2):
            blocks.add(torch.from_numpy(weights)[:, begin : begin + 2], begin)
        assert_near(blocks.weights, want, atol=1e-12)


@pytest.mark.parametrize("how", HOWS)
def test_rows_that_sum_to_one_still_do_and_those_that_see_nothing_stay_zero(rng, how):
    weights = torch.from_numpy(rng.random((3, 9, 9)) ** 4)
    weights /= weights.sum(-1, keepdim=True)
    numbers = torch.tensor([0, 1, 1, 1, 2, 3, 3, 4, 4])
    got = merge(weights, numbers, numbers, how)
    assert_near(got.sum(-1), torch.ones(3, 5), atol=1e-12)
    assert (got - merge(weights, numbers, numbers, HOWS[HOWS.index(how) - 1])).abs().max() > 0.01  # the ways differ
    numbers = torch.tensor([0, 0, 1])
    assert torch.equal(merge(torch.zeros(3, 3), numbers, numbers, how), torch.zeros(2, 2))


def test_half_precision_is_merged_in_float32():
    numbers = torch.zeros(2048, dtype=torch.long)
    weights = torch.full((2048, 2048), 1 / 2048).bfloat16()
    got = merge(weights, numbers, numbers)
    assert got.dtype == torch.float32
    assert_near(got, [[1.0]])


# --------------------------------------------------------------------------------------------------------------- limits


def test_numbers_that_do_not_fit_the_weights_are_refused():
    two = torch.tensor([0, 1])
    with pytest.raises(ShapeError, match="to_words numbers 2 pieces, but the weights have 3 there: give one each"):
        merge(torch.ones(2, 3), two, two)
    with pytest.raises(ShapeError, match=r"from_words must number words 0, 1, 2 .* without a gap .*, not \[0, 2\]"):
        merge(torch.ones(2, 2), torch.tensor([0, 2]), two)
    refuses(ShapeError, r"to_words must number .* not \[-2, 0\]", merge, torch.ones(2, 2), two, torch.tensor([0, -2]))


# ------------------------------------------------------------------------------------------------- words of a recording


def members(units):
    return [list(unit.tokens) for unit in units]


def assert_word_map(got, full, rows, columns, how, every=None):
    """A WordMap against the double loop over a whole map [h, q, k]. `every`: all the keys' units, for the maximum."""
    assert got.queries == tuple(rows) and got.keys == tuple(columns)
    every = list(every or columns)
    where = [every.index(unit) for unit in columns]
    want = np.stack([naive_merge(each.numpy(), members(rows), members(every), how)[:, where] for each in full])
    assert_near(got.weights, want)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("option", ["plain", "sinks"])
def test_word_weights_are_the_merged_map_of_each_text(rng, how, option):
    case, tokens = make_record(rng, "causal", option, RECORDED), made_up(RECORDED)
    layer, words = replace(case.layer, tokens=tokens), Words.of(tokens)
    for text, full in case.each():
        units = words.units(text)
        assert text == 3 or len(units) < len(full[0])
        assert_word_map(layer.word_weights(text=text, how=how), full, units, units, how)
        one = layer.word_weights(4, text, how, words)
        assert_near(one.weights, layer.word_weights(text=text, how=how).weights[4])
        assert_near(one.weights.sum(-1)[0], full[4].sum(-1)[0])


@pytest.mark.thinned
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("drop", ["none", "special", "wordless"])
def test_a_window_of_words_is_the_map_of_words_there(rng, how, drop, monkeypatch):
    case, tokens = make_record(rng, "bidirectional", lengths=(13, 29)), made_up((13, 29))
    layer, words = replace(case.layer, tokens=tokens), Words.of(tokens)
    monkeypatch.setattr(records, "WORD_BLOCK_CELLS", int(rng.choice([1, 400, 1 << 22])))
    for text, full in case.each():
        units, every = words.units(text, drop), words.units(text)
        for _ in range(6):
            rows, keys = (slice(*sorted(rng.integers(0, len(units) + 2, 2).tolist())) for _ in range(2))
            got = layer.word_weights(text=text, how=how, queries=rows, keys=keys, drop=drop)
            assert_word_map(got, full, units[rows], units[keys], how, every)


def test_what_is_dropped_leaves_the_other_weights_as_they_are(rng):
    case, tokens = make_record(rng, "causal", lengths=(13,)), made_up((13,))
    layer = replace(case.layer, tokens=tokens)
    for how in HOWS:
        whole, bare = layer.word_weights(how=how), layer.word_weights(how=how, drop="special")
        assert [unit.special for unit in whole.queries].count(True) == 2 and not any(u.special for u in bare.queries)
        assert_near(bare.weights, whole.weights[:, 1:-1, 1:-1], atol=1e-12)
        assert_near(whole.weights.sum(-1), torch.ones(H, len(whole.queries)))


def test_blocks_of_pieces_stay_small_however_many_pieces_there_are(rng, monkeypatch):
    case, tokens = make_record(rng, "causal", lengths=(29,)), made_up((29,))
    layer, asked, weights = replace(case.layer, tokens=tokens), [], LayerRecord.weights
    want = {how: layer.word_weights(how=how).weights for how in HOWS}

    def watched(self, *args, **kwargs):
        asked.append(weights(self, *args, **kwargs))
        return asked[-1]

    monkeypatch.setattr(LayerRecord, "weights", watched)
    monkeypatch.setattr(records, "WORD_BLOCK_CELLS", 3 * H * 29)
    for how in HOWS:
        assert_near(layer.word_weights(how=how).weights, want[how], atol=1e-6)
    assert max(block.numel() for block in asked) == 3 * H * 29
    asked.clear()
    layer.word_weights(queries=slice(2, 4), keys=slice(3, 5))
    assert sum(block.numel() for block in asked) < H * 29 * 29 / 3  # a window of pieces, no more


@pytest.mark.parametrize("how", HOWS)
def test_cross_attention_takes_the_words_of_the_text_it_looks_at(rng, how):
    seen = (19, 6, 11, 4)
    case = make_record(rng, "bidirectional", keys=seen)
    own, others = made_up(RECORDED), made_up(seen, seed=1)
    layer, key_words = replace(case.layer, tokens=own), Words.of(others)
    for text, full in case.each():
        got = layer.word_weights(text=text, how=how, key_words=key_words)
        assert_word_map(got, full, Words.of(own).units(text), key_words.units(text), how)


def test_words_of_another_way_or_given_are_used(rng):
    tokens = made_of("it's a-b c.", [(0, 2), (2, 4), (5, 6), (6, 8), (9, 10), (10, 11)])
    layer = replace(make_record(rng, "causal", lengths=(6,)).layer, tokens=tokens)
    assert [unit.text for unit in layer.word_weights().queries] == ["it's", "a-b", "c", "."]
    assert [unit.text for unit in layer.word_weights(words="whitespace").queries] == ["it's", "a-b", "c."]
    given = Words.of(tokens, [[(0, 2), (2, 4), (5, 8), (9, 11)]])
    assert layer.word_weights(words=given).queries[0] == Unit("it", (0, 2), (0,), 0, False)


@pytest.mark.parametrize("how", HOWS)
def test_the_bundled_models_words(minilm, how):
    """Against the double loop over its own pieces; special tokens stay, so rows sum to one."""
    texts = ["The caterpillar didn't cross the motorway.", f"Hi {FAMILY} {CAFE}: 我爱你 https://a.b/c", "ok"]
    rec = mh.record(minilm, texts)
    words = Words.of(rec.tokens)
    assert words_in(words, 0) == ["The", "caterpillar", "didn't", "cross", "the", "motorway", "."]
    assert [unit.text for unit in words.units(0)][:4] == ["[CLS]", "The", "caterpillar", "didn't"]
    assert [len(unit.tokens) for unit in words.units(0)][:4] == [1, 1, 3, 3]  # cater ##pi ##llar, didn ' t
    assert words_in(words, 1)[:5] == ["Hi", FAMILY, CAFE, ":", "我爱你"]
    for layer in (rec.layers[0], rec.layers[5]):
        for text in range(3):
            units = words.units(text)
            got = layer.word_weights(text=text, how=how)
            assert_word_map(got, layer.weights(text=text), units, units, how)
            assert_near(got.weights.sum(-1), torch.ones(12, len(units)), atol=1e-5)


# --------------------------------------------------------------------------------------------------------------- limits


def long_layer(length):
    tokens = made_of("a " * length, [(2 * at, 2 * at + 1) for at in range(length)])
    q, lse = torch.zeros(1, 16, length, 1), torch.full((1, 16, length), float(np.log(length)))
    site, mask = Site("", 0, "m", 16, 16, 1, 1, causal=False), Mask.full(length, length)
    return LayerRecord(site, q, q, None, lse, mask, Rule(1.0), tokens.lengths, tokens)


@pytest.mark.slow  # five seconds to make what is too large
def test_a_map_of_words_over_the_limit_is_refused_and_a_window_of_it_is_given():
    layer = long_layer(20_000)
    with pytest.raises(WindowError, match=r"16 heads x 20000 x 20000 weights between words is 25\.6 GB, above the lim"):
        layer.word_weights()
    with pytest.raises(WindowError, match=r"1 heads x 20000 x 20000 .*'max' needs every key"):
        layer.word_weights(head=3, how="max", keys=slice(0, 2))
    for how in HOWS:
        got = layer.word_weights(head=3, how=how, queries=slice(-3, None), keys=slice(7, 9))
        assert_near(got.weights * 20_000, torch.ones(3, 2), 1e-2)


def test_an_empty_window_is_empty(rng):
    layer = replace(make_record(rng, lengths=(13,)).layer, tokens=made_up((13,)))
    for how in HOWS:
        got = layer.word_weights(how=how, queries=slice(2, 2), keys=slice(1, 3))
        assert (got.queries, len(got.keys), got.weights.shape) == ((), 2, (6, 0, 2))
        assert layer.word_weights(how=how, keys=slice(9, 1)).weights.shape[-1] == 0


def test_cross_attention_without_words_of_its_keys_is_refused(rng):
    layer = replace(make_record(rng, "bidirectional", keys=(19, 6, 11, 4)).layer, tokens=made_up(RECORDED))
    message = r"layer\.3 looks at another text, whose words .*give them as key_words=Wo"
    refuses(RecordingError, message, layer.word_weights)
    message = r"key_words= are of 20 tokens, but text 0 has 19 here: give words of the same"
    refuses(ShapeError, message, layer.word_weights, key_words=Words.of(made_up((20, 6, 11, 4))))
    alone = replace(make_record(rng, lengths=(13,)).layer, tokens=made_up((13,)))
    with pytest.raises(RecordingError, match=r"layer\.3 looks at its own text: .* without key_words="):
        alone.word_weights(key_words=Words.of(made_up((13,))))


def test_what_word_weights_cannot_use_is_said(rng):
    case, tokens = make_record(rng, lengths=(13, 7)), made_up((13, 7))
    layer = replace(case.layer, tokens=tokens)
    with pytest.raises(TextError, match="this recording knows no pieces, so no words: record a text through a model"):
        case.layer.word_weights()
    with pytest.raises(ShapeError, match=r"words= are of 11 tokens, but text 0 has 13 here: give words of the same"):
        layer.word_weights(words=Words.of(made_up((11, 7))))
    with pytest.raises(ShapeError, match=r"text=1 has no words here: they are of 1 texts, counted from 0\."):
        layer.word_weights(text=1, words=Words.of(made_up((13,))))
    refuses(ShapeError, "text=2 is not in this recording", layer.word_weights, text=2)
    refuses(ShapeError, "head=6 is not in layer 3", layer.word_weights, head=6)
    with pytest.raises(StatisticError, match=r"how='sum' is not a way to merge .*: use one of mean, first, max\."):
        layer.word_weights(how="sum")
    with pytest.raises(TextError, match=r"drop='all' is not what can be dropped: use one of none, special, wordless\."):
        layer.word_weights(drop="all")
    refuses(ShapeError, "a window has step 1", layer.word_weights, queries=slice(0, 4, 2))
    assert_near(layer.word_weights(text=-1).weights, layer.word_weights(text=1).weights, atol=0)
    assert Words.of(tokens).units(-1) == Words.of(tokens).units(1)
