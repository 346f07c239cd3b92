"""The kernels, interpreted: every request by the whole map's definition in NumPy, as `test_passes` has it of the tiles.

Run by `tests/recording/test_kernels.py`, or: `TRITON_INTERPRET=1 pytest tests/recording/kernels`.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from manyheads.attention import Mask, Rule
from manyheads.errors import ModelError
from manyheads.recording import Layer, prepare
from manyheads.recording.exact_map import Entropy, Strongest, launches, one_pass, trial
from manyheads.recording.exact_map.requests import Band, Linear, Mass, Pooled
from manyheads.texts import Tokens
from tests.recording.passing import (
    RUNS,
    ask,
    assert_pass_equals_reference,
    assert_reduced,
    make_case,
    name_of,
    visible_cells,
)
from tests.refusals import refuses

SMALL = {"lengths": (37, 21), "heads": (2, 1), "dtype": torch.float32}
HOW = {  # of each kind of mask: the tiles, the rule, the heads, the numbers
    "bidirectional": ({}, "softcap", (2, 1), torch.float32),
    "causal": ({}, "plain", (2, 1), torch.bfloat16),
    "window": ({"parts": 1}, "sinks", (2, 2), torch.float32),
    "chunks": ({"lines": 32, "parts": 1}, "plain", (3, 1), torch.float16),
    "packed": ({"others": 32}, "softcap", (4, 2), torch.bfloat16),
    "ahead": ({}, "sinks", (2, 1), torch.float32),
    "behind": ({}, "plain", (1, 1), torch.float16),
    "ragged": ({"lines": 32}, "plain", (2, 1), torch.float32),
    "dead rows": ({}, "plain", (2, 1), torch.bfloat16),
}
POOLED = {"Pooled mean", "Pooled max"}
NAMES = {name_of(request) for request in ask(np.random.default_rng(0), make_case(np.random.default_rng(0)))}


def some_and_slow(some, values):
    """Values of a parameter, of which `make test` runs some: interpreted, each takes a second."""
    return [pytest.param(value, marks=[] if value in some else [pytest.mark.slow]) for value in values]


def assert_kernels_equal_reference(rng, case, chosen=NAMES - POOLED):
    reduced, _ = assert_pass_equals_reference(rng, case, chosen)
    assert reduced.because.startswith("kernels")
    return reduced


@pytest.mark.parametrize("kind", RUNS)
def test_every_request_equals_the_reference(rng, tiles, kind):
    shape, option, heads, dtype = HOW[kind]
    tiles(**shape)
    case = make_case(rng, kind, option, **SMALL | {"heads": heads, "dtype": dtype})
    assert assert_kernels_equal_reference(rng, case).because.endswith("tiles for WordRows")


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("dtype", launches.DTYPES, ids=str)
def test_every_request_equals_the_reference_in_every_dtype(rng, tiles, kind, dtype):
    tiles(**rng.choice([{}, {"lines": 32, "parts": 1}, {"others": 32}]))
    case = make_case(rng, kind, "softcap", lengths=(61, 7, 38), heads=(4, 2), dtype=dtype)
    assert_kernels_equal_reference(rng, case)


@pytest.mark.parametrize("rows", some_and_slow((5,), (1, 5, 29)))
def test_queries_that_are_not_the_keys_equal_the_reference(rng, tiles, rows):
    """A cache (fewer queries than keys), or cross-attention (any number)."""
    tiles()
    assert_kernels_equal_reference(rng, make_case(rng, "causal", rows=rows, **SMALL | {"lengths": (27, 27)}), NAMES)


@pytest.mark.parametrize("kind", some_and_slow(("ragged",), ("causal", "ragged")))
def test_pooled_maps_equal_the_reference(rng, tiles, kind):
    tiles()
    assert_kernels_equal_reference(rng, make_case(rng, kind, **SMALL | {"heads": (1, 1), "lengths": (41, 6)}), POOLED)


@pytest.mark.parametrize("dim", some_and_slow((33,), (0, 16, 33)))
def test_heads_of_any_width_equal_the_reference(rng, tiles, dim):
    tiles()
    assert_kernels_equal_reference(rng, make_case(rng, dim=dim, **SMALL | {"lengths": (18,)}), NAMES - POOLED)


def test_vectors_may_lie_as_a_model_makes_them(rng, tiles):
    """Positions before heads, one text's keys for all, and what padding holds is anything."""
    tiles()
    case = make_case(rng, "dead rows", dim=16, **SMALL)
    layer = case.layer
    q, k = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (layer.q, layer.k))
    assert not q.is_contiguous()
    dead = (layer.mask.counts() == 0)[:, None, :, None]
    q, lse = torch.where(dead, torch.nan, q), torch.where(dead[..., 0], torch.nan, layer.lse)
    k[1, :, case.maps[1].shape[2] :] = torch.nan
    assert_kernels_equal_reference(rng, replace(case, layer=replace(layer, q=q, k=k, lse=lse)))


