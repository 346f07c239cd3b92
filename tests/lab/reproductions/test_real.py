"""Published results on a pretrained model: what is measured, by hand; on tiny-code, which is small."""

import re
from itertools import pairwise
from unittest.mock import create_autospec

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import manyheads as mh
from manyheads.errors import TextError
from manyheads.heads import Head
from manyheads.lab.reproductions import (
    clark_syntax,
    gu_real,
    olsson_induction,
    prose,
    reproduce,
    wang_ioi,
    wu_retrieval,
)
from manyheads.lab.reproductions.reproduction import Task
from manyheads.roles.probes import RetrievalScores
from manyheads.roles.probes.retrieval import Trial
from manyheads.statistics import HeadTable
from tests.refusals import refuses


@pytest.fixture(scope="module")
def lm():
    return mh.load("tiny-code")


def drawn(lm, fresh, texts, tokens):
    return torch.randint(lm.model.config.vocab_size, (texts, tokens), generator=fresh)


def test_removed_heads_cost_what_a_cut_output_projection_costs(lm, fresh):
    ids = drawn(lm, fresh, 2, 13)
    heads = [Head("", int(layer), int(torch.randint(8, (), generator=fresh))) for layer in (0, 0, 2)]
    seen = prose.losses_without(lm, ids, heads)
    cut, width = mh.load("tiny-code").model, lm.model.config.hidden_size // 8
    with torch.no_grad():
        for head in heads:
            cut.model.layers[head.layer].self_attn.o_proj.weight[:, head.index * width : (head.index + 1) * width] = 0
        logits = cut(ids).logits
    nats = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    torch.testing.assert_close(seen, nats, rtol=1e-4, atol=1e-4)
    assert (seen - prose.losses_without(lm, ids)).abs().max() > 1e-3


def test_other_heads_are_of_the_same_layers_and_none_twice(fresh):
    pool = [Head("", layer, index) for layer in range(3) for index in range(4)]
    heads = [Head("", 0, 1), Head("", 0, 3), Head("", 2, 0)]
    for seed in torch.randint(1000, (20,), generator=fresh).tolist():
        others = prose.others_like(heads, pool, seed)
        assert [one.layer for one in others] == [0, 0, 2]
        assert len({*others, *heads}) == 6
    whole = prose.others_like([*heads, Head("", 0, 0), Head("", 0, 2)], pool, 5)
    assert len({*whole}) == 5 and not {*whole} & {Head("", 0, index) for index in range(4)}


def test_a_token_was_seen_before_where_its_pair_was(fresh):
    ids = torch.randint(3, (4, 17), generator=fresh)
    seen = olsson_induction.seen_before(ids)
    for row, window in enumerate(ids.tolist()):
        for place in range(1, 17):
            pairs = [window[other - 1 : other + 1] for other in range(1, place)]
            assert bool(seen[row, place - 1]) == (window[place - 1 : place + 1] in pairs)


def test_losses_are_parted_by_kind_of_token(fresh):
    losses, again = torch.rand(3, 130, generator=fresh), torch.rand(3, 130, generator=fresh) > 0.8
    random = torch.rand(2, 7, generator=fresh)  # four tokens twice: the last four places are the second time
    parts = olsson_induction.parts_of(losses, again, random)
    flat = [(float(loss), bool(was)) for loss, was in zip(losses.flatten(), again.flatten(), strict=True)]
    assert parts["again"] == pytest.approx(np.mean([loss for loss, was in flat if was]), rel=1e-5)
    assert parts["first"] == pytest.approx(np.mean([loss for loss, was in flat if not was]), rel=1e-5)
    late, early = losses[:, 70:].double(), losses[:, 40:60].double()
    assert parts["in_context"] == pytest.approx(float(late.mean() - early.mean()), rel=1e-4)
    assert parts["copied"] == pytest.approx(float(random[:, [4, 5, 6]].mean()), rel=1e-5)


