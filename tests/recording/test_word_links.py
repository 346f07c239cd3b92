"""Links between words are the model's own eager maps, summed over a key word's pieces and averaged over a query's.

Which pieces a word has is written out here, by hand: nothing of `recording.words` is in the oracle.
"""

import copy
import math

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.recording import LayerRecord, SpacedWord, TellingSearch, telling_link
from manyheads.texts import Words
from tests.models.eager import EXACT, eager_maps
from tests.models.tiny import save_tiny, tiny_gpt2, tiny_mistral, tiny_t5, tiny_tokenizer
from tests.refusals import refuses

SENTENCE = "The animal didn't cross the street because it was too tired."
PIECES = {  # [CLS] the animal didn ' t cross the street because it was too tired . [SEP]
    "The": [1], "animal": [2], "didn't": [3, 4, 5], "cross": [6], "the": [7], "street": [8], "because": [9],
    "it": [10], "was": [11], "too": [12], "tired": [13],
}  # fmt: skip
TWICE = "the cat saw the dog and the bird"


@pytest.fixture(scope="module")
def rec(minilm):
    return mh.record(minilm, SENTENCE)


@pytest.fixture(scope="module")
def maps(minilm):
    """[layer, head, query, key]."""
    inputs = minilm.tokenizer(SENTENCE, return_tensors="pt")
    return torch.stack(eager_maps(minilm.model, **inputs))[:, 0].double().numpy()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """`small(model)`: a tiny model that reads the tokenizer's words, loaded as a user loads it."""

    def load(model):
        folder = tmp_path_factory.mktemp("model")
        return mh.load(str(save_tiny(model, folder, tiny_tokenizer(special_tokens=False))))

    return load


def from_word_to_word(maps, query, key):
    """[layer, head]: plain loops over pieces."""
    cells = [maps[:, :, row, column] for row in PIECES[query] for column in PIECES[key]]
    return np.sum(cells, axis=0) / len(PIECES[query])


@pytest.mark.parametrize(("query", "key"), [("it", "animal"), ("didn't", "cross"), ("it", "didn't")])
def test_the_weights_are_those_of_the_models_own_maps_and_the_heaviest_comes_first(rec, maps, query, key):
    links, expected = rec.heads_linking(query, key), from_word_to_word(maps, query, key)
    assert len(links) == 72 and {(link.query, link.key) for link in links} == {(query, key)}
    for link in links:
        assert link.weight == pytest.approx(expected[link.head.layer, link.head.index], abs=EXACT)
        assert link.chance == pytest.approx(len(PIECES[key]) / 16)
    weights = [link.weight for link in links]
    assert weights == sorted(weights, reverse=True)


def test_it_is_linked_to_the_animal_by_two_heads(rec):
    first, second, third = rec.heads_linking("it", "animal")[:3]
    assert (str(first.head), round(first.weight, 2)) == ("L3H1", 0.68)
    assert (str(second.head), round(second.weight, 2)) == ("L5H11", 0.67)
    assert third.weight < 0.3


@pytest.mark.parametrize("given", ["query", "key"])
def test_one_word_alone_gives_each_heads_strongest_other_word(rec, maps, given):
    links = rec.heads_linking(**{given: "didn't"})
    assert len(links) == 72
    others = [word for word in PIECES if word != "didn't"]
    pairs = [("didn't", word) if given == "query" else (word, "didn't") for word in others]
    weights = np.stack([from_word_to_word(maps, *pair) for pair in pairs])
    for link in links:
        of_head = weights[:, link.head.layer, link.head.index]
        assert link.weight == pytest.approx(of_head.max(), abs=EXACT)
        assert of_head[pairs.index((link.query, link.key))] == pytest.approx(of_head.max(), abs=EXACT)


def test_only_the_rows_of_the_words_are_read(rec, monkeypatch):
    cells, weights = [], LayerRecord.weights

    def counted(self, *args, **kwargs):
        window = weights(self, *args, **kwargs)
        cells.append(window[0].numel())
        return window

    monkeypatch.setattr(LayerRecord, "weights", counted)
    for words, most in ((("it", "animal"), 1), (("didn't", "animal"), 3), (("it", None), 16), ((None, "it"), 16)):
        cells.clear()
        rec.heads_linking(*words)
        assert len(cells) == 6 and max(cells) <= most


def test_special_tokens_can_be_asked_for_and_are_no_answer_to_one_word(rec, maps):
    links = rec.heads_linking("it", "[CLS]")
    assert links["L4H5"].weight == pytest.approx(maps[4, 5, 10, 0], abs=EXACT)
    assert "[CLS]" not in {link.key for link in rec.heads_linking("it")}


