"""The picture of a head, and every figure: real files, whole or absent; any token is drawn as it is written."""

import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from numpy.testing import assert_allclose, assert_array_equal

import manyheads as mh
from manyheads.circuits import logit_attribution
from manyheads.errors import FileAccessError, HeadError, ShapeError
from manyheads.figures import attribution, head, ramp, save_attribution, save_grid, save_head
from manyheads.figures import maps as grid
from manyheads.figures.head import block_means
from manyheads.figures.maps import scaled
from manyheads.figures.palette import PAPER
from manyheads.figures.paper import drawable, fitted, flow, text_width
from manyheads.heads import Head
from manyheads.lab.training import Chart, Panel, save_chart
from manyheads.lab.training.charts import Line
from manyheads.measurement import pooled_maps
from manyheads.roles import HeadRole
from manyheads.roles.words import INK
from tests.figures.pictures import (
    EVIDENCE,
    HOSTILE,
    KINDS,
    assert_is_file_of,
    maps_of,
    pixels,
    rgb,
    roles_of,
    sites,
    words_in,
)
from tests.models.eager import draw
from tests.models.tiny import tiny_gpt2, tiny_tokenizer
from tests.refusals import refuses

CHART = Chart("t", "s", (Panel("p", (Line("", (0.0, 4.0, 9.0), (0.5, 2.0, 1.0)), Line("b", (3.0,), (1.0,), False))),))

# ---------------------------------------------------------------------------------------------------------- a head


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_is_a_real_file_of_its_kind(tmp_path, kind):
    path = tmp_path / f"head{kind}"
    save_head(maps_of(sites(1)).maps[0], list("abcdef"), path, title="L0H0", subtitle="local")
    assert_is_file_of(kind, path)


def test_both_axes_carry_the_words_and_cells_their_weights(tmp_path):
    weights = [[0.75, 0.25, np.nan], [0.004, 0.016, 0.98], [0, 1, 0]]
    save_head(weights, ["the", "cat", "sat"], tmp_path / "h.svg", title="L1H2 of a model", subtitle="next token")
    words = Counter(words_in(tmp_path / "h.svg"))
    assert [words[word] for word in ("the", "cat", "sat")] == [2, 2, 2]
    for said in (".75", ".25", ".02", ".98", "1.00", "weight", "0.5", "L1H2 of a model", "next token", head.BARE):
        assert words[said] == 1, said
    assert words[".00"] == 0


def test_rows_and_keys_may_differ(tmp_path):
    weights = np.full((2, 3), 1 / 3)
    save_head(
        weights, ["a", "b", "c"], tmp_path / "h.svg", title="t", row_labels=["x", "y"], note="mean of 2 x 2 cells"
    )
    words = words_in(tmp_path / "h.svg")
    assert {"a", "b", "c", "x", "y"} <= set(words) and "Cells: mean of 2 x 2 cells." in words
    save_head(weights, None, tmp_path / "h.svg", title="t")
    assert words_in(tmp_path / "h.svg").count("1") == 2  # positions, on both axes


def test_in_a_head_too_absent_is_paper_and_zero_is_not(tmp_path):
    weights = np.array([[1.0, np.nan], [0.0, 1.0]])
    save_head(weights, None, tmp_path / "h.png", title="t")
    image = pixels(tmp_path / "h.png")
    plot = head._Plot.of(weights, None, None, "", head.MARGIN + 30)
    corner = 4  # off the figures in the middle of the cells
    first = image[plot.top + corner :: plot.cell, plot.left + corner :: plot.cell][:2, :2]
    assert_array_equal(first[0, 1], rgb(PAPER))
    assert_array_equal(first[1, 0], (ramp()[0] * 255).round())
    assert_array_equal(first[0, 0], (ramp()[-1] * 255).round())


@pytest.mark.parametrize("count", [5, 60, 300, 1_040])
def test_labels_never_touch_and_name_their_position_where_some_are_left_out(count):
    labels = [f"w{i}" for i in range(count)]
    plot = head._Plot.of(np.full((count, count), 1 / count), labels, labels, "", 70)
    gaps = np.diff(plot.keys.at) * plot.cell
    assert (gaps >= head.LABEL_PITCH).all() and len(plot.keys.at) >= min(count, 40)
    step = plot.keys.at[1]
    assert plot.keys.words[1] == ("w1" if step == 1 else f"{step} w{step}")


