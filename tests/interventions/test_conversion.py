"""MHA to GQA: what is free changes nothing, what is merged is the mean, and what cannot be merged is refused.

Oracles are written by hand: means of slices of stock state dicts, models run side by side.
"""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
import transformers
from torch import nn

import manyheads as mh
from manyheads.errors import ModelError, ShapeError
from manyheads.interventions import convert_to_gqa, difference
from manyheads.interventions.convert import convert as conversion
from manyheads.interventions.convert import table as conversiontable
from manyheads.interventions.prune.verify import outputs_of, random_inputs
from manyheads.models.weights.projections import projections_of
from tests.interventions.checkpoints import BERT, DECODER, SAME, T5, fresh_mha
from tests.models.tiny import tiny_gpt2

MATTERS = 1e-4
NAMES = ("llama", "mistral", "qwen2", "phi3", "gpt_oss", "cohere")  # biases; one matrix; sinks; gains of each head


@pytest.fixture
def made(fresh):
    """`made("llama")`: a fresh MHA of 6 heads, loaded. `made("llama", 12, 6)`: of 12 over 6."""
    return partial(fresh_mha, fresh)


def gap(one, other):
    inputs = random_inputs(one)
    return difference(outputs_of(one, inputs), outputs_of(other, inputs))


def plant(lm, fresh, num_groups):
    """Make key/value heads equal within random groups, other ones in each layer; layer -> these groups."""
    planted = {}
    for site in lm.spec.sites:
        groups = torch.randperm(site.num_kv_heads, generator=fresh).view(num_groups, -1)
        while any(group[0] + 1 == group[1] for group in groups.sort(1)[0]):  # no two neighbours in one
            groups = torch.randperm(site.num_kv_heads, generator=fresh).view(num_groups, -1)
        found = projections_of(lm.model, site)
        with torch.no_grad():
            for part in "kv":
                weight, bias = found.read(part)
                for group in groups:
                    weight[group] = weight[group[:1]]
                    if bias is not None:
                        bias[group] = bias[group[:1]]
                found.write(part, weight, bias)
            if (norm := getattr(found.module, "k_norm", None)) is not None and norm.weight.ndim == 2:
                for group in groups:
                    norm.weight[group] = norm.weight[group[:1]]
        planted[site.layer] = {frozenset(group.tolist()) for group in groups}
    return planted


# ------------------------------------------------------------------------------------------------------- what is free


@pytest.mark.parametrize("name", NAMES)
def test_regrouping_alone_changes_no_output(name, made, fresh):
    lm = made(name)
    other = copy.deepcopy(lm.model)
    for site in lm.spec.sites:
        kv_heads = torch.randperm(6, generator=fresh).tolist()
        heads = conversion._query_heads(site, tuple((each,) for each in kv_heads))
        conversion._select(projections_of(other, site), heads, kv_heads)
    assert gap(lm.model, other) <= SAME
    assert any(not torch.equal(a, b) for a, b in zip(lm.model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_heads_that_are_equal_in_planted_groups_merge_exactly_but_only_where_they_are_regrouped(name, made, fresh):
    lm = made(name)
    planted = plant(lm, fresh, 3)
    grouped, neighbours = convert_to_gqa(lm, 3), convert_to_gqa(lm, 3, regroup=False)
    assert {layer: set(map(frozenset, each)) for layer, each in grouped.groups.items()} == planted
    assert gap(lm.model, grouped.model) <= SAME
    assert gap(lm.model, neighbours.model) > MATTERS
    assert max(grouped.error_by_layer.values()) < 1e-3 < min(neighbours.error_by_layer.values())


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "fewer"), [(12, 6, 3), (12, 6, 2), (12, 4, 2), (18, 6, 3)])
def test_gqa_becomes_gqa_of_fewer_and_query_heads_follow_theirs(num_heads, num_kv_heads, fewer, made, fresh):
    lm = made("qwen2", num_heads, num_kv_heads)
    plant(lm, fresh, fewer)
    small = convert_to_gqa(lm, fewer)
    assert gap(lm.model, small.model) <= SAME
    assert {(site.num_heads, site.num_kv_heads) for site in small.spec.sites} == {(num_heads, fewer)}
    for layer, groups in small.groups.items():
        size = num_heads // num_kv_heads
        want = [kv_head * size + at for group in groups for kv_head in group for at in range(size)]
        assert list(small.permutation[layer]) == want


def test_as_many_as_there_are_is_the_identity_to_the_bit(made):
    lm = made("llama", 12, 6)
    same = convert_to_gqa(lm, 6)
    before, after = lm.model.state_dict(), same.model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    assert same.model is not lm.model and same.spec == lm.spec and set(same.error_by_layer.values()) == {0.0}
    assert same.permutation == {0: tuple(range(12)), 1: tuple(range(12))} and same.was("L1H7") == tuple(
        lm.spec.select("L1H7")
    )
    assert "as many key/value heads as before, 6: nothing was changed" in same.because


