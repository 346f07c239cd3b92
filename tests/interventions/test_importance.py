"""What a head is worth: gradients are held against differences of a gate that a hook turns, ablation against `applied`.

The gate multiplies the input of the output projection, in float64, by plain torch; the metric is the model's own loss,
or a pooled embedding, by hand.
"""

import copy
import os
import sys
import threading
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn
from transformers import MistralConfig, MistralForCausalLM, SwinConfig, SwinModel

import manyheads as mh
from manyheads.edits import METRICS, choose_metric
from manyheads.errors import FileAccessError, HeadError, ManyHeadsError, PlanError, StatisticError, TextError
from manyheads.inputs import read
from manyheads.interventions import Importance, costs_of, costs_without, lowest_heads
from manyheads.interventions.effects import Estimator, Way
from manyheads.interventions.effects import importance as module
from manyheads.interventions.effects.importance import gradients, rank_correlation
from manyheads.plan import Ablate
from tests.interventions.surgeries import HEADS, TEXTS, by_head, feeding, loaded, projection
from tests.models.eager import draw
from tests.models.tiny import WORDS, tiny_gpt2, tiny_llama, tiny_tokenizer
from tests.refusals import refuses

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
    lm, step = loaded("gemma2", draw(fresh), "eager"), 0.005
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
    with pytest.raises(StatisticError, match="reduce='mean' is not a way to sum a gradient: use one of"):
        mh.importance(lm, texts, "gradient", reduce="mean")


def embedding(lm, text):
    return lm.model(ids_of(lm, text))[0][0].mean(0)


def test_half_the_squared_derivative_of_the_turned_embedding_is_a_difference(fresh):
    """As many directions as the embedding is wide: exact."""
    lm, texts = precise("bert", fresh), list(TEXTS)
    corpus = tuple(read(lm, texts).batches())
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
    got, _ = gradients(lm, tuple(read(lm, [text]).batches()), METRICS["cosine"], directions=40)
    plain = gated(lm, "bert", 0, 0, 1.0, lambda: embedding(lm, text))
    head, step = lm.spec.heads.heads[7], 1e-3
    turned = gated(lm, "bert", head.layer, head.index, 1 + step, lambda: embedding(lm, text))
    change = 1 - torch.cosine_similarity(plain, turned, dim=0)
    assert abs(float(change) / step**2 / float(got[0, 7]) - 1) < 0.02


def test_fewer_directions_are_right_on_average(fresh):
    lm = precise("bert", fresh)
    corpus = tuple(read(lm, list(TEXTS[:2])).batches())
    exact, _ = gradients(lm, corpus, METRICS["cosine"], directions=40)
    few = [gradients(lm, corpus, METRICS["cosine"], directions=5, seed=draw(fresh))[0] for _ in range(30)]
    ratio = torch.stack(few) / exact
    # So much deviates the square of a vector along 5 random ones of 40 directions; five times that is enough for all.
    assert (ratio.mean(0) - 1).abs().max() < 5 * (2 * (40 - 5) / (5 * (40 + 2)) / 30) ** 0.5
    of_draws = ratio.mean((1, 2))  # heads that turn the output alike are off together: their spread is taken as it came
    assert (of_draws.mean() - 1).abs() < 5 * of_draws.std() / 30**0.5
    assert (few[0] - exact).abs().max() > 1e-3 * exact.max()
    again = gradients(lm, corpus, METRICS["cosine"], directions=5, seed=3)[0]
    assert torch.equal(again, gradients(lm, corpus, METRICS["cosine"], directions=5, seed=3)[0])
    assert 0 < module.DIRECTIONS < 384


