"""Circuits whose heads are known beforehand are found, and what is said of a set is what plain hooks give."""

import random

import numpy as np
import pytest
import torch

import manyheads as mh
from benchmarks.circuits import trained_answers
from manyheads import circuits
from manyheads.errors import StatisticError, TextError
from manyheads.lab import design
from tests.circuits.by_hooks import PLACES, hooked
from tests.interventions.checkpoints import STOCK, VOCABULARY
from tests.interventions.surgeries import loaded
from tests.models.eager import draw
from tests.models.tiny import WORDS, tiny_tokenizer
from tests.refusals import refuses

SEEDS, PAIRS, LENGTH = 20, 4, 9
NOISE = 0.25  # of each designed matrix's length


def induction_pairs(choose):
    """Eight words, then one of them again; in the corrupted text it stood for another. Right: the word after it."""
    plain = [word for word in WORDS if word.isalpha()]
    clean, corrupted, answers = [], [], []
    for _ in range(PAIRS):
        *words, other, wrong = choose.sample(plain, LENGTH + 1)
        place = choose.randrange(1, len(words) - 1)  # the first token is nobody's copy
        changed = [other if index == place else word for index, word in enumerate(words)]
        clean.append(" ".join([*words, words[place]]))
        corrupted.append(" ".join([*changed, words[place]]))
        answers.append((words[place + 1], wrong))
    return clean, corrupted, answers


@pytest.mark.thinned(seed=(0,))
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow) if seed > 3 else seed for seed in range(SEEDS)]
)
def test_the_two_heads_of_induction_are_named_among_random_heads_and_noise(seed):
    choose = random.Random(seed)
    previous, induction = f"L0H{choose.randrange(4)}", f"L1H{choose.randrange(3)}"
    grid = [[None] * 4, [None] * 3]
    grid[0][int(previous[3])], grid[1][int(induction[3])] = design.previous(), design.induction()
    lm = design.build(grid, tokenizer=tiny_tokenizer(special_tokens=False), causal=True, noise=NOISE, seed=seed)
    clean, corrupted, answers = induction_pairs(choose)
    direction = ("denoise", "noise")[seed % 2]
    patching = mh.patch(lm, clean, corrupted, answers=answers, direction=direction, controls=3 * (seed < 3))
    assert {str(head) for head in patching.ranking()[:2]} == {previous, induction}
    effects = dict(zip(map(str, patching.heads), patching.values, strict=True))
    assert all((value > 0.8) == (name in (previous, induction)) for name, value in effects.items())
    assert all(abs(value) < 0.3 for name, value in effects.items() if name not in (previous, induction))
    found = mh.find_circuit(lm, clean, corrupted, answers=answers, random_sets=3 * (seed < 3), edges=True)
    assert [str(head) for head in found.heads] == [previous, induction]
    first, *others = found.edges
    assert (str(first.senders[0]), str(first.receiver), first.channel) == (previous, induction, "k")
    assert first.value > 0.8 and all(abs(edge.value) < 0.3 for edge in others) and len(others) == 2
    assert found.to_dict()["edges"][0]["effect"] == first.value
    assert previous in found and previous.lower() in found and "L1H7" not in found
    assert found.faithfulness > 0.8 and abs(found.without) < 0.3 and min(found.costs) > 0.5


def truth(lm, name, clean, corrupted, read, kept):
    """The faithfulness of a set: pre-hooks put the corrupted outputs of all others into the clean run."""
    model, sites, stored = lm.model, lm.spec.sites, {}
    paths = {site.layer: PLACES[name].output.format(site.layer) for site in sites}

    def run(inputs, before):
        with torch.no_grad(), hooked(model, before, {}):
            return read(model(**inputs))

    def keeper(layer):
        def keep(x):
            stored[layer] = x.clone()
            return x

        return keep

    def changer(site):
        def change(x):
            x = x.clone()
            for head in range(site.num_heads):
                if f"L{site.layer}H{head}" not in kept:
                    part = slice(head * site.v_dim, (head + 1) * site.v_dim)
                    x[..., part] = stored[site.layer][..., part]
            return x

        return change

    bottom = run(corrupted, {path: keeper(layer) for layer, path in paths.items()}).mean()
    top = run(clean, {}).mean()
    return float((run(clean, {paths[site.layer]: changer(site) for site in sites}).mean() - bottom) / (top - bottom))