def test_weights_on_the_first_key_are_those_of_the_models_eager_maps(lm, fresh, monkeypatch):
    ids = drawn(lm, fresh, 3, 11)
    eager = mh.load("tiny-code").model
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        maps = eager(ids, output_attentions=True).attentions
    mean = torch.stack([layer[..., 0].mean(-1) for layer in maps])  # layer, text, head
    for threshold in mean.flatten().double().quantile(torch.tensor([0.2, 0.6, 0.9]).double()).tolist():
        monkeypatch.setattr(gu_real, "THRESHOLD", threshold + 1e-5)
        shares = (mean > threshold + 1e-5).double().mean((1, 2)).numpy()
        np.testing.assert_allclose(gu_real.sinks_by_layer(lm, ids), shares)
    read = gu_real.read(lm, 3, 4)
    assert sorted(read["random"].flatten().tolist()) == sorted(read["prose"].flatten().tolist())
    assert (read["repeated"] == read["prose"][:, :1]).all() and (read["fixed"][:, 1:] == read["prose"][:, 1:]).all()


def half(columns):
    """A half of the treebank, as a table of three heads."""
    table = create_autospec(HeadTable, instance=True)
    table.heads, table.names = (Head("", 0, 0), Head("", 0, 1), Head("", 1, 0)), tuple(columns)
    table.column.side_effect = columns.__getitem__
    few = "aux"  # of which there are few arcs
    table.interval.side_effect = lambda name: (columns[name] * 0, columns[name] * 0 + (0.26 if few in name else 0.24))
    return table


def test_a_relations_head_is_chosen_on_one_half_and_scored_on_the_other():
    nan = float("nan")
    first = {
        "det.to_governor.given": [nan, nan, nan], "det.to_governor.mode": [0.1] * 3, "det.to_governor.rule": [0.2] * 3,
        "det.to_dependent.given": [0.3, 0.9, 0.8], "det.to_dependent.mode": [0.6] * 3,
        "obj.to_governor.given": [0.5, 0.2, 0.4], "obj.to_governor.mode": [0.1] * 3,
        "obj.to_governor.rule": [0.45] * 3,
        "obj.to_dependent.given": [0.1, 0.3, 0.2], "obj.to_dependent.mode": [0.05] * 3,
        "aux.to_governor.given": [0.9, 0.2, 0.4], "aux.to_governor.mode": [0.1] * 3,
        "amod.to_governor.given": [0.5, 0.2, 0.4], "amod.to_governor.mode": [0.1] * 3,
    }  # fmt: skip
    columns = {name: np.array(values) for name, values in first.items()}
    choosing, scoring = half(columns), half({name: x + 0.01 for name, x in columns.items() if "amod" not in name})
    found = clark_syntax.found_in(choosing, scoring)
    assert found == {
        "det": (Head("", 0, 1), "to_dependent", pytest.approx(0.91), pytest.approx(0.61)),
        "obj": (Head("", 0, 1), "to_dependent", pytest.approx(0.31), pytest.approx(0.06)),  # by more than the other way
    }
    first, *rows = clark_syntax.rows_of({"a model": found})
    assert first.values == (1.0,) and [row.values for row in rows] == [(pytest.approx(0.91),), (pytest.approx(0.31),)]


def test_a_file_without_annotations_is_refused_before_anything_is_made(tmp_path):
    (tmp_path / "plain.txt").write_text("The cat sat.\n")
    refuses(
        TextError, "no annotated sentence", reproduce, "clark-syntax", tmp_path / "out", file=tmp_path / "plain.txt"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["olsson-induction", "gu-real"])
def test_a_trial_on_a_small_model_has_a_row_for_each_claim(name, tmp_path, monkeypatch, lm):
    monkeypatch.setattr(prose, "MODEL", "tiny-code")
    made = reproduce(name, tmp_path / "out", quick=True)
    assert made.document["seeds"] == 1 and all(np.isfinite(row["each"]).all() for row in made.document["rows"])
    assert (tmp_path / "out/page.md").read_text().count("\n| ") >= 7


