"""What a layer record answers is what the whole map says: windows, cells, projections, tiles, column sums.

The map comes from `reference.attend`, text by text, from q, k and the mask; the record sees q, k and lse alone.
Inputs are drawn afresh for each commit. A failure prints its seed: MANYHEADS_SEED=... repeats it.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from manyheads import reference
from manyheads.errors import RecordingError, ShapeError, WindowError
from manyheads.nn import Mask, Rule, attend
from manyheads.recording import LayerRecord, Received, Recording, Tokens
from manyheads.recording import layer as records
from manyheads.recording.exact_map.requests import Mass
from manyheads.spec import Site
from tests.recording.one_layer import LENGTHS, SCALE, D, G, H, assert_near, make_case

MASKS = ("bidirectional", "causal", "window", "holes", "head by head", "dead rows")
OPTIONS = ("plain", "softcap", "sinks", "bias", "shared bias", "everything")


every_mask = pytest.mark.parametrize("kind", MASKS)
every_rule = pytest.mark.parametrize("option", OPTIONS)


# ------------------------------------------------------------------------------------------------ the answers are exact


@every_mask
@every_rule
@pytest.mark.sampled(12)
def test_weights_are_the_map_of_each_text(rng, kind, option):
    case = make_case(rng, kind, option)
    for text, full in case.each():
        assert_near(case.layer.weights(text=text), full)
        assert_near(case.layer.weights(head=4, text=text), full[4])


@every_mask
@pytest.mark.sampled(3)
def test_a_window_of_weights_is_the_map_there(rng, kind):
    case = make_case(rng, kind, "everything")
    for text, full in case.each():
        for _ in range(8):
            rows, keys = (slice(*sorted(rng.integers(0, full.shape[1] + 3, 2).tolist())) for _ in range(2))
            assert_near(case.layer.weights(queries=rows, keys=keys, text=text), full[:, rows, keys])
        last = slice(-3, None)
        assert_near(case.layer.weights(head=1, queries=last, text=text), full[1, last])


@every_mask
@every_rule
@pytest.mark.sampled(12)
def test_weights_at_chosen_cells_are_the_map_there(rng, kind, option):
    case = make_case(rng, kind, option)
    for text, full in case.each():
        rows, keys = (torch.from_numpy(rng.integers(0, full.shape[1], 29)) for _ in range(2))
        assert_near(case.layer.weights_at(rows, keys, text=text), full[:, rows, keys])
    nothing = torch.zeros(0, dtype=torch.long)
    assert case.layer.weights_at(nothing, nothing).shape == (H, 0)


@every_mask
@every_rule
@pytest.mark.sampled(12)
def test_project_is_the_map_times_features(rng, kind, option):
    case = make_case(rng, kind, option)
    for text, full in case.each():
        features = torch.from_numpy(rng.normal(size=(full.shape[2], 3)))
        assert_near(case.layer.project(features, text=text), full @ features, atol=3e-5)


@pytest.mark.turns(4)
@pytest.mark.thinned
@every_mask
@every_rule
@pytest.mark.sampled(2)
def test_tiles_together_are_the_map(rng, kind, option):
    case = make_case(rng, kind, option)
    for size in (1, 4, 256):
        for text, full in case.each():
            built = torch.zeros_like(full)
            for rows, keys, weights in case.layer.tiles(text=text, size=size):
                assert (weights.shape[1], weights.shape[2]) == (rows.stop - rows.start, keys.stop - keys.start)
                built[:, rows, keys] += weights  # a tile given twice would show
            assert_near(built, full)


def test_tiles_that_nobody_sees_are_left_out(rng):
    case = make_case(rng, "causal", lengths=(16,))
    assert len(list(case.layer.tiles(size=4))) == 10


@every_mask
@every_rule
@pytest.mark.sampled(12)
def test_received_is_the_sum_of_each_column(rng, kind, option):
    case = make_case(rng, kind, option)
    received = case.layer.received()
    assert received.shape == (len(LENGTHS), H, max(LENGTHS))
    for text, full in case.each():
        assert_near(received[text, :, : full.shape[2]], full.sum(1), atol=1e-4)
        assert not received[text, :, full.shape[2] :].any()


def test_reduce_answers_every_request_of_one_pass(rng):
    case = make_case(rng, "causal", "sinks")
    got = case.layer.reduce([Mass(), Received()])
    for text, full in case.each():
        assert_near(got[Mass()][text, :, : full.shape[1]], full.sum(2))
    assert torch.equal(got[Received()], case.layer.received())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes_give_the_map_of_their_own_q_and_k(rng, dtype):
    """In half precision, too: the lse came from the same rounded q and k."""
    case = make_case(rng, "causal", "softcap", dtype=dtype)
    for text, full in case.each():
        features = torch.from_numpy(rng.normal(size=(full.shape[2], 3)))
        everywhere = torch.cartesian_prod(torch.arange(full.shape[1]), torch.arange(full.shape[2]))
        assert_near(case.layer.weights(text=text), full)
        assert_near(case.layer.weights_at(*everywhere.T, text=text).view_as(full), full)
        assert_near(case.layer.project(features, text=text), full @ features, atol=3e-5)


@pytest.mark.parametrize("kind, offset", [("full", None), ("causal", 0), ("causal", None)])
def test_a_mask_that_all_texts_share_serves_each(rng, kind, offset):
    tokens = Tokens.unnamed((9, 9))
    q, k = torch.randn(2, H, 9, D), torch.randn(2, G, 9, D)
    mask = Mask.full(9, 9) if kind == "full" else Mask.causal(9, 9, offset=offset)
    lse = attend(q, k, k, mask=mask, scale=SCALE).lse
    site = Site("", 0, "m", H, G, D, D, causal=kind == "causal")
    layer = LayerRecord(site, q, k, None, lse, mask, Rule(SCALE), tokens.lengths, tokens)
    want = reference.attend(q.numpy(), k.numpy(), k.numpy(), scale=SCALE, causal=kind == "causal").weights
    for text in range(2):
        assert_near(layer.weights(text=text), want[text])
        assert_near(layer.project(torch.eye(9), text=text), want[text])
        assert_near(sum(tile.sum(1).sum(1) for _, _, tile in layer.tiles(text, size=4)), want[text].sum((1, 2)))


def test_the_options_of_a_rule_matter(rng):
    """A record that forgot one of them would give another map."""
    for option in OPTIONS[1:]:
        case = make_case(rng, "causal", option)
        rule, plain = case.layer.rule, Rule(SCALE)
        if option == "sinks":
            features = torch.ones(LENGTHS[0], 1)
            got, forgot = (replace(case.layer, rule=each).project(features) for each in (rule, plain))
        else:
            got, forgot = (replace(case.layer, rule=each).weights() for each in (rule, plain))
        assert (got - forgot).abs().max() > 0.01, option


# ---------------------------------------------------------------------------------------------- cross-attention, caches


@pytest.mark.parametrize("keys", [(19, 6, 11, 4), (3, 6, 2, 4)], ids=["more keys", "fewer keys"])
def test_cross_attention_gives_its_whole_map(rng, keys):
    case = make_case(rng, "bidirectional", "plain", keys=keys)
    for text, full in case.each():
        assert_near(case.layer.weights(text=text)[..., : full.shape[2]], full)
        rows, columns = torch.tensor([0, full.shape[1] - 1]), torch.tensor([0, full.shape[2] - 1])
        assert_near(case.layer.weights_at(rows, columns, text=text), full[:, rows, columns])
        built = torch.zeros(H, full.shape[1], max(keys), dtype=torch.float64)
        for at, columns, weights in case.layer.tiles(text, size=4):
            built[:, at, columns] += weights
        assert_near(built[..., : full.shape[2]], full)


# --------------------------------------------------------------------------------------------------------------- limits


def test_a_window_over_the_limit_is_refused_and_one_at_it_is_given(rng, monkeypatch):
    layer = make_case(rng, lengths=(13,)).layer
    monkeypatch.setattr(records, "WINDOW_BYTES", 4 * H * 13 * 5)
    assert layer.weights(keys=slice(0, 5)).shape == (H, 13, 5)
    assert layer.weights(head=2).shape == (13, 13)
    with pytest.raises(
        WindowError, match=r"6 heads x 13 x 6 weights is .*: ask for fewer queries=, keys= or one head="
    ):
        layer.weights(keys=slice(0, 6))


def test_a_window_of_a_long_text_is_refused_before_it_is_computed():
    """16 heads of a text of 100,000: 640 GB. What fits is still given, exactly."""
    length = 100_000
    tokens = Tokens.unnamed((length,))
    q, lse = torch.zeros(1, 16, length, 1), torch.full((1, 16, length), float(np.log(length)))
    mask, site = Mask.full(length, length), Site("", 0, "m", 16, 16, 1, 1, causal=False)
    layer = LayerRecord(site, q, q, None, lse, mask, Rule(1.0), tokens.lengths, tokens)
    with pytest.raises(WindowError, match=r"16 heads x 100000 x 100000 weights is 640\.0 GB, above the limit of 1 GB"):
        layer.weights()
    with pytest.raises(MemoryError, match=r"1 heads x 100000 x 100000 weights is 40\.0 GB"):
        layer.weights(head=3)
    assert_near(
        layer.weights(head=3, queries=slice(99_990, None), keys=slice(-7, None)) * length, torch.ones(10, 7), 1e-2
    )


def test_what_is_not_there_is_said(rng):
    layer = make_case(rng).layer
    with pytest.raises(ShapeError, match=r"^head=6 is not in layer 3: it has heads 0 to 5\.$"):
        layer.weights(head=6)
    with pytest.raises(ShapeError, match="head=-1 is not in layer 3"):
        layer.weights(head=-1)
    with pytest.raises(ShapeError, match=r"^text=4 is not in this recording: it holds 4 texts, counted from 0\.$"):
        layer.weights(text=4)
    with pytest.raises(ShapeError, match=r"a window has step 1, but slice\(0, 9, 2\) has step 2: slice the result"):
        layer.weights(queries=slice(0, 9, 2))
    with pytest.raises(ShapeError, match=r"keys run from 2 to 7, but text 1 has 7 of them\."):
        layer.weights_at(torch.tensor([0, 1]), torch.tensor([2, 7]), text=1)
    with pytest.raises(ShapeError, match=r"queries run from -1 to 3, but text 0 has 13 of them\."):
        layer.weights_at(torch.tensor([3, -1]), torch.tensor([2, 7]))
    with pytest.raises(ShapeError, match=r"features has 12 rows, but text 0 has 13 keys: give one row a key\."):
        layer.project(torch.zeros(12, 2))


def test_texts_are_counted_from_the_end_too(rng):
    case = make_case(rng, lengths=(13, 7))
    assert_near(case.layer.weights(text=-1), case.maps[-1])


@pytest.mark.parametrize("ask", ["weights_at", "project", "tiles"])
def test_every_question_says_when_there_is_no_such_text(rng, ask):
    layer, one = make_case(rng).layer, torch.zeros(1, dtype=torch.long)
    questions = {
        "weights_at": lambda: layer.weights_at(one, one, text=4),
        "project": lambda: layer.project(torch.zeros(13, 1), text=4),
        "tiles": lambda: list(layer.tiles(text=4)),
    }
    with pytest.raises(ShapeError, match="text=4 is not in this recording"):
        questions[ask]()


# ----------------------------------------------------------------------------------------------------------- recordings


def test_a_recording_gives_the_layers_of_its_only_stack(rng):
    layer = make_case(rng).layer
    recording = Recording({"": [layer, layer]}, layer.tokens)
    assert recording.layers[1] is layer
    assert recording.num_bytes == 2 * 4 * (4 * H * 17 * D + 4 * G * 17 * D + 4 * H * 17)
    assert repr(recording).startswith("Recording(layers: 2; 4 texts of 1-17 tokens, 0.0 MB")


@pytest.mark.parametrize("names", [("encoder", "cross"), ()], ids=str)
def test_a_recording_of_several_stacks_or_none_says_so(rng, names):
    layer = make_case(rng).layer
    recording = Recording({name: [layer] for name in names}, layer.tokens)
    with pytest.raises(
        RecordingError, match=rf"this recording has {len(names)} stacks of layers \({', '.join(names)}\): say"
    ):
        _ = recording.layers
    if names:
        assert recording.stacks["cross"][0] is layer
        assert repr(recording).startswith("Recording(encoder: 1, cross: 1; ")