def test_a_map_beyond_the_pixels_is_shown_by_means_of_blocks_and_says_so(tmp_path):
    n = 2_100
    weights = np.where(np.tri(n, dtype=bool), 1 / np.arange(1, n + 1)[:, None], np.nan)
    save_head(weights, [f"w{i}" for i in range(n)], tmp_path / "h.svg", title="long")
    words = words_in(tmp_path / "h.svg")
    assert "The map is too large for one pixel a cell: shown by means of 3 x 3." in words
    assert "50 w50" in words and "100 w100" in words


def test_block_means_are_of_the_visible_cells():
    weights = np.random.default_rng(0).random((7, 11))
    weights[:3, 4:] = np.nan
    got = block_means(weights, 3)
    assert got.shape == (3, 4) and np.isnan(got[0, 2:]).all() and not np.isnan(got[1:]).any()
    for row, column in np.argwhere(~np.isnan(got)):
        block = weights[3 * row : 3 * row + 3, 3 * column : 3 * column + 3]
        assert_allclose(got[row, column], np.nanmean(block))


def test_what_is_no_map_is_said(tmp_path):
    path = tmp_path / "h.png"
    for wrong in (np.zeros((2, 3, 4)), np.zeros((0, 3)), 1.0):
        refuses(ShapeError, "give one head's map", save_head, wrong, None, path, title="t")
    with pytest.raises(ShapeError, match=r"labels has 2 words, but the map has 3 keys"):
        save_head(np.eye(3), ["a", "b"], path, title="t")
    with pytest.raises(ShapeError, match=r"row_labels has 1 words, but the map has 3 rows"):
        save_head(np.eye(3), None, path, title="t", row_labels=["a"])
    assert not path.exists()


# ------------------------------------------------------------------------------------------------------- any token


@pytest.mark.thinned(kind=(".svg",))
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_words_are_drawn_and_nothing_else_happens(tmp_path, kind):
    path = tmp_path / f"h{kind}"
    n = len(HOSTILE)
    save_head(np.eye(n), HOSTILE, path, title=" ".join(HOSTILE[:-1]), subtitle=HOSTILE[-1], note=HOSTILE[3])
    assert_is_file_of(kind, path)
    maps = maps_of(sites(2), size=n, tokens=HOSTILE)
    save_grid(maps, roles_of(maps, *HOSTILE[:2]), tmp_path / f"g{kind}", title=HOSTILE[0], note=HOSTILE[3])
    assert_is_file_of(kind, tmp_path / f"g{kind}")
    if kind == ".svg":
        words = words_in(path)
        for kept in ("$x_1^2$", "\\frac{1}{2}", "&amp;", "מ", "a↵b⇥c↵")[:3]:
            assert words.count(kept) == 2, kept
        assert words.count("a↵b⇥c↵") == 2 and words.count("שלום עולם") == 2 and words.count("abc") == 2
        assert max(map(len, words)) < 400


@given(st.text(st.characters(codec=None), max_size=60), st.floats(0, 300))
def test_any_text_fits_where_it_is_put(text, width):
    shown = fitted(text, width, 11, mono=True)
    assert shown == "" or text_width(shown, 11, mono=True) <= width
    assert fitted(text, 1e9, 11) == drawable(text)
    if text:
        ET.fromstring(f"<t>{drawable(text).replace('&', '&amp;').replace('<', '&lt;')}</t>")


