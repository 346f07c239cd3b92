"""What a layer record answers is what the whole map says: windows, cells, projections, tiles, column sums.

The map comes from `reference.attend`, text by text, from q, k and the mask; the record sees q, k and lse alone.
"""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyheads import reference
from manyheads.attention import Mask, Rule, attend
from manyheads.errors import HeadError, RecordingError, ShapeError, WindowError
from manyheads.heads import Head
from manyheads.recording import LayerRecord, Recording, record_tensors
from manyheads.recording import layer as records
from manyheads.recording.exact_map import Received
from manyheads.recording.exact_map.requests import Mass
from manyheads.recording.media import Frames, as_json, frames_of, grid_of
from manyheads.spec import Site
from manyheads.texts import Tokens
from manyheads.texts.tokens import Grid
from tests.recording.passing import RECORDED, SCALE, D, G, H, assert_near, make_record
from tests.refusals import refuses

MASKS = ("bidirectional", "causal", "window", "holes", "head by head", "dead rows")
OPTIONS = ("plain", "softcap", "sinks", "bias", "shared bias", "everything")


every_mask = pytest.mark.parametrize("kind", MASKS)
every_rule = pytest.mark.parametrize("option", OPTIONS)


# ------------------------------------------------------------------------------------------------ the answers are exact


@every_mask
@every_rule
def test_weights_are_the_map_of_each_text(rng, kind, option):
    case = make_record(rng, kind, option)
    for text, full in case.each():
        assert_near(case.layer.weights(text=text), full)
        assert_near(case.layer.weights(head=4, text=text), full[4])


@every_mask
def test_a_window_of_weights_is_the_map_there(rng, kind):
    case = make_record(rng, kind, "everything")
    for text, full in case.each():
        for _ in range(8):
            rows, keys = (slice(*sorted(rng.integers(0, full.shape[1] + 3, 2).tolist())) for _ in range(2))
            assert_near(case.layer.weights(queries=rows, keys=keys, text=text), full[:, rows, keys])
        last = slice(-3, None)
        assert_near(case.layer.weights(head=1, queries=last, text=text), full[1, last])


@every_mask
@every_rule
def test_weights_at_chosen_cells_are_the_map_there_and_project_is_the_map_times_features(rng, kind, option):
    case = make_record(rng, kind, option)
    for text, full in case.each():
        rows, keys = (torch.from_numpy(rng.integers(0, full.shape[1], 29)) for _ in range(2))
        assert_near(case.layer.weights_at(rows, keys, text=text), full[:, rows, keys])
    nothing = torch.zeros(0, dtype=torch.long)
    assert case.layer.weights_at(nothing, nothing).shape == (H, 0)
    for text, full in case.each():
        features = torch.from_numpy(rng.normal(size=(full.shape[2], 3)))
        assert_near(case.layer.project(features, text=text), full @ features, atol=3e-5)


@pytest.mark.thinned
@every_mask
@every_rule
def test_tiles_together_are_the_map(rng, kind, option):
    case = make_record(rng, kind, option)
    for size in (1, 4, 256):
        for text, full in case.each():
            built = torch.zeros_like(full)
            for rows, keys, weights in case.layer.tiles(text=text, size=size):
                assert (weights.shape[1], weights.shape[2]) == (rows.stop - rows.start, keys.stop - keys.start)
                built[:, rows, keys] += weights  # a tile given twice would show
            assert_near(built, full)


def test_tiles_that_nobody_sees_are_left_out(rng):
    case = make_record(rng, "causal", lengths=(16,))
    assert len(list(case.layer.tiles(size=4))) == 10


@every_mask
@every_rule
def test_received_is_the_sum_of_each_column(rng, kind, option):
    case = make_record(rng, kind, option)
    received = case.layer.received()
    assert received.shape == (len(RECORDED), H, max(RECORDED))
    for text, full in case.each():
        assert_near(received[text, :, : full.shape[2]], full.sum(1), atol=1e-4)
        assert not received[text, :, full.shape[2] :].any()


