"""What a pass over tiles leaves out or counts as absent, and that the comparison with the map notices what it should.

The map comes from `reference.attend`, the answers from `reference.reductions`; the pass sees q, k and lse alone.
Inputs are drawn afresh each run. A failure prints its seed: MANYHEADS_SEED=... repeats it.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from manyheads.errors import StatisticError
from manyheads.nn import Mask, Rule
from manyheads.recording import Layer, Pooled, Strongest, Tokens, prepare
from manyheads.recording.exact_map import one_pass, requests
from manyheads.recording.exact_map.requests import Band, Distance, Linear, Mass, Match
from manyheads.reference import reductions
from tests.recording.passing import (
    KINDS,
    LENGTHS,
    OFFSETS,
    SCALE,
    H,
    ask,
    assert_pass_equals_reference,
    assert_reduced,
    make_case,
    name_of,
)

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
        Mask,
        "visible",
        lambda self, rows, keys: torch.ones(1, 1, rows.stop - rows.start, keys.stop - keys.start, dtype=torch.bool),
    ),
    "signed distances": (
        Distance,
        "add",
        lambda self, t, answer: answer[:, :, t.rows].add_((t.weights * (t.key_index - t.rows.start)).sum(-1)),
    ),
    "labels compared the wrong way": (
        Match,
        "same",
        lambda self, t: torch.ones(t.weights.shape[0], 1, *t.weights.shape[2:]),
    ),
    "a band that is one key off": (
        Band,
        "add",
        lambda self, t, answer: ADD_BAND(replace(self, offsets=tuple(offset + 1 for offset in OFFSETS)), t, answer),
    ),
    "the strongest key of the last tile": (
        Strongest,
        "add",
        lambda self, t, answer: answer[:, :, t.rows].copy_(t.logs.max(-1).indices + t.keys.start),
    ),
    "blocks that hold a row more": (requests, "bins", lambda length, size: (torch.arange(length) + 1) // 2 % size),
    "cells that are counted when hidden": (
        requests,
        "visible_cells",
        lambda mask, lengths, size, *rest: torch.ones(len(lengths), 1, size, size),
    ),
    "a softcap that is forgotten": (Rule, "plain", True),
    "groups that leave a text out": (one_pass.Pass, "_groups", lambda self, layer: [slice(1, None)]),
    "columns that are not lined up with their tile": (
        Linear,
        "add_all",
        lambda t, answers: ADD_LINEAR(replace(t, keys=slice(0, t.keys.stop - t.keys.start)), answers),
    ),
}
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
    with pytest.raises(StatisticError, match="pool by how='mean' or 'max', into at least one block"):
        Pooled(**wrong)
