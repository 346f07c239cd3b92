"""Projections are found, read, written and permuted by head, whatever the family calls them and however they lie."""

import copy
import random
import re
from dataclasses import replace
from itertools import chain, combinations

import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import manyheads as mh
from manyheads.base import divisors
from manyheads.errors import HeadError, ModelError, ShapeError
from manyheads.interventions import difference, prune_heads, removed_text
from manyheads.interventions.prune import (
    SAME_HEADS,
    SAME_NUMBER,
    Kept,
    kept_of,
    nearest_in_layer,
    require_legal,
)
from manyheads.interventions.save.save import PrunedModel
from manyheads.interventions.verify import outputs_of, random_inputs
from manyheads.models.weights.projections import OwnCounts, Projections, projections_of
from manyheads.nn import RelativeBias
from manyheads.spec import ModelSpec, Site
from tests.interventions import checkpoints
from tests.refusals import refuses

# ========================================================================================================== projections

FAMILIES = {**checkpoints.STOCK, **checkpoints.COMPACT}
LAYOUTS = (
    "bert", "distilbert", "gpt2", "gpt_bigcode", "gpt_neox", "modernbert", "phi3", "qwen2", "cohere", "gpt_oss", "t5",
)  # fmt: skip
MATTERS = 1e-4


@pytest.fixture
def made(fresh):
    """`made("llama")`: a fresh model of the family, loaded."""
    return lambda name: mh.load(FAMILIES[name].make(fresh), tokenizer=False)


@pytest.mark.parametrize("name", LAYOUTS)
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


@pytest.mark.thinned(name=LAYOUTS[2:])
@pytest.mark.parametrize("name", LAYOUTS)
def test_what_was_read_can_be_written_back_and_other_numbers_matter(name, made):
    lm = made(name)
    other = copy.deepcopy(lm.model)
    found = projections_of(other, lm.spec.sites[0])
    for part in "qkv":
        weight, bias = found.read(part)
        found.write(part, torch.zeros_like(weight), bias)
        assert checkpoints.gap(lm.model, other) > MATTERS
        found.write(part, weight, bias)
        assert checkpoints.gap(lm.model, other) == 0


@pytest.mark.parametrize("name", LAYOUTS)
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
    assert checkpoints.gap(lm.model, other) <= checkpoints.SAME
    before, after = lm.model.state_dict(), other.state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in before)


def test_query_heads_given_to_another_group_would_matter(made):
    lm = made("qwen2")
    other = copy.deepcopy(lm.model)
    projections_of(other, lm.spec.sites[0]).select([2, 3, 0, 1, 4, 5], [0, 1, 2])
    assert checkpoints.gap(lm.model, other) > MATTERS


def test_fewer_key_heads_can_be_selected_for_the_same_query_heads(made):
    """What merging heads into groups is built on: write the merged ones, keep one of each group."""
    lm = made("llama")
    found = projections_of(lm.model, lm.spec.sites[0])
    found.select(range(6), [0])
    assert (found.site.num_heads, found.site.num_kv_heads) == (6, 1)
    module = lm.model.get_submodule(found.site.module)
    assert (module.k_proj.out_features, module.num_key_value_groups) == (8, 6)
    assert outputs_of(lm.model, random_inputs(lm.model))


def test_layouts_that_cannot_share_key_heads_wrong_selections_and_wrong_shapes_are_refused(made):
    lm = made("gpt_neox")
    with pytest.raises(ModelError, match="keeps q, k and v of each head together"):
        projections_of(lm.model, lm.spec.sites[0]).select(range(6), [0, 3])
    lm = made("qwen2")
    found = projections_of(lm.model, lm.spec.sites[0])
    refuses(ShapeError, r"num_heads=4 is not a multiple of num_kv_heads=3", found.select, [0, 1, 2, 3], [0, 1, 2])
    refuses(ShapeError, r"\[0, 0\] should be different heads of 0 to 5", found.select, [0, 0], [0, 1])
    weight, bias = found.read("k")
    with pytest.raises(ShapeError, match=r"k written as \[2, 10, 48\] with bias, but it is \[3, 10, 48\] with bias"):
        found.write("k", weight[:2], bias[:2])
    refuses(ShapeError, r"k written as \[3, 10, 48\] without bias", found.write, "k", weight, None)
    refuses(ShapeError, "part='o' is not a projection", found.read, "o")


