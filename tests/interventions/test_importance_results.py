"""What importances give: rankings, groups, tables, agreement, on threads too; both estimators on the bundled model."""

import os
import sys
import threading
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import SwinConfig, SwinModel

import manyheads as mh
from manyheads.errors import FileAccessError, HeadError, ManyHeadsError, StatisticError, TextError
from manyheads.interventions import METRICS, Importance, choose_metric
from manyheads.interventions.effects.importance import rank_correlation
from manyheads.plan import Ablate
from tests.interventions.surgeries import TEXTS, loaded
from tests.models.eager import draw
from tests.models.tiny import tiny_gpt2

GOLD = os.environ.get("MANYHEADS_GOLD")


# ------------------------------------------------------------------------------------------------------- what it gives


def made(lm, values):
    per_text = np.stack([values, values]) * np.array([[0.5], [1.5]])
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
        with pytest.raises(StatisticError, match="of 10 were asked for"):
            found.lowest(count)
    with pytest.raises(HeadError, match="'L0' is 5 heads: ask for one"):
        found["L0"]
    assert found["L1H3"] == 5.0
    low, high = found.interval
    assert (low <= np.minimum(found.values, found.values)).all() and (high >= found.values).all()


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
        got = found.lowest_groups(count * size)
        assert set(map(str, got)) == {head for group in want for head in group}
        if size == 1:
            assert got == found.lowest(count)


def test_heads_that_make_no_whole_groups_are_told_with_numbers_that_do(fresh):
    found = made(loaded("llama", draw(fresh)), np.arange(18.0))
    for count, near in ((1, "2"), (5, "4 or 6"), (17, "16 or 18")):
        with pytest.raises(HeadError, match=f"^{count} heads of .* are no whole groups .*: give {near}\\.$"):
            found.lowest_groups(count)
    with pytest.raises(StatisticError, match="19 heads of 18 were asked for"):
        found.lowest_groups(19)


def test_a_layer_that_is_worth_nothing_is_not_divided_by_zero(fresh):
    found = made(loaded("bert", draw(fresh)), np.array([0.0] * 5 + [3, 4, 0, 0, 0]))
    assert np.allclose(found.normalised, [0] * 5 + [0.6, 0.8, 0, 0, 0])


def test_the_table_is_written_in_three_kinds(fresh, tmp_path):
    import pandas as pd

    found = mh.importance(loaded("bert", draw(fresh)), list(TEXTS))
    table = found.to_pandas()
    assert list(table["head"]) == [str(head) for head in found.heads]
    assert list(table.sort_values("rank")["head"]) == [str(head) for head in found.ranking()]
    assert (table["low"] <= table["importance"]).all() and (table["importance"] <= table["high"]).all()
    readers = {"csv": pd.read_csv, "parquet": pd.read_parquet, "json": pd.read_json}
    for ending, read in readers.items():
        found.save(tmp_path / f"worth.{ending}")
        back = read(tmp_path / f"worth.{ending}")
        assert np.allclose(back["importance"], found.values, atol=1e-6) and list(back["head"]) == list(table["head"])
    with pytest.raises(FileAccessError, match="its folder does not exist"):
        found.save(tmp_path / "none" / "worth.csv")
    assert "10 heads by ablation, cosine on 4 texts; most important: " in repr(found)


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
    with pytest.raises(StatisticError, match="all values are alike"):
        rank_correlation(a, np.ones(5))
    one, other = (
        made(loaded(name, draw(fresh)), np.arange(float(count))) for name, count in (("bert", 10), ("vit", 6))
    )
    assert one.agreement(one) == pytest.approx(1)
    with pytest.raises(StatisticError, match="of different heads"):
        one.agreement(other)


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
    with pytest.raises(StatisticError, match="estimator='shapley' is unknown: use one of ablation, gradient"):
        mh.importance(lm, list(TEXTS), "shapley")
    with pytest.raises(TextError, match="no text was given"):
        mh.importance(lm, [])
    with pytest.raises(ManyHeadsError, match="is no way to ablate"):
        mh.importance(lm, list(TEXTS), kind="mute")
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
