"""A sheet of paper to draw on, in pixels from the top left, its words, its charts, and its way to a file.

Maps, bars and words are placed by hand on one pair of axes: a thousand small maps cost a thousand pictures, not a
thousand axes, and every edge falls on a whole pixel. A chart gets axes of matplotlib's own (`Sheet.chart`). Plain
matplotlib on its Agg canvas; pyplot, its figures and its settings are not touched, save for a moment while a chart is
begun or a file is written. Files come out whole or not at all, and the same for the same input.

Tokens are data, whatever they hold, and are drawn as they are written. A token may be a formula's dollar sign, markup,
an emoji, a line break, right-to-left script, or four thousand letters. So nothing is ever read as mathtext, what cannot
be printed gets a visible stand-in, what is too long is cut with an ellipsis at a measured width, and characters that no
font here has become a box. DejaVu ships with matplotlib and covers Latin, Greek, Cyrillic, Hebrew, Arabic and much
else; fonts for other scripts are used where the system has them.
"""

from __future__ import annotations

import io
import math
import os
import threading
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from jaxtyping import UInt8
from matplotlib import font_manager, style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.textpath import text_to_path
from numpy import ndarray

from manyheads.base import replacing
from manyheads.errors import FileAccessError
from manyheads.figures.palette import FADED, HAIRLINE, PAPER
from manyheads.roles.words import INK

Pixels = int | float
Point = tuple[Pixels, Pixels]

BODY, SMALL = 12.5, 11  # sizes of letters, in pixels
SANS = "DejaVu Sans"
MONO = "DejaVu Sans Mono"
OTHER_SCRIPTS = (  # asked for only where installed
    "Noto Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans JP", "Noto Sans KR",
    "Noto Sans Devanagari", "Noto Sans Bengali", "Noto Sans Thai", "Noto Sans Symbols 2", "Noto Sans Symbols2",
    "Noto Emoji", "Hiragino Sans", "PingFang SC", "Apple SD Gothic Neo", "Apple Symbols", "Arial Unicode MS",
    "Microsoft YaHei", "Malgun Gothic", "Nirmala UI", "Leelawadee UI", "Segoe UI Symbol", "WenQuanYi Zen Hei",
)  # fmt: skip
STAND_INS = {"\n": "↵", "\r": "↵", "\t": "⇥", "\u2028": "↵", "\u2029": "↵"}
NOT_PRINTED = "\N{REPLACEMENT CHARACTER}"  # control characters, halves of surrogate pairs, code points of no meaning
NO_GLYPH = "\N{WHITE SQUARE}"
NOTHING = "\N{MIDDLE DOT}"  # for a token of which nothing is left to see: zero-width marks alone
LONGEST = 400  # characters: more fit no line, and measuring them costs time
JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"  # letters of Persian and Indic scripts need them
TICKS = 5  # of an axis, about

KINDS = (".png", ".svg", ".pdf")
DPI = 100
POINT = 72 / DPI  # points to a pixel: matplotlib's unit for letters and lines
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # letters stay letters: found, copied, read aloud
    "svg.hashsalt": "manyheads",
    "font.sans-serif": [SANS, "Verdana"],  # where an SVG's reader lacks the first: fonts about as wide
    "font.monospace": [MONO, "Menlo", "Consolas"],
    "pdf.fonttype": 42,  # fonts are embedded as outlines
    "image.composite_image": False,
    "path.simplify": False,
    "savefig.bbox": "standard",
    "text.hinting": "no_hinting",  # hinted letters stand at whole pixels: lines would be up to 6 % wider than measured
}
METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": "manyheads"},
    ".svg": {"Creator": "manyheads", "Date": None},
    ".pdf": {"Creator": "manyheads", "Producer": None, "CreationDate": None},
}
_settings = threading.Lock()  # matplotlib's settings are one for all threads


@lru_cache
def families(mono: bool) -> tuple[str, ...]:
    """Fonts to look in for each character, in this order."""
    installed = set(font_manager.fontManager.get_font_names())
    first = (MONO, SANS) if mono else (SANS, MONO)
    return (*first, *(name for name in OTHER_SCRIPTS if name in installed))


@lru_cache
def _coverage() -> frozenset[int]:
    """The code points that some font has."""
    paths = (font_manager.findfont(FontProperties(family=name)) for name in families(mono=False))
    return frozenset(code for path in paths for code in font_manager.get_font(path).get_charmap())