def test_a_module_whose_projections_are_not_found_is_named_with_what_was_sought(made):
    lm = made("qwen2")
    site = lm.spec.sites[0]
    module = lm.model.get_submodule(site.module)
    module.strange, module.q_proj = module.q_proj, nn.Identity()
    message = r"L0, module 'model.layers.0.self_attn' \(Qwen2Attention\): q, k and v were not"
    refuses(ModelError, message, projections_of, lm.model, site)
    module.q_proj, module.o_proj = module.strange, nn.Linear(3, 48)
    message = r"the output projection, a matrix with 60 inputs \(6 heads of 10\), was found"
    refuses(ModelError, message, projections_of, lm.model, site)
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


# ======================================================================================================== heads cut out
# Heads cut out of a model: what is left computes what the whole one computes without them, and the whole one stays.
#
# The oracle is surgery by hand: zeros in the removed heads' input columns of each output projection of a stock model.

FEW = (  # of each way to keep a head's weights one
    "llama", "phi3", "gpt_oss", "t5", "vit", "bert", "modernbert", "gpt2", "gpt_bigcode", "gpt_neox", "bart",
    "llama, uneven",
)  # fmt: skip
STEPS = 8


def all_bytes(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


class LiveBytes(TorchDispatchMode):
    """Inside, `peak` becomes the most bytes that tensors made here held at a time; what kernels take is not counted."""

    def __init__(self, model):
        super().__init__()
        self.before = {StorageWeakRef(value.untyped_storage()) for value in model.state_dict().values()}
        self.made, self.peak = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        storages = [x.untyped_storage() for x in tree_leaves(out) if isinstance(x, torch.Tensor) and not x.is_meta]
        self.made |= {StorageWeakRef(storage): storage.nbytes() for storage in storages}
        self.made = {key: size for key, size in self.made.items() if not key.expired() and key not in self.before}
        self.peak = max(self.peak, sum(self.made.values()))
        return out


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
    oracle = checkpoints.by_hand(lm.model, family.output, lm.spec.sites, lm.spec.select(family.remove))
    checkpoints.assert_same(small.model, oracle)
    assert_matters(oracle, lm.model)
    assert small.error <= checkpoints.SAME and small.effect > MATTERS
    assert_smaller(lm, small)
    after, again = all_bytes(lm.model), outputs_of(lm.model, inputs)
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    assert all(torch.equal(outputs[key], again[key]) for key in outputs)


def test_pruning_nothing_is_refused(made):
    lm = made("llama")
    for nothing in ([], {}, {0: []}, lm.spec.select([])):
        refuses(
            HeadError, "^heads=.* names no heads: to remove none leaves a model as it was", prune_heads, lm, nothing
        )


def test_cuts_add_up_and_heads_keep_their_first_names_also_after_a_layer_was_emptied(made):
    lm = made("gpt2")
    once = prune_heads(lm, "L0H1, L0H3, L1H2")
    twice = prune_heads(prune_heads(lm, "L0H1"), "L0H2, L1H2")
    assert twice.removed == once.removed == tuple(lm.spec.select("L0H1, L0H3, L1H2"))
    inputs = random_inputs(lm.model)
    assert difference(outputs_of(twice.model, inputs), outputs_of(once.model, inputs)) == 0
    assert twice.before == lm.spec and twice.weights_hash_before == lm.weights_hash
    emptied = prune_heads(lm, "L0", empty_layers=True)
    assert emptied.spec.layers.numbers == tuple(site.layer for site in lm.spec.sites[1:])
    refuses(HeadError, "'L0H3': L0 has no attention, or none that can be seen", prune_heads, emptied, "L0H3")
    small = prune_heads(emptied, "L1H3")
    assert removed_text(small) == "L0, L1H3"
    checkpoints.assert_same(small.model, checkpoints.by_hand(lm.model, "c_proj", lm.spec.sites, small.removed))


def test_a_mapping_a_text_and_a_list_mean_the_same_heads_and_those_that_say_nothing_can_go(made):
    lm = made("bert")
    removed = [
        prune_heads(lm, heads).removed for heads in ({0: [1], 1: [0]}, "L0H1, L1H0", ["L1H0", mh.Head("", 0, 1)])
    ]
    assert removed[0] == removed[1] == removed[2]
    zeroed = prune_heads(lm, "L0H1").zeroed()
    small = prune_heads(zeroed, "L0H1")
    assert small.effect == 0 and small.error <= checkpoints.SAME


def test_half_precision_is_judged_in_full_and_stays_half(fresh):
    model = checkpoints.STOCK["mistral"].make(fresh).to(torch.bfloat16)
    small = prune_heads(mh.load(model, tokenizer=False), "L*H2-3")
    assert small.error <= checkpoints.SAME
    assert {weight.dtype for weight in small.model.parameters()} == {torch.bfloat16}


@pytest.mark.thinned
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_computed_in_full_a_model_in_half_precision_is_the_same_as_its_copy_in_float32(name, half, fresh):
    model = FAMILIES[name].make(fresh).to(half)
    inputs = random_inputs(model)
    out = outputs_of(model, inputs, in_full=True)
    expected = outputs_of(copy.deepcopy(model).float(), inputs)
    assert out.keys() == expected.keys() and {value.dtype for value in out.values()} == {torch.float32}
    assert difference(out, expected) <= 1e-6  # the same operations: other sums only where a kernel looks at strides
    if name != "gpt_oss":  # whose kernel for experts wants wider ones than these, in half precision
        rounded = outputs_of(model, inputs)
        assert {value.dtype for value in rounded.values()} == {half} and difference(rounded, expected) > 1e-4


SURGERIES = {"pruned": lambda lm: prune_heads(lm, "L*H0-3"), "converted": lambda lm: mh.convert_to_gqa(lm, 2)}


@pytest.mark.parametrize("surgery", SURGERIES.values(), ids=SURGERIES)
@pytest.mark.thinned(surgery=("pruned",))
def test_surgery_in_half_precision_needs_one_more_model_and_little_besides(surgery):
    # Llama 3 8B's ratios: of its weights, the embedding and the head are 6.5 % each, a layer less.
    sizes = {
        **checkpoints.DECODER, "hidden_size": 256, "intermediate_size": 896, "num_hidden_layers": 8, "vocab_size": 1984,
    }  # fmt: skip
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 16}
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**{**sizes, **heads}))
    lm = mh.load(model.to(torch.bfloat16).eval(), tokenizer=False)
    assert lm.spec.sites  # probed before it is measured
    weights = sum(weight.numel() * weight.element_size() for weight in lm.model.parameters())
    with LiveBytes(lm.model) as live:
        surgery(lm)
    assert 0.9 * weights < live.peak < 1.2 * weights


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
    small = prune_heads(lm, FAMILIES[name].remove).model.double()
    inputs = random_inputs(small)
    fused = outputs_of(small, inputs)
    small.set_attn_implementation("eager")
    assert difference(outputs_of(small, inputs), fused) <= checkpoints.SAME
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
    oracle = checkpoints.by_hand(lm.model, "o_proj", lm.spec.sites, small.removed)
    assert torch.equal(generated(small.model, ids), generated(oracle, ids))