@pytest.mark.parametrize("name", ["qwen2", "cohere"])
def test_the_original_stays_as_it_is(name, made):
    lm = made(name)
    before, config = {key: value.clone() for key, value in lm.model.state_dict().items()}, lm.model.config.to_dict()
    convert_to_gqa(lm, 2)
    after = lm.model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before) and lm.model.config.to_dict() == config


# ------------------------------------------------------------------------------------------------------- what is merged


@pytest.mark.parametrize("num_kv_heads", [3, 2, 1])
@pytest.mark.parametrize("regroup", [True, False])
def test_weights_and_biases_are_the_means_by_hand_and_the_rest_is_in_its_new_place(num_kv_heads, regroup, made):
    lm = made("qwen2")
    small = convert_to_gqa(lm, num_kv_heads, regroup=regroup)
    for layer, (old, new) in enumerate(zip(lm.model.model.layers, small.model.model.layers, strict=True)):
        old, new = old.self_attn, new.self_attn
        groups, order = small.groups[layer], small.permutation[layer]
        for name in ("k_proj", "v_proj"):
            for what in ("weight", "bias"):
                rows = getattr(getattr(old, name), what).unflatten(0, (6, 8))
                want = torch.cat([sum(rows[head] for head in group) / len(group) for group in groups])
                torch.testing.assert_close(getattr(getattr(new, name), what), want, rtol=0, atol=1e-6)
        q, o = (torch.cat([torch.arange(8) + 8 * head for head in order]) for _ in "qo")
        assert torch.equal(new.q_proj.weight, old.q_proj.weight[q]) and torch.equal(
            new.o_proj.weight, old.o_proj.weight[:, o]
        )
        if not regroup:
            assert order == tuple(range(6))
    assert torch.equal(small.model.lm_head.weight, lm.model.lm_head.weight)


def test_gains_of_each_key_head_are_merged_too_and_sinks_follow_their_query_heads(made):
    lm = made("cohere")
    small = convert_to_gqa(lm, 2)
    for layer, groups in small.groups.items():
        old, new = (each.model.model.layers[layer].self_attn for each in (lm, small))
        want = torch.stack([old.k_norm.weight[list(group)].mean(0) for group in groups])
        torch.testing.assert_close(new.k_norm.weight, want)
        assert torch.equal(new.q_norm.weight, old.q_norm.weight[list(small.permutation[layer])])
    lm = made("gpt_oss")
    small = convert_to_gqa(lm, 2)
    for layer, order in small.permutation.items():
        old, new = (each.model.model.layers[layer].self_attn for each in (lm, small))
        assert torch.equal(new.sinks, old.sinks[list(order)])


def test_half_precision_stays_and_its_means_are_taken_in_full(made):
    lm = made("llama")
    lm = mh.load(lm.model.bfloat16(), tokenizer=False)
    small = convert_to_gqa(lm, 2, regroup=False)
    assert {weight.dtype for weight in small.model.parameters()} == {torch.bfloat16}
    rows = lm.model.model.layers[0].self_attn.k_proj.weight.float().view(2, 3, 8, 48)
    want = rows.mean(1).reshape(16, 48).bfloat16()
    assert torch.equal(small.model.model.layers[0].self_attn.k_proj.weight, want)


def test_heads_can_be_traced_to_their_old_names(made):
    lm = made("llama")
    small = convert_to_gqa(lm, 2)
    inputs, seen = random_inputs(lm.model), {}
    for one in (lm, small):
        with mh.tap(one.model, on_call=lambda call, one=one: seen.setdefault((one is small, call.site.layer), call)):
            outputs_of(one.model, inputs)
    for head in small.spec.select("L0"):
        (was,) = small.was(head)
        torch.testing.assert_close(seen[True, 0].q[:, head.index], seen[False, 0].q[:, was.index])
    assert small.was("L1") == tuple(mh.Head("", 1, index) for index in small.permutation[1])


# ------------------------------------------------------------------------------------------------ it is a stock model


def test_the_config_the_cache_and_generation_agree(made):
    lm = made("mistral")
    small = convert_to_gqa(lm, 2)
    assert small.model.config.num_key_value_heads == small.num_kv_heads == 2
    assert all(layer.self_attn.config is small.model.config for layer in small.model.model.layers)
    ids = random_inputs(lm.model)["input_ids"][:1]
    out = small.model(ids, use_cache=True)
    assert [layer.keys.shape[1] for layer in out.past_key_values.layers] == [2, 2]
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 7, "min_new_tokens": 7, "do_sample": False}
    got = small.model.generate(ids, **options)
    static = small.model.generate(ids, cache_implementation="static", **options)
    assert got.shape == (1, ids.shape[1] + 7) and torch.equal(got, static)
    again = mh.prune_heads(small, "L*H0-2")  # a whole group of three
    assert {(site.num_heads, site.num_kv_heads) for site in again.spec.sites} == {(3, 1)}


