"""Which word a token is of, for every kind of tokenizer, with offsets and without.

Tokenizers are built here, in memory. The oracle of word membership is what a tokenizer's own pieces spell, and a search
through spans character by character.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

import manyheads as mh
from manyheads.errors import TextError
from manyheads.recording import Tokens, Words
from manyheads.recording.words import Unit, is_space, readable, run_spans, word_spans
from tests.recording.word_texts import BYTE_KINDS, KINDS, TEXTS, WORDS_OF, made_of, made_up, tokenizer, words_in

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
def test_words_of_a_text_are_those_a_reader_counts(text):
    assert [text[begin:end] for begin, end in word_spans(text)] == WORDS_OF[text]


@pytest.mark.parametrize("text", WORDS_OF, ids=ascii)
def test_runs_between_white_space_are_those_of_split(text):
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
@pytest.mark.sampled(3)
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


def test_a_token_over_two_words_is_of_the_first_and_said_to_straddle():
    words = Words.of(made_of("of the dog", [(0, 6), (6, 8), (8, 10)]))
    assert words.of_token.tolist() == [[0, 2, 2]]
    assert words.straddling.tolist() == [[True, False, False]]
    assert words.because.endswith("; tokens that straddle words: 1")
    assert [unit.text for unit in words.units()] == ["of", "dog"]  # "the" has no token that begins in it
    assert "straddle" not in Words.of(made_of("of the", [(0, 2), (2, 6)])).because


def test_special_tokens_are_of_no_word_whatever_they_cover():
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


@pytest.mark.turns(4)
@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(any_text.filter(str.strip), min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
@pytest.mark.sampled(2)
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


def test_a_special_token_between_pieces_parts_words_without_offsets():
    pieces, special = ("Ċ", "the", "</s>", "cat"), torch.tensor([[False, False, True, False]])
    words = Words.of(Tokens(torch.tensor([4]), torch.zeros(1, 4, dtype=torch.long), (pieces,), special))
    assert words.texts == ("\nthe cat",)
    assert words.of_token.tolist() == [[-1, 0, -1, 1]]
    assert words.units()[2] == Unit("</s>", (4, 4), (2,), -1, True)


def test_stray_bytes_without_offsets_are_marked_and_kept():
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
    with pytest.raises(TextError, match=r"by='lines' is not a way to find words: use words, whitespace, or give spans"):
        Words.of(tokens, "lines")
    with pytest.raises(TextError, match=r"spans of 1 texts were given for 2: give each text a list\."):
        Words.of(tokens, [[(0, 1)]])
    for spans in ([(0, 2), (1, 3)], [(3, 4), (0, 1)], [(2, 2)], [(0, 99)], [(-1, 2)]):
        with pytest.raises(
            TextError, match=r"of text 1 does not fit: spans are \(begin, end\) of characters, in order"
        ):
            Words.of(tokens, [[(0, 1)], spans])
    with pytest.raises(TextError, match="spans were given, but this recording knows no offsets to lay them on"):
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


@pytest.mark.turns(4)
def test_with_offsets_a_token_is_what_stands_in_the_text(minilm):
    assert readable(mh.record(minilm, "Ein Café,\tplaying").tokens)[:4] == ("[CLS]", "Ein", "Café", ",")
    tokens = mh.record(mh.load("tiny-code"), "def f():\n\treturn 'é'\n").tokens
    assert readable(tokens) == ("<|begin|>", "def", "f", "():", "↵", "⇥", "return", "'", "é", "é", "'", "↵")