def test_reduce_answers_every_request_of_one_pass(rng):
    case = make_record(rng, "causal", "sinks")
    got = case.layer.reduce([Mass(), Received()])
    for text, full in case.each():
        assert_near(got[Mass()][text, :, : full.shape[1]], full.sum(2))
    assert torch.equal(got[Received()], case.layer.received())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes_give_the_map_of_their_own_q_and_k(rng, dtype):
    """In half precision, too: the lse came from the same rounded q and k."""
    case = make_record(rng, "causal", "softcap", dtype=dtype)
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
        case = make_record(rng, "causal", option)
        rule, plain = case.layer.rule, Rule(SCALE)
        if option == "sinks":
            features = torch.ones(RECORDED[0], 1)
            got, forgot = (replace(case.layer, rule=each).project(features) for each in (rule, plain))
        else:
            got, forgot = (replace(case.layer, rule=each).weights() for each in (rule, plain))
        assert (got - forgot).abs().max() > 0.01, option


# ---------------------------------------------------------------------------------------------- cross-attention, caches


@pytest.mark.parametrize("keys", [(19, 6, 11, 4), (3, 6, 2, 4)], ids=["more keys", "fewer keys"])
def test_cross_attention_gives_its_whole_map(rng, keys):
    case = make_record(rng, "bidirectional", "plain", keys=keys)
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
    layer = make_record(rng, lengths=(13,)).layer
    monkeypatch.setattr(records, "WINDOW_BYTES", 4 * H * 13 * 5)
    assert layer.weights(keys=slice(0, 5)).shape == (H, 13, 5)
    assert layer.weights(head=2).shape == (13, 13)
    message = r"6 heads x 13 x 6 weights is .*: ask for fewer queries=, keys= or one head="
    refuses(WindowError, message, layer.weights, keys=slice(0, 6))


def test_a_window_of_a_long_text_is_refused_before_it_is_computed():
    """16 heads of a text of 100,000: 640 GB. What fits is still given, exactly."""
    length = 100_000
    tokens = Tokens.unnamed((length,))
    q, lse = torch.zeros(1, 16, length, 1), torch.full((1, 16, length), float(np.log(length)))
    mask, site = Mask.full(length, length), Site("", 0, "m", 16, 16, 1, 1, causal=False)
    layer = LayerRecord(site, q, q, None, lse, mask, Rule(1.0), tokens.lengths, tokens)
    refuses(WindowError, r"16 heads x 100000 x 100000 weights is 640\.0 GB, above the limit of 1 GB", layer.weights)
    refuses(MemoryError, r"1 heads x 100000 x 100000 weights is 40\.0 GB", layer.weights, head=3)
    assert_near(
        layer.weights(head=3, queries=slice(99_990, None), keys=slice(-7, None)) * length, torch.ones(10, 7), 1e-2
    )


def test_what_is_not_there_is_said(rng):
    layer = make_record(rng).layer
    refuses(ShapeError, r"^head=6 is not in layer 3: it has heads 0 to 5\.$", layer.weights, head=6)
    refuses(ShapeError, "head=-1 is not in layer 3", layer.weights, head=-1)
    refuses(ShapeError, r"^text=4 is not in this recording: it holds 4 texts, counted from 0\.$", layer.weights, text=4)
    with pytest.raises(ShapeError, match=r"a window has step 1, but slice\(0, 9, 2\) has step 2: slice the result"):
        layer.weights(queries=slice(0, 9, 2))
    message = (
        r"^queries is a list, and a window is a slice: give queries=slice\(1, 50\), or read cells .* by weights_at"
    )
    refuses(ShapeError, message, layer.weights, queries=[1, 5])
    refuses(ShapeError, r"^keys is a int, and a window is a slice: give keys=slice", layer.weights, keys=1)
    refuses(ShapeError, r"^text='a' is not in this recording: it holds 4 texts", layer.weights, text="a")
    for head in ("L3H4", Head("", 3, 4), "4", np.int64(4)):
        message = rf"^head={re.escape(repr(head))}: a layer's heads are whole numbers: give head=4\.$"
        refuses(ShapeError, message, layer.weights, head=head)
    refuses(ShapeError, r"^head='L2H4' is not in layer 3: it has heads 0 to 5\.$", layer.weights, head="L2H4")
    with pytest.raises(ShapeError, match=r"keys run from 2 to 7, but text 1 has 7 of them\."):
        layer.weights_at(torch.tensor([0, 1]), torch.tensor([2, 7]), text=1)
    with pytest.raises(ShapeError, match=r"queries run from -1 to 3, but text 0 has 13 of them\."):
        layer.weights_at(torch.tensor([3, -1]), torch.tensor([2, 7]))
    with pytest.raises(ShapeError, match=r"features has 12 rows, but text 0 has 13 keys: give one row a key\."):
        layer.project(torch.zeros(12, 2))


