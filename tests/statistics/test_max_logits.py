"""The largest logits of every head, measured, are the maxima of the model's own float64 scores, made by hand.

The oracle takes q.k from the eager function of the model itself, as it multiplies them; scale, softcap, window and
padding are applied here, from the model's configuration.
"""

from unittest import mock

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.errors import StatisticError
from manyheads.statistics import OF_SCORES, Sums
from manyheads.statistics.one_batch import Finished
from tests.models.eager import draw, implementation, padded, spans
from tests.models.odd import tiny_gpt_oss, tiny_t5
from tests.models.tiny import WORDS, tiny_bert, tiny_gemma2, tiny_gpt2, tiny_llama, tiny_mistral, tiny_tokenizer

NAMES = ("max_logit", "max_logit_uncapped", "max_logit_unscaled")
MAKERS = {
    "bert": tiny_bert,
    "gpt2": tiny_gpt2,
    "llama": tiny_llama,
    "mistral": tiny_mistral,
    "gemma2": tiny_gemma2,
    "gpt_oss": tiny_gpt_oss,
}
EXACT = 1e-5  # q and k are the model's own float32


def products(model, inputs):
    """[b, h, q, k] of every layer: the q and k that the model's own eager function multiplies, in float64."""
    real, out = torch.matmul, []

    def matmul(one, other):
        got = real(one, other)
        if got.ndim == 4 and got.shape[-2:] == (inputs["input_ids"].shape[1],) * 2:
            out.append(real(one.double(), other.double()))
        return got

    with implementation(model, "eager"), mock.patch.object(torch, "matmul", matmul), torch.no_grad():
        model(**inputs)
    assert len(out) == model.config.num_hidden_layers
    return out


def by_hand(name, model, inputs):
    """Name -> [text, head], the heads of all layers after one another."""
    config, out = model.config, {statistic: [] for statistic in NAMES}
    window = getattr(config, "sliding_window", None)
    for layer, product in enumerate(products(model, inputs)):
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        scale = getattr(config, "query_pre_attn_scalar", width) ** -0.5
        slides = name == "mistral" or (name in ("gemma2", "gpt_oss") and layer % 2 == 0)
        texts = []
        for text, span in enumerate(spans(inputs["attention_mask"])):
            place = torch.arange(span.stop - span.start)
            away = place[:, None] - place[None]
            seen = torch.ones_like(away, dtype=torch.bool) if name == "bert" else away >= 0
            seen = seen & (away < window) if slides else seen
            texts.append(product[text, :, span, span].masked_fill(~seen, -torch.inf).amax((-1, -2)))
        unscaled = torch.stack(texts)
        uncapped = unscaled * scale
        cap = getattr(config, "attn_logit_softcapping", None)
        finished = uncapped if cap is None else cap * torch.tanh(uncapped / cap)
        for statistic, value in zip(NAMES, (finished, uncapped, unscaled), strict=True):
            out[statistic].append(value)
    return {statistic: torch.cat(layers, 1).numpy() for statistic, layers in out.items()}


@pytest.mark.turns(4)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.sampled(3)
def test_they_are_the_maxima_of_the_models_own_scores(name, side, fresh):
    model = MAKERS[name](seed=draw(fresh))
    inputs = padded(fresh, (41, 7, 59, 2), model.config.vocab_size, side)
    with implementation(model, "eager"):
        table = mh.measure_call(model, **inputs, statistics=["entropy", *NAMES])
    for statistic, want in by_hand(name, model, inputs).items():
        np.testing.assert_allclose(table.column(statistic), want.max(0), rtol=EXACT, atol=EXACT, err_msg=statistic)
    assert "entropy" in table.names and not np.isnan(table.column("entropy")).any()


def test_a_softcap_and_a_scale_make_three_unlike_numbers(fresh):
    table = mh.measure_call(tiny_gemma2(seed=draw(fresh)), **padded(fresh, (33, 21), 40), statistics="max_logit*")
    capped, uncapped, unscaled = (table.column(name) for name in table.names)
    assert table.names == NAMES
    np.testing.assert_allclose(capped, 5 * np.tanh(uncapped / 5), rtol=1e-5)
    np.testing.assert_allclose(uncapped, unscaled * 7**-0.5, rtol=1e-5)
    assert (capped < uncapped).all()


