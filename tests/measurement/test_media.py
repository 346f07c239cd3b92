"""Statistics over pictures and sounds equal the reference's on the model's own eager maps; what needs words is said."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.errors import ModelError, RecordingError, StatisticError, TextError
from manyheads.measurement import measure_call
from manyheads.reference.cells import TextFacts
from manyheads.statistics import STATISTICS, alignment
from tests.models.eager import draw, eager_maps, implementation
from tests.models.tiny import tiny_bert, tiny_tokenizer
from tests.models.tiny_media import RATE, pixels, some_picture, some_sound
from tests.refusals import refuses
from tests.statistics.test_against_reference import assert_same_table, of_maps

WORDLESS = [name for name, statistic in STATISTICS.items() if not statistic.asks & {"tokens", "sinks"}]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Three pictures or sounds are two batches."""
    monkeypatch.setattr("manyheads.inputs.reading.MEDIA_BATCH", 2)


def nameless(length, causal=False):
    no, see = np.zeros(length, bool), np.ones((length, length), bool)
    return TextFacts(np.tril(see) if causal else see, np.arange(length), no, no, no, no, no, no, np.arange(length))


@pytest.mark.thinned
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["vit", "dinov2", "yolos"])
def test_every_statistic_of_pictures_equals_the_reference(name, attention, seeing, fresh):
    lm, pictures = seeing(name), [some_picture(fresh), some_picture(fresh, 47, 31), some_picture(fresh)]
    maps = eager_maps(lm.model, pixel_values=pixels(lm, pictures))
    count = maps[0].shape[-1]
    with implementation(lm.model, attention):
        table = mh.measure(lm, mh.Inputs(image=pictures), statistics="all")
    wanted = of_maps(maps, [slice(0, count)] * 3, lambda layer, text: nameless(count))
    assert_same_table(table, wanted, count, WORDLESS)
    assert table.sums.num_texts == 3 and table.sums.num_tokens == 3 * count
    left_out = table.notes["left out, for want of words"].split(", ")
    assert sorted([*left_out, *WORDLESS]) == sorted(STATISTICS)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_sounds_of_two_lengths_equal_the_reference_each_as_long_as_it_is(attention, wav2vec2, fresh):
    lm = wav2vec2()
    sounds = [some_sound(fresh, 1.25), some_sound(fresh, 0.6), some_sound(fresh, 0.3)]
    maps = eager_maps(lm.model, **lm.processor(sounds, sampling_rate=RATE, return_tensors="pt", padding=True))
    with implementation(lm.model, attention):
        table = mh.measure(lm, mh.Inputs(audio=sounds, sampling_rate=RATE), statistics="all")
    lengths = (62, 29, 14)
    wanted = of_maps(maps, [slice(0, n) for n in lengths], lambda layer, text: nameless(lengths[text]))
    assert_same_table(table, wanted, 62, WORDLESS)
    assert table.sums.num_tokens == sum(lengths)


def test_whispers_encoder_and_decoder_equal_the_reference_and_what_crosses_is_named(whisper, fresh):
    sounds, transcript = [some_sound(fresh, 1.3), some_sound(fresh, 0.7), some_sound(fresh, 0.2)], "the cat sat"
    lm = whisper(tokenizer=tiny_tokenizer(special_tokens=False))
    table = mh.measure(lm, mh.Inputs(audio=sounds, sampling_rate=RATE, transcript=transcript), statistics="all")
    recorded = mh.record(lm, mh.Inputs(audio=sounds, sampling_rate=RATE, transcript=transcript))
    features = lm.processor(sounds, sampling_rate=RATE, return_tensors="pt")["input_features"]
    ids = torch.tensor([[2, *lm.tokenizer(transcript)["input_ids"]]] * 3)
    with implementation(lm.model, "eager"), torch.no_grad():
        own = lm.model(input_features=features, decoder_input_ids=ids, output_attentions=True)
    parts = []
    for maps, causal in ((own.encoder_attentions, False), (own.decoder_attentions, True)):
        n = maps[0].shape[-1]
        facts = nameless(n, causal)
        parts.append(of_maps(list(maps), [slice(0, n)] * 3, lambda layer, text, facts=facts: facts))
    wanted = {name: tuple(np.concatenate([part[name][i] for part in parts]) for i in (0, 1)) for name in parts[0]}
    own_text = np.array([head.stack != "cross" for head in table.heads])
    columns = SimpleNamespace(names=WORDLESS, column=lambda name: table.column(name)[own_text])
    assert_same_table(columns, wanted, 100, WORDLESS)
    assert {head.stack for head in table.heads} == {"encoder", "decoder", "cross"}
    unsaid = table.notes["not of cross-attention, whose rows and keys are different tokens"].split(", ")
    assert {"distance", "previous_mass", "local_mass"} < set(unsaid) and "entropy" not in unsaid
    assert all(np.isnan(table.column(name)[~own_text]).all() for name in unsaid)
    sharp = [alignment(layer).sharp.mean(0) for layer in recorded.stacks["cross"]]
    np.testing.assert_allclose(table.column("sharpness")[~own_text], np.concatenate(sharp), atol=1e-6)
    assert table.notes["decoder"] == "a transcript that was given"
    alone = mh.measure(lm, mh.Inputs(audio=sounds, sampling_rate=RATE), statistics="entropy")
    # One key, so one score, added up two ways: up to 30, of 8 products, which processors add in orders of their own.
    assert abs(alone["decoder:L0H1", "entropy"]) < 1e-4 and alone.notes["decoder"] == "its start tokens alone"