def test_a_metric_without_a_derivative_is_refused_and_a_stack_that_it_never_reads_is_worth_nothing(fresh):
    lm = loaded("llama", draw(fresh))
    words = "has no derivative here: use 'loss', or the estimator 'ablation'"
    refuses(StatisticError, words, mh.importance, lm, list(TEXTS), "gradient", metric="kl")
    with pytest.raises(StatisticError, match=r"does not depend on the heads by anything .*\(a count, an argmax\)"):
        mh.importance(lm, list(TEXTS), "gradient", metric=lambda outputs, inputs: outputs.logits.argmax(-1).sum(1))
    lm = loaded("t5", draw(fresh))
    found = mh.importance(lm, list(TEXTS), "gradient", metric="cosine")
    encoder = np.array([head.stack == "encoder" for head in found.heads])
    assert (found.values[encoder] > 0).all() and not found.values[~encoder].any()


def test_the_gradient_of_a_group_is_a_difference_in_one_gate_on_all_its_heads(fresh):
    """Heads of a group may pull against each other: their sizes do not add up to the group's."""
    lm = precise("llama", fresh)
    groups = [lm.spec.select(name) for name in ("L0H0-1", "L1H2-3", "L2H4-5")]
    batches = tuple(read(lm, list(TEXTS)).batches())
    got, _ = gradients(lm, batches, METRICS["loss"], groups=groups)
    for place, group in enumerate(groups):
        heads, layer = [head.index for head in group], group.heads[0].layer

        def under(gate, text, heads=heads, layer=layer):
            return gated(lm, "llama", layer, heads, gate, lambda: loss(lm, text))

        want = [abs(slope(partial(under, text=text))) for text in TEXTS]
        assert (got[:, place] - torch.tensor(want)).abs().max() < 1e-7 and max(want) > 1e-4
    alone, _ = gradients(lm, batches, METRICS["loss"])
    assert (alone.view(len(TEXTS), -1, 2).sum(2)[:, [0, 4, 8]] - got).abs().max() > 1e-5


def test_gradients_do_not_depend_on_the_size_of_a_batch_and_progress_counts_batches(fresh, monkeypatch):
    lm, texts = precise("gpt2", fresh), list(TEXTS)
    whole = mh.importance(lm, texts, "gradient")
    monkeypatch.setattr(module, "GRADIENT_TOKENS", 1)
    steps = []
    alone = mh.importance(lm, texts, "gradient", progress=lambda done, total: steps.append((done, total)))
    assert np.abs(alone.per_text - whole.per_text).max() < 1e-12
    assert steps == [(number + 1, len(TEXTS)) for number in range(len(TEXTS))]


# ----------------------------------------------------------------------------------------- which estimator, and why


def test_many_heads_are_ranked_by_gradient_unless_ablation_is_named(fresh, monkeypatch):
    lm, texts = loaded("llama", draw(fresh)), list(TEXTS)
    assert module.Runner.many_heads == 100
    few = mh.importance(lm, texts)
    assert few.estimator == "ablation" and "of up to 100 heads, and there are 18" in few.notes["estimator"]
    monkeypatch.setattr(module.Runner, "many_heads", 17)
    many = mh.importance(lm, texts)
    assert many.estimator == "gradient" and f"by gradient, loss on {len(TEXTS)} texts" in str(many)
    assert many.notes["estimator"] == (
        "gradient, an estimate: there are 18 heads, and ablation of more than 17 takes long; exactly by "
        "estimator='ablation' (--estimator ablation)"
    )
    assert np.array_equal(many.values, mh.importance(lm, texts, "gradient").values)
    named = mh.importance(lm, texts, "ablation")
    assert np.array_equal(named.values, few.values) and named.notes["estimator"] == "as asked"
    assert many.to_dict()["notes"]["estimator"] == many.notes["estimator"]


