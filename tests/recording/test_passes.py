"""One pass over tiles gives what the whole map gives: every request, alone and with the others, across tile borders.

The map comes from `reference.attend`, the answers from `reference.reductions`; the pass sees q, k and lse alone.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from manyheads import reference
from manyheads.attention import Mask, Rule
from manyheads.errors import ShapeError, StatisticError
from manyheads.recording import Layer, LayerRecord, prepare
from manyheads.recording.exact_map import Entropy, Pooled, Received, Strongest, one_pass, requests
from manyheads.recording.exact_map import zoom as pyramids
from manyheads.recording.exact_map.requests import Band, Distance, Linear, Mass, Match, Square
from manyheads.recording.exact_map.zoom import read_region
from manyheads.reference import reductions
from manyheads.spec import Site
from manyheads.texts import Tokens
from tests.recording.passing import (
    KINDS,
    LENGTHS,
    OFFSETS,
    SCALE,
    D,
    G,
    H,
    ask,
    assert_pass_equals_reference,
    assert_reduced,
    make_case,
    name_of,
)
from tests.refusals import refuses

BEYOND = 521  # two borders of TILE_KEYS, and of rows: no power of two, no multiple of anything
OPTIONS = ("plain", "softcap", "sinks", "bias", "hiding bias", "everything")
SMALL = pytest.mark.parametrize("cells", [1, 400, None], ids="{}-cell tiles".format)  # 8, 13 and all rows high


NAMES = [name_of(each) for each in ask(np.random.default_rng(0), make_case(np.random.default_rng(0), lengths=(3,)))]


def test_every_reduction_is_compared_with_its_oracle():
    classes = {
        value
        for value in vars(requests).values()
        if isinstance(value, type) and value.__module__ == requests.__name__ and hasattr(value, "add")
    }
    rng = np.random.default_rng(0)
    compared = {type(request) for request in ask(rng, make_case(rng, lengths=(3,)))}
    assert len(compared) > 8 and {cls for cls in classes if cls.__subclasses__() == []} <= compared


def test_what_padding_holds_changes_nothing(fresh):
    """NaN and infinity too: some attention functions make them of rows that see nothing."""
    lengths, tokens = torch.tensor([5, 11]), Tokens.unnamed([5, 11])
    mask = Mask.causal(11, 11).expand(2).trimmed(torch.zeros(2, dtype=torch.long), lengths)
    q, k = torch.randn(2, 6, 11, 7, generator=fresh), torch.randn(2, 3, 11, 7, generator=fresh)
    lse = (q.unflatten(1, (3, 2)) @ k[:, :, None].mT).flatten(1, 2)
    lse = lse.masked_fill(~mask.visible(slice(None), slice(None)), -torch.inf).logsumexp(-1)
    requests = [Entropy(), Strongest(), Received(), Distance(), Band((-2, 0)), Square()]
    want = prepare(tokens, requests).run(Layer(q, k, lse, mask, Rule(1.0)))
    assert all(bool(want[request][1].isfinite().all()) for request in requests)
    for value in (torch.nan, torch.inf, 1e30):
        dirty_q, dirty_k = q.clone(), k.clone()
        dirty_q[0, :, 5:], dirty_k[0, :, 5:] = value, value
        got = prepare(tokens, requests).run(Layer(dirty_q, dirty_k, lse, mask, Rule(1.0)))
        for request in requests:
            assert_allclose(got[request], want[request], atol=1e-6, equal_nan=True, err_msg=f"{request} of {value}")


# ------------------------------------------------------------------------------------------- each request, and together


@pytest.mark.thinned
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
    asked = [Mass(), Entropy(), Mass(), Band((1, 2)), Band((1, 2))]
    assert prepare(case.tokens, asked).requests == (Mass(), Entropy(), Band((1, 2)))


# ---------------------------------------------------------------------------------------------- beyond the real borders


@pytest.mark.parametrize("kind", ["bidirectional", "causal", "window", "head by head"])
def test_a_long_text_equals_the_reference_across_the_real_borders(rng, kind):
    case = make_case(rng, kind, lengths=(BEYOND,), dtype=torch.float32)
    assert H * BEYOND**2 > 2 * one_pass.TILE_CELLS
    assert BEYOND > 2 * one_pass.TILE_KEYS
    assert_pass_equals_reference(rng, case)


def test_a_padded_batch_equals_the_reference_across_the_real_borders(rng):
    case = make_case(
        rng, lengths=(17, one_pass.TILE_KEYS + 1, 5, 401), dtype=torch.float32, option="sinks", heads=(2, 1)
    )
    assert_pass_equals_reference(rng, case)


@pytest.mark.parametrize("length", [one_pass.TILE_KEYS - 1, one_pass.TILE_KEYS, one_pass.TILE_KEYS + 1])
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


@pytest.mark.thinned
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


# ------------------------------------------------------------------------------------------------------- what is absent


def test_rows_say_which_rows_see_something(rng):
    case = make_case(rng, "dead rows")
    rows = prepare(case.tokens, [Mass()]).run(case.layer).rows
    for text, (seen, own) in enumerate(zip(case.visible, case.rows, strict=True)):
        assert_array_equal(rows[text, :own], seen[0].any(-1))
        assert not rows[text, own:].any()
    shared = replace(case.layer, mask=Mask.causal(23, 23))
    assert prepare(case.tokens, [Mass()]).run(shared).rows.shape == (len(LENGTHS), 23)


@pytest.mark.parametrize("step", [1, 2**31, 2**32, 2**60])
def test_labels_may_be_any_numbers(rng, step):
    """Hashes, say: as large as they come, and different ones stay different."""
    case = make_case(rng)
    small = rng.integers(-1, 4, (len(LENGTHS), max(LENGTHS)))
    labels = np.where(small < 0, small, small * step)
    request = Match(lambda tokens: (torch.from_numpy(labels), torch.from_numpy(labels)), elsewhere=True)
    reduced = prepare(case.tokens, [request]).run(case.layer)

    def answer(w, seen, text):
        own = small[text, : w.shape[1]]
        return reductions.match(w, own, own, elsewhere=True).sum(-1)

    assert_reduced(case, reduced, {request: answer})
    for text, (seen, own) in enumerate(zip(case.visible, case.rows, strict=True)):
        assert_array_equal(reduced.matches(request)[text, :own], answer(seen.astype(np.float64), seen, text)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_matches_counts_the_visible_keys_with_the_rows_label(rng, kind):
    case = make_case(rng, kind, lengths=(13, 7, 23, 0, 2))
    questions = {request: answer for request, answer in ask(rng, case).items() if isinstance(request, Match)}
    reduced = prepare(case.tokens, questions).run(case.layer)
    for request, answer in questions.items():
        got = reduced.matches(request).numpy()
        for text, (seen, own) in enumerate(zip(case.visible, case.rows, strict=True)):
            looks = seen.any(0, keepdims=True).astype(np.float64)  # of any head, where heads differ
            assert_array_equal(got[text, :own], answer(looks, seen, text)[0], err_msg=name_of(request))
            assert_array_equal(got[text, own:], 0, err_msg=name_of(request))


def test_blocks_in_which_nothing_is_visible_are_absent_not_zero(rng, shrink):
    shrink(90)
    mean, largest = Pooled(4), Pooled(4, "max")
    case = make_case(rng, "causal", lengths=(13, 3))
    reduced = prepare(case.tokens, [mean, largest]).run(case.layer)
    ahead, short = np.triu(np.ones((4, 4), bool), 1), np.arange(4) >= 3
    for request in (mean, largest):
        got = torch.isnan(reduced[request]).numpy()
        assert_array_equal(got[0], np.broadcast_to(ahead, (H, 4, 4)))
        assert_array_equal(got[1], np.broadcast_to(ahead | short | short[:, None], (H, 4, 4)))


def test_a_block_of_zeros_that_are_visible_is_zero_not_absent():
    q = torch.tensor([[40.0], [40], [40], [40]])[None, None]
    k = torch.tensor([[40.0], [40], [-40], [-40]])[None, None]
    lse = torch.full((1, 1, 4), 1600 + float(np.log(2)))
    layer = Layer(q, k, lse, Mask.full(4, 4), Rule(1.0))
    for how, left in (("mean", 0.5), ("max", 0.5)):
        got = prepare(Tokens.unnamed([4]), [Pooled(2, how)]).run(layer)[Pooled(2, how)]
        assert_allclose(got[0, 0], [[left, 0], [left, 0]], atol=1e-3)


@pytest.mark.parametrize("cells", [1, None])
def test_the_first_of_equals_is_the_strongest(shrink, cells):
    shrink(cells)
    zeros, mask = torch.zeros(1, 2, 17, 3), Mask.causal(17, 17, window=7)
    lse = mask.counts().log().expand(2, -1)[None]
    got = prepare(Tokens.unnamed([17]), [Strongest()]).run(Layer(zeros, zeros, lse, mask, Rule(1.0)))[Strongest()]
    assert_array_equal(got[0, 1], np.maximum(np.arange(17) - 6, 0))


def test_missing_mass_stays_missing(rng):
    case = make_case(rng, option="sinks")
    mass = prepare(case.tokens, [Mass()]).run(case.layer)[Mass()]
    assert mass[0, :, : LENGTHS[0]].max() < 1


# ------------------------------------------------------------------------------- the assertions notice what they should

BREAK = {
    "a wrong base of the logarithm": (one_pass, "LOG2_E", 1.0),
    "hidden cells that still weigh something": (one_pass, "HIDDEN", -2.0),
    "a border that is never looked at": (
        Mask, "visible",
        lambda self, rows, keys, **_: torch.ones(
            1, 1, rows.stop - rows.start, keys.stop - keys.start, dtype=torch.bool,
        ),
    ),
    "signed distances": (
        Distance, "add",
        lambda self, t, answer: answer[:, :, t.rows].add_((t.weights * (t.key_index - t.rows.start)).sum(-1)),
    ),
    "labels compared the wrong way": (
        Match, "equal_labels", lambda self, t: torch.ones(t.weights.shape[0], 1, *t.weights.shape[2:]),
    ),
    "a band that is one key off": (
        Band, "add",
        lambda self, t, answer: ADD_BAND(replace(self, offsets=tuple(offset + 1 for offset in OFFSETS)), t, answer),
    ),
    "the strongest key of the last tile": (
        Strongest, "add", lambda self, t, answer: answer[:, :, t.rows].copy_(t.logs.max(-1).indices + t.keys.start),
    ),
    "blocks that hold a row more": (requests, "bins", lambda length, size: (torch.arange(length) + 1) // 2 % size),
    "cells that are counted when hidden": (
        requests, "visible_cells", lambda mask, lengths, size, *rest: torch.ones(len(lengths), 1, size, size),
    ),
    "a softcap that is forgotten": (Rule, "plain", True),
    "groups that leave a text out": (one_pass.Pass, "_groups", lambda self, layer: [slice(1, None)]),
    "columns that are not lined up with their tile": (
        Linear, "add_all",
        lambda t, answers: ADD_LINEAR(replace(t, keys=slice(0, t.keys.stop - t.keys.start)), answers),
    ),
}  # fmt: skip
ADD_BAND, ADD_LINEAR = Band.add, Linear.add_all


@pytest.mark.parametrize("what", BREAK)
def test_the_comparison_sees(rng, shrink, monkeypatch, what):
    shrink(120)
    case = make_case(rng, option="everything")
    assert_pass_equals_reference(rng, case)
    monkeypatch.setattr(*BREAK[what])
    with pytest.raises(AssertionError):
        assert_pass_equals_reference(rng, case)


@pytest.mark.parametrize("part", ["k", "lse", "scale", "sinks", "softcap", "bias", "mask"])
def test_every_part_of_a_layer_matters(rng, part):
    case = make_case(rng, option="everything")
    layer, rule = case.layer, case.layer.rule
    broken = {
        "k": lambda: replace(layer, k=layer.k.roll(1, dims=1)),  # a swapped key/value head
        "lse": lambda: replace(layer, lse=layer.lse + 0.01),
        "scale": lambda: replace(layer, rule=replace(rule, scale=SCALE * 1.01)),
        "sinks": lambda: replace(layer, lse=torch.log(layer.lse.exp() - rule.sinks.exp()[None, :, None])),
        "softcap": lambda: replace(layer, rule=replace(rule, softcap=None)),
        "bias": lambda: replace(layer, rule=replace(rule, bias=None)),
        "mask": lambda: replace(layer, mask=Mask.full(layer.q.shape[2], layer.q.shape[2])),
    }[part]()
    with pytest.raises(AssertionError):
        assert_pass_equals_reference(rng, replace(case, layer=broken))


@pytest.mark.parametrize("wrong", [{"size": 4, "how": "median"}, {"size": 0}])
def test_pooling_by_an_unknown_way_or_into_nothing_is_refused(wrong):
    refuses(StatisticError, "pool by how='mean' or 'max', into at least one block", Pooled, **wrong)


# ============================================================================================================= pyramids
# Regions of one head's map at every level: each cell is the mean, or the largest, of the visible weights there.
#
# The oracle is the map itself, as the NumPy reference makes it from q and k; a block is sliced out of it and averaged.

MAPS = ("full", "causal", "window", "dense", "dense by head", "bias", "softcap", "sinks", "cross", "padded", "float16")


def layer_of(kind, fresh, num_queries, num_keys=None):
    """A layer's record with everything about it drawn at random, and its map as the reference computes it, by head."""
    num_keys = num_keys or num_queries
    q, k = (2 * torch.randn(1, heads, n, D, generator=fresh) for heads, n in ((H, num_queries), (G, num_keys)))
    if kind == "float16":
        q, k = q.half(), k.half()
    mask, rule, stack = Mask.full(num_queries, num_keys), Rule(0.6), ""
    if kind in ("causal", "sinks", "softcap", "float16"):
        mask = Mask.causal(num_queries, num_keys)
    if kind == "window":
        mask = Mask.causal(num_queries, num_keys, window=7)
    if kind.startswith("dense"):
        heads = H if kind == "dense by head" else 1
        seen = torch.rand(1, heads, num_queries, num_keys, generator=fresh) < 0.4
        mask = Mask.from_dense(seen)
        assert mask.dense is not None or num_queries < 9, "every row of a small one may be a run"
    if kind == "padded":
        mask = Mask.from_lengths(torch.tensor([num_queries - 3]), num_queries, num_keys)
    if kind == "bias":
        rule = Rule(0.6, bias=torch.randn(1, H, num_queries, num_keys, generator=fresh))
    if kind == "softcap":
        rule = Rule(0.6, softcap=3.0)
    if kind == "sinks":
        rule = Rule(0.6, sinks=torch.randn(H, generator=fresh))
    if kind == "cross":
        stack = "cross"
    visible = mask.visible(slice(0, num_queries), slice(0, num_keys))[0].expand(H, -1, -1).numpy()
    weights, lse = full_map(q[0].double().numpy(), k[0].double().numpy(), visible, rule)
    site = Site(stack, 2, "layers.2", H, G, D, D, kind == "causal")
    lengths = torch.tensor([num_queries])
    tokens = Tokens.unnamed([num_queries])
    record = LayerRecord(site, q, k, None, torch.from_numpy(lse)[None].float(), mask, rule, lengths, tokens)
    return record, np.where(visible, weights, np.nan)


