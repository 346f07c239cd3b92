"""What a head is worth: gradients are held against differences of a gate that a hook turns, ablation against `applied`.

The gate multiplies the input of the output projection, in float64, by plain torch; the metric is the model's own loss,
or a pooled embedding, by hand.
"""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import manyheads as mh
from manyheads.errors import StatisticError
from manyheads.interventions import METRICS, read_corpus
from manyheads.interventions.effects import importance as module
from manyheads.interventions.effects.importance import gradients
from manyheads.plan import Ablate
from tests.interventions.surgeries import HEADS, TEXTS, by_head, feeding, loaded, projection
from tests.models.eager import draw

STEP = 1e-4  # of a gate; differences are then good to 1e-8 or so


def precise(name, fresh, attention=None):
    """In float64 throughout: some norms would go back to float32."""
    lm = loaded(name, draw(fresh), attention)
    lm.model.double()
    for each in lm.model.modules():
        if type(each).__name__ == "LlamaRMSNorm":
            each.forward = partial(
                nn.functional.rms_norm, normalized_shape=each.weight.shape, weight=each.weight, eps=1e-6
            )
    return lm


def gated(lm, name, layer, head, gate, run):
    """`run()` with one head's output times `gate`: one number, or one a row."""

    def change(x):
        out = by_head(x.clone(), HEADS[name])
        out[:, :, head] *= torch.as_tensor(gate, dtype=x.dtype).reshape(1, -1, 1)
        return out.flatten(-2)

    with feeding(projection(name, lm.model, layer), change), torch.no_grad():
        return run()


def ids_of(lm, text):
    return lm.tokenizer(text, return_tensors="pt", return_token_type_ids=False)["input_ids"]


def loss(lm, text):
    """The mean of a text's next-token losses, in float64 (transformers' own loss is float32)."""
    ids = ids_of(lm, text)
    return -lm.model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None]).mean()


def slope(run, at=0.0):
    return float(run(1 + STEP) - run(1 - STEP)) / (2 * STEP)


@pytest.mark.parametrize(("name", "attention"), [("gpt2", "eager"), ("llama", "sdpa")])
def test_the_gradient_of_each_head_and_text_is_a_difference_in_its_gate(name, attention, fresh):
    lm = precise(name, fresh, attention)
    found = mh.importance(lm, list(TEXTS), "gradient")
    assert found.notes["computed"] == "|d loss / d gate|, summed by example before the absolute value"
    for at in (0, HEADS[name] + 1, -1):
        head = found.heads[at]

        def under(gate, text, head=head):
            return gated(lm, name, head.layer, head.index, gate, lambda: loss(lm, text))

        want = [abs(slope(partial(under, text=text))) for text in TEXTS]
        assert np.abs(found.per_text[:, at] - want).max() < 1e-7 and max(want) > 1e-4
        assert abs(found[head] - np.mean(want)) < 1e-7


def test_gradients_know_softcaps_and_windows(fresh):
    """In float32, since this model's softmax is: a larger step, and less exact."""
    lm, step = loaded("gemma2", draw(fresh), "eager"), 0.02
    found = mh.importance(lm, list(TEXTS), "gradient")
    for at in (1, 6, 11):
        head = found.heads[at]
        for text, got in zip(TEXTS, found.per_text[:, at], strict=True):
            low, high = (
                float(gated(lm, "gemma2", head.layer, head.index, gate, lambda t=text: loss(lm, t)))
                for gate in (1 - step, 1 + step)
            )
            assert abs(got - abs(high - low) / (2 * step)) < 0.01 * found.per_text.max()
    assert found.per_text.max() > 1e-2


def test_reduce_says_where_the_absolute_value_is_taken(fresh):
    lm, texts = precise("gpt2", fresh), list(TEXTS)
    by_token = mh.importance(lm, texts, "gradient", reduce="token")
    by_example = mh.importance(lm, texts, "gradient", reduce="example")
    by_batch = mh.importance(lm, texts, "gradient", reduce="batch")
    head, at = by_token.heads[6], 6
    signed, want = [], []
    for text in texts:
        length, rows = ids_of(lm, text).shape[1], []
        for row in range(length):
            gate = torch.zeros(length, dtype=torch.float64)
            gate[row] = 1
            rows.append(
                slope(
                    lambda g, m=gate, t=text: gated(
                        lm, "gpt2", head.layer, head.index, 1 + (g - 1) * m, lambda: loss(lm, t)
                    )
                )
            )
        want.append(sum(map(abs, rows)))
        signed.append(sum(rows))
    assert np.abs(by_token.per_text[:, at] - want).max() < 1e-7
    assert np.abs(by_example.per_text[:, at] - np.abs(signed)).max() < 1e-7
    assert abs(by_batch[head] - abs(sum(signed)) / len(texts)) < 1e-7  # all texts are one batch
    assert (by_token.values > by_example.values).all() and (by_example.values > by_batch.values - 1e-12).all()
    assert by_example[head] - by_batch[head] > 1e-6 or len({np.sign(each) for each in signed}) == 1
    with pytest.raises(StatisticError, match="reduce='mean' is no way to sum a gradient: use one of"):
        mh.importance(lm, texts, "gradient", reduce="mean")


