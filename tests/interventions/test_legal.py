"""Which heads may be cut: whole groups, or evenly; and the nearest choice that may, against all choices there are."""

from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.base import divisors
from manyheads.errors import HeadError
from manyheads.interventions.prune.which_heads import (
    SAME_HEADS,
    SAME_NUMBER,
    Kept,
    kept_of,
    nearest_in_layer,
    require_legal,
)
from manyheads.spec import ModelSpec, Site

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
    found = nearest_in_layer(num_heads, num_kv_heads, removed, some=some)
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


def test_all_may_go_where_that_is_said():
    assert nearest_in_layer(6, 3, set(range(6)), empty=True) == set(range(6))
    assert nearest_in_layer(6, 3, set(range(6))) == {1, 2, 3, 4, 5}
    assert kept_of(site(6, 3), range(6)) == Kept((), ())


def test_a_legal_choice_is_taken_as_it_is():
    model = spec(site(6, 3), site(6, 3, 1), site(4, 4, 2))
    kept = require_legal(model, model.select("L0H2-3, L2H1, L2H3"), {}, False)
    assert kept == {("", 0): Kept((0, 1, 4, 5), (0, 2)), ("", 2): Kept((0, 2), (0, 2))}


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


@pytest.mark.parametrize(
    ("rule", "asked", "nearest"),
    [
        (SAME_HEADS, "L0H1", "L0H1, L1H1, L2H1"),
        (SAME_HEADS, "L0-1H1, L0H2", "L0H1, L1H1, L2H1"),
        (SAME_NUMBER, "L0H1, L1H0", "L0H1, L1H0, L2H3"),
        (SAME_NUMBER, "L0H1", "L0H1, L1H3, L2H3"),
        (SAME_NUMBER, "L0H0-1, L1H0, L2H3", "L0H1, L1H0, L2H3"),
    ],
)
def test_layers_that_share_a_bias_lose_alike(rule, asked, nearest):
    model = spec(*(site(4, 4, layer) for layer in range(3)))
    with pytest.raises(HeadError) as refused:
        require_legal(model, model.select(asked), {"": rule}, False)
    assert f"all of them must lose {rule}" in str(refused.value)
    assert str(refused.value).endswith(f"{nearest!r}.")
    require_legal(model, model.select(nearest), {"": rule}, False)
