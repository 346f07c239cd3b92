"""A model's description: who serves whom, what exists, and the way to JSON and back."""

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.errors import HeadError, RecordingError, ShapeError
from manyheads.heads import Head
from manyheads.spec import ModelSpec, Site, sharing_words
from tests.refusals import refuses


def site(stack="", layer=0, num_heads=6, num_kv_heads=3, causal=False):
    module = f"{stack or 'model'}.layers.{layer}.attn"
    return Site(stack, layer, module, num_heads, num_kv_heads, qk_dim=5, v_dim=7, causal=causal)


def spec(*sites, **changes):
    plain = ModelSpec(
        "tiny", "TinyModel", sites, 30, vocab_size=101, max_positions=64, num_parameters=1234, dtype="float32"
    )
    return replace(plain, **changes)


ONE = spec(*(site(layer=layer) for layer in range(4)))
SEVERAL = spec(
    *(site("encoder", layer) for layer in range(2)), site("decoder", 0, 8, 8, causal=True), site("cross", 0, 8, 1),
    site("decoder", 1, 8, 8, causal=True), site("cross", 1, 8, 1),
)  # fmt: skip


# ---- a site


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([(9, 3), (9, 3)], "3 query heads share one key/value head"),
        ([(8, 8), (8, 1), (8, 4)], "2 query heads share one key/value head, in other layers 8"),
        ([(6, 6), (4, 4)], ""),
    ],
)
def test_how_many_share_is_said_in_words(groups, words):
    assert sharing_words(site(num_heads=heads, num_kv_heads=kv_heads) for heads, kv_heads in groups) == words


@pytest.mark.parametrize(
    ("num_kv_heads", "served_by"),
    [(6, [0, 1, 2, 3, 4, 5]), (3, [0, 0, 1, 1, 2, 2]), (2, [0, 0, 0, 1, 1, 1]), (1, [0, 0, 0, 0, 0, 0])],
)
def test_neighbouring_heads_share_a_key_value_head(num_kv_heads, served_by):
    grouped = site(num_heads=6, num_kv_heads=num_kv_heads)
    assert [grouped.kv_head_of(head) for head in range(6)] == served_by


@pytest.mark.parametrize("head", [-1, 6])
def test_a_head_past_the_end_has_no_key_value_head(head):
    refuses(HeadError, f"cross:L2 has no head {head}: heads are 0 to 5", site("cross", 2).kv_head_of, head)


def test_key_value_heads_must_divide_heads():
    message = r"L2: num_heads=6 is not a multiple of num_kv_heads=4: .*Use one of \[1, 2, 3, 6\]"
    refuses(ShapeError, message, site, layer=2, num_kv_heads=4)


@pytest.mark.parametrize("name", ["num_heads", "num_kv_heads", "qk_dim", "v_dim"])
def test_a_site_of_nothing_is_refused(name):
    with pytest.raises(ShapeError, match=f"L0: {name}=0, but a site has at least one head of width at least 1"):
        replace(site(), **{name: 0})


def test_a_site_names_its_heads():
    assert [str(head) for head in site("cross", 3, 2, 2).heads] == ["cross:L3H0", "cross:L3H1"]


# ---- a model


def test_stacks_have_their_layers_in_order():
    assert [str(layer) for layer in ONE.layers] == ["L0", "L1", "L2", "L3"]
    assert ONE.stacks == {"": ONE.layers}
    assert ONE.shape == {"": (6, 6, 6, 6)}
    assert list(SEVERAL.stacks) == ["encoder", "decoder", "cross"]
    assert [str(each) for each in SEVERAL.stacks["cross"]] == ["cross:L0", "cross:L1"]
    assert SEVERAL.shape == {"encoder": (6, 6), "decoder": (8, 8), "cross": (8, 8)}


def test_a_slice_of_layers_without_gaps_is_that_of_a_list():
    ends = (None, *range(-6, 7))
    for start, stop, step in itertools.product(ends, ends, (None, 1, 2, 5, -1, -3)):
        chosen = slice(start, stop, step)
        assert [layer.layer for layer in ONE.layers[chosen]] == [*range(4)][chosen], chosen