# ----------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("save", [
    lambda path: save_grid(maps_of(sites(2)), None, path, title="t"),
    lambda path: save_head(np.eye(3), None, path, title="t"),
    lambda path: save_chart(CHART, path),
], ids=["grid", "head", "chart"])  # fmt: skip
class TestFiles:
    def test_an_unknown_ending_is_an_error_that_lists_the_known(self, tmp_path, save):
        for name in ("figure.jpg", "figure", "figure.html"):
            refuses(FileAccessError, r"cannot tell what kind .* end it in \.png, \.svg, \.pdf", save, tmp_path / name)

    def test_capital_endings_and_plain_strings_will_do(self, tmp_path, save):
        save(str(tmp_path / "figure.PNG"))
        assert_is_file_of(".png", tmp_path / "figure.PNG")

    def test_where_nothing_can_be_written_it_says_so(self, tmp_path, save):
        (tmp_path / "folder.png").mkdir()
        (tmp_path / "file").write_text("")
        words = {
            "missing/figure.png": "its folder does not exist",
            "file/figure.png": "a part of its path is a file",
            "folder.png": "it is a folder. Name a file in it",
        }
        for name, why in words.items():
            refuses(FileAccessError, rf"cannot write .*{name}: {why}", save, tmp_path / name)
        assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder.png"]

    @pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "^C"])
    def test_a_failure_half_way_leaves_what_was_there(self, tmp_path, save, monkeypatch, error):
        path = tmp_path / "figure.png"
        path.write_bytes(b"an earlier figure")

        def half(self, name, **_):
            with open(name, "wb") as out:
                out.write(b"\x89PNG half")
            raise error

        monkeypatch.setattr(Figure, "savefig", half)
        with pytest.raises(FileAccessError if isinstance(error, OSError) else KeyboardInterrupt):
            save(path)
        assert path.read_bytes() == b"an earlier figure" and list(tmp_path.iterdir()) == [path]

    @pytest.mark.thinned
    @pytest.mark.parametrize("kind", KINDS)
    def test_the_same_input_is_the_same_file_whatever_the_users_settings(self, tmp_path, save, kind):
        save(tmp_path / f"a{kind}")
        own = {
            "text.usetex": True, "font.size": 31, "figure.dpi": 37, "savefig.dpi": 41, "figure.autolayout": True,
            "savefig.bbox": "tight", "savefig.transparent": True, "axes.facecolor": "red", "figure.facecolor": "red",
            "svg.fonttype": "path", "pdf.fonttype": 3, "lines.marker": "s", "lines.linestyle": "--", "axes.grid": True,
            "axes.grid.axis": "both", "xtick.top": True, "xtick.major.size": 9, "font.family": "serif",
        }  # fmt: skip
        with matplotlib.rc_context(own):
            before = dict(matplotlib.rcParams)
            save(tmp_path / f"b{kind}")
            assert dict(matplotlib.rcParams) == before
        assert (tmp_path / f"a{kind}").read_bytes() == (tmp_path / f"b{kind}").read_bytes()