def test_where_no_gradient_is_to_be_had_ablation_is_the_default_and_says_why(fresh, monkeypatch):
    lm, texts = loaded("llama", draw(fresh)), list(TEXTS)
    monkeypatch.setattr(module.Runner, "many_heads", 17)

    def count(outputs, inputs):
        return outputs.logits.argmax(-1).double().sum(1)

    class Opaque(torch.autograd.Function):
        """An operation whose derivative nobody wrote."""

        @staticmethod
        def forward(context, x):
            return x * 1

    for how, words in (
        ({"kind": "mean"}, "a gradient puts nothing in a head's place"),
        ({"metric": "kl"}, "though it takes long for 18 heads: metric 'kl' is flat at the unedited model"),
        ({"metric": count}, "though it takes long for 18 heads: metric 'count' does not depend on the heads by"),
    ):
        got = mh.importance(lm, texts, **how)
        assert got.estimator == "ablation" and words in got.notes["estimator"], got.notes
        assert np.array_equal(got.values, mh.importance(lm, texts, "ablation", **how).values)
    plain = mh.importance(lm, texts, "ablation")
    hook = lm.model.model.norm.register_forward_hook(lambda _, args, out: Opaque.apply(out))
    got = mh.importance(lm, texts)
    assert got.estimator == "ablation" and "LlamaForCausalLM cannot give gradients (" in got.notes["estimator"]
    assert np.abs(got.values - plain.values).max() < 1e-6
    refuses(
        StatisticError, r"cannot give gradients .*: use the estimator 'ablation'", mh.importance, lm, texts, "gradient"
    )
    hook.remove()


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


# ---- what importances give: rankings, groups, tables, agreement, on threads too; both estimators on the bundled model

GOLD = os.environ.get("MANYHEADS_GOLD")


# ------------------------------------------------------------------------------------------------------- what it gives


def made(lm, values):
    per_text = np.outer([0.25, 0.5, 0.75, 1.5, 2.0], values)
    return Importance(lm.spec, "ablation", "loss", "nats a token", per_text, {})


def test_the_ranking_goes_from_the_least_important_and_ties_by_the_models_order(fresh):
    lm = loaded("bert", draw(fresh))
    found = made(lm, np.array([3.0, 1, 4, 1, 5, 9, 2, 6, 5, -3]))
    assert " ".join(map(str, found.ranking())) == "L1H4 L0H1 L0H3 L1H1 L0H0 L0H2 L0H4 L1H3 L1H2 L1H0"
    assert str(found.lowest(3)) == "L0H1, L0H3, L1H4" and len(found.lowest(0)) == 0
    norms = [np.linalg.norm([3, 1, 4, 1, 5]), np.linalg.norm([9, 2, 6, 5, -3])]
    want = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, -3]) / np.repeat(norms, 5)
    assert np.allclose(found.normalised, want)
    assert str(found.ranking(normalised=True)[-1]) == "L1H0" and str(found.ranking(normalised=True)[-2]) == "L0H4"
    assert str(found.lowest(4, normalised=True)) == "L0H1, L0H3, L1H1, L1H4"
    for count in (11, -1):
        refuses(StatisticError, "of 10 were asked for", found.lowest, count)
    with pytest.raises(HeadError, match="'L0' is 5 heads: ask for one"):
        found["L0"]
    assert found["L1H3"] == 5.0
    low, high = found.interval
    assert (low < found.values).all() and (high > found.values).all()


@pytest.mark.parametrize("num_kv_heads", [3, 2, 1, 6])
def test_the_lowest_groups_are_the_best_of_all_choices_of_whole_groups(num_kv_heads, fresh):
    """Every choice is tried. Heads that all share one key/value head, or none, go one by one."""
    lm = loaded("llama", draw(fresh), num_kv_heads=num_kv_heads, num_hidden_layers=2)
    found = made(lm, torch.randn(12, generator=fresh).double().numpy())
    size = {3: 2, 2: 3, 1: 1, 6: 1}[num_kv_heads]
    groups = [[f"L{layer}H{at + i}" for i in range(size)] for layer in (0, 1) for at in range(0, 6, size)]
    for count in (0, 1, 3):
        want = min(
            combinations(groups, count), key=lambda choice: sum(found[head] for group in choice for head in group)
        )
        got = found.lowest(count * size, groups=True)
        assert set(map(str, got)) == {head for group in want for head in group}
        if size == 1:
            assert got == found.lowest(count)