def embedding(lm, text):
    return lm.model(ids_of(lm, text))[0][0].mean(0)


def test_half_the_squared_derivative_of_the_turned_embedding_is_a_difference(fresh):
    """As many directions as the embedding is wide: exact."""
    lm, texts = precise("bert", fresh), list(TEXTS)
    corpus = read_corpus(lm, texts)
    got, because = gradients(lm, corpus, METRICS["cosine"], directions=40)
    assert "half the squared derivative" in because and "40 random directions" in because
    for at, head in enumerate(lm.spec.heads):
        if at % 3:
            continue
        for text, value in zip(texts, got[:, at], strict=True):
            low, high = (
                gated(lm, "bert", head.layer, head.index, gate, lambda t=text: embedding(lm, t))
                for gate in (1 - STEP, 1 + STEP)
            )
            units = (high / high.norm() - low / low.norm()) / (2 * STEP)
            want = float(units.square().sum() / 2)
            assert abs(float(value) - want) < 1e-7 * max(1, want) and want > 1e-7


def test_that_is_how_much_the_cosine_really_changes_by_a_small_step(fresh):
    lm = precise("bert", fresh)
    (text,) = TEXTS[:1]
    got, _ = gradients(lm, read_corpus(lm, [text]), METRICS["cosine"], directions=40)
    plain = gated(lm, "bert", 0, 0, 1.0, lambda: embedding(lm, text))
    head, step = lm.spec.heads.heads[7], 1e-3
    turned = gated(lm, "bert", head.layer, head.index, 1 + step, lambda: embedding(lm, text))
    change = 1 - torch.cosine_similarity(plain, turned, dim=0)
    assert abs(float(change) / step**2 / float(got[0, 7]) - 1) < 0.02


def test_fewer_directions_are_right_on_average(fresh):
    lm = precise("bert", fresh)
    corpus = read_corpus(lm, list(TEXTS[:2]))
    exact, _ = gradients(lm, corpus, METRICS["cosine"], directions=40)
    few = [gradients(lm, corpus, METRICS["cosine"], directions=5, seed=draw(fresh))[0] for _ in range(30)]
    ratio = torch.stack(few).mean(0) / exact
    assert (ratio - 1).abs().max() < 0.5 and abs(float(ratio.mean()) - 1) < 0.1
    assert (few[0] - exact).abs().max() > 1e-3 * exact.max()
    again = gradients(lm, corpus, METRICS["cosine"], directions=5, seed=3)[0]
    assert torch.equal(again, gradients(lm, corpus, METRICS["cosine"], directions=5, seed=3)[0])
    assert 0 < module.DIRECTIONS < 384


def test_a_metric_without_a_derivative_is_refused(fresh):
    lm = loaded("llama", draw(fresh))
    words = "has no derivative here: use 'loss', or the estimator 'ablation'"
    with pytest.raises(StatisticError, match=words):
        mh.importance(lm, list(TEXTS), "gradient", metric="kl")
    with pytest.raises(StatisticError, match=r"does not depend on the heads by anything .*\(a count, an argmax\)"):
        mh.importance(lm, list(TEXTS), "gradient", metric=lambda outputs, inputs: outputs.logits.argmax(-1).sum(1))


def test_a_stack_that_the_metric_never_reads_is_worth_nothing(fresh):
    lm = loaded("t5", draw(fresh))
    found = mh.importance(lm, list(TEXTS), "gradient", metric="cosine")
    encoder = np.array([head.stack == "encoder" for head in found.heads])
    assert (found.values[encoder] > 0).all() and not found.values[~encoder].any()


# ------------------------------------------------------------------------------------------------------------ ablation


@pytest.mark.parametrize(("name", "kind"), [("gpt2", "zero"), ("bert", "mean"), ("llama", "first")])
def test_ablation_is_what_applied_changes_in_the_metric(name, kind, fresh):
    lm, texts = loaded(name, draw(fresh)), list(TEXTS)
    found = mh.importance(lm, texts, kind=kind)
    run = embedding if name == "bert" else loss
    assert ("corpus" in found.notes) == (kind == "mean")
    for at in (0, len(found.heads) // 2, len(found.heads) - 1):
        for text, got in zip(texts, found.per_text[:, at], strict=True):
            with torch.no_grad():
                before = run(lm, text)
                with mh.applied(lm, Ablate(found.heads[at], kind=kind), corpus=texts if kind == "mean" else None):
                    after = run(lm, text)
            want = float(1 - torch.cosine_similarity(before, after, dim=0) if name == "bert" else after - before)
            assert abs(got - want) < 1e-5
    assert np.abs(found.per_text).max() > 1e-4


def test_pictures_have_important_heads_too(fresh):
    lm = loaded("vit", draw(fresh))
    pictures = [{"pixel_values": torch.randn(size, 3, 24, 40, generator=fresh)} for size in (2, 3)]
    for how in ({}, {"kind": "mean"}, {"estimator": "gradient"}):
        found = mh.importance(lm, pictures, **how)
        assert found.per_text.shape == (5, 6) and (found.values > 0).all()
