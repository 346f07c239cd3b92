"""One description for every verb: what may stand in it together, and that each verb reads the same of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

import manyheads as mh
from manyheads.corpora import corpus_of
from manyheads.errors import RecordingError, StatisticError, TextError
from manyheads.inputs import Batch, batch_of_call, forward, read
from manyheads.measurement import measure_call
from manyheads.texts import Document
from tests.models.eager import draw
from tests.models.tiny import tiny_bert, tiny_gpt2, tiny_t5, tiny_tokenizer
from tests.models.tiny_media import some_picture
from tests.refusals import refuses

TEXTS = ["the cat sat on the mat", "a dog ran", "the man saw the dog and the cat ."]
NAMES = ["entropy", "distance", "previous_mass", "duplicate_mass"]


@pytest.fixture
def bert(fresh):
    return mh.load(tiny_bert(seed=draw(fresh)), tokenizer=tiny_tokenizer())


def ready_of(lm, texts):
    """Each text as a batch of tensors, by the tokenizer alone."""
    return [dict(lm.tokenizer(text, return_tensors="pt")) for text in texts]


@pytest.mark.parametrize(("inputs", "error", "words"), [
    (mh.Inputs(), TextError, "texts is a NoneType: give a text"),
    (mh.Inputs("a", audio="b.wav"), RecordingError, "exactly one of texts, image= and audio=: texts and audio= came"),
    (mh.Inputs("a", ids=[[1]]), RecordingError, r"audio= \(or ids=, or ready=\): texts and ids= came"),
    (mh.Inputs(ids=[[1]], ready=[{}]), RecordingError, r"audio= \(or ids=, or ready=\): ids= and ready= came"),
    (mh.Inputs("a", answer="b"), RecordingError, "answer= is for a text with pictures"),
    (mh.Inputs("a", transcript="b"), RecordingError, "sampling_rate= and transcript= are for sounds"),
    (mh.Inputs("a", long="half"), TextError, "long='half' is not a way to read a long text"),  # type: ignore[arg-type]
])  # fmt: skip
@pytest.mark.parametrize("verb", ["record", "measure", "importance"])
def test_parts_that_do_not_fit_are_refused_by_every_verb(inputs, error, words, verb, bert):
    refuses(error, words, getattr(mh, verb), bert, inputs)


def test_former_keywords_of_record_are_said_to_belong_to_the_inputs(bert):
    refuses(RecordingError, r"long= is part of what is read: give mh.Inputs\(..., long=", mh.record, bert, "a", long=1)


def test_one_description_is_read_by_every_verb(bert):
    inputs = mh.Inputs([Document(TEXTS[0], "first"), *TEXTS[1:]], long="truncate")
    rec, plain = mh.record(bert, inputs), mh.record(bert, TEXTS)
    assert rec.tokens.texts == plain.tokens.texts == tuple(TEXTS)
    table = mh.measure(bert, inputs, NAMES)
    assert np.array_equal(table.column("entropy"), mh.measure(bert, TEXTS, NAMES).column("entropy"))
    plan = mh.Ablate("L0H1", kind="mean")
    for kind in ("mean", "resample"):  # whose corpus is the texts themselves
        plan = mh.Ablate("L0H1", kind=kind)
        found, want = mh.effect(bert, plan, inputs, controls=0), mh.effect(bert, plan, TEXTS, controls=0)
        assert np.array_equal(found.per_text, want.per_text)
    worth = mh.importance(bert, inputs)
    assert np.array_equal(worth.values, mh.importance(bert, TEXTS).values)
    corpus = mh.measure(bert, mh.Inputs(corpus_of(TEXTS), long="truncate"), NAMES)
    np.testing.assert_allclose(corpus.column("entropy"), table.column("entropy"), atol=1e-5)


def test_token_ids_are_the_texts_that_they_are_of(bert):
    ids = [bert.tokenizer(text)["input_ids"] for text in TEXTS]
    table, want = (mh.measure(bert, given, NAMES) for given in (mh.Inputs(ids=ids), TEXTS))
    for name in NAMES:
        np.testing.assert_array_equal(table.column(name), want.column(name))
    assert mh.record(bert, mh.Inputs(ids=ids)).tokens.pieces == mh.record(bert, TEXTS).tokens.pieces
    plan = mh.Scale("L1H0", 0.5)
    found, want = (mh.effect(bert, plan, given, controls=0) for given in (mh.Inputs(ids=ids), TEXTS))
    assert np.array_equal(found.per_text, want.per_text)
    refuses(TextError, "token 99999 is not one of the", mh.record, bert, mh.Inputs(ids=[[1, 99999]]))
    refuses(TextError, "has 41 tokens, and .* has 40 positions: token ids are read as they are", mh.record,
            mh.load(tiny_bert(max_position_embeddings=40)), mh.Inputs(ids=[[1] * 41]))  # fmt: skip
    refuses(TextError, "holds no token, or a text without one", mh.record, bert, mh.Inputs(ids=[[1], []]))


def test_token_ids_without_a_tokenizer_are_numbered_and_have_no_words(fresh):
    lm = mh.load(tiny_gpt2(seed=draw(fresh)))
    ids = torch.randint(3, 40, (2, 9), generator=fresh).tolist()
    rec = mh.record(lm, mh.Inputs(ids=ids))
    assert rec.tokens.pieces[1] == tuple(f"token {token}" for token in ids[1])
    table = mh.measure(lm, mh.Inputs(ids=ids), "default")
    assert "duplicate_mass" in table.notes["left out, for want of words"]
    want = measure_call(lm.model, torch.tensor(ids), statistics=["entropy"])
    np.testing.assert_allclose(table.column("entropy"), want.column("entropy"), atol=1e-6)


def test_ids_of_an_encoder_decoder_are_read_by_its_decoder_too(fresh):
    lm = mh.load(tiny_t5(seed=draw(fresh)), tokenizer=tiny_tokenizer())
    ids = [lm.tokenizer(text)["input_ids"] for text in TEXTS[:2]]
    rec, want = mh.record(lm, mh.Inputs(ids=ids)), mh.record(lm, TEXTS[:2])
    for stack in ("encoder", "decoder", "cross"):
        assert torch.equal(rec.stacks[stack][0].q, want.stacks[stack][0].q)


def test_ready_tensors_are_measured_and_recorded_as_a_call_of_the_model(bert):
    ready = ready_of(bert, TEXTS)
    table = mh.measure(bert, ready, ["entropy", "distance"])
    want = mh.measure(bert, TEXTS, ["entropy", "distance"])
    for name in ("entropy", "distance"):
        np.testing.assert_allclose(table.column(name), want.column(name), atol=1e-5)
    assert table.sums.num_texts == len(TEXTS)
    rec, want = mh.record(bert, ready[:1]), mh.record_call(bert.model, **ready[0])
    assert torch.equal(rec.layers[1].q, want.layers[1].q)
    refuses(RecordingError, "3 ready batches were given, and a recording holds one", mh.record, bert, ready)
    refuses(StatisticError, "about words", mh.measure, bert, ready, ["duplicate_mass"])
    refuses(RecordingError, "generate= writes after a text", mh.record, mh.load(tiny_gpt2()), ready[:1], generate=2)


def test_a_mask_with_holes_is_refused_where_places_matter_and_no_sooner(bert):
    ids = torch.arange(5, 12)[None]
    ready = [{"input_ids": ids, "attention_mask": (ids != 7).long()}]
    for verb in (mh.record, mh.measure):
        refuses(RecordingError, "attention_mask has holes", verb, bert, ready)
    assert mh.effect(bert, mh.Ablate("L0H1"), ready, controls=0).change > 0


def test_pictures_have_an_effect_with_labels_and_means_of_their_own(fresh):
    config = ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=32, image_size=32, patch_size=8,
        num_labels=4,
    )  # fmt: skip
    torch.manual_seed(draw(fresh))
    model, processor = ViTForImageClassification(config).eval(), ViTImageProcessorPil(size={"height": 32, "width": 32})
    lm, pictures = mh.load(model, processor=processor), [some_picture(fresh) for _ in range(9)]
    labels = torch.randint(4, (9,), generator=fresh)
    given = mh.Inputs(image=pictures, labels=labels)
    found = mh.effect(lm, mh.Scale("L1", 3.0), given, controls=0)
    pixels = processor(images=pictures, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        plain = model(pixel_values=pixels).logits
        with mh.applied(lm, mh.Scale("L1", 3.0)):
            scaled = model(pixel_values=pixels).logits
    loss = torch.nn.functional.cross_entropy
    want = loss(scaled, labels, reduction="none") - loss(plain, labels, reduction="none")
    np.testing.assert_allclose(found.per_text, want.numpy(), atol=1e-5)
    assert found.metric == "class_loss"
    means = mh.effect(lm, mh.Ablate("L1H2", kind="mean"), given, controls=0)
    with mh.applied(lm, mh.Ablate("L1H2", kind="mean"), corpus=[{"pixel_values": pixels}]), torch.no_grad():
        ablated = model(pixel_values=pixels).logits
    want = loss(ablated, labels, reduction="none") - loss(plain, labels, reduction="none")
    np.testing.assert_allclose(means.per_text, want.numpy(), atol=1e-5)
    refuses(TextError, "8 labels were given for 9 texts", mh.effect, lm, mh.Scale("L1", 3.0),
            mh.Inputs(image=pictures, labels=labels[:8]))  # fmt: skip


@pytest.mark.parametrize("verb", [
    lambda lm, given: mh.head_families(lm, given),
    lambda lm, given: mh.compare(lm, lm, given),
    lambda lm, given: mh.patch(lm, given, given),
    lambda lm, given: mh.split_heads(lm, given, sink=2, recent=5),
])  # fmt: skip
def test_verbs_of_texts_refuse_pictures(verb, fresh):
    lm = mh.load(tiny_gpt2(seed=draw(fresh)), tokenizer=tiny_tokenizer(special_tokens=False))
    refuses(TextError, "texts", verb, lm, mh.Inputs(image=[some_picture(fresh)] * 2))


def test_a_target_in_a_stream_is_a_text_that_failed(bert):
    stream = iter([Document(TEXTS[0], "a"), Document(TEXTS[1], "b", target="x"), Document(TEXTS[2], "c")])
    table = mh.measure(bert, stream, ["entropy"])
    assert table.sums.num_texts == 2
    assert "b: the text has a target, which is read of a list of texts alone" in str(table.failures)


def test_every_observer_sees_every_call_before_an_edit_and_a_skipped_stack_is_seen_by_none(fresh):
    lm = mh.load(tiny_t5(seed=draw(fresh)), tokenizer=tiny_tokenizer())
    batch = next(read(lm, TEXTS).batches())
    seen: dict[str, list[str]] = {"first": [], "second": [], "edit": []}

    def edit(call):
        assert seen["first"][-1] == seen["second"][-1] == call.site.module
        seen["edit"].append(call.site.module)
        return call.out * 2

    first, second = (lambda call, n=name: seen[n].append(call.site.module) for name in ("first", "second"))
    plain = forward(lm, batch, guard=False)
    assert not plain.tap.sites and torch.equal(plain.outputs[0], forward(lm, batch, first).outputs[0])
    seen["first"].clear()
    edited = forward(lm, batch, first, second, edits=[edit])
    assert seen["first"] == seen["second"] == seen["edit"] == [site.module for site in lm.spec.sites]
    assert not torch.allclose(plain.outputs[0], edited.outputs[0])
    seen["first"].clear()
    skipping = Batch(batch.inputs, batch.places, batch.main, batch.decoder, skips="encoder")
    forward(lm, skipping, first)
    assert seen["first"] == [site.module for site in lm.spec.sites if site.stack != "encoder"]


def test_a_call_shows_its_texts_wherever_padding_stands(fresh):
    ids = torch.randint(3, 40, (2, 7), generator=fresh)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])
    batch = batch_of_call((ids,), {"attention_mask": mask})
    assert batch.main is not None and batch.decoder is None
    assert (
        batch.main.first.tolist() == [2, 0] and batch.main.tokens.lengths.tolist() == [5, 4] and batch.main.width == 7
    )
    assert batch.main.tokens.ids is not None and batch.main.tokens.ids[0].tolist() == ids[0, 2:].tolist()