def test_heads_that_make_no_whole_groups_are_told_with_numbers_that_do_and_nothing_is_divided_by_zero(fresh):
    found = made(loaded("llama", draw(fresh)), np.arange(18.0))
    for count, near in ((1, "2"), (5, "4 or 6"), (17, "16 or 18")):
        words = f"^{count} heads of .* are not whole groups .*: give {near}\\.$"
        refuses(HeadError, words, found.lowest, count, groups=True)
    refuses(StatisticError, "19 heads of 18 were asked for", found.lowest, 19, groups=True)
    # Divided by their layer's norm, other groups are the least: L1's first, which is the larger as it is.
    found = made(
        loaded("llama", draw(fresh), num_hidden_layers=2), np.array([1.0, 1, 2, 2, 2, 2, *[3.0] * 2, *[99.0] * 4])
    )
    assert str(found.lowest(2, groups=True)) == "L0H0-1"
    assert str(found.lowest(2, groups=True, normalised=True)) == "L1H0-1"
    found = made(loaded("bert", draw(fresh)), np.array([0.0] * 5 + [3, 4, 0, 0, 0]))
    assert np.allclose(found.normalised, [0] * 5 + [0.6, 0.8, 0, 0, 0])


def test_the_table_is_written_in_three_kinds(fresh, tmp_path):
    import pandas as pd

    found = mh.importance(loaded("bert", draw(fresh)), [*TEXTS, *(f"{text} and {text}" for text in TEXTS)])
    table = found.to_pandas()
    assert list(table["head"]) == [str(head) for head in found.heads]
    assert list(table.sort_values("rank")["head"]) == [str(head) for head in found.ranking()]
    assert (table["low"] <= table["importance"]).all() and (table["importance"] <= table["high"]).all()
    readers = {"csv": pd.read_csv, "parquet": pd.read_parquet, "json": pd.read_json}
    for ending, reader in readers.items():
        found.save(tmp_path / f"worth.{ending}")
        back = reader(tmp_path / f"worth.{ending}")
        assert np.allclose(back["importance"], found.values, atol=1e-6) and list(back["head"]) == list(table["head"])
    refuses(FileAccessError, "its folder does not exist", found.save, tmp_path / "none" / "worth.csv")
    assert "10 heads by ablation, cosine on 8 texts; most important: " in str(found)


def test_agreement_is_spearmans_with_shared_ranks_for_ties(fresh):
    a, b = np.array([3.0, 1, 4, 1, 5]), np.array([2.0, 7, 1, 8, 2])
    ranks = np.array([[3, 1.5, 4, 1.5, 5], [2.5, 4, 1, 5, 2.5]])
    x, y = ranks - ranks.mean(1, keepdims=True)
    want = (x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum())
    assert abs(rank_correlation(a, b) - want) < 1e-12 and abs(want) > 0.1
    n = 30
    p, q = np.random.default_rng(draw(fresh)).permutation(n), np.random.default_rng(draw(fresh)).permutation(n)
    classic = 1 - 6 * ((p - q) ** 2).sum() / (n * (n * n - 1))  # without ties
    assert abs(rank_correlation(np.exp(p / 5.0), q * 3.0) - classic) < 1e-12
    refuses(StatisticError, "all values are equal", rank_correlation, a, np.ones(5))
    one, other = (
        made(loaded(name, draw(fresh)), np.arange(float(count))) for name, count in (("bert", 10), ("vit", 6))
    )
    assert one.agreement(one) == pytest.approx(1)
    refuses(StatisticError, "have different heads", one.agreement, other)


@pytest.mark.slow  # test_taps holds threads apart
def test_threads_that_share_a_model_find_what_each_finds_alone(fresh):
    """What stands in for a block in one thread is nothing to the others: importance beside importance and effects."""
    lm, text = loaded("llama", draw(fresh)), TEXTS[0]
    plan = mh.Plan(Ablate("L0H1"))
    want, changed = mh.importance(lm, text).values, mh.effect(lm, plan, text).change
    seen, usual = [], sys.getswitchinterval()

    def values():
        seen.extend(float(abs(mh.importance(lm, text).values - want).max()) for _ in range(3))

    def effects():
        seen.extend(abs(mh.effect(lm, plan, text).change - changed) for _ in range(4))

    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for work in (values, effects, values)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual)
    assert len(seen) == 10 and max(seen) < 1e-9
    assert not any("forward" in vars(each) for each in lm.model.modules())


