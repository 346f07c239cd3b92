"""A block of `applied`: plans for single samples, blocks in blocks, threads; what is left behind, and what is said.

Oracles: each plan by itself, on each text by itself; zeros in the columns of a copy; the model as it was, to the bit.
"""

import copy
import logging
import threading

import pytest
import torch

import manyheads as mh
from manyheads.errors import HeadError, ModelError, PlanError
from manyheads.models.taps.open_taps import OPEN
from manyheads.plan import Ablate, Average, Copy, Plan, Scale, SkipOutputProjection
from tests.interventions.surgeries import TEXTS, assert_close, assert_matters, edited, loaded, output, without_heads
from tests.models.eager import draw, padded, spans
from tests.models.tiny import VOCAB_SIZE


def some_inputs(fresh):
    return padded(fresh, (11, 7, 13), VOCAB_SIZE)


PLANS = [
    Plan([Ablate("L1H1"), Scale("L2H0", 0.5)]),
    Plan(Average("L1H0-2")),
    Plan([]),
    Plan([SkipOutputProjection(1), Ablate("L0H3", kind="first")]),
    Plan(Ablate("L1H1, L2H4", kind="mean")),
    Plan(Copy("L2H1", "L2H0")),
    Plan([Scale("L1H1", 2), Ablate("L1H1", kind="resample", text=TEXTS[1])]),
]


@pytest.mark.parametrize("side", ["right", "left"])
def test_plans_for_single_samples_equal_each_by_itself(side, fresh):
    lm, corpus = loaded("llama", draw(fresh)), list(TEXTS)
    inputs = padded(fresh, (11, 7, 13, 5, 9, 8, 6), VOCAB_SIZE, side)
    with mh.applied(lm, PLANS, corpus=corpus), torch.no_grad():
        together = lm.model(**inputs).logits
    for at, (plan, span) in enumerate(zip(PLANS, spans(inputs["attention_mask"]), strict=True)):
        alone = {"input_ids": inputs["input_ids"][at : at + 1, span]}
        want = edited(lm, plan, alone, corpus)[0]
        assert_close(together[at, span], want)
        if plan.steps:
            assert_matters(want, output(lm.model, alone)[0])


def test_as_many_samples_as_plans(fresh):
    lm = loaded("llama", draw(fresh))
    words = r"2 plans were given, one for each sample, but model\.layers\.1\.self_attn attends in a batch of 3"
    with pytest.raises(PlanError, match=words):
        edited(lm, [Ablate("L1H1"), Ablate("L1H2")], some_inputs(fresh))


def test_steps_act_one_after_another_and_blocks_add_up(fresh):
    lm, inputs = loaded("llama", draw(fresh)), some_inputs(fresh)
    both = edited(lm, Plan([Scale("L1H1", 3), Scale("L1H1", 0.5), Ablate("L2H0")]), inputs)
    assert_close(edited(lm, Plan([Scale("L1H1", 1.5), Ablate("L2H0")]), inputs), both)
    with mh.applied(lm, Scale("L1H1", 1.5)), mh.applied(lm, Ablate("L2H0")):
        nested = output(lm.model, inputs)
    assert_close(nested, both)
    assert_matters(edited(lm, Scale("L1H1", 1.5), inputs), both)
    with (
        mh.applied(lm, Ablate("L1H1")),
        mh.applied(lm, Ablate("L1H1", kind="first")),
    ):  # the inner one has the last word
        assert torch.equal(output(lm.model, inputs), edited(lm, Ablate("L1H1", kind="first"), inputs))


def test_recording_and_measuring_inside_see_the_edited_model(fresh):
    lm, plan = loaded("llama", draw(fresh)), Ablate("L0", kind="zero")
    inputs = {"input_ids": torch.randint(5, VOCAB_SIZE, (1, 11), generator=fresh)}
    operated = copy.deepcopy(lm.model)
    without_heads("llama", operated, 0, list(range(6)))
    other = mh.load(operated, tokenizer=lm.tokenizer)
    plain = mh.record_call(lm.model, **inputs).layers[1].weights(head=2)
    with mh.applied(lm, plan):
        rec = mh.record_call(lm.model, **inputs)
        table = mh.measure(lm, TEXTS[0], statistics=["entropy"])
    want = mh.record_call(operated, **inputs).layers[1].weights(head=2)
    assert_close(torch.as_tensor(rec.layers[1].weights(head=2)), torch.as_tensor(want))
    assert_matters(torch.as_tensor(want), torch.as_tensor(plain))
    assert abs(table["entropy"] - mh.measure(other, TEXTS[0], statistics=["entropy"])["entropy"]).max() < 1e-5


@pytest.mark.parametrize("plan", [Plan([*PLANS[0].steps, *PLANS[3].steps]), Plan(PLANS[4].steps[0])], ids=str)
def test_nothing_is_left_behind_also_after_an_error_inside_the_model(plan, fresh):
    lm, inputs = loaded("llama", draw(fresh)), some_inputs(fresh)
    plain, hooks = output(lm.model, inputs), hook_counts(lm.model)
    broken = lm.model.model.layers[2].mlp.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), mh.applied(lm, plan, corpus=list(TEXTS)):
        lm.model(**inputs)
    broken.remove()
    assert torch.equal(output(lm.model, inputs), plain)
    assert hook_counts(lm.model) == hooks and not OPEN.taps
    assert_matters(edited(lm, plan, inputs, list(TEXTS)), plain)
    assert torch.equal(output(lm.model, inputs), plain) and hook_counts(lm.model) == hooks


