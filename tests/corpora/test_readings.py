"""What a model is shown where nothing is given: prose, but for a bundled model that has read something else."""

import ast

import pytest

from manyheads.corpora import OWN_TEXT, own_corpora, page_texts, reading_of
from manyheads.corpora.bundled_texts import READINGS, own_corpus, page_digest
from manyheads.models import BUNDLED


@pytest.mark.parametrize("name", ["minilm", "somebody/else", "a/folder", ""])
def test_models_of_prose_are_shown_what_they_were_always_shown(name):
    reading = reading_of(name)
    assert reading.sentence is OWN_TEXT and reading.sentence_is == "a sentence of our own"
    assert (reading.texts(), reading.digest(), reading.texts_are) == (page_texts(), page_digest(), "texts of our own")
    texts, passages = own_corpora(name)
    assert (texts.key, texts.origin) == (own_corpus().key, own_corpus().origin) and passages is not None


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
    assert corpus.origin == "texts of manyheads' own source, as this model reads Python"


def test_about_as_many_tokens_as_the_page_of_prose():
    from tokenizers import Tokenizer

    from manyheads.models.loading.checkpoints import find_bundled

    reader = Tokenizer.from_file(str(find_bundled("tiny-code") / "tokenizer.json"))
    python, prose = (
        sum(len(each.ids) for each in reader.encode_batch(texts))
        for texts in (reading_of("tiny-code").texts(), page_texts())
    )
    assert 0.7 < python / prose < 1.5


def test_every_bundled_model_reads_something_that_there_is():
    assert all(each.reads in READINGS for each in BUNDLED.values())
