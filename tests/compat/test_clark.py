"""Clark et al. 2019: our numbers against their code, an oracle and their words."""

from __future__ import annotations

import string
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import manyheads as mh
from manyheads.compat import clark, inputs
from manyheads.compat.clark import accuracies
from manyheads.compat.clark import general as distances
from manyheads.compat.clark import words as wordmaps
from manyheads.compat.clark.words import NOBODY, Recorded, laid_out, most_attended
from manyheads.corpora import Document
from manyheads.errors import ModelError, RecordingError, ShapeError, StatisticError, TextError
from manyheads.recording import ROOT, Gold, GoldWord, Mention, Words
from tests.compat import clark_oracle as oracle
from tests.compat.crafted import crafted
from tests.models.tiny import tiny_bert
from tests.refusals import refuses

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WHOLE = ("the", "cat", "king", "she", "saw", "mary", "hat", "of", "it")


@cache
def reader():
    """WordPiece, as BERT's: some words whole, all others letter by letter; marks are words of their own."""
    letters = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase), ".", ",", "'"]
    vocabulary = {piece: number for number, piece in enumerate((*SPECIAL, *WHOLE, *letters))}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    around = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    single, pair = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]"
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=around)
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def small_bert():
    return mh.load(tiny_bert(vocab_size=len(reader()), max_position_embeddings=48), tokenizer=reader())


RELATIONS = ("det", "nsubj", "poss", "punct", "dobj", "case")


@pytest.fixture(scope="module")
def lm():
    return small_bert()


def document(words, heads, relations, pos=None, mentions=(), gap=" "):
    """Heads from 1, 0 the root, as treebanks have them."""
    spans, text = [], ""
    for word in words:
        text += gap if text else ""
        spans.append((len(text), len(text) + len(word)))
        text += word
    gold = [
        GoldWord(*span, p, head - 1 if head else ROOT, relation)
        for span, p, head, relation in zip(spans, pos or ["NOUN"] * len(words), heads, relations, strict=True)
    ]
    return Document(text, "made up", Gold(tuple(gold), tuple(mentions), has_coreference=bool(mentions)))


def drawn_sentences(seed, count=9):
    """Words, heads and relations: every genitive after a `poss`, which is what the quirk is about."""
    draw, out = np.random.default_rng(seed), []
    for _ in range(count):
        words = []
        for _ in range(int(draw.integers(2, 8))):
            made = "".join(draw.choice(list("abc"), int(draw.integers(1, 4))))
            words += [str(draw.choice([*WHOLE, made, "."]))] + ["'s"] * int(draw.random() < 0.3)
        root = int(draw.integers(len(words)))
        heads = [0 if at == root else int(draw.integers(len(words))) + 1 for at in range(len(words))]
        relations = ["root" if at == root else str(draw.choice(RELATIONS)) for at in range(len(words))]
        for at, word in enumerate(words[1:]):
            relations[at] = "poss" if word == "'s" and at != root else relations[at]
        out.append((words, heads, relations))
    return out


# ------------------------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize(
    "mode, middle", [("first", [0.25, 0.5, 0.25]), ("mean", [0.325, 0.5, 0.175]), ("max", [0.3478, 0.4348, 0.2174])]
)
def test_pieces_become_words_as_worked_out_by_hand(mode, middle):
    pieces = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.25] * 4, [0.4, 0.3, 0.2, 0.1], [0.7, 0.1, 0.1, 0.1]])
    got = clark.word_attention(pieces, [[0], [1, 2], [3]], mode)
    assert got[1].tolist() == pytest.approx(middle, abs=5e-5)
    assert got[0].tolist() == pytest.approx([0.1, 0.5, 0.4]) and got[2].tolist() == pytest.approx([0.7, 0.2, 0.1])
    assert got.numpy() == pytest.approx(oracle.word_map(pieces.numpy(), [[0], [1, 2], [3]], mode))


def test_other_ways_to_merge_are_refused():
    message = "mode='last' is not how rows of a word are merged: use one of first, mean"
    refuses(StatisticError, message, clark.word_attention, torch.eye(2), [[0], [1]], "last")
    refuses(ShapeError, "without a gap", clark.word_attention, torch.eye(3), [[0], [], [1, 2]])


# ------------------------------------------------------------------------------------------------------------ syntax


def oracle_words(lm, sentence, mode):
    """[layer, head, word, word] of a sentence, [CLS] and [SEP] among the words."""
    ids, members = oracle.pieces_of_words(lm, sentence[0])
    maps = oracle.maps_of(lm, ids)
    return [[oracle.word_map(head, members, mode) for head in layer] for layer in maps]