def test_a_circuit_is_what_hooks_say_and_none_of_its_heads_can_go(fresh):
    lm = mh.load(STOCK["llama"].make(fresh).double(), tokenizer=False)
    sides = [{"input_ids": torch.randint(3, VOCABULARY, (3, 9), generator=fresh)} for _ in range(2)]
    weights = torch.randn(VOCABULARY, generator=fresh, dtype=torch.float64)

    def metric(outputs, inputs=None):
        return outputs.logits[:, -1] @ weights

    found = mh.find_circuit(lm, *sides, metric, keep=0.7, random_sets=2, seed=5)
    names = [str(head) for head in found.heads]
    assert found.notes["pairs"].startswith("ready inputs, none held out")
    same = {"abs": 1e-8}
    kept = truth(lm, "llama", *sides, metric, names)
    assert found.faithfulness == pytest.approx(found.found_with, **same)
    assert found.faithfulness == pytest.approx(kept, **same) and kept >= 0.7
    others = [str(head) for head in lm.spec.heads if str(head) not in names]
    assert found.without == pytest.approx(truth(lm, "llama", *sides, metric, others), **same)
    for name, cost in zip(names, found.costs, strict=True):
        rest = truth(lm, "llama", *sides, metric, [other for other in names if other != name])
        assert rest < 0.7 and cost == pytest.approx(kept - rest, **same)
    assert len(found.random) == len(found.random_without) == 2
    assert found.steps[0] == (12, 1.0) and found.steps[-1][0] == len(names)
    # A set that nobody searched for, by the same hooks.
    chosen = ["L0H1", "L0H3", "L1H2"]
    given = circuits.measure_circuit(lm, *sides, "L0H1, L0H3, L1H2", metric, random_sets=3)
    assert given.keep is None and [str(head) for head in given.heads] == chosen and len(given.random) == 3
    assert given.faithfulness == pytest.approx(alone := truth(lm, "llama", *sides, metric, chosen), **same)
    others = [str(head) for head in lm.spec.heads if str(head) not in chosen]
    assert given.without == pytest.approx(truth(lm, "llama", *sides, metric, others), **same)
    rest = truth(lm, "llama", *sides, metric, ["L0H1", "L1H2"])
    assert given.costs[1] == pytest.approx(alone - rest, **same)


def test_half_of_the_pairs_are_held_out_where_there_are_enough(fresh):
    lm = loaded("gpt2", draw(fresh))
    clean, corrupted, answers = induction_pairs(random.Random(1))
    found = mh.find_circuit(lm, clean, corrupted, answers=answers, keep=0.5, random_sets=4)
    assert found.notes["pairs"] == "2 searched, 2 others measured" and found.found_with != found.faithfulness
    again = mh.find_circuit(lm, clean, corrupted, answers=answers, keep=0.5, random_sets=4)
    assert again.heads == found.heads and again.random == pytest.approx(found.random)
    table = found.to_pandas()
    assert list(table.columns) == ["head", "stack", "layer", "index", "cost"] and len(table) == len(found.heads)
    assert found.to_dict()["random"] == list(found.random)
    assert found.share_of_random_above == np.mean([value >= found.faithfulness for value in found.random])


@pytest.mark.slow
def test_what_is_held_out_is_said(fresh):
    lm = loaded("gpt2", draw(fresh))
    clean, corrupted, answers = induction_pairs(random.Random(1))
    few = mh.find_circuit(lm, clean[:3], corrupted[:3], answers=answers[:3], keep=0.5, random_sets=0)
    assert few.notes["pairs"].startswith("too few") and few.share_of_random_above is None
    all_of_them = mh.find_circuit(lm, clean, corrupted, answers=answers, keep=0.5, random_sets=0, hold_out=False)
    assert all_of_them.notes["pairs"].startswith("all of them") and all_of_them.found_with == all_of_them.faithfulness


def test_what_is_to_be_held_out_and_cannot_be_is_refused(fresh):
    lm = loaded("gpt2", draw(fresh))
    clean, corrupted, answers = induction_pairs(random.Random(1))
    few = (clean[:3], corrupted[:3])
    message = r"hold_out=True: a half is held out of 4 pairs or more, and here are 3: give more, or leave hold_out= out"
    refuses(TextError, message, mh.find_circuit, lm, *few, answers=answers[:3], hold_out=True)
    one = (clean[0], corrupted[0])
    refuses(TextError, "and here is 1", mh.find_circuit, lm, *one, answers=answers[0], hold_out=True)
    ready = [{"input_ids": torch.randint(3, VOCABULARY, (5, 9), generator=fresh)} for _ in range(2)]

    def metric(outputs, inputs=None):
        return outputs.logits[:, -1, 7].double()

    refuses(TextError, "one for all or one for each of 4 texts", mh.find_circuit, lm, clean, corrupted)
    wrong = [*answers[:3], ("a b", "c")]
    refuses(TextError, "answers of text 3|'a b' is", mh.find_circuit, lm, clean, corrupted, answers=wrong)
    message = "hold_out=True: ready inputs are one batch, and none of it can be held out. Give texts."
    refuses(TextError, message, mh.find_circuit, lm, *ready, metric, hold_out=True)
    found = mh.find_circuit(lm, clean, corrupted, answers=answers, keep=0.5, random_sets=0, hold_out=True)
    assert found.notes["pairs"] == "2 searched, 2 others measured"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep": 0.0}, r"keep=0.0 is not a share of the metric to keep: give a number above 0, and at most 1"),
        ({"keep": 1.5}, "is not a share"),
        ({"random_sets": -1}, "random_sets=-1: give 0 or more sets"),
    ],
)
def test_mistakes_are_named(changes, message):
    with pytest.raises(StatisticError, match=message):
        mh.find_circuit(loaded("gpt2", 3), "the cat sat", "the dog sat", answers=("on", "by"), **changes)
    if "keep" not in changes:
        with pytest.raises(StatisticError, match=message):
            circuits.measure_circuit(
                loaded("gpt2", 3), "the cat sat", "the dog sat", "L0H1", answers=("on", "by"), **changes
            )


@pytest.mark.slow
def test_the_heads_that_training_made_are_named(tmp_path):
    """By patching, composition, circuit and its edges: `benchmarks.circuits` asks three seeds, this one."""
    answers = trained_answers(0, tmp_path / "induction")
    assert max(answers["masses"].values()) > 0.8 and all(answers["right"].values()), answers
