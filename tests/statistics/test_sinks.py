"""A model's sinks are found by looking: [CLS] in minilm, the first token of a model rigged so, none in a random one."""

import pytest
import torch

import manyheads as mh
from manyheads.models import read_texts
from manyheads.recording import Sinks
from manyheads.statistics.sinks import PROBE_TEXTS, PROBE_TOKENS, find_sinks, judge
from tests.models.eager import draw, implementation
from tests.models.tiny import tiny_bert, tiny_gpt2, tiny_llama, tiny_tokenizer
from tests.statistics.facts import written_text

SENTENCES = (
    "The old dog slept by the door while rain fell on the roof.",
    "Maria sold 14 paintings in Paris, and gave half of the money away.",
    "Why would anyone build a bridge where there is no river?",
    "He said: 'Take the second street on the left, then ask again.'",
    "Tomatoes need sun, water and patience; basil needs only the first two.",
    "In 1969 two people walked on the moon for the first time.",
)


def rigged_gpt2(fresh, pull=12.0):
    """A GPT-2 whose every key at position 0 draws every query, by its position's embedding."""
    model = tiny_gpt2(seed=draw(fresh), sharpness=1.0)
    width, beacon = model.config.n_embd, torch.zeros(model.config.n_embd)
    beacon[::2], beacon[1::2] = 1.0, -1.0  # zero mean: layer norm leaves it
    with torch.no_grad():
        model.transformer.wpe.weight[0] += 20 * beacon
        for block in model.transformer.h:
            attention = block.attn.c_attn
            attention.bias[:width] = 1.0  # queries all point one way
            attention.weight[:, width : 2 * width] += (
                pull / width * beacon[:, None]
            )  # and only position 0's keys that way
    return model


def sinks_of(lm, texts) -> Sinks:
    return find_sinks(lm, read_texts(lm, texts))


def words_of(fresh, count=8):
    return [written_text(fresh, 7 + 2 * n) for n in range(count)]


def test_minilm_parks_on_cls_and_says_with_what_evidence(minilm):
    found = sinks_of(minilm, SENTENCES)
    assert found.names == ("[CLS]",) and found.ids == (minilm.tokenizer.cls_token_id,) and not found.first
    assert "[CLS] draws" in found.because and "times its even share (6 texts)" in found.because


@pytest.mark.turns(4)
def test_measure_looks_for_sinks_once_and_takes_those_it_is_given(minilm, monkeypatch):
    table = mh.measure(minilm, SENTENCES[:3], statistics=["sink_mass", "first_mass"])
    assert table.sinks.names == ("[CLS]",) and table.notes["sinks"] == table.sinks.because
    torch.testing.assert_close(table.column("sink_mass"), table.column("first_mass"))  # [CLS] stands first, once
    assert table.column("sink_mass").max() > 0.3
    monkeypatch.setattr("manyheads.statistics.sinks.find_sinks", lambda *_: pytest.fail("looked again"))
    again = mh.measure(minilm, SENTENCES[:3], statistics=["sink_mass"], sinks=table.sinks)
    torch.testing.assert_close(again.column("sink_mass"), table.column("sink_mass"))
    mh.measure(minilm, SENTENCES[:3], statistics=["entropy"])  # asks for none


@pytest.mark.turns(4)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.sampled(1)
def test_a_decoder_rigged_to_park_on_its_first_token_has_that_sink_whatever_the_token_is(attention, fresh):
    lm = mh.load(rigged_gpt2(fresh), tokenizer=tiny_tokenizer(special_tokens=False))
    texts = words_of(fresh)
    with implementation(lm.model, attention):
        found = sinks_of(lm, texts)
        table = mh.measure(lm, texts, statistics=["sink_mass", "first_mass", "sink_norm_mass"])
    assert found.first and found.ids == () and found.names == ("the first token",)
    assert "the first token draws" in found.because
    assert (table.column("sink_mass") > 0.5).all()
    torch.testing.assert_close(table.column("sink_mass"), table.column("first_mass"))


@pytest.mark.turns(4)
@pytest.mark.parametrize("make", [tiny_bert, tiny_gpt2, tiny_llama])
@pytest.mark.sampled(2)
def test_a_random_model_has_no_sink_and_says_so(make, fresh):
    """At the usual initialisation. (A causal model's first token draws much, but an even share.)"""
    lm = mh.load(make(seed=draw(fresh), sharpness=1.0), tokenizer=tiny_tokenizer(special_tokens=make is tiny_bert))
    found = sinks_of(lm, words_of(fresh))
    assert (found.first, found.ids, found.names) == (False, (), ())
    assert found.because == "no token draws over 5% of all attention and 3 times its even share (8 texts)"
    table = mh.measure(lm, words_of(fresh), statistics=["sink_mass"])
    assert bool(torch.isnan(torch.tensor(table.column("sink_mass"))).all())  # nothing to measure: not 0


def test_sinks_are_looked_for_on_a_bounded_number_of_texts_and_tokens(fresh, monkeypatch):
    lm = mh.load(tiny_gpt2(seed=draw(fresh), n_positions=400), tokenizer=tiny_tokenizer(special_tokens=False))
    shapes = []
    hook = lm.model.transformer.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    reading = read_texts(lm, [written_text(fresh, 280), *words_of(fresh, 60)])
    find_sinks(lm, reading)
    hook.remove()
    ((texts, tokens),) = shapes
    assert texts <= PROBE_TEXTS and tokens <= PROBE_TOKENS


def test_judging_compares_with_the_even_share(fresh):
    """Columns made by hand: what draws much, but about its even share, is no sink; nor is what draws 2 % of all."""
    lm = mh.load(tiny_bert(seed=draw(fresh)), tokenizer=tiny_tokenizer())
    from manyheads.models import tokens_of

    tokens = tokens_of(read_texts(lm, ["the cat sat .", "the dog ran ."]), [0, 1], None, "")
    even = torch.full(tokens.real.shape, 1 / 12)
    assert tokens.pieces[0] == ("[CLS]", "the", "cat", "sat", ".", "[SEP]")
    received = even.clone()
    received[:, 4] = 0.3  # the full stops
    assert judge(tokens, received, even).names == (".",)
    received[:, 0] = 0.35
    both = judge(tokens, received, even)
    assert both.names == ("[CLS]", ".")  # the strongest first
    assert not both.first  # [CLS] is the reason, not the place
    assert judge(tokens, received / 20, even / 20).names == ()  # too little of all attention
    assert judge(tokens, 2.9 * even, even).names == ()
