"""Published results on a pretrained model: what is measured, by hand; on tiny-code, which is small."""

from unittest.mock import create_autospec

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import manyheads as mh
from manyheads.errors import TextError
from manyheads.heads import Head
from manyheads.lab.reproductions import clark_syntax, gu_real, olsson_induction, prose, reproduce
from manyheads.lab.reproductions.reproduction import Task
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