# ---------------------------------------------------------------------------------------------------------- refusals


class Reader(nn.Module):
    """A model of one's own, over our layer."""

    def __init__(self):
        super().__init__()
        self.embed, self.layer = nn.Embedding(19, 20), mh.MultiHeadAttention(20, 4, batch_first=True)

    def forward(self, input_ids):
        return self.layer(self.embed(input_ids), need_weights=False)[0]


REFUSED = {
    "our own layer": (Reader, "its config has no num_key_value_heads"),
    "bert": (lambda: transformers.BertModel(transformers.BertConfig(**BERT)), "its config has no num_key_value_heads"),
    "gpt2": (tiny_gpt2, "its config has no num_key_value_heads"),
    "t5": (lambda: transformers.T5Model(transformers.T5Config(**T5)), "its config has no num_key_value_heads"),
    "gpt2, the count added": (lambda: tiny_gpt2(num_key_value_heads=4), "its config has no num_key_value_heads"),
    "olmo2": (lambda: transformers.Olmo2Model(transformers.Olmo2Config(**DECODER)), "norms all heads together"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_have_no_key_heads_to_share_are_refused_with_those_that_have(name):
    make, why = REFUSED[name]
    with pytest.raises(ModelError, match=rf"cannot be given fewer key/value heads: .*{why}.*can: llama, mistral, "):
        convert_to_gqa(mh.load(make().eval(), tokenizer=False), 1)


@pytest.mark.parametrize("num_kv_heads", [4, 12, 0, -1, 2.0, True, "2", None])
def test_numbers_that_do_not_divide_are_refused_with_those_that_do(num_kv_heads, made):
    with pytest.raises(ShapeError, match=r"num_kv_heads=.* does not divide the 6 key/value .* one of \[1, 2, 3, 6\]"):
        conversion._require_convertible(made("llama"), num_kv_heads)  # below the types that tests check


def test_what_is_no_loaded_model_or_not_in_memory_or_was_pruned_is_refused(made):
    lm = made("llama")
    with pytest.raises(ModelError, match=r"takes a loaded model, not a LlamaForCausalLM: use mh.load\(model\)"):
        convert_to_gqa(lm.model, 2)
    with pytest.raises(ModelError, match="was pruned in this process: save it"):
        convert_to_gqa(mh.prune_heads(lm, "L*H0-1"), 2)
    lm.model.lm_head.to("meta")
    with pytest.raises(ModelError, match="keeps 1 of its weights on disk or elsewhere .* without device_map"):
        convert_to_gqa(lm, 2)


def test_a_cache_that_cannot_be_counted_is_said_and_nothing_is_lost(made, monkeypatch):
    def untold(*_, **__):
        raise ModelError("there is no telling.")

    monkeypatch.setattr(conversiontable, "size", untold)
    small = convert_to_gqa(made("llama"), 2)
    assert small.num_kv_heads == 2 and "KV cache: not counted, since there is no telling." in str(small.table)


def test_layers_that_differ_are_refused(made):
    lm = made("llama")
    lm.__dict__["spec"] = replace(lm.spec, sites=(lm.spec.sites[0], replace(lm.spec.sites[1], num_kv_heads=3)))
    with pytest.raises(ModelError, match="a config counts once: L0 has 6 key/value heads, L1 has 3"):
        convert_to_gqa(lm, 2)


def test_a_class_that_does_not_go_by_its_count_is_refused(made):
    class Stubborn(transformers.LlamaForCausalLM):
        def __init__(self, config):
            super().__init__(config)
            for layer in self.model.layers:
                layer.self_attn.k_proj = nn.Linear(48, 48, bias=False)

    lm = made("llama")
    own = Stubborn(lm.model.config).eval()
    with pytest.raises(ModelError, match="its class does not go by num_key_value_heads: .*k_proj.weight would be"):
        convert_to_gqa(mh.load(own, tokenizer=False), 2)


@pytest.mark.parametrize(("which", "said"), [(0, "its heads in another order"), (1, "one of each group's equal")])
def test_a_step_that_changes_outputs_is_not_let_through(which, said, made, monkeypatch):
    lm, gaps = made("llama"), [0.0, 0.0]
    gaps[which] = 0.1
    monkeypatch.setattr(conversion, "difference", lambda got, want: gaps.pop(0))
    with pytest.raises(ModelError, match=f"with {said} .*should compute the same, and differs by 1.0e-01"):
        convert_to_gqa(lm, 2)
