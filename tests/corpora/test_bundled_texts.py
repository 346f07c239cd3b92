"""What a model is shown where nothing is given: prose, but for a bundled model that has read something else.

Our own annotated sentences, as the reader gives them, are trees whose mentions nest.
"""

import ast
import re
from collections import Counter

import pytest
import torch

import manyheads as mh
from manyheads.corpora import OWN_TEXT, gold_corpus, own_corpora, page_texts, reading_of
from manyheads.corpora import own_texts as gold
from manyheads.corpora.own_texts import READINGS, own_corpus, page_digest
from manyheads.errors import FileAccessError, TextError
from manyheads.models import BUNDLED
from manyheads.texts import ROOT
from tests.models.tiny import tiny_bert, tiny_llama, tiny_t5, tiny_tokenizer
from tests.refusals import refuses


@pytest.mark.parametrize("name", ["minilm", "somebody/else", "a/folder", ""])
def test_models_of_prose_are_shown_what_they_were_always_shown(name):
    reading = reading_of(name)
    assert reading.sentence is OWN_TEXT and reading.sentence_is == "an example sentence"
    assert (reading.texts(), reading.digest(), reading.texts_are) == (page_texts(), page_digest(), "bundled texts")
    texts, passages = own_corpora(name)
    assert (texts.key, texts.origin) == (own_corpus().key, own_corpus().origin) and passages is not None


def test_every_bundled_model_reads_something_and_the_question_asks_about_two_words_of_its_text():
    questions = [reading.question for reading in READINGS.values() if reading.question]
    assert questions, "the studio's first visit offers one"
    for text, query, key in questions:
        words = text.rstrip(".").split()
        assert words.count(key) == 1 <= words.count(query), "of several, the last one is asked"
    assert all(each.reads in READINGS for each in BUNDLED.values())


def test_a_model_in_hand_is_shown_what_it_is_good_for():
    """Its name alone says nothing of a model that is not bundled."""
    tokenizer, language = tiny_tokenizer(), READINGS["language"]
    assert reading_of("smollm2") is language and language.sentence.endswith(" gave a drink to")
    assert (language.digest(), language.texts()) == (page_digest(), page_texts())  # shipped labels rest on these
    for model, reading in ((tiny_llama(), language), (tiny_bert(), READINGS["prose"]), (tiny_t5(), READINGS["prose"])):
        assert reading_of(mh.load(model, tokenizer=tokenizer)) is reading
    assert reading_of(mh.load(tiny_llama(), name="tiny-code", tokenizer=tokenizer)) is READINGS["python"]


@pytest.mark.parametrize("name", ["smollm2", "tiny-code"])
def test_pairs_differ_in_one_word_and_the_answer_is_the_other_name(name):
    pairs = reading_of(name).pairs
    assert len(pairs) >= 8, "half of them are held out"
    for pair in pairs:
        words = [re.findall(r"\w+", pair[side]) for side in ("clean", "corrupted")]
        ((one, other),) = [(a, b) for a, b in zip(*words, strict=True) if a != b]
        names = {pair["right"].strip(), pair["wrong"].strip()}
        assert {one, other} == names <= set(words[0]) & set(words[1])
    assert len({pair["clean"] for pair in pairs}) == len(pairs)


def test_the_name_that_is_asked_for_is_the_first_as_often_as_the_second():
    clean = [(pair["clean"].split(), pair["right"].strip()) for pair in reading_of("smollm2").pairs]
    assert sum(words[1] == right for words, right in clean) == sum(words[3] == right for words, right in clean)


@pytest.mark.slow  # two seconds of a processor, once the model is there
def test_smollm2_gives_the_answer_of_every_example(smollm2):
    for pair in reading_of("smollm2").pairs:
        for side, answer in (("clean", "right"), ("corrupted", "wrong")):
            ids = smollm2.tokenizer(pair[side], return_tensors="pt")["input_ids"]
            with torch.no_grad():
                best = int(smollm2.model(ids).logits[0, -1].argmax())
            assert ids.shape[1] == 14 and smollm2.tokenizer.decode(best) == pair[answer], pair[side]


