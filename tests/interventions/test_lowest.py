"""Which heads of a grouped-query model go together: by weight surgery on a copy of transformers' own model."""

import copy
from itertools import product

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

import manyheads as mh
from manyheads.errors import HeadError
from manyheads.interventions import lowest_heads
from tests.models.tiny import WORDS, tiny_llama, tiny_tokenizer

TEXTS = [" ".join(WORDS[begin : begin + 12]) for begin in (0, 17, 31)]
SIZE, GROUPS, LAYERS = 2, 3, 3  # query heads of a key/value head, key/value heads of a layer, layers


@pytest.fixture(scope="module")
def lm():
    return mh.load(tiny_llama(GROUPS, seed=5), tokenizer=tiny_tokenizer(special_tokens=False))


def without(lm, heads):
    """A copy of the model whose output projections read nothing of these heads."""
    model = copy.deepcopy(lm.model)
    with torch.no_grad():
        for layer, head in heads:
            weight = model.model.layers[layer].self_attn.o_proj.weight
            width = weight.shape[1] // (SIZE * GROUPS)
            weight[:, head * width : (head + 1) * width] = 0
    return model


@torch.no_grad()
def rise(lm, heads):
    """The change of the mean loss of the texts."""

    def loss(model):
        given = (lm.tokenizer(text, return_tensors="pt").input_ids for text in TEXTS)
        return sum(float(model(ids, labels=ids).loss) for ids in given) / len(TEXTS)

    return loss(without(lm, heads)) - loss(lm.model)


def group(layer, index):
    return [(layer, SIZE * index + place) for place in range(SIZE)]


def pairs(heads):
    return sorted((head.layer, head.index) for head in heads)


@pytest.mark.turns(4)
def test_a_group_is_worth_what_is_lost_when_all_of_it_goes_and_the_least_go(lm):
    got = lowest_heads(lm, TEXTS, 2 * SIZE)
    oracle = {tuple(group(*place)): rise(lm, group(*place)) for place in product(range(LAYERS), range(GROUPS))}
    assert {tuple(pairs(heads)): worth for heads, worth in got.groups.items()} == pytest.approx(oracle, abs=2e-5)
    assert list(got.groups.values()) == sorted(got.groups.values())
    least = sorted(oracle, key=oracle.__getitem__)[:2]
    assert pairs(got.heads) == sorted(sum(least, ())) and got.way == "anywhere"
    sums = {heads: sum(rise(lm, [head]) for head in heads) for heads in oracle}
    assert max(abs(sums[heads] - oracle[heads]) for heads in oracle) > 1e-3  # not the sum over its heads


@pytest.mark.turns(4)
@pytest.mark.parametrize(("count", "way"), [(6, "each layer"), (9, "each group")])
@pytest.mark.sampled(1)
def test_what_leaves_all_layers_alike_loads_in_stock_transformers(lm, count, way):
    """Its logits are those of the model whose output projections read nothing of these heads."""
    got = lowest_heads(lm, TEXTS, count)
    assert got.way == way and len(got.heads) == count and (way == "each layer") == ("anywhere" in got.ways)
    for layer in range(LAYERS):
        of_layer = [head for place, head in pairs(got.heads) if place == layer]
        if way == "each layer":
            chosen = min(range(GROUPS), key=lambda index: rise(lm, group(layer, index)))
            assert of_layer == [head for _, head in group(layer, chosen)]
        else:
            assert of_layer == [
                min(group(layer, index), key=lambda head: rise(lm, [head]))[1] for index in range(GROUPS)
            ]
    assert got.ways[way] == pytest.approx(rise(lm, pairs(got.heads)), abs=2e-5)
    small, ids = mh.prune_heads(lm, got.heads), torch.arange(5, 25)[None]
    # A config counts for all layers at once: these two numbers are all that a stock Llama is told.
    counts = {(site.num_heads, site.num_kv_heads) for site in small.spec.sites}
    (heads, kv_heads) = counts.pop()
    assert not counts
    sizes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": small.spec.sites[0].qk_dim}
    stock = MistralForCausalLM(MistralConfig(**{**lm.model.config.to_dict(), **sizes, "sliding_window": None})).eval()
    stock.load_state_dict(small.model.state_dict())
    with torch.no_grad():
        assert (stock(ids).logits - without(lm, pairs(got.heads))(ids).logits).abs().max() < 1e-5


def test_numbers_that_cannot_go_are_refused_and_any_can_without_groups(lm):
    for count, message in (
        (3, "give 2 or 4, or a multiple of 9, as many of each group"),
        (18, "18 heads cannot go"),
        (14, "at most 12 can go"),
    ):
        with pytest.raises(HeadError, match=message):
            lowest_heads(lm, TEXTS, count)
    assert len(lowest_heads(lm, TEXTS, 14, empty_layers=True).heads) == 14
    each = mh.load(tiny_llama(6, seed=5, num_hidden_layers=1), tokenizer=lm.tokenizer)
    assert lowest_heads(each, TEXTS, 3).heads == mh.importance(each, TEXTS).lowest(3)