def test_the_first_of_equals_is_the_strongest(tiles):
    tiles()
    zeros, mask = torch.zeros(1, 1, 67, 3), Mask.causal(67, 67, window=37)
    lse = mask.counts().log().expand(1, -1)[None]
    got = prepare(Tokens.unnamed([67]), [Strongest()]).run(Layer(zeros, zeros, lse, mask, Rule(1.0)))
    assert_array_equal(got[Strongest()][0, 0], np.maximum(np.arange(67) - 36, 0))


def test_one_plan_serves_layers_of_other_heads_and_masks(rng, tiles):
    """What was carried over for one layer must not serve another mask."""
    tiles()
    first, fewer = make_case(rng, "causal", **SMALL), make_case(rng, "causal", **SMALL | {"heads": (1, 1)})
    window = make_case(rng, "window", **SMALL)
    fewer = replace(fewer, layer=replace(fewer.layer, mask=first.layer.mask))
    chosen = {"Mass", "Entropy", "Linear", "KeySum", "Match elsewhere", "MatchReceived", "RowsReceived", "Band"}
    questions = {request: answer for request, answer in ask(rng, first).items() if name_of(request) in chosen}
    plan = prepare(first.tokens, questions)
    for case in (first, fewer, window, first):
        assert_reduced(case, plan.run(case.layer), questions)


def test_more_columns_than_a_launch_can_hold(rng, tiles):
    tiles()
    case = make_case(rng, **SMALL | {"lengths": (21, 9)})
    columns = rng.normal(size=(7, 2, 21))  # three columns of bf16 each

    def answer(column):
        return lambda w, seen, text: (w * column[text, : w.shape[2]]).sum(2)

    def request(column):
        return Linear(lambda tokens: torch.from_numpy(column))

    questions = {request(column): answer(column) for column in columns}
    assert_reduced(case, prepare(case.tokens, questions).run(case.layer), questions)


def test_large_maps_are_planned_in_parts(rng, tiles, monkeypatch):
    tiles()
    monkeypatch.setattr(launches, "PLANNED", 3)
    assert_kernels_equal_reference(rng, make_case(rng, **SMALL), {"Mass", "Received"})


def test_answers_are_as_the_tiles_make_them(rng, tiles, monkeypatch):
    tiles()
    case = make_case(rng, **SMALL | {"lengths": (9, 4)})
    plan = prepare(case.tokens, ask(rng, case))
    by_kernels = plan.run(case.layer)
    monkeypatch.setenv("MANYHEADS_PASS", "tiles")
    by_tiles = plan.run(case.layer)
    assert by_tiles.because == "tiles: MANYHEADS_PASS=tiles"
    for request in plan.requests:
        one, other = by_kernels[request], by_tiles[request]
        assert (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device), name_of(request)
        assert one.is_contiguous() == other.is_contiguous(), name_of(request)


def test_what_kernels_cannot_read_is_left_to_the_tiles(rng, tiles, monkeypatch):
    tiles()
    monkeypatch.setenv("MANYHEADS_PASS", "auto")
    cases = {
        "rows of its mask are not runs of keys": make_case(rng, "holes", **SMALL),
        "a bias is added to its scores": make_case(rng, "causal", "bias", **SMALL),
        "its dtype is torch.float64": make_case(rng, **SMALL | {"dtype": torch.float64}),
        "its heads are 129 wide": make_case(rng, dim=129, **SMALL),
        "it is empty": make_case(rng, **SMALL | {"lengths": (0, 0)}),
    }
    for reason, case in cases.items():
        reduced = prepare(case.tokens, [Mass(), Entropy(), Pooled(3)]).run(case.layer)
        assert reduced.because == f"tiles: {reason}"


# ============================================================================================================== plans


