"""Targets of one's own: what a decoder beside an encoder reads and is measured on, against the model's own labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.errors import TextError
from tests.models.odd import tiny_bart, tiny_t5
from tests.models.tiny import tiny_llama, tiny_tokenizer

PAIRS = [
    ("The old cat sat on the table, and the dog said: why?", "why is the cat here"),
    ("The dog sat.", "the old dog said: the cat sat on the table , and why ?"),
    ("The cat said why the dog is here.", "the cat"),
]


def loaded(model):
    model.set_attn_implementation("eager")
    return mh.load(model, tokenizer=tiny_tokenizer())


@pytest.fixture(scope="module")
def bart():
    return loaded(tiny_bart(3))


@pytest.fixture(scope="module", params=["t5", "bart"])
def lm(request, bart):
    return bart if request.param == "bart" else loaded(tiny_t5(seed=3))


def fed(lm, pairs):
    """The inputs of a batch as transformers' own training makes them, and the labels."""
    source = lm.tokenizer([source for source, _ in pairs], return_tensors="pt", padding=True)
    target = lm.tokenizer(text_target=[target for _, target in pairs], return_tensors="pt", padding=True)
    labels = target.input_ids.masked_fill(target.attention_mask == 0, -100)
    return {"input_ids": source.input_ids, "attention_mask": source.attention_mask, "labels": labels}


def loss_of(lm, pair):
    with torch.no_grad():
        return float(lm.model(**fed(lm, [pair])).loss)


@pytest.mark.turns(4)
@pytest.mark.sampled(1)
def test_the_loss_before_an_ablation_is_the_models_own_on_these_labels(lm):
    """With the model's own loss as the oracle, for pairs read in one padded batch."""
    result = mh.effect(lm, mh.Ablate("cross:L0H1"), PAIRS, controls=2)
    assert result.before == pytest.approx(np.mean([loss_of(lm, pair) for pair in PAIRS]), abs=1e-5)
    assert result.notes["decoder"] == "reads the targets that were given, one place later"
    with mh.applied(lm, mh.Ablate("cross:L0H1")):
        ablated = [loss_of(lm, pair) for pair in PAIRS]
    change = np.subtract(ablated, [loss_of(lm, pair) for pair in PAIRS])
    np.testing.assert_allclose(result.per_text, change, atol=1e-5)
    plain = mh.effect(lm, mh.Ablate("cross:L0H1"), [source for source, _ in PAIRS], controls=0)
    assert abs(plain.before - result.before) > 1e-3  # of the source repeated: another number


@pytest.mark.turns(4)
def test_importance_and_what_stands_in_a_heads_place_read_the_targets(bart):
    """Ablation one by one is the oracle; the mean is of the decoder on these targets, and not on the sources."""
    lm = bart
    worth = mh.importance(lm, PAIRS)
    for name in ("encoder:L1H2", "cross:L1H3"):
        assert worth[name] == pytest.approx(mh.effect(lm, mh.Ablate(name), PAIRS, controls=0).change, abs=1e-5)
    means = mh.effect(lm, mh.Ablate("cross:L1H3", kind="mean"), PAIRS, controls=0)
    with mh.applied(lm, mh.Ablate("cross:L1H3", kind="mean"), corpus=[fed_as_read(lm, pair) for pair in PAIRS]):
        ablated = np.mean([loss_of(lm, pair) for pair in PAIRS])
    assert means.after == pytest.approx(ablated, abs=1e-5)


def fed_as_read(lm, pair):
    inputs = fed(lm, [pair])
    return {**inputs, "decoder_input_ids": lm.model.prepare_decoder_input_ids_from_labels(labels=inputs["labels"])}


@pytest.mark.sampled(1)
def test_a_recording_has_the_targets_as_the_decoder_reads_them(lm):
    """Maps against the model's own eager ones, of unequal lengths on either side."""
    rec = mh.record(lm, PAIRS)
    inputs = fed(lm, PAIRS)
    ids = lm.model.prepare_decoder_input_ids_from_labels(labels=inputs["labels"])
    with torch.no_grad():
        mask = (inputs["labels"] >= 0).long()
        maps = lm.model(**inputs, decoder_attention_mask=mask, output_attentions=True).cross_attentions
    for index, layer in enumerate(rec.stacks["cross"]):
        for text, length in enumerate(mask.sum(1).tolist()):
            assert layer.tokens.ids[text, :length].tolist() == ids[text, :length].tolist()
            assert (layer.weights(text=text) - maps[index][text, :, :length]).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([PAIRS[0], "alone"], "text 0 has a target, and text 1 has none"),
        ([("a cat", "")], "the target of the text is empty"),
        ([("a cat", 3)], "the target of the text is an int"),
        ([("a", "b", "c")], "text 0 is a tuple"),
        ([(3, "a cat")], "text 0 is an int"),
    ],
)
def test_bad_pairs_are_refused(bart, texts, message):
    with pytest.raises(TextError, match=message):
        mh.effect(bart, mh.Ablate("cross:L0H1"), texts)


def test_pairs_are_refused_where_nothing_reads_a_target(lm):
    decoder = mh.load(tiny_llama(), tokenizer=tiny_tokenizer(special_tokens=False))
    with pytest.raises(TextError, match="writes no text beside the one that it reads"):
        mh.importance(decoder, PAIRS)
    with pytest.raises(TextError, match="this reads no targets"):
        mh.record(lm, PAIRS, generate=2)