def full_map(q, k, visible, rule):
    """Weights and lse in float64, written out."""
    scores = rule.scale * q @ np.repeat(k, H // G, 0).transpose(0, 2, 1)
    if rule.softcap is not None:
        scores = rule.softcap * np.tanh(scores / rule.softcap)
    if rule.bias is not None:
        scores = scores + rule.bias[0].double().numpy()
    scores = np.where(visible, scores, -np.inf)
    extra = np.zeros((H, 0)) if rule.sinks is None else rule.sinks.double().numpy()[:, None]
    with np.errstate(divide="ignore"):
        lse = np.log(np.exp(scores).sum(-1) + np.exp(extra).sum(-1)[:, None])
    return np.where(visible, np.exp(scores - np.where(np.isinf(lse), 0, lse)[..., None]), 0), lse


def blocks_of(cells, side):
    """Means and maxima of the visible cells of each block; NaN where there is none."""
    rows, columns = (-(-n // side) for n in cells.shape)
    out = np.full((2, rows, columns), np.nan)
    for i in range(rows):
        for j in range(columns):
            block = cells[i * side : (i + 1) * side, j * side : (j + 1) * side]
            if not np.isnan(block).all():
                out[:, i, j] = np.nanmean(block), np.nanmax(block)
    return out


def assert_level(level, cells):
    want = blocks_of(cells, 1 << level.level)
    for got, wanted in ((level.mean, want[0]), (level.max, want[1])):
        got = got.numpy()
        assert got.shape == wanted.shape
        assert (np.isnan(got) == np.isnan(wanted)).all()
        np.testing.assert_allclose(np.nan_to_num(got), np.nan_to_num(wanted), atol=1e-5)


@pytest.mark.thinned
@pytest.mark.parametrize("wide", [True, False], ids=["float64", "float32"])
@pytest.mark.parametrize("strip", [1 << 20, 64], ids=["one strip", "many strips"])
@pytest.mark.parametrize("kind", MAPS)
def test_every_cell_of_every_level_is_of_the_weights_that_it_stands_for(kind, strip, wide, fresh, monkeypatch):
    monkeypatch.setattr(pyramids, "STRIP_CELLS", strip)
    monkeypatch.setattr(pyramids, "WIDE_CELLS", 1 << 18 if wide else 0)
    record, cells = layer_of(kind, fresh, 53, 37 if kind == "cross" else None)
    rows, keys = (slice(0, n) for n in cells.shape[1:])
    for head in (0, 5):
        region = read_region(record, head, rows, keys, range(5))
        assert region.exact and [level.level for level in region.levels] == [0, 1, 2, 3, 4]
        for level in region.levels:
            assert_level(level, cells[head])
    assert not np.allclose(np.nan_to_num(cells[0]), np.nan_to_num(cells[1]), atol=1e-3), "heads must differ to tell"


def test_the_map_is_that_of_the_reference(fresh):
    record, cells = layer_of("causal", fresh, 19)
    q, k = record.q.double().numpy(), record.k.double().numpy()
    seen = record.mask.visible(slice(0, 19), slice(0, 19)).numpy()
    known = reference.attend(q, np.repeat(k, H // G, 1), np.repeat(k, H // G, 1), mask=seen, scale=0.6)
    np.testing.assert_allclose(np.nan_to_num(cells), known.weights[0], atol=1e-6)


@given(st.data())
def test_any_region_that_begins_at_whole_blocks_is_a_window_of_the_whole(data):
    fresh = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    kind = data.draw(st.sampled_from(MAPS))
    length, top = data.draw(st.integers(2, 40)), data.draw(st.integers(0, 3))
    record, cells = layer_of(kind, fresh, max(4, length))
    length, side = max(4, length), 1 << top
    row, key = (side * data.draw(st.integers(0, (length - 1) // side)) for _ in range(2))
    rows, keys = (slice(at, data.draw(st.integers(at + 1, length))) for at in (row, key))
    region = read_region(record, 4, rows, keys, range(data.draw(st.integers(0, top)), top + 1))
    for level in region.levels:
        assert_level(level, cells[4][rows, keys])


@pytest.mark.parametrize("kind", ["causal", "full", "window"])
def test_a_sample_reads_no_more_than_asked_says_so_and_is_the_mean_of_its_rows(kind, fresh):
    record, cells = layer_of(kind, fresh, 61)
    whole = slice(0, 61)
    seen = int((~np.isnan(cells[3])).sum())
    region = read_region(record, 3, whole, whole, range(2, 5), most_cells=seen // 4)
    assert not region.exact and region.rows_in_all == 61 and len(region.levels) == 1
    assert 4 <= region.rows_read <= 61 // 4 + 4
    (level,) = region.levels
    kept = max(1, int(16 * (seen // 4) / seen))
    chosen = [
        at for block in range(4) for at in (int((i + 0.5) * 16 / kept) + 16 * block for i in range(kept)) if at < 61
    ]
    assert region.rows_read == len(chosen)
    thin = np.full_like(cells[3], np.nan)
    thin[chosen] = cells[3][chosen]
    assert_level(level, thin)
    exact = read_region(record, 3, whole, whole, range(4, 5))
    assert exact.exact and not np.allclose(exact.levels[0].mean.nan_to_num(), level.mean.nan_to_num(), atol=1e-5)


def test_a_long_row_of_a_short_last_block_is_never_left_out(fresh):
    record, _ = layer_of("full", fresh, 65)
    region = read_region(record, 0, slice(0, 65), slice(0, 65), range(5, 6), most_cells=100)
    assert not region.exact and not region.levels[0].mean.isnan().any()


def test_work_is_told_of_and_can_be_stopped(fresh, monkeypatch):
    monkeypatch.setattr(pyramids, "STRIP_CELLS", 53 * 8)
    record, _ = layer_of("full", fresh, 53)
    told = []

    def stop(done, total):
        told.append((done, total))
        if done > 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_region(record, 0, slice(0, 53), slice(0, 53), range(3), on_strip=stop)
    assert told[0] == (0, 53) and 2 < len(told) < 8


@pytest.mark.parametrize(("rows", "keys", "levels", "text", "head", "said"), [
    (slice(0, 54), slice(0, 9), range(1), 0, 0, "rows 0 to 54 cannot be read: text 0 has 53 of them"),
    (slice(0, 9), slice(5, 5), range(1), 0, 0, "keys 5 to 5 cannot be read"),
    (slice(2, 9), slice(0, 9), range(3), 0, 0, "a region of level 2 begins at a multiple of 4"),
    (slice(0, 9), slice(0, 9), range(0), 0, 0, "give a run of levels from 0 to 40"),
    (slice(0, 9), slice(0, 9), range(0, 4, 2), 0, 0, "give a run of levels"),
    (slice(0, 9), slice(0, 9), range(1), 1, 0, "text=1 is not in this recording: it holds 1 texts"),
    (slice(0, 9), slice(0, 9), range(1), 0, 6, "head=6 is not in layer 2: it has heads 0 to 5"),
])  # fmt: skip
def test_what_is_no_region_is_said(rows, keys, levels, text, head, said, fresh):
    record, _ = layer_of("full", fresh, 53)
    refuses(ShapeError, said, read_region, record, head, rows, keys, levels, text=text)