def test_texts_are_counted_from_the_end_too(rng):
    case = make_record(rng, lengths=(13, 7))
    assert_near(case.layer.weights(text=-1), case.maps[-1])


@pytest.mark.parametrize("ask", ["weights_at", "project", "tiles"])
def test_every_question_says_when_there_is_no_such_text(rng, ask):
    layer, one = make_record(rng).layer, torch.zeros(1, dtype=torch.long)
    questions = {
        "weights_at": lambda: layer.weights_at(one, one, text=4),
        "project": lambda: layer.project(torch.zeros(13, 1), text=4),
        "tiles": lambda: list(layer.tiles(text=4)),
    }
    refuses(ShapeError, "text=4 is not in this recording", questions[ask])


# ----------------------------------------------------------------------------------------------------------- recordings


def test_a_recording_gives_the_layers_of_its_only_stack(rng):
    layer = make_record(rng).layer
    other = replace(layer, site=replace(layer.site, layer=5))
    recording = Recording({"": [layer, other]}, layer.tokens)
    assert (
        layer.site.layer == 3 and recording.layers[3] is layer and recording.layers[5] is recording.layers[-1] is other
    )
    assert list(recording.layers) == [layer, other] == recording.layers[:] and len(recording.layers) == 2
    assert other in recording.layers and recording.layers.numbers == (3, 5)
    assert recording.num_bytes == 2 * 4 * (4 * H * 17 * D + 4 * G * 17 * D + 4 * H * 17)
    assert repr(recording).startswith("Recording(layers: 2; 4 texts of 1-17 tokens, 0.0 MB")


def test_layer_that_is_asked_for_by_name_says_to_give_its_number(rng, unchecked_types):
    layer = make_record(rng).layer
    layers = Recording({"": [layer]}, layer.tokens).layers
    for name, number in (("L3", 3), ("L12H0", 12), ("decoder:L5", 5), ("last", 3), (3.0, 3), (None, 3)):
        message = rf"^layers\[{re.escape(repr(name))}\]: a layer is found by its number: write layers\[{number}\]\.$"
        refuses(HeadError, message, layers.__getitem__, name)
    assert layers[np.int64(3)] is layer


def test_a_layer_prints_its_sizes_one_of_a_kind_without_an_s(fresh):
    q = torch.randn(1, 1, 1, 6, generator=fresh)
    (one,) = record_tensors([q], [q], lengths=[1]).layers
    assert repr(one).endswith(": 1 head; 1 text of up to 1 token)")
    (more,) = record_tensors([q.expand(2, 3, 9, 6)], [q.expand(2, 3, 9, 6)], lengths=[9, 4]).layers
    assert repr(more).endswith(": 3 heads; 2 texts of up to 9 tokens)")


@pytest.mark.parametrize("names", [("encoder", "cross"), ()], ids=str)
def test_a_recording_of_several_stacks_or_none_says_so(rng, names):
    layer = make_record(rng).layer
    recording = Recording({name: [layer] for name in names}, layer.tokens)
    with pytest.raises(
        RecordingError, match=rf"this recording has {len(names)} stacks of layers \({', '.join(names)}\): say"
    ):
        _ = recording.layers
    if names:
        assert recording.stacks["cross"][3] is layer
        assert repr(recording).startswith("Recording(encoder: 1, cross: 1; ")


# ================================================================================================== pictures and sounds
# Where positions lie in a picture or a sound: names, places and pixels agree, and survive JSON.

