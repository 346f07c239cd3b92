"""Heads cut out of a model: what is left computes what the whole one computes without them, and the whole one stays.

The oracle is surgery by hand: zeros in the removed heads' input columns of each output projection of a stock model.
"""

import copy
import re
from dataclasses import replace

import pytest
import torch

import manyheads as mh
from manyheads.errors import HeadError, ModelError
from manyheads.interventions import difference, prune_heads, removed_text
from manyheads.interventions.prune.verify import in_full, outputs_of, random_inputs
from manyheads.interventions.save.save import PrunedModel
from manyheads.models.weights.projections import Projections
from tests.interventions.checkpoints import COMPACT, SAME, STOCK, assert_same, by_hand

MATTERS = 1e-4
FAMILIES = {**STOCK, **COMPACT}
FEW = (  # of each way to keep a head's weights one
    "llama", "llama, five heads", "phi3", "qwen2", "gpt_oss", "t5", "vit", "bert", "distilbert", "modernbert", "gpt2",
    "gpt_bigcode", "gpt_neox", "bart", "llama, uneven", "phi3, uneven",
)  # fmt: skip
STEPS = 8


@pytest.fixture
def made(fresh):
    """`made("llama")`: a fresh model of the family, loaded."""
    return lambda name: mh.load(FAMILIES[name].make(fresh), tokenizer=False)