@pytest.mark.turns(4)
@pytest.mark.thinned
@pytest.mark.parametrize("quirks", [False, ("poss", "vanishing")], ids=["plain", "quirks"])
@pytest.mark.parametrize("mode", wordmaps.MODES)
@pytest.mark.sampled(1)
def test_accuracies_are_those_of_the_models_own_maps(lm, fresh, monkeypatch, mode, quirks):
    monkeypatch.setattr(wordmaps, "BLOCK_CELLS", 60)  # a row or two of a layer at a time
    sentences = drawn_sentences(int(torch.randint(1 << 30, (1,), generator=fresh)))
    scores = clark.syntax_accuracies(lm, (document(*s) for s in sentences), mode=mode, quirks=quirks)
    maps = [oracle_words(lm, sentence, mode) for sentence in sentences]
    assert scores.num_sentences == len(sentences) and not scores.left_out
    for direction in accuracies.DIRECTIONS:
        got = scores.accuracy(direction)
        for row, head in enumerate(scores.heads):
            turned = direction == "head<-dep"
            wanted = oracle.accuracies(
                sentences, lambda n, h=head, t=turned: oracle.guesses(maps[n][h.layer][h.index], t), bool(quirks)
            )
            assert_shares(got[row], wanted, scores.relations)
    for row, offset in enumerate(accuracies.OFFSETS):
        wanted = oracle.accuracies(
            sentences, lambda n, o=offset: oracle.offset_guess(len(sentences[n][0]), o), bool(quirks)
        )
        assert_shares(scores.offset_accuracy[row], wanted, scores.relations)


def assert_shares(got, wanted, relations):
    """NaN where the oracle's dictionary lacks the relation."""
    for share, name in zip(got.tolist(), relations, strict=True):
        assert share == pytest.approx(wanted[name]) if name in wanted else share != share


def test_the_best_head_of_a_relation_is_the_last_of_equals(lm):
    sentences = drawn_sentences(5)
    scores = clark.syntax_accuracies(lm, [document(*s) for s in sentences], quirks=False)
    best = scores.best(min_examples=6)
    assert best[0].relation == "all" and {"root", "punct"}.isdisjoint(line.relation for line in best)
    assert all(line.examples >= 6 for line in best[1:])
    assert [line.examples for line in best[1:]] == sorted((line.examples for line in best[1:]), reverse=True)
    for line in best:
        column = scores.relations.index(line.relation)
        every = [
            (float(scores.accuracy(direction)[row, column]), head.layer, head.index, direction)
            for direction in accuracies.DIRECTIONS
            for row, head in enumerate(scores.heads)
        ]
        offsets = [(float(scores.offset_accuracy[row, column]), o) for row, o in enumerate(accuracies.OFFSETS)]
        assert (line.accuracy, line.head.layer, line.head.index, line.direction) == max(every)
        assert (line.offset_accuracy, line.offset) == max(offsets)
    assert str(scores).startswith(f"all      | {scores.counts[0]:5d} | attn: {100 * best[0].accuracy:.1f} | offset=")


def test_root_counts_in_all_and_no_head_has_it_right(lm):
    scores = clark.syntax_accuracies(lm, [document(*s) for s in drawn_sentences(6)], quirks=False)
    root = scores.relations.index("root")
    assert scores.counts[0] == scores.counts[1:].sum() and scores.counts[root] == 9
    assert not scores.correct[..., root].any()
    assert scores.offset_correct[0, root] > 0  # an offset that is clipped at the left edge guesses the root


def test_the_quirk_of_poss_takes_the_next_words_guess():
    words, heads = ["mary", "'s", "hat", "it"], [3, 1, 0, 3]
    sentence = laid_out(document(words, heads, ["poss", "case", "root", "punct"]), "joined")
    assert accuracies.right(sentence, torch.tensor([1, 3, 1, 1]), True)[0]  # of 's: the hat
    assert not accuracies.right(sentence, torch.tensor([3, 1, 1, 1]), True)[0]  # its own right guess does not count
    assert not accuracies.right(sentence, torch.tensor([4, 3, 1, 1]), True)[0]  # unless it is the last word
    assert accuracies.right(sentence, torch.tensor([3, 1, 1, 1]), False)[0]
    last = laid_out(document(["hat", "mary"], [0, 1], ["root", "poss"]), "joined")
    assert accuracies.right(last, torch.tensor([2, 1]), True).tolist() == [False, True]