def printable(text: str) -> str:
    """The text on one line, with stand-ins for what cannot be printed; valid in any XML file."""
    drawn = "".join(_stand_in(char) for char in text[:LONGEST])
    return drawn + "…" if len(text) > LONGEST else drawn or (NOTHING if text else "")


def _stand_in(char: str) -> str:
    if char in STAND_INS:
        return STAND_INS[char]
    # an SVG with one control character or half of a surrogate pair is no XML and opens nowhere
    category = unicodedata.category(char)
    if category == "Cf":  # invisible marks, among them those that would turn the rest of the line round
        return char if char in JOINERS else ""
    return NOT_PRINTED if category in ("Cc", "Cs", "Co", "Cn") else char


def drawable(text: str) -> str:
    """`printable`, with a box for each character that no font here has."""
    covered = _coverage()
    # Joiners and variation selectors only change their neighbours: a font that lacks them loses nothing.
    return "".join(
        char if ord(char) in covered else "" if char in JOINERS or "\ufe00" <= char <= "\ufe0f" else NO_GLYPH
        for char in printable(text)
    )


@lru_cache(maxsize=8_192)
def text_width(text: str, size: Pixels, mono: bool = False, weight: str = "normal") -> float:
    """How wide a drawable text is, in the unit of `size`."""
    font = FontProperties(family=list(families(mono)), size=100, weight=weight)
    return text_to_path.get_text_width_height_descent(text, font, ismath=False)[0] * size / 100


def fitted(text: str, width: Pixels, size: Pixels, mono: bool = False, weight: str = "normal") -> str:
    """`drawable`, cut with an ellipsis where it is wider than `width`; "" where not even one letter fits."""
    # measured after stand-ins are put in: they are what has a width
    printed = drawable(text)
    if text_width(printed, size, mono, weight) <= width:
        return printed
    low, high = 0, len(printed)
    while low < high:  # the most letters that fit
        middle = (low + high + 1) // 2
        if text_width(printed[:middle].rstrip() + "…", size, mono, weight) <= width:
            low = middle
        else:
            high = middle - 1
    return printed[:low].rstrip() + "…" if low else ""


def flow(widths: Sequence[Pixels], room: Pixels, gap: Pixels) -> list[tuple[int, Pixels]]:
    """Where things of these widths stand one after the other: the line, from 0, and the pixels from its begin."""
    places: list[tuple[int, Pixels]] = []
    line, x = 0, 0.0
    for width in widths:
        if x > 0 and x + width > room:
            line, x = line + 1, 0.0
        places.append((line, x))
        x += width + gap
    return places


def even_step(span: float) -> float:
    """1, 2 or 5 times a power of ten, so that some five lines cross the span."""
    rough = span / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= rough)


def even_ticks(low: float, high: float) -> list[float]:
    """An axis' ticks: whole steps from `low` or below it to `high` or above it."""
    step = even_step((high - low) or abs(high) or 1.0)
    # 0.3 / 0.1 is a little under 3: without the margin an axis that ends on a tick would get one more
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * index for index in range(first, last + 1)]


class Drawing(Figure):
    """The figure of a sheet: a matplotlib figure that needs no pyplot, and is written with the sheet's own settings."""

    def savefig(self, *args: Any, **kwargs: Any) -> None:
        """As matplotlib's, but for the user's settings, which would move what was placed by hand."""
        with _settings, style.context(SETTINGS, after_reset=True):
            super().savefig(*args, **kwargs)

    def _repr_png_(self) -> bytes:
        """A notebook's view, where no pyplot was imported: else IPython draws it itself."""
        data = io.BytesIO()
        self.savefig(data, format="png", dpi=DPI)
        return data.getvalue()


