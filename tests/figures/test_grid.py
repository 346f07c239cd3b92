"""The grid of all heads' maps: readable, framed and coloured by role, with bare paper where nothing is visible."""

from collections import Counter

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from manyheads.errors import HeadError
from manyheads.figures import maps as grid
from manyheads.figures import ramp, save_grid
from manyheads.figures.maps import scaled
from manyheads.figures.palette import PAPER
from manyheads.figures.paper import flow
from manyheads.heads import Head
from manyheads.roles import HeadRole
from manyheads.statistics import pooled_maps
from tests.figures.pictures import EVIDENCE, KINDS, assert_is_file_of, maps_of, pixels, rgb, roles_of, sites, words_in


@pytest.mark.turns(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(2)
def test_a_grid_is_a_real_file_of_its_kind(tmp_path, kind):
    maps = maps_of(sites(3, 3), causal=True)
    path = tmp_path / f"grid{kind}"
    save_grid(maps, roles_of(maps, "previous token"), path, title="two layers of three")
    assert_is_file_of(kind, path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.turns(4)
def test_a_grid_of_minilm_is_readable_at_1600_pixels(tmp_path, minilm):
    maps = pooled_maps(minilm, "The cat sat on the mat, and the dog sat on the cat.")
    save_grid(maps, roles_of(maps, "local", "unlabelled"), tmp_path / "grid.png", title="minilm")
    height, width, _ = pixels(tmp_path / "grid.png").shape
    assert 1_200 < width <= 1_600 and 700 < height < 1_300
    assert grid._Layout.of(maps, None).side >= 90


@pytest.mark.parametrize(
    ("heads", "size", "widest"), [((3, 3), 8, 800), ((12,) * 6, 32, 1_600), ((32,) * 32, 32, 2_600), ((5,), 64, 1_200)]
)
def test_blocks_of_a_cell_are_alike(heads, size, widest):
    layout = grid._Layout.of(maps_of(sites(*heads), size), None)
    assert layout.side % size == 0 and 60 <= layout.side <= 216 and layout.width <= widest


@pytest.mark.slow
def test_hundreds_of_heads_fit_one_picture(tmp_path):
    maps = maps_of(sites(*(32,) * 8, kv=8), 16, causal=True)
    save_grid(maps, roles_of(maps, "sink <s>", "offset -3", "unlabelled"), tmp_path / "big.png", title="8 x 32")
    height, width, _ = pixels(tmp_path / "big.png").shape
    assert 2_000 < width < 2_600 and 700 < height < 1_000
    assert grid._Layout.of(maps_of(sites(*(32,) * 32)), None).height < 3_300


def test_roles_are_said_in_words_with_their_number_of_heads(tmp_path):
    maps = maps_of(sites(4, 4))
    names = ["previous token", "sink [CLS]", "offset -3", "unlabelled"] + ["local"] * 4
    save_grid(maps, roles_of(maps, *names), tmp_path / "g.svg", title="A model", note="Roles rest on a page.")
    words = Counter(words_in(tmp_path / "g.svg"))
    for word in (*names, "A model", "1 head", "4 heads", "L0", "L1", "H3", "L1H2"):
        assert words[word] >= 1, word
    assert words["local"] == 1 + 4  # the legend, and above each cell
    assert words["unlabelled"] == 1  # the legend alone: an empty place says it above a cell
    assert words["8 heads, 6 x 6 each: mean of 16 x 16 cells. 96 tokens read. Roles rest on a page."] == 1
    assert any("each map's own 99th percentile" in word for word in words)
    assert any("not what is lost without it" in word for word in words)


def test_without_roles_there_is_no_legend(tmp_path):
    save_grid(maps_of(sites(2)), None, tmp_path / "g.svg", title="plain")
    words = words_in(tmp_path / "g.svg")
    assert "2 heads" not in words and "unlabelled" not in words and "L0H1" in words


def test_stacks_stand_below_each_other_with_their_names_and_groups(tmp_path):
    both = (*sites(2, 2, stack="encoder"), *sites(6, stack="decoder", kv=3))
    maps = maps_of(both)
    save_grid(maps, roles_of(maps, "broad"), tmp_path / "g.svg", title="two stacks")
    words = words_in(tmp_path / "g.svg")
    assert words.index("encoder") < words.index("L1H1") < words.index("decoder") < words.index("L0H5")
    assert grid.GROUPS in words and grid.BARE not in words
    one = maps_of(sites(2, 2))
    save_grid(one, None, tmp_path / "one.svg", title="one stack")
    assert grid.GROUPS not in words_in(tmp_path / "one.svg")


def test_a_role_frames_its_cell_in_its_colour(tmp_path):
    maps = maps_of(sites(3))
    save_grid(maps, roles_of(maps, "induction", "sink <s>", "unlabelled"), tmp_path / "g.png", title="t")
    image, layout = (
        pixels(tmp_path / "g.png"),
        grid._Layout.of(maps, {r.head: r for r in roles_of(maps, "a", "b", "c")}),
    )
    x, y = grid.MARGIN + grid.RULER, layout.top + grid.HEADER + grid.NAME_HEIGHT
    pitch = layout.side + layout.gap
    for index, colour in enumerate(["#CC79A7", "#6F6F6F", grid.HAIRLINE]):
        assert_array_equal(image[y + layout.side // 2, x + index * pitch - 1], rgb(colour))


def test_absent_cells_are_bare_paper_and_zero_is_not(tmp_path):
    maps = maps_of(sites(1), size=4, causal=True)
    maps.maps[0, 3] = [0, 0.5, 0, 0.5]
    save_grid(maps, None, tmp_path / "g.png", title="t")
    image, layout = pixels(tmp_path / "g.png"), grid._Layout.of(maps, None)
    x, y = grid.MARGIN + grid.RULER, layout.top + grid.HEADER + grid.NAME_HEIGHT
    block = layout.side // 4
    shown = image[y : y + layout.side, x : x + layout.side].reshape(4, block, 4, block, 3).swapaxes(1, 2)
    first = shown[:, :, 0, 0]
    assert (shown == first[:, :, None, None]).all(), "a block is one colour"
    assert_array_equal(first[0, 1], rgb(PAPER))
    assert_array_equal(first[3, 0], (ramp()[0] * 255).round())
    assert np.abs(first[3, 0] - rgb(PAPER)).max() > 10
    assert_array_equal(first[0, 0], (ramp()[-1] * 255).round())
    save_grid(maps, None, tmp_path / "g.svg", title="t")
    assert grid.BARE in words_in(tmp_path / "g.svg")


def test_each_map_has_its_own_scale_and_an_even_one_stays_pale():
    sharp = np.full((20, 20), 0.001, np.float32)
    np.fill_diagonal(sharp, 0.9)
    assert scaled(sharp)[3, 3] == 1 and scaled(sharp)[3, 4] < 0.05
    assert_allclose(scaled(sharp / 100), scaled(sharp), atol=1e-6)
    even = np.full((20, 20), 0.05, np.float32)
    assert_allclose(scaled(even), np.sqrt(1 / grid.MIN_TOP), atol=1e-6)
    assert_array_equal(scaled(even * 0), np.zeros((20, 20)))
    assert np.isnan(scaled(even * np.nan)).all()


def test_a_role_of_a_head_without_a_map_is_an_error(tmp_path):
    maps = maps_of(sites(2))
    with pytest.raises(HeadError, match=r"roles are given for L5H0, of which there is no map"):
        save_grid(maps, [HeadRole(Head("", 5, 0), "local", EVIDENCE)], tmp_path / "g.png", title="t")


def test_legend_entries_flow_onto_lines():
    assert flow([40, 40, 40, 200, 10], room=100, gap=10) == [(0, 0.0), (0, 50.0), (1, 0.0), (2, 0.0), (3, 0.0)]
