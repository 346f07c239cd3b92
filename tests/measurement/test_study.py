"""One pass for several questions: what `study` gives is what `measure`, `record` and `pooled_maps` give one by one."""

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.errors import ModelError, RecordingError
from manyheads.inputs import read
from manyheads.inputs.reading import groups_of
from manyheads.measurement import MapPooling, NextTokens, SampleLink, pooled_maps, study
from manyheads.recording import telling_link
from tests.models.eager import draw
from tests.models.tiny import tiny_bert, tiny_gpt2, tiny_t5, tiny_tokenizer
from tests.refusals import refuses
from tests.statistics.facts import written_text

STATISTICS = ["entropy", "sink_mass", "duplicate_mass", "max_logit"]


def subjects(fresh):
    """A model and texts, by name: of several lengths, in several windows, and pairs."""
    texts = [written_text(fresh, 11 + 7 * n % 19) for n in range(7)]
    targets = [written_text(fresh, 5 + n) for n in range(7)]
    pairs = [*zip(texts, targets, strict=True)]
    return {
        "bert": (mh.load(tiny_bert(seed=draw(fresh)), tokenizer=tiny_tokenizer()), texts),
        "gpt2 in windows": (
            mh.load(tiny_gpt2(seed=draw(fresh)), tokenizer=tiny_tokenizer(special_tokens=False, model_max_length=96)),
            [written_text(fresh, 130), *texts],
        ),
        "t5": (mh.load(tiny_t5(seed=draw(fresh)), tokenizer=tiny_tokenizer()), texts),
        "t5 with targets": (mh.load(tiny_t5(seed=draw(fresh)), tokenizer=tiny_tokenizer()), pairs),
    }


@pytest.mark.parametrize("most", [60, 10_000])  # several batches, and one
@pytest.mark.parametrize("name", ["bert", "gpt2 in windows", "t5", "t5 with targets"])
def test_table_and_recording_are_those_of_measure_and_record(name, most, fresh, monkeypatch):
    lm, texts = subjects(fresh)[name]
    monkeypatch.setattr("manyheads.inputs.reading.groups_of", lambda pieces, *_: groups_of(pieces, most))
    table, recording = study(lm, texts, STATISTICS)
    want = mh.measure(lm, texts, STATISTICS)
    assert table.notes == want.notes and table.sinks == want.sinks
    np.testing.assert_array_equal(table.sums.num, want.sums.num)
    np.testing.assert_array_equal(table.sums.den, want.sums.den)
    recorded = mh.record(lm, texts)
    assert recording is not None and recording.stacks.keys() == recorded.stacks.keys()
    assert recording.tokens.texts == recorded.tokens.texts and recording.tokens.stretches == recorded.tokens.stretches
    same = ("windows", "decoder", "model", "backend", "implementation")
    assert {key: recording.provenance.get(key) for key in same} == {key: recorded.provenance.get(key) for key in same}
    for stack, layers in recorded.stacks.items():
        for got, layer in zip(recording.stacks[stack], layers, strict=True):
            assert got.site == layer.site and got.tokens.lengths.tolist() == layer.tokens.lengths.tolist()
            for text in range(recording.tokens.num_texts):
                torch.testing.assert_close(got.weights(text=text), layer.weights(text=text), atol=2e-6, rtol=2e-5)


def test_what_watches_beside_sees_the_same_pass(fresh, monkeypatch):
    lm, texts = subjects(fresh)["gpt2 in windows"]
    monkeypatch.setattr("manyheads.inputs.reading.groups_of", lambda pieces, *_: groups_of(pieces, 110))
    reading = read(lm, texts)
    assert len(reading.pieces) > len(texts)
    pooling, sample = MapPooling(reading, 9), SampleLink(len(reading.pieces[0].text))
    table, recording = study(lm, reading, STATISTICS, keep=(), beside=[pooling, sample])
    assert recording is None and table.sums.num_texts == len(reading.pieces)
    got, want = pooling.maps(), pooled_maps(lm, texts, size=9)
    assert (got.because, got.num_tokens, got.heads) == (want.because, want.num_tokens, want.heads)
    np.testing.assert_allclose(got.maps, want.maps, atol=1e-6)
    link, known = sample.link, telling_link(mh.record(lm, reading.pieces[0].text).layers)
    assert link is not None and known is not None
    assert (link.head, link.query, link.key) == (known.head, known.query, known.key)
    assert link.weight == pytest.approx(known.weight, abs=1e-5)
    names = [word.name for word in sample.words]
    assert link.query in names and link.key in names


def test_the_sample_of_a_beginning_has_its_words_alone(fresh):
    lm, texts = subjects(fresh)["bert"]
    end = texts[0].index(" ", 20)
    sample = SampleLink(end)
    study(lm, texts, ["entropy"], keep=(), beside=[sample])
    shown = [word for word in sample.words if not word.aside]
    assert "".join(word.text for word in shown) == texts[0][:end].replace(" ", "")


@pytest.mark.parametrize("one_alone", [True, False], ids=["one token's logits", "all logits"])
def test_what_comes_next_is_what_the_model_itself_says(one_alone, fresh, monkeypatch):
    lm, texts = subjects(fresh)["gpt2 in windows"]
    monkeypatch.setattr("manyheads.inputs.reading.groups_of", lambda pieces, *_: groups_of(pieces, 110))
    if not one_alone:  # a model whose `forward` cannot leave the others out
        monkeypatch.setattr(NextTokens, "asking", lambda self, batch: batch)
    reading = read(lm, texts[1:])
    table, _ = study(lm, reading, STATISTICS, keep=(), following=(following := NextTokens(reading, 4)))
    np.testing.assert_allclose(table.sums.num, mh.measure(lm, texts[1:], STATISTICS).sums.num, rtol=1e-6)
    with torch.no_grad():
        last = lm.model(torch.tensor([reading.pieces[-1].ids])).logits[0, -1]
    likeliest = last.double().softmax(-1).topk(4)
    assert [token.probability for token in following.tokens] == pytest.approx(likeliest.values.tolist(), abs=1e-6)
    names = lm.required_tokenizer.convert_ids_to_tokens(likeliest.indices.tolist())
    assert all(token.text.strip("#") in name for token, name in zip(following.tokens, names, strict=True))


@pytest.mark.parametrize("name", ["bert", "t5", "t5 with targets"])
def test_nothing_comes_next_where_a_text_is_not_gone_on_with(name, fresh):
    lm, texts = subjects(fresh)[name]
    reading = read(lm, texts)
    study(lm, reading, STATISTICS, keep=(), following=(following := NextTokens(reading)))
    assert following.tokens == ()


def test_no_character_of_a_sample_is_left_out_though_no_token_begins_a_word_of_its_own():
    lm = mh.load("tiny-code")  # one token is " ->", two words are "-" and ">"
    for text in ("def f(x) ->", "x = a +=", "a -> b"):
        study(lm, text, ["entropy"], keep=(), beside=[sample := SampleLink(len(text))])
        assert "".join(word.text for word in sample.words if not word.aside) == text.replace(" ", "")


def test_what_does_not_fit_or_is_no_tensor_is_refused(fresh, monkeypatch):
    lm, texts = subjects(fresh)["bert"]
    refuses(RecordingError, "a recording keeps q, k and lse", study, lm, texts, keep=("q",))
    monkeypatch.setattr("manyheads.inputs.recorder.free_bytes", lambda device: 1)
    refuses(ModelError, "this recording would take", study, lm, texts)
    assert study(lm, texts, keep=()).recording is None
