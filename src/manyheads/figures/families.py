"""All heads of a model on one map: near each other where they look at the same things, in the colour of their family.

Read it as one reads a map of towns: only distances count, no direction has a meaning. Beside it, how different the
heads of each layer are. Where roles are given, a dot is coloured by its label, and a ring says its family. Names stand
where there is room for them; those of the families' most typical heads come first and in bold.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float64
from matplotlib.patches import Circle
from numpy import ndarray

from manyheads.errors import HeadError
from manyheads.figures.palette import FADED, PAPER
from manyheads.figures.paper import BODY, POINT, SMALL, Pixels, Sheet, kind_of, text_width
from manyheads.heads import Head
from manyheads.roles import HeadRole
from manyheads.roles.compare import HeadFamilies
from manyheads.roles.words import INK, LEGEND, style_of

MARGIN, SIDE, GAP, PANEL = 36, 720, 44, 300
WIDTH = 2 * MARGIN + SIDE + GAP + PANEL
TOP, LINE, BAR_STEP = 104, 20, 20
TINY = 9
DOT, SMALL_DOT = 5.0, 3.2  # radius; the small one from so many heads on that the others would cover each other
MANY = 200
RING = 3.2  # how far a family's ring reaches beyond its dots
EDGE = 34  # around the map, for the names of what lies farthest out
HUES = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#332288", "#661100", "#00524A", "#8C510A")
ALONE = "#9A978E"  # heads that are a family by themselves, and families beyond the hues
CAVEAT = "Near: they look at the same words. What they make of them, and what is lost without them, may differ."

Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels."""
Key = tuple[str, str, int]
"""A line of the legend: colour, words, number of heads."""


def save_families(
    found: HeadFamilies,
    path: str | os.PathLike[str],
    *,
    roles: Iterable[HeadRole] | None = None,
    title: str | None = None,
) -> None:
    """Draw the map of all heads, and each layer's diversity; .png, .svg or .pdf.

    `roles`: colour heads by these, as `find_roles` gives them; their families are rings around them then.
    Cost: half a second. Errors: FileAccessError; HeadError for a head without a role, where roles are given.
    """
    kind_of(path)
    draw_families(found, roles=roles, title=title).save(path)


def draw_families(
    found: HeadFamilies,
    *,
    roles: Iterable[HeadRole] | None = None,
    title: str | None = None,
) -> Sheet:
    """The drawing that `save_families` writes."""
    hues, families = _by_family(found)
    colours, legend = (hues, families) if roles is None else _by_role(found, roles)
    lines = len(legend) + (0 if roles is None else len(families) + 2)
    beside = LINE * (lines + 5) + BAR_STEP * len(found.diversity)
    notes = [CAVEAT, *found.because.split("; ")]
    bottom = TOP + max(SIDE, beside) + 24
    sheet = Sheet(WIDTH, bottom + LINE * len(notes) + MARGIN)
    count = f"{len(found.heads)} heads in {len(found.families)} families"
    subtitle = f"{count}; the map shows {found.explained:.0%} of all squared distances between them"
    sheet.heading(MARGIN, title or f"{found.model}: which heads look alike", subtitle, below=40)

    # The map: dots, their rings, and as many names as fit.
    places, dot = _placed(found.map), _radius(len(found.heads))
    for (x, y), colour, ring in zip(places.tolist(), colours, hues, strict=True):
        sheet.axes.add_artist(Circle((x, y), dot, facecolor=colour, edgecolor=PAPER, linewidth=0.8 * POINT, zorder=3))
        if roles is not None and ring != ALONE:
            sheet.axes.add_artist(Circle((x, y), dot + RING, facecolor=ring, edgecolor="none", zorder=2))
    typical = {family.medoid for family in found.families}
    names = _names(places, found.heads, typical)
    for head, box in names.items():
        weight, colour = ("bold", INK) if head in typical else ("normal", FADED)
        sheet.text(box[0], box[3] - 1, _name(head), TINY, weight=weight, colour=colour)

    if unnamed := len(found.heads) - len(names):
        notes[0] += f" {unnamed} name{' is' if unnamed == 1 else 's are'} left out for want of room."
    left, y = MARGIN + SIDE + GAP, TOP + 4
    y = _draw_key(sheet, left, y, "Dot: its label" if roles is not None else "Dot: its family", legend)
    if roles is not None:
        y = _draw_key(sheet, left, y, "Ring: its family", families)
    sheet.text(left, y, "Bold: the head most like all others of its family", SMALL, colour=FADED, width=PANEL)
    _draw_diversity(sheet, found, left, y + LINE)
    sheet.notes(MARGIN, bottom + LINE, notes, LINE)
    return sheet


def _draw_key(sheet: Sheet, left: Pixels, y: Pixels, title: str, legend: Sequence[Key]) -> Pixels:
    """One legend under its title; where the next may begin."""
    sheet.text(left, y, title, SMALL, weight="bold", width=PANEL)
    for number, (colour, words, heads) in enumerate(legend, 1):
        dot = Circle((left + 6, y + number * LINE - 4), DOT, facecolor=colour, edgecolor="none")
        sheet.axes.add_artist(dot)
        after = sheet.text(left + 18, y + number * LINE, words, SMALL, width=PANEL - 80)
        sheet.text(left + 26 + after, y + number * LINE, f"{heads}", SMALL, colour=FADED)
    return y + LINE * (len(legend) + 1) + 6