def hook_counts(model):
    return [
        (len(each._forward_hooks), len(each._forward_pre_hooks), "forward" in vars(each)) for each in model.modules()
    ]


def test_another_thread_runs_the_model_as_it_is(fresh):
    lm, inputs, got = loaded("llama", draw(fresh)), some_inputs(fresh), {}
    plain = output(lm.model, inputs)
    plan = Plan([Ablate("L1H1"), SkipOutputProjection(2)])

    def other():
        got["other"] = output(lm.model, inputs)
        with mh.applied(lm, Ablate("L0H2")):
            got["own"] = output(lm.model, inputs)

    with mh.applied(lm, plan):
        output(lm.model, inputs)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        here = output(lm.model, inputs)
    assert torch.equal(got["other"], plain)
    assert torch.equal(got["own"], edited(lm, Ablate("L0H2"), inputs))
    assert torch.equal(here, edited(lm, plan, inputs))
    assert_matters(here, plain)


# ------------------------------------------------------------------------------------------------------- what is said


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.WARNING, logger="manyheads")
    return lambda: [record.message for record in caplog.records if record.name == "manyheads"]


def test_steps_that_changed_nothing_are_named(said, fresh):
    lm, inputs = loaded("llama", draw(fresh)), some_inputs(fresh)
    idle = [Scale("L0H1", 1), Average("L1H2"), Copy("L2H3", "L2H3")]
    after = [Scale("L0H5", 2), Ablate("L0H5")]  # of a head that is silent by then
    with mh.applied(lm, Plan([*idle, Ablate("L0H5"), *after, Ablate("L1H0")])) as now:
        output(lm.model, inputs)
    words = ["scale L0H1 by 1", "average L1H2", "copy the weights of L2H3 to L2H3", "scale L0H5 by 2"]
    assert list(now.unchanged) == words
    assert said() == [f"{each} changed nothing in what was run." for each in words]
    assert now.changes["ablate L0H5 (zero)"] == now.changes["ablate L1H0 (zero)"] == 1


def test_a_step_that_changed_something_is_not_named(said, fresh):
    lm, inputs = loaded("llama", draw(fresh)), some_inputs(fresh)
    steps = [
        Scale("L0H1", 4),
        Average("L1H1-2"),
        Copy("L2H3", "L2H2"),
        Ablate("L1H5", "first"),
        SkipOutputProjection(2),
    ]
    with mh.applied(lm, Plan(steps)) as now:
        output(lm.model, inputs)
    assert now.unchanged == () and not said() and len(now.changes) == 5
    assert now.changes["scale L0H1 by 4"] == 0.75  # of the largest


def test_a_model_that_never_ran_is_told(said, fresh):
    with mh.applied(loaded("llama", draw(fresh)), Ablate("L0H1")):
        pass
    assert said() == ["the plan changed nothing: the model did not run while it was applied."]


@pytest.mark.parametrize("heads", ["L3H0", "L0H6", "encoder:L0", "L1H2, L7"])
def test_heads_that_the_model_lacks_are_refused_before_anything_runs(heads, fresh):
    with (
        pytest.raises(HeadError, match="there is no|no stack"),
        mh.applied(loaded("llama", draw(fresh)), Ablate(heads)),
    ):
        raise AssertionError("inside")


def test_a_head_mask_is_refused_with_what_to_use_instead(fresh):
    lm, inputs = loaded("llama", draw(fresh)), some_inputs(fresh)
    mask = torch.ones(3, 6)
    with (
        pytest.raises(PlanError, match=r"head_mask= does nothing here: .*LlamaForCausalLM.*applied\(.*prune_heads\("),
        mh.applied(lm, Ablate("L0H1")),
    ):
        lm.model(**inputs, head_mask=mask)
    with pytest.raises(PlanError, match="head_mask= does nothing here"):  # nor afterwards: it is loaded
        lm.model(**inputs, head_mask=mask)


def test_training_mode_and_what_is_no_plan_are_refused(fresh):
    lm = loaded("llama", draw(fresh))
    with pytest.raises(PlanError, match="is no plan: give a Plan"):
        edited(lm, [], {})
    lm.model.train()
    with pytest.raises(ModelError, match=r"training mode.*model\.eval\(\)"):
        edited(lm, Ablate("L0H1"), some_inputs(fresh))


def test_what_is_read_of_an_edited_model_says_so(fresh, minilm):
    with mh.applied(minilm, mh.Copy("L1", source="L1H0")):
        inside = mh.record(minilm, "The cat sat."), mh.measure(minilm, "The cat sat.", ["entropy"])
    outside = mh.record(minilm, "The cat sat."), mh.measure(minilm, "The cat sat.", ["entropy"])
    assert all("heads were edited meanwhile" in said["edited"] for said in (inside[0].provenance, inside[1].notes))
    assert not any("edited" in said for said in (outside[0].provenance, outside[1].notes))
    assert torch.equal(inside[0].layers[1].weights(), outside[0].layers[1].weights())  # of its own q and k, as ever
    assert not torch.equal(inside[0].layers[2].weights(), outside[0].layers[2].weights())