def test_windows_of_a_picture_add_up_to_it(seeing, fresh):
    """Swin has four times as many windows in its first stage as in its second."""
    lm, pictures = seeing("swin"), [some_picture(fresh) for _ in range(3)]
    maps = eager_maps(lm.model, pixel_values=pixels(lm, pictures))  # of each stage's second layer alone
    table = mh.measure(lm, mh.Inputs(image=pictures), statistics=["entropy", "distance", "self_mass"])
    assert len(maps) == 2 and len(maps[0]) == 4 * len(maps[1]) == 16 * 3
    for stage, own in enumerate(maps):
        entropy = -(own.double() * own.double().clamp_min(1e-300).log()).sum(-1).mean((0, 2))
        here = [head.layer == 2 * stage + 1 for head in table.heads]
        np.testing.assert_allclose(table.column("entropy")[here], entropy.numpy(), atol=1e-5)
        itself = own.diagonal(0, 2, 3).double().mean((0, 2))
        np.testing.assert_allclose(table.column("self_mass")[here], itself.numpy(), atol=1e-5)
    assert table.sums.num_texts == 3
    bare = measure_call(lm.model, pixel_values=pixels(lm, pictures), statistics="entropy")
    np.testing.assert_allclose(bare.column("entropy"), table.column("entropy"), atol=1e-6)


def test_pictures_fall_in_the_same_halves_in_any_order_and_alone(seeing, fresh):
    lm, pictures = seeing("vit"), [some_picture(fresh) for _ in range(5)]
    one = mh.measure(lm, mh.Inputs(image=pictures), statistics="entropy").sums
    other = mh.measure(lm, mh.Inputs(image=pictures[::-1]), statistics="entropy").sums
    np.testing.assert_allclose(one.num, other.num, atol=1e-3)
    assert (one.den == other.den).all()
    apart = [mh.measure(lm, mh.Inputs(image=each), statistics="entropy").sums for each in pictures]
    whole = apart[0] + apart[1] + apart[2] + apart[3] + apart[4]
    assert (whole.den == one.den).all() and one.den[:, 0, 0, 0].sum() == 5 * 16


def test_progress_counts_pictures(seeing, fresh):
    seen = []
    mh.measure(
        seeing("vit"),
        mh.Inputs(image=[some_picture(fresh)] * 5),
        statistics="entropy",
        progress=lambda *at: seen.append(at),
    )
    assert seen == [(2, 5), (4, 5), (5, 5)]


def test_what_cannot_be_measured_is_said(seeing, fresh):
    lm, picture = seeing("vit"), some_picture(fresh)
    with pytest.raises(StatisticError, match=r"^rare_mass: about words, and a picture or a sound has none"):
        mh.measure(lm, mh.Inputs(image=picture), statistics=["entropy", "rare_mass"])
    refuses(
        StatisticError, r"^sink_mass: about words", mh.measure, lm, mh.Inputs(image=picture), statistics="sink_mass"
    )
    refuses(
        StatisticError,
        r"kinds= and sinks= are about a text's tokens",
        mh.measure,
        lm,
        mh.Inputs(image=picture),
        kinds=True,
    )
    refuses(TextError, "give a text, or a list of texts. Or give one of image= and audio=", mh.measure, lm, None)
    with pytest.raises(RecordingError, match="exactly one of texts, image= and audio=: texts and audio= came"):
        mh.measure(lm, mh.Inputs("a cat", audio=picture))
    with pytest.raises(ModelError, match="reads pictures alone: give exactly one of texts, image= and audio="):
        mh.measure(lm, mh.Inputs("a cat", image=picture))
    with pytest.raises(RecordingError, match="sampling_rate= and transcript= are for sounds"):
        mh.measure(lm, mh.Inputs(image=picture, sampling_rate=RATE))
    refuses(ModelError, "reads pictures, not text: give mh.Inputs\\(image=", mh.measure, lm, "a cat")
    bert = mh.load(tiny_bert(seed=draw(fresh)), tokenizer=tiny_tokenizer())
    refuses(ModelError, "reads text, not pictures", mh.measure, bert, mh.Inputs(image=picture))