def test_what_was_asked_wrongly_is_told(fresh):
    lm = loaded("llama", draw(fresh))
    with pytest.raises(StatisticError, match="estimator='shapley' is unknown: use one of auto, ablation, gradient"):
        mh.importance(lm, list(TEXTS), "shapley")
    assert get_args(Estimator) == ("ablation", "gradient") and set(get_args(Way)) == set(module.WAYS)
    refuses(TextError, "no text was given", mh.importance, lm, [])
    refuses(ManyHeadsError, "is not a way to ablate", mh.importance, lm, list(TEXTS), kind="mute")
    with pytest.raises(StatisticError, match="gave NaN or infinity"):
        mh.importance(lm, ["cat", *TEXTS])  # one token, and so no next one
    assert choose_metric(lm, "auto") == (METRICS["loss"], "a language model")


# --------------------------------------------------------------------------------------------------------- minilm

PAGE = """
The river froze early that winter. Nobody in the village had seen the comet. She sold her bicycle to pay the
rent. Two engineers argued about the bridge. The recipe calls for three ripe tomatoes. His grandfather built
clocks in Vienna. A storm closed the airport for two days. The committee rejected the proposal twice. Children
were playing beside the fountain. The patient recovered faster than expected. An old map hung above the
fireplace. The train to Madrid was delayed again. We measured the temperature every hour. The novel ends with an
unexpected letter. Farmers feared another dry summer. The museum bought the stolen painting back. Her brother
plays the cello badly. The satellite lost contact at midnight. Bread was scarce during the war. The professor
forgot his own lecture. A red kite circled over the fields. The court postponed the hearing until May. My
neighbour keeps bees on the roof. The software crashed when it was updated. Fishermen found a bottle with a
message. The actress refused to sign autographs. Prices rose sharply after the election. The dog waited at the
station for years. Scientists discovered a new kind of beetle. The roof leaks whenever it rains. He learned to
swim at the age of sixty. The orchestra tuned their instruments. Our guide spoke five languages. The factory
pollutes the lake. Snow covered the tracks within minutes. The vaccine was tested on volunteers. She whispered
the answer to her friend. The castle has been empty since 1820. A thief broke the bakery's window. The moon rose
behind the mountains.
"""
SENTENCES = [f"{each.strip()}." for each in " ".join(PAGE.split()).split(".") if each.strip()]


@pytest.mark.slow
def test_both_estimators_rank_the_bundled_models_heads_alike(minilm):
    few = SENTENCES[::2]
    ablation, gradient = mh.importance(minilm, few), mh.importance(minilm, few, "gradient")
    assert ablation.metric == gradient.metric == "cosine"
    assert ablation.agreement(gradient) > 0.95
    assert "6 blocks, attention of 6 of them too" in ablation.notes["computed"]


@pytest.mark.slow
@pytest.mark.skipif(GOLD is None, reason="MANYHEADS_GOLD names the folder of the gold files")
def test_they_do_on_two_hundred_sentences_of_a_novel(minilm):
    text = " ".join((Path(str(GOLD)) / "persuasion.txt").read_text(encoding="utf-8").split())
    sentences = [each.strip() + "." for each in text.split(".") if 40 < len(each) < 240][50:250]
    assert len(sentences) == 200
    ablation, gradient = mh.importance(minilm, sentences), mh.importance(minilm, sentences, "gradient")
    assert ablation.agreement(gradient) > 0.95


