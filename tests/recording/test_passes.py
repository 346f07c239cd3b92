"""One pass over tiles gives what the whole map gives: every request, alone and with the others, across tile borders.

The map comes from `reference.attend`, the answers from `reference.reductions`; the pass sees q, k and lse alone.
Inputs are drawn afresh each run. A failure prints its seed: MANYHEADS_SEED=... repeats it.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from manyheads.nn import Mask
from manyheads.recording import Entropy, Layer, Pooled, Received, Tokens, prepare
from manyheads.recording.exact_map import one_pass as tiles
from manyheads.recording.exact_map.requests import Band, Mass, Square
from tests.recording.passing import (
    KINDS,
    LENGTHS,
    H,
    ask,
    assert_pass_equals_reference,
    assert_reduced,
    make_case,
    name_of,
)

BEYOND = 521  # two borders of TILE_KEYS, and of rows: no power of two, no multiple of anything
OPTIONS = ("plain", "softcap", "sinks", "bias", "hiding bias", "everything")
SMALL = pytest.mark.parametrize("cells", [1, 400, None], ids="{}-cell tiles".format)  # 8, 13 and all rows high


NAMES = [name_of(each) for each in ask(np.random.default_rng(0), make_case(np.random.default_rng(0), lengths=(3,)))]


# ------------------------------------------------------------------------------------------- each request, and together


@pytest.mark.parametrize("name", dict.fromkeys(NAMES))
@SMALL
def test_each_request_alone_equals_the_reference(rng, shrink, name, cells):
    shrink(cells)
    for kind in ("bidirectional", "causal", "head by head"):
        assert_pass_equals_reference(rng, make_case(rng, kind), {name})


@pytest.mark.thinned
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("option", OPTIONS)
def test_all_requests_together_equal_the_reference(rng, shrink, kind, option):
    shrink(400)
    assert_pass_equals_reference(rng, make_case(rng, kind, option))


@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_exact_to_1e_5(rng, kind):
    assert_pass_equals_reference(rng, make_case(rng, kind, "everything", dtype=torch.float32))


def test_together_is_what_each_is_alone(rng, shrink):
    shrink(300)
    case = make_case(rng)
    questions = ask(rng, case)
    together = prepare(case.tokens, questions).run(case.layer)
    for request in questions:
        alone = prepare(case.tokens, [request]).run(case.layer)[request]
        assert_allclose(alone, together[request], atol=1e-12, equal_nan=True, err_msg=name_of(request))


def test_a_request_made_twice_is_planned_once(rng):
    case = make_case(rng)
    assert prepare(case.tokens, [Mass(), Entropy(), Mass(), Band((1, 2)), Band((1, 2))]).requests == (
        Mass(),
        Entropy(),
        Band((1, 2)),
    )


# ---------------------------------------------------------------------------------------------- beyond the real borders


@pytest.mark.parametrize("kind", ["bidirectional", "causal", "window", "head by head"])
def test_a_long_text_equals_the_reference_across_the_real_borders(rng, kind):
    case = make_case(rng, kind, lengths=(BEYOND,), dtype=torch.float32)
    assert H * BEYOND**2 > 2 * tiles.TILE_CELLS
    assert BEYOND > 2 * tiles.TILE_KEYS
    assert_pass_equals_reference(rng, case)


def test_a_padded_batch_equals_the_reference_across_the_real_borders(rng):
    case = make_case(rng, lengths=(17, tiles.TILE_KEYS + 1, 5, 401), dtype=torch.float32, option="sinks", heads=(2, 1))
    assert_pass_equals_reference(rng, case)


@pytest.mark.parametrize("length", [tiles.TILE_KEYS - 1, tiles.TILE_KEYS, tiles.TILE_KEYS + 1])
def test_a_text_as_long_as_a_tile_is_wide_equals_the_reference(rng, length):
    assert_pass_equals_reference(rng, make_case(rng, lengths=(length,), dtype=torch.float32, heads=(7, 1)))


@pytest.mark.parametrize("length", [4, 5, 6, 10, 11])
def test_lengths_around_a_tile_border_equal_the_reference(rng, shrink, length):
    shrink(40)
    for kind in ("bidirectional", "causal"):
        assert_pass_equals_reference(rng, make_case(rng, kind, lengths=(length, 2, length)))


# ------------------------------------------------------------------------------------------------------ groups of texts


def test_neighbouring_short_texts_share_a_tile(rng):
    lengths = (3, 11, 5, 2, 7, 13, 1)
    case = make_case(rng, lengths=lengths)
    wanted = [request for request in ask(rng, case) if not isinstance(request, Pooled)]
    assert len(list(prepare(case.tokens, wanted)._groups(case.layer))) == 1
    assert_pass_equals_reference(rng, case, {name_of(request) for request in wanted})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("option", ["plain", "everything"])
def test_groups_of_several_sizes_equal_the_reference(rng, shrink, kind, option):
    shrink(H * 3 * 7**2, keys=17)
    case = make_case(rng, kind, option, lengths=(3, 5, 7, 19, 2, 1, 5, 11))
    wanted = [request for request in ask(rng, case) if not isinstance(request, Pooled)]
    groups = [range(8)[texts] for texts in prepare(case.tokens, wanted)._groups(case.layer)]
    assert [text for group in groups for text in group] == list(range(8))
    assert {len(group) for group in groups} > {1}
    assert_pass_equals_reference(rng, case, {name_of(request) for request in wanted})


@pytest.mark.parametrize("kind", ["causal", "holes"])
def test_one_plan_serves_layers_of_other_heads_masks_and_precisions(rng, shrink, kind):
    """What a plan keeps from one layer must not spoil the next: a pruned layer has fewer heads, so larger groups."""
    shrink(1_000, keys=17)
    lengths = (3, 5, 7, 19, 2, 1, 5, 11)
    first, fewer = make_case(rng, kind, lengths=lengths), make_case(rng, "causal", lengths=lengths, heads=(2, 1))
    single = make_case(rng, "causal", lengths=lengths, dtype=torch.float32)
    if kind == "causal":  # the very same object
        fewer, single = (replace(case, layer=replace(case.layer, mask=first.layer.mask)) for case in (fewer, single))
    window = make_case(rng, "window", lengths=lengths)
    questions = {each: answer for each, answer in ask(rng, first).items() if not isinstance(each, Pooled)}
    plan = prepare(first.tokens, questions)
    assert list(plan._groups(first.layer)) != list(plan._groups(fewer.layer))
    for case in (first, fewer, window, single, first, fewer):
        assert_reduced(case, plan.run(case.layer), questions)


@pytest.mark.parametrize("lengths", [(5, 0, 3), (0,), (0, 0), (1,), ()], ids=str)
def test_texts_without_tokens_are_nothing(rng, lengths):
    assert_pass_equals_reference(rng, make_case(rng, lengths=lengths))


# --------------------------------------------------------------------------------------------------------- other shapes


@pytest.mark.parametrize("heads", [(6, 6), (6, 2), (6, 1), (1, 1)])
def test_query_heads_read_their_own_keys(rng, shrink, heads):
    shrink(100)
    case = make_case(rng, heads=heads)
    chosen = {"Mass", "Entropy", "Received", "Band"}
    assert_pass_equals_reference(rng, case, chosen)


@pytest.mark.parametrize("rows", [1, 5, 23, 29])
@SMALL
def test_queries_that_are_not_the_keys_equal_the_reference(rng, shrink, rows, cells):
    """A cache (fewer queries than keys), or cross-attention (any number)."""
    shrink(cells)
    for kind in ("bidirectional", "causal"):
        assert_pass_equals_reference(rng, make_case(rng, kind, lengths=(19, 19), rows=rows))


def test_heads_of_no_width_look_everywhere_alike(rng):
    reduced, _ = assert_pass_equals_reference(rng, make_case(rng, "bidirectional", dim=0))
    assert_allclose(reduced[Square()][0, :, 0], 1 / LENGTHS[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_layers_are_reduced_in_float32(rng, dtype):
    reduced, _ = assert_pass_equals_reference(rng, make_case(rng, dtype=dtype))
    assert reduced[Mass()].dtype == torch.float32


def test_a_mask_and_a_bias_that_all_texts_share_serve_each(rng, shrink):
    shrink(150)
    lengths = (11, 11, 11)
    case = make_case(rng, "causal", "bias", lengths=lengths)
    layer = replace(case.layer, mask=Mask.causal(11, 11))
    expected = prepare(case.tokens, [Entropy()]).run(case.layer)[Entropy()]
    assert_allclose(prepare(case.tokens, [Entropy()]).run(layer)[Entropy()], expected, atol=1e-12)
    one = make_case(rng, "causal", "bias", lengths=(11,)).layer
    q, k, lse = (each.expand(3, *each.shape[1:]) for each in (one.q, one.k, one.lse))
    for request in (Entropy(), Pooled(3), Received()):
        alone = prepare(Tokens.unnamed([11]), [request]).run(one)[request]
        three = prepare(case.tokens, [request]).run(Layer(q, k, lse, one.mask, one.rule))[request]
        assert_allclose(three, alone.expand_as(three), atol=1e-12, equal_nan=True)


def test_a_dense_mask_that_all_texts_share_serves_each(rng, shrink):
    shrink(150)
    case = make_case(rng, "head by head", lengths=(11, 11, 11))
    dense = case.layer.mask.dense[1:2].clone()
    one = replace(case.layer, mask=Mask.from_dense(dense), lse=torch.zeros_like(case.layer.lse))
    each = replace(one, mask=Mask.from_dense(dense.repeat(3, 1, 1, 1)))
    for request in (Mass(), Received(), Pooled(3), Pooled(5, "max")):
        shared, own = (prepare(case.tokens, [request]).run(layer)[request] for layer in (one, each))
        assert_array_equal(shared, own, err_msg=name_of(request))