def test_a_word_that_is_there_twice_is_never_chosen_in_silence(minilm):
    rec = mh.record(minilm, TWICE)
    with pytest.raises(mh.errors.TextError) as refused:
        rec.heads_linking("bird", "the")
    for option in ("'the#1' (the cat saw)", "'the#2' (cat saw the dog and)", "'the#3' (dog and the bird)", "3 times"):
        assert option in str(refused.value)
    window = torch.stack([layer.weights() for layer in rec.layers])  # [CLS] the cat saw the dog and the bird [SEP]
    for number, place in enumerate((1, 4, 7), 1):
        links = rec.heads_linking("bird", f"the#{number}")
        assert (links.query, links.key) == ("bird", f"the#{number}")
        for link in links:
            assert link.weight == pytest.approx(float(window[link.head.layer, link.head.index, 8, place]), abs=EXACT)
    assert rec.heads_linking("the#2", "the#1")[0].weight > 0


@pytest.mark.parametrize(("words", "message"), [
    (("it", "anmal"), "there is no word 'anmal' in this text: did you mean 'animal'?"),
    (("It", "animal"), "there is no word 'It' in this text: did you mean 'it'?"),
    (("the animal", "it"), "'the animal' is 2 words: give one of them, 'the' or 'animal'."),
    (("it#2", "animal"), "there is no 'it#2': this text has 'it' once."),
    (("xyzzy", "it"), "there is no word 'xyzzy' in this text. Its words are 'The', 'animal', "),
    (("it", "it"), "'it' and 'it' are the same word of this text: give two."),
    (("", "it"), "'' is not a word: give one word of the text."),
    ((None, None), "no word was given: say from which word, to which, or both"),
])  # fmt: skip
def test_what_cannot_be_asked_is_one_clear_error(rec, words, message):
    with pytest.raises(mh.errors.TextError) as refused:
        rec.heads_linking(*words)
    assert message in str(refused.value)


def test_a_text_or_head_that_is_not_there_is_refused(rec):
    with pytest.raises(mh.errors.ShapeError, match="text=1 is not in this recording: it holds 1 texts"):
        rec.heads_linking("it", "animal", text=1)
    with pytest.raises(mh.errors.HeadError, match="no head L9H0"):
        rec.heads_linking("it", "animal")["L9H0"]


def test_a_causal_model_cannot_look_ahead_and_that_is_said(small):
    rec = mh.record(small(tiny_gpt2()), ["the cat sat on the mat", "the dog saw a bird and ran"])
    with pytest.raises(
        mh.errors.TextError, match=r"no head can look from 'dog' to 'bird'.* Ask from 'bird' to 'dog'\."
    ):
        rec.heads_linking("dog", "bird", text=1)
    refuses(mh.errors.TextError, "no head can look from 'the' at another word", rec.heads_linking, "the", text=-1)
    refuses(mh.errors.TextError, "no head can look at 'ran' from another word", rec.heads_linking, key="ran", text=1)
    links = rec.heads_linking("bird", "dog", text=1)
    assert links.text == "the dog saw a bird and ran"
    for link in links:
        assert link.weight == pytest.approx(float(rec.layers[link.head.layer].weights(link.head.index, text=1)[4, 1]))
        assert link.chance == pytest.approx(1 / 5)


def test_what_a_window_hides_is_no_link(small):
    rec = mh.record(small(tiny_mistral()), "the cat sat on the mat and ran to the bird")
    refuses(mh.errors.TextError, "only what is before it, or near it", rec.heads_linking, "bird", "cat")
    links = rec.heads_linking(key="cat")
    # A window of 6: of the words from "sat" to "ran" alone is "cat" in sight.
    assert {link.query for link in links} <= {"sat", "on", "the#2", "mat", "and"}


def test_every_stack_that_has_both_words_takes_part(small):
    """T5 is taught here with its own text, moved by one place: the decoder reads "the cat sat on the"."""
    rec = mh.record(small(tiny_t5(num_layers=3)), "the cat sat on the bird")
    assert {link.head.stack for link in rec.heads_linking("sat", "cat")} == {"encoder", "decoder", "cross"}
    links = rec.heads_linking("cat", "bird")
    assert {link.head.stack for link in links} == {"encoder", "cross"}
    assert "decoder left out: there is no word 'bird' in this text" in links.because
    for link in links:
        window = rec.stacks[link.head.stack][link.head.layer].weights(link.head.index)
        row = 2 if link.head.stack == "cross" else 1  # the decoder's text begins with its start token
        assert link.weight == pytest.approx(float(window[row, 5]), abs=EXACT)
    with pytest.raises(mh.errors.TextError, match=r"encoder: there is no word 'zyzzyva'.* decoder: there is no word"):
        rec.heads_linking("cat", "zyzzyva")


