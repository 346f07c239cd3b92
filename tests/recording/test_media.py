"""Where positions lie in a picture or a sound: names, places and pixels agree, and survive JSON."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyheads.errors import RecordingError, ShapeError
from manyheads.recording import Recording, Tokens
from manyheads.recording.media import Frames, Grid, as_json, frames_of, grid_of

GRID = Grid(3, 5, (24, 40), (8, 8), (8, 8), ("[CLS]", "reg1"), ("detection1",))
FRAMES = Frames(62, 0.02, 0.025, (1.25, 0.5625))

grids = st.builds(
    lambda rows, columns, height, width, before, after: Grid(
        rows,
        columns,
        (rows * height, columns * width),
        (height, width),
        (height, width),
        tuple(f"a{i}" for i in range(before)),
        tuple(f"b{i}" for i in range(after)),
    ),
    *(st.integers(1, 9) for _ in range(4)),
    *(st.integers(0, 4) for _ in range(2)),
)


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
def test_laid_out_values_stand_where_their_names_say(grid):
    values = torch.arange(2 * grid.num_positions).reshape(2, -1)
    laid = grid.laid_out(values)
    assert laid.shape == (2, grid.rows, grid.columns)
    for row in range(grid.rows):
        for column in range(grid.columns):
            assert laid[:, row, column].tolist() == values[:, grid.position(row, column)].tolist()


@given(grids)
def test_a_grid_comes_back_from_json_as_it_was(grid):
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


def test_names_say_row_and_column_and_the_moment():
    assert GRID.names[:4] == ("[CLS]", "reg1", "r0c0", "r0c1") and GRID.names[-2:] == ("r2c4", "detection1")
    assert FRAMES.names[62 - 1] == "1.22s" and FRAMES.start(3) == pytest.approx(0.06)


def test_what_is_not_there_is_refused_in_a_line():
    with pytest.raises(
        ShapeError, match="there is no patch 3,0: the picture has 3 rows and 5 columns of patches, both"
    ):
        GRID.position(3, 0)
    with pytest.raises(ShapeError, match="there is no patch 0,5"):
        GRID.pixels(0, 5)
    with pytest.raises(ShapeError, match="position=18 is not in this grid: it has 18, counted from 0"):
        GRID.place(18)
    with pytest.raises(ShapeError, match=r"\(2, 17\) does not end in the grid's 18 positions"):
        GRID.laid_out(torch.zeros(2, 17))
    with pytest.raises(ShapeError, match="frame=62 is not in this recording: it has 62 frames"):
        FRAMES.start(62)
    with pytest.raises(ShapeError, match=r"seconds=1.3 is not in this recording: its frames cover 0 to 1.24 s"):
        FRAMES.at(1.3)


def test_a_recording_without_a_grid_says_so_and_why():
    with pytest.raises(RecordingError, match=r"no grid of patches: record\(lm, image=\.\.\.\) and audio=.* make them"):
        grid_of(recorded())
    with pytest.raises(RecordingError, match="no frames of time: it dreams"):
        frames_of(recorded(frames=as_json("it dreams")))