def all_bytes(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_matters(one, other):
    inputs = random_inputs(one)
    assert difference(outputs_of(one, inputs), outputs_of(other, inputs)) > MATTERS


def assert_smaller(lm, small):
    """The spec says which heads are left, and so much fewer are the parameters: rows, columns, and little else."""
    removed, fewer = lm.spec.select(list(small.removed)), 0
    for old, new in zip(lm.spec.sites, small.spec.sites, strict=True):
        gone = len(removed.by_layer().get((old.stack, old.layer), ()))
        assert new == replace(old, num_heads=old.num_heads - gone, num_kv_heads=new.num_kv_heads)
        each = (old.qk_dim + old.v_dim) * lm.model.config.hidden_size
        fewer += (gone + old.num_kv_heads - new.num_kv_heads) * each
    assert 0 < fewer <= lm.spec.num_parameters - small.spec.num_parameters <= 1.1 * fewer


def generated(model, ids):
    options = {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "do_sample": False, "pad_token_id": 0}
    return model.generate(ids, attention_mask=torch.ones_like(ids), **options)


# --------------------------------------------------------------------------------------------------- what is left over


@pytest.mark.thinned(name=FEW)
@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_left_is_smaller_and_equals_surgery_by_hand_and_the_whole_model_is_untouched(name, made):
    family, lm = FAMILIES[name], made(name)
    before, inputs = all_bytes(lm.model), random_inputs(lm.model)
    outputs = outputs_of(lm.model, inputs)
    small = prune_heads(lm, family.remove)
    oracle = by_hand(lm.model, family.output, lm.spec.sites, lm.spec.select(family.remove))
    assert_same(small.model, oracle)
    assert_matters(oracle, lm.model)
    assert small.error <= SAME and small.effect > MATTERS
    assert_smaller(lm, small)
    after, again = all_bytes(lm.model), outputs_of(lm.model, inputs)
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    assert all(torch.equal(outputs[key], again[key]) for key in outputs)


def test_pruning_nothing_is_the_identity_to_the_bit(made):
    lm = made("llama")
    same = prune_heads(lm, [])
    before, after = all_bytes(lm.model), all_bytes(same.model)
    assert all(torch.equal(before[key], after[key]) for key in before) and before.keys() == after.keys()
    assert same.removed == () and (same.error, same.effect) == (0.0, 0.0) and same.spec == lm.spec
    assert same.model is not lm.model


def test_cuts_add_up_and_heads_keep_their_first_names(made):
    lm = made("gpt2")
    once = prune_heads(lm, "L0H1, L0H3, L1H2")
    twice = prune_heads(prune_heads(lm, "L0H1"), "L0H2, L1H2")
    assert twice.removed == once.removed == tuple(lm.spec.select("L0H1, L0H3, L1H2"))
    inputs = random_inputs(lm.model)
    assert difference(outputs_of(twice.model, inputs), outputs_of(once.model, inputs)) == 0
    assert twice.before == lm.spec and twice.weights_hash_before == lm.weights_hash


def test_heads_keep_their_names_after_a_layer_was_emptied_too(made):
    lm = made("gpt2")
    small = prune_heads(prune_heads(lm, "L0", empty_layers=True), "L0H3")  # what is L0 now was L1
    assert removed_text(small) == "L0, L1H3"
    assert_same(small.model, by_hand(lm.model, "c_proj", lm.spec.sites, small.removed))


def test_a_model_that_is_not_all_in_memory_is_refused(made):
    lm = made("bert")
    lm.model.cls.predictions.transform.dense.to("meta")
    with pytest.raises(ModelError, match="keeps 2 of its weights on disk or elsewhere .* load it without device_map"):
        prune_heads(lm, "L0H1")


def test_a_mapping_a_text_and_a_list_mean_the_same_heads(made):
    lm = made("bert")
    removed = [
        prune_heads(lm, heads).removed for heads in ({0: [1], 1: [0]}, "L0H1, L1H0", ["L1H0", mh.Head("", 0, 1)])
    ]
    assert removed[0] == removed[1] == removed[2]


def test_half_precision_is_judged_in_full_and_stays_half(fresh):
    model = STOCK["mistral"].make(fresh).to(torch.bfloat16)
    small = prune_heads(mh.load(model, tokenizer=False), "L*H2-3")
    assert small.error <= SAME
    assert in_full(model).dtype == torch.float32 and in_full(model.double()) is model
    assert {weight.dtype for weight in small.model.parameters()} == {torch.bfloat16}


def test_what_is_left_can_be_trained_and_frozen_weights_stay_frozen(made):
    lm = made("gpt2")
    lm.model.transformer.h[0].attn.c_attn.weight.requires_grad_(False)
    small = prune_heads(lm, "L0H1, L1H2").model
    small(torch.tensor([[5, 9, 7]])).logits.square().sum().backward()
    assert small.transformer.h[0].attn.c_attn.weight.grad is None
    assert small.transformer.h[1].attn.c_attn.weight.grad.abs().sum() > 0
    assert small.transformer.h[1].attn.c_proj.weight.grad.shape == (27, 36)


@pytest.mark.parametrize("name", ["phi3, uneven", "gpt2"])
def test_the_attention_implementation_can_be_changed_after_pruning(name, made):
    lm = made(name)
    small = prune_heads(lm, FAMILIES[name].remove).model
    inputs = random_inputs(small)
    fused = outputs_of(small, inputs)
    small.set_attn_implementation("eager")
    assert difference(outputs_of(small, inputs), fused) <= SAME
    with torch.no_grad():
        maps = copy.deepcopy(small)(**inputs, output_attentions=True).attentions
    assert [one.shape[1] for one in maps] == [
        site.num_heads for site in prune_heads(lm, FAMILIES[name].remove).spec.sites
    ]


def test_a_cache_holds_only_what_is_left_and_generation_goes_on(made):
    lm = made("llama, uneven")
    small = prune_heads(lm, "L0H0-1, L1H1, L1H3, L1H5")
    ids = random_inputs(lm.model)["input_ids"]
    with torch.no_grad():
        cache = small.model(ids, use_cache=True).past_key_values
    assert [layer.keys.shape[1] for layer in cache.layers] == [2, 3]
    oracle = by_hand(lm.model, "o_proj", lm.spec.sites, small.removed)
    assert torch.equal(generated(small.model, ids), generated(oracle, ids))


def test_the_same_shape_form_equals_what_is_left(made):
    for name in ("bert", "gpt_neox", "t5", "cohere"):
        small = prune_heads(made(name), FAMILIES[name].remove)
        whole = small.zeroed()
        assert_same(whole.model, small.model)
        assert whole.spec.num_parameters == small.before.num_parameters


def test_heads_that_say_nothing_already_can_go(made):
    lm = made("bert")
    zeroed = prune_heads(lm, "L0H1").zeroed()
    small = prune_heads(zeroed, "L0H1")
    assert small.effect == 0 and small.error <= SAME


# ------------------------------------------------------------------------------------------------------- empty layers


EMPTIED = {"bert": "L1", "gpt2": "L0, L1H3", "llama": "L0", "opt": "L1", "bart": "decoder:L0, cross:L1", "vit": "L0"}


@pytest.mark.parametrize("name", EMPTIED)
def test_a_layer_may_lose_all_heads_where_that_is_said(name, made):
    lm, family = made(name), FAMILIES[name]
    with pytest.raises(HeadError, match=r"Say empty_layers=True \(--empty-layers\) if that is meant, or keep one head"):
        prune_heads(lm, EMPTIED[name])
    small = prune_heads(lm, EMPTIED[name], empty_layers=True)
    oracle = by_hand(lm.model, family.output, lm.spec.sites, small.removed)
    assert_same(small.model, oracle)
    assert_matters(oracle, lm.model)
    assert_same(small.zeroed().model, oracle)
    assert len(small.spec.sites) < len(lm.spec.sites)
    if lm.model.can_generate() and name != "bert":
        ids = random_inputs(lm.model)["input_ids"]
        assert torch.equal(generated(small.model, ids), generated(oracle, ids))


# ----------------------------------------------------------------------------------------------------- shared kv heads


def test_an_uneven_choice_is_refused_with_the_nearest_plan_which_works(made):
    lm = made("llama")
    with pytest.raises(HeadError, match="left with 1, 2, 2. Remove whole groups of 2, or the same number") as refused:
        prune_heads(lm, "L0H0, L1H2-3")
    plan = re.search(r"Nearest plan that can \(1 head different\): '(.*)'\.$", str(refused.value))[1]
    assert plan == "L0H0-1, L1H2-3"
    assert prune_heads(lm, plan).spec.sites[0].num_kv_heads == 2


def test_of_multi_query_attention_query_heads_go_and_the_key_head_stays(made):
    lm = made("gpt_bigcode")
    small = prune_heads(lm, "L0H0, L0H2-3")
    assert (small.spec.sites[0].num_heads, small.spec.sites[0].num_kv_heads) == (1, 1)
    assert_same(small.model, by_hand(lm.model, "c_proj", lm.spec.sites, small.removed))


def test_layers_that_share_a_position_bias_lose_the_same_heads_or_none(made):
    lm = made("t5")
    with pytest.raises(
        HeadError, match="'encoder' share one bias of positions, so that all of them must lose the same"
    ) as refused:
        prune_heads(lm, "encoder:L0-1H2")
    assert str(refused.value).endswith("'encoder:L0H2, encoder:L1H2, encoder:L2H2'.")
    with pytest.raises(
        HeadError, match="'cross' .* all of them must lose equally many heads. .*: 'cross:L0H1, cross:L1H3, cross:L2H"
    ):
        prune_heads(lm, "cross:L0H1, cross:L1H3")
    with pytest.raises(HeadError, match="cannot be left without heads: the layers of its stack share one bias"):
        prune_heads(lm, "encoder:L0", empty_layers=True)


# ------------------------------------------------------------------------------------------------------------ refusals


def test_a_cut_in_the_wrong_place_is_never_handed_out(made, monkeypatch):
    lm, right = made("llama, uneven"), Projections.select
    monkeypatch.setattr(Projections, "select", lambda self, heads, kv_heads: right(self, heads[::-1], kv_heads))
    with pytest.raises(ModelError, match=r"without L0H0-1 differs by .* It is built in a way that is not known here"):
        prune_heads(lm, "L0H0-1")
    monkeypatch.setattr(Projections, "select", lambda self, heads, kv_heads: None)
    with pytest.raises(ModelError, match=r"without L0H0-1 differs by"):
        prune_heads(lm, "L0H0-1")


def test_only_loaded_models_and_heads_that_there_are(made):
    lm = made("bert")
    with pytest.raises(ModelError, match=r"takes a loaded model, not a BertForMaskedLM: use mh.load\(model\)"):
        prune_heads(lm.model, "L0H0")
    with pytest.raises(HeadError, match="there is no head 5 in L0: heads are 0 to 4"):
        prune_heads(lm, "L0H5")
    assert isinstance(prune_heads(lm, "L0H4"), PrunedModel)