def test_the_quirk_of_vanishing_hides_relations_without_errors(lm):
    documents = [document(["the", "cat", "saw"], [2, 3, 0], ["det", "nsubj", "root"])]
    plain, hidden = (clark.syntax_accuracies(lm, documents, quirks=q) for q in (False, "vanishing"))
    perfect = plain.offset_accuracy == 1
    assert perfect.any() and hidden.offset_accuracy[perfect].isnan().all()
    assert torch.equal(hidden.offset_accuracy[~perfect], plain.offset_accuracy[~perfect])


def words_recorded(maps, words):
    """A recording of these maps of words, [CLS] and [SEP] around them."""
    recording = crafted([maps], range(len(words) + 2), ["[CLS]", *words, "[SEP]"])
    sentence = laid_out(document(words, [0] * len(words), ["root"] * len(words)), "joined")
    special = torch.tensor([[True, *[False] * len(words), True]])
    offsets = torch.tensor([[(0, 0), *sentence.spans, (0, 0)]])
    tokens = recording.tokens
    told = type(tokens)(tokens.lengths, tokens.ids, tokens.pieces, special, offsets, (sentence.text,))
    return Recorded(sentence, recording.layers, 0, Words.of(told, [sentence.spans]))


def test_the_quirk_of_float16_lets_the_first_of_equals_win_special_tokens_and_the_word_itself_never():
    row = torch.tensor([0.4, 0.1999, 0.19991, 0.10009, 0.1001])  # the second and third are one number in float16
    read = words_recorded(torch.softmax(row.expand(5, 5).log(), -1)[None], ["the", "cat", "saw"])
    forward, _ = most_attended(read.layers[0], read)
    rounded, _ = most_attended(read.layers[0], read, half=True)
    assert forward[0, 2] == 2 and rounded[0, 2] == 1
    maps = torch.tensor([[0.1, 0.1, 0.7, 0.05, 0.05], [0.5, 0.3, 0.1, 0.07, 0.03], [0.2, 0.1, 0.4, 0.05, 0.25]])
    maps = torch.cat([maps, torch.full((2, 5), 0.2)])[None]
    read = words_recorded(maps, ["the", "cat", "saw"])
    forward, back = most_attended(read.layers[0], read)
    assert forward[0].tolist() == [2, 1, 1]  # of equals the first
    assert back[0].tolist() == [3, 3, 1]


@pytest.mark.parametrize("layout", wordmaps.LAYOUTS)
def test_words_that_share_a_stretch_of_text_are_read_once(lm, layout):
    made = document(["im", "im", "cat"], [3, 1, 0], ["case", "det", "root"])
    shared = [made.gold.words[0], made.gold.words[0]._replace(head=0), made.gold.words[2]]
    made = Document(made.text, "", made.gold._replace(words=tuple(shared)))
    sentence = laid_out(made, layout)
    assert sentence.places == (0, 2) and [sentence.text[b:e] for b, e in sentence.spans] == ["im", "cat"]
    (read,) = wordmaps.recorded(lm, [sentence])
    forward, back = most_attended(read.layers[0], read)
    assert set(forward[:, 1].tolist()) == set(back[:, 1].tolist()) == {NOBODY}
    assert set(forward[:, 0].tolist()) == {3}


def test_raw_text_is_read_as_it_was_written(lm):
    made = document(["the", "cat", "'s", "hat"], [2, 4, 2, 0], ["det", "poss", "case", "root"], gap="")
    assert laid_out(made, "joined").text == "the cat 's hat" and laid_out(made, "raw").text == "thecat'shat"
    (read,) = wordmaps.recorded(lm, [laid_out(made, "raw")])
    assert [unit.text for unit in read.words.units(0, drop="special")] == ["the", "cat", "'s", "hat"]
    with pytest.raises(TextError, match="layout='tight' is not how a sentence is laid out: use one of joined, raw"):
        clark.syntax_accuracies(lm, [made], layout="tight")


def test_what_is_not_read_is_counted(lm):
    short, long = document(["cat"], [0], ["root"]), document(["cat"] * 9, [0] * 9, ["root"] * 9)
    without = Document("the cat", "")
    scores = clark.syntax_accuracies(lm, [short, long, without], max_tokens=10)
    assert scores.num_sentences == 1 and scores.left_out == {"more than 10 tokens": 1, "no syntax": 1}
    assert clark.syntax_accuracies(lm, [long], max_tokens=11).num_sentences == 1
    beyond = document(["cat"] * 50, [0] * 50, ["root"] * 50)
    with pytest.raises(TextError, match="no sentence was read: 1 with more than 48 tokens. Give documents with gold"):
        clark.syntax_accuracies(lm, [beyond], max_tokens=None)


# -------------------------------------------------------------------------------------------------------- coreference