def test_what_takes_a_heads_place_is_not_for_gradients_and_what_changed_nothing_is_said(fresh):
    lm = mh.load(tiny_gpt2(seed=draw(fresh)), tokenizer=False)
    batch = [{"input_ids": torch.randint(5, lm.model.config.vocab_size, (1, 12), generator=fresh)}]
    with pytest.raises(StatisticError, match="kind= and corpus= are for the estimator 'ablation'"):
        mh.importance(lm, batch, "gradient", kind="mean")
    alone = mh.importance(lm, batch, kind="resample")  # the text is its own other text
    assert alone.notes["unchanged"] == "resample ablation of L0, L1, L2 changed nothing"
    assert "unchanged" not in mh.importance(lm, batch).notes


def test_a_model_that_attends_in_windows_is_swept_one_by_one(fresh):
    sizes = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4]}
    lm = mh.load(SwinModel(SwinConfig(**sizes, window_size=4)).eval(), tokenizer=False)
    found = mh.importance(lm, [{"pixel_values": torch.randn(3, 3, 32, 32, generator=fresh)}])
    assert "one by one: layers attend in batches of their own" in found.notes["computed"]
    assert found.values.shape == (12,) and (found.values > 0).all()


# =============================================================================================== heads that go together
# Which heads of a grouped-query model go together: by weight surgery on a copy of transformers' own model.

LLAMA_TEXTS = [" ".join(WORDS[begin : begin + 12]) for begin in (0, 17, 31)]
SIZE, GROUPS, LAYERS = 2, 3, 3  # query heads of a key/value head, key/value heads of a layer, layers


@pytest.fixture(scope="module")
def lm():
    return mh.load(tiny_llama(GROUPS, seed=5), tokenizer=tiny_tokenizer(special_tokens=False))


def without(lm, heads):
    """A copy of the model whose output projections read nothing of these heads."""
    model = copy.deepcopy(lm.model)
    with torch.no_grad():
        for layer, head in heads:
            weight = model.model.layers[layer].self_attn.o_proj.weight
            width = weight.shape[1] // (SIZE * GROUPS)
            weight[:, head * width : (head + 1) * width] = 0
    return model


@torch.no_grad()
def rise(lm, heads):
    """The change of the mean loss of the texts."""

    def loss(model):
        given = (lm.tokenizer(text, return_tensors="pt").input_ids for text in LLAMA_TEXTS)
        return sum(float(model(ids, labels=ids).loss) for ids in given) / len(LLAMA_TEXTS)

    return loss(without(lm, heads)) - loss(lm.model)


def group(layer, index):
    return [(layer, SIZE * index + place) for place in range(SIZE)]


def pairs(heads):
    return sorted((head.layer, head.index) for head in heads)


def test_a_group_is_worth_what_is_lost_when_all_of_it_goes_and_the_least_go(lm):
    got = lowest_heads(lm, LLAMA_TEXTS, 2 * SIZE)
    oracle = {tuple(group(*place)): rise(lm, group(*place)) for place in product(range(LAYERS), range(GROUPS))}
    assert {tuple(pairs(heads)): worth for heads, worth in got.groups.items()} == pytest.approx(oracle, abs=2e-5)
    assert list(got.groups.values()) == sorted(got.groups.values())
    least = sorted(oracle, key=oracle.__getitem__)[:2]
    assert pairs(got.heads) == sorted(sum(least, ())) and got.way == "anywhere"
    sums = {heads: sum(rise(lm, [head]) for head in heads) for heads in oracle}
    assert max(abs(sums[heads] - oracle[heads]) for heads in oracle) > 1e-3  # not the sum over its heads