def test_of_a_bias_both_sides_are_told(fresh):
    """T5: the bias is added to scores that have no scale."""
    model, inputs = tiny_t5(seed=draw(fresh)), padded(fresh, (67, 23), 99)
    layers = mh.record_call(model.encoder, **inputs).layers
    table = mh.measure_call(model.encoder, **inputs, statistics=[*NAMES])
    after, before = [], []
    for layer in layers:
        bias = layer.rule.bias.double()
        product = torch.einsum("bhqd,bhkd->bhqk", layer.q.double(), layer.k.double())
        seen = layer.mask.visible(slice(None), slice(None))  # of an encoder by itself, padding too has rows
        assert seen[1, 0, :23].sum() == 23 * 23
        after.append((product + bias).masked_fill(~seen, -torch.inf).amax((0, 2, 3)))
        before.append(product.masked_fill(~seen, -torch.inf).amax((0, 2, 3)))
    np.testing.assert_allclose(table.column("max_logit"), torch.cat(after), rtol=1e-5, atol=1e-5)
    for name in NAMES[1:]:
        np.testing.assert_allclose(table.column(name), torch.cat(before), rtol=1e-5, atol=1e-5)


@pytest.mark.turns(4)
def test_over_texts_batches_and_halves_it_is_the_largest_and_has_no_interval(fresh):
    lm = mh.load(tiny_llama(seed=draw(fresh)), tokenizer=tiny_tokenizer(special_tokens=False))
    sizes = torch.randint(2, 30, (9,), generator=fresh).tolist()
    texts = [" ".join(WORDS[i] for i in torch.randint(len(WORDS), (n,), generator=fresh).tolist()) for n in sizes]
    alone = [mh.measure(lm, text, NAMES) for text in texts]
    table = mh.measure(lm, texts, ["entropy", *NAMES])
    streamed = mh.measure(lm, iter(texts), NAMES)
    for name in NAMES:
        for half in (None, 0, 1):
            parts = np.stack([part.column(name, half) for part in alone])
            assert np.isfinite(parts).all() == (half is None), "each text is in one half"
            want = np.where(np.isnan(parts).all(0), np.nan, np.nanmax(np.where(np.isnan(parts), -np.inf, parts), 0))
            for got in (table, streamed):
                np.testing.assert_allclose(got.column(name, half), want, rtol=1e-5, atol=1e-5)
        low, high = table.interval(name)
        assert np.isnan(low).all() and np.isnan(high).all()
        assert table.no_interval(name, "L1H2") == "a maximum over texts has no interval"
    sums = sum((part.sums for part in alone[1:]), alone[0].sums)
    np.testing.assert_allclose(sums.value()[..., 0], streamed.sums.value()[..., 0], rtol=1e-5, atol=1e-5)
    assert np.isnan(sums.value()[..., 1:]).all()


def test_maxima_are_not_added_up():
    num, den = torch.tensor([[[-3.0]], [[-5.0]], [[0.0]]]), torch.tensor([[[1.0]], [[1.0]], [[0.0]]])
    sums = Sums.of(num, den, [2, 4, 6], 9, (0,)) + Sums.of(num - 1, den, [3, 5, 7], 9, (0,))
    assert sums.value()[0, 0, 0] == -3.0, "negative, and the text without a value (0 of 0) counts for nothing"
    assert (sums.value(0)[0, 0, 0], sums.value(1)[0, 0, 0]) == (-3.0, -4.0)
    with pytest.raises(StatisticError, match="do not add"):
        sums + Sums.of(num, den, [2, 4, 6], 9)


def test_of_a_text_that_is_read_in_windows_the_largest_counts_once():
    """As a Swin layer attends: two texts of three windows each; in one of them the second head sees nothing."""
    num = torch.tensor([[-2.0, -9.0], [-1.0, 0.0], [-3.0, -8.0], [4.0, 0.0], [6.0, 0.0], [5.0, 0.0]])
    own = (num != 0).double()
    numbers = Finished(torch.stack([num, num], -1).double(), torch.ones(6, 2, dtype=torch.float64), {1: own})
    both = numbers.num_of_texts(2, (1,)).unflatten(0, (2, 3)).sum(1)
    assert both[..., 0].tolist() == [[-6.0, -17.0], [15.0, 0.0]], "what is no maximum is added up as it was"
    assert both[..., 1].tolist() == [[-1.0, -8.0], [6.0, 0.0]]
    assert numbers.num_of_texts(6, (1,)) is numbers.num


def test_they_are_asked_for_by_name(fresh):
    assert tuple(OF_SCORES) == NAMES
    lm = mh.load(tiny_bert(seed=draw(fresh)), tokenizer=tiny_tokenizer())
    assert not {*NAMES} & {*mh.measure(lm, "the cat sat", "all").names}
    assert mh.measure(lm, "the cat sat", "max_logit*").names == NAMES