@pytest.mark.slow  # processes of its own
def test_pyplot_stays_out_and_the_palette_needs_no_matplotlib():
    lines = (
        "import sys",
        "import manyheads.figures.palette",
        "from manyheads.roles.words import role_style",
        "assert role_style('sink [CLS]').terminal.startswith('#')",
        "assert not {'matplotlib', 'torch'} & set(sys.modules)",
        "import manyheads.roles.words.claim_words, manyheads.roles.claims",
        "assert 'matplotlib' not in sys.modules",
        "import manyheads.figures.maps, manyheads.figures.head",
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


# ================================================================================================ the grid of all heads
# The grid of all heads' maps: readable, framed and coloured by role, with bare paper where nothing is visible.


@pytest.mark.parametrize("kind", KINDS)
def test_a_grid_is_a_real_file_of_its_kind(tmp_path, kind):
    maps = maps_of(sites(3, 3), causal=True)
    path = tmp_path / f"grid{kind}"
    save_grid(maps, roles_of(maps, "previous token"), path, title="two layers of three")
    assert_is_file_of(kind, path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


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


@pytest.mark.slow  # draws 270 maps twice
def test_a_deep_model_stands_in_blocks_and_its_key_value_groups_apart(tmp_path):
    maps = maps_of(sites(*(9,) * 30, kv=3), 14, causal=True)
    layout = grid._Layout.of(maps, {role.head: role for role in roles_of(maps, "unlabelled")})
    assert layout.blocks == 2 and layout.side >= 60 and layout.width < 1_700 and layout.height < 1_800
    save_grid(maps, roles_of(maps, "unlabelled"), tmp_path / "deep.png", title="30 x 9")
    image = pixels(tmp_path / "deep.png")
    assert image.shape[:2] == (layout.height, layout.width)
    # The frames of the first row of cells: from one to the next, farther where another group begins.
    top = layout.top + grid.HEADER + grid.NAME_HEIGHT + layout.side // 2
    edge = (image[top] == rgb(grid.HAIRLINE)).all(-1).nonzero()[0]
    lefts = edge[np.diff(edge, prepend=-9) > 1][::2]
    pitch = layout.side + layout.gap
    steps = np.diff(lefts[:9])
    assert len(lefts) == 18 and steps.tolist() == [pitch, pitch, pitch + grid.APART] * 2 + [pitch] * 2
    save_grid(maps, None, tmp_path / "deep.svg", title="30 x 9")
    words = words_in(tmp_path / "deep.svg")
    assert words.count("H8") == 2 and "Under a bracket 3 query heads share one key/value head." in words
    every = grid._Layout.of(maps_of(sites(*(9,) * 30), 14), None)  # every head with its own: nothing stands apart
    assert every.left_of(8, sites(9)[0]) == 8 * (every.side + every.gap)


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
    assert "Under a bracket 2 query heads share one key/value head." in words and grid.BARE not in words
    one = maps_of(sites(2, 2))
    save_grid(one, None, tmp_path / "one.svg", title="one stack")
    assert not any("share one" in word for word in words_in(tmp_path / "one.svg"))


def test_a_role_frames_its_cell_in_its_colour(tmp_path):
    maps = maps_of(sites(3))
    save_grid(maps, roles_of(maps, "induction", "sink <s>", "unlabelled"), tmp_path / "g.png", title="t")
    image = pixels(tmp_path / "g.png")
    layout = grid._Layout.of(maps, {r.head: r for r in roles_of(maps, "a", "b", "c")})
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


def test_legend_entries_flow_onto_lines_and_a_role_of_a_head_without_a_map_is_an_error(tmp_path):
    maps = maps_of(sites(2))
    with pytest.raises(HeadError, match=r"roles are given for L5H0, for which there is no map"):
        save_grid(maps, [HeadRole(Head("", 5, 0), "local", EVIDENCE)], tmp_path / "g.png", title="t")
    assert flow([40, 40, 40, 200, 10], room=100, gap=10) == [(0, 0.0), (0, 50.0), (1, 0.0), (2, 0.0), (3, 0.0)]


# ======================================================================================================= an attribution
# The figure of an attribution: a cell a head, ink for what adds and rust for what takes, bars with their numbers.


@pytest.fixture
def result(fresh):
    lm = mh.load(tiny_gpt2(seed=draw(fresh)), tokenizer=tiny_tokenizer())
    return logit_attribution(lm, "the old cat sat on the table", (7, 31))


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_a_real_file_of_its_kind(result, kind, tmp_path):
    save_attribution(result, tmp_path / f"a{kind}")
    assert_is_file_of(kind, tmp_path / f"a{kind}")


def test_bars_are_the_largest_components_with_their_numbers(result, tmp_path):
    save_attribution(result, tmp_path / "a.svg")
    words = words_in(tmp_path / "a.svg")
    for index in np.argsort(-np.abs(result.values))[: attribution.BARS]:
        assert result.components[index] in words and f"{result.values[index]:+.2f}" in words
    assert {"L0", "L1", "L2", "0", "3"} <= set(words)


def test_the_largest_head_is_darkest_and_taking_is_rust(result, tmp_path):
    save_attribution(result, tmp_path / "a.png")
    image = pixels(tmp_path / "a.png")
    left, top, cell = attribution.MARGIN + 64, attribution.TOP, attribution.CELL
    colours = {
        head: image[top + cell * head.layer + cell // 2, left + cell * head.index + cell // 2][:3]
        for head in result.heads
    }
    largest = max(result.heads, key=lambda head: abs(result[head]))
    darkest = min(colours.values(), key=lambda colour: int(colour.sum()))
    expected = rgb(INK) if result[largest] > 0 else rgb(attribution.TAKES)
    assert np.abs(colours[largest].astype(int) - np.array(expected)).max() <= 24
    assert result[largest] < 0 or (colours[largest] == darkest).all()
    for name in result.heads:  # what takes is reddish, what adds is not
        red, _, blue = colours[name].astype(int)
        if abs(result[name]) > 0.3 * abs(result[largest]):
            assert (red - blue > 20) == (result[name] < 0)


def test_another_ending_is_refused(result, tmp_path):
    with pytest.raises(FileAccessError):
        save_attribution(result, tmp_path / "a.gif")