STORY = ["mary", "saw", "the", "cat", ".", "she", "saw", "mary", ".", "it", "saw", "the", "king"]
POS = ["PROPN", "VERB", "DET", "NOUN", "PUNCT", "PRON", "VERB", "PROPN", "PUNCT", "PRON", "VERB", "DET", "NOUN"]
MENTIONS = (
    Mention(0, 0, 0, "mary"), Mention(2, 3, 3, "cat"), Mention(5, 5, 5, "mary"), Mention(7, 7, 7, "mary"),
    Mention(9, 9, 9, "cat"), Mention(11, 12, 12, "king"),
)  # fmt: skip


def story():
    return document(STORY, [0] * len(STORY), ["root"] * len(STORY), POS, MENTIONS)


def test_antecedents_are_found_as_the_models_own_maps_say(lm):
    scores = clark.coreference_accuracies(lm, [story()], quirks=False)
    wanted = {5: {0}, 7: {0, 5}, 9: {3}}
    kinds = {"all": [5, 7, 9], "pronoun": [5, 9], "proper": [7], "nominal": []}
    assert scores.counts.tolist() == [len(words) for words in kinds.values()]
    maps = oracle_words(lm, (STORY,), "first")
    for row, head in enumerate(scores.heads):
        found = oracle.guesses(maps[head.layer][head.index], False)
        hits = [sum(found[word] - 1 in wanted[word] for word in words) for words in kinds.values()]
        assert scores.correct[row].tolist() == hits
    assert scores.best() == max(zip(scores.heads, scores.accuracy[:, 0].tolist(), strict=True), key=lambda x: x[1])
    assert scores.accuracy[:, 3].isnan().all()


def test_baselines_of_coreference_are_the_nearest_and_the_same_word(lm):
    scores = clark.coreference_accuracies(lm, [story()])
    found = {q.word: q.guesses for q in accuracies.questions(laid_out(story(), "joined"))}
    assert found == {5: (3, None), 7: (5, 0), 9: (7, None)}
    assert scores.baseline_correct[:, 0].tolist() == [1, 1]  # she -> cat, mary -> she, it -> mary; mary -> mary
    assert scores.baseline_accuracy[1, 2] == 1


def test_documents_are_cut_to_whole_words(lm):
    cut = accuracies.cut(lm, story(), "joined", 10)
    assert cut.words == tuple(STORY[:8]) and wordmaps.num_tokens(lm, cut.text) == 10
    assert [q.word for q in accuracies.questions(cut)] == [5, 7]
    scores = clark.coreference_accuracies(lm, [story(), document(["cat"], [0], ["root"])], max_tokens=10)
    assert scores.counts[0] == 2 and scores.left_out == {"no coreference": 1}
    with pytest.raises(TextError, match="no document was read: 1 with no mention that has an antecedent"):
        clark.coreference_accuracies(lm, [story()], max_tokens=5)
    spelt = document(["abc", "abc"], [0, 1], ["root", "det"], mentions=[Mention(0, 0, 0, "a"), Mention(1, 1, 1, "a")])
    assert accuracies.cut(lm, spelt, "raw", 7).words == ("abc",)  # three pieces a word: the second does not fit


# ------------------------------------------------------------------------------------------------------------ general


def test_what_cannot_be_read_is_refused(lm):
    message = "'case' is no quirk. Give True, False, or some of 'poss', 'vanishing', 'f"
    refuses(StatisticError, message, clark.syntax_accuracies, lm, [story()], quirks=["case"])
    with pytest.raises(TextError, match=r"text 0 is \('a', ''\): give strings or pairs of them, not empty"):
        clark.entropies(lm, [("a", "")])
    with pytest.raises(TextError, match="a text has 62 tokens, but BertModel has 48 positions: cut it first"):
        clark.entropies(lm, "cat " * 60)
    refuses(TextError, "no text was given", clark.head_distances, lm, [])
    refuses(ModelError, "is neither a loaded model nor a recording", clark.syntax_accuracies, lm.model, [story()])
    assert set(clark.QUIRKS) == {"poss", "vanishing", "float16", "smoothing", "two separators"}


NEAR = 2e-6
PAIRS = [("the cat saw mary .", "she saw it , abc"), ("king of it", "cat .")]


def ids_of(lm, pair):
    return lm.tokenizer(*pair)["input_ids"]