def test_the_same_shape_form_equals_what_is_left(made):
    for name in ("bert", "gpt_neox", "t5", "cohere"):
        small = prune_heads(made(name), FAMILIES[name].remove)
        whole = small.zeroed()
        checkpoints.assert_same(whole.model, small.model)
        assert whole.spec.num_parameters == small.before.num_parameters


# ------------------------------------------------------------------------------------------------------- empty layers

EMPTIED = {"bert": "L1", "gpt2": "L0, L1H3", "llama": "L0", "opt": "L1", "bart": "decoder:L0, cross:L1", "vit": "L0"}


@pytest.mark.parametrize("name", EMPTIED)
def test_a_layer_may_lose_all_heads_where_that_is_said(name, made):
    lm, family = made(name), FAMILIES[name]
    with pytest.raises(HeadError, match=r"Say empty_layers=True \(--empty-layers\) if that is meant, or keep one head"):
        prune_heads(lm, EMPTIED[name])
    small = prune_heads(lm, EMPTIED[name], empty_layers=True)
    oracle = checkpoints.by_hand(lm.model, family.output, lm.spec.sites, small.removed)
    checkpoints.assert_same(small.model, oracle)
    assert_matters(oracle, lm.model)
    checkpoints.assert_same(small.zeroed().model, oracle)
    assert len(small.spec.sites) < len(lm.spec.sites)
    if lm.model.can_generate() and name != "bert":
        ids = random_inputs(lm.model)["input_ids"]
        assert torch.equal(generated(small.model, ids), generated(oracle, ids))