def _by_family(found: HeadFamilies) -> tuple[list[str], list[Key]]:
    """The colour of each head, and the legend: families of two or more by size, the others together in grey."""
    # more hues than ten nobody can tell apart: smaller families share the grey of heads by themselves
    large = [family for family in found.families if len(family.heads) > 1][: len(HUES)]
    legend = [(HUES[index], f"like {family.medoid}", len(family.heads)) for index, family in enumerate(large)]
    colours = [HUES[group] if group < len(large) else ALONE for group in found.groups.tolist()]
    if rest := colours.count(ALONE):
        others = len(found.families) - len(large)
        legend.append((ALONE, "by itself" if others == 1 else f"{others} more families", rest))
    return colours, legend


def _by_role(found: HeadFamilies, roles: Iterable[HeadRole]) -> tuple[list[str], list[Key]]:
    """The same by role, in the palette's order."""
    named = {role.head: role for role in roles}
    if missing := [str(head) for head in found.heads if head not in named]:
        raise HeadError(f"no role is given for {', '.join(missing[:5])}: give roles of all heads, or none.")
    styles = [style_of(named[head].name, named[head].evidence.statistic) for head in found.heads]
    counts = Counter(styles)
    return [style.colour for style in styles], [
        (style.colour, style.name, counts[style]) for style in LEGEND if counts[style]
    ]


def _names(places: Float64[ndarray, "n 2"], heads: Sequence[Head], typical: set[Head]) -> dict[Head, Box]:
    """Where names stand that meet no dot and no other name: typical heads choose first, then those that lie apart.

    In a crowd a typical head's name may cover dots: without it the legend could not be read.
    """
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    np.fill_diagonal(apart, np.inf)
    lonely, dot = apart.min(1), _radius(len(places))  # how far each head lies from its nearest neighbour
    order = sorted(range(len(places)), key=lambda place: (heads[place] not in typical, -lonely[place], place))
    dots = [(x - dot, y - dot, x + dot, y + dot) for x, y in places.tolist()]
    boxes: dict[Head, Box] = {}

    def first_free(choices: Sequence[Box], taken: Sequence[Box]) -> Box | None:
        for left, top, right, bottom in choices:
            if not any(left < r and right > x and top < b and bottom > y for x, y, r, b in taken):
                return left, top, right, bottom
        return None

    for place in order:
        head, (x, y) = heads[place], places[place].tolist()
        width = text_width(_name(head), TINY, weight="bold" if head in typical else "normal")
        # Beside its dot: right, left, above, below, then the corners; beyond the ring
        # even where there is none, so that names stay where they are when roles are given.
        near, high = DOT + RING + 1, TINY + 1
        across, down = (x + near, x - near - width, x - width / 2), (y - high / 2, y - near - high, y + near)
        sides = [(across[0], down[0]), (across[1], down[0]), (across[2], down[1]), (across[2], down[2])]
        corners = [(left, top) for top in down[1:] for left in (x + DOT - 1, x - DOT + 1 - width)]
        choices = [(left, top, left + width, top + high) for left, top in (*sides, *corners)]
        box = first_free(choices, [*boxes.values(), *dots])
        if box is None and head in typical:
            box = first_free(choices, [*boxes.values()])
        if box is not None:
            boxes[head] = box
    return boxes


def _radius(count: int) -> float:
    return DOT if count <= MANY else SMALL_DOT


def _name(head: Head) -> str:
    return f"L{head.layer}H{head.index}"


def _placed(places: Float64[ndarray, "n 2"]) -> Float64[ndarray, "n 2"]:
    """Places on the sheet, both axes on one scale, the middle of the map in the middle of its square."""
    low, high = places.min(0), places.max(0)
    # heads that all look the same have one place between them: its size is 0, and must not be divided by
    scale = (SIDE - 2 * EDGE) / max(float((high - low).max()), 1e-12)
    return (places - (low + high) / 2) * np.array([1, -1]) * scale + np.array([MARGIN + SIDE / 2, TOP + SIDE / 2])


def _draw_diversity(sheet: Sheet, found: HeadFamilies, x: int, y: Pixels) -> None:
    """A bar a layer on a scale from 0 to the next tenth, with its interval."""
    sheet.text(x, y + 4, "How different the heads of a layer look", BODY, weight="bold")
    tops = [bound for layer in found.diversity for bound in (layer.value, layer.high) if bound is not None]
    top = float(np.ceil(10 * max([0.1, *tops])) / 10)
    left, width = x + 44, PANEL - 44 - 44
    for index, layer in enumerate(found.diversity):
        middle = y + LINE + 14 + index * BAR_STEP
        sheet.text(x, middle + 4, layer.layer, SMALL, width=40)
        if layer.value is None:
            sheet.text(left, middle + 4, "one head", SMALL, colour=FADED)
            continue
        sheet.box(left, middle - 5, width * layer.value / top, 10, fill="#8FA3B5")
        if layer.low is not None and layer.high is not None:
            ends = [left + width * bound / top for bound in (layer.low, layer.high)]
            sheet.lines([((ends[0], middle), (ends[1], middle))], colour=INK)
            sheet.lines([((end, middle - 3), (end, middle + 3)) for end in ends], colour=INK)
        sheet.text(x + PANEL, middle + 4, f"{layer.value:.2f}", SMALL, align="right", colour=FADED)
    below = y + LINE + 22 + len(found.diversity) * BAR_STEP
    sheet.text(x, below, "0: all look at the same; 1: no two at the same word", SMALL, colour=FADED, width=PANEL)
    sheet.text(x, below + 16, "line: 95 % over texts", SMALL, colour=FADED, width=PANEL)