def test_it_is_said_how_far_it_is(monkeypatch, lm, tmp_path):
    told = []
    monkeypatch.setattr(prose, "MODEL", "tiny-code")
    task = Task(tmp_path, 1, quick=True, progress=lambda name: lambda *at: told.append((name, *at)))
    olsson_induction.run(task)
    assert told == [("seed 0", done, 3) for done in (1, 2, 3)]


# --------------------------------------------------------------------------------------------- who was given something


def test_sentences_have_two_people_of_whom_one_gives_and_others_when_corrupted(fresh):
    seed = int(torch.randint(1000, (), generator=fresh))
    items = wang_ioi.sentences(wang_ioi.NAMES, 24, seed)
    assert items == wang_ioi.sentences(wang_ioi.NAMES, 24, seed) != wang_ioi.sentences(wang_ioi.NAMES, 24, seed + 1)
    firsts = []
    for text, corrupted, indirect, subject in items:
        words, others = (re.findall(r"\w+", part) for part in (text, corrupted))
        names = [word for word in words if word in wang_ioi.NAMES]
        firsts.append(names[0] == subject)
        assert sorted(names) == sorted([indirect, subject, subject]) and names[2] == subject
        strangers = [other for word, other in zip(words, others, strict=True) if word != other]
        assert len(strangers) == len({*strangers, indirect, subject}) - 2 == 3 and text.endswith(" to")
    assert sum(firsts) == 12 and len({text.split()[0] for text, *_ in items}) >= 4


def test_names_are_where_the_tokens_say(fresh):
    filler = 10 + torch.randperm(90, generator=fresh)[:9]
    for io_first in (True, False):
        order = [3, 7] if io_first else [7, 3]
        ids = [int(filler[0]), order[0], int(filler[1]), order[1], *filler[2:5].tolist(), 7, *filler[5:].tolist()]
        first = ids.index(7)
        wanted = {"IO": ids.index(3), "S1": first, "S1+1": first + 1, "S2": 7, "end": 11}
        assert wang_ioi.places_of(ids, 3, 7) == wanted
        assert ids[wanted["S2"]] == 7 and first < 4


def test_roles_go_to_heads_that_look_there_and_carry_something(fresh):
    heads = [Head("", layer, index) for layer in range(4) for index in range(5)]
    draws = torch.rand(2, 20, generator=fresh)
    weights, values = (dict(zip(heads, row.tolist(), strict=True)) for row in (draws[0], draws[1] / 20 - 0.01))
    looking = wang_ioi.lookers(weights, 3)
    assert {*looking} == {head for head in heads if head.layer < 3 and weights[head] > 0.25}
    assert all(weights[one] >= weights[two] for one, two in pairwise(looking))
    best = wang_ioi.strongest({head: values[head] for head in looking}, 3)
    able = [head for head in looking if values[head] >= 0.01]
    assert len(best) == min(3, len(able)) and {*best} <= {*able}
    assert all(values[head] <= min(values[one] for one in best) for head in able if head not in best)


@pytest.fixture
def code_names(monkeypatch):
    """Names and sentences for a model of code, to which letters are single tokens."""
    names = ("x", "y", "z", "i", "j", "k", "a", "b", "c", "n")
    monkeypatch.setattr(wang_ioi, "NAMES", names)
    templates = ("if {a} and {b} : {subject} = {thing} not", "{a} or {b} and {subject} or")
    monkeypatch.setattr(wang_ioi, "TEMPLATES", tuple(f"return {template}" for template in templates))
    return names