# ----------------------------------------------------------------------------------------------------- shared kv heads


def test_an_uneven_choice_is_refused_with_the_nearest_plan_which_works(made):
    lm = made("llama")
    with pytest.raises(HeadError, match=r"left with 1, 2, 2\. Remove whole groups of 2 \(.*\), or the same") as refused:
        prune_heads(lm, "L0H0, L1H2-3")
    plan = re.search(r"Nearest plan that can \(1 head different\): '(.*)'\.$", str(refused.value))[1]
    assert plan == "L0H0-1, L1H2-3"
    assert prune_heads(lm, plan).spec.sites[0].num_kv_heads == 2


def test_of_multi_query_attention_query_heads_go_and_the_key_head_stays(made):
    lm = made("gpt_bigcode")
    small = prune_heads(lm, "L0H0, L0H2-3")
    assert (small.spec.sites[0].num_heads, small.spec.sites[0].num_kv_heads) == (1, 1)
    checkpoints.assert_same(small.model, checkpoints.by_hand(lm.model, "c_proj", lm.spec.sites, small.removed))


def test_layers_that_share_a_position_bias_lose_the_same_heads_or_none(made):
    lm = made("t5")
    with pytest.raises(
        HeadError, match="'encoder' share one bias of positions, so that all of them must lose the same"
    ) as refused:
        prune_heads(lm, "encoder:L0-1H2")
    assert str(refused.value).endswith("'encoder:L0H2, encoder:L1H2, encoder:L2H2'.")
    message = "'cross' .* all of them must lose equally many heads. .*: 'cross:L0H1, cross:L1H3, cross:L2H"
    refuses(HeadError, message, prune_heads, lm, "cross:L0H1, cross:L1H3")
    with pytest.raises(HeadError, match="cannot be left without heads: the layers of its stack share one bias"):
        prune_heads(lm, "encoder:L0", empty_layers=True)


# ------------------------------------------------------------------------------------------------------------ refusals


def test_a_cut_in_the_wrong_place_is_never_handed_out(made, monkeypatch):
    lm, right = made("llama, uneven"), Projections.select
    monkeypatch.setattr(Projections, "select", lambda self, heads, kv_heads: right(self, heads[::-1], kv_heads))
    with pytest.raises(ModelError, match=r"without L0H0-1 differs by .* It is built in a way that is not known here"):
        prune_heads(lm, "L0H0-1")
    monkeypatch.setattr(Projections, "select", lambda self, heads, kv_heads: None)
    refuses(ModelError, r"without L0H0-1 differs by", prune_heads, lm, "L0H0-1")


def test_only_loaded_models_all_in_memory_and_heads_that_there_are(made):
    lm = made("bert")
    with pytest.raises(ModelError, match=r"takes a loaded model, not a BertForMaskedLM: use mh.load\(model\)"):
        prune_heads(lm.model, "L0H0")
    refuses(HeadError, "there is no head 5 in L0: heads are 0 to 4", prune_heads, lm, "L0H5")
    assert isinstance(prune_heads(lm, "L0H4"), PrunedModel)
    lm.model.cls.predictions.transform.dense.to("meta")
    with pytest.raises(ModelError, match="keeps 2 of its weights on disk or elsewhere .* load it without device_map"):
        prune_heads(lm, "L0H1")


# ---- layers in which a head's weights do not stand apart are refused by name; of ours all that belongs to a head goes


def small_one(cls, config):
    with torch.no_grad():
        model = cls(config).eval()
        checkpoints.enliven(model)
    return mh.load(model, tokenizer=False)