def first_stretch(flags):
    """Where the first unbroken stretch of True begins and ends; both are the end of all where there is none."""
    places = np.flatnonzero(flags)
    if not len(places):
        return len(flags), len(flags)
    end = places[0]
    while end < len(flags) and flags[end]:
        end += 1
    return places[0], end


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("kind", ["causal", "window", "bidirectional", "ahead", "ragged", "dead rows"])
@pytest.mark.parametrize(("lines", "others"), [(16, 16), (64, 32), (16, 64)])
def test_planned_tiles_are_those_that_the_cells_show(rng, kind, lines, others, by_key):
    num_rows, num_keys = (int(n) for n in rng.integers(90, 400, 2))
    num_rows = num_rows if kind == "bidirectional" else num_keys
    reach = int(rng.integers(1, 5))
    row, key = np.arange(num_rows)[:, None], np.arange(num_keys)[None]
    if kind == "dead rows":  # an empty run lies anywhere
        dead = rng.random((2, num_rows)) < 0.1
        start, stop = np.where(dead, 5, 0), np.where(dead, 5, np.arange(num_rows) + 1)
    elif kind == "window":  # wide enough for tiles within it
        start, stop = np.maximum(row.T - 130, 0).repeat(2, 0), (row.T + 1).repeat(2, 0)
    else:
        seen = visible_cells(rng, kind, 2, num_rows, num_keys)[:, 0]
        start, stop = seen.argmax(-1), np.where(seen.any(-1), num_keys - seen[..., ::-1].argmax(-1), 0)
    seen = (key >= start[..., None]) & (key < stop[..., None])
    runs = [torch.from_numpy(np.ascontiguousarray(ends)).long() for ends in (start, stop)]
    shape = launches.Shape(lines, others, 8, "tf32", 4)
    planned = launches.planned_tiles(*runs, num_keys, shape, reach, by_key)

    num_lines, num_others = (num_keys, num_rows) if by_key else (num_rows, num_keys)
    num_blocks, num_tiles = -(-num_lines // lines), -(-num_others // others)
    assert planned.shape == (2, num_blocks, 6) and planned.dtype == torch.int32
    place = np.arange(num_tiles) * others
    for text, block in np.ndindex(2, num_blocks):
        low, before, before_end, after, after_end, high = planned[text, block].tolist()
        first = block * lines
        cells = np.zeros((lines, num_tiles * others), bool)  # what is no token sees nothing, and nothing sees it
        of_block = (seen[text].T if by_key else seen[text])[first : first + lines]
        cells[: len(of_block), :num_others] = of_block
        tiles = cells.reshape(lines, num_tiles, others).swapaxes(0, 1)
        visible = np.flatnonzero(tiles.any((1, 2)))
        bounds = (visible[0], visible[-1] + 1) if len(visible) else (0, 0)
        if by_key:  # rows that lie apart may make it wider
            assert not len(visible) or (low <= bounds[0] and bounds[1] <= high)
            readable = np.arange(lines) < len(of_block)  # keys that are none are no lines
        else:
            assert (low, high) == bounds
            readable = cells.any(1)  # a row that sees nothing disturbs nobody
        whole = tiles[:, readable].all((1, 2)) & readable.any()
        if not by_key:
            whole &= place >= start[text, first : first + lines].max()
        assert (before, before_end) == first_stretch(whole & (place + others - 1 + reach <= first))
        assert (after, after_end) == first_stretch(whole & (first + lines - 1 + reach <= place))


def spoiled(launch):
    """The launch, whose last answers are of the row before: what a wrong product of a tile looks like."""

    def spoil(kernel, programs, *arguments, **constants):
        launch(kernel, programs, *arguments, **constants)
        out = arguments[4]
        out[-1] = out[-1].roll(1, -1)

    return spoil


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_that_are_right_pass_their_trial(rng, monkeypatch, dtype):
    case = make_case(rng, "causal", "softcap", **SMALL | {"dtype": dtype})
    requests = list(ask(rng, case))
    monkeypatch.setattr(trial, "TRIED", {})
    assert trial.fault_of_kernels(case.layer, requests, one_pass.answers_of) is None
    assert list(trial.TRIED.values()) == [None]
    monkeypatch.setattr(launches, "launch", None)  # not tried again
    assert trial.fault_of_kernels(case.layer, requests, one_pass.answers_of) is None


def test_an_answer_that_is_nan_is_wrong_and_a_block_that_is_absent_is_not():
    right = torch.tensor([0.5, float("nan"), 0.25])
    assert trial.fault(Pooled(3), right.clone(), right) is None
    for given in (torch.tensor([float("nan")] * 3), torch.tensor([0.5, 0.1, 0.25])):
        assert "Pooled was NaN where" in trial.fault(Pooled(3), given, right)


@pytest.mark.parametrize(("request_class", "words"), [
    (Linear, "Linear was [0-9.]+ off"), (Strongest, "Strongest was another in [0-9]+% of rows"),
    (Mass, "Mass was [0-9.]+ off"), (Band, "Band was [0-9.]+ off"),
    (Pooled, "Pooled was ([0-9.]+ off|NaN where it .* is NaN)"),
])  # fmt: skip
def test_kernels_that_are_wrong_are_refused(rng, monkeypatch, request_class, words):
    case = make_case(rng, "causal", "plain", **SMALL)
    asked = [request for request in ask(rng, case) if type(request) is request_class]
    monkeypatch.setattr(trial, "TRIED", {})
    monkeypatch.setattr(launches, "launch", spoiled(launches.launch))
    message = (
        f"The kernels of the pass give wrong numbers on cpu: on trial {words}. Set MANYHEADS_PASS=tiles to do "
        "without them."
    )
    refuses(ModelError, message, prepare(case.tokens, asked)._run, case.layer, "auto", trial=True)