@pytest.mark.parametrize("texts, quirks", [(PAIRS, True), ([a for a, _ in PAIRS], False)], ids=["pairs", "single"])
def test_masses_are_those_of_the_models_own_maps(lm, texts, quirks):
    got = clark.attention_masses(lm, texts, quirks=quirks)
    read = [ids_of(lm, text if isinstance(text, tuple) else (text,)) for text in texts]
    pieces = [lm.tokenizer.convert_ids_to_tokens(ids) for ids in read]
    each = [oracle.masses(p, oracle.maps_of(lm, ids), quirks) for p, ids in zip(pieces, read, strict=True)]
    assert got.keys() == each[0].keys()
    for name, values in got.items():
        assert values.numpy() == pytest.approx(np.mean([one[name] for one in each], 0), abs=NEAR), name


def test_the_quirk_of_two_separators_matters_for_single_texts(lm):
    plain, quirky = (clark.attention_masses(lm, "the cat saw it", quirks=q) for q in (False, "two separators"))
    assert torch.allclose(quirky["sep_sep"], plain["sep_sep"] / 2)
    assert torch.allclose(quirky["rest_sep"], plain["rest_sep"] * 5 / 4)


@pytest.mark.turns(4)
def test_entropies_are_those_of_the_models_own_maps(lm, monkeypatch):
    monkeypatch.setattr(inputs, "BLOCK_CELLS", 100)
    read = [ids_of(lm, pair) for pair in PAIRS]
    for quirks in (True, False):
        got = clark.entropies(lm, PAIRS, quirks=quirks)
        rows = [oracle.entropy(oracle.maps_of(lm, ids), quirks) for ids in read]
        assert got.heads.numpy() == pytest.approx(np.mean([one.mean(-1) for one in rows], 0), abs=NEAR)
        assert got.from_cls.numpy() == pytest.approx(np.mean([one[..., 0] for one in rows], 0), abs=NEAR)
        assert got.uniform == pytest.approx(np.mean(np.log([len(ids) for ids in read])))
    assert (clark.entropies(lm, PAIRS).heads > got.heads).all()  # smoothing is towards even attention


def test_distances_are_those_of_the_models_own_maps_and_of_known_ones(lm, monkeypatch):
    monkeypatch.setattr(distances, "BLOCK_CELLS", 500)
    got = clark.head_distances(lm, PAIRS)
    read = [ids_of(lm, pair) for pair in PAIRS]
    wanted = sum(oracle.distances(oracle.maps_of(lm, ids)) for ids in read)
    assert got.sums.numpy() == pytest.approx(wanted, abs=1e-5)
    assert got.num_rows == sum(map(len, read)) and got.num_texts == 2 and len(got.heads) == 10
    assert torch.equal(got.sums, got.sums.T) and (got.means <= np.log(2)).all()
    assert str(got.heads[7]) == "L1H2"
    # Two heads that share nothing are about ln 2 a row apart; 144 of 1 are all alike.
    apart = torch.stack([torch.eye(4), torch.eye(4).roll(1, 1)])
    got = clark.head_distances(crafted([apart], range(4), list("abcd")))
    assert got.means[0, 1].item() == pytest.approx(np.log(2), abs=0.01) and got.means[0, 0].item() == pytest.approx(0)


def test_a_recording_gives_the_same_as_its_texts(lm):
    texts = [" ".join(pair) for pair in PAIRS]
    recording = mh.record(lm, texts)
    pairs = [
        (clark.entropies(recording).heads, clark.entropies(lm, texts).heads),
        (clark.head_distances(recording).sums, clark.head_distances(lm, texts).sums),
        *zip(clark.attention_masses(recording).values(), clark.attention_masses(lm, texts).values(), strict=True),
    ]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in pairs)
    refuses(RecordingError, "a recording holds its own texts", clark.entropies, recording, texts)
    refuses(TextError, "knows no pieces of its texts", clark.attention_masses, crafted([torch.eye(3)[None]], range(3)))


def test_layers_of_unlike_numbers_of_heads_leave_places_empty():
    """A pruned model's layers have fewer heads: what is not there is not a number, and -1 to detect_head."""
    even = torch.full((4, 4), 0.25)
    recording = crafted([even.expand(3, 4, 4), even.expand(1, 4, 4)], range(4), list("abcd"))
    got = clark.entropies(recording, quirks=False).heads
    assert got.shape == (2, 3) and got.isnan().tolist() == [[False] * 3, [False, True, True]]
    assert mh.compat.transformer_lens.detect_head(recording)[1].tolist() == pytest.approx([3 / 16, -1, -1])


def test_the_page_names_every_quirk_and_function():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "compat.md").read_text(encoding="utf-8")
    functions = [name for name in clark.__all__ if name.islower()]
    assert all(f"| `{name}" in page for name in (*clark.QUIRKS, *functions))