def test_norms_over_all_heads_latent_attention_and_shared_weights_are_refused_by_name():
    lm = small_one(hf.Olmo2Model, hf.Olmo2Config(**{**checkpoints.DECODER, "head_dim": 8}))
    with pytest.raises(ModelError, match="layers.0.self_attn.*its q_norm norms all heads together.*Zero these heads"):
        prune_heads(lm, "L0H0-1")
    sizes = {"q_lora_rank": 24, "kv_lora_rank": 20, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10}
    config = hf.DeepseekV3Config(
        **{**checkpoints.DECODER, **sizes, "num_key_value_heads": 6, "n_routed_experts": 4, "num_experts_per_tok": 2,
           "first_k_dense_replace": 2, "n_group": 1, "topk_group": 1}
    )  # fmt: skip
    del config.head_dim
    with pytest.raises(ModelError, match=r"layers.0.self_attn' \(DeepseekV3Attention\) is latent attention"):
        prune_heads(small_one(hf.DeepseekV3Model, config), "L0H0")
    lm = small_one(hf.AlbertModel, hf.AlbertConfig(**{**checkpoints.BERT, "embedding_size": 24}))
    for layer in (0, 1):
        with pytest.raises(ModelError, match=f"L{layer} is one of several layers .* that share the module"):
            prune_heads(lm, {layer: [1]})


def test_torchs_own_layer_is_refused_and_ours_can_be_cut():
    torchs, ours = nn.MultiheadAttention(20, 4, batch_first=True), mh.MultiHeadAttention(20, 4, 2, batch_first=True)
    with pytest.raises(ModelError, match="torch's own layer takes the width of a head to be embed_dim / num_heads"):
        prune_heads(mh.load(checkpoints.Reader(torchs).eval(), tokenizer=False), "L0H0")
    lm = mh.load(checkpoints.Reader(ours).eval(), tokenizer=False)
    small = prune_heads(lm, "L0H0-1")
    assert small.model.layer.num_heads == 2 and small.model.layer.num_kv_heads == 1
    checkpoints.assert_same(small.model, checkpoints.by_hand(lm.model, "out_proj", lm.spec.sites, small.removed))


@pytest.mark.parametrize(
    "options",
    [
        *[{name: True} for name in ("sinks", "head_scale", "qk_norm", "add_bias_kv")],
        {"projections": "split"},
        {"scale": [0.1, 0.2, 0.3, 0.4]},
        {"relative_bias": RelativeBias(8, 6)},
    ],
    ids=lambda each: next(iter(each)),
)
def test_what_belongs_to_a_head_of_our_own_layer_goes_with_it(options):
    layer = mh.MultiHeadAttention(20, 4, batch_first=True, **options).eval()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_()
    lm = mh.load(checkpoints.Reader(layer).eval(), tokenizer=False)
    small = prune_heads(lm, "L0H1, L0H3")
    checkpoints.assert_same(small.model, checkpoints.by_hand(lm.model, "out_proj", lm.spec.sites, small.removed))
    with pytest.raises(ModelError, match="ALiBi's slopes follow from the number of heads"):
        prune_heads(
            mh.load(checkpoints.Reader(mh.MultiHeadAttention(20, 4, alibi=True)).eval(), tokenizer=False), "L0H1"
        )


# ---- which heads may be cut: whole groups, or evenly; and the nearest choice that may, against all choices there are

MOST = 8


def site(num_heads, num_kv_heads, layer=0, stack=""):
    return Site(stack, layer, f"{stack}.{layer}", num_heads, num_kv_heads, 7, 5, True)


def spec(*sites):
    return ModelSpec("a model", "Model", sites, 44, 99, None, 1, "float32")


@st.composite
def cases(draw):
    num_heads = draw(st.integers(1, MOST))
    num_kv_heads = draw(st.sampled_from(divisors(num_heads)))
    removed = draw(st.sets(st.integers(0, num_heads - 1)))
    return num_heads, num_kv_heads, removed


def every_choice(num_heads, most):
    return map(set, chain.from_iterable(combinations(range(num_heads), count) for count in range(most + 1)))


