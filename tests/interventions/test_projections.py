"""Projections are found, read, written and permuted by head, whatever the family calls them and however they lie."""

import copy
import random

import pytest
import torch
from torch import nn

import manyheads as mh
from manyheads.errors import ModelError, ShapeError
from manyheads.interventions.verify import outputs_of, random_inputs
from manyheads.models.weights.projections import OwnCounts, projections_of
from manyheads.spec import Site
from tests.interventions.checkpoints import COMPACT, STOCK, gap

FAMILIES = {**STOCK, **COMPACT}
LAYOUTS = (
    "bert", "distilbert", "gpt2", "gpt_bigcode", "gpt_neox", "modernbert", "phi3", "qwen2", "cohere", "gpt_oss", "t5",
)  # fmt: skip
SAME = 1e-5
MATTERS = 1e-4


@pytest.fixture
def made(fresh):
    return lambda name: mh.load(FAMILIES[name].make(fresh), tokenizer=False)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.sampled(3)
def test_what_was_read_is_what_the_model_computes_with(name, made):
    """q of the first layer, by hand from what `read` gives, is the q that the layer attends with, but for rotation."""
    lm = made(name)
    site = lm.spec.sites[0]
    found, seen = projections_of(lm.model, site), {}
    module = lm.model.get_submodule(site.module)
    handle = module.register_forward_pre_hook(
        lambda _, args, kwargs: seen.update(x=(args[0] if args else kwargs["hidden_states"]).detach()), with_kwargs=True
    )
    with torch.no_grad(), mh.tap(lm.model, on_call=lambda call: seen.setdefault("call", call)):
        outputs = outputs_of(lm.model, random_inputs(lm.model))
    handle.remove()
    assert outputs
    weight, bias = found.read("v")
    assert weight.shape[:2] == (site.num_kv_heads, site.v_dim)
    v = torch.einsum("bkm,gfm->bgkf", seen["x"], weight) + (0 if bias is None else bias[:, None])
    torch.testing.assert_close(seen["call"].v, v, rtol=0, atol=1e-4)
    assert found.read("q")[0].shape == (site.num_heads, site.qk_dim, seen["x"].shape[-1])
    assert found.read_output().shape[:2] == (site.num_heads, site.v_dim)


@pytest.mark.turns(4)
@pytest.mark.thinned(name=LAYOUTS[2:])
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.sampled(2)
def test_what_was_read_can_be_written_back_and_other_numbers_matter(name, made):
    lm = made(name)
    other = copy.deepcopy(lm.model)
    found = projections_of(other, lm.spec.sites[0])
    for part in "qkv":
        weight, bias = found.read(part)
        found.write(part, torch.zeros_like(weight), bias)
        assert gap(lm.model, other) > MATTERS
        found.write(part, weight, bias)
        assert gap(lm.model, other) == 0


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.sampled(3)
def test_a_permutation_of_heads_changes_nothing(name, made):
    """All layers by the same one (T5's share a bias); groups move as a whole, query heads also within them."""
    lm = made(name)
    other = copy.deepcopy(lm.model)
    first = lm.spec.sites[0]
    size = first.num_heads // first.num_kv_heads
    groups = random.sample(range(first.num_kv_heads), first.num_kv_heads)
    heads = [group * size + at for group in groups for at in random.sample(range(size), size)]
    if heads == sorted(heads):
        heads, groups = heads[::-1], groups[::-1]
    for site in lm.spec.sites:
        projections_of(other, site).select(heads, groups)
    assert gap(lm.model, other) <= SAME
    before, after = lm.model.state_dict(), other.state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in before)


def test_query_heads_given_to_another_group_would_matter(made):
    lm = made("qwen2")
    other = copy.deepcopy(lm.model)
    projections_of(other, lm.spec.sites[0]).select([2, 3, 0, 1, 4, 5], [0, 1, 2])
    assert gap(lm.model, other) > MATTERS


def test_fewer_key_heads_can_be_selected_for_the_same_query_heads(made):
    """What merging heads into groups is built on: write the merged ones, keep one of each group."""
    lm = made("llama")
    found = projections_of(lm.model, lm.spec.sites[0])
    found.select(range(6), [0])
    assert (found.site.num_heads, found.site.num_kv_heads) == (6, 1)
    module = lm.model.get_submodule(found.site.module)
    assert (module.k_proj.out_features, module.num_key_value_groups) == (8, 6)
    assert outputs_of(lm.model, random_inputs(lm.model))


def test_layouts_that_keep_q_k_and_v_of_a_head_together_cannot_share_key_heads(made):
    lm = made("gpt_neox")
    with pytest.raises(ModelError, match="keeps q, k and v of each head together"):
        projections_of(lm.model, lm.spec.sites[0]).select(range(6), [0, 3])


def test_wrong_selections_and_wrong_shapes_are_refused(made):
    lm = made("qwen2")
    found = projections_of(lm.model, lm.spec.sites[0])
    with pytest.raises(ShapeError, match=r"num_heads=4 is not a multiple of num_kv_heads=3"):
        found.select([0, 1, 2, 3], [0, 1, 2])
    with pytest.raises(ShapeError, match=r"\[0, 0\] should be different heads of 0 to 5"):
        found.select([0, 0], [0, 1])
    weight, bias = found.read("k")
    with pytest.raises(ShapeError, match=r"k written as \[2, 10, 48\] with bias, but it is \[3, 10, 48\] with bias"):
        found.write("k", weight[:2], bias[:2])
    with pytest.raises(ShapeError, match=r"k written as \[3, 10, 48\] without bias"):
        found.write("k", weight, None)
    with pytest.raises(ShapeError, match="part='o' is no projection"):
        found.read("o")


def test_a_module_whose_projections_are_not_found_is_named_with_what_was_sought(made):
    lm = made("qwen2")
    site = lm.spec.sites[0]
    module = lm.model.get_submodule(site.module)
    module.strange, module.q_proj = module.q_proj, nn.Identity()
    with pytest.raises(
        ModelError, match=r"L0, module 'model.layers.0.self_attn' \(Qwen2Attention\): q, k and v were not"
    ):
        projections_of(lm.model, site)
    module.q_proj, module.o_proj = module.strange, nn.Linear(3, 48)
    with pytest.raises(
        ModelError, match=r"the output projection, a matrix with 60 inputs \(6 heads of 10\), was found"
    ):
        projections_of(lm.model, site)
    with pytest.raises(ModelError, match="is another call of module 'a.b', which several layers share"):
        projections_of(lm.model, Site("", 1, "a.b#2", 6, 3, 10, 10, True))


def test_a_modules_own_counts_follow_its_config_in_everything_else(made):
    config = made("phi3").model.config
    own = copy.deepcopy(OwnCounts(config, {"num_attention_heads": 4}))
    assert own.num_attention_heads == 4 and config.num_attention_heads == 6
    assert own.hidden_size == config.hidden_size
    own._attn_implementation = "eager"
    assert own._attn_implementation == "eager" and config._attn_implementation == "sdpa"
    with pytest.raises(AttributeError):
        _ = own.nothing_like_that
