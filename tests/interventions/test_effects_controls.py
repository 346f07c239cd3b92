"""Random heads beside an effect: as many, none of the plan's, never the same set twice; how sure a mean of texts is."""

import numpy as np
import pytest

import manyheads as mh
from manyheads.interventions.effects.effect import interval_over_texts, random_plans
from manyheads.plan import Ablate, Average, Copy, Plan, Scale, SkipOutputProjection
from tests.interventions.surgeries import TEXTS, loaded
from tests.models.eager import draw

PLAN = Plan([Ablate("L1H1, L1H3"), Scale("L0H2", 3.0)])
TEXTS_LISTED = list(TEXTS)


def touched(plan, spec):
    return {head for step in plan.steps for head in spec.select(step.heads)}


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_controls_are_as_many_heads_none_of_the_plans_by_the_seed(name, fresh):
    spec = loaded(name, draw(fresh)).spec
    stack = "cross:" if name == "t5" else ""
    steps = [Ablate(f"{stack}L1H1-3"), Scale(f"{stack}L0H2, {stack}L1H1", 2.0), Ablate(f"{stack}L2H0", kind="first")]
    plan = Plan(steps)
    drawn = random_plans(plan, spec, 20, seed=3)
    for each in drawn:
        assert [type(step) for step in each.steps] == [type(step) for step in steps]
        assert len(touched(each, spec)) == len(touched(plan, spec)) == 5, "steps drew the same head"
        assert not touched(each, spec) & touched(plan, spec)
        sizes = [len(spec.select(step.heads)) for step in each.steps]
        assert sizes == [3, 2, 1] and each.steps[1].factor == 2.0
        both = [set(spec.select(step.heads)) for step in each.steps[:2]]
        assert len(both[0] & both[1]) == 1, "L1H1 is named twice, and so is what stands in its place"
    assert drawn == random_plans(plan, spec, 20, seed=3) != random_plans(plan, spec, 20, seed=4)
    assert len(set(drawn)) > 15


def test_controls_of_steps_within_a_layer_keep_to_a_layer(fresh):
    spec = loaded("llama", draw(fresh)).spec
    plan = Plan([Average("L1H0-2"), Copy("L0H1-2", "L0H5"), Ablate("L1H0")])
    for each in random_plans(plan, spec, 20, seed=draw(fresh)):
        average, copied, ablated = each.steps
        (layer,) = spec.select(average.heads).by_layer()
        ((other, heads),) = spec.select(copied.heads).by_layer().items()
        ((third, source),) = spec.select(copied.source).by_layer().items()
        assert third == other != layer and len(heads) == 2 and len(source) == 1 and source[0] not in heads
        assert len(spec.select(average.heads)) == 3
        assert set(spec.select(ablated.heads)) <= set(spec.select(average.heads))
        assert not touched(each, spec) & touched(plan, spec)
    (skipped, *_) = random_plans(Plan(SkipOutputProjection(1)), spec, 3, seed=0)
    assert spec.select(skipped.steps[0].heads).by_layer().keys() <= {("", 0), ("", 2)}


def test_where_too_few_heads_are_left_there_is_no_control_and_that_is_said(fresh):
    lm = loaded("bert", draw(fresh))
    found = mh.effect(lm, Ablate("L0, L1H0"), TEXTS_LISTED, controls=3)
    assert found.control == () and found.share_of_controls_above is None
    assert found.notes["control"].startswith("none: too few heads are left beside those of ablate L0, L1H0")
    assert mh.effect(lm, Ablate("L0H1"), TEXTS[0], controls=0).notes["control"] == "none, as asked"


def test_a_control_is_what_the_same_steps_do_elsewhere(fresh):
    lm = loaded("llama", draw(fresh))
    found = mh.effect(lm, PLAN, TEXTS_LISTED, controls=4, seed=7)
    want = [mh.effect(lm, plan, TEXTS_LISTED, controls=0).change for plan in random_plans(PLAN, lm.spec, 4, seed=7)]
    assert np.allclose(found.control, want, atol=1e-12) and len(set(want)) == 4
    assert found.share_of_controls_above == sum(each >= found.change for each in want) / 4
    assert found.notes["control"] == "4 random sets of as many heads"
    assert "as many random heads" in str(found) and found.to_dict()["control"] == list(found.control)


def test_the_interval_covers_the_mean_as_often_as_it_says():
    generator = np.random.Generator(np.random.PCG64(11))
    samples = generator.exponential(size=(50, 400)) - 1  # 400 experiments of 50 texts, whose mean is 0
    low, high = interval_over_texts(samples)
    assert 0.88 < np.mean((low < 0) & (high > 0)) < 0.99
    assert np.allclose(low, interval_over_texts(samples)[0])
    assert all(np.isnan(side).all() for side in interval_over_texts(samples[:1])), "one text says nothing of others"


def test_no_random_set_is_drawn_twice_and_fewer_are_said(fresh):
    lm = loaded("llama", draw(fresh))
    others = len(lm.spec.heads) - 1
    drawn = random_plans(Plan(Ablate("L0H1")), lm.spec, others + 5, seed=draw(fresh))
    assert len(set(drawn)) == len(drawn) == others
    layers = len(lm.spec.layers)
    found = mh.effect(lm, SkipOutputProjection(1), TEXTS[0], controls=layers + 3)
    assert len(found.control) == layers - 1
    assert found.notes["control"] == f"{layers - 1} random sets of as many heads: there are no others"
