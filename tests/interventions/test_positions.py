"""A model without its positions is a copy of it whose position tables are zeros and whose rotations turn by nothing."""

import copy

import pytest
import torch

import manyheads as mh
from manyheads.errors import PlanError
from manyheads.interventions import editors_of
from manyheads.interventions.effects.effect import random_plans
from manyheads.nn.positions import Rope, Yarn
from manyheads.plan import Ablate, Plan, SkipPositions
from tests.interventions.surgeries import TEXTS, assert_close, assert_matters, edited, loaded, output
from tests.interventions.test_applied import some_inputs
from tests.models.eager import draw

TABLES = {
    "bert": ["embeddings.position_embeddings"],
    "gpt2": ["transformer.wpe"],
    "t5": [f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias" for side in ("encoder", "decoder")],
}


def without_positions(name, model):
    """A copy, by hand: zeros in its tables, angles of 0 in its rotation."""
    operated = copy.deepcopy(model)
    for path in TABLES.get(name, ()):
        torch.nn.init.zeros_(operated.get_submodule(path).weight)
    if name not in TABLES:
        operated.model.rotary_emb.inv_freq.zero_()
    return operated


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma2", "gpt_oss", "t5"])
@pytest.mark.sampled(2)
def test_skipping_positions_is_zeros_in_the_tables_and_no_angle_in_the_rotation(name, fresh):
    lm, inputs = loaded(name, draw(fresh)), some_inputs(name, fresh)
    plain = output(lm.model, inputs)
    want = output(without_positions(name, lm.model), inputs)
    with mh.applied(lm, SkipPositions()) as now:
        assert_close(output(lm.model, inputs), want)
    assert_matters(want, plain)
    assert now.unchanged == () and torch.equal(output(lm.model, inputs), plain), "afterwards it is as it was"


def test_an_encoder_without_positions_reads_its_tokens_in_any_order(fresh):
    lm = loaded("bert", draw(fresh))
    ids = torch.randint(5, 60, (1, 11), generator=fresh)
    order = torch.randperm(11, generator=fresh)
    in_order, moved = (edited(lm, SkipPositions(), {"input_ids": some}) for some in (ids, ids[:, order]))
    assert_close(moved, in_order[:, order])


@pytest.mark.parametrize("rope", [Rope(), Rope(dims=4), Rope(scaling=Yarn(4.0, 16))])
def test_our_own_layers_turn_nothing_and_keep_their_length(rope, fresh):
    torch.manual_seed(draw(fresh))
    layer = mh.MultiHeadAttention(24, 3, rope=rope, causal=True).eval()
    still, x = copy.deepcopy(layer), torch.randn(9, 2, 24, generator=fresh)
    still.rotary.cos.fill_(rope.sharpen)
    still.rotary.sin.zero_()
    with torch.no_grad():
        plain, want = layer(x, x, x)[0], still(x, x, x)[0]
        with mh.applied(layer, SkipPositions()):
            assert_close(layer(x, x, x)[0], want)
        assert_matters(want, plain)
        assert torch.equal(layer(x, x, x)[0], plain)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: loaded("vit", 0), r"ViTModel has some in 'embeddings.position_embeddings', which is none of the ways"),
        (lambda: mh.MultiHeadAttention(24, 3, alibi=True).eval(), r"MultiHeadAttention has them as slopes \(ALiBi\)"),
        (lambda: mh.MultiHeadAttention(24, 3).eval(), "MultiHeadAttention has no position embedding"),
    ],
)
def test_a_model_without_positions_that_can_be_taken_is_refused_by_name(make, words):
    with pytest.raises(PlanError, match=f"^skip the positions: {words}"), mh.applied(make(), SkipPositions()):
        raise AssertionError("inside")


def test_positions_are_those_of_all_samples(fresh):
    lm, plans = loaded("llama", draw(fresh)), [Plan([SkipPositions()]), Plan([])]
    with pytest.raises(PlanError, match="those of all samples, and these plans are one for each"):
        edited(lm, plans, some_inputs("llama", fresh))
    unopened = editors_of(lm, [Plan(SkipPositions())], None)
    with pytest.raises(PlanError, match=r"only mh\.applied and mh\.effect can"), mh.tap(lm.model, edits=unopened):
        lm.model(**some_inputs("llama", fresh))


def test_an_effect_has_no_control_unless_heads_are_named_too(fresh):
    lm = loaded("llama", draw(fresh))
    alone = mh.effect(lm, SkipPositions(), TEXTS[0], controls=3)
    assert alone.control == () and alone.notes["control"] == "none: positions belong to no head"
    inputs = lm.tokenizer(TEXTS[0], return_tensors="pt", return_token_type_ids=False)
    ids = inputs["input_ids"][0]
    with torch.no_grad():
        losses = [
            -model(**inputs).logits[0, :-1].double().log_softmax(-1).gather(1, ids[1:, None]).mean()
            for model in (lm.model, without_positions("llama", lm.model))
        ]
    assert abs(alone.change - float(losses[1] - losses[0])) < 1e-5
    for drawn in random_plans(Plan([SkipPositions(), Ablate("L1H1")]), lm.spec, 3, 0):
        assert drawn.steps[0] == SkipPositions() and drawn.steps[1].heads != "L1H1"