@pytest.mark.parametrize(("count", "way"), [(6, "each layer"), (9, "each group")])
def test_what_leaves_all_layers_alike_loads_in_stock_transformers(lm, count, way):
    """Its logits are those of the model whose output projections read nothing of these heads."""
    got = lowest_heads(lm, LLAMA_TEXTS, count)
    assert got.way == way and len(got.heads) == count and (way == "each layer") == ("anywhere" in got.ways)
    for layer in range(LAYERS):
        of_layer = [head for place, head in pairs(got.heads) if place == layer]
        if way == "each layer":
            chosen = min(range(GROUPS), key=lambda index: rise(lm, group(layer, index)))
            assert of_layer == [head for _, head in group(layer, chosen)]
        else:
            assert of_layer == [
                min(group(layer, index), key=lambda head: rise(lm, [head]))[1] for index in range(GROUPS)
            ]
    assert got.ways[way] == pytest.approx(rise(lm, pairs(got.heads)), abs=2e-5)
    small, ids = mh.prune_heads(lm, got.heads), torch.arange(5, 25)[None]
    # A config counts for all layers at once: these two numbers are all that a stock Llama is told.
    counts = {(site.num_heads, site.num_kv_heads) for site in small.spec.sites}
    (heads, kv_heads) = counts.pop()
    assert not counts
    sizes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": small.spec.sites[0].qk_dim}
    stock = MistralForCausalLM(MistralConfig(**{**lm.model.config.to_dict(), **sizes, "sliding_window": None})).eval()
    stock.load_state_dict(small.model.state_dict())
    with torch.no_grad():
        assert (stock(ids).logits - without(lm, pairs(got.heads))(ids).logits).abs().max() < 1e-5


