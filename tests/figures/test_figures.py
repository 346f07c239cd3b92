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

from manyheads.errors import FileAccessError, ShapeError
from manyheads.figures import head, ramp, save_chart, save_grid, save_head
from manyheads.figures.head import block_means
from manyheads.figures.palette import PAPER
from manyheads.figures.paper import drawable, fitted, text_width
from manyheads.training import Chart, Panel
from manyheads.training.charts import Line
from tests.figures.pictures import HOSTILE, KINDS, assert_is_file_of, maps_of, pixels, rgb, roles_of, sites, words_in

CHART = Chart("t", "s", (Panel("p", (Line("", (0.0, 4.0, 9.0), (0.5, 2.0, 1.0)), Line("b", (3.0,), (1.0,), False))),))

# ---------------------------------------------------------------------------------------------------------- a head


@pytest.mark.turns(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(2)
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


@pytest.mark.turns(4)
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
        with pytest.raises(ShapeError, match="give one head's map"):
            save_head(wrong, None, path, title="t")
    with pytest.raises(ShapeError, match=r"labels has 2 words, but the map has 3 keys"):
        save_head(np.eye(3), ["a", "b"], path, title="t")
    with pytest.raises(ShapeError, match=r"row_labels has 1 words, but the map has 3 rows"):
        save_head(np.eye(3), None, path, title="t", row_labels=["a"])
    assert not path.exists()


# ------------------------------------------------------------------------------------------------------- any token


@pytest.mark.turns(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(1)
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
            with pytest.raises(FileAccessError, match=r"cannot tell what kind .* end it in \.png, \.svg, \.pdf"):
                save(tmp_path / name)

    @pytest.mark.sampled(2)
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
            with pytest.raises(FileAccessError, match=rf"cannot write .*{name}: {why}"):
                save(tmp_path / name)
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
    @pytest.mark.sampled(1)
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
def test_pyplot_stays_out_and_neither_palette_nor_report_needs_matplotlib():
    lines = (
        "import sys",
        "import manyheads.figures.palette as style",
        "assert style.role_style('sink [CLS]').terminal.startswith('#')",
        "assert not {'matplotlib', 'torch'} & set(sys.modules)",
        "import manyheads.figures.roles.report, manyheads.roles.claims",
        "assert 'matplotlib' not in sys.modules",
        "import manyheads.figures.maps, manyheads.figures.head",
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