def legal_by_definition(num_heads, num_kv_heads, removed):
    """Each key/value head that still serves any serves equally many."""
    serving = [0] * num_kv_heads
    for head in set(range(num_heads)) - removed:
        serving[head * num_kv_heads // num_heads] += 1
    return len(set(serving) - {0}) <= 1


@given(cases(), st.booleans())
def test_the_nearest_choice_is_legal_and_none_is_nearer(case, some):
    num_heads, num_kv_heads, removed = case
    found = nearest_in_layer(num_heads, num_kv_heads, removed, at_least_one=some)
    choices = [
        choice
        for choice in every_choice(num_heads, num_heads - 1)
        if legal_by_definition(num_heads, num_kv_heads, choice) and (choice or not some)
    ]
    if not choices:  # one head, which must stay, and some must go
        return
    assert found in choices
    best = min((len(choice ^ removed), len(removed - choice)) for choice in choices)
    assert (len(found ^ removed), len(removed - found)) == best


@given(cases())
def test_what_stays_is_what_the_definition_says(case):
    num_heads, num_kv_heads, removed = case
    kept = kept_of(site(num_heads, num_kv_heads), removed)
    assert (kept is not None) == legal_by_definition(num_heads, num_kv_heads, removed)
    if kept is not None:
        assert kept.heads == tuple(sorted(set(range(num_heads)) - removed))
        assert kept.kv_heads == tuple(sorted({head * num_kv_heads // num_heads for head in kept.heads}))


def test_a_legal_choice_is_taken_as_it_is_and_all_may_go_where_that_is_said():
    model = spec(site(6, 3), site(6, 3, 1), site(4, 4, 2))
    kept = require_legal(model, model.select("L0H2-3, L2H1, L2H3"), {}, False)
    assert kept == {("", 0): Kept((0, 1, 4, 5), (0, 2)), ("", 2): Kept((0, 2), (0, 2))}
    assert nearest_in_layer(6, 3, set(range(6)), empty=True) == set(range(6))
    assert nearest_in_layer(6, 3, set(range(6))) == {1, 2, 3, 4, 5}
    assert kept_of(site(6, 3), range(6)) == Kept((), ())


@pytest.mark.parametrize(
    ("asked", "nearest", "changes"),
    [
        ("L0H0", "L0H0-1", "1 head"),
        ("L0H0-2", "L0H0-3", "1 head"),
        ("L0H0, L0H2", "L0H0, L0H2, L0H5", "1 head"),
        ("L1H0", "L1H0-2", "2 heads"),  # to leave all in would be nearer, and is no plan
        ("L0H0, L1H5", "L0H0-1", "2 heads"),
        ("L1H0, L1H3-5", "L1H3-5", "1 head"),
    ],
)
def test_the_nearest_plan_is_named_in_the_grammar(asked, nearest, changes):
    model = spec(site(6, 3), site(12, 4, 1))
    with pytest.raises(HeadError) as refused:
        require_legal(model, model.select(asked), {}, False)
    assert str(refused.value).endswith(f"Nearest plan that can ({changes} different): {nearest!r}.")
    require_legal(model, model.select(nearest), {}, False)


@pytest.mark.parametrize(("rule", "asked", "nearest"), [
    (SAME_HEADS, "L0H1", "L0H1, L1H1, L2H1"),
    (SAME_HEADS, "L0-1H1, L0H2", "L0H1, L1H1, L2H1"),
    (SAME_NUMBER, "L0H1, L1H0", "L0H1, L1H0, L2H3"),
    (SAME_NUMBER, "L0H1", "L0H1, L1H3, L2H3"),
    (SAME_NUMBER, "L0H0-1, L1H0, L2H3", "L0H1, L1H0, L2H3"),
])  # fmt: skip
def test_layers_that_share_a_bias_lose_alike(rule, asked, nearest):
    model = spec(*(site(4, 4, layer) for layer in range(3)))
    with pytest.raises(HeadError) as refused:
        require_legal(model, model.select(asked), {"": rule}, False)
    assert f"all of them must lose {rule}" in str(refused.value)
    assert str(refused.value).endswith(f"{nearest!r}.")
    require_legal(model, model.select(nearest), {"": rule}, False)