def test_whole_groups_go_unless_another_way_is_asked_for_and_what_each_frees_is_said(lm):
    """9 heads over 3, as in SmolLM2: of two layers 6 can go in every way."""
    sizes = {"num_attention_heads": 9, "hidden_size": 72, "num_hidden_layers": 2}
    wide = mh.load(tiny_llama(GROUPS, seed=0, **sizes), tokenizer=lm.tokenizer)
    ways = {way: lowest_heads(wide, LLAMA_TEXTS, 6, way=way) for way in ("each layer", "anywhere", "each group")}
    got = lowest_heads(wide, LLAMA_TEXTS, 6)
    assert got.way == "each layer" and got.heads == ways["each layer"].heads and set(got.ways) == set(ways)
    assert "since only whole groups free cache, and a config can describe the same number in each layer" in got.because
    assert f"the same number of heads from each group: {got.ways['each group']:+.4g}" in got.because
    assert min(got.ways.values()) < got.ways["each layer"], "another way loses less, and is not taken for that"
    hidden, elements = wide.model.config.hidden_size, 4
    projections = 2 * 3 * 8 * hidden  # rows of q and columns of o
    assert got.frees == {"group": (projections + 2 * 8 * hidden, 2 * 8 * elements), "head": (projections // 3, 0)}
    for way, lowest in ways.items():
        assert lowest.way == way and ", as asked: " in lowest.because and len(lowest.heads) == 6
        costs = costs_without(wide, lowest.heads)
        assert costs == costs_of(mh.prune_heads(wide, lowest.heads, empty_layers=True))
        assert bool(costs.freed_cache_bytes) == (way != "each group") and costs.freed_parameters > 0
    assert costs_without(wide, "L1") == costs_of(mh.prune_heads(wide, "L1", empty_layers=True))
    refuses(HeadError, r"cannot be cut out .*importance\.lowest\(N, groups=True\)", costs_without, wide, "L0H0")
    words = "way='each group' is not available for .*: 3 heads can go by 'anywhere'"
    refuses(HeadError, words, lowest_heads, wide, LLAMA_TEXTS, 3, way="each group")
    refuses(HeadError, "way='rows' is unknown: use one of", lowest_heads, wide, LLAMA_TEXTS, 6, way="rows")


def test_groups_of_many_heads_are_ranked_by_gradient_and_the_ways_are_ablated(lm, monkeypatch):
    exact = lowest_heads(lm, LLAMA_TEXTS, 2 * SIZE)
    assert exact.estimator == "ablation" and "up to 100" in exact.why
    monkeypatch.setattr(module.Runner, "many_heads", 17)
    got = lowest_heads(lm, LLAMA_TEXTS, 2 * SIZE)
    assert got.estimator == "gradient" and got.why.startswith("gradient, an estimate")
    want, _ = gradients(lm, tuple(read(lm, LLAMA_TEXTS).batches()), METRICS["loss"], groups=list(got.groups))
    assert list(got.groups.values()) == pytest.approx(want.mean(0).tolist(), abs=1e-9)
    assert list(got.groups.values()) == sorted(got.groups.values())
    assert pairs(got.heads) == sorted(head for group in list(got.groups)[:2] for head in pairs(group))
    assert got.ways["anywhere"] == pytest.approx(rise(lm, pairs(got.heads)), abs=2e-5)
    assert lowest_heads(lm, LLAMA_TEXTS, 2 * SIZE, "ablation").groups == exact.groups
    data = got.to_dict()
    assert data["estimator"] == "gradient" and data["frees"]["head"]["cache_bytes_per_token"] == 0


@pytest.fixture(scope="module")
def trained(lm):
    """The same model after some steps on the texts: every head of an untrained one may be worth less than nothing."""
    model = copy.deepcopy(lm.model)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    ids = [lm.tokenizer(text, return_tensors="pt").input_ids for text in LLAMA_TEXTS]
    for _ in range(12):
        optimizer.zero_grad()
        sum(model(text, labels=text).loss for text in ids).backward()
        optimizer.step()
    return mh.load(model.eval(), tokenizer=lm.tokenizer)


def test_as_many_heads_go_as_the_loss_allows_and_the_next_larger_number_is_over_it(trained):
    """Against surgery on a copy, for every number of the ranked groups."""
    left, order = dict.fromkeys(range(LAYERS), GROUPS), [[]]
    for heads in lowest_heads(trained, LLAMA_TEXTS, 2 * SIZE).groups:
        (layer, _), *_ = pairs(heads)
        left[layer] -= 1
        order += [order[-1] + pairs(heads)] if left[layer] else []  # a group of each layer stays
    rises = [rise(trained, heads) for heads in order]
    bound = (rises[3] + rises[4]) / 2
    got = lowest_heads(trained, LLAMA_TEXTS, loss=bound)
    number = len(got.heads) // SIZE
    assert pairs(got.heads) == sorted(order[number]) and rises[number] < bound < rises[number + 1]
    assert (number + 1) * SIZE in got.tried and len(got.tried) == got.to_dict()["evaluations"] <= 3
    assert got.tried == pytest.approx({size: rises[size // SIZE] for size in got.tried}, abs=2e-5)
    assert got.after - got.before == pytest.approx(rises[number], abs=2e-5) and f"{bound:+.4g}" in got.because
    refuses(HeadError, f"not even {next(iter(got.groups))} can go", lowest_heads, trained, LLAMA_TEXTS, loss=0.0)
    for loss in (-0.01, float("nan"), float("inf")):
        refuses(PlanError, f"loss={loss}: give the nats a token", lowest_heads, trained, LLAMA_TEXTS, loss=loss)
    refuses(PlanError, "count=2 and loss=0.1: give only one", lowest_heads, trained, LLAMA_TEXTS, 2, loss=0.1)
    refuses(StatisticError, "metric='kl' is", lowest_heads, trained, LLAMA_TEXTS, loss=0.1, metric="kl")


def test_numbers_that_cannot_go_are_refused_and_any_can_without_groups(lm):
    for count, message in (
        (3, "give 2 or 4, or a multiple of 9, the same number from each group"),
        (18, "18 heads cannot go"),
        (14, "at most 12 can go"),
    ):
        refuses(HeadError, message, lowest_heads, lm, LLAMA_TEXTS, count)
    assert len(lowest_heads(lm, LLAMA_TEXTS, 14, empty_layers=True).heads) == 14
    each = mh.load(tiny_llama(6, seed=5, num_hidden_layers=1), tokenizer=lm.tokenizer)
    assert lowest_heads(each, LLAMA_TEXTS, 3).heads == mh.importance(each, LLAMA_TEXTS).lowest(3)
    refuses(
        HeadError,
        "way='anywhere' is not available for .*: no heads share keys",
        lowest_heads,
        each,
        LLAMA_TEXTS,
        3,
        way="anywhere",
    )
