"""Texts as they are given: offsets count the characters of the user's own text, whatever stands around the words.

Oracles: what the tokenizer itself says of the whole text, and the text's own characters by `str.index`.
"""

import pytest
from transformers import PreTrainedTokenizerFast

import manyheads as mh
from manyheads.errors import TextError
from manyheads.models.inputs.texts import read_given
from manyheads.recording import Words, text_seed
from manyheads.recording.tokens import Stretch
from tests.models.eager import draw
from tests.models.tiny import tiny_bert
from tests.recording.word_texts import KINDS, tokenizer

AROUND = [("", ""), ("   ", ""), ("\n\n\t", "\n"), ("", "  \n "), ("\u00a0 \u3000", "\u00a0"), ("👍🏽 ", " 👩\u200d👧")]
BODY = "The cat didn't sit.\nThey  see dogs"
KNOWN = ["The", "cat", "sit", "They", "see", "dogs"]
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def loaded(fresh):
    """`loaded("wordpiece")`: a tiny model that reads with a tokenizer of this kind; sizes as of its config."""

    def make(kind, **sizes):
        whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer(kind), unk_token="[UNK]", cls_token="[CLS]")
        whole.add_special_tokens({"sep_token": "[SEP]", "pad_token": "[CLS]"})
        model = tiny_bert(seed=draw(fresh), vocab_size=len(whole), **{"max_position_embeddings": 400, **sizes})
        return mh.load(model, tokenizer=whole)

    return make


def own_offsets(lm, text):
    return lm.tokenizer(text, return_offsets_mapping=True)["offset_mapping"]


def without_blanks(text, begin, end):
    """A span without the blanks before its word: of a window's first token, some tokenizers leave them in."""
    return begin + len(text[begin:end]) - len(text[begin:end].lstrip()), end


@pytest.mark.turns(4)
@pytest.mark.thinned
@every_kind
@pytest.mark.parametrize(("before", "after"), AROUND)
@pytest.mark.sampled(3)
def test_a_text_is_kept_as_it_was_given_and_offsets_count_its_characters(kind, before, after, loaded):
    lm, text = loaded(kind), before + BODY + after
    rec = mh.record(lm, [text, BODY])
    assert rec.tokens.texts == (text, BODY) and rec.tokens.stretches == ()
    length = int(rec.tokens.lengths[0])
    assert [tuple(span) for span in rec.tokens.offsets[0, :length].tolist()] == own_offsets(lm, text)


@pytest.mark.thinned
@every_kind
@pytest.mark.parametrize(("before", "after"), AROUND)
@pytest.mark.sampled(3)
def test_spans_of_the_users_own_text_find_their_words(kind, before, after, loaded):
    """As a treebank gives them: counted in the file's text, indentation and all."""
    text = before + BODY + after
    tokens = mh.record(loaded(kind), text).tokens
    spans = [(text.index(word), text.index(word) + len(word)) for word in KNOWN]
    words = Words.of(tokens, [spans])
    assert words.texts == (text,)
    assert [unit.text for unit in words.units(drop="wordless")] == KNOWN
    for unit in words.units(drop="wordless"):
        begin = tokens.offsets[0, unit.tokens[0], 0]
        end = max(tokens.offsets[0, token, 1] for token in unit.tokens)
        assert text[begin:end].strip().startswith(unit.text)  # a token may straddle what follows
    found = [unit.text for unit in Words.of(tokens).units(drop="wordless")]
    assert [word for word in found if word in KNOWN] == KNOWN


@pytest.mark.turns(4)
@every_kind
@pytest.mark.sampled(3)
def test_windows_say_where_their_stretch_begins(kind, loaded, tmp_path):
    lm = loaded(kind, max_position_embeddings=24)
    long, short = "  \n" + " ".join([BODY] * 9) + "\n\n", " The cat"
    rec = mh.record(lm, [long, short])
    tokens, offsets = rec.tokens, {without_blanks(long, *span) for span in own_offsets(lm, long)}
    assert len(tokens.stretches) == tokens.num_texts > 3 and tokens.stretches[-1] == Stretch(1, 0)
    assert len({*tokens.seeds[:-1]}) == 1 and tokens.seeds[0] == text_seed(long) != tokens.seeds[-1] == text_seed(short)
    assert tokens.texts[-1] == short
    begins = [stretch.begin for stretch in tokens.stretches[:-1]]
    assert begins == sorted(begins) and begins[1] > 0
    for window, (source, begin, seed) in enumerate(tokens.stretches[:-1]):
        stretch = tokens.texts[window]
        assert source == 0 and seed == text_seed(long) and long[begin : begin + len(stretch)] == stretch
        for token in tokens.ordinary[window].nonzero()[:, 0].tolist():
            first, last = (begin + offset for offset in tokens.offsets[window, token].tolist())
            assert without_blanks(long, first, last) in offsets
            assert long[first:last] == stretch[first - begin : last - begin]
    rec.save(tmp_path / "windows.heads")
    again = mh.open_recording(tmp_path / "windows.heads")
    assert again.tokens.stretches == tokens.stretches and again.tokens.texts == tokens.texts
    assert tokens.text(1).stretches == tokens.stretches[1:2]


def test_blanks_around_a_text_leave_its_half_and_its_numbers_where_they_are(loaded):
    """Where offsets cover no blanks, the tokens are the same too."""
    lm = loaded("wordpiece")
    plain, indented = (mh.record(lm, text).tokens for text in (BODY, f"\n   {BODY}  "))
    assert plain.seeds == indented.seeds and plain.ids.tolist() == indented.ids.tolist()
    one, other = (mh.measure(lm, text, ["entropy", "capitalised_mass"]) for text in (BODY, f"\n   {BODY}  "))
    assert (one.sums.num == other.sums.num).all() and (one.sums.den == other.sums.den).all()


def test_a_truncated_text_says_that_it_begins_at_its_own_first_word(loaded):
    text = "\n  " + BODY * 4
    tokens = mh.record(loaded("wordpiece", max_position_embeddings=9), text, long="truncate").tokens
    assert tokens.stretches == (Stretch(0, 3, text_seed(text)),) and text[3:].startswith(tokens.texts[0])


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ("\ud800", "the text is not valid Unicode: it has a lone surrogate at character 0"),
        (["The cat", "sit \udc80"], "text 1 is not valid Unicode: it has a lone surrogate at character 4"),
    ],
)
@pytest.mark.parametrize("read", [mh.record, mh.importance])
def test_what_no_tokenizer_takes_is_refused_by_its_text_and_place(read, texts, said, loaded):
    with pytest.raises(TextError, match=said):
        read(loaded("wordpiece"), texts)


@pytest.mark.parametrize(
    ("texts", "said"), [(3, "texts is an int: give a text"), (["The cat", {}], "text 1 is a dict: give strings")]
)
def test_what_is_no_text_is_named_by_its_kind(texts, said):
    with pytest.raises(TextError, match=said):
        read_given(texts)


def test_a_lone_surrogate_in_a_corpus_is_a_text_that_could_not_be_measured(loaded):
    lm = loaded("wordpiece")
    found = mh.measure(lm, iter(["The cat", "sit \ud800", "They see dogs"]), ["entropy"])
    assert "lone surrogate at character 4" in str(found.failures)
    with pytest.raises(TextError, match="lone surrogate at character 0"):
        mh.find_roles(lm, ["\ud800"] * 3)