class Sheet:
    """Paper of `width` x `height` pixels. Coordinates are pixels from the top left, y down."""

    def __init__(self, width: Pixels, height: Pixels) -> None:
        self.width, self.height = round(width), round(height)
        size = (self.width / DPI, self.height / DPI)
        self.figure = Drawing(figsize=size, dpi=DPI, facecolor=PAPER, edgecolor="none")
        # a user's `figure.autolayout` would move what is placed by hand
        self.figure.set_layout_engine("none")
        FigureCanvasAgg(self.figure)
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()
        self.axes.set(xlim=(0, self.width), ylim=(self.height, 0), autoscale_on=False)

    def heading(self, margin: Pixels, title: str, subtitle: str = "", *, size: Pixels = 21, below: Pixels = 38) -> None:
        """The figure's title, and a line `below` the margin, both cut to the sheet's width."""
        room = self.width - 2 * margin
        self.text(margin, margin + 14, title, size, width=room, weight="bold")
        self.text(margin, margin + below, subtitle, BODY, width=room, colour=FADED)

    def notes(
        self, x: Pixels, y: Pixels, notes: Iterable[str], pitch: Pixels, size: Pixels = SMALL, colour: str = FADED
    ) -> None:
        """Lines of text below each other, cut at the sheet's right margin, which is as wide as x."""
        for index, note in enumerate(notes):
            self.text(x, y + index * pitch, note, size, width=self.width - 2 * x, colour=colour)

    def text(
        self,
        x: Pixels,
        y: Pixels,
        text: str,
        size: Pixels,
        *,
        width: Pixels | None = None,
        mono: bool = False,
        weight: str = "normal",
        colour: str = INK,
        align: Literal["left", "center", "right"] = "left",
        turned: bool = False,
    ) -> float:
        """Write `text`; returns how wide it came out, in pixels.

        - `x`: where it begins, ends or has its middle, as `align` says.
        - `y`: its baseline.
        - `text`: what is written.
        - `size`: of its letters.
        - `width`: it is cut to so much; None: it is not cut.
        - `mono`: letters of one width.
        - `weight`: "normal" or "bold".
        - `colour`: of its letters.
        - `align`: which end lies at `x`.
        - `turned`: write upwards from (x, y).
        """
        written = drawable(text) if width is None else fitted(text, width, size, mono, weight)
        if not written:
            return 0.0
        # a dollar sign in a token is no formula, and no user's setting may send words through TeX
        artist = Text(
            x,
            y,
            written,
            color=colour,
            fontsize=size * POINT,
            fontfamily=[*families(mono), "monospace" if mono else "sans-serif"],
            fontweight=weight,
            horizontalalignment=align,
            verticalalignment="baseline",
            rotation=90 if turned else 0,
            rotation_mode="anchor",
            parse_math=False,
            usetex=False,
        )
        self.axes.add_artist(artist)
        return text_width(written, size, mono, weight)

    def picture(
        self, x: Pixels, y: Pixels, width: Pixels, height: Pixels, rgba: UInt8[ndarray, "row column rgba"]
    ) -> None:
        """An array of colours, each as a sharp rectangle; nothing is smoothed in between.

        Sent at a pixel a pixel, since readers of SVG and PDF may smooth what they enlarge, and would smear colour over
        cells where there is nothing.
        """
        rows, columns = (
            max(1, round(size / count)) for size, count in zip((height, width), rgba.shape[:2], strict=True)
        )
        # an axes' own imshow would change the limits of the sheet
        image = AxesImage(self.axes, interpolation="none", origin="upper", extent=(x, x + width, y + height, y))
        image.set_data(rgba.repeat(rows, axis=0).repeat(columns, axis=1))
        image.set_zorder(1)
        self.axes.add_image(image)

    def box(
        self,
        x: Pixels,
        y: Pixels,
        width: Pixels,
        height: Pixels,
        *,
        fill: str = "none",
        edge: str = "none",
        line: Pixels = 1.0,
    ) -> None:
        """A rectangle; its line runs half inside and half outside.

        - `x`: its left edge.
        - `y`: its upper edge.
        - `width`: to its right edge.
        - `height`: to its lower edge.
        - `fill`: its colour.
        - `edge`: its line's colour.
        - `line`: how wide that is.
        """
        patch = Rectangle((x, y), width, height, facecolor=fill, edgecolor=edge, linewidth=line * POINT, zorder=2)
        patch.set(joinstyle="miter", snap=False)  # snapping would move frames off the pictures' edges
        self.axes.add_artist(patch)

    def lines(self, ends: list[tuple[Point, Point]], colour: str = HAIRLINE) -> None:
        """Hairlines between pairs of points."""
        self.axes.add_artist(LineCollection(ends, colors=colour, linewidths=POINT, zorder=2))

    def curve(
        self,
        points: Iterable[Point],
        colour: str,
        wide: Pixels,
        *,
        alpha: float | None = None,
        dashed: bool = False,
        axes: Axes | None = None,
    ) -> None:
        """A line through points, above what boxes and hairlines are there.

        - `points`: in pixels; of a chart, in the units of its axes.
        - `colour`: of the line.
        - `wide`: how wide it is.
        - `alpha`: how much it hides, 0 to 1; None: all.
        - `dashed`: it has gaps.
        - `axes`: those of a chart.
        """
        line = LineCollection([list(points)], colors=colour, linewidths=wide * POINT, alpha=alpha, zorder=3)
        line.set(linestyle=(0, (4, 3)) if dashed else "solid", capstyle="round" if dashed else "butt", clip_on=False)
        (axes or self.axes).add_collection(line, autolim=False)

    def dots(self, axes: Axes, points: Iterable[Point], colour: str, radius: Pixels, alpha: float) -> None:
        """Points of a chart."""
        # one shape that is used again for every point: an SVG of circles would be three times as large
        dots = Line2D(*zip(*points, strict=True), linestyle="none", marker="o", color=colour, alpha=alpha, zorder=4)
        dots.set(markersize=2 * radius * POINT, markeredgewidth=0, clip_on=False)
        axes.add_line(dots)

    def chart(
        self,
        x: Pixels,
        y: Pixels,
        width: Pixels,
        height: Pixels,
        across: Point,
        rules: Mapping[Pixels, str],
        *,
        ticks: Mapping[Pixels, str] | None = None,
        up: Point | None = None,
        pads: tuple[Pixels, Pixels] = (10, 12),
    ) -> Axes:
        """Axes in the units of what they show: hairlines with their words on the left, ticks below.

        - `x`: the left edge.
        - `y`: the upper edge.
        - `width`: from the left edge to the right one.
        - `height`: from the upper edge to the lower one.
        - `across`: the ends of the x axis.
        - `rules`: hairlines, by their place on the y axis, and their words.
        - `ticks`: words below, by their place on the x axis.
        - `up`: the ends of the y axis; None: the first and last rule.
        - `pads`: pixels from the axes to the words on the left and below.

        What is drawn here lies under the sheet's own words.
        """
        low, high = up or (min(rules), max(rules))
        place = (x / self.width, 1 - (y + height) / self.height, width / self.width, height / self.height)
        # Axes take their looks from matplotlib's settings when they are made: the user's would show.
        with _settings, style.context(SETTINGS, after_reset=True):
            axes = self.figure.add_axes(place, zorder=-1, frame_on=False, axisbelow=True)
            axes.set(xlim=across, ylim=(low if high > low else high - 1, high), autoscale_on=False)
            axes.set_yticks(list(rules), list(rules.values()))
            axes.set_xticks(list(ticks or {}), list((ticks or {}).values()))
            axes.tick_params(length=0, labelsize=SMALL * POINT, labelcolor=FADED)
            axes.tick_params("y", pad=pads[0] * POINT)
            axes.tick_params("x", pad=pads[1] * POINT)
            axes.grid(axis="y", color=HAIRLINE, linewidth=POINT, clip_on=False)  # else the outermost is cut in half
        return axes

    def place(self, axes: Axes, x: Pixels, y: Pixels) -> tuple[float, float]:
        """Where a value of a chart stands on the sheet, for words beside it."""
        right, above = axes.transData.transform((x, y)).tolist()
        return right, self.height - above

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file that the path's ending asks for, whole or not at all. Errors: FileAccessError."""
        kind = kind_of(path)
        with replacing(path, kind) as temporary:
            self.figure.savefig(
                temporary, format=kind[1:], dpi=DPI, facecolor=PAPER, transparent=False, metadata=METADATA[kind]
            )


def on_host(values: object) -> object:
    """An array as it is, a tensor of any device as NumPy can read it."""
    detach = getattr(values, "detach", None)
    return values if detach is None else detach().cpu()


def kind_of(path: str | os.PathLike[str]) -> str:
    """The path's ending, if it is one that can be written. Raises FileAccessError: call it before the work."""
    kind = Path(path).suffix.lower()
    if kind not in KINDS:
        raise FileAccessError(f"cannot tell what kind of figure {Path(path).name!r} is: end it in {', '.join(KINDS)}.")
    return kind