def test_tiny_code_is_shown_python_of_our_own():
    reading = reading_of("tiny-code")
    (function,) = ast.parse(reading.sentence).body
    assert isinstance(function, ast.FunctionDef) and reading.sentence.count("best") > 3
    texts = reading.texts()
    assert len(texts) > 100 and any("    return " in text for text in texts) and len(set(texts)) > 0.9 * len(texts)
    assert reading.digest() == "2408fccdb08a04cf"  # a frozen page: published labels of tiny-code rest on these bytes
    assert len(reading.spread(64)) == 64 and reading.digest() != page_digest()
    corpus, passages = own_corpora("tiny-code")
    assert [each.text for each in corpus.open()] == texts and passages is None
    assert corpus.origin == "bundled texts of Python, which this model reads"


def test_about_as_many_tokens_as_the_page_of_prose():
    from tokenizers import Tokenizer

    from manyheads.models.loading import find_bundled

    reader = Tokenizer.from_file(str(find_bundled("tiny-code") / "tokenizer.json"))
    python, prose = (
        sum(len(each.ids) for each in reader.encode_batch(texts))
        for texts in (reading_of("tiny-code").texts(), page_texts())
    )
    assert 0.7 < python / prose < 1.5


UPOS = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X"
RELATIONS = """
    acl advcl advmod amod appos aux case cc ccomp clf compound conj cop csubj dep det discourse dislocated expl fixed
    flat goeswith iobj list mark nmod nsubj nummod obj obl orphan parataxis punct reparandum root vocative xcomp
"""  # universaldependencies.org/u/dep, without subtypes


@pytest.fixture(scope="module")
def sentences():
    return list(gold_corpus().open())


@pytest.fixture(scope="module")
def passages():
    return list(gold_corpus("passage").open())


def test_there_are_forty_and_the_sources_examples_among_them(sentences):
    assert len(sentences) == 40 and not [each.problem for each in sentences if each.problem]
    assert {
        "The cat sat on the mat because it was tired.",
        "The cat that I saw yesterday sat.",
        "The researcher who cited the paper won the prize.",
        "The cat sat on the mat.",
    } <= {each.text for each in sentences}
    assert len({each.name for each in sentences}) == 40


def test_each_is_a_tree_with_one_root_of_known_parts_of_speech_and_relations(sentences):
    for each in sentences:
        words = each.gold.words
        assert [word.relation for word in words if word.head == ROOT] == ["root"]
        assert all(word.relation != "root" for word in words if word.head != ROOT)
        assert {word.pos for word in words} <= set(UPOS.split())
        assert {word.relation.split(":")[0] for word in words} <= set(RELATIONS.split())
        assert "".join(each.text[word.begin : word.end] for word in words) == each.text.replace(" ", "")
        for start in range(len(words)):
            above, steps = start, 0
            while above != ROOT:
                above, steps = words[above].head, steps + 1
                assert steps <= len(words)


def test_mentions_nest_and_chains_are_many(sentences, passages):
    for each in sentences:
        assert each.gold.has_coreference
        for a in each.gold.mentions:
            assert a.first <= a.head <= a.last
            assert not any(a.first < b.first <= a.last < b.last for b in each.gold.mentions)
    chains = Counter((index, each.entity) for index, text in enumerate(passages) for each in text.gold.mentions)
    assert sum(times > 1 for times in chains.values()) >= 20


def test_the_cat_was_tired(sentences):
    (tired,) = (each for each in sentences if each.text == "The cat sat on the mat because it was tired.")
    cat, _, it = tired.gold.mentions
    assert tired.text[tired.gold.words[cat.first].begin : tired.gold.words[cat.last].end] == "The cat"
    assert tired.text[tired.gold.words[it.head].begin : tired.gold.words[it.head].end] == "it"
    assert cat.entity == it.entity


def test_a_document_is_a_passage_and_its_pronouns_find_their_nouns(passages):
    assert len(passages) == 14
    found = 0
    for each in passages:
        seen = set()
        for mention in each.gold.mentions:
            found += each.gold.words[mention.head].pos == "PRON" and mention.entity in seen
            seen.add(mention.entity)
    assert found > 20


def test_without_the_file_or_with_another_unit_it_is_said(monkeypatch):
    refuses(TextError, "unit='word' is not a unit of treebanks", gold_corpus, "word")
    monkeypatch.setattr(gold, "SENTENCES", "absent.conllu")
    refuses(FileAccessError, r"cannot read .*absent\.conllu: there is no such file", gold_corpus)