GRID = Grid(3, 5, (24, 40), (8, 8), (8, 8), ("[CLS]", "reg1"), ("detection1",))
FRAMES = Frames(62, 0.02, 0.025, (1.25, 0.5625))

grids = st.builds(
    lambda rows, columns, height, width, before, after: Grid(
        rows, columns, (rows * height, columns * width), (height, width), (height, width),
        tuple(f"a{i}" for i in range(before)), tuple(f"b{i}" for i in range(after)),
    ),
    *(st.integers(1, 9) for _ in range(4)), *(st.integers(0, 4) for _ in range(2)),
)  # fmt: skip


def recorded(**provenance):
    return Recording({}, Tokens.unnamed([1]), json.loads(json.dumps(provenance)))


@given(grids)
def test_place_and_position_undo_each_other_and_names_are_one_each(grid):
    names = grid.names
    assert len(names) == len(set(names)) == grid.num_positions
    for position, name in enumerate(names):
        place = grid.place(position)
        if place is None:
            assert grid.others[name] == position
        else:
            assert grid.position(*place) == position and name == f"r{place[0]}c{place[1]}"
    places = [grid.place(at) for at in range(grid.num_positions)[grid.patches]]
    assert places == [(row, column) for row in range(grid.rows) for column in range(grid.columns)]


@given(grids)
def test_patches_that_do_not_overlap_cover_every_pixel_once(grid):
    covered = torch.zeros(grid.picture, dtype=torch.long)
    for row in range(grid.rows):
        for column in range(grid.columns):
            covered[grid.pixels(row, column)] += 1
    assert bool((covered == 1).all())


@given(grids)
def test_laid_out_values_stand_where_their_names_say_and_the_grid_comes_back_from_json(grid):
    values = torch.arange(2 * grid.num_positions).reshape(2, -1)
    laid = grid.laid_out(values)
    assert laid.shape == (2, grid.rows, grid.columns)
    for row in range(grid.rows):
        for column in range(grid.columns):
            assert laid[:, row, column].tolist() == values[:, grid.position(row, column)].tolist()
    rec = recorded(grid=as_json(grid))
    assert grid_of(rec) == rec.grid == grid


def test_frames_come_back_from_json_as_they_were():
    rec = recorded(frames=as_json(FRAMES))
    assert frames_of(rec) == rec.frames == FRAMES


@given(st.floats(0.001, 1), st.integers(1, 2000))
def test_a_moment_is_in_the_frame_that_began_last(seconds, count):
    frames = Frames(count, seconds, seconds, (1.0,))
    for frame in {0, count // 2, count - 1}:
        assert frames.at(frames.start(frame)) == frame
        assert frames.at(frames.start(frame) + 0.9 * seconds) == frame


def test_a_grid_that_is_not_there_is_said_and_why_and_names_say_row_column_and_moment():
    assert GRID.names[:4] == ("[CLS]", "reg1", "r0c0", "r0c1") and GRID.names[-2:] == ("r2c4", "detection1")
    assert FRAMES.names[62 - 1] == "1.22s" and FRAMES.start(3) == pytest.approx(0.06)
    with pytest.raises(RecordingError, match=r"no grid of patches: record\(lm, mh.Inputs\(image=.* makes them"):
        grid_of(recorded())
    refuses(RecordingError, "no frames of time: it dreams", frames_of, recorded(frames=as_json("it dreams")))


def test_what_is_not_there_is_refused_in_a_line():
    message = "there is no patch 3,0: the picture has 3 rows and 5 columns of patches, both"
    refuses(ShapeError, message, GRID.position, 3, 0)
    refuses(ShapeError, "there is no patch 0,5", GRID.pixels, 0, 5)
    refuses(ShapeError, "position=18 is not in this grid: it has 18, counted from 0", GRID.place, 18)
    refuses(ShapeError, r"\(2, 17\) does not end in the grid's 18 positions", GRID.laid_out, torch.zeros(2, 17))
    refuses(ShapeError, "frame=62 is not in this recording: it has 62 frames", FRAMES.start, 62)
    refuses(ShapeError, r"seconds=1.3 is not in this recording: its frames cover 0 to 1.24 s", FRAMES.at, 1.3)