@pytest.mark.parametrize(("model", "names"), [(SEVERAL, "'encoder', 'decoder', 'cross'"), (spec(), "none")])
def test_layers_of_several_stacks_or_none_are_refused(model, names):
    with pytest.raises(HeadError, match=rf"tiny has several stacks of layers or none \({names}\): use stacks\[name\]"):
        _ = model.layers


def test_heads_are_in_the_models_order_selected_by_the_grammar_and_a_layer_without_attention_has_none():
    hybrid = spec(site(layer=1), site(layer=3, num_heads=9))
    assert hybrid.shape == {"": (0, 6, 0, 9)}
    assert [layer.layer for layer in hybrid.layers] == [1, 3]
    assert len(SEVERAL.heads) == 2 * 6 + 4 * 8
    assert next(iter(SEVERAL.heads)) == Head("encoder", 0, 0)
    assert list(SEVERAL.heads)[-1] == Head("cross", 1, 7)
    (head,) = SEVERAL.select("cross:L1H3")
    assert SEVERAL.site_of(head) == site("cross", 1, 8, 1)
    refuses(HeadError, "there is no layer 2", SEVERAL.site_of, Head("cross", 2, 0))
    twice = site(layer=1), replace(site(layer=1), module="other")
    refuses(ShapeError, r"tiny has two sites L1, modules 'model\.layers\.1\.attn' and 'other'", spec, *twice)


# ---- JSON

optional = st.one_of(st.none(), st.integers(0, 2**40))
sites = st.builds(
    lambda place, dims, groups: Site(place[0], place[1], "m", dims[0] * groups, groups, dims[1], dims[2], dims[3]),
    st.tuples(st.sampled_from(["", "encoder", "cross"]), st.integers(0, 50)),
    st.tuples(st.integers(1, 9), st.integers(1, 300), st.integers(1, 300), st.booleans()),
    st.integers(1, 8),
)
specs = st.builds(
    ModelSpec, name=st.text(), architecture=st.text(),
    sites=st.lists(sites, max_size=5, unique_by=lambda each: (each.stack, each.layer)).map(tuple),
    embed_dim=st.integers(1, 2**20), vocab_size=optional, max_positions=optional, num_parameters=st.integers(0, 2**60),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)  # fmt: skip


@given(specs)
def test_any_spec_comes_back_from_json(model):
    assert ModelSpec.from_json(model.to_json()) == model
    assert ModelSpec.from_dict(json.loads(json.dumps(model.to_dict()))) == model


def damage(**changes):
    data = {**ONE.to_dict(), **changes}
    return {name: value for name, value in data.items() if value is not ...}


def damage_site(**changes):
    return damage(sites=[{k: v for k, v in {**site().__dict__, **changes}.items() if v is not ...}])


@pytest.mark.parametrize(("data", "message"), [
    (damage(dtype=..., name=...), "a model's description lacks dtype, name: the file is damaged"),
    (damage(flavour=1), "a model's description says flavour, unknown here: a newer manyheads wrote it. Upgrade"),
    (damage(embed_dim="30"), "a model's description: embed_dim='30' should be int: the file is damaged"),
    (damage(embed_dim=True), "embed_dim=True should be int"),
    (damage(vocab_size=1.5), r"vocab_size=1\.5 should be int \| None"),
    (damage(sites=3), "sites=3 should be tuple"),
    (damage(sites=[3]), "site 0 is a int, not a mapping: the file is damaged"),
    (damage_site(causal=...), "site 0 lacks causal"),
    (damage_site(causal=1), "site 0: causal=1 should be bool"),
    (damage_site(heads=1), "site 0 says heads, unknown here"),
])  # fmt: skip
def test_a_damaged_or_newer_description_names_the_field(data, message):
    refuses(RecordingError, message, ModelSpec.from_dict, data)


def test_sizes_that_cannot_be_are_refused_from_json_too():
    refuses(ShapeError, "is not a multiple of num_kv_heads=4", ModelSpec.from_dict, damage_site(num_kv_heads=4))


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_what_is_no_description_at_all_is_damaged(text):
    refuses(RecordingError, "the file is damaged", ModelSpec.from_json, text)