def test_weights_of_roles_are_those_of_the_models_eager_maps(lm, fresh, code_names):
    items = wang_ioi.sentences(code_names, 4, int(torch.randint(99, (), generator=fresh)))
    seen = wang_ioi.Half(lm, items).weights
    eager = mh.load("tiny-code").model
    eager.set_attn_implementation("eager")
    sums = dict.fromkeys(wang_ioi.ROLES, 0.0)
    for text, _, indirect, subject in items:
        ids = lm.required_tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            maps = torch.stack(eager(ids, output_attentions=True).attentions)[:, 0]  # layer, head, row, key
        tokens = ids[0].tolist()
        io, s = (lm.required_tokenizer(f" {name}")["input_ids"][-1] for name in (indirect, subject))
        where = [place for place, token in enumerate(tokens) if token == s]
        end, first, again, named = len(tokens) - 1, where[0], where[1], tokens.index(io)
        cells = [(end, named), (end, named), (end, again), (again, first + 1), (again, first), (first + 1, first)]
        for role, (row, key) in zip(sums, cells, strict=True):
            sums[role] = sums[role] + maps[:, :, row, key] / len(items)
    for role, mean in sums.items():
        got = [[seen[role][Head("", layer, index)] for index in range(8)] for layer in range(len(mean))]
        torch.testing.assert_close(torch.tensor(got), mean, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------------------------- needles


def test_only_texts_in_which_the_needle_was_found_have_a_part_in_a_heads_score(fresh):
    scores, counted = torch.rand(7, 5, generator=fresh).double().numpy(), [True, False, True, True, False, False, True]
    results = [create_autospec(RetrievalScores, instance=True) for _ in range(7)]
    for result, score, counts in zip(results, scores, counted, strict=True):
        result.trials = (Trial(9, 0.5, "", 0.5, counts, 3, score, score),)
    expected = [sum(scores[i][head] for i in range(7) if counted[i]) / 4 for head in range(5)]
    np.testing.assert_allclose(wu_retrieval.mean_score(results, 5), expected)
    missed = [result for result, counts in zip(results, counted, strict=True) if not counts]
    assert (wu_retrieval.mean_score(missed, 5) == 0).all()


def measured_by_hand(recalls, scores):
    parts = {kind: {"recall": recall, "loss": 3.0 + place} for place, (kind, recall) in enumerate(recalls.items())}
    retrieval = [head for head, score in scores.items() if score > 0.1]
    return {"scores": scores, "retrieval": retrieval, "held_out": 0.4, "trials": [], **parts}


def test_what_is_left_of_needles_is_a_share_of_what_all_heads_find(fresh):
    values = torch.rand(2, 30, generator=fresh).double() * 0.099
    by_seed = []
    drawn = ({"intact": 0.8, "masked": 0.2, "others": 0.6}, {"intact": 0.5, "masked": 0.1, "others": 0.5})
    for place, recalls in enumerate(drawn):
        scores = {f"L0H{head}": float(value) for head, value in enumerate(values[place])}
        by_seed.append(measured_by_hand(recalls, {**scores, "L1H0": 0.7, "L1H1": 0.0}))
    rows = {row.quantity: row.values for row in wu_retrieval.rows_of(by_seed)}
    assert rows["heads with a retrieval score above 0.1"] == pytest.approx((1 / 32, 1 / 32))
    assert rows["... of that, with the retrieval heads masked"] == pytest.approx((0.25, 0.2))
    assert rows["... of that, with other heads of the same layers masked"] == pytest.approx((0.75, 1.0))
    assert rows["a token of prose with the retrieval heads masked, nats more"] == pytest.approx((1.0, 1.0))
    assert rows["... with other heads masked"] == pytest.approx((2.0, 2.0))


@pytest.mark.slow
def test_a_trial_of_needles_has_a_row_for_each_claim(tmp_path, monkeypatch, lm):
    monkeypatch.setattr(prose, "MODEL", "tiny-code")
    made = reproduce("wu-retrieval", tmp_path / "out", quick=True)
    assert all(np.isfinite(row["each"]).all() for row in made.document["rows"])


@pytest.mark.slow
def test_a_trial_of_names_has_a_row_for_each_claim(tmp_path, monkeypatch, lm, code_names):
    monkeypatch.setattr(prose, "MODEL", "tiny-code")
    made = reproduce("wang-ioi", tmp_path / "out", quick=True)
    assert all(np.isfinite(row["each"]).all() for row in made.document["rows"])