def test_links_print_well_and_are_saved_as_other_tables_are(rec, tmp_path):
    import pandas as pd

    links = rec.heads_linking("it", "animal")
    assert repr(links).startswith("HeadLinks('it' -> 'animal': L3H1 67.7 %, L5H11 ")
    assert str(links).endswith("... of 72 heads, on one text; 6.3 % if spread evenly)")
    assert "HeadLinks(any word -> 'animal': " in repr(rec.heads_linking(key="animal"))
    links.save(tmp_path / "links.csv")
    table = pd.read_csv(tmp_path / "links.csv")
    assert list(table.columns) == ["head", "stack", "layer", "index", "query", "key", "weight", "chance"]
    assert list(table["head"]) == [str(link.head) for link in links] and table["weight"][0] == links[0].weight
    assert "L3H1" in links._repr_html_()


def test_a_recording_from_a_file_gives_the_same(rec, tmp_path):
    rec.save(tmp_path / "it.heads")
    opened = mh.open_recording(tmp_path / "it.heads")
    assert list(opened.heads_linking("it", "animal")) == list(rec.heads_linking("it", "animal"))


@pytest.mark.parametrize("count", [14, 8])
def test_the_telling_link_is_found_by_plain_loops_too(count, rec, maps):
    """Weight beyond what the head gives at that distance, or to that word, elsewhere; times log2 of the distance.

    Of all words, and of the beginning alone, as the model read it in the whole sentence.
    """
    words = [[0], *PIECES.values(), [14], [15]][:count]
    names = ["[CLS]", *PIECES, ".", "[SEP]"]
    num_tokens = maps.shape[-1]
    best = (0.0, (0, 0, 0, 0))
    for layer in range(6):
        for head in range(12):
            weights = [
                [np.mean([maps[layer, head, row, columns].sum() for row in rows]) for columns in words]
                for rows in words
            ]
            for query in range(1, min(12, count)):
                for key in range(1, min(12, count)):
                    if query == key or weights[query][key] < 2 * len(words[key]) / num_tokens:
                        continue
                    as_far = [
                        weights[row][row + key - query]
                        for row in range(len(words))
                        if row != query and 0 <= row + key - query < len(words)
                    ]
                    to_key = [weights[row][key] for row in range(len(words)) if row != query]
                    beyond = weights[query][key] - max(np.mean(as_far) if as_far else 0, np.mean(to_key))
                    best = max(best, (beyond * math.log2(abs(query - key)), (layer, head, query, key)))
    search = TellingSearch(None if count == 14 else count)
    for layer in rec.layers:
        search.add(layer, Words.of(layer.tokens))
    link = search.link
    assert link is not None
    layer, head, query, key = best[1]
    assert (link.head.layer, link.head.index, link.query, link.key) == (layer, head, names[query], names[key])
    assert link.weight >= 2 * link.chance
    if count == 14:
        assert link == telling_link(rec.layers) and (str(link.head), link.query, link.key) == ("L3H1", "it", "animal")


def test_a_link_under_twice_its_chance_tells_nothing(minilm):
    with torch.no_grad():
        for module in (flat := copy.deepcopy(minilm.model)).modules():
            if type(module).__name__.endswith("SelfAttention"):
                module.query.weight.mul_(0.01)
                module.query.bias.mul_(0.01)
    assert telling_link(mh.record(mh.load(flat, tokenizer=minilm.tokenizer), SENTENCE).layers) is None


def test_texts_that_are_the_same_are_told_apart_by_their_turn():
    texts = ["a", "b", "a", ",", "A", ",", "[SEP]", "[SEP]"]
    assert SpacedWord.in_sentences(texts, [text == "[SEP]" for text in texts]) == [
        'the first "a"', '"b"', 'the second "a"', 'the first ","', '"A"', 'the second ","',
        "the first [SEP]", "the second [SEP]",
    ]  # fmt: skip
    many = SpacedWord.in_sentences(["x"] * 113, quotes="“”")
    assert [many[turn - 1] for turn in (3, 4, 12, 13, 21, 22, 23, 112, 113)] == [
        f"the {turn} “x”" for turn in ("third", "fourth", "twelfth", "13th", "21st", "22nd", "23rd", "112th", "113th")
    ]
